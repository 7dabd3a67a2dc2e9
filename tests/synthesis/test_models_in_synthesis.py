"""A model that words requests is held to their values; a policy's attempts find what is ambiguous or too easy."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from banks import bank

import sdk
from sandboxes.helpdesk import Helpdesk
from sdk.policies.scripted import Line, ScriptedAgent

VALUE = re.compile(r"^- (.*)$", re.MULTILINE)


def wording(messages: list[sdk.Message], seed: int) -> Line:
    """Says the request in other words, with its values."""
    request = messages[-1].content.split("\n")[0].removeprefix("Request: ")
    return f'"Hello, kindly see to this for me: {request}"'


def careless(messages: list[sdk.Message], seed: int) -> Line:
    """Loses the first value of the request, and makes one up."""
    request = messages[-1].content.split("\n")[0].removeprefix("Request: ")
    values = VALUE.findall(messages[-1].content)
    return request.replace(values[0], "99999") if values else f"{request} For 99999."


def test_a_model_words_the_requests_and_every_value_is_kept() -> None:
    made = sdk.synthesize(Helpdesk(), 6, max_calls=2, writer=ScriptedAgent(wording))
    plain = sdk.synthesize(Helpdesk(), 6, max_calls=2)
    assert {task.tags["wording"] for task in made.tasks} == {"model"}
    assert all(str(task.prompt).startswith("Hello, kindly see to this") for task in made.tasks)
    assert [task.expected for task in made.tasks] == [task.expected for task in plain.tasks]
    assert "6 are worded by the model" in str(made)


def test_a_wording_that_loses_a_value_is_not_taken_and_the_task_says_why() -> None:
    made = sdk.synthesize(Helpdesk(), 4, max_calls=1, writer=ScriptedAgent(careless))
    assert len(made.tasks) == 4
    for task in made.tasks:
        assert task.tags["wording"] == "template"
        assert re.match(r"it (lacks|adds) ", task.tags["not_reworded"])
        assert "99999" not in str(task.prompt)


def stating(messages: list[sdk.Message], seed: int) -> Line:
    """Has every value, and asks for nothing."""
    return f"The thing of which the request speaks is {', '.join(VALUE.findall(messages[-1].content))}"


def test_a_wording_that_asks_for_nothing_is_not_taken() -> None:
    made = sdk.synthesize(Helpdesk(), 4, max_calls=2, writer=ScriptedAgent(stating))
    assert {task.tags["not_reworded"] for task in made.tasks} == {"it asks for nothing"}


@pytest.mark.parametrize(
    "said",
    ["{rest} - please see to that", "What about this: {rest}?", "I'd need this done: {rest}", "{first} {rest}, thanks"],
)
def test_a_wording_may_ask_in_many_ways(said: str) -> None:
    def asks(messages: list[sdk.Message], seed: int) -> Line:
        request = messages[-1].content.split("\n")[0].removeprefix("Request: ")
        bare = re.sub(r"^(Please|Can you|Could you|I need you to|I would like you to) ", "", request)
        first, rest = re.sub(r"[?.]", "", bare).split(" ", 1)
        return said.format(first=first, rest=rest)

    made = sdk.synthesize(bank(), 3, max_calls=1, setups=[{}], writer=ScriptedAgent(asks))
    assert {task.tags["wording"] for task in made.tasks} == {"model"}, [task.tags for task in made.tasks]


def solving(tasks: Sequence[sdk.Task], *, right: float) -> ScriptedAgent:
    """Plays the gold solutions of `tasks` in a share `right` of its attempts; gives up in the others, and on others."""
    gold = {str(task.prompt): task.demonstration for task in tasks}

    def play(messages: list[sdk.Message], seed: int) -> Line:
        if messages[0].content not in gold or seed % 100 >= right * 100:
            return f"I give up, {seed}."
        return gold[messages[0].content][sum(message.role == "assistant" for message in messages)]

    return ScriptedAgent(play)


@pytest.fixture(scope="module")
def bank_tasks() -> Sequence[sdk.Task]:
    return sdk.synthesize(bank(), 6, max_calls=1, setups=[{}]).tasks


def test_the_success_of_a_policy_is_measured_and_tasks_that_teach_nothing_are_left_out(
    bank_tasks: Sequence[sdk.Task],
) -> None:
    always, often = solving(bank_tasks, right=1.0), solving(bank_tasks, right=0.5)
    asked = {"max_calls": 1, "setups": [{}], "attempts": 4}
    sure = sdk.synthesize(bank(), 6, policy=always, **asked)
    assert [task.tags["success"] for task in sure.tasks] == ["1.00"] * 6
    assert [task.prompt for task in sure.tasks] == [task.prompt for task in bank_tasks]
    # What is always solved and what never is has no signal for a group.
    none = sdk.synthesize(bank(), 1, policy=always, difficulty=(0.05, 0.95), **asked)
    assert none.tasks == []
    assert "the policy's success is outside of 0.05 to 0.95" in none.left_out
    half = sdk.synthesize(bank(), 2, policy=often, difficulty=(0.05, 0.95), **asked)
    assert len(half.tasks) == 2
    assert all(0.05 <= float(task.tags["success"]) <= 0.95 for task in half.tasks)


def test_a_request_that_several_attempts_understand_in_one_other_way_is_left_out(
    bank_tasks: Sequence[sdk.Task],
) -> None:
    def agree(messages: list[sdk.Message], seed: int) -> Line:
        if messages[-1].role == "tool":
            return "It is Zoe, surely."
        return sdk.ToolCall(id="c", name="get_account", arguments={"account": "A-101"})

    made = sdk.synthesize(bank(), 1, policy=ScriptedAgent(agree), max_calls=1, setups=[{}])
    assert made.tasks == []
    assert "several attempts of the policy came to one other end: it may be ambiguous" in made.left_out


def test_a_policy_that_cannot_be_reached_stops_the_work_and_is_named() -> None:
    with pytest.raises(sdk.ToolbakeError, match=r"no attempt of the policy could be scored|the script has"):
        sdk.synthesize(bank(), 1, policy=ScriptedAgent([]), max_calls=1, setups=[{}])
