"""What a judge is asked, how often, and what it is held to: questions that are equal, budgets, labels from anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from mcp_bridge.records import ToolResult
from sdk.cli.app import app
from sdk.errors import VerifierError
from sdk.judging import Agreement, Budget, judge, labelled_examples
from sdk.judging.judge_model import escaped
from sdk.policies.endpoint import EndpointAgent
from sdk.policies.scripted import ScriptedAgent
from sdk.records import CallRecord, Rollout, Task, ToolCall
from sdk.traces.json_text import dump_json
from sdk.verifiers import run_verifier


def answered(answer: str, *calls: CallRecord) -> Rollout:
    task = Task(prompt="Where is it?", expected={"answer": "shipped"})
    return Rollout(id="r", task=task, answer=answer, calls=list(calls))


async def test_equal_rollouts_that_are_judged_at_once_are_asked_about_once(endpoint: str, tmp_path: Path) -> None:
    by_gold = judge((endpoint, "honest"), gold=True, cache=tmp_path / "judge.db")
    scores: list[float] = []

    async def one() -> None:
        scores.append((await run_verifier(by_gold, answered("It is shipped."))).score)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(one)
    assert scores == [1.0] * 8
    assert (by_gold.spent.calls, by_gold.spent.from_cache) == (1, 7)


async def test_a_question_that_fails_leaves_the_next_free_to_ask(endpoint: str, tmp_path: Path) -> None:
    by_gold = judge((endpoint, "chatty"), gold=True, cache=tmp_path / "judge.db")
    for _ in range(2):
        with pytest.raises(VerifierError, match="no verdict in 2 tries"):
            await run_verifier(by_gold, answered("It is shipped."))
    assert by_gold.spent.calls == 4


async def test_equal_questions_that_wait_for_one_that_fails_fail_with_it(endpoint: str, tmp_path: Path) -> None:
    by_gold = judge((endpoint, "chatty"), gold=True, cache=tmp_path / "judge.db")
    said: list[str] = []

    async def one() -> None:
        with pytest.raises(VerifierError) as error:
            await run_verifier(by_gold, answered("It is shipped."))
        said.append(str(error.value))

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(one)
    assert len(said) == 8
    assert all("no verdict in 2 tries" in line for line in said)
    assert by_gold.spent.calls == 2


class HangsFirst(EndpointAgent):
    """Hangs in its first conversation."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, "honest")
        self.asked = anyio.Event()

    def start(self, tools: Any, **options: Any) -> Any:
        conversation: Any = super().start(tools, **options)
        if not self.asked.is_set():
            self.asked.set()
            conversation.reply = lambda _: anyio.sleep_forever()
        return conversation


async def test_a_question_whose_rollout_is_cancelled_is_asked_by_the_next_that_waits(
    endpoint: str, tmp_path: Path
) -> None:
    agent = HangsFirst(endpoint)
    by_gold = judge(agent, gold=True, cache=tmp_path / "judge.db")
    scores: list[float] = []

    async def one() -> None:
        scores.append((await run_verifier(by_gold, answered("It is shipped."))).score)

    first = anyio.CancelScope()

    async def cancelled() -> None:
        with first:
            await one()

    async with anyio.create_task_group() as group:
        group.start_soon(cancelled)
        await agent.asked.wait()
        group.start_soon(one)
        group.start_soon(one)
        await anyio.wait_all_tasks_blocked()
        first.cancel()
    assert scores == [1.0, 1.0]
    assert (by_gold.spent.calls, by_gold.spent.from_cache) == (2, 1)


def holding(held: bool) -> ScriptedAgent:
    def judge(messages: Any, seed: int) -> str:
        check = messages[0].content.split('"check": "')[1][:10]
        return json.dumps({"check": check, "criteria": {"1": held}, "reason": "so"})

    return ScriptedAgent(judge)


async def test_judges_of_one_name_do_not_get_each_others_verdicts_from_the_cache(tmp_path: Path) -> None:
    asked = []
    for held in (True, False, True):
        own = judge(holding(held), rubric=["x"], cache=tmp_path / "judge.db")
        asked.append(((await run_verifier(own, answered("It is shipped."))).score, own.spent.calls))
    assert asked == [(1.0, 1), (0.0, 1), (1.0, 0)]
    assert len({judge(holding(held), rubric=["x"]).identity for held in (True, False)}) == 2


async def test_a_budget_of_tokens_that_nobody_counts_scores_nothing(endpoint: str) -> None:
    by_gold = judge((endpoint, "uncounted"), gold=True, budget=Budget(tokens=300))
    for _ in range(3):
        with pytest.raises(VerifierError, match=r"does not say how many tokens it used.*Budget\(calls=...\)"):
            await run_verifier(by_gold, answered("It is shipped."))
    assert by_gold.spent.calls == 1


async def test_a_rollout_that_does_not_fit_is_no_uncounted_answer(endpoint: str) -> None:
    by_gold = judge((endpoint, "short"), gold=True, budget=Budget(tokens=300))
    for calls in (1, 2):
        with pytest.raises(VerifierError, match="does not fit into its context"):
            await run_verifier(by_gold, answered("It is shipped."))
        assert by_gold.spent.calls == calls


async def test_what_a_model_thinks_before_its_verdict_is_no_part_of_it(endpoint: str) -> None:
    by_gold = judge((endpoint, "thinks"), gold=True)
    assert (await run_verifier(by_gold, answered("It is shipped."))).score == 1
    assert by_gold.spent.calls == 1


def test_no_marker_of_a_chat_format_stands_in_what_is_judged() -> None:
    said = "<|im_start|> [INST] <s> [/INST] [TOOL_RESULTS] [gMASK] [1, 2] [[]]"
    shown = escaped({"answer": said, "calls": [{"[INST]": said}]})
    assert json.loads(shown) == {"answer": said, "calls": [{"[INST]": said}]}
    assert not any(sign in shown for sign in ("<", ">", "|", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[gMASK]"))
    assert "[1, 2] [[]]" in shown


def test_labels_are_read_whatever_their_rollouts_say(tmp_path: Path) -> None:
    call = ToolCall(id="c", name="tag", arguments={"label": "unsure"})
    rollout = answered("one\u2028two\x85three", CallRecord(turn=1, call=call, result=ToolResult(text="ok")))
    rows = [{"label": label, "rollout": rollout.model_dump()} for label in ("good", "unsure", "bad")]
    (tmp_path / "l.jsonl").write_bytes(b"".join(dump_json(row) + b"\n" for row in rows))
    assert [(one.answer, label) for one, label in labelled_examples(tmp_path / "l.jsonl")] == [
        (rollout.answer, True),
        (rollout.answer, False),
    ]


def test_kappa_has_an_interval_which_is_wide_for_few_labels() -> None:
    # Wilson: 2 of 2 is 0.342 to 1, 7 of 10 is 0.397 to 0.892; half of the agreement is chance in both. 18 of 20 is
    # 0.699 to 0.972, of which 0.905 is chance: the lower end would be -2.17.
    cases = (
        ((1, 1, 0, 0), (-0.3152, 1.0)),
        ((4, 3, 2, 1), (-0.2064, 0.7844)),
        ((18, 0, 1, 1), (-1.0, 0.7067)),
    )
    for counts, ends in cases:
        names = ("both_right", "both_wrong", "too_lenient", "too_strict")
        found = Agreement(**dict(zip(names, counts, strict=True)), unscored={}, disagreements=[])
        assert found.kappa_interval is not None
        assert (found.kappa_interval.low, found.kappa_interval.high) == pytest.approx(ends, abs=1e-4)
        assert f"kappa       {found.kappa:.2f} [{ends[0]:.2f}, {ends[1]:.2f}]" in str(found)


def test_the_command_obeys_no_control_character_of_an_example(tmp_path: Path) -> None:
    lines = [{"label": label, "prompt": "?", "answer": "\x1b[2J\u202ewrong"} for label in (True, False)]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "judges.py").write_text("def yes(rollout):\n    return True\n")
    found = CliRunner().invoke(
        app, ["judge", "check", str(tmp_path / "l.jsonl"), "--verifier", f"{tmp_path / 'judges.py'}:yes"], color=True
    )
    assert "\\x1b[2J\\u202ewrong" in found.output
    assert not {"\x1b", "\u202e"} & set(found.stdout)


async def test_a_budget_of_calls_holds_for_rollouts_that_are_judged_at_once(endpoint: str) -> None:
    by_gold = judge((endpoint, "honest"), gold=True, budget=Budget(calls=2))
    scores: list[float] = []
    refused: list[str] = []

    async def one(answer: str) -> None:
        try:
            scores.append((await run_verifier(by_gold, answered(answer))).score)
        except VerifierError as error:
            refused.append(str(error))

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(one, f"It is shipped, {number}.")
    assert (by_gold.spent.calls, scores) == (2, [1.0, 1.0])
    assert len(refused) == 4
    assert all("budget is spent: 2 of 2 calls" in error for error in refused)
