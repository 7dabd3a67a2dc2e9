from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from generator.build import INTENTS, WORLDS, build_tasks

from sandboxes.helpdesk import Helpdesk, tasks
from sdk.records import CallRecord, Message, Rollout, Task
from sdk.verifiers.answers import answer_match
from sdk.verifiers.calls import calls_match
from sdk.verifiers.states import final_state

ROOT = Path(__file__).parents[2]
ALL = tasks(("1", "2", "3", "4", "5"))
TRAIN = [task for task in ALL if task["tags"]["split"] == "train"]
HELDOUT = [task for task in ALL if task["tags"]["split"] == "heldout"]
DESK = Helpdesk()


def _count(split: str, *tiers: str) -> int:
    return len(tasks(tiers, split))  # type: ignore[arg-type]


def _replay(task: dict[str, Any]) -> Rollout:
    """The demonstration, played in the task's world."""
    return _replay_by_id(task["id"])


@cache
def _replay_by_id(task_id: str) -> Rollout:
    return _play(Task.model_validate(next(task for task in ALL if task["id"] == task_id)))


def _play(record: Task, change: tuple[int, str, str] | None = None) -> Rollout:
    """`change`: the place of a call, an argument of it and what that is instead."""
    world = DESK.prepare(record.setup)
    before, calls = dict(world.state()), []
    for turn, message in enumerate(record.demonstration):
        for call in message.tool_calls:
            if change is not None and change[0] == len(calls):
                call = call.model_copy(update={"arguments": {**call.arguments, change[1]: change[2]}})
            calls.append(CallRecord(turn=turn, call=call, result=world.call_now(call.name, call.arguments)))
    answer = record.demonstration[-1].content
    after = dict(world.state())
    world.close()
    return Rollout(id="r", task=record, calls=calls, answer=answer, initial_state=before, final_state=after)


def test_there_are_enough_tasks_in_every_tier_and_on_both_sides() -> None:
    assert len(ALL) >= 300
    assert _count("heldout", "1", "2") >= 120
    assert min(_count("heldout", tier) for tier in "345") >= 20
    assert min(_count("train", tier) for tier in "12345") >= 40


def test_the_first_tiers_have_reads_and_acts_of_at_least_four_kinds() -> None:
    for tier in "12":
        kinds = {task["tags"]["intent"]: bool(task["expected"]["changes"]) for task in tasks((tier,))}
        assert len(kinds) >= 4
        assert {*kinds.values()} == {True, False}


def test_there_are_requests_that_the_rules_forbid() -> None:
    refusals = Counter(task["tags"]["tier"] for task in ALL if task["tags"]["intent"].endswith("refused"))
    assert min(refusals[tier] for tier in "2345") >= 10
    for task in ALL:
        if task["tags"]["intent"].endswith("refused"):
            assert task["expected"]["changes"] == []


def test_every_intent_has_six_wordings_to_train_on_and_three_held_out() -> None:
    for intent in INTENTS:
        train, heldout = intent.phrasings("train"), intent.phrasings("heldout")
        if intent.facet == "pair":
            assert max(len(train), len(heldout)) >= 3
        else:
            assert len({*train}) >= 6, intent.name
            assert len({*heldout}) >= 3, intent.name


def test_the_tasks_are_records_with_unique_ids() -> None:
    records = [Task.model_validate(task) for task in ALL]
    assert len({record.id for record in records}) == len(records)
    assert all(record.family and isinstance(record.prompt, str) for record in records)
    assert all(all(isinstance(m, Message) for m in record.demonstration) for record in records)
    assert len({(record.prompt, record.setup["seed"]) for record in records}) == len(records)


def _spelled(asked: Any) -> Any:
    """The one value that a gold call names, however a right call may spell it."""
    if not isinstance(asked, dict):
        return asked
    (text,) = asked.values()
    return text.removeprefix(r"\s*").removesuffix(r"\s*")


@pytest.mark.parametrize("tier", "12345")
def test_every_demonstration_replays_to_exactly_the_gold_outcome(tier: str) -> None:
    state, answer, calls = final_state(), answer_match(), calls_match(order="exact")
    for task in tasks((tier,)):
        rollout = _replay(task)
        assert DESK.diff(rollout.initial_state or {}, rollout.final_state or {}) == task["expected"]["changes"]
        assert len(rollout.calls) == int(tier)
        done = [record.call for record in rollout.calls if not record.result.is_error]
        gold = [
            (call["name"], {name: _spelled(asked) for name, asked in call["arguments"].items()})
            for call in task["expected"]["calls"]
        ]
        assert [(call.name, call.arguments) for call in done] == gold
        for verdict in (state.verify(rollout), answer.verify(rollout), calls.verify(rollout)):
            assert verdict.score == 1, (task["id"], verdict.explanation)


SPELLINGS = {"spaces": " {} ".format, "capitals": str.upper, "no capitals": str.lower}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_call_is_right_however_it_is_spelled_where_it_does_the_same_and_only_there(spelling: str) -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    for task in {task["tags"]["intent"]: task for task in ALL}.values():
        right = _replay(task)
        for place, record in enumerate(right.calls):
            for name, value in record.call.arguments.items():
                other = SPELLINGS[spelling](value) if isinstance(value, str) else value
                if record.result.is_error or other == value:
                    continue
                played = _play(Task.model_validate(task), (place, name, other))
                same = played.final_state == right.final_state and all(
                    one.result.structured == other.result.structured
                    for one, other in zip(right.calls, played.calls, strict=True)
                )
                assert calls_match().verify(played).score == same, (task["id"], name, other)
                seen[name, same] += 1
    found = {"query", "product", "topic"} | ({"address"} if spelling == "spaces" else set())
    assert {name for name, same in seen if same} == found - (
        {"product", "topic"} if spelling == "no capitals" else set()
    )


def test_only_the_last_call_of_a_forbidden_request_is_refused() -> None:
    for task in ALL:
        errors = [record.result.is_error for record in _replay(task).calls]
        if task["tags"]["intent"].endswith("refused") and "reorder" not in task["tags"]["intent"]:
            assert errors == [False] * (len(errors) - 1) + [True], task["id"]
        else:
            assert not any(errors), task["id"]


def test_a_policy_that_does_nothing_is_never_right_where_something_must_change() -> None:
    for task in ALL:
        if task["expected"]["changes"]:
            rollout = _replay(task)
            idle = rollout.model_copy(update={"calls": [], "final_state": rollout.initial_state})
            assert final_state().verify(idle).score == 0


def test_every_value_that_a_call_needs_is_in_the_request_or_in_an_earlier_result() -> None:
    for task in ALL:
        known = task["prompt"].lower()
        for record in _replay(task).calls:
            for value in record.call.arguments.values():
                assert re.search(rf"(?<!\w){re.escape(str(value).lower())}(?!\w)", known), (task["id"], value)
            known += " " + record.result.text.lower()


def test_what_a_read_answers_is_not_in_the_request() -> None:
    reads = [task for task in ALL if not task["expected"]["changes"] and isinstance(task["expected"]["answer"], list)]
    assert len(reads) > 300
    for task in reads:
        for form in task["expected"]["answer"]:
            assert not re.search(rf"(?<![\w.]){re.escape(form)}(?![\w.])", task["prompt"].lower()), task["id"]


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_no_constant_answer_is_right_for_much_more_than_a_third_of_an_intent(split: str) -> None:
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for task in ALL:
        if task["tags"]["split"] == split:
            answers[task["tags"]["intent"]][json.dumps(task["expected"]["answer"])] += 1
    assert len(answers) > 20
    for intent, counts in answers.items():
        assert max(counts.values()) <= 0.35 * counts.total(), (intent, counts)


def _entities(task: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every name of the world that the request, the calls or the answer touch."""
    text = json.dumps([task["prompt"], task["expected"]["calls"], task["demonstration"][-1]["content"]])
    for kind, pattern in (("order", r"\b\d{4}\b"), ("customer", r"\bC\d\d\b"), ("e-mail", r"[\w.]+@[\w.]+\w")):
        yield from ((kind, found) for found in re.findall(pattern, text))
    state = _state(task)
    words = {*re.findall(r"\w+", text)}
    yield from (("product", name) for name in state["products"] if name in words)
    yield from (("city", row["city"]) for row in state["customers"].values() if row["city"] in words)
    yield from (("name", row["name"]) for row in state["customers"].values() if row["name"] in text)
    yield "seed", str(task["setup"]["seed"])


def _state(task: dict[str, Any]) -> dict[str, Any]:
    return _replay(task).initial_state or {}


@pytest.fixture(scope="module")
def entities() -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {"train": set(), "heldout": set()}
    for task in ALL:
        found[task["tags"]["split"]] |= {*_entities(task)}
    return found


@pytest.mark.parametrize("kind", ["order", "customer", "e-mail", "name", "product", "city", "seed"])
def test_held_out_tasks_share_no_entity_with_training(kind: str, entities: dict[str, set[tuple[str, str]]]) -> None:
    sides = {split: {pair for pair in found if pair[0] == kind} for split, found in entities.items()}
    assert sides["train"]
    assert sides["heldout"]
    assert not sides["train"] & sides["heldout"]


def _worded(task: dict[str, Any]) -> str:
    """The request with all its entities masked."""
    text = re.sub(
        r"[\w.]+@[\w.]+\w|\b\d+ [A-Z]\w+ [A-Z]\w+|\b[A-Z]\w+ [A-Z]\w+(?=[ ?.'])|\bC?\d+\b", "#", task["prompt"]
    )
    names = {*_state(task)["products"], "damaged", "late", "faulty", "returns", "shipping", "warranty"}
    return re.sub(r"\w+", lambda word: "#" if word[0] in names else word[0], text)


def test_held_out_tasks_share_no_wording_with_training() -> None:
    train, heldout = {_worded(task) for task in TRAIN}, {_worded(task) for task in HELDOUT}
    assert len(train) > 150
    assert len(heldout) > 80
    assert not train & heldout
    for task in ALL:
        assert "#" in _worded(task), "the mask finds the entities"


def test_no_family_is_on_both_sides() -> None:
    assert not {task["family"] for task in TRAIN} & {task["family"] for task in HELDOUT}


def test_held_out_tasks_share_no_combination_with_training() -> None:
    train, heldout = ({task["tags"]["combination"] for task in side} for side in (TRAIN, HELDOUT))
    assert not train & heldout


def test_some_held_out_combinations_are_new_though_their_parts_are_known() -> None:
    held = {intent.name: intent.held_facets for intent in INTENTS if intent.facet == "status"}
    statuses = {
        name: {t["tags"]["combination"].split(" x ")[1] for t in TRAIN if t["tags"]["intent"] == name} for name in held
    }
    assert all(not {*facets} & statuses[name] for name, facets in held.items())
    assert {status for facets in held.values() for status in facets} <= set().union(*statuses.values())
    pairs = {split: {i.name for i in INTENTS if i.facet == "pair" and i.phrasings(split)} for split in WORLDS}
    assert pairs["heldout"]
    assert not pairs["train"] & pairs["heldout"]
    known = {name for pair in pairs["train"] for name in pair.split("+")}
    assert {name for pair in pairs["heldout"] for name in pair.split("+")} <= known


def test_the_tasks_are_always_the_same_also_in_another_process(tmp_path: Path) -> None:
    assert build_tasks() == ALL
    written = tmp_path / "tasks.jsonl"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "generator", str(written)]
    subprocess.run(command, check=True, cwd=ROOT / "examples/helpdesk", env=environment)
    assert [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()] == ALL


def test_the_example_file_is_up_to_date() -> None:
    lines = (ROOT / "examples/helpdesk/tasks.jsonl").read_text(encoding="utf-8").splitlines()
    fix = "run: cd examples/helpdesk && python -m generator tasks.jsonl"
    assert [json.loads(line) for line in lines] == ALL, fix


def test_the_loader_filters_and_hands_out_copies() -> None:
    assert {task["tags"]["tier"] for task in tasks()} == {"1", "2"}
    assert {task["tags"]["split"] for task in tasks(split="heldout")} == {"heldout"}
    tasks(("1",))[0]["prompt"] = "spoiled"
    assert tasks(("1",))[0]["prompt"] != "spoiled"
    with pytest.raises(ValueError, match="'6'"):
        tasks(("6",))
    with pytest.raises(ValueError, match="'12'"):
        tasks("12")
    with pytest.raises(ValueError, match="'test'"):
        tasks(split="test")  # type: ignore[arg-type]


def test_the_tools_and_their_results_are_short_to_read() -> None:
    shown = [f"- {t.name}({', '.join(t.input_schema['properties'])}): {t.description}" for t in DESK.tools]
    assert len("\n".join(shown)) < 650  # about 170 tokens of a small model
    lengths = defaultdict(int)
    for task in ALL:
        for record in _replay(task).calls:
            lengths[record.call.name] = max(lengths[record.call.name], len(record.result.text))
    assert lengths["list_orders"] <= 250
    assert max(length for name, length in lengths.items() if name != "list_orders") <= 170
