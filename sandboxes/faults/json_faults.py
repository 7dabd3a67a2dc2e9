"""Faults as JSON, for the `toolbake` object of a server in an `mcp.json`.

"faults": {"seed": 3, "tools": {"get_*": [{"fault": "Latency", "seconds": [0.2, 2.0]}, {"fault": "ErrorAnswer"}]}}
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcp_bridge.errors import SourceError
from mcp_bridge.world import WorldSource

from . import kinds
from .faulty_source import Faulty

_KINDS: dict[str, type[kinds.Fault]] = {
    name: one
    for name, one in vars(kinds).items()
    if isinstance(one, type) and issubclass(one, kinds.Fault) and one is not kinds.Fault and not name.startswith("_")
}


def faults_for(faults: Any, place: str) -> Callable[[WorldSource], WorldSource]:
    """The wrapper of a source that injects these faults: a `Faulty` with `tools` as its faults, `seed` and `same_for`.

    Raises `SourceError` that names `place`, the key and the choices; when it is called, for a tool that is not there.
    """
    given = _object(faults, f"{place}: faults", {"tools", "seed", "same_for"}, required="tools")
    tools = _object(given["tools"], f"{place}: faults.tools", None)
    seed = given.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise SourceError(f"{place}: faults.seed is {seed!r}; it must be a whole number")
    read: dict[str, list[kinds.Fault]] = {}
    for pattern, several in tools.items():
        listed = several if isinstance(several, list) else [several]
        where = f"{place}: faults.tools.{pattern}"
        read[pattern] = [_fault(one, f"{where}[{number}]") for number, one in enumerate(listed)]

    def spoil(source: Any) -> Faulty:
        try:
            return Faulty(source, read, seed=seed, same_for=given.get("same_for", "world"))
        except SourceError as error:
            raise SourceError(f"{place}: {error}") from error

    return spoil


def _fault(given: Any, where: str) -> kinds.Fault:
    settings = _object(given, where, None)
    name = settings.pop("fault", None)
    if not isinstance(name, str) or name not in _KINDS:
        raise SourceError(f'{where}: "fault" is {name!r}; it must be one of {_choices(name, _KINDS)}')
    kind = _KINDS[name]
    _object(settings, f"{where} ({name})", {field.name for field in dataclasses.fields(kind)})
    try:
        # From JSON, so that a list is what Python would be given as a tuple, and "yes" is not a bool.
        return TypeAdapter(kind).validate_json(json.dumps(settings), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(step) for step in first["loc"][:1])
        raise SourceError(f"{where} ({name}): {key} is {settings.get(key)!r}: {first['msg']}") from None
    except SourceError as error:
        raise SourceError(f"{where} ({name}): {error}") from error


def _object(value: Any, where: str, known: Collection[str] | None, *, required: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise SourceError(f"{where} is {value!r:.80}; it must be an object")
    for key in value:
        if known is not None and key not in known:
            raise SourceError(f"{where} has an unknown key {key!r}. Known: {_choices(key, known)}")
    if required and not value.get(required):
        raise SourceError(
            f'{where} has no "{required}"; write {{"{required}": {{"get_*": {{"fault": "ErrorAnswer"}}}}}}'
        )
    return dict(value)


def _choices(given: Any, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(given), sorted(known), n=1)
    return f"{', '.join(sorted(known))}{f'. Did you mean {near[0]!r}?' if near else ''}"
