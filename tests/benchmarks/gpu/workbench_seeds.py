"""WorkBench on one GPU: several trainings of several seeds side by side, each measured, and one report of each recipe.

    python tests/benchmarks/gpu/workbench_seeds.py WORKBENCH [--folder runs/workbench] [--seeds 3] [--at-once 6]

WORKBENCH is a clone of the benchmark's repository. The embedded model leaves a GPU idle most of the time, so trainings
beside each other cost little. What is done is kept: run the same command again to go on. The tables are `report.md` in
`FOLDER/RECIPE-TASKS`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[3]
OFFICE = ROOT / "examples" / "workbench"
_HALF = "warm_start.max_steps=63"
RECIPES = {
    "supervised-63": (("one_system",), (_HALF, "grpo.max_steps=0")),
    "grpo-10": (("one_system",), (_HALF, "grpo.max_steps=10", "grpo.save_steps=5")),
    "supervised": (("one_system",), ("grpo.max_steps=0",)),
    "all-systems": (("one_system", "several_systems"), ("grpo.max_steps=0",)),
    "grpo": (("one_system", "several_systems"), ("grpo.max_steps=20", "grpo.save_steps=5")),
}
"""Files of tasks to train on, and what is set beside `one_system.json`."""
MEASURED = ("one_system", "several_systems", "templates")
SETTINGS = ("batching.bf16=true", "sampler_dtype=bfloat16", "evaluation.max_heldout=1", "evaluation.max_served=0")
BASELINES = {"gpt-4": "gpt-4-domains", "gpt-4-all": "gpt-4-all", "nothing": "do-nothing"}


class Comparison:
    """The folder of all runs."""

    def __init__(self, workbench: Path, folder: Path, more: Sequence[str]) -> None:
        self.workbench, self.folder, self.more = workbench.resolve(), folder.resolve(), more
        self.began = time.monotonic()
        self.environment = {**os.environ, "WORKBENCH": str(self.workbench), "OMP_NUM_THREADS": "2"}
        self.environment |= {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}

    def run(self, name: str, *command: str | Path) -> None:
        """Raises `RuntimeError` with the end of what a command that failed wrote."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        print(
            f"{time.monotonic() - self.began:7.0f} s  {name}: exit code {done.returncode}", file=sys.stderr, flush=True
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr.strip()[-2000:]}")

    def prepare(self) -> None:
        """Tasks, one file for each recipe, and the published verdicts."""
        office = (sys.executable, OFFICE / "workbench.py")
        self.run("tasks", *office, "tasks", self.workbench, "--to", self.folder / "tasks")
        if not (self.folder / "verdicts").exists():
            self.run("verdicts", *office, "verdicts", self.workbench, "--to", self.folder / "verdicts")
        for recipe, (files, _) in RECIPES.items():
            rows = "".join((self.folder / "tasks" / f"{file}.jsonl").read_text() for file in files)
            (self.folder / "tasks" / f"{recipe}.jsonl").write_text(rows)

    def seed(self, recipe: str, seed: int) -> None:
        """A training and its measurements."""
        name, shared = f"{recipe}-{seed}", ("--verifier", f"{OFFICE / 'outcome.py'}:verify", "--quiet")
        toolbake = (sys.executable, "-m", "toolbake")
        settings = [*SETTINGS, *RECIPES[recipe][1], f"seed={seed}", *self.more]
        settings = list({setting.partition("=")[0]: setting for setting in settings}.values())
        where = ("--config", OFFICE / "one_system.json", "--output-dir", self.folder / name)
        tasks = self.folder / "tasks" / f"{recipe}.jsonl"
        chosen = [word for setting in settings for word in ("--set", setting)]
        self.run(name, *toolbake, "train", OFFICE / "mcp.json", tasks, *shared, *where, *chosen)
        baselines = [f"{name}={self.folder / 'verdicts' / file}.jsonl" for name, file in BASELINES.items()]
        given = [word for baseline in baselines for word in ("--verdicts", baseline)]
        limits = [word for limit in ("max_turn_tokens=400", "max_tokens=800") for word in ("--limit", limit)]
        policies = ("--policy", f"tuned={self.folder / name / 'model'}")
        for file in MEASURED:
            rest = (*shared, *given, *limits, *policies, "--split", "heldout")
            tasks, to = self.folder / "tasks" / f"{file}.jsonl", self.folder / f"{name}-{file}"
            self.run(to.name, *toolbake, "evaluate", OFFICE / "mcp.json", tasks, *rest, "--output-dir", to)

    def report(self, recipe: str, seeds: int) -> None:
        for file in MEASURED:
            measured = [self.folder / f"{recipe}-{seed}-{file}" for seed in range(seeds)]
            to = ("--to", self.folder / f"{recipe}-{file}", "--cluster-by", "template")
            self.run(f"{recipe}-{file}", sys.executable, "-m", "toolbake", "report", *measured, *to)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workbench", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs/workbench"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--at-once", type=int, default=6, help="trainings beside each other; each takes up to 20 GB")
    parser.add_argument(
        "--set", dest="more", action="append", default=[], metavar="NAME=VALUE", help="of every training"
    )
    options = parser.parse_args()
    comparison = Comparison(options.workbench, options.folder, options.more)
    comparison.prepare()
    jobs = [(recipe, seed) for seed in range(options.seeds) for recipe in options.recipes]
    with ThreadPoolExecutor(options.at_once) as pool:
        done = [(job, pool.submit(comparison.seed, *job)) for job in jobs]
    failed = [f"{recipe}, seed {seed}: {error}" for (recipe, seed), job in done if (error := job.exception())]
    for recipe in options.recipes:
        if not any(one.startswith(f"{recipe},") for one in failed):
            comparison.report(recipe, options.seeds)
    print("\n".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
