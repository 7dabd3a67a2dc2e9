"""Tools in the weights: training with full schemas, with names only and without tools in the prompt, each as served.

    python tests/benchmarks/tools_in_weights.py FOLDER [--workbench CLONE] [--on helpdesk email] [--seeds 0 1 2]
        [--shown full names none] [--after-full] [--set OPTION=VALUE ...]

On the quickstart's helpdesk, and on WorkBench's e-mail (a clone of the benchmark's repository). Each training has a
warm start and GRPO, the options are the same but `tool_prompt`. With `--after-full`, each is also trained from the
model that full schemas hand over: twice the training. Then the model that each hands over is served, and a client that
sends full tools asks it all held-out tasks, one after the other. With `OMP_NUM_THREADS=1` a second is one second of one
processor, which the cost of 1,000 questions counts. A finished training or measurement is only read: the same command
goes on where it was stopped, and several may share FOLDER if they differ in `--on`, `--seeds` or `--shown`. Differences
to full schemas that were trained as long are paired by task, with 95 % intervals by wordings or templates.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sdk import Limits, Rollout, TrainConfig, evaluate, serve, train
from sdk.cli.commands.quickstart import HELPDESK
from sdk.cli.options import assigned
from sdk.cli.quickstart_options import quickstart_options, quickstart_tasks, quickstart_verifier
from sdk.evaluation.conditions import compare_paired, summarise_condition
from sdk.evaluation.evaluation_run import SINGLE_STAGE
from sdk.process import quiet_bars, quiet_libraries, tune_process
from sdk.progress import Console
from sdk.tasks import load_tasks
from sdk.traces import RunFolder

OFFICE = Path(__file__).parents[2] / "examples" / "workbench"
SHOWN = ("full", "names", "none")
AFTER_FULL = " after full"
EMAIL_OPTIONS: dict[str, Any] = {
    "warm_start": {"max_steps": 24},
    "grpo": {"max_steps": 15, "prompts_per_step": 8, "num_generations": 6, "save_steps": 5},
}
"""Beside `one_system.json`. 29 demonstrations in steps of 8: each is shown six to seven times, as in that file."""


class Subject(NamedTuple):
    """Tools, tasks, verifier and options: what `sdk.train` gets."""

    tools: Any
    tasks: list[Any]
    verifier: Any
    options: dict[str, Any]
    cluster_by: str


def helpdesk() -> Subject:
    options = quickstart_options().model_dump(exclude_unset=True)
    tasks = load_tasks(quickstart_tasks(kept_aside=True))
    return Subject(HELPDESK, tasks, quickstart_verifier(), options, "family")


def email(clone: Path) -> Subject:
    """WorkBench's tasks of e-mail alone: 29 to train on, 41 held out."""
    sys.path.insert(0, str(OFFICE))
    from office_tasks import tasks
    from outcome import verify

    os.environ["WORKBENCH"] = str(clone.resolve())
    of_email = [task for task in tasks(clone) if task.tags["system"] == "email" and task.tags["set"] != "templates"]
    options = {**json.loads((OFFICE / "one_system.json").read_text()), **EMAIL_OPTIONS}
    return Subject(OFFICE / "mcp.json", of_email, verify, options, "template")


def served(subject: Subject, model: Path, limits: Limits, folder: Path) -> list[Rollout]:
    """Every held-out task through the endpoint, one after the other."""
    if not (folder / "report.json").is_file():
        with serve(model, port=0, model_name=folder.name) as server:
            evaluate(
                subject.tools,
                subject.tasks,
                subject.verifier,
                model=(f"{server.url}/v1", server.model_name),
                split="heldout",
                limits=limits,
                concurrency=1,
                output_dir=folder,
                progress=Console(),
            )
    rollouts = RunFolder.open_to_read(folder).read_rollouts(SINGLE_STAGE)
    # Other seeds have rollouts of the same ids, and each counts.
    return [one.model_copy(update={"id": f"{folder.name}/{one.id}"}) for one in rollouts]


def measured(
    subject: Subject, folder: Path, changed: dict[str, Any], model: Path | None
) -> tuple[list[str], list[Rollout]]:
    """Success of a run by stage, and the rollouts through the endpoint."""
    config = TrainConfig.of({**subject.options, **changed})
    train(subject.tools, subject.tasks, subject.verifier, model, folder, config, progress=Console())
    report = json.loads((folder / "report.json").read_text())
    rates = {name: f"{row['success']['interval']['estimate']:.1%}" for name, row in report["conditions"].items()}
    stages = [next((rate for name, rate in rates.items() if stage in name), "") for stage in ("warm start", "GRPO")]
    return stages, served(subject, folder / "model", config.limits, folder.with_name(f"{folder.name}-served"))


def percent(estimate: float, low: float, high: float) -> str:
    return f"{100 * estimate:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"


def points(found: Iterable[Rollout], full: Iterable[Rollout], cluster_by: str) -> str:
    pair = compare_paired(list(full), list(found), names=("full", "less"), cluster_by=cluster_by)
    gain = pair.success
    return f"{100 * gain.estimate:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})" if gain else ""


def row(found: list[Rollout], cluster_by: str) -> list[str]:
    """What one kind of prompt reaches through the endpoint: all seeds together."""
    summary = summarise_condition(found, threshold=1.0, cluster_by=cluster_by)
    if not (summary.success and summary.seconds and summary.prompt_tokens):
        return ["not scored"]
    rate = summary.success.interval
    return [
        percent(rate.estimate, rate.low, rate.high),
        f"{summary.prompt_tokens.mean:,.0f}",
        f"{summary.seconds.median:.2f} s",
        f"{summary.seconds.p95:.2f} s",
        f"{summary.seconds.mean * 1000 / 3600:.2f} h",
    ]


def trainings(options: argparse.Namespace, full: Path) -> Iterable[tuple[str, str, Path | None]]:
    """What each has in its prompt, its title in the tables, and the model that it begins with. `full`: that of the
    training with full schemas."""
    for shown in options.shown:
        yield shown, shown, None
    for shown in options.shown if options.after_full else ():
        yield shown, shown + AFTER_FULL, full


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workbench", type=Path, metavar="CLONE", help="for --on email")
    parser.add_argument("--on", nargs="+", choices=("helpdesk", "email"), default=["helpdesk"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shown", nargs="+", choices=SHOWN, default=SHOWN)
    parser.add_argument("--after-full", action="store_true", help="each from the model of full schemas, too")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="of `toolbake train`")
    options = parser.parse_args()
    if options.after_full and "full" not in options.shown:
        parser.error("--after-full needs full among --shown")
    if "email" in options.on and options.workbench is None:
        parser.error("--on email needs --workbench CLONE")
    more = assigned(options.set, "--set")
    tune_process()
    quiet_libraries()
    quiet_bars()
    tables = []
    for name in options.on:
        subject = helpdesk() if name == "helpdesk" else email(options.workbench)
        found: dict[str, list[Rollout]] = {}
        lines = ["| seed | tools in the prompt | warm start | after GRPO | as served |", "|" + " --- |" * 5]
        for seed in options.seeds:
            for shown, title, model in trainings(options, options.folder / f"{name}-full-{seed}" / "model"):
                folder = options.folder / f"{name}-{title.replace(' ', '-')}-{seed}"
                changed = {**more, "seed": seed, "tool_prompt": shown}
                stages, rollouts = measured(subject, folder, changed, model)
                found.setdefault(title, []).extend(rollouts)
                lines.append(f"| {seed} | {title} | {' | '.join([*stages, row(rollouts, subject.cluster_by)[0]])} |")
        lines += ["", f"| {name}, as served | success | prompt tokens | seconds, median | 95 % within "]
        lines[-1] += "| processor for 1,000 questions | beside full schemas, trained as long (95 %) |"
        lines.append("|" + " --- |" * 7)
        for title, rollouts in found.items():
            full = "full" + AFTER_FULL * title.endswith(AFTER_FULL)
            beside = points(rollouts, found[full], subject.cluster_by) if title != full and full in found else ""
            lines.append(f"| {title} | {' | '.join([*row(rollouts, subject.cluster_by), beside])} |")
        tables.append("\n".join(lines))
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
