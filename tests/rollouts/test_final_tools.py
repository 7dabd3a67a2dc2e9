"""Tools that end a rollout, and the final answer that is given through one."""

from typing import Any

import pytest
from test_rollouts import add, calling, play

import sdk
from sdk.records import Rollout, Task


def finish(answer: str, sources: list[str]) -> str:
    """Give the final answer with its sources."""
    if not sources:
        raise ValueError("name a source")
    return f"noted: {answer}"


FINISH = {"finish": "answer"}


async def finished(*turns: Any, final_tools: dict[str, str | None] | None = None, **more: Any) -> Rollout:
    return await play(list(turns), tools=(add, finish), final_tools=final_tools or FINISH, **more)


@pytest.mark.parametrize(("argument", "answer"), [("answer", "5 °C"), ("sources", '["a", "ß"]'), (None, "noted: 5 °C")])
async def test_a_final_tool_ends_the_rollout_with_the_answer_it_was_given(argument: str | None, answer: str) -> None:
    turn = calling(("finish", {"answer": "5 °C", "sources": ["a", "ß"]}))
    rollout = await finished(turn, "never asked for", final_tools={"finish": argument})
    assert (rollout.stop_reason, rollout.answer, rollout.turns) == ("answered", answer, 1)
    assert rollout.messages[-1].role == "tool"
    assert rollout.scored


async def test_a_final_tool_that_answers_with_an_error_lets_the_rollout_go_on() -> None:
    refused = calling(("finish", {"answer": "4", "sources": []}))
    malformed = calling(("finish", {"reply": "4"}))
    rollout = await finished(refused, malformed, calling(("finish", {"answer": "5", "sources": ["a"]})))
    assert (rollout.answer, rollout.turns) == ("5", 3)
    assert [record.result.is_error for record in rollout.calls] == [True, True, False]


async def test_the_other_calls_of_its_turn_are_made_and_the_first_of_two_final_ones_counts() -> None:
    final = [("finish", {"answer": text, "sources": ["a"]}) for text in ("first", "second")]
    rollout = await finished(calling(*final, ("add", {"a": 1, "b": 2})))
    assert rollout.answer == "first"
    assert [record.result.text for record in rollout.calls] == ["noted: first", "noted: second", "3"]


async def test_it_ends_a_conversation_whose_user_had_more_to_ask() -> None:
    task = Task(prompt="go", later_turns=["and then?"])
    rollout = await finished(calling(("finish", {"answer": "5", "sources": ["a"]})), task=task)
    assert [message.role for message in rollout.messages] == ["user", "assistant", "tool"]


def test_a_final_tool_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(sdk.ConfigError, match=r"limits\.final_tools names 'finnish'; the tools are add, finish"):
        sdk.rollout([add, finish], "go", limits={"final_tools": {"finnish": "answer"}})
    with pytest.raises(sdk.ConfigError, match="names the argument 'reply' of finish; it has answer, sources"):
        sdk.rollout([add, finish], "go", limits={"final_tools": {"finish": "reply"}})
