"""Agents of the frameworks that people use, in their default settings, against the endpoint over a real socket."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_policy import FakePolicy, running
from frameworks.clients import FRAMEWORKS, STRUCTURED
from other_environments import python_of

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


@pytest.fixture(scope="module")
def url():
    with running(FakePolicy(look_up_and_say)) as server:
        yield f"{server.url}/v1"


@pytest.fixture
def python(framework: str) -> Path:
    return python_of("llamaindex" if framework == "llamaindex" else "frameworks")


def run(framework: str, url: str, python: Path) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | QUIET
    command = [str(python), str(CLIENTS), framework, url]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.timeout(300)  # the first one may make the environment
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_agent_calls_its_tools_in_two_turns_whole_and_streamed(framework: str, url: str, python: Path) -> None:
    assert run(framework, url, python) == {
        "answers": ["It has been shipped.", "It has been shipped."],
        "called": ["4417", "4418"],
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("framework", STRUCTURED)
def test_an_answer_has_the_form_of_the_class_that_was_asked_for(framework: str, python: Path) -> None:
    place = {"city": "Rome", "orders": 3}

    def fill_in(prompt: str, seed: int) -> str:
        """By a tool where the framework made one of the class."""
        (name,) = re.findall('"name": "(final_result|Place)", ', prompt) or [None]
        return (
            json.dumps(place)
            if name is None
            else f"<tool_call>{json.dumps({'name': name, 'arguments': place})}</tool_call>"
        )

    with running(FakePolicy(fill_in)) as server:
        answers = run(f"{framework}: form", f"{server.url}/v1", python)["answers"]
    assert answers == [place] * len(answers)
    assert answers
