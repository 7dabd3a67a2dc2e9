"""GRPO steps an hour on the helpdesk, from rollouts to new weights: `sdk.train` beside TRL's `GRPOTrainer` with tools.

    python tests/benchmarks/end_to_end.py [--steps 2] [--prompts 8] [--group-size 6] [--rounds 1] [--model FOLDER]

Both begin with the same warm-started model, which is made first (some minutes) unless a folder is given, such as
`runs/quickstart/checkpoints/warm_start`. Both then take the quickstart's options: the same tasks in each step, the same
group size, limits, loss, learning rate, temperature and verifier, float32. `sdk.train` starts the helpdesk as an MCP
server over stdio; TRL calls it in its own process, and samples with its own loop around `generate`, see
`helpdesk_in_trl.py`. A call that does not parse goes back to the model on our side, and ends a rollout in TRL. Each
runs in a process of its own, one after the other. A step's seconds are all of it: rollouts, rewards, update, and for
`sdk.train` the weights' way to the engine. On two cores a step of the default size takes TRL 5 to 10 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import helpdesk_in_trl  # noqa: F401 - its import sets what must be set before torch is loaded

Step = Mapping[str, float]
"""`rollout_s`, `update_s`, `cpu_s` (processor time of both, all threads of the process, the MCP server's not), `reward`
(mean of the step's rollouts) and `tokens` (sampled)."""

TRL, OURS = "TRL `GRPOTrainer`, `environment_factory`", "`sdk.train`"

_UNMEASURED: dict[str, Any] = {
    "evaluation.max_heldout": 1,
    "evaluation.max_served": 0,
    "evaluation.validation": 0,
    "probes.tasks": 0,
}
"""Of the quickstart's options: as little measured beside the steps as can be."""


def warm_start(folder: Path, threads: int) -> Path:
    """The quickstart's warm start. In a process of its own: others would miss the memory that it keeps."""
    from sdk.cli.quickstart_options import quickstart_options

    no_steps = {"grpo.max_steps": 0, "grpo.warmup_steps": 0}
    config = {**quickstart_options().model_dump(mode="json"), **no_steps, **_UNMEASURED}
    job = {"model": None, "config": config, "threads": threads}
    return Path(in_process([__file__, "--ours"], job, folder, threads)["model"])


def step_config(*, seed: int, steps: int, prompts: int, group_size: int) -> dict[str, Any]:
    """The quickstart's options for some steps of GRPO at one rate, with as little measured beside them as can be."""
    from sdk.cli.quickstart_options import quickstart_options

    changed = {
        **{"seed": seed, "grpo.max_steps": steps, "grpo.num_generations": group_size, "grpo.save_steps": steps + 1},
        **{"warm_start.max_steps": 0, "grpo.lr_scheduler_type": "constant", "grpo.warmup_steps": None, **_UNMEASURED},
    }
    whole = quickstart_options(prompts=prompts).model_dump(mode="json")
    return {**whole, **changed}


class StepClock:
    """A `Progress` that shows nothing, and notes the processor time of each step of GRPO."""

    def __init__(self) -> None:
        self.cpu_s: list[float] = []

    def say(self, text: str) -> None:
        """Nobody listens."""

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Any]:
        clock, began = self, time.process_time()

        class Step:
            def advance(self, amount: int = 1, note: str = "") -> None:
                nonlocal began
                ended = time.process_time()
                if title == "GRPO":
                    clock.cpu_s.append(ended - began)
                    print(f"sdk.train, step {len(clock.cpu_s)}: {note}", file=sys.stderr, flush=True)
                began = ended

        yield Step()


def train_ours(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What the steps of `sdk.train` took and gave, their tasks, and the model's folder. In a process of its own."""
    import torch

    import sdk
    from sdk.cli.commands.quickstart import HELPDESK
    from sdk.cli.quickstart_options import quickstart_tasks, quickstart_verifier
    from sdk.traces import RunFolder

    torch.set_num_threads(job["threads"])
    clock = StepClock()
    done = sdk.train(
        HELPDESK,
        quickstart_tasks(),
        quickstart_verifier(),
        model=job["model"],
        output_dir=folder,
        config=job["config"],
        progress=clock,
    )
    run = RunFolder.open_to_read(done.run_dir)
    lines = [line for line in run.read_metrics() if line["stage"] == "grpo"]
    taken: dict[tuple[int, str], Any] = {}
    for rollout in run.iter_rollouts("grpo"):
        taken.setdefault((rollout.step, rollout.task.id), rollout.task.model_dump(mode="json"))
    steps = [
        {
            "rollout_s": line["seconds/rollout"],
            "update_s": line["seconds/update"],
            "cpu_s": cpu_s,
            "reward": line["reward"],
            "tokens": line["sampled_tokens"],
        }
        for line, cpu_s in zip(lines, clock.cpu_s, strict=True)
    ]
    tasks = [taken[place] for place in sorted(taken, key=lambda place: place[0])]
    return {"steps": steps, "tasks": tasks, "model": str(done.model_dir)}


def gold_tasks() -> list[dict[str, Any]]:
    """A demonstrated task of each kind: both sides must read the same tokens of it, and give it a 1."""
    from sdk.cli.quickstart_options import quickstart_tasks
    from sdk.tasks import load_tasks

    shown = [task for task in load_tasks(quickstart_tasks()) if task.demonstration and task.tags["split"] == "train"]
    return [task.model_dump(mode="json") for task in {task.tags["intent"]: task for task in shown}.values()]


def in_process(program: list[str], job: Mapping[str, Any], folder: Path, threads: int) -> dict[str, Any]:
    """The result of a program that takes a job and a file for its result. A result that is there is used again."""
    job_file, result_file = folder / "job.json", folder / "result.json"
    if result_file.exists():
        kept: dict[str, Any] = json.loads(result_file.read_text())
        return kept
    folder.mkdir(parents=True)
    job_file.write_text(json.dumps(job))
    settings = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, *program, str(job_file), str(result_file)]
    subprocess.run(command, check=True, env={**os.environ, **settings}, stdout=sys.stderr)
    result: dict[str, Any] = json.loads(result_file.read_text())
    return result


def compare(
    model: Path, folder: Path, *, rounds: int, threads: int, rows: int | None, **shape: int
) -> list[dict[str, list[Step]]]:
    """The steps of both in each round; TRL has the tasks that ours had."""
    here = Path(__file__)
    done = []
    for number in range(rounds):
        config = step_config(seed=number, **shape)
        job = {"model": str(model), "config": config, "threads": threads}
        ours = in_process([str(here), "--ours"], job, folder / f"ours_{number}", threads)
        job |= {"tasks": ours["tasks"], "gold": gold_tasks(), "rows": rows or shape["group_size"]}
        trl = in_process([str(here.with_name("helpdesk_in_trl.py"))], job, folder / f"trl_{number}", threads)
        done.append({TRL: trl["steps"], OURS: ours["steps"]})
        print(f"round {number}: {done[-1]}", file=sys.stderr, flush=True)
    return done


def section(
    *,
    steps: int = 2,
    prompts: int = 8,
    group_size: int = 6,
    rounds: int = 1,
    threads: int = 2,
    rows: int | None = None,
    model: Path | None = None,
) -> str:
    """The result as Markdown. `rows`: conversations that TRL forwards at once in its update; a group where None."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = model.resolve() if model is not None else warm_start(folder / "warm_start", threads)
        shape = {"steps": steps, "prompts": prompts, "group_size": group_size}
        done = compare(start, folder, rounds=rounds, threads=threads, rows=rows, **shape)
    return "\n".join([*_head(load, threads, **shape), "", *_table(done), "", *_steps(done)])


def _head(load: float, threads: int, *, steps: int, prompts: int, group_size: int) -> list[str]:
    from sdk.cli.quickstart_options import LIMITS

    return [
        "## A step from end to end: `sdk.train` beside TRL's `GRPOTrainer` with tools",
        "",
        f"The helpdesk, {steps} step{'s' * (steps > 1)} of {prompts} tasks x {group_size} rollouts from the "
        f"quickstart's warm start, at most {LIMITS.max_turns} turns of {LIMITS.max_turn_tokens} tokens, float32, "
        f"{threads} threads; rollouts, rewards, update, publication. The same tasks, verifier, limits, loss and rate; "
        "`sdk.train` calls the tools over MCP, TRL in its own process. "
        f"Load average at the start {load:.1f}.",
    ]


def _seconds(step: Step) -> float:
    return step["rollout_s"] + step["update_s"]


def _table(done: list[dict[str, list[Step]]]) -> list[str]:
    lines = [
        "| | rollouts, s | update, s | a step, s | processor, s | steps an hour | mean reward | tokens sampled |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in (TRL, OURS):
        steps = [step for one in done for step in one[name]]
        means = {field: statistics.fmean(step[field] for step in steps) for field in steps[0]}
        whole = means["rollout_s"] + means["update_s"]
        times = f"{means['rollout_s']:.1f} | {means['update_s']:.1f} | {whole:.1f} | {means['cpu_s']:.1f}"
        lines.append(f"| {name} | {times} | {3600 / whole:.1f} | {means['reward']:.3f} | {means['tokens']:.0f} |")
    clock, cpu = (_ratios(done, count) for count in (_seconds, lambda step: step["cpu_s"]))
    return [*lines, f"| ratio, each round | | | {clock} | {cpu} | | | |"]


def _ratios(done: list[dict[str, list[Step]]], count: Callable[[Step], float]) -> str:
    return ", ".join(f"{sum(map(count, one[TRL])) / sum(map(count, one[OURS])):.1f}" for one in done)


def _steps(done: list[dict[str, list[Step]]]) -> list[str]:
    """Each step by itself."""
    lines = ["Means over all steps. Each step, rollouts + update in seconds and its mean reward:", ""]
    for name in (TRL, OURS):
        steps = [step for one in done for step in one[name]]
        shown = [f"{step['rollout_s']:.1f} + {step['update_s']:.1f} s, {step['reward']:.3f}" for step in steps]
        lines.append(f"- {name}: {'; '.join(shown)}.")
    return [*lines, "", "The first step's rewards differ by chance alone: both sample from the same weights."]


def main() -> None:
    if sys.argv[1:2] == ["--ours"]:
        job_file, result_file = map(Path, sys.argv[2:])
        job = json.loads(job_file.read_text())
        result_file.write_text(json.dumps(train_ours(job, result_file.parent / "run")))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8, help="tasks of a step, 8 at most")
    parser.add_argument("--group-size", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, help="conversations that TRL forwards at once in its update; one group")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a warm-started model; made where not given")
    print(section(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
