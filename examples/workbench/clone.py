"""A clone of the benchmark's repository: its tables, its tasks with gold calls, and the calls that it publishes.

Calls are read as literals. Nothing of the clone is run.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sdk

REPOSITORY = "https://github.com/olly-styles/WorkBench"
COMMIT = "42f1b6d"
SYSTEMS = ("email", "calendar", "analytics", "project_management", "customer_relationship_manager")
DIRECTORY = "company_directory"
SEVERAL = "multi_domain"

_PLACES = ("", "data/processed", "data/raw")
_OTHER_NAMES = {"crm": "customer_relationship_manager"}

Call = tuple[str, dict[str, Any]]
"""The name of a tool, without its system, and the arguments."""


@dataclass(frozen=True)
class Query:
    """One task of the benchmark."""

    text: str
    domain: str
    """One of `SYSTEMS`, or `SEVERAL`."""
    systems: tuple[str, ...]
    """Those that the request is about, in the order of `SYSTEMS`."""
    template: str
    wording: str
    """The template as this task words it."""
    gold: tuple[Call, ...]


@dataclass(frozen=True)
class PublishedCalls:
    """What a prompted model called for a task. `verdict` and `side_effects` are the benchmark's own, where known."""

    query: str
    domain: str
    model: str
    tools: str
    """`all`: the prompt had all 27 tools; `domains`: those of the task's systems."""
    calls: tuple[Call, ...]
    error: str
    verdict: bool | None = None
    side_effects: bool | None = None


def table(folder: str | Path, name: str) -> list[dict[str, str | None]]:
    """The rows of a CSV file of the clone; empty cells are None. Raises `ConfigError` where there is no such file."""
    found = next((path for place in _PLACES if (path := Path(folder, place, name)).is_file()), None)
    if found is None:
        raise sdk.ConfigError(
            f"{folder} has no {name}, neither there nor in {' nor in '.join(_PLACES[1:])}; give the folder of a clone: "
            f"git clone {REPOSITORY} && git -C WorkBench checkout {COMMIT}"
        )
    return [{column: cell or None for column, cell in row.items()} for row in _rows(found)]


def addresses(folder: str | Path) -> list[str]:
    """The e-mail addresses of the company directory, whose file has no header."""
    rows = table(folder, "email_addresses.csv")
    return [*rows[0], *(str(cell) for row in rows for cell in row.values())] if rows else []


@cache
def queries(folder: str | Path) -> tuple[Query, ...]:
    """The 690 tasks, system by system."""
    return tuple(
        Query(
            text=row["query"] or "",
            domain=domain,
            systems=_systems(row["domains"] or ""),
            template=row["base_template"] or "",
            wording=row["chosen_template"] or "",
            gold=parse_calls(row["answer"] or "[]"),
        )
        for domain in (*SYSTEMS, SEVERAL)
        for row in table(folder, f"queries_and_answers/{domain}_queries_and_answers.csv")
    )


def published(folder: str | Path) -> Iterator[PublishedCalls]:
    """The published calls of all prompted models.

    From `prompted_models.csv` where the folder has it (one file with the benchmark's verdicts), otherwise from the
    clone's `data/results`, of which the newest file of each model and system counts.
    """
    if Path(folder, "prompted_models.csv").is_file():
        for row in table(folder, "prompted_models.csv"):
            verdicts = {"verdict": row["correct"] == "1", "side_effects": row["side_effects"] == "1"}
            yield _published(row, row["domain"] or "", row["model"] or "", row["tools"] or "", **verdicts)
        return
    newest: dict[tuple[str, str, str], Path] = {}
    for path in sorted(Path(folder, "data", "results").glob("*/*.csv")):
        model, tools, *_ = path.stem.split("_")
        newest[path.parent.name, model, tools] = path
    for (domain, model, tools), path in newest.items():
        for result in _rows(path):
            yield _published(result, domain, model, tools)


def parse_calls(text: str) -> tuple[Call, ...]:
    """The calls in a list of texts such as `email.delete_email.func(email_id="00000017")`.

    A text that is no call of keywords with literal values is left out: the benchmark's evaluator passes over it, too.
    """
    return tuple(call for one in ast.literal_eval(text) if (call := _call(one)) is not None)


def _call(text: str) -> Call | None:
    try:
        # As the benchmark does: a call is one line, and the line breaks in its texts are written out.
        tree = ast.parse(text.replace("\n", "\\n"), mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args:
            return None
        system, name, function = ast.unparse(tree.func).split(".")
        arguments = {str(one.arg): ast.literal_eval(one.value) for one in tree.keywords}
    except (SyntaxError, ValueError):
        return None
    return (name, arguments) if function == "func" and system in (*SYSTEMS, DIRECTORY) else None


def _systems(text: str) -> tuple[str, ...]:
    named = {_OTHER_NAMES.get(name, name) for name in ast.literal_eval(text)}
    return tuple(name for name in SYSTEMS if name in named)


def _published(row: Mapping[str, Any], domain: str, model: str, tools: str, **verdicts: bool) -> PublishedCalls:
    calls = parse_calls(row["function_calls"] or "[]")
    return PublishedCalls(row["query"], domain, model, tools, calls, row["error"] or "", **verdicts)


def _rows(path: Path) -> list[dict[str, str]]:
    csv.field_size_limit(2**31 - 1)  # results have whole conversations in a cell
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
