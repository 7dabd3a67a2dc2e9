"""Requests whose facts are held back: made from tasks that exist, played with their users, and synthesised."""

import re

import pytest

import sdk
import sdk.tasks
from sandboxes.helpdesk import Helpdesk
from sdk.synthesis.solution import solve_async
from sdk.synthesis.synthesis_run import synthesize_async
from sdk.synthesis.task_checks import check_tasks_async

DESK = "examples/helpdesk/tasks.jsonl"
SETUP = {"seed": 43}


async def test_a_task_becomes_one_whose_user_tells_what_the_prompt_lacks() -> None:
    whole = await solve_async(Helpdesk(), "Please cancel order 2342.", "cancel_order(order_id='2342')", SETUP)
    made = sdk.hold_back([whole], told=["It says {value} here."])
    [task] = made.tasks
    assert task.prompt == "Please cancel the order."
    assert task.user is not None
    assert {name: (fact.value, fact.told) for name, fact in task.user.facts.items()} == {
        "order id": ("2342", "It says {value} here.")
    }
    assert task.demonstration[0].content == "What is the order id?"
    assert (task.family, task.setup, task.expected) == (whole.family, whole.setup, whole.expected)
    assert task.tags == {"held_back": "order id"}
    checked = await check_tasks_async(Helpdesk(), made.tasks)
    assert (len(checked.tasks), checked.problems) == (1, [])


@pytest.mark.parametrize(
    ("prompt", "calls", "left"),
    [
        ("Where is order 2342?", "get_order(order_id='2342')", "Where is the order?"),
        ("Order number 2342 must be cancelled.", "get_order(order_id='2342')", "The order must be cancelled."),
        ("Where is 2342?", "get_order(order_id='2342')", "Where is the order?"),
        (
            "Send it to 5 New Street, please.",
            "change_address(order_id='1', address='5 New Street')",
            "Send it, please.",
        ),
    ],
)
def test_a_request_without_its_value_stays_a_request(prompt: str, calls: str, left: str) -> None:
    from sdk.synthesis.solution import read_calls

    shown = [sdk.Message(role="assistant", tool_calls=[call]) for call in read_calls(calls)]
    [task] = sdk.hold_back([sdk.Task(prompt=prompt, demonstration=shown)]).tasks
    assert task.prompt == left


def test_tasks_of_which_nothing_can_be_held_back_are_named() -> None:
    whole = sdk.Task(prompt="What is open?", demonstration=[sdk.Message(role="assistant", content="All.")], id="open")
    kept = sdk.tasks.load_tasks(DESK)[0]
    made = sdk.hold_back([whole, kept])
    assert list(made.left_out) == ["open"]
    assert "left out open: its prompt names 0 values" in str(made)
    with pytest.raises(sdk.ConfigError, match="no task has a fact that can be held back"):
        sdk.hold_back([whole])
    with pytest.raises(sdk.ConfigError, match="hold back 1 or more"):
        sdk.hold_back([kept], 0)


async def test_demonstrations_of_the_helpdesk_pass_when_they_ask_first() -> None:
    made = sdk.hold_back(sdk.tasks.load_tasks(DESK)[::40])
    checked = await check_tasks_async(Helpdesk(), made.tasks)
    assert checked.problems == []
    assert len(checked.tasks) > 15


async def test_synthesis_holds_facts_back_and_its_tasks_hold() -> None:
    made = await synthesize_async(Helpdesk(), 6, hold_back=1, setups=[{"seed": 1}, {"seed": 2}])
    assert len(made.tasks) == 6
    for task in made.tasks:
        assert task.user is not None
        [(name, fact)] = task.user.facts.items()
        assert not re.search(rf"\b{re.escape(str(fact.value))}\b", str(task.prompt))
        assert task.demonstration[0].content == f"What is the {name}?"
    again = await synthesize_async(Helpdesk(), 6, hold_back=1, setups=[{"seed": 1}, {"seed": 2}])
    assert again.tasks == made.tasks
    with pytest.raises(sdk.ConfigError, match="hold_back is -1"):
        await synthesize_async(Helpdesk(), 6, hold_back=-1)
