"""The example service: its document and twin, gold solutions on it, and what tells tasks that are lost there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from other_environments import python_of

import sdk
from sandboxes.api import ApiTwin
from sandboxes.divergence import compare
from sdk.policies.scripted import replay_demonstration

EXAMPLE = Path(__file__).parents[2] / "examples" / "enterprise"
sys.path.insert(0, str(EXAMPLE))

import enterprise  # noqa: E402
import service_worlds  # noqa: E402


@pytest.fixture(scope="module")
def service() -> service_worlds.ServiceWorlds:
    service_worlds.PYTHON = str(python_of("fastapi"))
    return service_worlds.ServiceWorlds(enterprise.ROWS)


@pytest.fixture(scope="module")
def twin() -> ApiTwin:
    return ApiTwin(service_worlds.DOCUMENT, rows=enterprise.ROWS)


def play(tools: object, task: sdk.Task) -> sdk.Rollout:
    return sdk.rollout(tools, task, model=replay_demonstration(task), verifier=enterprise.VERIFIER)


def test_the_document_is_that_of_the_service() -> None:
    words = [str(python_of("fastapi")), str(EXAMPLE / "service.py"), "--document"]
    written = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    assert json.loads(written) == json.loads(service_worlds.DOCUMENT.read_text())


def test_the_twin_holds_all_that_the_document_has(twin: ApiTwin) -> None:
    report = twin.report()
    assert len(twin.tools) == 19
    assert (report.broken, report.events, report.refused, report.answers) == ([], [], [], [])


def test_gold_solutions_are_right_on_the_service_and_answered_as_in_the_twin(
    twin: ApiTwin, service: service_worlds.ServiceWorlds, tmp_path: Path
) -> None:
    tasks = enterprise.make_tasks(twin, 16, tmp_path / "tasks.jsonl", seed=3)
    kinds = {task.tags["tools"]: task for task in tasks}
    some = [task for name, task in kinds.items() if name.startswith(("add_", "update_", "close_", "get_work"))]
    assert {task.tags["end"] for task in some} == {"change", "fact"}
    theirs = asyncio.run(enterprise.as_the_service_has_them(some, service))
    rollouts = [play(service, task) for task in theirs]
    assert [rollout.verdict.score for rollout in rollouts if rollout.verdict] == [1.0] * len(some)
    report = asyncio.run(compare(enterprise.recorded(rollouts, twin), twin, ignore=["**.created_at"]))
    assert report.agrees
    assert enterprise.lost_tasks([play(twin, task) for task in some], rollouts, report).startswith("0 held-out tasks")


def test_a_task_that_a_rule_of_the_service_forbids_is_named_with_the_refusal(
    twin: ApiTwin, service: service_worlds.ServiceWorlds
) -> None:
    state = twin.state()
    order = next(row["id"] for row in state["work-orders"].values() if row["status"] != "closed")
    off = next(row["id"] for row in state["technicians"].values() if not row["on_shift"])
    calls = [{"name": "update_work_order", "arguments": {"work_order_id": order, "technician_id": off}}]
    task = sdk.solve(twin, f"Give work order {order} to technician {off}.", calls, {"seed": 0}, answer="done")
    on_twin, on_service = play(twin, task), play(service, task)
    report = asyncio.run(compare(enterprise.recorded([on_service], twin), twin))
    lost = enterprise.lost_tasks([on_twin], [on_service], report)
    assert lost.startswith("1 held-out tasks")
    assert f"technician {off} is not on shift" in lost
