"""The names in what a task expects: tools, arguments and tables that there are not make a task that nobody can win."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from mcp_bridge import Toolset
from mcp_bridge.errors import BridgeError
from mcp_bridge.records import Tool
from mcp_bridge.safe_text import and_more

from ..errors import ConfigError
from ..records import Task
from ..verifiers import VerifierLike, verifier_name
from ..verifiers.calls import RequiredCalls

_MOST_NAMES = 20
_HARMLESS = frozenset({"$absent", "$optional"})
"""Patterns that a call without the argument fits, as null does: such a call can be made, whatever the name is."""
_SAME_WORD = 0.85
"""A table may appear only when its first row is written. One whose name is so like that of another is a slip."""


async def unknown_names(source: Toolset, tasks: Sequence[Task]) -> list[str]:
    """For each task, what it expects that these tools do not have, with the choices and the fix; empty where nothing.

    Looks at the names and arguments of `expected["calls"]` and `expected["forbid"]`, and at the tables of
    `expected["changes"]`. A world is opened only to learn tables that are not known yet. Where its state cannot be
    read, tables are not looked at.
    """
    tables: set[str] | None = set()
    looked: set[str] = set()
    found = []
    for task in tasks:
        problem = _unknown_call(task, source.tools)
        key = json.dumps(task.setup, sort_keys=True, default=str)
        if not problem and tables is not None and source.has_state and not tables.issuperset(_tables_of(task)):
            if key not in looked:
                looked.add(key)
                told = await _tables(source, task, len(looked))
                tables = tables | told if told is not None else None
            problem = _unknown_table(task, tables) if tables is not None else ""
        found.append(problem)
    return found


async def tasks_of_unknown_names(source: Toolset, tasks: Sequence[Task]) -> list[str]:
    """What `unknown_names` finds, with the task that has it."""
    found = zip(tasks, await unknown_names(source, tasks), strict=True)
    return [f"task {task.id!r}: {what}" for task, what in found if what]


_COMPARES = re.compile(r"\b(as_expected|calls_match|required_calls|final_state)\(")


async def require_known_names(source: Toolset, tasks: Sequence[Task], verifier: VerifierLike) -> list[str]:
    """Raises `ConfigError` where a task expects or forbids a tool, an argument or a table that there is not, and
    `verifier` has a ready-made one that compares them: before anything is trained on a reward that nothing can earn, or
    without a limit that is thought to hold. What another verifier makes of such names is not known: for it, a line that
    warns of the first, or none. Also raises it for a tool that `required_calls(forbid=...)` names and there is not."""
    known = {tool.name for tool in source.tools}
    if unknown := next((name for name in _forbidden_by(verifier) if name not in known), None):
        choices = _choices(unknown, known, "the tools", _NEVER_MADE)
        raise ConfigError(f"required_calls(forbid=...) names the tool {unknown!r}, which there is not{choices}")
    if named := await tasks_of_unknown_names(source, tasks):
        more = f" ({len(named)} of {len(tasks)} tasks)" if len(named) > 1 else ""
        if _COMPARES.search(verifier_name(verifier)):
            raise ConfigError(f"{named[0]}{more}")
        return [f"warning: {named[0]}{more}"]
    return []


def _forbidden_by(verifier: Any) -> Iterator[str]:
    """The tools that a ready-made verifier forbids, by itself or in one of its parts."""
    if isinstance(verifier, RequiredCalls):
        yield from verifier.forbid
    elif is_dataclass(verifier):
        for part in vars(verifier).values():
            for one in part if isinstance(part, tuple) else (part,):
                yield from _forbidden_by(one)


async def _tables(source: Toolset, task: Task, number: int) -> set[str] | None:
    """The tables of a fresh world of a task; None where it cannot be opened, which whoever plays the task tells."""
    try:
        async with source.open_world(f"names/{number}", task.setup or None) as world:
            state = await world.state()
    except BridgeError:
        return None
    return None if state is None else set(state)


def _unknown_call(task: Task, tools: Sequence[Tool]) -> str:
    known = {tool.name: tool for tool in tools}
    for field, call in _named_calls(task):
        name = call["name"]
        fix = _NEVER_MADE if field == "forbid" else _NEVER_DONE
        if name not in known:
            return (
                f"expected.{field} names the tool {name!r}, which there is not{_choices(name, known, 'the tools', fix)}"
            )
        schema = known[name].input_schema
        arguments = call.get("arguments", {})
        if not isinstance(arguments, Mapping) or _is_open(schema):
            continue
        for argument, pattern in arguments.items():
            may_lack = pattern is None or (isinstance(pattern, Mapping) and _HARMLESS & set(pattern))
            if argument not in schema["properties"] and (field == "forbid" or not may_lack):
                return (
                    f"expected.{field} gives {name} the argument {argument!r}, which it does not have"
                    f"{_choices(argument, schema['properties'], 'its arguments', fix)}"
                )
    return ""


def _named_calls(task: Task) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The calls that a task expects and forbids, without those of another form than the ready-made verifiers compare:
    each after the name of its field."""
    for field in ("calls", "forbid"):
        calls = task.expected.get(field)
        for call in calls if isinstance(calls, list) else []:
            one = {"name": call} if isinstance(call, str) and field == "forbid" else call
            if isinstance(one, Mapping) and isinstance(one.get("name"), str):
                yield field, one


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether other arguments than those that it names may be right."""
    named = schema.get("properties")
    others = ("additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf")
    return not isinstance(named, Mapping) or any(schema.get(key) for key in others)


def _tables_of(task: Task) -> dict[str, bool]:
    """The tables whose changes are expected -> whether a row of it is there before."""
    changes = task.expected.get("changes")
    found: dict[str, bool] = {}
    for change in changes if isinstance(changes, list) else []:
        name = change.get("table") if isinstance(change, Mapping) else None
        if isinstance(name, str):
            found[name] = found.get(name, False) or change.get("before") is not None
    return found


def _unknown_table(task: Task, tables: set[str]) -> str:
    for name, has_rows in _tables_of(task).items():
        is_slip = has_rows or difflib.get_close_matches(name, tables, n=1, cutoff=_SAME_WORD)
        if name not in tables and is_slip:
            return (
                f"expected.changes names the table {name!r}, which the state does not have"
                f"{_choices(name, tables, 'its tables')}"
            )
    return ""


_NEVER_DONE = "Correct it, since no policy could do that"
_NEVER_MADE = "Correct it, since it forbids nothing that a policy could do"


def _choices(name: str, known: Iterable[str], what: str, fix: str = _NEVER_DONE) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    fix = f"{fix}; or leave it out where your verifier does not compare it"
    return f"{meant}; {what} are {and_more(names, _MOST_NAMES) or 'none'}. {fix}"
