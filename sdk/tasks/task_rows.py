"""A row as a task: from a dict, a CSV line or an Arrow table."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from mcp_bridge.safe_text import shortened

from ..errors import ConfigError
from ..records import Message, Rollout, Task, ToolCall

_MAPPINGS = ("setup", "expected", "tags", "user")
_TEXTS = ("id", "family")
_MESSAGE_LISTS = ("demonstration",)
_ENTRIES = {
    **dict.fromkeys(
        ("answer", "calls_may_differ", "changes", "state", "ignore", "forbid", "answer_json", "answer_pattern"),
        "expected",
    ),
    **dict.fromkeys(("split", "tier", "kind"), "tags"),
    "seed": "setup",
}
"""Entries that people write as fields -> the field that they belong to."""
_FORMS = {
    "expected": '{"answer": "7"}',
    "setup": '{"seed": 7}',
    "tags": '{"kind": "refund"}',
    "user": '{"scenario": "..."}',
}


def task_fields() -> list[str]:
    return list(Task.model_fields)


def task_from_mapping(row: Mapping[Any, Any], where: str, *, beside: Sequence[str] = ()) -> Task:
    """A checked task. Raises `ConfigError` that names `where`, the field and the fix. `beside`: fields that the caller
    reads itself, for that message.

    A line that `distill` wrote, and a labelled rollout that the viewer exported, is its task; what it did becomes the
    demonstration, unless its label is other than good.
    """
    if "prompt" not in row and ("rollout" in row or "messages" in row):
        return _task_of_example(row, where)
    known = [*task_fields(), *beside]
    _refuse_unknown(row, known, where, hint="data of your own belongs under 'expected' or 'tags'", entries=True)
    if "prompt" not in row:
        raise ConfigError(
            f"{where}: has no 'prompt'; add what the user asks for; its fields are {sorted(map(str, row)) or 'none'}"
        )
    fields = dict(row)
    for name in ("prompt", *_MESSAGE_LISTS):
        if isinstance(fields.get(name), list):
            fields[name] = [_message(m, f"{where}, {name}[{i}]") for i, m in enumerate(fields[name])]
    try:
        return Task.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_first_problem(error)}") from error


_GOOD = ("good", True)


def _task_of_example(row: Mapping[Any, Any], where: str) -> Task:
    try:
        if "rollout" in row:
            rollout = Rollout.model_validate(row["rollout"])
            task, messages, is_good = rollout.task, rollout.messages, row.get("label") in _GOOD
        else:
            task = Task.model_validate_json(row["task"])
            messages = [Message.model_validate(_message(one, where)) for one in row["messages"]]
            is_good = True
    except KeyError:
        raise ConfigError(
            f"{where}: has messages and no 'task', so what counts as right is not known; `toolbake distill` writes it"
        ) from None
    except (ValidationError, TypeError) as error:
        raise ConfigError(f"{where}: is no example that can be a task: {error}") from error
    said = [message for message in messages[len(task.opening()) :] if message.role == "assistant"]
    return task.model_copy(update={"demonstration": said}) if is_good else task


def from_csv_cells(cells: Mapping[str, str], where: str) -> dict[str, Any]:
    """Cells as fields: empty ones are absent, `expected.answer` is one entry of `expected`."""
    fields: dict[str, Any] = {}
    for column, cell in cells.items():
        if not cell.strip() and column != "prompt":
            continue
        name, dot, entry = column.partition(".")
        if dot and name in _MAPPINGS and entry:
            mapping = fields.setdefault(name, {})
            if not isinstance(mapping, dict) or entry in mapping:
                raise ConfigError(f"{where}: the column {column!r} and the column {name!r} both set {entry!r}")
            mapping[entry] = cell if name == "tags" else _json_or_text(cell, where)
        elif isinstance(fields.get(name), dict):
            whole = _cell(column, cell, where)
            twice = sorted(set(whole) & set(fields[name]))
            if twice:
                raise ConfigError(f"{where}: the column {name!r} and columns of its own both set {twice[0]!r}")
            fields[name] |= whole
        else:
            fields[column] = _cell(column, cell, where)
    return fields


def _cell(column: str, cell: str, where: str) -> Any:
    if column in _TEXTS:
        return cell
    value = _json_or_text(cell, where)
    if column == "prompt":
        is_messages = isinstance(value, list) and value and all(isinstance(m, dict) and "role" in m for m in value)
        return value if is_messages else cell
    if column == "later_turns" and not isinstance(value, list):
        return [cell]
    if column == "expected" and not isinstance(value, dict):
        return {"answer": value}
    if column in (*_MAPPINGS, *_MESSAGE_LISTS) and isinstance(value, str):
        told = f"{where}: {column} is {_shown(cell)}, which is not JSON"
        raise ConfigError(f'{told}; write for example {{"key": "value"}}')
    return value


_NAME = re.compile(r"\d+[eE]\d+")


def _json(text: str, where: str, **how: Any) -> Any:
    """Raises `ValueError`, and `ConfigError` where lists lie in lists too deeply."""
    try:
        return json.loads(text, **how)
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply to be read") from error


def _json_or_text(cell: str, where: str) -> Any:
    """JSON where the cell is JSON, the text as it stands otherwise. `NaN` stays text, and so does `12E4`, which is more
    often a name than a number."""

    def keep_as_text(_: str) -> Any:
        raise ValueError

    try:
        return cell if _NAME.fullmatch(cell) else _json(cell, where, parse_constant=keep_as_text)
    except ValueError:
        return cell


def _structured_from_text(name: str, value: str, where: str) -> Any:
    if name in (*_TEXTS, "prompt"):
        return value
    try:
        return _json(value, where)
    except ValueError as error:
        raise ConfigError(f"{where}: {name} is the text {value[:80]!r}, which is not JSON: {error}") from error


def from_arrow_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A row of an Arrow table as fields: structured ones may be JSON text, and filled-in nulls are absent.

    Arrow gives all structs of a column the same fields and fills those that a row lacks with null. At the
    first level (`expected.answer`) null means absent. Deeper (`expected.calls[0].arguments.note`) a filled-in
    null and a written one cannot be told apart, so it is refused.
    """
    kept: dict[str, Any] = {}
    for name, value in row.items():
        if value is None:
            continue
        if isinstance(value, str):
            kept[name] = _structured_from_text(name, value, where)
            continue
        if isinstance(value, Mapping):
            value = {key: inner for key, inner in value.items() if inner is not None}
        elif isinstance(value, list):
            value = [{k: v for k, v in m.items() if v is not None} if isinstance(m, Mapping) else m for m in value]
        null = _null_inside(value, name)
        if null:
            raise ConfigError(
                f"{where}: {null} is null, and Arrow fills fields that a row lacks with null, so what was meant "
                f"is not known; store the column {name!r} as JSON text"
            )
        kept[name] = value
    return kept


def _null_inside(value: Any, path: str) -> str | None:
    if value is None:
        return path
    if isinstance(value, Mapping):
        found = (_null_inside(inner, f"{path}.{key}") for key, inner in value.items())
    elif isinstance(value, list):
        found = (_null_inside(inner, f"{path}[{index}]") for index, inner in enumerate(value))
    else:
        return None
    return next((null for null in found if null), None)


def _message(message: Any, where: str) -> Any:
    """A message, also in OpenAI's form (`content: null`, calls under `function` with arguments as text)."""
    if isinstance(message, Message):
        return message
    if not isinstance(message, Mapping):
        raise ConfigError(f"{where} is {_shown(message)}; a message is a dict with 'role' and 'content'")
    _refuse_unknown(message, list(Message.model_fields), where, hint="")
    fields = {name: value for name, value in message.items() if value is not None}
    if "tool_calls" in fields:
        if not isinstance(fields["tool_calls"], list):
            raise ConfigError(f"{where}.tool_calls is {_shown(fields['tool_calls'])}; give a list of calls")
        fields["tool_calls"] = [_call(c, i, f"{where}.tool_calls[{i}]") for i, c in enumerate(fields["tool_calls"])]
    return fields


def _call(call: Any, index: int, where: str) -> Any:
    if isinstance(call, ToolCall):
        return call
    if not isinstance(call, Mapping):
        raise ConfigError(f"{where} is {_shown(call)}; a call is a dict with 'name' and 'arguments'")
    fields = {name: value for name, value in call.items() if value is not None}
    if "function" in fields:
        function = fields.pop("function")
        fields.pop("type", None)
        fields |= function if isinstance(function, Mapping) else {"name": function}
    _refuse_unknown(fields, list(ToolCall.model_fields), where, hint="")
    if isinstance(fields.get("arguments"), str):
        try:
            fields["arguments"] = _json(fields["arguments"], where)
        except ValueError as error:
            raise ConfigError(f"{where}.arguments is {_shown(fields['arguments'])}, which is not JSON") from error
    fields.setdefault("id", f"call_{index}")
    return fields


def _refuse_unknown(row: Mapping[Any, Any], known: list[str], where: str, *, hint: str, entries: bool = False) -> None:
    """`entries`: the fields are those of a task, which have entries."""
    for key in row:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            meant = f"did you mean {near[0]!r}? The" if near else "the"
            if entries and key == "calls":
                meant = "a file of requests with their calls is made a file of tasks by `toolbake solve`. The"
            elif entries and (path := _entry(str(key))) is not None:
                name, _, entry = path.partition(".")
                meant = f'did you mean {path}? In CSV that is a column, in JSON {{"{name}": {{"{entry}": ...}}}}. The'
            rest = f"; {hint}" if hint else ""
            raise ConfigError(f"{where}: unknown field {key!r}; {meant} fields are {', '.join(known)}{rest}")


def _entry(key: str) -> str | None:
    """The entry of a field that is meant by a name like `answer` or `setup_seed`: `expected.answer`, `setup.seed`."""
    if key in _ENTRIES:
        return f"{_ENTRIES[key]}.{key}"
    for name in _MAPPINGS:
        if key.startswith(name) and key[len(name) :][:1] in ("_", "-", " ", ":", "/") and key[len(name) + 1 :]:
            return f"{name}.{key[len(name) + 1 :]}"
    return None


def _shown(value: Any) -> str:
    return shortened(repr(value), 200)


def _first_problem(error: ValidationError) -> str:
    """The first problem in plain words: the field, what is wrong, and the value."""
    # A union such as `prompt` reports all its branches; the one that is meant is told by what was given.
    problems = [one for one in error.errors() if one["loc"] != ("prompt", "str") or not isinstance(one["input"], list)]
    problem, name = problems[0], str((*problems[0]["loc"], "task")[0])
    if problem["loc"] == ("prompt", "str"):
        given = _shown(problem["input"])
        return f"prompt is {given}; it must be a text, or a list of messages with 'role' and 'content'"
    if problem["loc"] in {(mapping,) for mapping in _MAPPINGS} and not isinstance(problem["input"], Mapping):
        return f"{name} is {_shown(problem['input'])}; it must be an object, for example {_FORMS[name]}"
    field = ".".join(str(part) for part in problem["loc"] if part != "list[Message]") or "task"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{field} is {_shown(problem['input'])}: {problem['msg'].removeprefix('Value error, ')}{more}"
