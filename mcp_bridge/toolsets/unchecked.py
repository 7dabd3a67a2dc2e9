"""Records of fields that are known to be right: made in a quarter of the time that checking them would take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

Record = TypeVar("Record", bound=BaseModel)

_new, _set = object.__new__, object.__setattr__


def unchecked(kind: type[Record]) -> Callable[[dict[str, Any]], Record]:
    """What makes records of `kind` from a dict of all of its fields, which is handed over to the record.

    Nothing is looked at: no type, no missing field, no validator. Example: `unchecked(Point)({"x": 1, "y": 2})`
    """
    # One set for all records: it names every field, and so nothing can be added to it when one is set.
    names = set(kind.model_fields)

    def make(fields: dict[str, Any]) -> Record:
        made: Record = _new(kind)
        _set(made, "__dict__", fields)
        _set(made, "__pydantic_fields_set__", names)
        _set(made, "__pydantic_extra__", None)
        _set(made, "__pydantic_private__", None)
        return made

    return make
