"""Tools that a server wants called as tasks: their results, questions, failures, time limits, and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from free_ports import free_port
from listening_servers import listening
from other_environments import python_of

import mcp_bridge
from mcp_bridge import CallTimeout, Elicitation, Handlers, OutcomeUnknown, Progress, ServerDied, ToolFailure
from mcp_bridge.ledger import LedgerLine

TASKING = str(Path(__file__).parent / "servers" / "tasking.py")


def events(lines: list[LedgerLine]) -> list[str]:
    return [line.event for line in lines]


class Kitchen:
    """A server of tasks in a process of its own, and what its tools say that they have done."""

    def __init__(self, url: str, done: Path) -> None:
        self.url = url
        self._done = done

    def did(self, label: str) -> list[str]:
        """What was done for the calls with this label."""
        lines = self._done.read_text().splitlines() if self._done.exists() else []
        return [line.removeprefix(f"{label} ") for line in lines if line.startswith(f"{label} ")]

    async def comes_to(self, label: str, what: list[str]) -> None:
        with anyio.fail_after(30):
            while self.did(label) != what:  # noqa: ASYNC110 - another process cannot set an event of ours
                await anyio.sleep(0.01)


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    """Over HTTP; one for all tests that do not end it."""
    done, port = tmp_path_factory.mktemp("kitchen") / "done", free_port()
    command = [str(python_of("mcp-1.26")), TASKING, "--done", str(done), "--http", str(port)]
    with listening(command, "Uvicorn running on"):
        yield Kitchen(f"http://127.0.0.1:{port}/mcp/", done)


def over_stdio(done: Path, **options: Any) -> dict[str, Any]:
    server = {"command": str(python_of("mcp-1.26")), "args": [TASKING, "--done", str(done)], "toolbake": options}
    return {"mcpServers": {"kitchen": server}}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result waits for the last state for as long as a busy machine takes."""
    monkeypatch.setattr("mcp_bridge.sessions.tasks._LAST_STATE_S", 60.0)


@pytest.mark.usefixtures("patient")
async def test_a_task_gives_its_result_and_the_ledger_names_it(kitchen: Kitchen) -> None:
    steps: list[str | None] = []

    def follow(step: Progress) -> None:
        steps.append(step.message)

    handlers = Handlers(progress=follow)
    async with mcp_bridge.connect(kitchen.url, handlers=handlers) as toolset, toolset.open_world("one") as world:
        assert toolset.left_out == []
        cake = await world.call("bake", {"label": "first", "followed": True})
        assert (cake.text.splitlines()[0], cake.structured) == ("A cake.", {"number": 1})
        assert (await world.call("plain", {})).text == "plain"
        lines = world.ledger.lines
    assert kitchen.did("first") == ["baked"]
    assert events(lines) == ["started", "accepted", "answered", "started", "answered"]
    assert lines[1].note.startswith("task ")
    assert lines[0].key == lines[1].key == lines[2].key
    assert steps == ["mixing", "in the oven"]


@pytest.mark.usefixtures("patient")
async def test_a_state_that_the_result_overtakes_is_reported_before_the_call_returns(kitchen: Kitchen) -> None:
    steps: list[str | None] = []

    def follow(step: Progress) -> None:
        steps.append(step.message)

    async with mcp_bridge.connect(kitchen.url, handlers=Handlers(progress=follow)) as toolset:
        await toolset.call("bake", {"label": "overtaken", "followed": True, "overtaken": True})
        assert steps == ["mixing", "in the oven"]


async def test_tasks_of_one_session_run_side_by_side(kitchen: Kitchen) -> None:
    async with mcp_bridge.connect(kitchen.url) as toolset, toolset.open_world("one") as world:
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(world.call, "meet", {"label": "many", "count": 8})
    assert kitchen.did("many") == ["met"] * 8


async def test_what_a_task_asks_is_answered_or_refused_like_any_question(kitchen: Kitchen) -> None:
    def user(question: Elicitation) -> dict[str, str]:
        assert question.message == "Which colour?"
        return {"colour": "blue"}

    async with mcp_bridge.connect(kitchen.url, handlers=Handlers(elicitation=user)) as toolset:
        assert (await toolset.call("paint", {})).text == "Painted blue."
    async with mcp_bridge.connect(kitchen.url, handlers=Handlers(elicitation=lambda _: None)) as toolset:
        assert (await toolset.call("paint", {})).text == "The user: decline."
    async with mcp_bridge.connect(kitchen.url) as toolset:
        refused = await toolset.call("paint", {})
        assert refused.error_kind == "tool_error"
        assert "elicitation" in refused.text.lower()


async def test_a_task_that_fails_is_an_error_that_the_policy_reads(kitchen: Kitchen) -> None:
    async with mcp_bridge.connect(kitchen.url) as toolset:
        spilled = await toolset.call("spill", {})
        assert (spilled.error_kind, "the milk is gone" in spilled.text) == ("tool_error", True)
        refused = await toolset.call("refuse", {})
        assert (refused.error_kind, refused.text) == ("tool_error", "No flour.")


async def test_a_result_against_the_tools_own_schema_is_a_failure_and_not_an_answer(kitchen: Kitchen) -> None:
    async with mcp_bridge.connect(kitchen.url) as toolset:
        with pytest.raises(ToolFailure, match="number"):
            await toolset.call("miscount", {})


async def test_a_time_limit_holds_for_the_whole_task_and_cancels_it_in_the_server(kitchen: Kitchen) -> None:
    async with mcp_bridge.connect(kitchen.url) as toolset, toolset.open_world("one") as world:
        with pytest.raises(CallTimeout) as caught:
            await world.call("wait", {"label": "late"}, timeout_s=5.0)  # it must have been accepted by then
        assert isinstance(caught.value, OutcomeUnknown)
        assert events(world.ledger.lines) == ["started", "accepted", "unknown"]
        await kitchen.comes_to("late", ["waiting", "cancelled"])
        assert (await world.call("plain", {})).text == "plain"


async def test_a_task_whose_server_dies_is_not_begun_again(tmp_path: Path) -> None:
    kitchen = Kitchen("", tmp_path / "done")
    async with mcp_bridge.connect(over_stdio(tmp_path / "done")) as toolset, toolset.open_world("one") as world:
        baked = await world.call("bake", {"label": "cake"})
        assert baked.structured == {"number": 1}
        with pytest.raises(OutcomeUnknown) as caught:
            await world.call("die", {"label": "call"})
        assert isinstance(caught.value, ServerDied)
        task = next(line.note for line in world.ledger.lines[3:] if line.event == "accepted")
        assert f"as {task}" in str(caught.value)
        assert events(world.ledger.lines)[3:] == ["started", "accepted", "unknown"]
    assert kitchen.did("call") == ["dying"]


async def test_a_task_that_only_reads_is_begun_again_after_its_server_died(tmp_path: Path) -> None:
    source = over_stdio(tmp_path / "done", read_only=["*"], retries=1)
    async with mcp_bridge.connect(source, call_timeout_s=60) as toolset, toolset.open_world("one") as world:
        with pytest.raises(ToolFailure):
            await world.call("die", {"label": "call"})
        assert events(world.ledger.lines) == ["started", "accepted", "lost", "started", "accepted", "failed"]
    assert Kitchen("", tmp_path / "done").did("call") == ["dying", "dying"]


async def test_the_everything_server_does_its_research_as_a_task(node_server: Callable[[str], list[str]]) -> None:
    asked: list[str] = []

    def user(question: Elicitation) -> dict[str, str]:
        asked.append(question.message)
        return {"interpretation": "snake"}

    handlers = Handlers(elicitation=user)
    async with mcp_bridge.connect(node_server("server-everything"), handlers=handlers) as toolset:
        found = await toolset.call("simulate-research-query", {"topic": "python", "ambiguous": True})
        assert "# Research Report: python (snake)" in found.text
    assert len(asked) == 1


STUBBORN = """
import json, sys

STATES = {"late": ["working", "working", "completed"], "forgotten": [], "odd": ["cancelled"]}
TASKS = {"tasks": {"requests": {"tools": {"call": {}}}}} if "--tasks" in sys.argv else {}
left = {name: list(states) for name, states in STATES.items()}
now = {}

def task(name, status):
    return {"taskId": name, "status": status, "createdAt": "2026-01-01T00:00:00Z", "pollInterval": 50,
            "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": None}

def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, **TASKS},
                "serverInfo": {"name": "stubborn", "version": "1"}}
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
                 for name in STATES]
        return {"tools": [*tools, {"name": "plain", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        return {"task": task(params["name"], "working")}
    name = params.get("taskId")
    if method == "tasks/get" and left[name]:
        now[name] = left[name].pop(0) if len(left[name]) > 1 else left[name][0]
        return task(name, now[name])
    if method == "tasks/result" and now.get(name) == "completed":
        return {"content": [{"type": "text", "text": "at last"}]}
    if method == "tasks/result" and left[name]:
        raise ValueError("it is not ready")
    if method in ("tasks/get", "tasks/result"):
        raise ValueError("there is no such task")
    raise LookupError(method)

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        reply["result"] = answer(message["method"], message.get("params", {}))
    except ValueError as error:
        reply["error"] = {"code": -32602, "message": str(error)}
    except LookupError:
        reply["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(reply), flush=True)
"""


async def test_a_server_that_does_not_wait_with_the_result_is_asked_again(script: Callable[[str], list[str]]) -> None:
    async with mcp_bridge.connect([*script(STUBBORN), "--tasks"]) as toolset:
        assert (await toolset.call("late", {})).text == "at last"


@pytest.mark.parametrize(("tool", "says"), [("forgotten", "there is no such task"), ("odd", "it is not ready")])
async def test_a_task_that_its_server_lost_is_no_mistake_of_the_policy(
    script: Callable[[str], list[str]], tool: str, says: str
) -> None:
    async with mcp_bridge.connect([*script(STUBBORN), "--tasks"]) as toolset, toolset.open_world("one") as world:
        with pytest.raises(OutcomeUnknown, match=says):
            await world.call(tool, {})
        assert events(world.ledger.lines) == ["started", "accepted", "unknown"]


async def test_a_tool_is_left_out_whose_server_does_not_say_that_it_takes_tasks(
    script: Callable[[str], list[str]],
) -> None:
    async with mcp_bridge.connect(script(STUBBORN)) as toolset:
        assert [tool.name for tool in toolset.tools] == ["plain"]
        assert [one.tool for one in toolset.left_out] == ["late", "forgotten", "odd"]
        assert "does not say that it takes tasks" in toolset.left_out[0].reason
