"""An auditor trained here on a planted set of wrong answers: does it find errors that it never saw?

    python tests/benchmarks/planted_errors.py [--steps 20] [--model FOLDER]

Answers about parcels, half of them wrong: the answer names another place than the result of the call. The model audits
those of parcels that it was not trained on, before and after supervised training on audits with the right call.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import sdk
from mcp_bridge.records import ToolResult
from sdk.evaluation.statistics import wilson
from sdk.judging import audit_call, audit_tasks
from sdk.records import CallRecord
from sdk.traces import RunFolder

PLACES = ("depot", "truck", "door", "shop", "port")
TRAINED, HELD_OUT = range(100, 180), range(300, 360)
STAGES = {"untrained": "untrained", "trained": "after_warm_start"}


def find_parcel(parcel: int) -> str:
    """Where a parcel is."""
    return f"Parcel {parcel} is at the {PLACES[random.Random(parcel).randrange(len(PLACES))]}."


def rollouts(parcels: Sequence[int]) -> list[sdk.Rollout]:
    """Every second answer is wrong."""
    made = []
    for parcel in parcels:
        chance = random.Random(-parcel)
        place = find_parcel(parcel).rpartition(" ")[2].strip(".")
        wrong = parcel % 2 == 1
        said = chance.choice([one for one in PLACES if one != place]) if wrong else place
        call = sdk.ToolCall(id="call_1", name="find_parcel", arguments={"parcel": parcel})
        made.append(
            sdk.Rollout(
                id=str(parcel),
                task=sdk.Task(prompt=f"Where is parcel {parcel}?", expected={"answer": place}),
                calls=[CallRecord(turn=1, call=call, result=ToolResult(text=find_parcel(parcel)))],
                answer=f"It is at the {said}.",
                verdict=sdk.Verdict(score=float(not wrong)),
            )
        )
    return made


def audits() -> list[sdk.Task]:
    tasks = []
    for split, parcels in (("train", TRAINED), ("heldout", HELD_OUT)):
        for task in audit_tasks(rollouts(parcels)):
            said = sdk.Message(role="assistant", content="ERROR" if task.expected["audit_error"] else "OK")
            tasks.append(task.model_copy(update={"demonstration": [said], "tags": {"split": split}}))
    return tasks


def measured(steps: int, model: str | None, folder: Path) -> dict[str, tuple[int, int, int]]:
    """Right calls, errors found and audits of each stage."""
    config = {
        "probes.tasks": 0,
        "warm_start.max_steps": steps,
        "grpo.max_steps": 0,
        "evaluation.validation": 0,
        "limits": {"max_turns": 1, "max_turn_tokens": 8},
        "tool_prompt": "none",
    }
    sdk.train([find_parcel], audits(), audit_call(), model, folder, config)
    found = {}
    with RunFolder.open_to_read(folder) as run:
        for title, stage in STAGES.items():
            played = [one for one in run.read_rollouts(stage) if one.scored and one.verdict is not None]
            right = [one for one in played if one.verdict is not None and one.verdict.components["right_call"]]
            caught = sum(bool(one.task.expected["audit_error"]) for one in right)
            found[title] = (len(right), caught, len(played))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for title, (right, caught, n) in measured(options.steps, options.model, Path(folder) / "run").items():
            share = wilson(right, n)
            print(
                f"{title}: {right} of {n} audits right, {right / n:.0%} [{share.low:.0%}, {share.high:.0%}]; "
                f"{caught} of {n // 2} errors found"
            )


if __name__ == "__main__":
    main()
