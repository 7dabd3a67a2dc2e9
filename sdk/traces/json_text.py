"""JSON text that loses nothing a model or a tool can write, and the view of a rollout that is read back from it."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ..errors import RunFolderError
from ..records import Rollout


def dump_json(value: Any, *, indent: int | None = None) -> bytes:
    """A pydantic record or plain data as JSON in UTF-8, without a line break unless `indent` is given.

    Pydantic's own writer fails on half a surrogate pair in a value and silently replaces it in a key, and a
    model can write one (`"\\ud83d"` in its arguments); here it stays as an escape. JSON has no `nan` or `inf`:
    in free-form values (tool results, states) they become the strings "nan", "inf" and "-inf".

    Raises `TypeError` or `ValueError` for what JSON cannot hold, and for what is nested deeper than Python's reads.
    """
    try:
        return _written(value, indent)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def json_line(value: Any, name: str) -> bytes:
    """A line of a file of a run folder. Raises `RunFolderError` where what is called `name` cannot be written."""
    try:
        return dump_json(value) + b"\n"
    except (TypeError, ValueError) as error:
        raise RunFolderError(f"{name} holds what cannot be written: {error}") from error


TOO_DEEP = "it is nested more levels deep than Python's JSON can write and read (some 900 in Python 3.11)"


def _written(value: Any, indent: int | None) -> bytes:
    data = value.model_dump() if isinstance(value, BaseModel) else value
    try:
        text = _dumps(data, indent=indent, ascii_only=False)
    except ValueError:
        data = _spell_out_non_finite(data)
        text = _dumps(data, indent=indent, ascii_only=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _dumps(data, indent=indent, ascii_only=True).encode()


def _dumps(data: Any, *, indent: int | None, ascii_only: bool) -> str:
    separators = (",", ":") if indent is None else None
    return json.dumps(
        data, indent=indent, separators=separators, ensure_ascii=ascii_only, allow_nan=False, default=to_jsonable_python
    )


def _spell_out_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, BaseModel):
        return _spell_out_non_finite(value.model_dump())
    if isinstance(value, dict):
        return {key: _spell_out_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_out_non_finite(item) for item in value]
    return value


def stored_view(rollout: Rollout) -> Rollout:
    """The rollout as it is read back from a run folder, without a verdict. It shares nothing with the original that
    can be changed.

    A verifier that sees this sees the same when it runs again on the evidence alone. Raises what cannot be stored
    raises: `TypeError` or `ValueError`.
    """
    try:
        return Rollout.model_validate(json.loads(dump_json(rollout.model_copy(update={"verdict": None}))))
    except RecursionError:  # in reading, which may take a level less than writing did
        raise ValueError(TOO_DEEP) from None
