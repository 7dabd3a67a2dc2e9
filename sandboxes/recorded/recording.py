"""Recording from Python: any source of worlds, with a cassette that grows as its worlds are used."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Self

from mcp_bridge.errors import SourceError
from mcp_bridge.records import ToolResult
from mcp_bridge.world import Setup, World, WorldSource

from ..wrapping import WrappedSource, WrappedWorld
from .cassette import CallLine, CassetteWriter
from .scrubber import Scrubber


def record(
    source: WorldSource, path: str | os.PathLike[str], *, secrets: Iterable[str] = (), scrub: Iterable[str] = ()
) -> RecordingSource:
    """The same tools, every call of which is added to the cassette at `path`.

        async with mcp_bridge.connect("mcp.json") as toolset:
            result = await sdk.evaluate_async(record(toolset, "orders.jsonl"), tasks, verify)

    `source`: connected tools, a sandbox, or anything else with `tools` and `open_world`. `secrets`: values that are
    never written, beside those that a connected toolset knows. `scrub`: regular expressions for more of them.
    A file that holds a recording of the same tools is gone on with. Raises `SourceError` where it cannot be.
    """
    if not isinstance(source, WorldSource):
        raise SourceError(
            f"{source!r:.200} cannot be recorded; give something with `tools` and `open_world`: connect to it first, "
            "`async with mcp_bridge.connect(...) as toolset`"
        )
    given = tuple(secrets)
    label = ", ".join(dict.fromkeys(tool.source for tool in source.tools if tool.source))
    label = label or str(getattr(source, "name", "") or type(source).__name__)
    scrubber = Scrubber(lambda: (*given, *getattr(source, "secrets", ())), scrub)
    return RecordingSource(source, CassetteWriter(path, source.tools, source=label, scrubber=scrubber))


class RecordingSource(WrappedSource):
    """A source of worlds that records another one. Made by `record`."""

    def __init__(self, source: WorldSource, writer: CassetteWriter) -> None:
        super().__init__(source)
        self._writer = writer

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[RecordingWorld]:
        """A world of the source, and a session of its own in the cassette."""
        async with self.source.open_world(world_id, setup) as world:
            yield RecordingWorld(world, world_id, self._writer, setup)


class RecordingWorld(WrappedWorld):
    """One world, whose calls are written into the cassette as a session of it."""

    def __init__(self, world: World, world_id: str, writer: CassetteWriter, setup: Setup | None) -> None:
        super().__init__(world, world_id)
        self._writer = writer
        self._setup = setup
        self._session = writer.begin_session(setup)
        self._begun = 0
        self._lines: list[CallLine] = []

    def copied(self) -> Self:
        """See `WrappedWorld.copied`."""
        twin = super().copied()
        twin._lines = list(self._lines)
        return twin

    def begin_fork(self) -> None:
        """The cassette gets a session for a fork, too; it begins with the calls that were made until then."""
        self._session = self._writer.begin_session(self._setup)
        for line in self._lines:
            self._writer.append_call(line.model_copy(update={"session": self._session}))

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        order, self._begun = self._begun, self._begun + 1
        began = time.perf_counter()
        outcome: ToolResult | BaseException
        try:
            outcome = result = await self.world.call(name, arguments, call_id=call_id, timeout_s=timeout_s)
        except BaseException as error:
            outcome = error
            raise
        finally:
            # A call whose arguments are not an object, or whose tool is not a name, has nothing to be matched by.
            if isinstance(name, str) and isinstance(arguments, Mapping):
                took = time.perf_counter() - began
                self._lines.append(self._writer.add_call(self._session, order, name, arguments, outcome, took))
        return result
