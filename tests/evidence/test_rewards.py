"""A reward that its evidence does not give is named, also where every hash was made anew."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from evidence_runs import CONFIG, make_run, named, play, says_shipped, verified

from sdk.errors import ConfigError
from sdk.records import CallRecord, Rollout, Task, ToolCall, Verdict
from sdk.traces import RunFolder


def made_up(**fields: object) -> Rollout:
    return Rollout(**{"id": "x", "task": Task(prompt="Where?"), "verdict": Verdict(score=1.0), **fields})


def test_a_reward_that_was_made_up_with_a_fresh_chain_is_found_by_giving_it_again(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "grpo", ["a"])
        run.append_rollout("grpo", made_up(answer="shipped"))  # no call was made
    assert verified(tmp_path).holds
    found = verified(tmp_path, says_shipped)
    assert named(found) == ["unearned rollouts/grpo.jsonl:2 x"]
    assert found.findings[0].text == "the reward 1.0 was recorded, and its evidence gives 0.0"


def test_a_call_that_the_ledger_does_not_show_is_found_without_a_verifier(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "grpo", ["a"])
        real = run.read_rollouts("grpo")[0]
        better = real.calls[0].result.model_copy(update={"text": "refunded"})
        call = CallRecord(turn=1, call=real.calls[0].call, result=better)
        run.append_rollout("grpo", real.model_copy(update={"id": "a2", "calls": [call]}))
        other = ToolCall(id=real.calls[0].call.id, name="get_order", arguments={"order_id": "2"})
        call = CallRecord(turn=1, call=other, result=real.calls[0].result)
        run.append_rollout("after", real.model_copy(update={"calls": [call]}))
    found = verified(tmp_path)
    assert named(found) == ["unearned rollouts/after.jsonl:1 a", "unearned rollouts/grpo.jsonl:2 a2"]
    assert found.findings[0].text == "call 1 (get_order): its ledger shows no such call with this result"


def test_calls_on_a_task_that_is_named_like_a_branch_are_its_own(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "after", ["python~3.11"], id_prefix="after/")
        assert run.read_rollouts("after")[0].calls
    assert verified(tmp_path).findings == []


def test_a_ledger_line_that_was_never_written_as_the_call_was_made_is_found(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "grpo", ["a"])
        real = run.read_rollouts("grpo")[0]
        late = real.ledger[-1].model_copy(update={"note": "made up"})
        run.append_rollout("after", real.model_copy(update={"ledger": [*real.ledger, late]}))
    assert verified(tmp_path).findings[0].text == "ledger line 3 (answered of get_order) is not in calls.jsonl"


def test_a_verifier_that_disagrees_with_itself_or_breaks_is_told_from_a_wrong_reward(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        run.append_rollout("grpo", made_up())
        run.append_rollout("grpo", made_up(id="unscored", verdict=None))
    counter = itertools.count(7)
    assert "the verifier is not deterministic" in verified(tmp_path, lambda _: next(counter)).findings[0].text
    (finding,) = verified(tmp_path, lambda _: 1 / 0).findings
    assert "the verifier gives none: the verifier <lambda> raised ZeroDivisionError" in finding.text
    assert verified(tmp_path, lambda _: 1.0).rescored == 1
    (finding,) = verified(tmp_path, lambda _: Verdict(score=1.0, components={"a": 1.0})).findings
    assert finding.text == "the components {} were recorded, and its evidence gives {'a': 1.0}"


def test_a_verifier_that_is_none_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path)
    with pytest.raises(ConfigError, match="the verifier is 3"):
        verified(tmp_path, 3)  # type: ignore[arg-type]


def test_a_verifier_reads_evidence_only_and_the_same_at_every_time(tmp_path: Path) -> None:
    # What it saw when the rollout was played is what it sees when the evidence is read again.
    seen: list[str] = []

    def looking(rollout: Rollout) -> float:
        rollout.answer += " (touched)"
        seen.append(rollout.model_dump_json(exclude={"answer"}))
        return 1.0

    import anyio

    from sdk.verifiers.verifier import run_verifier

    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "grpo", ["a"])
        rollout = run.read_rollouts("grpo")[0]
        odd = rollout.calls[0].result.model_copy(update={"structured": {"mean": float("nan"), "pair": (1, 2)}})
        rollout = rollout.model_copy(update={"id": "b", "calls": [], "final_state": {"odd": odd.structured}})
        rollout.verdict = anyio.run(run_verifier, looking, rollout)
        run.append_rollout("grpo", rollout)
    assert "touched" not in rollout.answer
    seen.append(json.dumps({}))
    assert verified(tmp_path, looking).rescored == 2
    assert seen[0] == seen[-1]
    assert json.loads(seen[0])["final_state"] == {"odd": {"mean": "nan", "pair": [1, 2]}}


def nested(levels: int) -> list[Any]:
    whole: list[Any] = []
    for _ in range(levels):
        whole = [whole]
    return whole


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"lock": object()}, "Unable to serialize"),
        ({"a": nested(50_000)}, "levels deep"),
        ({"a": nested(400_000)}, "levels deep"),
    ],
    ids=["no JSON", "deep", "deepest"],
)
def test_what_no_evidence_can_hold_is_no_input_for_a_verifier(
    state: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    import anyio

    from sdk.errors import VerifierError
    from sdk.verifiers.verifier import run_verifier

    with caplog.at_level(logging.ERROR), pytest.raises(VerifierError, match=f"holds what no evidence can: .*{why}"):
        anyio.run(run_verifier, says_shipped, made_up().model_copy(update={"final_state": state}))
