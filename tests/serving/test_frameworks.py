"""Agents of the frameworks that people use, in their default settings, against the endpoint over a real socket.

`test_engines_served.py` has them against vLLM.
"""

import json
import re
from typing import Any

import pytest
from fake_policy import FakePolicy, running
from framework_agents import told_by
from frameworks.clients import FRAMEWORKS, PLACE, QUESTION, STRUCTURED

pytestmark = pytest.mark.timeout(600)
"""Of every test: whichever comes first may make the environment."""


def look_up_and_say(prompt: str, seed: int) -> str:
    """Reasons, reads the order that was asked for last, and says what it heard."""
    asked = prompt.rpartition("<user>")[2]
    if "<tool>" in asked:
        return "<think>I know it.</think>It has been shipped."
    if QUESTION not in prompt:
        return "The first question is not in the history."
    number = "4418" if "4418" in asked else "4417"
    call = {"name": "get_order", "arguments": {"order_id": number}}
    return f"<think>I look.</think><tool_call>{json.dumps(call)}</tool_call>"


def fill_in(prompt: str, seed: int) -> str:
    """By a tool where the framework made one of the class."""
    (name,) = re.findall('"name": "(final_result|Place)", ', prompt) or [None]
    return (
        json.dumps(PLACE)
        if name is None
        else f"<tool_call>{json.dumps({'name': name, 'arguments': PLACE})}</tool_call>"
    )


@pytest.fixture(scope="module")
def told() -> tuple[dict[str, Any], dict[str, Any]]:
    with running(FakePolicy(look_up_and_say)) as talking, running(FakePolicy(fill_in)) as filling:
        return told_by(talking.url, filling.url)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_agent_calls_its_tools_in_two_turns_whole_and_streamed(
    name: str, told: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    assert told[0][name] == {
        "answers": ["It has been shipped.", "It has been shipped."],
        "called": ["4417", "4418"],
    }


@pytest.mark.parametrize("name", STRUCTURED)
def test_an_answer_has_the_form_of_the_class_that_was_asked_for(
    name: str, told: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    found = told[1][name]
    assert "answers" in found, found["error"]
    assert found["answers"] == [PLACE] * len(found["answers"])
    assert found["answers"]
