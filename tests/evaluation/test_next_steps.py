"""The sentences after a training: each has its reason in the figures, and without a reason there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rollout_making import make_rollout

from mcp_bridge import ToolResult
from sdk.evaluation import TrainingSummary, build_report
from sdk.evaluation.next_steps import next_steps
from sdk.evaluation.report import note_conditions, report_of
from sdk.records import CallRecord, Rollout, Task, ToolCall, Verdict
from sdk.traces.run_folder import RunFolder


def practised(kind: str, scores: str, *, step: int = 0, **fields: Any) -> list[Rollout]:
    """One group, a sign for each rollout: `1` solved, `0` not."""
    return [
        make_rollout(
            f"{kind}-t",
            float(sign),
            rollout_id=f"{kind}-{step}-{place}",
            tags={"kind": kind},
            group=f"{step}/{kind}",
            **fields,
        )
        for place, sign in enumerate(scores)
    ]


def held_out(kind: str, scores: str) -> list[Rollout]:
    return [make_rollout(f"{kind}-h{i}", float(sign), tags={"kind": kind}) for i, sign in enumerate(scores)]


MIXED = [rollout for step in range(10) for kind in "ab" for rollout in practised(kind, "0110", step=step)]
FAIR = held_out("a", "01100110") + held_out("b", "01100110")
FAILED = held_out("a", "00001111") + held_out("b", "00001111")


def advice(
    practice: list[Rollout] = MIXED, heldout: list[Rollout] = FAIR, *, steps: int = 10, **given: Any
) -> list[str]:
    more = {"learnt": 0.1, "lost": 0.0, "could_be_strict": True} | {
        key: given.pop(key) for key in ("learnt", "lost") if key in given
    }
    return next_steps(practice, heldout, TrainingSummary(steps=steps, **given), threshold=1.0, **more)


def test_a_run_whose_figures_give_no_reason_has_no_advice() -> None:
    assert advice(rollouts=80, skipped_rollouts=1, first_reward=0.4, last_reward=0.6) == []


def test_a_kind_that_never_had_a_success_is_named_with_its_groups() -> None:
    never = [rollout for step in range(10) for rollout in practised("refund", "0000", step=step)]
    (one,) = advice(MIXED + never, [*FAIR, *held_out("refund", "00000000")])
    assert "No rollout in training succeeded at kind=refund (10 groups): give demonstrations" in one


def test_a_run_that_solves_most_groups_wholly_is_told_to_take_harder_tasks() -> None:
    easy = [rollout for step in range(10) for rollout in practised("a", "1111", step=step)]
    (one,) = advice(easy, held_out("a", "11111111"))
    assert one == "In 10 of 10 groups all rollouts succeeded, which teaches nothing: add harder tasks."


def test_a_kind_that_succeeds_in_training_and_not_on_held_out_tasks_wants_more_families() -> None:
    learned = [rollout for step in range(10) for rollout in practised("a", "1110", step=step)]
    (one,) = advice(learned, held_out("a", "01000100") + held_out("b", "0110"))
    assert one.startswith(
        "kind=a: 69 % of the rollouts succeed at the end of training, but 25 % of the held-out tasks."
    )
    assert "learned 1 family of this kind: write tasks of more" in one


@pytest.mark.parametrize(("found", "said"), [("0000", 1), ("0011", 0), ("000", 0), ("0001000", 1)])
def test_of_few_held_out_tasks_of_a_kind_a_large_difference_is_told(found: str, said: int) -> None:
    practice = [rollout for step in range(10) for rollout in practised("slot", "0111", step=step)]
    told = advice(practice, held_out("slot", found) + held_out("b", "01"))
    assert sum("kind=slot: 77 % of the rollouts succeed" in one for one in told) == said


def test_after_a_warm_start_alone_held_out_rollouts_tell_what_was_cut_off_and_what_is_never_solved() -> None:
    heldout = [*FAIR, *held_out("refund", "0000"), *practised("b", "0", stop_reason="turn_limit")]
    more = {"threshold": 1.0, "learnt": None, "lost": 0.0, "could_be_strict": True}
    cut_off, never = next_steps([], [*heldout, *practised("b", "0", stop_reason="turn_limit")], None, **more)
    assert cut_off == "9 % of the held-out rollouts ended with turn_limit: raise limits.max_turns."
    assert never.startswith("No held-out task is solved of these: kind=refund (4 tasks). Give more demonstrations")
    assert next_steps([], FAIR, None, **more) == []


def answered(*given: tuple[str, str, int]) -> list[Rollout]:
    """Held-out rollouts: an answer, the expected one, and how many tasks."""
    pairs = [(answer, gold) for answer, gold, times in given for _ in range(times)]
    return [
        make_rollout(f"h{i}", float(answer == gold), answer=answer).model_copy(
            update={"task": Task(prompt="Does it?", id=f"h{i}", expected={"answer": gold})}
        )
        for i, (answer, gold) in enumerate(pairs)
    ]


@pytest.mark.parametrize("training", [TrainingSummary(steps=10), None], ids=["GRPO", "warm start alone"])
def test_one_answer_to_tasks_that_expect_others_is_told(training: TrainingSummary | None) -> None:
    more = {"threshold": 1.0, "learnt": 0.1, "lost": 0.0, "could_be_strict": True}
    alike = answered(("yes", "yes", 7), ("yes", "no", 2), ("no", "no", 1))
    (one,) = next_steps(MIXED, alike, training, **more)
    assert one.startswith("all tasks: 9 of 10 held-out answers are 'yes', and at most 7 tasks expect any one answer")
    for fair in (
        answered(("yes", "yes", 9), ("yes", "no", 1)),
        answered(("yes", "yes", 6), ("no", "no", 4)),
        answered(("yes", "no", 7)),
        answered(("", "no", 5), ("", "yes", 5)),
    ):
        assert not any("held-out answers are" in step for step in next_steps(MIXED, fair, training, **more))


@pytest.mark.parametrize("training", [TrainingSummary(steps=10), None], ids=["GRPO", "warm start alone"])
def test_calls_that_were_refused_send_to_strict_tools(training: TrainingSummary | None) -> None:
    def refused(kind: Any, times: int) -> list[Rollout]:
        result = ToolResult(text="refused", is_error=True, error_kind=kind)
        call = CallRecord(turn=0, call=ToolCall(id="c", name="read"), result=result)
        return [one.model_copy(update={"calls": [call] if n < times else []}) for n, one in enumerate(FAILED)]

    more = {"threshold": 1.0, "learnt": 0.1, "lost": 0.0, "could_be_strict": True}
    for kind in ("unknown_tool", "invalid_arguments"):
        (one,) = next_steps(MIXED, FAIR + refused(kind, 4), training, **more)
        assert one.startswith("4 of 16 failed held-out rollouts had a call of no tool, or with arguments")
        assert "--strict-tools" in one
        assert next_steps(MIXED, FAIR + refused(kind, 3), training, **more) == []
        assert next_steps(MIXED, FAIR + refused(kind, 4), training, **{**more, "could_be_strict": False}) == []
    assert next_steps(MIXED, FAIR + refused("tool_error", 8), training, **more) == []


@pytest.mark.parametrize(
    ("reason", "fix"),
    [("token_limit", "limits.max_turn_tokens"), ("turn_limit", "limits.max_turns"), ("context_limit", "tool_prompt")],
)
def test_rollouts_that_were_cut_off_name_the_limit_to_raise(reason: str, fix: str) -> None:
    cut = [rollout for step in (8, 9) for rollout in practised("a", "0100", step=step, stop_reason=reason)]
    (one,) = advice(MIXED + cut)
    assert f"ended with {reason}: " in one
    assert fix in one


def test_a_reward_that_rises_alone_sends_its_user_to_the_rollouts() -> None:
    (one,) = advice(first_reward=0.2, last_reward=0.7, learnt=-0.02)
    assert one.startswith("The mean reward rose from 0.20 to 0.70, and held-out success did not: read the rollouts")
    assert advice(first_reward=0.2, last_reward=0.7, learnt=0.02) == []


def test_last_weights_that_were_not_chosen_and_rollouts_that_broke_are_told() -> None:
    broke, chosen = advice(rollouts=80, skipped_rollouts=20, lost=0.2)
    assert broke.startswith("20 of 80 rollouts in training broke"), "they are among all rollouts"
    assert "lower grpo.learning_rate" in chosen
    assert advice(lost=0.04) == [], "a task of 28 is chance"


def test_success_that_still_rose_at_the_end_asks_for_more_steps() -> None:
    (one,) = advice(validation={4: 0.5, 8: 0.6, 10: 0.7})
    assert one.endswith("highest at the last of 10 steps: train longer (grpo.max_steps=20).")
    assert advice(validation={4: 0.5, 8: 0.7, 10: 0.6}) == []
    assert advice(validation={4: 0.5, 10: 1.0}) == []


def test_the_report_ends_with_the_advice_and_its_page_has_it_as_a_list() -> None:
    report = build_report({"after GRPO": FAIR}).model_copy(update={"next_steps": ["No <b>rollout</b> of 9 succeeded."]})
    assert str(report).splitlines()[-1] == "Next: No <b>rollout</b> of 9 succeeded."
    assert "## What to do next\n\n- No \\<b\\>rollout" in report.markdown()


def test_a_report_that_is_made_again_keeps_the_advice(tmp_path: Path) -> None:
    rollout = Rollout(id="r", task=Task(prompt="Where?", id="t"), answer="Here.", verdict=Verdict(score=1.0))
    with RunFolder.create_or_resume(tmp_path / "run", {"model": "none"}) as run:
        run.append_rollout("grpo", rollout)
        note_conditions(run, {"after GRPO": "grpo"}, [])
        report = build_report({"after GRPO": [rollout]})
        report.next_steps = ["Raise limits.max_turns."]
        report.write(tmp_path / "run")
    assert report_of(tmp_path / "run").next_steps == ["Raise limits.max_turns."]
