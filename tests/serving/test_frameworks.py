"""Agents of the frameworks that people use, in their default settings, against the endpoint over a real socket."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fake_policy import FakePolicy, running
from frameworks.clients import FRAMEWORKS, STRUCTURED
from other_environments import python_of

pytestmark = pytest.mark.timeout(300)
"""Of every test: whichever comes first may make the environment."""

CLIENTS = Path(__file__).parent / "frameworks" / "clients.py"
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is fetched
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
}


def look_up_and_say(prompt: str, seed: int) -> str:
    """Reasons, reads the order that was asked for last, and says what it heard."""
    asked = prompt.rpartition("<user>")[2]
    if "<tool>" in asked:
        return "<think>I know it.</think>It has been shipped."
    number = "4418" if "4418" in asked else "4417"
    call = {"name": "get_order", "arguments": {"order_id": number}}
    return f"<think>I look.</think><tool_call>{json.dumps(call)}</tool_call>"


PLACE = {"city": "Rome", "orders": 3}


def fill_in(prompt: str, seed: int) -> str:
    """By a tool where the framework made one of the class."""
    (name,) = re.findall('"name": "(final_result|Place)", ', prompt) or [None]
    return (
        json.dumps(PLACE)
        if name is None
        else f"<tool_call>{json.dumps({'name': name, 'arguments': PLACE})}</tool_call>"
    )


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[str], Any]]:
    """What the agents of a framework were told, all in one process: each takes seconds to import its framework."""

    @cache
    def run(framework: str) -> Any:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | QUIET
        python = python_of("llamaindex" if framework == "llamaindex" else "frameworks")
        command = [str(python), str(CLIENTS), framework, f"{talking.url}/v1", f"{filling.url}/v1"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return json.loads(ended.stdout.splitlines()[-1])

    with running(FakePolicy(look_up_and_say)) as talking, running(FakePolicy(fill_in)) as filling:
        yield lambda name: run(name.split(", ")[0])


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_agent_calls_its_tools_in_two_turns_whole_and_streamed(name: str, ask: Callable[[str], Any]) -> None:
    assert ask(name)[0][name] == {
        "answers": ["It has been shipped.", "It has been shipped."],
        "called": ["4417", "4418"],
    }


@pytest.mark.parametrize("name", STRUCTURED)
def test_an_answer_has_the_form_of_the_class_that_was_asked_for(name: str, ask: Callable[[str], Any]) -> None:
    found = ask(name)[1][name]
    assert "answers" in found, found["error"]
    assert found["answers"] == [PLACE] * len(found["answers"])
    assert found["answers"]
