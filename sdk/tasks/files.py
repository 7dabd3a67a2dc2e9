"""Task files: each item is read with the file and the line or row that it comes from."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mcp_bridge.extras import require_extra
from mcp_bridge.safe_text import json_problem

from ..errors import ConfigError
from .task_rows import from_arrow_row, from_csv_cells, task_fields

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


def read_file(path: Path, *, beside: Sequence[str] = ()) -> Iterator[tuple[Any, str]]:
    """The items of a task file, not yet checked, each with its place in words. `beside`: fields that the caller knows
    beside those of a task.

    Raises `ConfigError` for a file that is not there, cannot be read or is malformed.
    """
    readers: dict[str, Callable[[Path], Iterator[tuple[Any, str]]]] = {
        ".jsonl": read_json_lines,
        ".json": _json,
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
    """Strict JSON: no NaN, and no key twice (Python would keep the last one and say nothing)."""

    def refuse_constant(name: str) -> Any:
        raise ConfigError(f"{where}: {name} is not JSON; use a number or null")

    def finite(number: str) -> float:
        if math.isinf(value := float(number)):
            raise ConfigError(f"{where}: {number} is too large for a number; give a smaller one, or a text")
        return value

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            raise ConfigError(f"{where}: the key {next(n for n in names if names.count(n) > 1)!r} occurs twice")
        return found

    try:
        return json.loads(text, parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON: {json_problem(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply to be read") from error
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{where}: cannot be read: {error}") from error


def read_json_lines(path: Path) -> Iterator[tuple[Any, str]]:
    """The values of a JSON Lines file, each with its place in words. Raises `ConfigError` that names the place."""
    # Not splitlines(): that also breaks at characters such as U+2028, which JSON allows inside strings.
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield strict_json(line, where), where


def _json(path: Path) -> Iterator[tuple[Any, str]]:
    items = strict_json(_text(path), str(path))
    if not isinstance(items, list):
        raise ConfigError(f"{path}: holds a JSON {type(items).__name__}; a .json task file holds a list of tasks")
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
        header = next(reader, [])
        if "prompt" not in header or len(set(header)) != len(header):
            raise ConfigError(
                f"{path}, line {1 + above}: the columns are {header}; they must be different and one must be 'prompt'; "
                f"the others are fields of a task: {', '.join([*task_fields(), *beside])}"
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
