"""An MCP server as a source of worlds: who gets a session of its own, and who shares one."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from .control import (
    CALL_META,
    CLOSE_WORLD,
    CONTROL_META,
    CONTROL_VERBS,
    DEFAULT_WORLD,
    OPEN_WORLD,
    WORLD_META,
    WORLD_STATE,
)
from .errors import CallTimeout, ServerDied, SourceError, ToolFailure
from .records import Tool, ToolAnnotations, ToolResult
from .sessions import CannotOpen, Session, open_session, was_refused
from .specs import ServerSpec
from .transports import Transport
from .world import Setup

if TYPE_CHECKING:
    import mcp_types

logger = logging.getLogger(__name__)


class ServerSource:
    """One MCP server. Made by `open_server`; its sessions live in the task group given there.

    One session serves all worlds where the server keeps worlds apart itself (control tools, see
    `mcp_bridge.control`), where every tool says that it only reads, or where `isolation` is `shared`.
    Otherwise each world gets a session of its own: over stdio that is a process of its own, which costs
    0.5 to 1.5 s to start and 60 to 80 MB; an in-process server object stays shared between its sessions,
    unless a factory makes one for each.

    The session that listed the tools is kept warm and given to the first world.
    """

    def __init__(
        self, transport: Transport, group: anyio.abc.TaskGroup, first: Session, *, verb_timeout_s: float
    ) -> None:
        """Raises `SourceError` where the server offers control tools that do not fit together."""
        self._transport = transport
        self._group = group
        self._verb_timeout_s = verb_timeout_s
        self._control = _control_tools(first.listed, self.spec.label)
        self.tools = [_as_tool(tool, self.spec.label) for tool in first.listed if not _is_control(tool)]
        only_reads = all(tool.annotations.read_only for tool in self.tools)
        isolation = self.spec.isolation or ("shared" if self._control or only_reads else "session")
        self._is_shared = isolation == "shared"
        self._warm: Session | None = first
        self._lock = anyio.Lock()
        # A server may have other clients that choose the same ids: a second run, or the one that was killed
        # before this one was resumed.
        self._nonce = secrets.token_hex(8)

    @property
    def spec(self) -> ServerSpec:
        return self._transport.spec

    @property
    def label(self) -> str:
        return self.spec.label

    @property
    def has_state(self) -> bool:
        return WORLD_STATE in self._control

    @property
    def can_setup(self) -> bool:
        return OPEN_WORLD in self._control

    def wire_id(self, world_id: str) -> str:
        """What the server is told as the world's id: no other client of it uses the same."""
        return f"{self._nonce}/{world_id}"

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[ServerWorld]:
        """A world on a session of its own or on the shared one. Raises `SourceError` for a setup it cannot do."""
        if setup and not self.can_setup:
            raise SourceError(
                f"{self.label} cannot set up a world with {sorted(setup)}: it has no control tools. "
                "Leave `setup` empty, or put a sandbox before the server."
            )
        session = await self._session()
        world = ServerWorld(self, session, world_id, self._control, self._verb_timeout_s)
        try:
            if self._control:
                await self._begin(world, setup or {})
            yield world
        finally:
            await self._finish(world)

    async def aclose(self) -> None:
        """End the session that no world owns. Called when the toolset closes, after all worlds."""
        if self._warm is not None:
            await self._warm.close()

    async def _begin(self, world: ServerWorld, setup: Setup) -> None:
        """Open the world in the server. Where the shared server turns out to have died while idle, once more."""
        try:
            await world.begin(setup)
        except ServerDied:
            if not self._is_shared:
                raise
            logger.warning("%s died while no world was open in this session; starting it again", self.label)
            world.session = await self._session()
            await world.begin(setup)

    async def _finish(self, world: ServerWorld) -> None:
        # Shielded: a cancelled rollout must not leave its world or its process behind. All waits are bounded.
        with anyio.CancelScope(shield=True):
            if world.begun and not world.session.dead:
                try:
                    await world.end()
                except ToolFailure as error:
                    # The world is over for us either way, and what the rollout saw was already judged.
                    logger.warning("closing world %r failed: %s", world.world_id, error)
            if not self._is_shared:
                await world.session.close()

    async def _session(self) -> Session:
        """The shared session, the warm one, or a new one. A dead or unanswering one is replaced."""
        async with self._lock:
            warm = self._warm
            if warm is not None:
                if not self._is_shared:
                    self._warm = None
                if await self._answers(warm):
                    return warm
            if self._is_shared:
                self._warm = None
                self._warm = await self._new_session()
                return self._warm
        return await self._new_session()

    async def _answers(self, session: Session) -> bool:
        if session.dead:
            return False
        if self._is_shared:
            return True
        try:
            # It may have waited for minutes since connect: ask before a rollout depends on it.
            await session.refresh()
        except ToolFailure as error:
            logger.warning("%s: the session kept warm is gone (%s); opening another", self.label, error)
            await session.close()
            return False
        return True

    async def _new_session(self) -> Session:
        try:
            session = await open_session(self._transport, self._group)
        except CannotOpen as error:
            raise ServerDied(f"no new session for a world: {error}") from error
        missing = {tool.name for tool in self.tools} - {tool.name for tool in session.listed}
        if missing:
            await session.close()
            raise ToolFailure(f"{self.label} no longer offers {sorted(missing)}, which it had at connect")
        return session


class ServerWorld:
    """One world on a session. Control calls and calls name it by its wire id."""

    def __init__(
        self,
        source: ServerSource,
        session: Session,
        world_id: str,
        control: Mapping[str, str],
        verb_timeout_s: float,
    ) -> None:
        self._source = source
        self.session = session
        self.world_id = world_id
        self._wire_id = source.wire_id(world_id)
        self._control = control
        self._verb_timeout_s = verb_timeout_s
        self.begun = False

    @property
    def tools(self) -> Sequence[Tool]:
        return self._source.tools

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,
        timeout_s: float | None = None,  # noqa: ARG002 - the toolset keeps the time
    ) -> ToolResult:
        # Every other world is named also where the server cannot keep worlds apart, so that it can refuse.
        is_named = bool(self._control) or self.world_id != DEFAULT_WORLD
        meta = {WORLD_META: self._wire_id} if is_named else {}
        if call_id is not None:
            meta[CALL_META] = call_id
        return await self.session.call(name, dict(arguments), meta)

    async def state(self) -> dict[str, Any] | None:
        """What `world_state` tells, or `None` where the server has no such control tool."""
        if WORLD_STATE not in self._control:
            return None
        result = await self._verb(WORLD_STATE, {})
        if result.is_error or not isinstance(result.structured, dict):
            raise ToolFailure(f"{self._source.label} did not tell the state of {self.world_id!r}: {result.text[:300]}")
        return result.structured

    async def begin(self, setup: Setup) -> None:
        """Open the world in a server with control tools. Raises `SourceError` where it refuses the setup."""
        # From here on the server may hold the world, whatever becomes of the answer.
        self.begun = True
        try:
            result = await self._verb(OPEN_WORLD, {"setup": dict(setup)})
        except ToolFailure as error:
            # A world of this id that it holds all the same is somebody else's, and not ours to close.
            self.begun = not was_refused(error)
            raise
        if result.is_error:
            self.begun = False
            raise SourceError(f"{self._source.label} refused the setup {dict(setup)!r}: {result.text[:500]}")

    async def end(self) -> None:
        result = await self._verb(CLOSE_WORLD, {})
        if result.is_error:
            raise ToolFailure(result.text[:300])

    async def _verb(self, verb: str, arguments: dict[str, Any]) -> ToolResult:
        arguments = {"world": self._wire_id, **arguments}
        try:
            with anyio.fail_after(self._verb_timeout_s):
                return await self.session.call(self._control[verb], arguments, {WORLD_META: self._wire_id})
        except TimeoutError:
            raise CallTimeout(
                f"{self._source.label} did not answer {verb!r} for world {self.world_id!r} "
                f"within {self._verb_timeout_s:g} s"
            ) from None


async def open_server(
    spec: ServerSpec, group: anyio.abc.TaskGroup, *, connect_timeout_s: float, call_timeout_s: float
) -> ServerSource:
    """Connect to a server. Raises `SourceError`, with the end of the server's stderr where it has one."""
    transport = Transport(spec, connect_timeout_s=connect_timeout_s)
    try:
        first = await open_session(transport, group)
    except CannotOpen as error:
        raise SourceError(str(error)) from error
    try:
        source = ServerSource(transport, group, first, verb_timeout_s=call_timeout_s)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await first.close()
        raise
    if not source.tools:
        with anyio.CancelScope(shield=True):
            await first.close()
        raise SourceError(f"{spec.label} offers no tools; check its arguments and its settings")
    return source


def _is_control(tool: mcp_types.Tool) -> bool:
    return CONTROL_META in (tool.meta or {})


def _control_tools(listed: Sequence[mcp_types.Tool], label: str) -> dict[str, str]:
    """Verb to tool name. Raises `SourceError` for an unknown verb or half a set."""
    control: dict[str, str] = {}
    for tool in listed:
        if not _is_control(tool):
            continue
        verb = (tool.meta or {})[CONTROL_META]
        if verb not in CONTROL_VERBS or verb in control:
            raise SourceError(
                f"{label}: tool {tool.name!r} has {CONTROL_META!r}: {verb!r}; each of {', '.join(CONTROL_VERBS)} "
                "may be there once"
            )
        control[verb] = tool.name
    missing = {OPEN_WORLD, CLOSE_WORLD} - set(control)
    if control and missing:
        raise SourceError(f"{label} offers the control tools {sorted(control)} but not {sorted(missing)}")
    return control


def _as_tool(tool: mcp_types.Tool, label: str) -> Tool:
    hints = tool.annotations
    annotations = (
        ToolAnnotations()
        if hints is None
        else ToolAnnotations(
            read_only=hints.read_only_hint,
            destructive=hints.destructive_hint,
            idempotent=hints.idempotent_hint,
            open_world=hints.open_world_hint,
        )
    )
    return Tool(
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=annotations,
        source=label,
    )
