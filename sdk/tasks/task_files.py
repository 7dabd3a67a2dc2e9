"""Tasks are read: a row, a file or a whole list of what the user has as prompts becomes checked tasks.

Each item is read with the file and the line or row that it comes from.
"""

from __future__ import annotations

import csv
import difflib
import functools
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcp_bridge import safe_text
from mcp_bridge.errors import kind_of
from mcp_bridge.extras import require_extra
from mcp_bridge.safe_text import json_in, json_problem, shortened

from ..errors import ConfigError
from ..records import Message, Rollout, Task, ToolCall
from ..traces.json_text import dump_json

_MAPPINGS = ("setup", "expected", "tags", "user")
_TEXTS = ("id", "family")
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


def task_from_mapping(row: Mapping[Any, Any], where: str, *, beside: Sequence[str] = ()) -> Task:
    """A checked task. Raises `ConfigError` that names `where`, the field and the fix. `beside`: fields that the caller
    reads itself, for that message.

    A line that `distill` wrote, and a labelled rollout that the viewer exported, is its task; what it did becomes the
    demonstration, unless its label is other than good.
    """
    if "prompt" not in row and ("rollout" in row or "messages" in row):
        return _task_of_example(row, where)
    known = [*Task.model_fields, *beside]
    _refuse_unknown(row, known, where, hint="data of your own belongs under 'expected' or 'tags'", entries=True)
    if "prompt" not in row:
        raise ConfigError(
            f"{where}: has no 'prompt'; add what the user asks for; its fields are {sorted(map(str, row)) or 'none'}"
        )
    fields = dict(row)
    for name in ("prompt", "demonstration"):
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
            is_good = row.get("label") in (*_GOOD, None)
    except KeyError:
        raise ConfigError(
            f"{where}: has messages and no 'task', so what counts as right is not known; `toolbake distill` writes it"
        ) from None
    except (ValidationError, TypeError) as error:
        raise ConfigError(f"{where}: is not an example that can be a task: {error}") from error
    return with_demonstration(task, messages) if is_good else task


def with_demonstration(task: Task, messages: Sequence[Message]) -> Task:
    """The task with what the assistant said in a conversation about it as its demonstration."""
    said = [message for message in messages[len(task.opening()) :] if message.role == "assistant"]
    return task.model_copy(update={"demonstration": said})


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
            mapping[entry] = cell if name == "tags" else _value(column, cell, where)
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
    if column == "prompt":
        return _prompt(cell, where)
    value = _value(column, cell, where) if column == "expected" else _json_or_text(cell, where)
    if column == "later_turns" and not isinstance(value, list):
        return [cell]
    if column == "expected" and not isinstance(value, dict):
        return {"answer": value}
    if column in (*_MAPPINGS, "demonstration") and isinstance(value, str):
        told = f"{where}: {column} is {_shown(cell)}, which is not JSON"
        raise ConfigError(f'{told}; write for example {{"key": "value"}}')
    return value


def _prompt(text: str, where: str) -> Any:
    """The messages that a text holds as JSON, or the text as it stands."""
    value = json_in(text)
    is_messages = isinstance(value, list) and value and all(isinstance(m, dict) and "role" in m for m in value)
    return strict_json(text, where) if is_messages else text


def _value(column: str, cell: str, where: str) -> Any:
    """A cell of what is expected or set up: JSON, a boolean as Python and spreadsheets write it, or a text. Raises
    `ConfigError` for what begins like JSON and is not."""
    if (word := cell.strip()) in ("True", "TRUE", "False", "FALSE"):
        return word.upper() == "TRUE"
    value = _json_or_text(cell, where)
    if isinstance(value, str) and word.startswith(("{", "[")):
        raise ConfigError(
            f"{where}: {column} is {_shown(cell)}, which begins like JSON and is not; write for example "
            '{"key": "value"} (Python\'s json.dumps does), or a text in quotes: "[sic] late"'
        )
    return value


_NAME = re.compile(r"\d+[eE]\d+")


def _json(text: str, where: str) -> Any:
    """Raises `ValueError`, and `ConfigError` where lists lie in lists too deeply, or an object has a key twice."""
    try:
        json.loads(text, **safe_text.STRICT)
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply to be read") from error
    return strict_json(text, where)


def _json_or_text(cell: str, where: str) -> Any:
    """JSON where the cell is JSON, the text as it stands otherwise. `NaN` and `1.5e999` stay text, and so does `12E4`,
    which is more often a name than a number."""
    try:
        return cell if _NAME.fullmatch(cell) else _json(cell, where)
    except ValueError:
        return cell


def _structured_from_text(name: str, value: str, where: str) -> Any:
    if name == "prompt":
        return _prompt(value, where)
    if name in _TEXTS:
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
    if "reasoning" not in message and "reasoning_content" in message:
        # As `Message.as_openai` writes it, and endpoints.
        message = {"reasoning" if name == "reasoning_content" else name: value for name, value in message.items()}
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


def as_lines(tasks: Iterable[Task]) -> bytes:
    """The tasks as the JSON lines of a file, without what is empty."""
    return b"".join(dump_json(task.model_dump(exclude_defaults=True)) + b"\n" for task in tasks)


SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


def read_file(path: Path, *, beside: Sequence[str] = ()) -> Iterator[tuple[Any, str]]:
    """The items of a task file, not yet checked, each with its place in words. `beside`: fields that the caller knows
    beside those of a task.

    Raises `ConfigError` for a file that is not there, cannot be read or is malformed.
    """
    readers: dict[str, Callable[[Path], Iterator[tuple[Any, str]]]] = {
        ".jsonl": read_json_lines,
        ".json": _json_items,
        ".csv": functools.partial(_csv, beside=beside),
        ".parquet": _parquet,
    }
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise ConfigError(
            f"{path}: cannot read {suffix or 'a file without suffix'} as tasks; use {', '.join(SUFFIXES)}"
        )
    if not path.is_file():
        found = "a folder" if path.is_dir() else "and there is no such file"
        raise ConfigError(f"tasks is {str(path)!r}, {found}; give the path of a file with tasks")
    return readers[suffix](path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def strict_json(text: str, where: str) -> Any:
    """Strict JSON: no NaN, and no key twice. Raises `ConfigError` that names the place."""
    try:
        return safe_text.strict_json(text, unique_keys=True)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON: {json_problem(error)}") from error
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def read_json_lines(path: Path) -> Iterator[tuple[Any, str]]:
    """The values of a JSON Lines file, each with its place in words. Raises `ConfigError` that names the place."""
    # Not splitlines(): that also breaks at characters such as U+2028, which JSON allows inside strings.
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield strict_json(line, where), where


def _json_items(path: Path) -> Iterator[tuple[Any, str]]:
    items = strict_json(_text(path), str(path))
    if not isinstance(items, list):
        raise ConfigError(f"{path}: holds {kind_of(items)}; a .json task file holds a list of tasks")
    for index, item in enumerate(items):
        yield item, f"{path}, item {index}"


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""What spreadsheets write between cells: where the comma is the decimal sign, semicolons."""
_SEPARATOR_LINE = re.compile(f"sep=([{''.join(_SEPARATORS)}])\r?\n")


def _csv(path: Path, beside: Sequence[str]) -> Iterator[tuple[Any, str]]:
    text = _text(path)
    named = _SEPARATOR_LINE.match(text)  # Excel's way to name the separator; the header is the line below
    start = named.end() if named else 0
    separator = named[1] if named else _separator(text)
    reader = csv.reader(io.StringIO(text[start:], newline=""), delimiter=separator, strict=True)
    above = 1 if named else 0
    try:
        header = [name.strip() for name in next(reader, [])]
        if "prompt" not in header or len(set(header)) != len(header):
            raise ConfigError(
                f"{path}, line {1 + above}: the columns are {header}; they must be different and one must be 'prompt'; "
                f"the others are fields of a task: {', '.join([*Task.model_fields, *beside])}"
            )
        for cells in reader:
            # A quoted cell may span lines; line_num is the last one of the row.
            where = f"{path}, line {reader.line_num + above}"
            if not any(cell.strip() for cell in cells):  # spreadsheets write the rows that were emptied, too
                continue
            if len(cells) != len(header):
                raise ConfigError(
                    f"{where}: {len(cells)} cells, but the header has {len(header)}; quote cells that hold "
                    f"{_SEPARATORS[reader.dialect.delimiter]}"
                )
            yield from_csv_cells(dict(zip(header, cells, strict=True)), where), where
    except csv.Error as error:
        where = f"{path}, line {reader.line_num + above}"
        if "field limit" in str(error):
            most = f"{csv.field_size_limit():,} characters"
            raise ConfigError(f"{where}: a cell has more than {most}; give such tasks as .jsonl") from error
        raise ConfigError(f"{where}: not CSV: {error}") from error


def _separator(text: str) -> str:
    """The one by which the first line has the column `prompt`; a comma where none has it."""
    first = text.partition("\n")[0].rstrip("\r")[: csv.field_size_limit()]
    return next((one for one in _SEPARATORS if "prompt" in next(csv.reader([first], delimiter=one), [])), ",")


def _parquet(path: Path) -> Iterator[tuple[Any, str]]:
    require_extra("train", f"{path}: a Parquet file", ConfigError)
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: not a Parquet file that can be read: {error}") from error
    for index, row in enumerate(table.to_pylist()):
        where = f"{path}, row {index}"
        yield from_arrow_row(row, where), where


Origin = str
"""Where a task comes from, for messages: `tasks.jsonl, line 3`."""


def load_tasks(prompts: Any) -> list[Task]:
    """Read tasks from any of these:

    - strings (each a prompt), dicts with the fields of `Task`, `Task` records;
    - a path (`str` or `Path`) to a .jsonl, .json, .csv or .parquet file;
    - a `datasets.Dataset` (one split of it);
    - a file that `distill` wrote, or labelled rollouts that the viewer exported: tasks with what was done as their
      demonstrations;
    - an iterable of any mix of strings, dicts, `Task` records and `Path` objects.

    In a CSV file, `prompt` is text, other cells are JSON or plain text, and a column may name one entry of
    a mapping: `expected.answer`, `setup.seed`, `tags.tier`. Empty cells and rows are absent; semicolons or tabs may
    stand between cells. In Parquet files and
    datasets, null fields are absent, and structured fields may be stored as JSON text.

    Raises `ConfigError` with file, line and field: for unknown fields, empty prompts, an empty list, and two
    tasks of one id, the same or different ones.

    Example: `load_tasks(["Where is order 4417?", {"prompt": "Cancel it.", "expected": {"changes": []}}])`
    """
    seen: dict[str, tuple[Task, Origin]] = {}
    for task, origin in _read(prompts):
        note_task(task, origin, seen)
    if not seen:
        shown = repr(str(prompts)) if isinstance(prompts, str | Path) else f"the {type(prompts).__name__}"
        raise ConfigError(f"prompts: {shown} holds no task; give at least one prompt")
    return [task for task, _ in seen.values()]


def _read(prompts: Any) -> Iterator[tuple[Task, Origin]]:
    """The tasks, each with where it comes from."""
    if isinstance(prompts, Path) or (isinstance(prompts, str) and _is_path(prompts)):
        yield from _from_file(Path(prompts))
    elif any(cls.__module__.split(".")[0] == "datasets" for cls in type(prompts).__mro__):  # not imported for this
        yield from _from_dataset(prompts)
    elif isinstance(prompts, str | Mapping | Task):
        yield _from_item(prompts, "the prompt"), "the prompt"
    elif isinstance(prompts, Iterable) and not isinstance(prompts, bytes | bytearray):
        for index, item in enumerate(prompts):
            if isinstance(item, Path):
                yield from _from_file(item)
            else:
                origin = f"prompts[{index}]"
                yield _from_item(item, origin), origin
    else:
        raise ConfigError(
            f"prompts is {prompts!r} ({type(prompts).__name__}); give strings, dicts, Task records, a path to a "
            f"{', '.join(SUFFIXES)} file, a datasets.Dataset, or a list of them"
        )


def _from_file(path: Path) -> Iterator[tuple[Task, Origin]]:
    for item, origin in read_file(path):
        yield _from_item(item, origin), origin


def _from_item(item: Any, origin: Origin) -> Task:
    if isinstance(item, Task):
        return item
    if isinstance(item, Mapping):
        return task_from_mapping(item, origin)
    if isinstance(item, str):
        _refuse_path_as_prompt(item, origin)
        return task_from_mapping({"prompt": item}, origin)
    raise ConfigError(f"{origin} is {item!r} ({type(item).__name__}); a task is a string, a dict or a Task record")


def _is_path(text: str) -> bool:
    """Whether a lone string names a file. What might be either is refused rather than guessed."""
    one_word = bool(text.strip()) and not any(c.isspace() for c in text)
    known = Path(text).suffix.lower() in SUFFIXES and "\n" not in text
    if known and (one_word or os.path.isfile(text)):
        return True
    if known or (one_word and ("/" in text or Path(text).suffix)):
        what = "tasks are not read from such a file" if os.path.isfile(text) else "there is no such file to read"
        raise ConfigError(
            f"prompts: {text!r} looks like a path, but {what}; give the path of a "
            f"{', '.join(SUFFIXES)} file, or put a prompt that only looks like a path into a list: [prompt]"
        )
    return False


def _refuse_path_as_prompt(text: str, origin: Origin) -> None:
    """A file's name among prompts is almost surely meant as the file."""
    one_word = text.strip() and not any(c.isspace() for c in text)
    if one_word and Path(text).suffix.lower() in SUFFIXES and os.path.isfile(text):
        raise ConfigError(
            f"{origin} is {text!r}, the name of a file, and strings in a list are prompts; "
            f"to read the file, give pathlib.Path({text!r})"
        )


def _from_dataset(dataset: Any) -> Iterator[tuple[Task, Origin]]:
    if isinstance(dataset, Mapping):
        raise ConfigError(
            f"prompts is {kind_of(dataset)} with the splits {sorted(map(str, dataset))}; "
            f"give one of them, for example prompts[{next(iter(dataset), 'train')!r}]"
        )
    for index, row in enumerate(dataset):
        origin = f"the dataset's row {index}"
        yield task_from_mapping(from_arrow_row(row, origin), origin), origin


def note_task(task: Task, origin: Origin, seen: dict[str, tuple[Task, Origin]]) -> None:
    """Add a task to those `seen`, by their ids. Raises `ConfigError` where its id is that of one before."""
    if task.id not in seen:
        seen[task.id] = (task, origin)
        return
    other, other_origin = seen[task.id]
    if other == task:
        raise ConfigError(
            f"{origin} repeats {other_origin} (id {task.id!r}): remove one of them; "
            "to weigh a task more, give its copies ids of their own and one family"
        )
    differing = [name for name in Task.model_fields if getattr(other, name) != getattr(task, name)]
    raise ConfigError(
        f"{origin} and {other_origin} have the same id {task.id!r} but differ in {', '.join(differing)}; "
        "give each task an id of its own (an id that is not given is derived from prompt, later_turns, user and setup)"
    )
