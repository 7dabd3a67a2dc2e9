"""Audits are judged by the outcome: a right call earns, a false alarm and a missed error cost."""

import pytest

import sdk
from sdk.errors import ConfigError, VerifierError
from sdk.judging import audit_call, audit_tasks
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Rollout, Task, Verdict
from sdk.verifiers import run_verifier

ASKED = Task(
    id="t", prompt="How heavy?", expected={"answer": "12 kg"}, setup={"seed": 7}, family="f", tags={"tier": "1"}
)


def judged(number, answer, score, **fields):
    verdict = None if score is None else Verdict(score=score)
    return Rollout(id=f"r{number}", group="g", task=ASKED, answer=answer, verdict=verdict, **fields)


GROUP = [judged(1, "It is 12 <|kg|>", 1.0), judged(2, "13 kg", 0.0), judged(3, "?", None), judged(4, "", 0.0)]


def test_audit_tasks_hold_the_evidence_and_not_the_verdict():
    right, wrong = audit_tasks(GROUP)
    assert (right.expected, wrong.expected) == ({"audit_error": False}, {"audit_error": True})
    assert (right.setup, right.family, right.tags) == ({"seed": 7}, "f", {"tier": "1", "audit": "true"})
    assert "13 kg" in wrong.prompt
    assert "12" not in wrong.prompt, "neither the gold answer nor that of others"
    assert "<|" not in right.prompt


@pytest.mark.parametrize(
    ("answer", "wrong", "score"),
    [
        ("ERROR: it weighs 13 kg", True, 1),
        ("**OK**", False, 1),
        ("Error", False, -1),
        ("ok, though this may be an error", True, -1),
        ("It looks like an ERROR", True, -1),
        ("", False, -1),
    ],
)
async def test_calls_are_scored_by_what_the_outcome_verifier_said(answer, wrong, score):
    task = Task(prompt="Audit.", expected={"audit_error": wrong})
    verdict = await run_verifier(audit_call(), Rollout(id="a", task=task, answer=answer))
    assert verdict.score == score


async def test_an_auditor_plays_the_tasks_as_any_policy():
    def auditor(messages, seed):
        return "ERROR: 13" if "13 kg" in messages[0].content else "OK"

    def scale(item: str) -> str:
        """Weigh an item."""
        return "12 kg"

    tasks = [task.model_copy(update={"setup": {}}) for task in audit_tasks(GROUP)]  # functions have no setup
    report = await sdk.evaluate_async([scale], tasks, audit_call(), model=ScriptedAgent(auditor))
    (found,) = report.conditions.values()
    assert found.success.interval.estimate == 1
    assert found.components["right_call"].mean == 1


async def test_what_cannot_be_audited_is_said():
    with pytest.raises(ConfigError, match="none of 2 rollouts is scored and has an answer"):
        audit_tasks(GROUP[2:])
    with pytest.raises(VerifierError, match="make audits with audit_tasks"):
        await run_verifier(audit_call(), judged(1, "OK", 1.0))
