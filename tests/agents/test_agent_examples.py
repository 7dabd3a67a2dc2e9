"""The examples of agents play: plain clients, a Node program, and the frameworks in their own environment."""

import shutil
from pathlib import Path

import pytest
from orders import ANSWER, play
from other_environments import python_of
from test_agents_play import what_was_played

from sdk.cli.sources import agent_source

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}


async def test_the_plain_example_plays_the_same_rollout_as_the_own_loop():
    agent = agent_source(f"{EXAMPLES / 'plain.py'}:agent")
    assert what_was_played(await play(agent)) == what_was_played(await play(None))


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
async def test_a_node_program_plays_the_same_rollout_as_the_own_loop():
    own, by_agent = [await play(agent) for agent in (None, f"node '{EXAMPLES / 'agent.mjs'}'")]
    assert by_agent.failure is None, by_agent.failure
    assert what_was_played(by_agent) == what_was_played(own)
    assert by_agent.answer == ANSWER


@pytest.mark.timeout(300)  # the first one may make the environment
@pytest.mark.parametrize("framework", ["openai_agents", "pydantic_ai", "langgraph"])
async def test_a_frameworks_agent_plays_in_one_unbroken_conversation(framework, monkeypatch):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    program = EXAMPLES / f"with_{framework}.py"
    found = await play([str(python_of("frameworks")), str(program)])
    assert found.failure is None, found.failure
    assert found.answer == ANSWER
    assert len(found.rows) == 1
    assert [record.result.text for record in found.calls] == ["order 4417: shipped"]
    assert [line.event for line in found.ledger] == ["started", "answered"]
