"""An MCP server as a source of worlds: who gets a session of its own, and who shares one."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from ..access.hiding import Hiding
from ..access.redaction import redacted
from ..control import CLOSE_WORLD, CONTROL_META, CONTROL_VERBS, FORK_WORLD, OPEN_WORLD, WORLD_STATE
from ..errors import ServerDied, SourceError, ToolFailure
from ..guard.allow_list import with_users_word
from ..records import LeftOut, ServerInfo, Tool, ToolAnnotations, WorldKind
from ..sources.specs import HttpSpec, ServerObjectSpec, ServerSpec, StdioSpec
from ..world import Setup
from .handlers import Handlers
from .listed_tools import UNUSABLE_META
from .opening import open_session
from .pool import SessionPool, Sessions, SharedSession
from .session import CannotOpen, Session
from .shared_files import SharedFiles
from .tasks import wants_task
from .transports import Transport
from .worlds import ServerWorld

if TYPE_CHECKING:
    import mcp_types

logger = logging.getLogger(__name__)

_WARM_PROCESSES = 2
_MOST_PROCESSES = 128
_LONGEST_RESTART_S = 5.0
"""How long a server behind a URL is waited for that was there and cannot be reached."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0


class ServerSource:
    """One MCP server. Made by `open_server`; its sessions live in the task group given there.

    One session serves all worlds where the server keeps worlds apart itself (control tools, see
    `mcp_bridge.control`), where every tool says that it only reads, or where `isolation` is `shared`.
    Otherwise each world gets a session of its own: over stdio that is a process of its own, which costs
    0.5 to 1.5 s to start and 60 to 80 MB; an in-process server object stays shared between its sessions,
    unless a factory makes one for each.

    The session that listed the tools is given to the first world. How many wait for the next ones, and how many there
    may be, is in `mcp_bridge.sessions.pool`; which worlds outlive their session is in `mcp_bridge.sessions.worlds`.
    """

    def __init__(
        self, transport: Transport, group: anyio.abc.TaskGroup, first: Session, *, verb_timeout_s: float
    ) -> None:
        """Raises `SourceError` where the server offers control tools that do not fit together, or has options that
        would do nothing."""
        self._transport = transport
        self._group = group
        self.verb_timeout_s = verb_timeout_s
        is_ours = isinstance(transport.spec, ServerObjectSpec)
        self.hiding = None if is_ours else Hiding(lambda: transport.spec.credentials, transport.spec.label)
        """Keeps the server's credentials out of its results. None for an object of this process, which has none."""
        self.control = _control_tools(first.listed, self.spec.label)
        self._listed = first.listed
        self._takes_tasks = first.takes_tasks
        self._info = ServerInfo(label=self.label, protocol=first.protocol_version, **first.names)
        self.tools = self._tools_of(first)
        self.revision = 0
        """Counts how often `tools` has changed."""
        only_reads = all(tool.annotations.read_only for tool in self.tools)
        isolation = self.spec.options.isolation or ("shared" if self.control or only_reads else "session")
        self.is_shared = isolation == "shared"
        is_apart = isinstance(self.spec, StdioSpec) and not self.is_shared and not self.control
        self.shared_files = SharedFiles(self.spec) if is_apart and isinstance(self.spec, StdioSpec) else None
        """What the processes of the worlds have in common; None where worlds are not kept apart by processes."""
        self.sessions: Sessions = self._shared(first) if self.is_shared else self._pool(first)
        # A server may have other clients that choose the same ids: a second run, or the one that was killed
        # before this one was resumed.
        self._nonce = secrets.token_hex(8)

    @property
    def left_out(self) -> list[LeftOut]:
        """The tools that no plain call reaches."""
        reasons = [(tool.name, self._reason_against(tool)) for tool in self._listed]
        return [LeftOut(tool=name, source=self.label, reason=reason) for name, reason in reasons if reason]

    def _reason_against(self, tool: mcp_types.Tool) -> str | None:
        if not self._takes_tasks and wants_task(tool):
            return "it wants to be called as a task, and its server does not say that it takes tasks"
        reason = (tool.meta or {}).get(UNUSABLE_META)
        return None if reason is None else str(reason)

    def _tools_of(self, session: Session) -> list[Tool]:
        listed = [tool for tool in session.listed if not _is_control(tool) and self._reason_against(tool) is None]
        tools = [with_users_word(_as_tool(tool, self.spec.label), self.spec.options) for tool in listed]
        return tools if self.hiding is None else [self.hiding.tool(tool) for tool in tools]

    def _shared(self, first: Session) -> SharedSession:
        for option in ("warm", "max_sessions"):
            if getattr(self.spec.options, option) is not None:
                raise SourceError(
                    f"{self.label}: {option} does nothing, because all worlds share one session; remove it, or set "
                    'isolation to "session"'
                )
        return SharedSession(self._new_session, first)

    def _pool(self, first: Session) -> SessionPool:
        options, has_process = self.spec.options, isinstance(self.spec, StdioSpec)
        warm = options.warm if options.warm is not None else _WARM_PROCESSES if has_process else 0
        most = options.max_sessions or (_MOST_PROCESSES if has_process else math.inf)
        return SessionPool(self._new_session, self._group, first, label=self.label, warm=warm, most=most)

    @property
    def spec(self) -> ServerSpec:
        return self._transport.spec

    @property
    def label(self) -> str:
        return self.spec.label

    @property
    def info(self) -> ServerInfo:
        """The server, as the session that came first heard it."""
        return self._info

    @property
    def has_state(self) -> bool:
        return WORLD_STATE in self.control

    @property
    def can_setup(self) -> bool:
        return OPEN_WORLD in self.control

    @property
    def can_fork(self) -> bool:
        """Only a server that has all worlds in one place can copy one of them."""
        return FORK_WORLD in self.control and self.is_shared

    @property
    def world_kind(self) -> WorldKind:
        """What each rollout gets."""
        if self.control:
            return WorldKind(source=self.label, kind="control", is_fresh=True)
        only_reads = all(tool.annotations.read_only for tool in self.tools)
        if self.is_shared:
            return WorldKind(source=self.label, kind="shared", is_fresh=only_reads)
        if self.shared_files is None:
            is_own = isinstance(self.spec, ServerObjectSpec) and self.spec.factory is not None
            return WorldKind(source=self.label, kind="session", is_fresh=True if is_own or only_reads else None)
        shares = tuple(redacted(one, self.spec.credentials) for one in self.shared_files.found)
        has_own = isinstance(self.spec, StdioSpec) and self.spec.has_world_dir
        is_fresh: bool | None = only_reads or (has_own and not shares) or None
        if self.shared_files.was_written:
            is_fresh = False
        return WorldKind(source=self.label, kind="process", is_fresh=is_fresh, shares=shares)

    @property
    def check_timeout_s(self) -> float:
        """How long a server that was given up on, or cannot be reached, may take to answer again."""
        limit_s = self._transport.connect_timeout_s
        return min(limit_s, _LONGEST_RESTART_S) if isinstance(self.spec, HttpSpec) else limit_s

    @property
    def simulated(self) -> bool:
        """Whether the server keeps a world for each rollout: then no call reaches anything outside it."""
        return bool(self.control)

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
        async with self._opened(ServerWorld(self, await self._lease(), world_id), setup or {}) as world:
            yield world

    @contextlib.asynccontextmanager
    async def open_copy(self, world_id: str, origin: ServerWorld) -> AsyncIterator[ServerWorld]:
        """A world that goes on from where `origin` is. Raises `ToolFailure` where the server does not fork it."""
        world = ServerWorld(self, await self.sessions.lease(), world_id, origin=origin)
        async with self._opened(world, {}):
            yield world

    @contextlib.asynccontextmanager
    async def _opened(self, world: ServerWorld, setup: Setup) -> AsyncIterator[ServerWorld]:
        try:
            if self.control:
                await self._begin(world, setup)
            yield world
        finally:
            await self._finish(world)

    async def aclose(self) -> None:
        """End the sessions that no world owns. Called when the toolset closes, after all worlds."""
        await self.sessions.aclose()

    async def _lease(self) -> Session:
        session = await self.sessions.lease()
        try:
            await self._look_again(session)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.sessions.give_back(session)
            raise
        return session

    async def _look_again(self, session: Session) -> None:
        """Take over the session's tools where they are others than those of the sessions before."""
        await session.load_changes()
        if len(session.listed) == len(self._listed) and all(map(operator.is_, session.listed, self._listed)):
            return
        self._listed = session.listed
        tools = self._tools_of(session)
        if tools == self.tools:
            return
        logger.warning(
            "the tools of %s have changed: %s. Worlds from now on have the new ones; those before keep what their "
            "policies were shown",
            self.label,
            _told_changes(self.tools, tools),
        )
        self.tools = tools
        self.revision += 1

    async def _begin(self, world: ServerWorld, setup: Setup) -> None:
        """Open the world in the server. Where the server turns out to have died while idle, once more."""
        try:
            await world.begin(setup)
        except ServerDied:
            logger.warning("%s died while no world was open in this session; starting it again", self.label)
            await world.move()
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
            await self.sessions.give_back(world.session)

    async def _new_session(self) -> Session:
        """Raises `ToolFailure`. A server behind a URL that is away is waited for."""
        deadline, pause = anyio.current_time() + self.check_timeout_s, _FIRST_PAUSE_S
        while True:
            try:
                session = await open_session(self._transport, self._group)
                break
            except CannotOpen as error:
                if isinstance(self.spec, StdioSpec) or anyio.current_time() + pause >= deadline:
                    raise ServerDied(f"no new session for a world: {error}", delivery="not_sent") from error
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return session


async def open_server(
    spec: ServerSpec,
    group: anyio.abc.TaskGroup,
    *,
    connect_timeout_s: float,
    call_timeout_s: float,
    handlers: Handlers | None = None,
) -> ServerSource:
    """Connect to a server. Raises `SourceError`, with the end of the server's stderr where it has one."""
    transport = Transport(spec, connect_timeout_s=connect_timeout_s, handlers=handlers)
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
        dropped = ", ".join(f"{one.tool!r} ({one.reason})" for one in source.left_out)
        told = f"Left out are {dropped}" if dropped else "Check its arguments and its settings"
        raise SourceError(f"{spec.label} offers no tools that can be used. {told}")
    return source


def _told_changes(before: Sequence[Tool], after: Sequence[Tool]) -> str:
    old, new = {tool.name: tool for tool in before}, {tool.name: tool for tool in after}
    kinds = {
        "new": [name for name in new if name not in old],
        "gone": [name for name in old if name not in new],
        "changed": [name for name in new if name in old and new[name] != old[name]],
    }
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names) or "in another order"


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
