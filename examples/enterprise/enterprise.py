"""From an OpenAPI document to a served model, and then against the service itself.

    python examples/enterprise/enterprise.py --output-dir runs/enterprise

The training side reads `openapi.json` alone: tools, a twin, tasks, probes, training, report, endpoint. Then the served
model is measured on held-out tasks, on the twin and on the service, with a fresh process of it for each rollout. Each
step is kept in the folder, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from service_worlds import DOCUMENT, ServiceWorlds

import sdk
from sandboxes.api import ApiTwin
from sandboxes.divergence import DivergenceReport, compare
from sandboxes.recorded.cassette import CallLine, Cassette, Header, RecordedResult, RecordedSession
from sdk.evaluation.conditions import is_success
from sdk.progress import Console
from sdk.serving import Server
from sdk.traces import RunFolder
from sdk.verifiers import all_of, answer_match, final_state

ROWS = 6
"""Rows of a table in each world."""
HELD_OUT = ("4", "5")
"""Of the six wordings of a kind of task. A task's family ends with its wording."""
VERIFIER = all_of(final_state(ignore=("work-orders.created_at",)), answer_match())
"""The wall clock of the service is not that of the twin."""


def make_tasks(twin: ApiTwin, count: int, path: Path, seed: int) -> list[sdk.Task]:
    """Tasks of one call from the twin's tools, those of two wordings held out."""
    made = sdk.synthesize(twin, count, to=path, max_calls=1, seed=seed)
    print(made)

    def tagged(task: sdk.Task) -> sdk.Task:
        split = "heldout" if task.family.endswith(HELD_OUT) else "train"
        return task.model_copy(update={"tags": {**task.tags, "split": split}})

    return [tagged(task) for task in made.tasks]


async def as_the_service_has_them(tasks: Sequence[sdk.Task], service: ServiceWorlds) -> list[sdk.Task]:
    """Tasks that change something, with the answer and the changes of their gold calls on the service: a new row has
    another id there than in the twin."""
    found = []
    for task in tasks:
        if task.tags["end"] == "change":
            question = task.family.rpartition(": ")[2].partition("/")[0].replace(" ", "_")
            answer = task.expected["answer"] if question == "done" else f"$.{question}"
            solved = await sdk.solve_async(service, task.prompt, task.expected["calls"], task.setup, answer=answer)
            task = task.model_copy(update={"expected": solved.expected, "demonstration": solved.demonstration})
        found.append(task)
    return found


def measure(name: str, tools: object, tasks: Sequence[sdk.Task], served: Server, folder: Path) -> list:
    """The held-out rollouts of the served model with these tools."""
    model = (f"{served.url}/v1", served.model_name)
    report = sdk.evaluate(
        tools, tasks, VERIFIER, model=model, output_dir=folder, concurrency=8, limits=LIMITS, progress=Console()
    )
    print(f"\n{name}\n{report}")
    opened = RunFolder.open_to_read(folder)
    return [rollout for stage in opened.rollout_stages() for rollout in opened.read_rollouts(stage)]


def recorded(rollouts: Sequence[sdk.Rollout], twin: ApiTwin) -> Cassette:
    """What the service answered, as a recording. Calls that could not be read never reached it."""
    names = {tool.name for tool in twin.tools}
    sessions = []
    for rollout in rollouts:
        arrived = [one for one in rollout.calls if one.call.error is None and one.call.name in names]
        calls = [
            CallLine(
                session=rollout.task.id,
                order=order,
                tool=one.call.name,
                arguments=one.call.arguments,
                result=RecordedResult.of(one.result),
            )
            for order, one in enumerate(arrived)
        ]
        sessions.append(RecordedSession(rollout.task.id, dict(rollout.task.setup), calls))
    header = Header(recorded_at="2026-01-01T00:00:00+00:00", source="the service", tools=list(twin.tools))
    return Cassette(header, sessions)


def lost_tasks(on_twin: Sequence[sdk.Rollout], on_service: Sequence[sdk.Rollout], report: DivergenceReport) -> str:
    """The tasks that are right on the twin alone, with what the service answered otherwise."""
    right = {rollout.task.id for rollout in on_twin if is_success(rollout, 1.0)}
    lost = [rollout for rollout in on_service if rollout.task.id in right and not is_success(rollout, 1.0)]
    lines = [f"{len(lost)} held-out tasks are right on the twin and not on the service."]
    for rollout in lost:
        lines.append(f"- {rollout.task.prompt}")
        differing = [call for call in report.calls if call.session == rollout.task.id and call.differences]
        lines += [f"  - {call.tool}: {difference}" for call in differing for difference in call.differences]
        if not differing:
            lines.append("  - no call was answered otherwise: the model wrote another answer")
    return "\n".join(lines)


LIMITS = sdk.Limits(max_turns=4, max_turn_tokens=96, max_tokens=256)


def run(folder: Path, count: int, seed: int, options: Path) -> None:
    """The whole path."""
    folder.mkdir(parents=True, exist_ok=True)
    twin = ApiTwin(DOCUMENT, rows=ROWS)
    print(twin.report())
    tasks = make_tasks(twin, count, folder / "tasks.jsonl", seed)
    heldout = [task for task in tasks if task.tags["split"] == "heldout"]
    config = {**json.loads(options.read_text()), "seed": seed, "limits": LIMITS}
    # Probes of the verifier come first in a training, and stop it where one earns.
    result = sdk.train(twin, tasks, VERIFIER, None, folder / "run", config, progress=Console())
    print(result.report)
    with sdk.serve(result.model_dir, port=0) as served:
        on_twin = measure("On the twin", twin, heldout, served, folder / "on-twin")
        service = ServiceWorlds(ROWS)
        theirs = asyncio.run(as_the_service_has_them(heldout, service))
        on_service = measure("On the service", service, theirs, served, folder / "on-service")
    ignored = ["**.created_at"]
    report = asyncio.run(compare(recorded(on_service, twin), twin, ignore=ignored))
    text = f"{report.to_markdown()}\n\n{lost_tasks(on_twin, on_service, report)}\n"
    (folder / "divergence.md").write_text(text)
    print(f"\n{text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/enterprise"), metavar="FOLDER")
    parser.add_argument("--tasks", type=int, default=200, metavar="N", help="how many to make (default 200)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--config", type=Path, default=DOCUMENT.with_name("options.json"), metavar="FILE")
    chosen = parser.parse_args()
    try:
        run(chosen.output_dir, chosen.tasks, chosen.seed, chosen.config)
    except (sdk.ToolbakeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
