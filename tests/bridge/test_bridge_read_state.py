"""Worlds for somebody else's server: a copy of a folder for each, and the state as a tool of the server reads it."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from heard import Heard

import sdk
from mcp_bridge import SourceError, ToolFailure, connect
from mcp_bridge.records import ToolResult
from mcp_bridge.sessions.server_source import state_tables
from sandboxes import diff
from sdk.policies.scripted import replay_demonstration
from sdk.verifiers import final_state

Node = Callable[[str], list[str]]
FILING = Path(__file__).parent / "servers" / "filing.py"
ANN = {"type": "entity", "name": "Ann", "entityType": "person", "observations": ["likes tea"]}
BOB = {"name": "Bob", "entityType": "person", "observations": ["likes coffee"]}


@pytest.fixture
def memory(tmp_path: Path, node_server: Node) -> Path:
    """An `mcp.json` for @modelcontextprotocol/server-memory, whose graph begins with one person."""
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed" / "graph.jsonl").write_text(json.dumps(ANN))
    node, entry = node_server("server-memory")
    server = {
        "command": node,
        "args": [entry],
        "env": {"MEMORY_FILE_PATH": "${TOOLBAKE_WORLD_DIR}/graph.jsonl"},
        "toolbake": {"world": {"folder": "seed/", "state": "read_graph"}},
    }
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"memory": server}}))
    return config


async def test_two_worlds_of_somebody_elses_server_begin_alike_and_share_nothing(memory: Path) -> None:
    async with connect(memory) as toolset:
        assert toolset.has_state
        assert not toolset.live_destructive
        async with toolset.open_world("a") as a, toolset.open_world("b") as b:
            start = await a.state()
            assert start == await b.state()
            assert start is not None
            assert set(start["entities"]) == {"Ann"}
            assert not (await a.call("create_entities", {"entities": [BOB]})).is_error
            assert not (await b.call("delete_entities", {"entityNames": ["Ann"]})).is_error
            in_a, in_b = await a.state(), await b.state()
            assert in_a is not None
            assert set(in_a["entities"]) == {"Ann", "Bob"}
            assert in_b is not None
            assert in_b["entities"] == {}
            await a.call("create_relations", {"relations": [{"from": "Ann", "to": "Bob", "relationType": "knows"}]})
            assert [change["table"] for change in diff(in_a, await a.state() or {})] == ["relations"] * 3
        async with toolset.open_world("again") as again:
            assert await again.state() == start
    assert (memory.parent / "seed" / "graph.jsonl").read_text() == json.dumps(ANN)


def test_rollouts_side_by_side_are_judged_by_the_state_that_the_tool_reads(memory: Path) -> None:
    calls = "add_observations(observations=[{'entityName': 'Ann', 'contents': ['likes cake']}])"
    task = sdk.solve(memory, "Note that Ann likes cake.", calls)
    assert task.expected["changes"] == [
        {
            "table": "entities",
            "key": "Ann",
            "column": "observations",
            "before": ["likes tea"],
            "after": ["likes tea", "likes cake"],
        }
    ]
    tasks = [task.model_copy(update={"id": f"t{number}"}) for number in range(3)]
    report = sdk.evaluate(memory, tasks, final_state(), model=replay_demonstration(task))
    assert "100.0 %" in str(report)


async def test_a_tool_that_cannot_read_the_state_is_refused_with_the_fix(node_server: Node) -> None:
    node, program = node_server("server-memory")
    entry: dict[str, Any] = {"command": node, "args": [program]}
    for tool, message in {
        "read_grap": "none of its tools: create_entities",
        "delete_entities": "nothing marks that tool as read-only",
        "search_nodes": "needs the arguments query",
    }.items():
        entry["toolbake"] = {"world": {"state": tool}}
        with pytest.raises(SourceError, match=message):
            async with connect({"mcpServers": {"memory": entry}}):
                pass


async def test_a_state_that_is_told_as_text_and_a_tool_that_is_not_shown_will_do(tmp_path: Path) -> None:
    (tmp_path / "seed").mkdir()
    world_options = {"folder": str(tmp_path / "seed"), "state": "read"}
    server = {
        "command": sys.executable,
        "args": [str(FILING)],
        "env": {"NOTES_FILE": "${TOOLBAKE_WORLD_DIR}/notes.txt"},
        "toolbake": {"world": world_options, "read_only": ["read"], "deny": ["read"]},
    }
    async with connect({"mcpServers": {"filing": server}}) as toolset, toolset.open_world("a") as world:
        assert [tool.name for tool in toolset.tools] == ["add"]
        assert await world.state() == {"result": {"": {"value": "no notes"}}}
        await world.call("add", {"text": "first"})
        assert diff({}, await world.state() or {})[0]["after"].strip() == "first"


async def test_a_server_that_takes_no_setup_has_one_world_to_make_tasks_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdk.synthesis.synthesis_run._ATTEMPTS_A_TASK", 4)  # none of them makes a task
    (tmp_path / "seed").mkdir()
    server = {
        "command": sys.executable,
        "args": [str(FILING)],
        "env": {"NOTES_FILE": "${TOOLBAKE_WORLD_DIR}/notes.txt"},
        "toolbake": {"world": {"folder": str(tmp_path / "seed"), "state": "read"}, "read_only": ["read"]},
    }
    heard = Heard()
    made = await sdk.synthesize_async({"mcpServers": {"filing": server}}, 1, max_calls=1, progress=heard)
    assert made.attempts > 0
    assert "the tools take no setup: all tasks are made in one world" in heard.lines


@pytest.mark.parametrize(
    ("content", "tables"),
    [
        ({"rooms": {"1": {"free": True}}}, {"rooms": {"1": {"free": True}}}),
        ({"name": "x", "rooms": []}, {"name": {"": {"value": "x"}}, "rooms": {}}),
        ({"rows": [{"id": 7, "a": 1}, {"id": 8}]}, {"rows": {"7": {"id": 7, "a": 1}, "8": {"id": 8}}}),
        (
            {"rows": [{"id": 7, "name": "x"}, {"id": 7, "name": "y"}]},
            {"rows": {"x": {"id": 7, "name": "x"}, "y": {"id": 7, "name": "y"}}},
        ),
        ({"rows": [{"a": 1}, {"a": 1}]}, {"rows": {'{"a": 1}': {"a": 1}, '{"a": 1} #2': {"a": 1}}}),
        (["x", 2, "x"], {"result": {"x": {"value": "x"}, "2": {"value": 2}, "x #2": {"value": "x"}}}),
        ({"open": 3, "of": {"room": "2"}}, {"open": {"": {"value": 3}}, "of": {"": {"room": "2"}}}),
    ],
)
def test_any_answer_becomes_tables(content: Any, tables: dict[str, Any]) -> None:
    assert state_tables(ToolResult(text=json.dumps(content))) == tables
    assert state_tables(ToolResult(text="", structured=content)) == tables


BARE = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("hotel", log_level="ERROR")

@server.tool()
def rooms() -> list[str]:
    return []

@server.tool(meta={"toolbake/control": "open_world"})
def open_world(world: str, setup: dict | None = None) -> None: ...

@server.tool(meta={"toolbake/control": "close_world"})
def close_world(world: str) -> None: ...

@server.tool(meta={"toolbake/control": "world_state"})
def world_state(world: str) -> dict:
    return {"rooms": {}}

server.run("stdio")
"""


async def test_a_control_tool_without_structured_content_is_told_how_to_have_some(
    script: Callable[[str], list[str]],
) -> None:
    async with connect(script(BARE)) as toolset, toolset.open_world("one") as world:
        with pytest.raises(ToolFailure, match=re.escape("Annotate its return as dict[str, Any]")):
            await world.state()
