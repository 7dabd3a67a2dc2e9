"""Default options on six small systems that nobody chose them for: is any run's model worse than what it began with?

    python tests/benchmarks/small_systems.py [--systems NAME ...] [--seeds 2] [--runs FOLDER] [--alone]
    python tests/benchmarks/small_systems.py --systems "booking service" --seeds 3
    python tests/benchmarks/small_systems.py --warm-start 30 [--seeds 2] [--strict]

Three systems are written for this and three are BFCL's APIs (`systems/`), with six to nine tools each. A task is one of
five kinds in one of six wordings; two wordings of each kind are held out, and a wording is a family. `sdk.train` gets
the tools, the tasks and a verifier, and no option but the seed. `--alone` takes the demonstrations away: prompts and
verifier are left. The booking service is a seventh system, behind an MCP server in a process of its own, and the order
desk's tasks of one call are an eighth.

`--warm-start` makes so many steps of the warm start alone, on two systems of the same kind (`systems/tuning.py`) on
which its default length was chosen.

Each run is a process of its own whose folder stays, and its result is added to a file in `systems/`, so the same
command goes on where it was stopped; delete a line to measure it again. A run takes about 15 minutes on two cores.
`--seeds 0` shows the finished runs alone. `--strict` measures what they handed over once more, freely and with calls
that are held to their schemas.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs" / "small-systems"
RESULTS = Path(__file__).parent / "systems" / "measured.jsonl"
SUCCESS = 1.0
ORDER_DESK = "order desk"
UNTRAINED, WARM_START = "untrained", "after_warm_start"


async def expected(rollout: Any) -> Any:
    """The changes of the world, these calls alone, and the answer where the task has one."""
    from sdk.verifiers import all_of, answer_match, calls_match, final_state, run_verifier

    parts = (final_state(), calls_match(only=True), *([answer_match()] if "answer" in rollout.task.expected else []))
    return await run_verifier(all_of(*parts), rollout)


def train(name: str, seed: int, folder: Path, *, alone: bool, warm_start: int | None) -> None:
    """One run, in this process. `warm_start`: so many steps of it, and no GRPO."""
    import asyncio

    import sdk
    from sdk.progress import Console
    from sdk.synthesis.solution import solve_file_async

    folder.mkdir(parents=True, exist_ok=True)
    if name == ORDER_DESK:
        tools, tasks, verifier = _order_desk()
    else:
        system = _systems()[name]
        rows = folder / "requests.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in system.rows()))
        tools, tasks, verifier = system.tools(), asyncio.run(solve_file_async(system.tools(), rows)), expected
    if alone:
        tasks = [task.model_copy(update={"demonstration": []}) for task in tasks]
    options = {} if warm_start is None else {"warm_start.max_steps": warm_start, "grpo.max_steps": 0}
    sdk.train(tools, tasks, verifier, None, folder / "run", {"seed": seed, **options}, progress=Console())


def _order_desk() -> tuple[Any, list[Any], Any]:
    """Its 14 kinds of one call: 336 tasks to train on, 168 held out."""
    import sandboxes.helpdesk
    from sdk.cli.quickstart_options import quickstart_verifier
    from sdk.tasks import load_tasks

    return (
        sandboxes.helpdesk.Helpdesk(),
        list(load_tasks(sandboxes.helpdesk.tasks(tiers=("1",)))),
        quickstart_verifier(),
    )


def measured(folder: Path) -> dict[str, Any] | None:
    """Held-out success with a finished run's weights, and of those it handed over beside the warm start's."""
    from sdk.evaluation.conditions import compare_paired
    from sdk.evaluation.report import Report
    from sdk.traces import RunFolder

    run = folder / "run"
    if not (run / "report.json").is_file():
        return None
    report = Report.read(run / "report.json")
    opened = RunFolder.open_to_read(run)
    chosen = (opened.stage("choice") or {}).get("chosen", "after GRPO")
    before = WARM_START if WARM_START in opened.rollout_stages() else UNTRAINED
    # Weights of a checkpoint are measured as a stage of their own; the others were already.
    stage = chosen.lower().replace(" ", "_")
    pair = compare_paired(
        opened.read_rollouts(before),
        opened.read_rollouts(stage if stage in opened.rollout_stages() else "chosen"),
        names=(before, "handed over"),
        threshold=SUCCESS,
    )
    gain = pair.success
    return {
        "success": {
            name: one.success.interval.estimate for name, one in report.conditions.items() if one.success is not None
        },
        "gain": {"value": gain.estimate, "low": gain.low, "high": gain.high},
        "tasks": pair.tasks,
        "families": pair.families,
        "chosen": chosen,
    }


class Results:
    """One line for each finished run. They stay with the program, since all of them take hours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._rows = {(row["system"], row["seed"]): row for row in map(json.loads, lines)}

    @property
    def seeds(self) -> int:
        return 1 + max((seed for _, seed in self._rows), default=-1)

    def get(self, name: str, seed: int) -> dict[str, Any] | None:
        return self._rows.get((name, seed))

    def add(self, name: str, seed: int, row: dict[str, Any]) -> None:
        self._rows[name, seed] = row = {"system": name, "seed": seed, **row}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def table(results: Results, systems: Sequence[str], *, seeds: int) -> str:
    """The finished runs as Markdown, with the mean gain over all of them."""
    lines = [
        "| system | seed | untrained | warm start | handed over | beside the warm start (95 %) | weights |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    gains, learnt, worse = [], [], []
    for name in systems:
        for seed in range(seeds):
            row = results.get(name, seed)
            if row is None:
                lines.append(f"| {name} | {seed} | | | | not run | |")
                continue
            shown = {key: f"{100 * rate:.1f} %" for key, rate in row["success"].items()}
            after = list(shown.values())[-1]
            gain, low, high = (100 * row["gain"][key] for key in ("value", "low", "high"))
            gains.append(gain)
            learnt.append(100 * (list(row["success"].values())[-1] - row["success"][UNTRAINED]))
            if high < 0:
                worse.append(f"{name}, seed {seed}")
            lines.append(
                f"| {name} | {seed} | {shown[UNTRAINED]} | {shown.get('after warm start', '')} | {after} "
                f"| {gain:+.1f} ({low:+.1f} to {high:+.1f}), {row['tasks']} tasks of {row['families']} families "
                f"| {row['chosen']} |"
            )
    if len(gains) > 1:
        lines += [
            "",
            f"Mean of {len(gains)} runs: {_mean(learnt)} points above the untrained model, {_mean(gains)} beside the "
            f"warm start. Below the warm start by more than chance: {', '.join(worse) or 'none'}.",
        ]
    return "\n".join(lines)


def _mean(values: list[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):+.1f} (standard error {error:.1f})"


def section(seeds: int = 2) -> str:
    """For docs/benchmarks.md. Runs what has not been run, which takes hours."""
    results = Results(RESULTS)
    six = _six()
    run_missing(six, seeds, RUNS, results, alone=False)
    return f"""## Default options on six small systems

`sdk.train(tools, tasks, verifier)` with no option but the seed: six systems with six to nine tools, of which three are
APIs of BFCL, five kinds of requests in six wordings each, two of them held out. SmolLM2-135M-Instruct, float32.

{table(results, six, seeds=seeds)}"""


def _systems() -> dict[str, Any]:
    from systems import BOOKING, SYSTEMS, TUNING

    return {**SYSTEMS, BOOKING.name: BOOKING, ORDER_DESK: None, **TUNING}


def _tuning() -> list[str]:
    from systems import TUNING

    return list(TUNING)


def _six() -> list[str]:
    from systems import SYSTEMS

    return list(SYSTEMS)


def run_missing(
    systems: list[str], seeds: int, runs: Path, results: Results, *, alone: bool, warm_start: int | None = None
) -> None:
    """Train each system with each seed, in a process of its own, unless its result is there."""
    for seed in range(seeds):
        for name in systems:
            if results.get(name, seed) is not None:
                continue
            print(f"== {name}, seed {seed}", flush=True)
            command = [sys.executable, __file__, "--one", name, str(seed), "--runs", str(runs)]
            command += ["--alone"] if alone else []
            command += [] if warm_start is None else ["--warm-start", str(warm_start)]
            # As the `toolbake` command has them: without a hub, and with threads that do not spin while they wait.
            own = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_WAIT_POLICY": "PASSIVE"}
            subprocess.run(command, check=True, env={"GOMP_SPINCOUNT": "3000", **os.environ, **own})
            row = measured(_folder(runs, name, seed))
            assert row is not None, f"the run in {_folder(runs, name, seed)} has no report"
            results.add(name, seed, row)


def strict_table(systems: Sequence[str], runs: Path, seeds: int) -> str:
    """Held-out success of the finished runs' models, freely and by `strict_tools`."""
    import asyncio

    import sdk
    from sdk.synthesis.solution import solve_file_async

    lines = ["| system | seed | free | strict |", "| --- | --- | --- | --- |"]
    for name in systems:
        for seed in range(seeds):
            folder = _folder(runs, name, seed)
            if not (folder / "run" / "report.json").is_file():
                continue
            tools = _systems()[name].tools()
            tasks = asyncio.run(solve_file_async(tools, folder / "requests.jsonl"))
            shown = []
            for strict in (False, True):
                how = {"model": folder / "run" / "model", "split": "heldout", "strict_tools": strict}
                [measured] = sdk.evaluate(tools, tasks, expected, **how).conditions.values()
                shown.append("" if measured.success is None else f"{100 * measured.success.interval.estimate:.1f} %")
            lines.append(f"| {name} | {seed} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _folder(runs: Path, name: str, seed: int) -> Path:
    return runs / name.partition(" (")[0].replace(" ", "-") / f"seed-{seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=list(_systems()), metavar="NAME", help="by default the six")
    parser.add_argument(
        "--seeds", type=int, default=2, help="how many seeds; 0 runs nothing and shows the finished runs"
    )
    parser.add_argument("--runs", type=Path, default=None, help=f"where runs are kept; by default {RUNS}")
    parser.add_argument("--alone", action="store_true", help="prompts and verifier alone, without demonstrations")
    parser.add_argument("--warm-start", type=int, metavar="STEPS", help="the warm start alone, on the tuning systems")
    parser.add_argument("--strict", action="store_true", help="measure the finished runs also with strict_tools")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    kind = "-alone" if options.alone else ""
    if options.warm_start is not None:
        kind += f"-warm-start-{options.warm_start}"
    systems = options.systems or (_six() if options.warm_start is None else _tuning())
    runs = options.runs or RUNS.with_name(f"small-systems{kind}")
    if options.one:
        name, seed = options.one
        folder = _folder(runs, name, int(seed))
        train(name, int(seed), folder, alone=options.alone, warm_start=options.warm_start)
        return
    if options.strict:
        print(strict_table(systems, runs, options.seeds))
        return
    results = Results(RESULTS.with_name(f"measured{kind}.jsonl"))
    run_missing(systems, options.seeds, runs, results, alone=options.alone, warm_start=options.warm_start)
    print(table(results, systems, seeds=max(options.seeds, results.seeds)))


if __name__ == "__main__":
    main()
