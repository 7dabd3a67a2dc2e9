"""The quickstart over several seeds, with options of one's choice: success after each stage on its 84 held-out tasks.

    python tests/benchmarks/quickstart_seeds.py FOLDER [--seeds 0 1 2] [--set sampler_dtype=bfloat16 ...]
        [--supervised STEPS ...] [--demonstrations COUNT]

A run takes about a quarter of an hour on two cores. Each is in a folder of its own below FOLDER: stopped at any time,
the same command goes on, and a finished run is only read. The table has a row for each seed: success after the warm
start, after GRPO and with the weights that were handed over, and what GRPO adds to the warm start with its interval by
wordings. With `--supervised`, each seed is also trained on the same demonstrations alone, in so many steps, and the
table compares GRPO's last weights with those, seed by seed and all seeds together. With `--demonstrations`, so many
training tasks of each intent keep theirs; GRPO trains on all tasks, with and without.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from sdk import TrainConfig, train
from sdk.cli.commands.quickstart import HELPDESK
from sdk.cli.options import assigned
from sdk.cli.quickstart_options import quickstart_options, quickstart_tasks, quickstart_verifier
from sdk.evaluation.conditions import compare_paired, is_success
from sdk.process import quiet_bars, quiet_libraries, tune_process
from sdk.progress import Console
from sdk.records import Rollout
from sdk.traces import RunFolder


def columns_of(report: dict[str, Any]) -> dict[str, str]:
    """Of one seed."""
    found = {name: f"{row['success']['interval']['estimate']:.1%}" for name, row in report["conditions"].items()}
    found["handed over"] = found.pop("chosen on validation", found.get("after GRPO", ""))
    for one in report["comparisons"]:
        if (one["first"], one["second"]) == ("after warm start", "after GRPO"):
            added = one["success"]
            found["GRPO adds"] = f"{added['estimate']:+.1%} ({added['low']:+.1%} to {added['high']:+.1%})"
    return found


def tasks_with(demonstrations: int | None) -> list[dict[str, Any]]:
    """The quickstart's. `demonstrations`: at most so many of each intent's training tasks have one; None: as it has
    them."""
    tasks = quickstart_tasks(kept_aside=True)
    shown: Counter[str] = Counter()
    for task in tasks:
        if demonstrations is not None and task["tags"]["split"] == "train" and "demonstration" in task:
            shown[task["tags"]["intent"]] += 1
            if shown[task["tags"]["intent"]] > demonstrations:
                del task["demonstration"]
    return tasks


def trained(folder: Path, tasks: list[dict[str, Any]], seed: int, changed: dict[str, Any]) -> dict[str, Any]:
    """The report of a quickstart with other options."""
    config = TrainConfig.of({**quickstart_options(seed=seed).model_dump(exclude_unset=True), **changed})
    train(HELPDESK, tasks, quickstart_verifier(), output_dir=folder, config=config, progress=Console())
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def heldout(folder: Path, stage: str) -> list[Rollout]:
    """Those of a stage that was measured on the held-out tasks."""
    return RunFolder.open_to_read(folder).read_rollouts(stage)


def beside(supervised: list[Rollout], grpo: list[Rollout]) -> list[str]:
    """Success after supervised training alone, and what is added to it where GRPO follows the warm start."""
    pair = compare_paired(supervised, grpo, names=("supervised", "GRPO"))
    gain = pair.success
    assert gain is not None
    rate = sum(is_success(one, 1.0) for one in supervised) / len(supervised)
    return [f"{rate:.1%}", f"{gain.estimate:+.1%} ({gain.low:+.1%} to {gain.high:+.1%})"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="of `toolbake train`")
    parser.add_argument(
        "--supervised", type=int, nargs="+", default=[], metavar="STEPS", help="supervised training alone"
    )
    parser.add_argument("--demonstrations", type=int, metavar="COUNT", help="of each intent; as it has them by default")
    options = parser.parse_args()
    tasks = tasks_with(options.demonstrations)
    changed = assigned(options.set, "--set")
    tune_process()
    quiet_libraries()
    quiet_bars()
    found = {}
    compared = ["| steps, supervised alone | seed | success | GRPO beside it (95 %) |", "|" + " --- |" * 4]
    for seed in options.seeds:
        found[seed] = columns_of(trained(options.folder / f"seed-{seed}", tasks, seed, changed))
    for steps in options.supervised:
        every: tuple[list[Rollout], list[Rollout]] = [], []
        for seed in options.seeds:
            folder = options.folder / f"supervised-{steps}-{seed}"
            trained(folder, tasks, seed, {**changed, "warm_start.max_steps": steps, "grpo.max_steps": 0})
            pair = heldout(folder, "after_warm_start"), heldout(options.folder / f"seed-{seed}", "after_grpo")
            every[0].extend(pair[0]), every[1].extend(pair[1])
            compared.append(f"| {steps} | {seed} | {' | '.join(beside(*pair))} |")
        compared.append(f"| {steps} | all | {' | '.join(beside(*every))} |")
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    print(f"| seed | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}")
    for seed, row in found.items():
        print(f"| {seed} | {' | '.join(row.get(name, '') for name in names)} |")
    if options.supervised:
        print("", *compared, sep="\n")


if __name__ == "__main__":
    main()
