"""The parts of the reward on held-out tasks: stages of runs, each beside the first on the same tasks.

python examples/papers/paper_parts.py runs/papers:after_warm_start runs/papers:after_grpo
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import sdk
from sdk.evaluation.statistics import clustered_wilson, mean_interval
from sdk.traces import RunFolder

PARTS = {
    "questions: the right paper alone is cited": ("question", "citation"),
    "the answer is right": ("question", "answer"),
    "both": ("question", "both"),
    "sets: F1": ("set", "f1"),
}


def values_of(rollouts: Sequence[sdk.Rollout], kind: str, part: str) -> dict[str, float]:
    """The part of each task's verdict, by the task's id."""
    found = {}
    for rollout in rollouts:
        if rollout.task.tags["kind"] == kind and rollout.verdict is not None:
            found[rollout.task.id] = rollout.verdict.score if part == "both" else rollout.verdict.components[part]
    return found


def table(stages: dict[str, Sequence[sdk.Rollout]]) -> str:
    """Markdown: the mean of each part with its 95 % interval by families, and the difference from the first stage."""
    lines = ["| | " + " | ".join([*PARTS, "answers to questions"]) + " |", "| --- " * (len(PARTS) + 2) + "|"]
    first = next(iter(stages))
    before = {of: values_of(stages[first], *of) for of in PARTS.values()}
    for name, rollouts in stages.items():
        families = {rollout.task.id: rollout.task.family for rollout in rollouts}
        cells, differences = [], []
        for kind, part in PARTS.values():
            values = values_of(rollouts, kind, part)
            groups = [families[task] for task in values]
            mean = mean_interval if part == "f1" else lambda rates, _, clusters: clustered_wilson(rates, clusters)
            found = mean([*values.values()], (0, 1), groups)
            cells.append(f"{100 * found.estimate:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})")
            gains = {
                task: value - before[kind, part][task] for task, value in values.items() if task in before[kind, part]
            }
            gain = mean_interval([*gains.values()], (-1, 1), [families[task] for task in gains])
            differences.append(f"{100 * gain.estimate:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})")
        said = Counter(one.answer.strip().lower()[:20] for one in rollouts if one.task.tags["kind"] == "question")
        lines.append(f"| {name} | {' | '.join(cells)} | {', '.join(f'{k!r} {n}' for k, n in said.most_common(3))} |")
        if name != first:
            lines.append(f"| beside {first} | {' | '.join(differences)} | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", metavar="RUN:STAGE", help="a run folder and one of its stages")
    stages = {}
    for one in parser.parse_args().stages:
        run, _, stage = one.rpartition(":")
        stages[one] = list(RunFolder.open_to_read(Path(run)).read_rollouts(stage))
    print(table(stages))


if __name__ == "__main__":
    main()
