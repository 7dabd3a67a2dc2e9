"""Faults that an `mcp.json` asks for. The bridge has none of its own: a package above it says who puts them in.

faults_are_put_in_by("sandboxes.faults.configured:faults_for")
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

# Nothing else is imported here, because the packages above do so when they are imported themselves.
if TYPE_CHECKING:
    from ..world import WorldSource

    Spoiler = Callable[[WorldSource], WorldSource]

_maker: list[str] = []


def faults_are_put_in_by(maker: str) -> None:
    """`maker`: `module:function`, loaded when it is first needed. The function is called with what stands under
    `faults` and the place where it stands, and returns a function from a source to the same one with faults; it raises
    `SourceError` for what it cannot read."""
    _maker[:] = [maker]


def spoiler_for(faults: Mapping[str, Any] | None, place: str) -> Spoiler:
    """What puts these faults into a source; without faults it stays as it is. Raises `SourceError` for others."""
    from ..errors import SourceError

    if faults is None:
        return lambda source: source
    if not _maker:
        raise SourceError(
            f"{place} has faults, and nobody here can put them in; `import sandboxes` before you connect, or remove "
            "them"
        )
    module, _, name = _maker[0].partition(":")
    found: Spoiler = getattr(importlib.import_module(module), name)(faults, place)
    return found
