"""The multi-turn part of BFCL as records: what users say, how the world begins, and the gold calls.

Everything comes out of the package `bfcl-eval`; nothing of it is copied here.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
PACKAGE = "bfcl_eval"
_SOURCES = f"{PACKAGE}.eval_checker.multi_turn_eval.func_source_code"
_MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
API_NAMES = tuple(_MODULES)

Call = dict[str, Any]
"""`{"name": str, "arguments": dict}`"""


@dataclass(frozen=True)
class Entry:
    """One task of the data set."""

    id: str
    category: str
    apis: tuple[str, ...]
    config: dict[str, Any]
    """API -> how it begins."""
    questions: tuple[str, ...]
    """What the user says, turn by turn; empty where functions that were held out are shown instead."""
    gold: tuple[tuple[Call, ...], ...]
    """The gold calls of each turn."""
    gold_texts: tuple[tuple[str, ...], ...]
    """The same as the data set writes them."""
    held_out: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Turn -> the functions that are not shown before it."""

    @property
    def is_long(self) -> bool:
        return self.category == "long_context"


@cache
def entries(category: str) -> tuple[Entry, ...]:
    """The 200 entries of a category, in the order of the data set. Raises `ValueError` for an unknown category."""
    if category not in CATEGORIES:
        raise ValueError(f"there is no category {category!r}; choose from {', '.join(CATEGORIES)}")
    answers = {one["id"]: one["ground_truth"] for one in _lines(f"possible_answer/BFCL_v4_multi_turn_{category}.json")}
    return tuple(_entry(category, row, answers[row["id"]]) for row in _lines(f"BFCL_v4_multi_turn_{category}.json"))


@cache
def all_entries() -> dict[str, Entry]:
    """Every entry by its id."""
    return {entry.id: entry for category in CATEGORIES for entry in entries(category)}


@cache
def api_class(name: str) -> type:
    """One of the eight simulated APIs."""
    found: type = getattr(import_module(f"{_SOURCES}.{_MODULES[name]}"), name)
    return found


@cache
def function_docs(api: str) -> tuple[dict[str, Any], ...]:
    """The descriptions of an API's functions, as the data set gives them to models."""
    return tuple(_lines(f"multi_turn_func_doc/{_MODULES[api]}.json"))


def parse_call(text: str, apis: Sequence[str]) -> Call:
    """A gold call as a record. The text is read as Python and never run: a name and literal arguments, nothing else.

    Raises `ValueError` for any other text.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no call: {error}") from error
    if (
        not isinstance(tree, ast.Call)
        or not isinstance(tree.func, ast.Name)
        or any(k.arg is None for k in tree.keywords)
    ):
        raise ValueError(f"{text!r} is no call of a function by its name")
    names = _parameters(tree.func.id, apis)
    if len(tree.args) > len(names):
        raise ValueError(f"{text!r} has more arguments than {tree.func.id} takes")
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, tree.args, strict=False)}
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
    return {"name": tree.func.id, "arguments": arguments}


def _parameters(function: str, apis: Sequence[str]) -> list[str]:
    for api in apis:
        if hasattr(api_class(api), function):
            return list(inspect.signature(getattr(api_class(api), function)).parameters)[1:]
    raise ValueError(f"no function {function!r} in {', '.join(apis)}")


def _entry(category: str, row: dict[str, Any], gold: list[list[str]]) -> Entry:
    apis = tuple(row["involved_classes"])
    return Entry(
        id=row["id"],
        category=category,
        apis=apis,
        config=row["initial_config"],
        questions=tuple("\n\n".join(message["content"] for message in turn) for turn in row["question"]),
        gold=tuple(tuple(parse_call(text, apis) for text in turn) for turn in gold),
        gold_texts=tuple(map(tuple, gold)),
        held_out={int(turn): tuple(names) for turn, names in row.get("missed_function", {}).items()},
    )


def _lines(name: str) -> Iterator[dict[str, Any]]:
    try:
        text = files(PACKAGE).joinpath("data", name).read_text(encoding="utf-8")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "bfcl-eval is not installed: python -m pip install --no-deps -r examples/bfcl/requirements.txt"
        ) from error
    return (json.loads(line) for line in text.splitlines() if line.strip())
