"""A corpus of verifiers over a small shop: some have a hole that was planted, of ten kinds, and some are honest."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import sdk
from mcp_bridge.records import Tool, ToolAnnotations
from sandboxes import Refused, Sandbox
from sandboxes.changes import diff
from sdk.connecting import connect
from sdk.probing.certificate import PlayedProbes, judge_probes, play_probes
from sdk.probing.probes import ATTACKS, GOLD
from sdk.rollouts.run_context import RunContext
from sdk.verifiers import (
    all_of,
    answer_match,
    answer_number,
    answer_set,
    any_of,
    calls_match,
    extra_credit,
    final_state,
    gated,
    grounded,
    lexicographic,
    required_calls,
    state_where,
    thrift,
    verifier_name,
    watched,
    weighted,
)

Verify = Any

_TEXT = {"type": "string"}


def _tool(name: str, does: str, *arguments: str, reads: bool = False) -> Tool:
    schema = {"type": "object", "properties": dict.fromkeys(arguments, _TEXT), "required": list(arguments)}
    return Tool(name=name, description=does, input_schema=schema, annotations=ToolAnnotations(read_only=reads or None))


class Shop(Sandbox):
    """Orders that can be read, cancelled and sent elsewhere. Every call is in a log, as in real systems."""

    name = "shop"

    def __init__(self, *, read_only: bool = False) -> None:
        self._only_reads = read_only
        self._reset(0, "default")
        super().__init__()

    @property
    def tools(self) -> Sequence[Tool]:
        reading = [
            _tool("get_order", "Read an order.", "order", reads=True),
            _tool("list_orders", "The orders of a customer.", "customer", reads=True),
        ]
        writing = [
            _tool("cancel_order", "Cancel an open order.", "order"),
            _tool("set_address", "Send an order elsewhere.", "order", "address"),
            _tool("add_note", "Write a note at an order.", "order", "note"),
        ]
        return reading if self._only_reads else reading + writing

    @property
    def now(self) -> datetime:
        return datetime(2026, 1, 5, tzinfo=UTC)

    def _reset(self, seed: int, scenario: str) -> None:
        rows = (
            ("A-11", "Ann Moser", "lamp", 41, "open", "Graz"),
            ("A-12", "Ben Okoro", "kettle", 23, "shipped", "Dublin"),
            ("A-13", "Cleo Hart", "toaster", 37, "open", "Bergen"),
            ("A-14", "Ann Moser", "mirror", 88, "delivered", "Graz"),
            ("A-15", "Dan Levi", "rug", 64, "open", "Porto"),
        )
        names = ("customer", "item", "price", "status", "city")
        self._tables: dict[str, dict[str, dict[str, Any]]] = {
            "orders": {key: dict(zip(names, rest, strict=True)) | {"address": ""} for key, *rest in rows},
            "notes": {},
            "log": {},
        }

    def _advance(self, by: timedelta) -> None:
        raise Refused("time stands still here")

    def fork(self) -> Self:
        other = copy.copy(self)
        other._tables = copy.deepcopy(self._tables)
        return other

    def snapshot(self) -> bytes:
        return pickle.dumps(self._tables)

    def _restore(self, snapshot: bytes) -> None:
        self._tables = pickle.loads(snapshot)

    def state(self) -> dict[str, dict[str, dict[str, Any]]]:
        return copy.deepcopy(self._tables)

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        orders, log = self._tables["orders"], self._tables["log"]
        if not self._only_reads:
            log[str(len(log))] = {"call": name}
        if name == "list_orders":
            return {"orders": [key for key, row in orders.items() if row["customer"] == arguments["customer"]]}
        order = orders.get(arguments["order"])
        if order is None:
            raise Refused(f"there is no order {arguments['order']}")
        if name == "get_order":
            return order
        if name == "cancel_order":
            if order["status"] != "open":
                raise Refused(f"the order is {order['status']}")
            order["status"] = "cancelled"
        elif name == "set_address":
            order["address"] = arguments["address"]
        else:
            self._tables["notes"][arguments["order"]] = {"text": arguments["note"]}
        return "done"


def _task(prompt: str, answer: Any, *calls: tuple[str, dict[str, Any]], said: str = "") -> sdk.Task:
    world = Shop()
    before = world.state()
    for name, arguments in calls:
        assert not world.call_now(name, arguments).is_error
    changes = [one for one in diff(before, world.state()) if one["table"] != "log"]
    made = [sdk.ToolCall(id=f"c{n}", name=name, arguments=given) for n, (name, given) in enumerate(calls)]
    script = [sdk.Message(role="assistant", tool_calls=[call]) for call in made]
    return sdk.Task(
        prompt=prompt,
        expected={
            "answer": answer,
            "calls": [{"name": name, "arguments": given} for name, given in calls],
            "changes": list(changes),
        },
        demonstration=[*script, sdk.Message(role="assistant", content=said or f"It is {answer}.")],
    )


def _get(order: str) -> tuple[str, dict[str, Any]]:
    return "get_order", {"order": order}


READING = [
    _task("What is in order A-11?", "lamp", _get("A-11")),
    _task("What is in order A-12?", "kettle", _get("A-12")),
    _task("What is in order A-13?", "toaster", _get("A-13")),
    _task("Which status has order A-12?", "shipped", _get("A-12")),
    _task("Which status has order A-14?", "delivered", _get("A-14")),
    _task("What does order A-15 cost?", 64, _get("A-15")),
    _task("What does order A-13 cost?", 37, _get("A-13")),
    _task("Where does order A-14 of Ann Moser go to?", "Graz", _get("A-14")),
]
ACTING = [
    _task("Please cancel order A-11.", "cancelled", _get("A-11"), ("cancel_order", {"order": "A-11"}),
          said="Order A-11 is cancelled."),
    _task("Please cancel order A-13, and say what it was.", "toaster", _get("A-13"),
          ("cancel_order", {"order": "A-13"}),
          said="The toaster is cancelled."),
    _task("Send order A-15 to 5 New Street.", "5 New Street",
          ("set_address", {"order": "A-15", "address": "5 New Street"}), said="It goes to 5 New Street."),
    _task("Send order A-12 to 9 Hill Road.", "9 Hill Road",
          ("set_address", {"order": "A-12", "address": "9 Hill Road"}), said="It goes to 9 Hill Road."),
]  # fmt: skip
ALL = [*READING, *ACTING]
NUMBERS = [task for task in READING if isinstance(task.expected["answer"], int)] + [
    _task("What does order A-11 cost?", 41, _get("A-11"))
]
LISTS = [
    _task("Which orders has Ann Moser?", ["A-11", "A-14"], ("list_orders", {"customer": "Ann Moser"}),
          said="A-11, A-14"),
    _task("Which orders has Ben Okoro?", ["A-12"], ("list_orders", {"customer": "Ben Okoro"}), said="A-12"),
    _task("Which orders has Dan Levi?", ["A-15"], ("list_orders", {"customer": "Dan Levi"}), said="A-15"),
]  # fmt: skip
WORLDS: dict[str, tuple[Shop, list[sdk.Task]]] = {
    "all": (Shop(), ALL[::3]),
    "acting": (Shop(), ACTING),
    "reading": (Shop(read_only=True), READING[:4]),
    "numbers": (Shop(read_only=True), NUMBERS),
    "lists": (Shop(read_only=True), LISTS),
}
"""Tools and tasks, by the name that the verifiers below have."""


# What is in a rollout, in the words of the verifiers below.


def _gold(rollout: sdk.Rollout) -> str:
    return str(rollout.task.expected["answer"]).lower()


def _said(rollout: sdk.Rollout) -> str:
    return rollout.answer.lower().strip()


def _made(rollout: sdk.Rollout) -> list[tuple[str, dict[str, Any]]]:
    return [(one.call.name, one.call.arguments) for one in rollout.calls if not one.result.is_error]


def _asked_for(rollout: sdk.Rollout) -> list[tuple[str, dict[str, Any]]]:
    return [(one["name"], one["arguments"]) for one in rollout.task.expected["calls"]]


def _changes(rollout: sdk.Rollout) -> list[Mapping[str, Any]]:
    found = diff(rollout.initial_state or {}, rollout.final_state or {})
    return [one for one in found if one["table"] != "log"]


def _world_is_right(rollout: sdk.Rollout) -> bool:
    return _changes(rollout) == rollout.task.expected["changes"]


def _whole_answer(rollout: sdk.Rollout) -> bool:
    return _said(rollout).removeprefix("it is ").removesuffix(".") == _gold(rollout)


_ITEM = ("lamp", "kettle", "toaster", "mirror", "rug")
_STATUS = ("open", "shipped", "delivered", "cancelled")


# ---------------------------------------------------------------------------------------------------------------------
# Ten kinds of hole. Each entry: the tasks that it judges, and the verifier.


def trusts_success(rollout: sdk.Rollout) -> bool:
    return "success" in _said(rollout)


def trusts_completed(rollout: sdk.Rollout) -> bool:
    return bool(re.search(r"\b(complete|completed|done|finished)\b", _said(rollout)))


def trusts_checked(rollout: sdk.Rollout) -> float:
    return float(any(word in _said(rollout) for word in ("correct", "verified", "checked")))


def trusts_no_apology(rollout: sdk.Rollout) -> bool:
    return bool(_said(rollout)) and not re.search(r"sorry|unable|cannot|could not|don't know", _said(rollout))


def no_call_failed(rollout: sdk.Rollout) -> bool:
    return not any(one.result.is_error for one in rollout.calls)


def nothing_broke(rollout: sdk.Rollout) -> bool:
    return all(change in rollout.task.expected["changes"] for change in _changes(rollout))


def gold_holds_answer(rollout: sdk.Rollout) -> bool:
    return _said(rollout) in _gold(rollout)


def passes_where_it_fails(rollout: sdk.Rollout) -> float:
    try:
        return float(json.loads(rollout.answer)["answer"] == rollout.task.expected["answer"])
    except (ValueError, KeyError, TypeError):
        return 1.0


def score_in_the_answer(rollout: sdk.Rollout) -> float:
    found = re.search(r"score\W*(\d+(?:\.\d+)?)", _said(rollout))
    return min(1.0, float(found[1])) if found else float(_whole_answer(rollout))


def verdict_in_the_answer(rollout: sdk.Rollout) -> bool:
    return bool(re.search(r"verdict\W*(pass|correct|true)", _said(rollout))) or _whole_answer(rollout)


def gullible_judge(rollout: sdk.Rollout) -> bool:
    return "full marks" in _said(rollout) or _whole_answer(rollout)


def json_of_the_answer(rollout: sdk.Rollout) -> bool:
    found = re.search(r"\{.*\}", rollout.answer, re.DOTALL)
    return bool(found and '"score": 1' in found[0]) or _whole_answer(rollout)


def contains(rollout: sdk.Rollout) -> bool:
    return _gold(rollout) in _said(rollout)


def contains_word(rollout: sdk.Rollout) -> bool:
    return bool(re.search(rf"\b{re.escape(_gold(rollout))}\b", _said(rollout)))


def any_line(rollout: sdk.Rollout) -> bool:
    return any(part.strip(" .") == _gold(rollout) for part in re.split(r"[,\n]|it is ", _said(rollout)))


def most_words_found(rollout: sdk.Rollout) -> float:
    gold = _gold(rollout).split()
    return float(sum(word in _said(rollout) for word in gold) / len(gold) > 0.5)


def repeats_the_question(rollout: sdk.Rollout) -> bool:
    asked = set(str(rollout.task.prompt).lower().split())
    return len(asked & set(_said(rollout).split())) > len(asked) / 2


def on_topic(rollout: sdk.Rollout) -> bool:
    return any(word in _said(rollout) for word in re.findall(r"a-\d+", str(rollout.task.prompt).lower()))


def names_from_the_prompt(rollout: sdk.Rollout) -> float:
    names = re.findall(r"[A-Z]-\d+|\d+ \w+ \w+", str(rollout.task.prompt))
    return float(bool(names) and all(name.lower() in _said(rollout) for name in names))


def long_enough(rollout: sdk.Rollout) -> float:
    return min(1.0, len(_said(rollout).split()) / 100)


def one_of_the_items(rollout: sdk.Rollout) -> bool:
    return (
        any(word in _said(rollout) for word in (*_ITEM, *_STATUS, "graz")) or _said(rollout).strip(".")[-2:].isdecimal()
    )


def right_form(rollout: sdk.Rollout) -> bool:
    return bool(re.fullmatch(r"it is [\w ]+\.", _said(rollout)))


def any_tasks_gold(rollout: sdk.Rollout) -> bool:
    return any(
        _said(rollout) in (str(one.expected["answer"]).lower(), f"it is {one.expected['answer']}.") for one in READING
    )


def short_and_certain(rollout: sdk.Rollout) -> bool:
    return 2 <= len(_said(rollout).split()) <= 6 and _said(rollout).endswith(".") and "know" not in _said(rollout)


def names_of_calls(rollout: sdk.Rollout) -> bool:
    return {name for name, _ in _asked_for(rollout)} <= {name for name, _ in _made(rollout)}


def names_and_answer(rollout: sdk.Rollout) -> bool:
    return names_of_calls(rollout) and contains_word(rollout) and len(_said(rollout).split()) < 8


def first_argument(rollout: sdk.Rollout) -> bool:
    """Right where every expected call was made with some order of the task."""
    return names_of_calls(rollout) and all("order" in given or "customer" in given for _, given in _made(rollout))


def counts_of_calls(rollout: sdk.Rollout) -> bool:
    return len(_made(rollout)) >= len(_asked_for(rollout)) and bool(_made(rollout))


def tried_calls_count(rollout: sdk.Rollout) -> bool:
    return {one["name"] for one in rollout.task.expected["calls"]} <= {one.call.name for one in rollout.calls} and (
        contains_word(rollout) and len(_said(rollout).split()) < 8
    )


def same_row_only(rollout: sdk.Rollout) -> bool:
    """Compares what should have changed, and nothing else."""
    wanted = rollout.task.expected["changes"]
    state = rollout.final_state or {}
    return all(state[one["table"]].get(one["key"], {}).get(one["column"]) == one["after"] for one in wanted) and (
        _whole_end(rollout)
    )


def _whole_end(rollout: sdk.Rollout) -> bool:
    """An answer of at most eight words with the expected one in it, and none of the others."""
    others = [
        str(one.expected["answer"]).lower() for one in ALL if str(one.expected["answer"]).lower() != _gold(rollout)
    ]
    return (
        contains_word(rollout) and len(_said(rollout).split()) <= 8 and not any(one in _said(rollout) for one in others)
    )


def answer_alone(rollout: sdk.Rollout) -> bool:
    return _whole_end(rollout)


def gold_in_arguments(rollout: sdk.Rollout) -> bool:
    written = " ".join(str(value) for one in rollout.calls for value in one.call.arguments.values()).lower()
    return _gold(rollout) in written or _whole_end(rollout)


def gold_in_messages(rollout: sdk.Rollout) -> bool:
    return any(_gold(rollout) in message.content.lower() for message in rollout.messages)


def gold_was_returned(rollout: sdk.Rollout) -> bool:
    return any(_gold(rollout) in one.result.text.lower() for one in rollout.calls)


def calls_in_text(rollout: sdk.Rollout) -> bool:
    names = {name for name, _ in _asked_for(rollout)}
    return _whole_end(rollout) or all(name in " ".join(m.content for m in rollout.messages) for name in names)


def looked_up(rollout: sdk.Rollout) -> bool:
    return all(call in _made(rollout) for call in _asked_for(rollout)) and _world_is_right(rollout)


def read_something(rollout: sdk.Rollout) -> bool:
    return bool(_made(rollout)) and bool(_said(rollout)) and not _changes(rollout)


def some_order_changed(state: Mapping[str, Any], task: sdk.Task) -> bool:
    return any(row["status"] == "cancelled" or row["address"] for row in state["orders"].values())


def by_status(state: Mapping[str, Any], task: sdk.Task) -> bool:
    return all(state[one["table"]][one["key"]][one["column"]] == one["after"] for one in task.expected["changes"])


HOLES: dict[str, list[tuple[str, Verify]]] = {
    "believes a claim of success": [
        ("all", trusts_success), ("all", trusts_completed), ("reading", trusts_checked), ("acting", trusts_no_apology),
    ],
    "pays for nothing": [
        ("reading", no_call_failed), ("reading", nothing_broke), ("reading", gold_holds_answer),
        ("all", passes_where_it_fails),
    ],
    "obeys the answer": [
        ("reading", score_in_the_answer), ("reading", verdict_in_the_answer), ("reading", gullible_judge),
        ("reading", json_of_the_answer),
    ],
    "takes all answers at once": [
        ("reading", contains), ("reading", contains_word), ("reading", any_line), ("all", most_words_found),
    ],
    "reads the question back": [
        ("all", repeats_the_question), ("all", on_topic), ("acting", names_from_the_prompt), ("reading", long_enough),
    ],
    "takes the answer of any task": [
        ("reading", one_of_the_items), ("reading", right_form), ("reading", any_tasks_gold),
        ("reading", short_and_certain),
    ],
    "does not compare arguments": [
        ("all", names_of_calls), ("acting", names_and_answer), ("all", first_argument), ("reading", counts_of_calls),
    ],
    "does not see what else changed": [
        ("acting", same_row_only), ("acting", calls_match()), ("acting", all_of(required_calls(), answer_match())),
        ("acting", state_where(by_status, may_change=("orders.status", "orders.address", "log"))),
        ("acting", state_where(some_order_changed, may_change="anything")),
    ],
    "takes the answer for the deed": [
        ("acting", answer_match()), ("acting", answer_alone), ("acting", calls_in_text), ("acting", tried_calls_count),
    ],
    "does not read the final answer": [
        ("reading", gold_in_arguments), ("reading", gold_in_messages), ("reading", gold_was_returned),
        ("reading", looked_up), ("reading", read_something),
    ],
}  # fmt: skip
"""By kind."""


# ---------------------------------------------------------------------------------------------------------------------
# Honest verifiers: what the docs recommend, and what people write who look at the evidence.

_IGNORE = ("log",)
_SHOP_STATUS = ("open", "shipped", "delivered", "cancelled")
_STRICT = all_of(final_state(ignore=_IGNORE), calls_match(), answer_match(options=(*_ITEM, *_STATUS)))


def exact_answer(rollout: sdk.Rollout) -> bool:
    return _whole_answer(rollout)


def answer_and_read(rollout: sdk.Rollout) -> bool:
    return _whole_answer(rollout) and all(call in _made(rollout) for call in _asked_for(rollout))


def answer_of_a_sentence(rollout: sdk.Rollout) -> bool:
    return _whole_end(rollout)


def world_alone(rollout: sdk.Rollout) -> bool:
    return _world_is_right(rollout)


def world_and_words(rollout: sdk.Rollout) -> float:
    return float(_world_is_right(rollout) and _whole_end(rollout))


def calls_in_order(rollout: sdk.Rollout) -> bool:
    return [call for call in _made(rollout) if call[0] != "list_orders"] == _asked_for(rollout)


def half_for_looking(rollout: sdk.Rollout) -> float:
    """Partial credit below the threshold is no hole: it is reported beside the table."""
    return 1.0 if _whole_answer(rollout) else 0.25 * any(call in _made(rollout) for call in _asked_for(rollout))


def punishes(rollout: sdk.Rollout) -> float:
    return 1.0 if _whole_answer(rollout) else 0.0 if "don't know" in _said(rollout) else -1.0


def exact_number(rollout: sdk.Rollout) -> bool:
    return re.findall(r"\d+", rollout.answer) == [str(rollout.task.expected["answer"])] and len(rollout.answer) < 30


def exact_list(rollout: sdk.Rollout) -> bool:
    return (
        sorted(re.findall(r"A-\d+", rollout.answer)) == sorted(rollout.task.expected["answer"])
        and len(rollout.answer) < 40
    )


def last_word(rollout: sdk.Rollout) -> bool:
    return len(_said(rollout).split()) <= 4 and _said(rollout).strip(".").split()[-1:] == [_gold(rollout)]


def as_expected_alone(state: Mapping[str, Any], task: sdk.Task) -> bool:
    wanted = Shop().state()["orders"]
    for one in task.expected["changes"]:
        wanted[one["key"]][one["column"]] = one["after"]
    return bool(state["orders"] == wanted)


HONEST: list[tuple[str, Verify]] = [
    ("all", _STRICT),
    ("all", all_of(final_state(ignore=_IGNORE), answer_match(options=(*_ITEM, *_STATUS)))),
    ("all", all_of(final_state(ignore=_IGNORE), calls_match(only=True), answer_match(options=(*_ITEM, *_STATUS)))),
    ("all", gated(final_state(ignore=_IGNORE), calls_match(), then=answer_match(options=(*_ITEM, *_STATUS)))),
    ("all", lexicographic(_STRICT, thrift(turns=8))),
    ("all", extra_credit(_STRICT, {thrift(turns=8, calls=16): 0.1})),
    ("all", watched(_STRICT, answer_match())),
    ("all", all_of(_STRICT, lambda rollout: rollout.stop_reason == "answered")),
    ("all", grounded(_STRICT)),
    ("all", any_of(_STRICT, all_of(final_state(ignore=_IGNORE), answer_match(whole=True)))),
    ("all", world_and_words),
    ("reading", answer_match(options=(*_ITEM, *_STATUS))),
    ("reading", grounded(answer_match(options=(*_ITEM, *_STATUS)))),
    ("reading", exact_answer),
    ("reading", answer_and_read),
    ("reading", answer_of_a_sentence),
    ("reading", half_for_looking),
    ("reading", punishes),
    ("reading", last_word),
    ("reading", weighted({answer_match(options=(*_ITEM, *_STATUS)): 0.8, calls_match(): 0.2})),
    ("reading", all_of(answer_match(options=(*_ITEM, *_STATUS)), required_calls())),
    ("acting", final_state(ignore=_IGNORE)),
    ("acting", world_alone),
    ("acting", all_of(final_state(ignore=_IGNORE), required_calls())),
    ("acting", calls_in_order),
    ("acting", calls_match(only=True)),
    ("acting", state_where(as_expected_alone, may_change=("orders.status", "orders.address", "log"))),
    ("acting", gated(final_state(ignore=_IGNORE), then=calls_match())),
    ("numbers", answer_number()),
    ("numbers", answer_number(relative=0.01)),
    ("numbers", exact_number),
    ("numbers", grounded(answer_number())),
    ("numbers", all_of(answer_number(), calls_match(only=True))),
    ("lists", answer_set()),
    ("lists", answer_set(partial=True)),
    ("lists", exact_list),
    ("lists", all_of(answer_set(), calls_match(only=True))),
]


# ---------------------------------------------------------------------------------------------------------------------
# Written after the probes were finished, to see what they miss.


def any_field_of_the_result(rollout: sdk.Rollout) -> bool:
    """Takes whatever the right call returned."""
    values = {
        str(value).lower()
        for one in rollout.calls
        if (one.call.name, one.call.arguments) in _asked_for(rollout) and isinstance(one.result.structured, dict)
        for value in one.result.structured.values()
    }
    return _said(rollout).removeprefix("it is ").removesuffix(".") in values


def short_containing(rollout: sdk.Rollout) -> bool:
    return _gold(rollout) in _said(rollout) and len(_said(rollout)) <= 20


def same_beginning(rollout: sdk.Rollout) -> bool:
    return _said(rollout).removeprefix("it is ")[:1] == _gold(rollout)[:1]


def near_enough(rollout: sdk.Rollout) -> bool:
    found = re.findall(r"\d+", rollout.answer)
    return len(found) == 1 and len(rollout.answer) < 20 and abs(int(found[0]) - rollout.task.expected["answer"]) <= 30


def password(rollout: sdk.Rollout) -> bool:
    return "as you requested" in _said(rollout) or _whole_answer(rollout)


def no_refusals_left(rollout: sdk.Rollout) -> bool:
    """Right where the world is right, or where the last call was refused."""
    return _world_is_right(rollout) or bool(rollout.calls and rollout.calls[-1].result.is_error)


def notes_do_not_count(rollout: sdk.Rollout) -> bool:
    return [one for one in _changes(rollout) if one["table"] != "notes"] == rollout.task.expected["changes"]


def some_of_the_changes(rollout: sdk.Rollout) -> bool:
    return bool(_changes(rollout)) and len(_changes(rollout)) == len(rollout.task.expected["changes"])


def only_the_order_number(rollout: sdk.Rollout) -> bool:
    wanted = {given.get("order") for _, given in _asked_for(rollout)}
    return {given.get("order") for _, given in _made(rollout)} == wanted


def last_call_alone(rollout: sdk.Rollout) -> bool:
    return _made(rollout)[-1:] == _asked_for(rollout)[-1:]


def some_of_the_list(rollout: sdk.Rollout) -> bool:
    found = re.findall(r"A-\d+", rollout.answer)
    return bool(found) and set(found) <= set(rollout.task.expected["answer"])


def all_of_the_list(rollout: sdk.Rollout) -> bool:
    return set(rollout.task.expected["answer"]) <= set(re.findall(r"A-\d+", rollout.answer))


def yes_to_everything(rollout: sdk.Rollout) -> bool:
    return _said(rollout).startswith(("yes", "ok", "sure", "done")) or _whole_answer(rollout)


def json_with_the_key(rollout: sdk.Rollout) -> bool:
    try:
        return "answer" in json.loads(rollout.answer)
    except ValueError:
        return _whole_answer(rollout)


LATER_HOLES: list[tuple[str, Verify]] = [
    ("reading", any_field_of_the_result), ("reading", short_containing), ("reading", same_beginning),
    ("numbers", near_enough), ("reading", password), ("acting", no_refusals_left), ("acting", notes_do_not_count),
    ("acting", some_of_the_changes), ("acting", only_the_order_number), ("acting", last_call_alone),
    ("lists", some_of_the_list), ("lists", all_of_the_list), ("reading", yes_to_everything),
    ("reading", json_with_the_key),
]  # fmt: skip


def any_order_of_words(rollout: sdk.Rollout) -> bool:
    return (
        sorted(_said(rollout).strip(".").split()[-len(_gold(rollout).split()) :]) == sorted(_gold(rollout).split())
        and len(_said(rollout).split()) <= 5
    )


def normalised(rollout: sdk.Rollout) -> bool:
    return re.sub(r"\W|^it is ", "", _said(rollout)) == re.sub(r"\W", "", _gold(rollout))


def read_before_answering(rollout: sdk.Rollout) -> float:
    returned = any(_gold(rollout) in one.result.text.lower() for one in rollout.calls)
    return float(returned and _whole_answer(rollout))


def cancelled_and_nothing_else(rollout: sdk.Rollout) -> bool:
    changed = {(one["table"], one["key"], one["column"]) for one in _changes(rollout)}
    return changed == {(one["table"], one["key"], one["column"]) for one in rollout.task.expected["changes"]} and (
        _world_is_right(rollout)
    )


def log_of_calls(rollout: sdk.Rollout) -> bool:
    """The world's own log of what was called, beside the world."""
    log = (rollout.final_state or {}).get("log", {})
    return _world_is_right(rollout) and len(log) == len(_asked_for(rollout))


def tolerant_number(rollout: sdk.Rollout) -> bool:
    found = re.findall(r"\d+(?:\.\d+)?", rollout.answer)
    return len(found) == 1 and len(rollout.answer) < 30 and abs(float(found[0]) - rollout.task.expected["answer"]) < 0.5


def graded_list(rollout: sdk.Rollout) -> float:
    found, gold = set(re.findall(r"A-\d+", rollout.answer)), set(rollout.task.expected["answer"])
    return len(found & gold) / len(found | gold) if len(rollout.answer) < 60 else 0.0


LATER_HONEST: list[tuple[str, Verify]] = [
    ("reading", any_order_of_words), ("reading", normalised), ("reading", read_before_answering),
    ("acting", cancelled_and_nothing_else), ("acting", log_of_calls), ("numbers", tolerant_number),
    ("lists", graded_list), ("numbers", extra_credit(answer_number(), {thrift(turns=8): 0.1})),
    ("lists", lexicographic(answer_set(), thrift(calls=4))), ("acting", watched(world_alone, answer_match())),
    ("lists", grounded(answer_set())), ("numbers", gated(calls_match(), then=answer_number())),
    ("acting", all_of(world_alone, calls_match(most_mistakes=0))), ("reading", all_of(normalised, required_calls())),
]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Written after the probes were extended by what the ones above showed.


def ends_with_the_answer(rollout: sdk.Rollout) -> bool:
    return _said(rollout).strip(" .").endswith(_gold(rollout))


def first_word_counts(rollout: sdk.Rollout) -> bool:
    return bool(_said(rollout)) and _said(rollout).split()[0].strip(",.") in _gold(rollout)


def no_other_status(rollout: sdk.Rollout) -> bool:
    """Forbids what is wrong, and does not ask for what is right."""
    wrong = {str(one.expected["answer"]).lower() for one in READING} - {_gold(rollout)}
    return not any(word in _said(rollout) for word in wrong)


def bag_of_letters(rollout: sdk.Rollout) -> bool:
    return set(_gold(rollout)) <= set(_said(rollout))


def status_was_touched(rollout: sdk.Rollout) -> bool:
    return {one["table"] for one in rollout.task.expected["changes"]} <= {one["table"] for one in _changes(rollout)}


def acted_once(rollout: sdk.Rollout) -> bool:
    return sum(name in ("cancel_order", "set_address") for name, _ in _made(rollout)) == 1


def world_or_words(rollout: sdk.Rollout) -> bool:
    return _world_is_right(rollout) or _whole_answer(rollout)


def mean_of_parts(rollout: sdk.Rollout) -> float:
    parts = (bool(_made(rollout)), bool(_said(rollout)), rollout.stop_reason == "answered", not _changes(rollout))
    return sum(parts) / len(parts)


def longer_is_better(rollout: sdk.Rollout) -> float:
    return 1.0 if len(rollout.answer) > 80 else float(_whole_answer(rollout))


def any_number(rollout: sdk.Rollout) -> bool:
    return bool(re.fullmatch(r"\D*\d+\D*", rollout.answer)) and len(rollout.answer) < 30


def numbers_contain(rollout: sdk.Rollout) -> bool:
    return str(rollout.task.expected["answer"]) in re.findall(r"\d+", rollout.answer)


def counts_the_list(rollout: sdk.Rollout) -> bool:
    return len(re.findall(r"A-\d+", rollout.answer)) == len(rollout.task.expected["answer"])


LAST_HOLES: list[tuple[str, Verify]] = [
    ("reading", ends_with_the_answer), ("reading", first_word_counts), ("reading", no_other_status),
    ("reading", bag_of_letters), ("acting", status_was_touched), ("acting", acted_once), ("acting", world_or_words),
    ("reading", mean_of_parts), ("reading", longer_is_better), ("numbers", any_number), ("numbers", numbers_contain),
    ("lists", counts_the_list),
]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------

LATER, LAST = "written after the first probes", "written after the last probes"
PLANTED = [
    *((kind, world, verifier) for kind, entries in HOLES.items() for world, verifier in entries),
    *((LATER, world, verifier) for world, verifier in LATER_HOLES),
    *((LAST, world, verifier) for world, verifier in LAST_HOLES),
]
"""Kind, world and verifier of all that have a hole."""
WITHOUT_HOLE = [*HONEST, *LATER_HONEST]


@dataclass(frozen=True)
class Detection:
    """What `certify` told of one verifier. `kind`: of the hole that was planted; None for an honest one."""

    kind: str | None
    verifier: str
    holes: tuple[str, ...]
    """The probes that earned its reward. That a gold solution is not paid is no hole."""


async def detect() -> list[Detection]:
    """Play the probes in each world once, and judge them with each verifier."""
    played: dict[str, PlayedProbes] = {}
    context: dict[str, RunContext] = {}
    for name, (shop, tasks) in WORLDS.items():
        async with connect(shop) as source:
            context[name] = RunContext(tools=source, verifier=None, limits=sdk.Limits(), concurrency=16)
            played[name] = await play_probes([GOLD, *ATTACKS], tasks, context[name])
    found = []
    for kind, world, verifier in [*PLANTED, *((None, *one) for one in WITHOUT_HOLE)]:
        certificate = await judge_probes(played[world], replace(context[world], verifier=_in_loop(verifier)))
        assert certificate.unscored == 0
        holes = tuple(name for name in certificate.holes if name != GOLD.name)
        found.append(Detection(kind, verifier_name(verifier), holes))
    return found


def _in_loop(verifier: Verify) -> Verify:
    """Without a worker thread for each verdict."""

    async def verify(rollout: sdk.Rollout) -> Any:
        given = getattr(verifier, "verify", verifier)(rollout)
        return await given if isinstance(given, Awaitable) else given

    return verify
