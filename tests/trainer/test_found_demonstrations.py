"""A training whose demonstrations are found: with functions, a few strings and a lambda, to the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from heard import Heard

import sdk
from mcp_bridge import connect
from mcp_bridge.records import Tool
from sdk.errors import PolicyFailure
from sdk.evidence.run_verification import verify_run
from sdk.policies.endpoint import EndpointAgent
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Message, Rollout, ToolCall
from sdk.rollouts.run_context import RunContext
from sdk.synthesis.found_demonstrations import taught
from sdk.tasks import load_tasks
from sdk.traces import RunFolder
from sdk.traces.journal import Journal
from sdk.trainer.task_splits import split_for_training

SHORT = {"max_turns": 3, "max_turn_tokens": 8, "max_tokens": 16}
FEW = {"probes.tasks": 1, "evaluation.max_served": 1}
PRICES = {"lamp": 412, "desk": 880, "rug": 731}
SOLD: list[str] = []


def price(item: str) -> int:
    """The price of an item."""
    return PRICES[item]


def total(amounts: list[int]) -> int:
    """Add amounts."""
    return sum(amounts)


def sell(item: str) -> str:
    """Sell an item."""
    SOLD.append(item)
    return f"sold {item}"


def asks_for_prices(rollout: Rollout) -> bool:
    return any(str(PRICES[item]) in rollout.answer for item in PRICES if item in str(rollout.task.prompt))


def test_functions_strings_and_a_lambda_train_with_demonstrations_that_were_found(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    words = [f"{ask} the {item}?" for ask in ("What is the price of", "How much is", "What costs") for item in PRICES]
    words.append("Please say the price of the lamp.")
    options = {"grpo.max_steps": 0, "warm_start.max_steps": 2, "limits": SHORT, "evaluation.heldout": 3, **FEW}
    heard = Heard()
    run = sdk.train(
        [price, total, sell], words, asks_for_prices, tiny_model_dir, tmp_path / "run", options, progress=heard
    )
    said = "\n".join(heard.lines)
    assert list(run.report.conditions)[:2] == ["untrained", "after warm start"]
    assert "sell (it calls SOLD.append)" in said
    assert "no training task has a demonstration: calls are searched" in said
    assert "by price" in said
    assert SOLD == []

    folder = RunFolder.open_to_read(run.run_dir)
    stage = folder.stage("found_demonstrations")
    assert stage is not None
    rows = [json.loads(line) for line in (run.run_dir / "demonstrations.jsonl").read_text().splitlines()]
    assert sorted(row["prompt"] for row in rows) == sorted(words)
    shown = [row for row in rows if "demonstration" in row]
    assert len(shown) == stage["found"] == len(folder.read_rollouts("found_demonstrations")) > 0
    assert {row["tags"]["split"] for row in shown} == {"train"}
    held = {row["id"] for row in rows if row["tags"]["split"] != "train"}
    searched = {line.rollout.split("/")[1] for line in folder.read_calls() if line.rollout.startswith("search/")}
    assert searched
    assert not searched & held
    assert anyio.run(lambda: verify_run(run.run_dir, verifier=asks_for_prices)).holds

    told: list[str] = []
    progress = Heard()
    progress.lines = told
    again = sdk.train(
        [price, total, sell], words, asks_for_prices, tiny_model_dir, tmp_path / "run", options, progress=progress
    )
    assert str(again.report) == str(run.report)
    assert not any("calls are searched" in line for line in told)

    sides = split_for_training(rows, sdk.TrainConfig.of({**options, "warm_start.max_steps": None}))
    assert {task.id: task.demonstration for task in sides.train if task.demonstration} == {
        task.id: task.demonstration for task in load_tasks(shown)
    }
    assert {task.id for task in [*sides.validation, *sides.heldout]} == held
    (run.run_dir / "demonstrations.jsonl").write_text("")
    with pytest.raises(sdk.RunFolderError, match=r"demonstrations\.jsonl is not as this run wrote it"):
        sdk.train([price, total, sell], words, asks_for_prices, tiny_model_dir, tmp_path / "run", options)


def test_the_steps_of_a_warm_start_are_by_the_demonstrations_that_were_found(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    words = [f"{ask} the {item}?" for ask in ("What is the price of", "How much is", "What costs") for item in PRICES]
    words += [f"Tell me joke number {n}." for n in range(40)]
    options = {"grpo.max_steps": 0, "limits": SHORT, "evaluation.heldout": 5, "evaluation.validation": 0, **FEW}
    run = sdk.train([price], words, asks_for_prices, tiny_model_dir, tmp_path / "run", options)
    folder = RunFolder.open_to_read(run.run_dir)
    assert 0 < len(folder.read_rollouts("found_demonstrations")) <= 9
    # Three passes over all 44 training tasks would be 17 steps, 10 are the fewest.
    assert len([line for line in folder.read_metrics() if line["stage"] == "warm_start"]) == 10
    again = sdk.train([price], words, asks_for_prices, tiny_model_dir, tmp_path / "run", options)
    assert str(again.report) == str(run.report)


def taught_by(script: Any, tiny_model_dir: Path, tmp_path: Path, **options: Any) -> tuple[list[Any], str]:
    """The demonstrations of one teacher for three tasks, and what the console had."""
    heard, words = Heard(), [f"Tell me of the {item}." for item in (*PRICES, "lamp and the rug")]
    given = {"limits": {**SHORT, "max_tokens": 400}, "probes.tasks": 0, "evaluation.validation": 0, **options}
    given |= {"evaluation.heldout": 1, "grpo.max_steps": 1}
    where = tmp_path / "run"
    sdk.train([price], words, asks_for_prices, tiny_model_dir, where, given, teacher=script, progress=heard)
    rows = [json.loads(line) for line in (where / "demonstrations.jsonl").read_text().splitlines()]
    return [row["demonstration"] for row in rows if "demonstration" in row], "\n".join(heard.lines)


def item_of(messages: list[Message]) -> str:
    return next(item for item in PRICES if item in messages[0].content)


def test_a_teacher_s_right_rollout_that_would_teach_a_mistake_is_left_out(tiny_model_dir: Path, tmp_path: Path) -> None:
    def script(messages: list[Message], _: int) -> Any:
        item = item_of(messages)
        if messages[-1].role == "user":  # of a lamp it first calls what is not there
            return [ToolCall(id="c0", name="pricee" if item == "lamp" else "price", arguments={"item": item})]
        if item == "lamp" and len(messages) == 3:
            return [ToolCall(id="c1", name="price", arguments={"item": item})]
        return f"It costs {PRICES[item]}."

    shown, said = taught_by(ScriptedAgent(script), tiny_model_dir, tmp_path)
    assert shown
    assert not any("pricee" in str(one) or "lamp" in str(one) for one in shown)
    assert "right rollouts of the teacher were left out: a call failed, a limit ended them" in said


def refuses_lamps(messages: list[Message], _: int) -> Any:
    item = item_of(messages)
    if item == "lamp":
        raise PolicyFailure("filtered")
    called = [ToolCall(id="c0", name="price", arguments={"item": item})]
    return called if messages[-1].role == "user" else f"It costs {PRICES[item]}."


@pytest.mark.parametrize("seed", range(4))
async def test_where_the_task_that_a_teacher_refuses_is_all_that_is_left_the_others_are_kept(seed: int) -> None:
    tasks = [sdk.Task(prompt=f"Tell me of the {item}.") for item in PRICES]
    kept: list[Rollout] = []
    async with connect([price]) as source:
        context = RunContext(tools=source, verifier=asks_for_prices, limits=sdk.Limits(), concurrency=4, seed=seed)
        teacher = ScriptedAgent(refuses_lamps)
        first = await taught(tasks, context, teacher, wanted=3, known=(), on_found=kept.append)
        again = await taught(tasks, context, teacher, wanted=3, known=kept, on_found=kept.append)
    assert len(kept) == 2
    assert again.found.keys() == first.found.keys() == {rollout.task.id for rollout in kept}
    assert again.candidates == 4


async def test_a_teacher_is_asked_again_only_for_tasks_for_which_it_could_not_be_reached(tmp_path: Path) -> None:
    tasks = [sdk.Task(id=item, prompt=f"Tell me of the {item}.") for item in PRICES]
    asked: list[str] = []
    kept: list[Rollout] = []
    down = {"rug", "desk", "lamp"}

    def script(messages: list[Message], _: int) -> Any:
        item = item_of(messages)
        if messages[-1].role == "user":
            asked.append(item)
            if item in down:
                raise PolicyFailure("unreachable")
            return [ToolCall(id="c0", name="price", arguments={"item": item})]
        return "I cannot tell." if item == "rug" else f"It costs {PRICES[item]}."

    async with connect([price]) as source:
        context = RunContext(tools=source, verifier=asks_for_prices, limits=sdk.Limits(), concurrency=4)

        async def play(agent: ScriptedAgent) -> Any:
            journal = Journal(tmp_path / "work.jsonl")
            asked.clear()
            try:
                return await taught(tasks, context, agent, wanted=3, known=kept, on_found=kept.append, journal=journal)
            finally:
                journal.close()

        with pytest.raises(PolicyFailure, match="answered in none of 8 tries"):
            await play(ScriptedAgent(script))
        assert len(set(asked)) == 2
        down.clear()
        report = await play(ScriptedAgent(script))
        assert (sorted(report.found), [task.id for task in report.not_found]) == (["desk", "lamp"], ["rug"])
        assert sorted(set(asked)) == sorted(PRICES)
        report = await play(ScriptedAgent(script))
        assert (sorted(report.found), [task.id for task in report.not_found]) == (["desk", "lamp"], ["rug"])
        assert asked == []


def test_a_task_that_a_teacher_refuses_does_not_end_the_training(tiny_model_dir: Path, tmp_path: Path) -> None:
    options = {"rollouts.concurrency": 4}
    shown, said = taught_by(ScriptedAgent(refuses_lamps), tiny_model_dir, tmp_path, **options)
    assert shown
    assert "candidates could not be played, the last: " in said


class Teaching:
    """A teacher that reads the price, every other time after a detour, and does not tell that of rugs."""

    name = "large-1"

    def __init__(self) -> None:
        self.begun = 0

    def start(self, tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> Any:
        self.begun += 1
        detour = [ToolCall(id="c0", name="total", arguments={"amounts": [1]})] if self.begun % 2 else []

        def script(messages: list[Message], _: int) -> Any:
            item = item_of(messages)
            if messages[-1].role == "user":
                return [*detour, ToolCall(id="c1", name="price", arguments={"item": item})]
            return "I cannot tell." if item == "rug" else f"It costs {PRICES[item]}."

        return ScriptedAgent(script).start(tools, sampling=sampling, seed=seed)


def test_a_teacher_s_verified_rollouts_are_the_demonstrations_and_it_is_not_asked_twice(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    words = [f"{ask} the {item}?" for ask in ("What is the price of", "How much is", "What costs") for item in PRICES]
    options = {
        "grpo.max_steps": 0,
        "warm_start.max_steps": 2,
        "limits": {**SHORT, "max_tokens": 400},
        "evaluation.heldout": 3,
        "probes.tasks": 0,
    }
    heard, teacher, run_dir = Heard(), Teaching(), tmp_path / "run"
    given: Any = ([price, total, sell], words, asks_for_prices, tiny_model_dir, run_dir, options)
    sdk.train(*given, teacher=teacher, progress=heard)
    rows = [json.loads(line) for line in (run_dir / "demonstrations.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["tags"]["split"] == "train"]
    wanted = [row for row in train if "rug" not in row["prompt"]]
    assert [row["prompt"] for row in rows if "demonstration" in row] == [row["prompt"] for row in wanted]
    calls = [[call["name"] for call in row["demonstration"][0]["tool_calls"]] for row in wanted]
    assert calls == [["price"]] * len(wanted), "the shorter of two ways"
    said = "\n".join(heard.lines)
    assert f"the teacher plays {len(train)} training tasks of {len(train)} families, 4 times each" in said
    assert f"demonstrations found: {len(wanted)} for {len(train)} tasks" in said
    assert anyio.run(lambda: verify_run(run_dir, verifier=asks_for_prices)).holds
    assert teacher.begun == 4 * len(train)
    sdk.train(*given, teacher=teacher)
    assert teacher.begun == 4 * len(train)
    with pytest.raises(sdk.RunFolderError, match="teacher"):
        sdk.train(*given)


def test_a_teacher_that_would_teach_nothing_or_does_not_answer_is_an_error(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    words = [f"Tell me of {item}." for item in PRICES]
    given: Any = ([price], words, asks_for_prices, tiny_model_dir, tmp_path / "run")
    options = {"limits": SHORT, "probes.tasks": 0, "evaluation.validation": 0}
    for option, value, shown in (("find_demonstrations", False, "false"), ("max_steps", 0, "0")):
        why = rf"teacher does nothing while warm_start\.{option} is {shown}"
        with pytest.raises(sdk.ConfigError, match=why):
            sdk.train(*given, {**options, f"warm_start.{option}": value}, teacher=Teaching())
    absent, heard = EndpointAgent("http://127.0.0.1:9/v1", "large-1", backoff_s=0.0), Heard()
    with pytest.raises(PolicyFailure, match=r"the teacher answered in none of 8 tries, the last: .*127\.0\.0\.1:9"):
        sdk.train(*given, options, teacher=absent, progress=heard)
    assert not [line for line in heard.lines if line.startswith(("loading the model", "untrained"))]


def test_where_nothing_is_found_the_teacher_is_named_and_the_run_goes_on_without(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    heard = Heard()
    options = {"grpo.max_steps": 1, "limits": SHORT, "evaluation.validation": 0, **FEW, "probes.tasks": 0}
    words = [f"Tell me of {item}." for item in PRICES]
    run = sdk.train([price], words, lambda _: False, tiny_model_dir, tmp_path / "run", options, progress=heard)
    assert list(run.report.conditions) == ["untrained", "after GRPO"]
    assert "no demonstration was found: the model learns from its own attempts alone" in "\n".join(heard.lines)
    assert "--teacher URL#NAME" in "\n".join(heard.lines)
    with pytest.raises(sdk.ConfigError, match=r"grpo\.max_steps is 0 and there is no warm start"):
        sdk.train([price], words, lambda _: False, tiny_model_dir, tmp_path / "none", {**options, "grpo.max_steps": 0})
    off = {**options, "warm_start.find_demonstrations": False}
    silent_run = Heard()
    sdk.train([price], words, lambda _: False, tiny_model_dir, tmp_path / "off", off, progress=silent_run)
    assert any("there is no warm start" in line for line in silent_run.lines)
    assert not any("searched" in line for line in silent_run.lines)


def test_a_model_that_solves_tasks_by_itself_is_given_no_demonstrations(tiny_model_dir: Path, tmp_path: Path) -> None:
    heard = Heard()
    options = {"grpo.max_steps": 1, "limits": SHORT, "evaluation.validation": 0, **FEW, "probes.tasks": 0}
    words = [f"Tell me of {item}." for item in PRICES]
    run = sdk.train([price], words, lambda _: True, tiny_model_dir, tmp_path / "run", options, progress=heard)
    assert list(run.report.conditions) == ["untrained", "after GRPO"]
    assert "no demonstration is searched: the model solves some of the tasks by itself" in heard.lines
