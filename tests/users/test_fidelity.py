"""Fidelity: users that a model plays, whose errors leave a rollout unscored, and planted errors that are found."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import sdk
from sandboxes.helpdesk import Helpdesk
from sdk import Message, Rollout, Task, User
from sdk.evaluation.evaluation_run import evaluate_async, rollout_async
from sdk.policies.scripted import ScriptedAgent
from sdk.users.fidelity import USER_ERRORS
from sdk.users.played_users import END

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from user_errors import FIRST, SECOND, THIRD, measure

TASK = Task(
    prompt="Please cancel my order.",
    setup={"seed": 43},
    user=User(
        scenario="You want to cancel an order, since it is late.",
        facts={"order id": "2342", "email": "ann@mail.example"},
        never_tells=["blue moon"],
    ),
)
ASKS = "What is the order id?"


def playing(*lines: str) -> ScriptedAgent:
    """A model that plays a user: its lines in order, whatever it hears."""

    def line(messages: list[Message], seed: int) -> str:
        said = sum(message.role == "assistant" for message in messages) - 1
        return lines[said] if said < len(lines) else END

    return ScriptedAgent(line, name="actor", limit_tokens=True)


async def talk(policy: list[str], *lines: str, **options: Any) -> Rollout:
    return await rollout_async(
        Helpdesk(), TASK, model=ScriptedAgent(policy), user_model=playing(*lines), verifier=lambda _: 1.0, **options
    )


@pytest.mark.parametrize(
    ("policy", "lines", "kind"),
    [
        ([ASKS, "Fine."], ["It's 9999."], "UserContradicted"),
        ([ASKS, "Fine."], ["I don't know the order id."], "UserContradicted"),
        ([ASKS, "Fine."], ["2342, and my email is ann@mail.example."], "UserToldTooMuch"),
        ([ASKS, "Fine."], ["It's 2342. The password is blue moon."], "UserToldTooMuch"),
        ([ASKS, "Fine."], ["I have cancelled your order."], "UserAnsweredForTheAgent"),
        (["Fine.", "Fine."], ["The clerk has it, and your order is safe."], "UserAnsweredForTheAgent"),
        ([ASKS, "Fine."], ["A link will come to you by mail."], "UserAnsweredForTheAgent"),
        ([ASKS, "Fine."], ["Yes, please."], "UserOnlyAgreed"),
        ([ASKS, "Fine."], ["Sure thing."], "UserOnlyAgreed"),
        (["Shall I cancel order id 9999?", "Fine."], ["That's right, let's go ahead."], "UserOnlyAgreed"),
        ([ASKS, "Fine."], [str(TASK.prompt)], "UserOnlyAgreed"),
        (["Shall I cancel order id 9999?", "Fine."], ["Yes, please."], "UserOnlyAgreed"),
        ([ASKS], [END], "UserGaveUp"),
        ([ASKS, "I see."], [f"Never mind. {END}"], "UserGaveUp"),
        ([ASKS, *["It is cancelled."] * 9], ["2342", *["Thank you!"] * 9], "UserNeverEnded"),
    ],
)
async def test_an_error_of_the_user_leaves_the_rollout_unscored_with_its_reason(
    policy: list[str], lines: list[str], kind: str
) -> None:
    rollout = await talk(policy, *lines)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.kind) == ("user", kind)
    assert rollout.failure.message.startswith("user turn ")
    assert (rollout.scored, rollout.stop_reason) == (False, "failed")


async def test_a_user_that_keeps_to_its_part_is_scored_and_who_played_it_is_kept() -> None:
    rollout = await talk([ASKS, "Order 2342 is cancelled."], "It's 2342.", f"Thanks! {END}")
    assert (rollout.failure, rollout.stop_reason, rollout.scored) == (None, "answered", True)
    assert [(turn.by, turn.said, turn.ended) for turn in rollout.user_turns] == [
        ("actor", "It's 2342.", False),
        ("actor", "Thanks!", True),
    ]
    assert rollout.answer == "Order 2342 is cancelled."


async def test_a_policy_that_never_stops_asking_is_at_fault_itself() -> None:
    rollout = await talk(["How tall are you?"] * 9, *["I don't know that."] * 9)
    assert (rollout.failure, rollout.stop_reason, rollout.scored) == (None, "turn_limit", True)


async def test_a_message_that_was_cut_off_is_the_users_fault_and_names_the_limit() -> None:
    rollout = await talk([ASKS, "Fine."], "It's 2342. " * 300)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.kind) == ("user", "UserCutOff")
    assert "its limit of 256 tokens" in rollout.failure.message


async def test_a_model_is_shown_facts_in_the_letters_of_their_language() -> None:
    shown: list[str] = []

    def line(messages: list[Message], seed: int) -> str:
        shown.append(messages[0].content)
        return END

    user = User(scenario="Sie wollen stornieren.", facts={"name": "J\u00fcrgen", "town": "\u5927\u962a"})
    await rollout_async(
        Helpdesk(),
        Task(prompt="Bitte stornieren.", setup={"seed": 43}, user=user),
        model=ScriptedAgent(["Fertig."]),
        user_model=ScriptedAgent(line),
    )
    assert '- name: "J\u00fcrgen"\n- town: "\u5927\u962a"' in shown[0]


async def test_a_silent_model_is_the_users_fault() -> None:
    rollout = await talk([ASKS, "Fine."], "")
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.kind) == ("user", "UserSilent")


async def test_unscored_rollouts_are_counted_with_their_reason_in_the_report() -> None:
    tasks = [TASK, Task(prompt="Cancel it.", setup={"seed": 43}, user=TASK.user)]

    def line(messages: list[Message], seed: int) -> str:
        if sum(message.role == "assistant" for message in messages) > 1:
            return END
        return "Yes, please." if "Cancel it." in messages[2].content else "It's 2342."

    report = await evaluate_async(
        Helpdesk(), tasks, lambda _: 1.0, model=ScriptedAgent([ASKS, "Done."]), user_model=ScriptedAgent(line)
    )
    [measured] = report.conditions.values()
    assert (measured.scored, measured.rollouts) == (1, 2)
    assert list(measured.failures) == ["user/UserOnlyAgreed"]


async def test_a_user_model_without_users_does_nothing_and_is_refused() -> None:
    with pytest.raises(sdk.ConfigError, match="user_model does nothing: no task has a user"):
        await rollout_async(Helpdesk(), "hello", model=ScriptedAgent(["hi"]), user_model=playing())


@pytest.mark.parametrize(("words", "least"), [(FIRST, 0.97), (SECOND, 0.95), (THIRD, 0.85)])
def test_planted_errors_of_six_kinds_are_found_with_few_false_alarms(words: Any, least: float) -> None:
    found = measure(words, 120)
    assert set(found.planted) == set(USER_ERRORS)
    assert found.rate >= least
    assert found.false_alarms <= 0.05


async def test_a_judge_finds_what_no_rule_does_and_one_that_fails_leaves_the_rollout_unscored() -> None:
    from sdk.judging import Budget, user_judge

    def verdict(messages: list[Message], seed: int) -> str:
        check = re.search(r'"check": "(\w+)"', messages[0].content)
        assert check is not None
        rude = "silly" in json.dumps(json.loads(messages[1].content)["conversation"])
        kind = "contradicted" if rude else "none"
        return json.dumps({"check": check[1], "kind": kind, "turn": 1, "detail": "it is rude"})

    async def judged(judge: Any, *lines: str) -> Rollout:
        rollouts: list[Rollout] = []
        await evaluate_async(
            Helpdesk(),
            [TASK, TASK.model_copy(update={"id": "other"})],
            lambda rollout: rollouts.append(rollout) or 1.0,
            model=ScriptedAgent([ASKS, "Done."]),
            user_model=playing(*lines),
            user_judge=judge,
        )
        return rollouts[0]

    judge = user_judge(ScriptedAgent(verdict))
    assert (await judged(judge, "It's 2342.")).failure is None
    assert judge.spent.calls == 2
    with pytest.raises(sdk.ToolbakeError, match=r"user': UserContradicted: user turn 1.*it is rude"):
        await judged(judge, "It's 2342, silly.")
    with pytest.raises(sdk.ToolbakeError, match="verifier': VerifierError: the judge's budget is spent"):
        await judged(user_judge(ScriptedAgent(verdict), budget=Budget(calls=0)), "It's 2342.")


async def test_a_judge_of_users_that_no_model_plays_is_refused() -> None:
    from sdk.judging import user_judge

    with pytest.raises(sdk.ConfigError, match="user_judge does nothing"):
        await evaluate_async(
            Helpdesk(), [TASK], lambda _: 1.0, model=ScriptedAgent(["x"]), user_judge=user_judge(ScriptedAgent(["x"]))
        )
