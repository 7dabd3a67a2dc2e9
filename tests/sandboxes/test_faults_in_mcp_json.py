"""Faults that stand in an `mcp.json`, for each server and tool."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mcp_bridge
import sdk
from mcp_bridge import SourceError
from mcp_bridge.sources.connecting import identify
from sandboxes.faults import ErrorAnswer, Fault, Faulty, Latency, StaleRead, faults_for
from sandboxes.helpdesk import Helpdesk
from sandboxes.recorded.recorder import serve_recorder
from sdk.policies.scripted import ScriptedAgent
from sdk.traces.identity import tools_identity

POLICY = ("get_policy", {"topic": "returns"})
BOTH = [{"fault": "Latency", "seconds": [0.2, 2.0]}, {"fault": "ErrorAnswer", "p": 0.5, "texts": ["500"]}]


def server(faults: Any) -> dict[str, Any]:
    entry = {"command": sys.executable, "args": ["-m", "sandboxes.helpdesk"], "toolbake": {"faults": faults}}
    return {"mcpServers": {"desk": entry}}


async def notes_of(source: Any) -> list[tuple[str, ...]]:
    async with source.open_world("w") as world:
        return [(await world.call(*POLICY)).notes for _ in range(12)]


async def test_a_server_of_an_mcp_json_has_the_faults_that_python_would_give_it() -> None:
    given: dict[str, Fault | Sequence[Fault]] = {
        "get_*": [Latency(seconds=(0.2, 2.0)), ErrorAnswer(p=0.5, texts=["500"])],
        "list_orders": StaleRead(),
    }
    expected = await notes_of(Faulty(Helpdesk(), given, seed=3))
    assert len(set(expected)) > 4
    faults = {"seed": 3, "tools": {"get_*": BOTH, "list_orders": {"fault": "StaleRead"}}}
    async with mcp_bridge.connect(server(faults), inject_faults=faults_for) as toolset:
        assert await notes_of(toolset) == expected
        assert (toolset.can_fork, toolset.can_setup, toolset.has_state) == (True, True, True)
        assert toolset.live_destructive == []
        assert [one.name for one in toolset.servers] == ["helpdesk"]
        async with toolset.open_world("another") as world:
            assert not (await world.call("find_customer", {"email": "nobody@example.com"})).notes


@pytest.mark.parametrize(
    ("faults", "complaint"),
    [
        ({"tools": {"get_policy": {"fault": "Latncy"}}}, r"tools\.get_policy\[0\]: .* Did you mean 'Latency'"),
        ({"tools": {"get_policy": {"fault": "Latency", "secs": 1}}}, "unknown key 'secs'. Known: p, real, seconds"),
        ({"tools": {"get_policy": {"fault": "Latency", "seconds": "1"}}}, "seconds is '1'"),
        (
            {"tools": {"get_policy": {"fault": "ErrorAnswer", "p": 7}}},
            "p is 7: .* less than or equal to 1",
        ),
        ({"tools": {"get_policy": {"fault": "Timeout", "answered": "yes"}}}, "answered is 'yes'"),
        ({"tools": {"get_policy": 3}}, "is 3; it must be an object"),
        ({"tools": []}, 'no "tools"'),
        ({"tools": {}}, 'no "tools"'),
        ({"tols": {}}, "unknown key 'tols'.*Did you mean 'tools'"),
        ({"seed": 1.5, "tools": {"get_policy": []}}, "seed is 1.5; it must be a whole number"),
        ({"tools": {"get_policy": []}, "same_for": "group"}, "choose 'world' or 'setup'"),
        ([], r"toolbake\.faults is \[\]"),
    ],
)
async def test_faults_that_cannot_be_are_refused_before_a_model_sees_the_tools(faults: Any, complaint: str) -> None:
    with pytest.raises(SourceError, match=f"desk.*{complaint}"):
        async with mcp_bridge.connect(server(faults), inject_faults=faults_for):
            pass


async def test_a_tool_that_the_server_does_not_have_is_told_with_those_it_has() -> None:
    with pytest.raises(SourceError, match=r"desk .*'get_polcy', which is not a tool; the tools are find_customer"):
        async with mcp_bridge.connect(
            server({"tools": {"get_polcy": {"fault": "StaleRead"}}}), inject_faults=faults_for
        ):
            pass


def test_the_bridge_alone_says_who_could_put_them_in() -> None:
    code = f"""
import anyio, mcp_bridge
async def main():
    async with mcp_bridge.connect({server({"tools": {"get_policy": {"fault": "StaleRead"}}})!r}):
        pass
anyio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "pass inject_faults=sandboxes.faults.faults_for to connect" in done.stderr


def test_the_sdk_injects_faults_by_itself() -> None:
    wrong = server({"tools": {"get_policy": {"fault": "Slow"}}})
    with pytest.raises(SourceError, match="it must be one of ErrorAnswer"):
        sdk.rollout(wrong, "What is the policy?", model=ScriptedAgent(["I do not know."]))


async def test_a_recorder_does_not_stand_before_a_server_with_faults(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has faults, and a recorder writes what the real server says"):
        await serve_recorder(server({"tools": {"get_policy": BOTH}}), tmp_path / "desk.jsonl")
    assert not (tmp_path / "desk.jsonl").exists()


@pytest.mark.parametrize("option", [{"namespace": "desk"}, {"resources": True}, {"prompts": True}])
async def test_a_recorder_does_not_stand_before_a_server_with_other_tools_than_its_own(
    option: dict[str, Any], tmp_path: Path
) -> None:
    config = {"mcpServers": {"desk": {"command": "desk-server", "toolbake": option}}}
    with pytest.raises(SourceError, match=f"desk.* has {next(iter(option))}, and a recorder hands on the server's own"):
        await serve_recorder(config, tmp_path / "desk.jsonl")
    assert not (tmp_path / "desk.jsonl").exists()


def test_a_run_with_other_faults_is_another_run() -> None:
    tools = Helpdesk().tools
    with_none = tools_identity(identify({"mcpServers": {"desk": {"command": "x"}}}), tools)
    light, heavy = (
        tools_identity(identify(server({"tools": {"get_policy": {"fault": "ErrorAnswer", "p": p}}})), tools)
        for p in (0.1, 0.9)
    )
    assert "faults" not in with_none
    assert light["faults"] != heavy["faults"]
