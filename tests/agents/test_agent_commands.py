"""Programs as agents: started for each rollout, told what they need by their environment, ended with the rollout."""

import json
import sys
from pathlib import Path

import psutil
import pytest
from orders import QUESTION, play

import sdk
from sdk.policies.scripted import ScriptedAgent

HERE = Path(__file__).parent


def program(name):
    return [sys.executable, str(HERE / "bad_agents.py"), name]


async def test_what_a_program_prints_is_its_answer():
    assert (await play(program("good"), ScriptedAgent(["It is shipped."]))).answer == "It is shipped."
    assert (await play(program("silent"), ScriptedAgent(["What it said last."]))).answer == "What it said last."


async def test_a_program_is_told_its_task_without_what_is_expected():
    task = sdk.Task(prompt=QUESTION, tags={"tier": "1"}, expected={"answer": "shipped"})
    found = await play(program("tells_its_task"), ScriptedAgent(["Hm."]), prompt=task)
    told = sdk.Task.model_validate(json.loads(found.answer))
    assert told == task.model_copy(update={"expected": {}})


async def test_a_program_is_started_again_for_what_a_user_says_later():
    task = sdk.Task(prompt=QUESTION, later_turns=["And 4418?"])
    found = await play(program("tells_its_task"), ScriptedAgent(["It is shipped."] * 2), prompt=task)
    told = sdk.Task.model_validate(json.loads(found.answer))
    said = [QUESTION, found.user_turns[0].heard, "And 4418?"]
    assert ([message.content for message in told.opening()], told.later_turns) == (said, [])
    assert (found.turns, len(found.user_turns)) == (2, 1)


async def test_a_crash_is_the_failure_with_what_went_to_stderr_and_without_secrets(monkeypatch):
    monkeypatch.setenv("DESK_PASSWORD", "correct-horse-battery")
    found = await play(program("crashes"), ScriptedAgent(["Hm."]))
    assert (found.failure.boundary, found.failure.kind) == ("agent", "AgentCrashed")
    assert "exited with status 1; stderr: cannot go on with the key *** and ***" in found.failure.message
    assert found.verdict is None
    assert found.answer == ""
    assert found.turns == 1, "what was sampled is kept for whoever reads it"


async def test_a_program_that_never_asks_its_model_is_not_measured():
    found = await play(program("never"), ScriptedAgent(["Hm."]))
    assert (found.failure.boundary, found.failure.kind) == ("agent", "AgentSilent")
    assert "OPENAI_BASE_URL" in found.failure.message
    assert found.verdict is None


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "desk.example"}, "desk.example,127.0.0.1,localhost"),
        ({"no_proxy": "a, localhost", "NO_PROXY": "b"}, "a,localhost,b,127.0.0.1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
async def test_a_program_reaches_its_model_past_a_proxy_and_keeps_the_exceptions_that_are_set(
    monkeypatch, before, told
):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"http_proxy": "http://127.0.0.1:1", **before}.items():
        monkeypatch.setenv(name, value)
    found = await play(program("tells_its_exceptions"), ScriptedAgent(["Hm."]))
    assert found.failure is None, found.failure
    assert found.answer.split() == [told, told]


async def test_a_program_that_a_signal_ends_is_told_with_the_signals_name():
    found = await play(program("breaks"), ScriptedAgent(["Hm."]))
    assert (found.failure.boundary, found.failure.kind) == ("agent", "AgentCrashed")
    assert "was ended by the signal SIGSEGV; stderr: reading the graph" in found.failure.message


async def test_a_program_that_floods_its_output_is_stopped():
    found = await play(program("floods"), ScriptedAgent(["Hm."]))
    assert (found.failure.boundary, found.failure.kind) == ("agent", "AgentFlooded")


async def test_a_program_that_hangs_ends_with_its_children_when_the_time_is_over():
    found = await play(program("hangs"), ScriptedAgent(["Hm."]), limits={"max_seconds": 3})
    assert (found.failure.boundary, found.failure.kind) == ("agent", "time_limit")
    assert found.verdict is None
    left = [one for one in psutil.Process().children(recursive=True) if "bad_agents.py" in " ".join(one.cmdline())]
    assert left == []


async def test_a_program_that_is_not_there_is_named():
    found = await play("no-such-program --fast", ScriptedAgent(["Hm."]))
    assert (found.failure.boundary, found.failure.kind) == ("agent", "AgentNotStarted")
    assert "no-such-program" in found.failure.message


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("a\0b", "TOOLBAKE_PROMPT has a NUL character"),
        ("long " * 30_000, "TOOLBAKE_PROMPT takes 150,017 bytes, and a variable may have 131,072"),
        ("half a pair: \ud800", "surrogates not allowed"),
    ],
    ids=["nul", "long", "half a pair"],
)
async def test_a_task_that_no_variable_can_hold_is_the_reason_why_a_program_does_not_start(prompt, why):
    found = await play(program("good"), ScriptedAgent(["Hm."]), prompt=prompt)
    assert (found.failure.boundary, found.failure.kind) == ("agent", "AgentNotStarted")
    assert why in found.failure.message


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (7, "agent is an int; give a function of .task, endpoint., or a command"),
        ("", "agent is empty"),
        ("node 'agent.js", "no shell could split"),
        (["python", 3], "agent has 3 as word 2, an int; give each word as text, such as '3'"),
        (
            [Path("agent.py")],
            "agent has PosixPath.'agent.py'. as word 1, a PosixPath; give each word as text, such as 'ag",
        ),
        (lambda task: task, "cannot be called with .task, endpoint."),
    ],
)
async def test_what_is_no_agent_is_refused_before_anything_starts(agent, said):
    with pytest.raises(sdk.ConfigError, match=said):
        await play(agent, tools="no-such-tools.json")
