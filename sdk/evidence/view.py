"""What a verifier sees of a rollout: what its evidence stores, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mcp_bridge.toolsets.plain import NotPlain, is_plain

from ..records import Rollout
from ..traces.json_text import TOO_DEEP, dump_json
from .plain_view import ledger_line, plain_view, row_copy

_dumped, _read = Rollout.__pydantic_serializer__.to_python, Rollout.__pydantic_validator__.validate_python


def stored_view(rollout: Rollout) -> Rollout:
    """The rollout as it is read back from a run folder, without a verdict. It shares nothing with the original that
    can be changed.

    A verifier that sees this sees the same when it runs again on the evidence alone. Raises what cannot be stored
    raises: `TypeError` or `ValueError`.
    """
    try:
        return plain_view(rollout)
    except NotPlain:
        pass
    try:
        return _read_view(rollout)
    except RecursionError:  # in reading, which may take a level less than writing did
        raise ValueError(TOO_DEEP) from None


def _read_view(rollout: Rollout) -> Rollout:
    """The same by way of plain data, and of JSON where it is not plain: for whatever record, with whatever in it."""
    aside = {
        name: copies
        for name, copies in (("rows", _all(row_copy, rollout.rows)), ("ledger", _all(ledger_line, rollout.ledger)))
        if copies is not None
    }
    bare = rollout.model_copy(update={"verdict": None, **{name: [] for name in aside}})
    fields = _dumped(bare)
    for record in fields["calls"]:
        result = record.get("result") if isinstance(record, dict) else None
        if isinstance(result, dict) and type(result.get("notes")) is tuple:
            result["notes"] = list(result["notes"])
    # Writing JSON and reading it takes three times as long, and gives plain data back as it is.
    view: Rollout = _read(fields if is_plain(fields) else json.loads(dump_json(bare)))
    for name, records in aside.items():
        setattr(view, name, records)
    return view


def _all(copy: Callable[[Any], Any], values: Any) -> list[Any] | None:
    """The copies; None where one cannot be made."""
    if type(values) is not list:
        return None
    try:
        return [copy(value) for value in values]
    except (NotPlain, KeyError):
        return None
