"""A JSON Lines file of tasks or labelled rows as the page lists it, and one changed line in it: no other byte moves."""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from mcp_bridge.errors import kind_of

from ..errors import ConfigError, ToolbakeError
from ..evidence.canonical import sha256
from ..records import Task
from ..tasks.task_files import strict_json, task_from_mapping
from .labels import exported_file
from .rollout_view import opening_text, with_json_text

SUFFIX = ".jsonl"
_MOST_BYTES = 1024 * 1024
"""Longer lines are listed, but not opened."""
_SHOWN_CHARS, _SEARCHED_CHARS = 240, 1_000
_BOM = b"\xef\xbb\xbf"


class RowFileChanged(ToolbakeError):
    """The file is not the one that the page read."""


class RowChange(BaseModel, extra="forbid"):
    """What to change in a line."""

    version: str
    """Of the file, as the page read it."""
    fields: dict[str, str] = Field(default_factory=dict)
    """The JSON of each field's new value; under the name "" that of the whole line."""
    label: str | None = None
    """A new label; "" takes it back. None leaves it as it is."""


class RowFile:
    """One file. Nothing of it is kept: each answer reads it, and has its version, the SHA-256 of its bytes."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` for a file of another format, or one that cannot be read."""
        if path.suffix.lower() != SUFFIX:
            raise ConfigError(
                f"{path} is not a {SUFFIX} file; give a run, a folder of runs, or a {SUFFIX} file of rows"
            )
        self.path = path.resolve()  # what a symbolic link leads to is replaced, not the link
        self._writing = threading.Lock()
        self._read()

    def lines(self) -> dict[str, Any]:
        """`version`, and of each line that is not empty its `line` number from 1, see `_listed`."""
        data = self._read()
        return {"version": sha256(data), "lines": [_listed(number, raw) for number, raw in _numbered(data)]}

    def line(self, number: int) -> dict[str, Any]:
        """One line with its `fields` to edit and the `messages` to read. Raises `LookupError` where there is none."""
        data = self._read()
        return self._opened(data, number, _line(data, number))

    def change(self, number: int, change: RowChange) -> dict[str, Any]:
        """Write one line anew; returns it as `line` does. The file as it was before the first change is kept beside it,
        also when the file is opened again.

        Raises `RowFileChanged` where another program wrote the file since `version`, `ConfigError` for a value that is
        not JSON and for a change that makes a line, which was a task, none; then nothing is written.
        """
        with self._writing:
            data = self._read()
            if sha256(data) != change.version:
                raise RowFileChanged(
                    f"{self.path.name} was changed by another program since it was opened, and nothing was saved; "
                    "copy what you wrote and reload the page"
                )
            raw = _line(data, number)
            end = b"\r" if raw.endswith(b"\r") else b""
            new = _changed(raw, change, f"line {number}").encode() + end
            backup = self.path.with_name(f"{self.path.name}.bak")
            if not backup.exists():
                with exported_file(backup, like=self.path) as file:
                    file.write(data)
            lines = data.removeprefix(_BOM).split(b"\n")
            lines[number - 1] = new
            data = (_BOM if data.startswith(_BOM) else b"") + b"\n".join(lines)
            with exported_file(self.path) as file:
                file.write(data)
            return self._opened(data, number, new)

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _opened(self, data: bytes, number: int, raw: bytes) -> dict[str, Any]:
        return {"version": sha256(data), "row": _listed(number, raw), **_detail(number, raw)}


def is_row_file(path: Path) -> bool:
    """Whether a path is meant as a file of rows; also one that is not there."""
    return path.is_file() or (path.suffix.lower() == SUFFIX and not path.exists())


def _numbered(data: bytes) -> Iterator[tuple[int, bytes]]:
    for number, raw in enumerate(data.removeprefix(_BOM).split(b"\n"), start=1):
        if raw.strip():
            yield number, raw


def _line(data: bytes, number: int) -> bytes:
    for found, raw in _numbered(data):
        if found == number:
            return raw
    raise LookupError(f"the file has no line {number} with content")


def _parsed(raw: bytes, where: str) -> dict[str, Any]:
    """Raises `ConfigError` for what is not a JSON object."""
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"{where}: {len(raw):,} bytes are too long to be opened here; the most are {_MOST_BYTES:,}")
    try:
        row = strict_json(raw.decode(), where)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 ({error.reason})") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: {kind_of(row)}, not an object")
    return row


def _task(row: Mapping[str, Any], where: str) -> Task | ConfigError:
    try:
        return task_from_mapping(row, where)
    except ConfigError as error:
        return error


def _listed(number: int, raw: bytes) -> dict[str, Any]:
    """A line in the list: `kind` is `task`, `row` (another object) or `unread`, `problem` why it is not a task."""
    try:
        row = _parsed(raw, f"line {number}")
    except ConfigError as error:
        text = raw[:_SEARCHED_CHARS].decode(errors="replace")
        listed = {"kind": "unread", "title": text[:_SHOWN_CHARS], "under": "", "tags": {}, "label": "", "words": text}
        return {"line": number, "problem": str(error), **listed}
    task = _task(row, f"line {number}")
    is_task = isinstance(task, Task)
    fields = task.model_dump() if isinstance(task, Task) else row
    text = raw.decode()
    places = {name: text[start:end] for name, (start, end) in _places(text).items()}  # numbers as they are written
    gold = [places.get(name, _json(fields[name])) for name in ("expected", "answer") if fields.get(name)]
    tags = fields.get("tags")
    return {
        "line": number,
        "kind": "task" if is_task else "row",
        "problem": "" if is_task else str(task),
        "title": (opening_text(fields) or _json(row))[:_SHOWN_CHARS],
        "under": " ".join(gold)[:_SHOWN_CHARS],
        "tags": {str(key): str(value) for key, value in tags.items()} if isinstance(tags, dict) else {},
        "label": _label(row),
        "words": _json(row)[:_SEARCHED_CHARS],
    }


def _label(row: Mapping[str, Any]) -> str:
    tags = row.get("tags")
    found = tags.get("label") if "label" not in row and isinstance(tags, dict) else row.get("label")
    if isinstance(found, bool):
        return "good" if found else "bad"
    return "" if found is None else str(found)[:_SHOWN_CHARS]


def _detail(number: int, raw: bytes) -> dict[str, Any]:
    try:
        row = _parsed(raw, f"line {number}")
    except ConfigError:  # it is mended as a whole; of a line that is too long a part would take its place
        whole = [_field("", _escaped(raw.decode(errors="replace")))] if len(raw) <= _MOST_BYTES else []
        return {"fields": whole, "messages": []}
    text = raw.decode()
    fields = []
    for name, (start, end) in _places(text).items():
        if not name:  # the whole line has that name here
            continue
        value = row[name]
        is_text = isinstance(value, str) and value == _escaped(value)
        fields.append(_field(name, value if is_text else _escaped(text[start:end]), is_text=is_text))
    fields.append(_field("", _escaped(text.strip())))
    return {"fields": fields, "messages": [with_json_text(message) for message in _messages(row, f"line {number}")]}


def _field(name: str, text: str, *, is_text: bool = False) -> dict[str, Any]:
    return {"name": name, "text": text, "is_text": is_text}


def _messages(row: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """What of a row is a conversation."""
    rollout = row.get("rollout")
    for found in (rollout.get("messages") if isinstance(rollout, dict) else None, row.get("messages")):
        if isinstance(found, list):
            return [message for message in found if isinstance(message, dict)]
    task = _task(row, where)
    if isinstance(task, Task):
        return [message.model_dump() for message in (*task.opening(), *task.demonstration)]
    said = (("user", row.get("prompt")), ("assistant", row.get("answer")))
    return [{"role": role, "content": text} for role, text in said if isinstance(text, str)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _escaped(text: str) -> str:
    """JSON with characters that cannot be seen, or that change the direction of writing, as JSON's own escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _UNSEEN and c not in "\n\t" else c for c in text)


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 0xFFFF else f"\\u{ord(character):04x}"


_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
_BLANKS = re.compile(r"[ \t\n\r]*")


def _places(text: str) -> dict[str, tuple[int, int]]:
    """Where the value of each field of an object stands in its JSON, which is known to be valid."""
    decoder = json.JSONDecoder()

    def past(at: int) -> int:
        blanks = _BLANKS.match(text, at)
        assert blanks is not None
        return blanks.end()

    places = {}
    at = past(past(0) + 1)  # the opening brace
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        start = past(past(at) + 1)  # the colon
        _, end = decoder.raw_decode(text, start)
        places[name] = (start, end)
        at = past(end)
        if text[at] == ",":
            at = past(at + 1)
    return places


def _changed(raw: bytes, change: RowChange, where: str) -> str:
    fields = dict(change.fields)
    whole = fields.pop("", None)
    # A line that cannot be read is only replaced as a whole.
    _parsed(raw if whole is None else whole.encode(errors="replace"), where)
    text = _one_line(raw.decode() if whole is None else whole)
    for name, value in fields.items():
        strict_json(value, f"{where}, {name}")
        text = _with(text, name, value)
    was_task = _was_task(raw, where)
    row = _checked(text, where, is_task=was_task)
    if change.label is not None:
        text = _with(text, *_labelled(row, change.label, where))
        _checked(text, where, is_task=was_task)
    return text


def _checked(text: str, where: str, *, is_task: bool) -> dict[str, Any]:
    row = _parsed(text.encode(), where)
    new = _task(row, where)
    if is_task and isinstance(new, ConfigError):
        raise new
    return row


def _was_task(raw: bytes, where: str) -> bool:
    try:
        return isinstance(_task(_parsed(raw, where), where), Task)
    except ConfigError:
        return False


def _one_line(json_text: str) -> str:
    """JSON without line breaks: outside strings they are blanks, and in strings they are escaped already."""
    return re.sub(r"[\r\n]+\s*", " ", json_text.strip())


def _with(text: str, name: str, value: str) -> str:
    """The object with one value replaced, or added at its end."""
    places = _places(text)
    if name in places:
        start, end = places[name]
        return text[:start] + _one_line(value) + text[end:]
    end = text.rindex("}")
    return f"{text[:end].rstrip()}{', ' if places else ''}{_json(name)}: {_one_line(value)}{text[end:]}"


def _labelled(row: Mapping[str, Any], label: str, where: str) -> tuple[str, str]:
    """The field that holds a row's label, and its new JSON: a task's is a tag, any other row has a field for it."""
    if "label" not in row and "prompt" in row and isinstance(_task(row, where), Task):
        tags = {name: tag for name, tag in row.get("tags", {}).items() if name != "label"}
        return "tags", _json({**tags, "label": label} if label else tags)
    if isinstance(row.get("label"), bool) and label in ("good", "bad"):
        return "label", _json(label == "good")
    return "label", _json(label or None)
