"""Agents of one's own hear the user: they are called again with the conversation so far."""

import sys
from pathlib import Path

import pytest

import sdk
from sandboxes.helpdesk import Helpdesk
from sdk.policies.scripted import ScriptedAgent
from sdk.transcript import transcript

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from plain_agent import model_at
from plain_agent import plain_agent as agent

TASK = sdk.Task(
    prompt="Please cancel my order.",
    setup={"seed": 43},
    user=sdk.User(scenario="You want to cancel an order.", facts={"order id": "2342"}),
)
CANCEL = sdk.ToolCall(id="", name="cancel_order", arguments={"order_id": "2342"})
SCRIPT = ["Which order is it?", CANCEL, "Order 2342 is cancelled."]


def line(messages, seed):
    return SCRIPT[sum(message.role == "assistant" for message in messages)]


async def by(agent, said=line, task=TASK, **options):
    return await sdk.rollout_async(Helpdesk(), task, model=ScriptedAgent(said), agent=agent, **options)


def saying(*lines):
    """A model that says these lines in their order, in whatever conversation."""
    left = iter(lines)
    return lambda messages, seed: next(left)


def playing(*lines, heard=None):
    """A model that plays the user."""

    def line(messages, seed):
        if heard is not None:
            heard.append([message.content for message in messages if message.role == "user"][1:])
        return lines[sum(message.role == "assistant" for message in messages) - 1]

    return ScriptedAgent(line, name="actor")


async def test_an_agent_that_knows_nothing_of_users_hears_the_user_in_one_unbroken_conversation():
    by_agent, built_in = await by(agent), await by(None)
    assert by_agent.failure is None
    assert [turn.said for turn in by_agent.user_turns] == ["The order id is 2342.", ""]
    assert by_agent.answer == "Order 2342 is cancelled."
    assert [(m.role, m.content) for m in by_agent.messages] == [(m.role, m.content) for m in built_in.messages]
    assert len(by_agent.rows) == 1
    assert by_agent.rows == built_in.rows


async def test_an_agent_that_knows_nothing_of_later_turns_hears_them_in_one_unbroken_conversation():
    task = sdk.Task(prompt="Hi.", later_turns=["Cancel order 2342.", "Thanks."])
    script = ScriptedAgent(["Hello.", CANCEL, "It is cancelled.", "You are welcome."])
    by_agent, built_in = [await sdk.rollout_async(Helpdesk(), task, model=script, agent=one) for one in (agent, None)]
    assert [turn.said for turn in by_agent.user_turns] == task.later_turns
    assert by_agent.user_turns == built_in.user_turns
    assert (by_agent.answer, by_agent.stop_reason) == (built_in.answer, "answered")
    assert [(m.role, m.content) for m in by_agent.messages] == [(m.role, m.content) for m in built_in.messages]
    assert by_agent.rows == built_in.rows


async def test_an_agent_that_writes_into_what_it_is_told_changes_neither_the_talk_nor_its_rows():
    told = []

    async def writing(task, endpoint):
        told.append([message.content for message in task.opening()])
        said = await agent(task, endpoint)
        for message in task.opening():
            message.content += " (answered)"
        return said

    task = sdk.Task(prompt="Hi.", later_turns=["And then?", "Thanks."])
    found, plain = [await by(one, ["One.", "Two.", "Three."], task) for one in (writing, agent)]
    assert told[-1] == ["Hi.", "One.", "And then?", "Two.", "Thanks."]
    assert (found.messages, found.rows) == (plain.messages, plain.rows)


async def test_what_a_user_says_twice_is_noted_twice_where_an_agent_drops_the_reasoning():
    async def forgetful(task, endpoint):
        prompt = [message.model_copy(update={"reasoning": None}) for message in task.opening()]
        return await agent(task.model_copy(update={"prompt": prompt}), endpoint)

    def thinking(messages, seed):
        lines = ["Shall I cancel order 2342?", "Shall I refund it, too?", "Done."]
        said = lines[sum(message.role == "assistant" for message in messages)]
        return sdk.Message(role="assistant", content=said, reasoning="Hm.")

    found, built_in = [await by(one, thinking) for one in (forgetful, None)]
    assert [turn.said for turn in found.user_turns] == ["Yes, please.", "Yes, please.", ""]
    assert found.messages == built_in.messages
    assert len(found.rows) == 3


async def test_an_agent_that_sends_later_turns_itself_sends_each_once():
    async def sending(task, endpoint):
        for later in [None, *task.later_turns]:
            messages = [*task.opening(), *([sdk.Message(role="user", content=later)] if later else [])]
            said = await agent(task.model_copy(update={"prompt": messages}), endpoint)
        return said

    task = sdk.Task(prompt="Hi.", later_turns=["And then?"])
    found = await by(sending, ["Hello.", "Nothing more."], task)
    assert [message.content for message in found.messages] == ["Hi.", "Hello.", "And then?", "Nothing more."]


async def test_the_user_hears_what_the_agent_says_and_not_what_its_model_said():
    async def polite(task, endpoint):
        said = await agent(task, endpoint)
        return said.replace("Which order is it?", "Could you tell me the order id, please?")

    found = await by(polite)
    assert found.user_turns[0].said == "The order id is 2342."
    assert len(found.rows) == 2, "its history has other words than its model's"


async def test_an_agent_is_not_told_what_the_user_holds_back():
    seen = []

    async def watching(task, endpoint):
        seen.append(task)
        return await agent(task, endpoint)

    await by(watching)
    assert [task.user for task in seen] == [None, None]
    assert [len(task.opening()) for task in seen] == [1, 3]
    assert seen[1].opening()[-1].content == "The order id is 2342."


@pytest.mark.parametrize(
    ("model_said", "agent_said", "failure"),
    [
        ("ASK order_id", "Could you tell me the order id, please?", None),
        ("Which is the order id?", "Hello.", "UserToldTooMuch"),
    ],
)
async def test_a_user_is_at_fault_by_what_the_agent_said_and_not_by_what_its_model_said(
    model_said, agent_said, failure
):
    async def wording(task, endpoint):
        said = await agent(task, endpoint)
        return agent_said if said == model_said else said

    user = playing("The order id is 2342.", "###STOP###")
    found = await by(wording, saying(model_said, "Order 2342 is cancelled."), user_model=user)
    assert (found.failure and found.failure.kind) == failure
    assert [turn.heard for turn in found.user_turns] == [agent_said, "Order 2342 is cancelled."]


async def planning(task, endpoint):
    """Asks its model for a plan first, in a conversation of its own."""
    async with model_at(endpoint) as model:
        plan = [{"role": "user", "content": f"Plan: {len(task.opening())}"}]
        await model.chat.completions.create(model=endpoint.model, messages=plan)
    return await agent(task, endpoint)


def planned(messages, seed):
    return "Is the order id known?" if messages[0].content.startswith("Plan") else line(messages, seed)


async def test_a_user_hears_nothing_of_what_an_agents_sub_agents_say():
    heard = []
    found = await by(planning, planned, user_model=playing("The order id is 2342.", "###STOP###", heard=heard))
    assert found.failure is None
    assert heard == [[SCRIPT[0]], [SCRIPT[0], SCRIPT[2]]]


async def test_what_a_user_called_is_read_before_its_words_whatever_its_agent_asked_beside():
    looks = {"name": "get_stock", "arguments": {"product": "lamp"}}
    facts = {"order id": "2342", "stock": sdk.Fact(call=looks, asked_by=["look into the shop"])}
    user = sdk.User(scenario="You want to cancel an order.", facts=facts, tools=["get_stock"])
    lines = [SCRIPT[0], "Could you look into the shop?", SCRIPT[2]]

    def asked(messages, seed):
        if messages[0].content.startswith("Plan"):
            return "Is the order id known?"
        return lines[sum(message.role == "assistant" for message in messages)]

    found = await by(planning, asked, TASK.model_copy(update={"user": user}))
    labels = [line[:11].strip() for line in transcript(found).splitlines()]
    at = labels.index("user call:")
    assert labels[at - 1 : at + 3] == ["assistant:", "user call:", "user saw:", "user:"]
    assert labels[:at].count("user:") == 3, "the plan, the task and the order id"


async def test_an_agent_that_words_its_task_itself_is_told_what_both_sides_said_alone():
    told = []

    async def wording(task, endpoint):
        told.append([(message.role, message.content) for message in task.opening()])
        words = "\n".join(message.content for message in task.opening())
        return await agent(task.model_copy(update={"prompt": f"The talk so far:\n{words}"}), endpoint)

    looks = sdk.ToolCall(id="", name="get_policy", arguments={"topic": "returns"})
    await by(wording, saying(looks, SCRIPT[0], SCRIPT[2]))
    asked = [("user", TASK.prompt), ("assistant", SCRIPT[0]), ("user", "The order id is 2342.")]
    assert told == [asked[:1], asked]


async def test_an_agent_that_answers_without_asking_its_model_again_is_told_all_the_same_what_the_user_said():
    told = []

    async def canned(task, endpoint):
        told.append([message.content for message in task.opening()])
        return "One moment. What is your name?" if len(told) == 2 else await agent(task, endpoint)

    found = await by(canned, saying(SCRIPT[0], SCRIPT[2]))
    first = [TASK.prompt, SCRIPT[0], "The order id is 2342."]
    assert told == [first[:1], first, [*first, "One moment. What is your name?", "I do not know that."]]
    assert [message.content for message in found.messages] == [*told[-1][:3], "I do not know that.", SCRIPT[2]]
