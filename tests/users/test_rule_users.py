"""Users by rules: what they tell when, what they do with tools of their own, and how a conversation with them ends."""

from typing import Any

import pytest
from pydantic import ValidationError

from mcp_bridge import connect
from sandboxes.helpdesk import Helpdesk
from sdk import ConfigError, Fact, Limits, Rollout, Task, ToolCall, User
from sdk.evaluation.evaluation_run import rollout_async
from sdk.policies.scripted import ScriptedAgent
from sdk.rollouts.engine import RolloutEngine
from sdk.tasks import load_tasks, split_tasks
from sdk.users.fidelity import asked_facts

CANCEL = "You want to cancel an order of yours."


def calling(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="", name=name, arguments=arguments)


def asking(user: User, prompt: str = "Please cancel my order.") -> Task:
    return Task(prompt=prompt, setup={"seed": 43}, user=user)


async def talk(user: User, script: list[Any], **options: Any) -> Rollout:
    return await rollout_async(
        options.pop("tools", None) or Helpdesk(), asking(user), model=ScriptedAgent(script), **options
    )


def said(rollout: Rollout) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in rollout.messages if m.content and m.role != "tool"]


async def test_a_user_tells_a_fact_when_it_is_asked_and_ends_the_talk_when_nothing_is_asked() -> None:
    user = User(scenario=CANCEL, facts={"order_id": "2342", "reason": "It came too late."})
    order = calling("cancel_order", order_id="2342")
    rollout = await talk(user, ["Which order is it?", order, "Order 2342 is cancelled. Anything else?"])
    assert said(rollout) == [
        ("user", "Please cancel my order."),
        ("assistant", "Which order is it?"),
        ("user", "The order id is 2342."),
        ("assistant", "Order 2342 is cancelled. Anything else?"),
    ]
    assert (rollout.stop_reason, rollout.answer) == ("answered", "Order 2342 is cancelled. Anything else?")
    assert [(t.turn, t.by, t.told, t.ended) for t in rollout.user_turns] == [
        (1, "rules", ["order_id"], False),
        (3, "rules", [], True),
    ]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("What is the order number?", ["order_id"]),
        ("Could you tell me the order id and your e-mail address?", ["order_id", "email"]),
        ("I need your order id.", ["order_id"]),
        ("What is your order's ID?", ["order_id"]),
        ("Please provide your mail address.", ["email"]),
        ("Shall I cancel order 2342?", []),
        ("Order 2342 is cancelled.", []),
        ("Can I help you with anything else, such as another order?", []),
        ("What is the order date?", ["order_date"]),
        ("Which orders?", ["order_id"]),
        ("Was the order id 17?", []),
        ("Was ist die order id?", ["order_id"]),
        ("Am welchen Tag war the order date?", ["order_date"]),
    ],
)
def test_a_fact_is_asked_for_by_its_name_or_by_words_of_ones_own(message: str, told: list[str]) -> None:
    facts = {"order_id": "2342", "order_date": "2026-03-01", "email": {"value": "a@b.c", "asked_by": ["mail address"]}}
    assert asked_facts(User(scenario="x", facts=facts).facts, message) == told


@pytest.mark.parametrize(
    ("facts", "wrong", "right", "correction"),
    [
        ({"order id": "2342"}, "Shall I cancel order 9999?", "So it is order 2342, right?", "The order id is 2342."),
        (
            {"order id": "2342", "customer id": "55"},
            *("Is your customer id 56?", "Is your customer id 55?", "The customer id is 55."),
        ),
        ({"time": "10:30"}, "Is the time 11:30?", "Is the time 10:30?", "The time is 10:30."),
        (
            {"address": "12 Hill Street"},
            *("Do you live at the address 14 Hill Street?", "Is your address 12 hill street?"),
            "The address is 12 Hill Street.",
        ),
        (
            {"phone": "+49 30 1234"},
            *("Is your phone +49 30 9999?", "Is your phone +49 30 1234?", "The phone is +49 30 1234."),
        ),
        (
            {"order id": "2342", "order item": "lamp"},
            *("Shall I cancel the lamp, the item of order 9999?", "Is the item of order 2342 the lamp?"),
            "The order id is 2342.",
        ),
        (
            {"reservation id": "AB12", "reservation date": "May 5"},
            *(
                "Shall I cancel reservation ZZ99 on that date?",
                "Is it reservation AB12?",
                "The reservation id is AB12.",
            ),
        ),
        (
            {"start time": "10:30", "end time": "11:30"},
            *("Is the end time 10:30?", "Shall I book it from that time, 10:30?", "The end time is 11:30."),
        ),
        (
            {"amount": 100, "refund amount": 50},
            *("Is the refund amount 60?", "Is the amount 100?", "The refund amount is 50."),
        ),
        ({"seat": "A1"}, "Is the seat B1?", "Is the seat A1?", "The seat is A1."),
        ({"time": "9:30"}, "Is the time 09:31?", "Is the time 09:30?", "The time is 9:30."),
        ({"amount": 1000}, "Is the amount 1,001?", "Is the amount 1,000?", "The amount is 1000."),
        ({"price": 2.5}, "Is the price $2.75?", "Is the price $2.50?", "The price is 2.5."),
    ],
)
async def test_a_user_corrects_another_value_and_agrees_to_its_own_in_whatever_form(
    facts: dict[str, Any], wrong: str, right: str, correction: str
) -> None:
    rollout = await talk(User(scenario=CANCEL, facts=facts), [wrong, right, "Done."])
    assert [turn.said for turn in rollout.user_turns] == [f"No. {correction}", "Yes, please.", ""]


async def test_a_user_corrects_a_wrong_value_after_two_questions_that_it_only_agreed_to() -> None:
    user = User(scenario=CANCEL, facts={"order id": "2342"})
    rollout = await talk(user, ["Shall I begin?", "May I go on?", "Is the order id 9999?", "Done."])
    corrected = ["Yes, please.", "Yes, please.", "No. The order id is 2342.", ""]
    assert [turn.said for turn in rollout.user_turns] == corrected
    script = ["What is the order id?", "Shall I begin?", "May I go on?", "Is the order id 9999?", "Done."]
    told_before = await talk(user, script)
    assert [turn.said for turn in told_before.user_turns] == ["The order id is 2342.", *corrected]


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("Is it 2342 or 2343?", "The order id is 2342."),
        ("2343 or 2342?", "The order id is 2342."),
        ("Which order is it, 2342 or 2343?", "The order id is 2342."),
        ("Is it order 2343 or order 2344?", "No. The order id is 2342."),
        ("2343 or 2344?", "I do not know that."),
        ("Shall I cancel 2342 or not?", "Yes, please."),
        ("Shall I cancel it today or on day 2?", "Yes, please."),
        ("Shall I cancel order 23421?", "No. The order id is 2342."),
    ],
)
async def test_a_user_chooses_its_own_value_and_takes_no_longer_number_for_it(message: str, answer: str) -> None:
    rollout = await talk(User(scenario=CANCEL, facts={"order id": "2342"}), [message, "Done."])
    assert rollout.user_turns[0].said == answer


async def test_a_user_that_is_asked_for_nothing_it_knows_ends_the_talk_after_two_more_turns() -> None:
    user = User(scenario=CANCEL, facts={"order id": "2342"})
    rollout = await talk(user, ["What is your shoe size?"] * 8)
    assert [turn.said for turn in rollout.user_turns] == ["I do not know that.", "I do not know that.", ""]
    assert (rollout.stop_reason, rollout.turns) == ("answered", 3)
    again = await talk(user, ["What is the order id?"] * 8)
    assert [turn.ended for turn in again.user_turns] == [False, False, False, True]


@pytest.mark.parametrize(("wrapped", "said"), [(False, "The gift wrap is no."), (True, "The gift wrap is yes.")])
async def test_a_question_for_yes_or_no_is_answered_by_the_fact_that_it_names(wrapped: bool, said: str) -> None:
    rollout = await talk(User(scenario=CANCEL, facts={"gift wrap": wrapped}), ["Would you like gift wrap?", "Done."])
    assert rollout.user_turns[0].said == said


async def test_a_fact_with_a_call_that_cannot_be_made_leaves_the_rollout_unscored() -> None:
    looks = Fact(call=calling("get_stock", thing="lamp"))
    rollout = await talk(User(scenario=CANCEL, facts={"stock": looks}, tools=["get_stock"]), ["What is the stock?"])
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.kind) == ("user", "UserFact")
    assert 'unknown argument "thing"' in rollout.failure.message


async def test_a_fact_is_told_in_the_words_that_it_has() -> None:
    facts = {"order id": Fact(value="2342", told="It says {value} on the box.")}
    rollout = await talk(User(scenario=CANCEL, facts=facts), ["What is the order id?", "Thanks."])
    assert rollout.user_turns[0].said == "It says 2342 on the box."


async def test_a_user_acts_on_its_side_with_tools_that_the_policy_has_not() -> None:
    facts = {"payment": Fact(call={"name": "get_order", "arguments": {"order_id": "2342"}}, asked_by=["look it up"])}
    user = User(scenario=CANCEL, facts=facts, tools=["get_order"])
    seen: list[list[str]] = []

    class Watched(ScriptedAgent):
        def start(self, tools: Any, **options: Any) -> Any:
            seen.append([tool.name for tool in tools])
            return super().start(tools, **options)

    script = [calling("get_order", order_id="2342"), "Could you look it up for me, please?", "Thank you."]
    rollout = await rollout_async(Helpdesk(), asking(user), model=Watched(script))
    assert "get_order" not in seen[0]
    assert rollout.shown_tools == seen[0]
    assert rollout.calls[0].result.error_kind == "unknown_tool"
    [made] = rollout.user_turns[0].calls
    assert (made.call.name, made.turn) == ("get_order", 2)
    assert "kettle" in made.result.text
    assert rollout.user_turns[0].said == made.result.text
    assert [line.call for line in rollout.ledger] == [f"{rollout.id}/user/user_2_1"] * 2
    assert [line.event for line in rollout.ledger] == ["started", "answered"]


async def test_no_token_of_a_user_is_one_that_the_policy_sampled() -> None:
    user = User(scenario=CANCEL, facts={"order id": Fact(value="2342", told="USERTEXT {value}")})
    rollout = await talk(user, ["What is the order id?", "Fine."])
    [row] = rollout.rows
    sampled = bytes(t for t, s in zip(row.completion_ids, row.sampled, strict=True) if s and t < 256).decode()
    assert sampled == "What is the order id?Fine."
    assert b"USERTEXT 2342" in bytes(t for t in row.completion_ids if t < 256)


async def test_a_branch_goes_on_with_what_the_user_had_told_until_then() -> None:
    from sdk.policies.protocol import Sampling
    from sdk.policies.scripted import ByteRenderer, ScriptedPolicy
    from sdk.policies.token_agent import TokenAgent
    from sdk.rollouts.branching import Branching
    from sdk.rollouts.episode import Job

    def line(text: str) -> list[int]:
        return [*text.encode(), 256]

    def reply(prompt: list[int], seed: int) -> list[int]:
        told = bytes(token for token in prompt if token < 256).count(b"The order id is 2342.")
        return line("What is the order id?" if told == 0 else f"Fine {seed % 1000}.")

    facts = {"look": Fact(call={"name": "get_order", "arguments": {"order_id": "2342"}}), "order id": "2342"}
    task = asking(User(scenario=CANCEL, facts=facts, tools=["get_order"]))
    async with connect(Helpdesk()) as source:
        agent = TokenAgent(ScriptedPolicy(reply, context_tokens=100_000), ByteRenderer())
        engine = RolloutEngine(agent=agent, source=source, verifier=lambda _: 1.0, limits=Limits(max_turn_tokens=999))
        jobs = [Job(id="r", task=task, seed=1)]
        branching = Branching(branches=1, where=lambda _: [1])
        rollouts = await engine.run(jobs, sampling=Sampling(), branching=branching)
    first, branch = rollouts
    assert [turn.said for turn in branch.user_turns] == ["The order id is 2342.", ""]
    assert first.messages[:3] == branch.messages[:3]
    assert first.answer != branch.answer


@pytest.mark.parametrize(
    ("user", "error"),
    [
        ({"facts": {"a": "b"}}, "user.scenario is .*: Field required"),
        ({"scenario": "  ", "facts": {"a": "b"}}, "the scenario is empty"),
        ({"scenario": "x", "facts": {"a": {}}}, "either a value or a call"),
        ({"scenario": "x", "facts": {"a": {"call": {"name": "f"}}}}, "none of the user's tools"),
        ({"scenario": "x", "max_turns": 0}, "user.max_turns"),
        ({"scenario": "x", "facts": {"?": "b"}}, "fact '\\?' is asked for by '\\?', which has no word"),
        ({"scenario": "x", "facts": {"a": {"value": 1, "asked_by": ["a", ""]}}}, "fact 'a' is asked for by ''"),
        ({"scenario": "x", "facts": {"id": "No. 7"}, "never_tells": ["7"]}, "never_tells has '7', and fact 'id' tells"),
        ({"scenario": "x", "facts": {"id": "17"}, "never_tells": [" "]}, "never_tells has an empty text"),
        ({"scenario": "x", "model": ""}, "the model is empty"),
        ({"scenario": "x", "facts": {"a": {"value": 1, "told": "It is {vlaue}."}}}, "told has {vlaue}; .* is {value}"),
    ],
)
def test_a_user_that_cannot_be_is_refused_with_its_field(user: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load_tasks([{"prompt": "go", "user": user}])


async def test_a_user_that_could_only_agree_or_has_tools_that_are_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no facts and no model, so that it could only agree"):
        await talk(User(scenario=CANCEL), ["Hello."])
    with pytest.raises(
        ConfigError, match="its user has the tool 'fly', which there is not; the tools are cancel_order"
    ):
        await talk(User(scenario=CANCEL, facts={"a": "b"}, tools=["fly"]), ["Hello."])


def test_later_turns_and_a_user_are_not_both_given() -> None:
    with pytest.raises(ValidationError, match="either later_turns or a user"):
        Task(prompt="go", later_turns=["and?"], user=User(scenario="x", facts={"a": "b"}))


def test_tasks_that_differ_in_their_users_facts_alone_are_other_tasks() -> None:
    one, other = (asking(User(scenario=CANCEL, facts={"order id": number})) for number in ("1", "2"))
    assert one.id != other.id
    assert asking(User(scenario=CANCEL, facts={"order id": "1"})).id == one.id
    tagged = [task.model_copy(update={"tags": {"split": side}}) for task, side in ((one, "train"), (other, "heldout"))]
    assert [len(side) for side in split_tasks(tagged)] == [1, 1]


async def test_a_task_with_a_user_is_read_from_a_file_and_its_rollout_is_read_again(tmp_path: Any) -> None:
    file = tmp_path / "tasks.csv"
    file.write_text(
        'prompt,user.scenario,user.facts,setup.seed\nCancel it.,You want it.,"{""order id"": ""2342""}",43\n'
    )
    [task] = load_tasks(file)
    assert task.user == User(scenario="You want it.", facts={"order id": "2342"})
    rollout = await rollout_async(Helpdesk(), task, model=ScriptedAgent(["Which order?", "Done."]))
    assert Rollout.model_validate_json(rollout.model_dump_json()) == rollout
    assert rollout.user_texts == ["Cancel it.", "The order id is 2342."]


async def test_later_turns_are_said_by_the_same_mechanism() -> None:
    task = Task(prompt="a", later_turns=["b", "c"])
    rollout = await rollout_async([lambda_tool], task, model=ScriptedAgent(["one", "two", "three"]))
    assert [(turn.by, turn.said) for turn in rollout.user_turns] == [("script", "b"), ("script", "c")]
    assert rollout.answer == "three"


def lambda_tool() -> str:
    """Nothing."""
    return ""


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("Please provide the following:\n1. Order ID\n2. Reason for cancellation", ["order_id", "reason"]),
        ("I can help with that! Please tell me:\n\n- Your order ID", ["order_id"]),
        ("Could you please share the following:\n\n* **Order ID:**\n", ["order_id"]),
        ("Could you share these details?\n- **Order ID.** It is in the mail.\n- Reason", ["order_id", "reason"]),
        ("Is this right?\n- Order ID: 2342", []),
        ("To cancel it:\n- Your order ID?\n- What is the reason?", ["order_id", "reason"]),
        ("I found:\n- Order ID\n- Reason", []),
    ],
)
def test_a_list_belongs_to_the_question_above_it(message: str, told: list[str]) -> None:
    facts = {"order_id": Fact(value="2342"), "reason": Fact(value="It came too late.")}
    assert asked_facts(facts, message) == told


async def test_a_user_that_has_nothing_more_to_say_ends_the_talk_at_its_last_turn_too() -> None:
    user = User(scenario=CANCEL, facts={"order id": "2342"}, max_turns=1)
    rollout = await talk(user, ["What is the order id?", "Order 2342 is cancelled."])
    assert (rollout.stop_reason, rollout.answer) == ("answered", "Order 2342 is cancelled.")
    assert [(turn.said, turn.ended) for turn in rollout.user_turns] == [("The order id is 2342.", False), ("", True)]


async def test_a_user_says_no_more_than_its_turns_allow() -> None:
    user = User(scenario=CANCEL, facts={"order id": "2342", "reason": "late"}, max_turns=1)
    rollout = await talk(user, ["What is the order id?", "What is the reason?", "Fine."])
    assert (rollout.stop_reason, rollout.answer, len(rollout.user_turns)) == ("turn_limit", "", 1)
