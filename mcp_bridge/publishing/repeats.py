"""What a served world answered under each idempotency key, so that a call whose answer was lost is not made again."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from ..errors import SourceError
from ..records import ToolResult

logger = logging.getLogger(__name__)

MOST_KEPT = 256
"""Answers of one world. A call is repeated right after its answer was lost, not hundreds of calls later."""


class _Call:
    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        self.name = name
        self.arguments = arguments
        self.result: ToolResult | None = None
        self.ended: anyio.Event | None = None
        """Made by whoever waits for it: most calls are never repeated."""


class Repeats:
    """The answers of one world, by the key that came in the call's `_meta` (`mcp_bridge.control.IDEMPOTENCY_META`)."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, _Call] = OrderedDict()

    async def once(
        self, key: object, name: str, arguments: Mapping[str, Any], call: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """What `call` gives, or what it gave before under this key. A repeat waits for the call that is under way.

        A call that raised is no answer: a repeat of it is made. Without a key (no string) every call is made. Raises
        `SourceError` where the key was another call's.
        """
        if not isinstance(key, str):
            return await call()
        while (known := self._calls.get(key)) is not None:
            if (known.name, known.arguments) != (name, arguments):
                raise SourceError(
                    f"the idempotency key of this call of {name!r} was that of another call, of {known.name!r}; every "
                    "call needs a key of its own"
                )
            if known.result is None:
                known.ended = known.ended or anyio.Event()
                await known.ended.wait()
            if known.result is not None:
                logger.info("a repeated call of %r is answered from memory", name)
                return known.result
        return await self._make(key, _Call(name, arguments), call)

    async def _make(self, key: str, made: _Call, call: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        self._calls[key] = made
        try:
            made.result = await call()
        finally:
            if made.result is None:
                del self._calls[key]
            if made.ended is not None:
                made.ended.set()
        while len(self._calls) > MOST_KEPT and next(iter(self._calls.values())).result is not None:
            self._calls.popitem(last=False)
        return made.result
