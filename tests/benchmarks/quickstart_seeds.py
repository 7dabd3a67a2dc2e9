"""The quickstart over several seeds, with options of one's choice: success after each stage on its 84 held-out tasks.

    python tests/benchmarks/quickstart_seeds.py FOLDER [--seeds 0 1 2] [--set sampler_dtype=bfloat16 ...]

A run takes about a quarter of an hour on two cores. Each is in a folder of its own below FOLDER: stopped at any time,
the same command goes on, and a finished run is only read. The table has a row for each seed: success after the warm
start, after GRPO and with the weights that were handed over, and what GRPO adds to the warm start with its interval by
wordings.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sdk import TrainConfig, train
from sdk.cli.commands.quickstart import HELPDESK
from sdk.cli.options import assigned
from sdk.cli.quickstart_options import quickstart_options, quickstart_tasks, quickstart_verifier
from sdk.process import quiet_bars, quiet_libraries, tune_process
from sdk.progress import Console


def columns_of(report: dict[str, Any]) -> dict[str, str]:
    """Of one seed."""
    found = {name: f"{row['success']['interval']['estimate']:.1%}" for name, row in report["conditions"].items()}
    found["handed over"] = found.pop("chosen on validation", found.get("after GRPO", ""))
    for one in report["comparisons"]:
        if (one["first"], one["second"]) == ("after warm start", "after GRPO"):
            added = one["success"]
            found["GRPO adds"] = f"{added['estimate']:+.1%} ({added['low']:+.1%} to {added['high']:+.1%})"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="of `toolbake train`")
    options = parser.parse_args()
    changed = assigned(options.set, "--set")
    tune_process()
    quiet_libraries()
    quiet_bars()
    tasks, verifier = quickstart_tasks(kept_aside=True), quickstart_verifier()
    found = {}
    for seed in options.seeds:
        folder = options.folder / f"seed-{seed}"
        config = TrainConfig.of({**quickstart_options(seed=seed).model_dump(exclude_unset=True), **changed})
        train(HELPDESK, tasks, verifier, output_dir=folder, config=config, progress=Console())
        found[seed] = columns_of(json.loads((folder / "report.json").read_text()))
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    print(f"| seed | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}")
    for seed, row in found.items():
        print(f"| {seed} | {' | '.join(row.get(name, '') for name in names)} |")


if __name__ == "__main__":
    main()
