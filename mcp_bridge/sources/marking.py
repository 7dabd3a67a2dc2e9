"""What a Python function that is a tool says of its behaviour, as a server's tools do in their annotations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import SourceError
from ..records import ToolAnnotations

_MARK = "__toolbake_annotations__"

Function = TypeVar("Function", bound=Callable[..., Any])


def behaves(
    *,
    read_only: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool | None = None,
) -> Callable[[Function], Function]:
    """A decorator that says of a function what it does, for the guard and for calls after a lost answer.

        @mcp_bridge.behaves(read_only=True)
        def get_order(order_id: str) -> str: ...

    Raises `SourceError` where nothing is said, or that it only reads and destroys.
    """
    said = ToolAnnotations(read_only=read_only, destructive=destructive, idempotent=idempotent, open_world=open_world)
    if said == ToolAnnotations():
        raise SourceError("behaves() says nothing; give read_only, destructive, idempotent or open_world")
    if read_only and destructive:
        raise SourceError("behaves() has both read_only and destructive; what only reads destroys nothing")

    def mark(function: Function) -> Function:
        setattr(function, _MARK, said)
        return function

    return mark


def behaviour_of(function: Callable[..., Any]) -> ToolAnnotations:
    """What was said of a function, or of the one inside a `partial`."""
    while isinstance(function, functools.partial) and not hasattr(function, _MARK):
        function = function.func
    found = getattr(function, _MARK, None)
    return found if isinstance(found, ToolAnnotations) else ToolAnnotations()
