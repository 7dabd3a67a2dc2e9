"""An MCP server as a source of worlds. It decides who gets a session of its own, tells the server of each world, and
keeps the worlds that outlive their session."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import operator
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from ..access.redaction import Hiding, redacted
from ..control_tools import (
    CALL_META,
    CLOSE_WORLD,
    CONTROL_META,
    CONTROL_VERBS,
    DEFAULT_WORLD,
    FORK_WORLD,
    LIVE_META,
    OPEN_WORLD,
    WORLD_META,
    WORLD_STATE,
)
from ..errors import CallTimeout, ServerDied, SourceError, ToolFailure
from ..guard import dangerous, with_users_word
from ..ledger import current_call_meta
from ..publishing.translation import tool_from_mcp
from ..records import LeftOut, ServerInfo, Tool, ToolResult, WorldKind
from ..sources.specs import WARM_PROCESSES, HttpSpec, ServerObjectSpec, ServerSpec, StdioSpec
from ..world import HeldCopy, Setup
from .handlers import Handlers
from .messages import UNUSABLE_META
from .pool import SessionPool, SharedSession
from .session import CannotOpen, Session, open_session
from .shared_files import SharedFiles
from .tasks import takes_tasks, wants_task
from .transports import Transport

if TYPE_CHECKING:
    import mcp_types

logger = logging.getLogger(__name__)

_MOST_PROCESSES = 128
_LONGEST_RESTART_S = 5.0
"""How long a server behind a URL is waited for that was there and cannot be reached."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0


class ServerSource:
    """One MCP server. Made by `open_server`; its sessions live in the task group given there.

    One session serves all worlds where the server keeps worlds apart itself (`mcp_bridge.control_tools`), where every
    tool says that it only reads, or where `isolation` is `shared`. Otherwise each world gets a session of its own, over
    stdio a process, which takes 0.5 to 1.5 s to start and 60 to 80 MB; an in-process server object stays shared, unless
    a factory makes one for each. The session that listed the tools is given to the first world; `pool` has the others.
    """

    def __init__(
        self, transport: Transport, group: anyio.abc.TaskGroup, first: Session, *, verb_timeout_s: float
    ) -> None:
        """Raises `SourceError` where the server offers control tools that do not fit together, or has options that
        would do nothing."""
        self._transport = transport
        self._group = group
        self.verb_timeout_s = verb_timeout_s
        self.hiding = Hiding(lambda: transport.spec.credentials, transport.spec.label)
        """Keeps the server's credentials out of its results."""
        self.control = _control_tools(first.listed, self.spec.label)
        self._live = _live_tools(first.listed, self.spec.label)
        self._listed = first.listed
        self._takes_tasks = takes_tasks(first.catalogue.client)
        named = first.catalogue.client.server_info
        told = {"name": named.name, "version": named.version} if named is not None else {}
        self.info = ServerInfo(label=self.label, protocol=first.protocol_version, **told)
        """The server, as the session that came first heard it."""
        self.tools = self._tools_of(first)
        self.state_tool = self._state_tool()
        self._changes = 0
        """Counts how often `tools` has changed."""
        isolation = self.spec.options.isolation or ("shared" if self.control or _only_read(self.tools) else "session")
        self.is_shared = isolation == "shared"
        is_apart = isinstance(self.spec, StdioSpec) and not self.is_shared and not self.control
        self.shared_files = SharedFiles(self.spec) if is_apart and isinstance(self.spec, StdioSpec) else None
        """What the processes of the worlds have in common; None where worlds are not kept apart by processes."""
        self.sessions: SessionPool | SharedSession = self._shared(first) if self.is_shared else self._pool(first)
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
        tools = [with_users_word(tool_from_mcp(tool, self.spec.label), self.spec.options) for tool in listed]
        return [self.hiding.tool(tool) for tool in tools]

    def _state_tool(self) -> str | None:
        """The tool that the user named to read the state. Raises `SourceError` where it cannot be that."""
        name = self.spec.options.world.state if self.spec.options.world is not None else None
        if name is None:
            return None
        place = f"{self.label}: toolbake.world.state is {name!r}"
        tool = next((tool for tool in self.tools if tool.name == name), None)
        if tool is None:
            raise SourceError(f"{place}, which is none of its tools: {', '.join(one.name for one in self.tools)}")
        if WORLD_STATE in self.control:
            raise SourceError(
                f"{place}, but its control tool {self.control[WORLD_STATE]!r} tells it; remove the option"
            )
        if not tool.annotations.read_only:
            raise SourceError(
                f"{place}, and nothing marks that tool as read-only. If it changes nothing, add "
                f'"read_only": ["{name}"] beside world'
            )
        if wanted := tool.input_schema.get("required"):
            raise SourceError(
                f"{place}, which needs the arguments {', '.join(map(str, wanted))}; name a tool that needs none"
            )
        return name

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
        warm = options.warm if options.warm is not None else WARM_PROCESSES if has_process else 0
        most = options.max_sessions or (_MOST_PROCESSES if has_process else math.inf)
        return SessionPool(self._new_session, self._group, first, label=self.label, warm=warm, most=most)

    @property
    def spec(self) -> ServerSpec:
        return self._transport.spec

    @property
    def label(self) -> str:
        return self.spec.label

    @property
    def revision(self) -> int:
        """Rises when the tools have changed, and when worlds are known to share a file: the tools of a copied folder
        are live from then on."""
        return self._changes + (self.shared_files is not None and self.shared_files.is_held)

    @property
    def has_state(self) -> bool:
        return WORLD_STATE in self.control or self.state_tool is not None

    @property
    def can_setup(self) -> bool:
        return OPEN_WORLD in self.control

    @property
    def can_fork(self) -> bool:
        """Only a server that has all worlds in one place can copy one of them."""
        return FORK_WORLD in self.control and self.is_shared

    @property
    def lenient_arguments(self) -> bool:
        """Simulated backends, which have control tools, keep to their schemas."""
        return not self.control or not self.simulated

    @property
    def world_kind(self) -> WorldKind:
        """What each rollout gets."""
        if self.control and self.simulated:
            return WorldKind(source=self.label, kind="control", is_fresh=True)
        only_reads = all(tool.annotations.read_only for tool in self.tools)
        if self.control:
            return WorldKind(source=self.label, kind="session", is_fresh=only_reads or None)
        if self.is_shared:
            return WorldKind(source=self.label, kind="shared", is_fresh=only_reads)
        if self.shared_files is None:
            is_own = isinstance(self.spec, ServerObjectSpec) and self.spec.factory is not None
            return WorldKind(source=self.label, kind="session", is_fresh=True if is_own or only_reads else None)
        shares = tuple(redacted(one, self.spec.credentials) for one in self.shared_files.found)
        has_own = isinstance(self.spec, StdioSpec) and self.spec.has_world_dir
        is_fresh: bool | None = only_reads or (has_own and not shares) or None
        if self.shared_files.is_held:
            is_fresh = False
        return WorldKind(source=self.label, kind="process", is_fresh=is_fresh, shares=shares, has_folder=has_own)

    @property
    def check_timeout_s(self) -> float:
        """How long a server that was given up on, or cannot be reached, may take to answer again."""
        limit_s = self._transport.connect_timeout_s
        return min(limit_s, _LONGEST_RESTART_S) if isinstance(self.spec, HttpSpec) else limit_s

    @property
    def simulated(self) -> bool:
        """Whether no call reaches anything outside its world."""
        return len(self.simulated_tools) == len(self.tools)

    @property
    def simulated_tools(self) -> list[Tool]:
        """All tools of a server that keeps a world for each rollout, but those that it names as live. Of one whose
        processes each work on a copy of the user's folder, those that do not say that they reach an open world; none
        once a file outside it changed during a call."""
        if self.control:
            return [tool for tool in self.tools if tool.name not in self._live]
        has_copy = isinstance(self.spec, StdioSpec) and self.spec.seed_folder is not None
        has_copy = has_copy and not (self.shared_files is not None and self.shared_files.may_be_written)
        return [tool for tool in self.tools if has_copy and not tool.annotations.open_world]

    @property
    def live_destructive(self) -> list[Tool]:
        """The tools that may destroy something real."""
        simulated = {tool.name for tool in self.simulated_tools}
        return dangerous([tool for tool in self.tools if tool.name not in simulated], self.spec.options)

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
        try:
            self._live = _live_tools(session.listed, self.label)
        except SourceError as error:
            raise ToolFailure(f"the tools have changed and cannot be used: {error}", delivery="not_sent") from error
        self._listed = session.listed
        tools = self._tools_of(session)
        if tools == self.tools:
            return
        if self.is_shared and not (self.spec.options.isolation or self.control or _only_read(tools)):
            raise ToolFailure(
                f"the tools of {self.label} have changed ({_told_changes(self.tools, tools)}). All worlds share one "
                "session of it because its tools only read when it was connected, and now they do not; connect again, "
                'or set "toolbake": {"isolation": "session"} for it',
                delivery="not_sent",
            )
        logger.warning(
            "the tools of %s have changed: %s. Worlds from now on have the new ones; those before keep what their "
            "policies were shown",
            self.label,
            _told_changes(self.tools, tools),
        )
        self.tools = tools
        self._changes += 1

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
                return await open_session(self._transport, self._group)
            except CannotOpen as error:
                if isinstance(self.spec, StdioSpec) or anyio.current_time() + pause >= deadline:
                    raise ServerDied(f"no new session for a world: {error}", delivery="not_sent") from error
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


class ServerWorld:
    """One world. Made by `ServerSource.open_world`.

    When its session ends, the world goes on in a new one wherever nothing is lost by that: the session is shared, or
    the server keeps nothing for it, or only reading tools have been called, or the server has control tools and still
    knows the world. Otherwise the world is lost, and every further call says so.
    """

    def __init__(
        self, source: ServerSource, session: Session, world_id: str, *, origin: ServerWorld | None = None
    ) -> None:
        """`origin`: the world that it goes on from; None: it begins with a setup."""
        self._source = source
        self._origin = origin
        self._copies = 0
        self.session = session
        self.world_id = world_id
        self._wire_id = source.wire_id(world_id)
        self._is_named = bool(source.control) or world_id != DEFAULT_WORLD
        self._tools = tuple(source.tools)
        self._reads = {tool.name for tool in self._tools if tool.annotations.read_only}
        self._moving = anyio.Lock()
        self._setup: Setup = {}
        self._touches = 0
        """How many calls may have changed something."""
        self._is_unsure = False
        """Whether the server, which has control tools, may have forgotten the world."""
        self._lost: str | None = None
        self._shown: set[str] | None = None
        """The names of the tools that this world shows; None where it shows all of them."""
        self.begun = False

    @property
    def tools(self) -> Sequence[Tool]:
        if self._shown is None:
            return self._tools
        return [tool for tool in self._tools if tool.name in self._shown]

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """`timeout_s` is kept by the toolset. Half of it at most goes into finding out whether the session lives."""
        session = self.session
        if session.doubtful or self._is_unsure or session.dead:
            session = await self._usable(math.inf if timeout_s is None else timeout_s / 2)
        touches = name not in self._reads
        self._touches += touches
        given = arguments if type(arguments) is dict else dict(arguments)
        shared = self._source.shared_files if touches else None
        files = None if shared is None else shared.before(session.process_id)
        try:
            result = await session.call(name, given, self._meta(call_id))
            if files is not None and shared is not None and session.process_id is not None:
                shared.after(session.process_id, files, name)
            return self._source.hiding.result(result)
        except ToolFailure as error:
            self._touches -= touches and error.delivery in ("not_sent", "refused")
            if isinstance(error, ServerDied) or error.delivery == "refused":
                self._is_unsure = bool(self._source.control)
            error.world_lost = session.dead and not self._can_move(session)
            raise

    def _meta(self, call_id: str | None) -> dict[str, Any]:
        # Every other world is named also where the server cannot keep worlds apart, so that it can refuse.
        meta: dict[str, Any] = {WORLD_META: self._wire_id} if self._is_named else {}
        if (call := current_call_meta()) is not None:
            meta.update(call)
        elif call_id is not None:
            meta[CALL_META] = call_id
        return meta

    async def state(self) -> dict[str, Any] | None:
        """What the control tool `world_state` tells, or the tool that the user named for it; `None` without either."""
        if not self._source.has_state:
            return None
        await self._usable()
        return await (self._state() if WORLD_STATE in self._source.control else self._read_state())

    async def begin(self, setup: Setup) -> None:
        """Open the world in a server with control tools.

        Raises `SourceError` where it refuses the setup, `ToolFailure` where it does not fork the world's origin.
        """
        self._setup = setup
        # From here on the server may hold the world, whatever becomes of the answer.
        self.begun = True
        try:
            if self._origin is not None:
                await self._go_on_from(self._origin)
                return
            result = await self._verb(OPEN_WORLD, {"setup": dict(setup)})
        except ToolFailure as error:
            # A world of this id that it holds all the same is somebody else's, and not ours to close.
            self.begun = error.delivery == "unknown"
            raise
        if result.is_error:
            self.begun = False
            raise SourceError(f"{self._source.label} refused the setup {dict(setup)!r}: {self._quoted(result, 500)}")
        told = result.structured.get("tools") if isinstance(result.structured, dict) else None
        self._shown = {str(name) for name in told} if isinstance(told, list) else None

    async def _go_on_from(self, origin: ServerWorld) -> None:
        self._shown = origin._shown
        result = await self._verb(FORK_WORLD, {"world": origin._wire_id, "into": self._wire_id})
        if result.is_error:
            raise ToolFailure(
                f"{self._source.label} did not fork world {origin.world_id!r}: {self._quoted(result, 300)}",
                delivery="answered",
            )

    async def fork(self) -> HeldCopy:
        """See `ForkableWorld.fork`; a world of its own in the server, which nobody calls."""
        await self._usable()
        self._copies += 1
        async with AsyncExitStack() as stack:
            opened = self._source.open_copy(f"{self.world_id}/copy-{self._copies}", self)
            world = await stack.enter_async_context(opened)
            return HeldCopy(lambda world_id: self._source.open_copy(world_id, world), stack.pop_all().aclose)

    async def end(self) -> None:
        result = await self._verb(CLOSE_WORLD, {})
        if result.is_error:
            raise ToolFailure(self._quoted(result, 300))

    async def move(self) -> None:
        """Go on in another session; the world is not looked for there."""
        # First: as long as it is open, it may take the place of the next one.
        with anyio.CancelScope(shield=True):
            await self._source.sessions.give_back(self.session)
        self.session = await self._source.sessions.lease()

    async def _usable(self, most_s: float = math.inf) -> Session:
        """The session to call in; asking it takes `most_s` at most.

        Raises `ServerDied` where the world is lost or no session is to be had.
        """
        if not (self.session.dead or self.session.doubtful or self._is_unsure):
            return self.session
        async with self._moving:
            if self._lost is not None:
                raise ServerDied(self._lost, delivery="not_sent", world_lost=True)
            if self.session.doubtful and not self.session.dead:
                # Raises where a server behind a URL is still away; what is dead after it is left.
                try:
                    await self.session.check(min(most_s, self._source.check_timeout_s))
                except ServerDied:
                    if not self.session.dead:
                        raise
            moves = self.session.dead
            if moves:
                await self._leave_dead()
            if self._source.control and (moves or self._is_unsure):
                await self._find(moved=moves)
            return self.session

    async def _leave_dead(self) -> None:
        if not self._can_move(self.session):
            raise self._is_lost("its session ended, and what the server held for it with it")
        logger.warning("world %r goes on in a new session: the last one to %s ended", self.world_id, self._source.label)
        await self.move()

    def _can_move(self, session: Session) -> bool:
        return bool(self._source.control) or self._source.is_shared or not session.keeps_state or self._touches == 0

    async def _find(self, *, moved: bool) -> None:
        """Make sure that a server with control tools still has the world; open it again where nothing had happened."""
        self._is_unsure = True
        found = not moved
        if WORLD_STATE in self._source.control:
            try:
                found = await self._state() is not None
            except ServerDied:
                raise
            except ToolFailure as error:
                found = False
                logger.warning("world %r is not found: %s", self.world_id, error)
        if not found:
            if self._touches:
                raise self._is_lost("the server does not know it any more")
            try:
                await self.begin(self._setup)
            except ServerDied:
                raise
            except (ToolFailure, SourceError) as error:
                raise self._is_lost(f"it cannot be opened again: {error}") from error
        self._is_unsure = False

    def _is_lost(self, why: str) -> ServerDied:
        self._lost = f"world {self.world_id!r} in {self._source.label} is lost: {why}"
        if self.session.dead:
            self._lost += f" ({self.session.epitaph})"
        return ServerDied(self._lost, delivery="not_sent", world_lost=True)

    async def _state(self) -> dict[str, Any]:
        result = await self._verb(WORLD_STATE, {})
        if result.is_error:
            raise ToolFailure(
                f"{self._source.label} did not tell the state of {self.world_id!r}: {self._quoted(result, 300)}"
            )
        if not isinstance(result.structured, dict):
            raise ToolFailure(
                f"{self._source.label}: its control tool {self._source.control[WORLD_STATE]!r} answered without "
                "structured content, so the state cannot be read. Annotate its return as dict[str, Any]: with a bare "
                f"dict, or without an annotation, a server sends text alone. It answered {self._quoted(result, 200)!r}"
            )
        return dict(result.structured)

    async def _read_state(self) -> dict[str, Any]:
        tool = self._source.state_tool
        assert tool is not None
        result = await self._asked(tool, {}, self._meta(None))
        if result.is_error:
            raise ToolFailure(f"{self._source.label}: {tool!r} did not tell the state: {self._quoted(result, 300)}")
        return state_tables(result)

    async def _verb(self, verb: str, arguments: dict[str, Any]) -> ToolResult:
        arguments = {"world": self._wire_id, **arguments}
        return await self._asked(self._source.control[verb], arguments, {WORLD_META: self._wire_id})

    async def _asked(self, tool: str, arguments: dict[str, Any], meta: dict[str, Any]) -> ToolResult:
        limit_s = self._source.verb_timeout_s
        try:
            with anyio.fail_after(limit_s):
                return self._source.hiding.result(await self.session.call(tool, arguments, meta))
        except TimeoutError:
            raise CallTimeout(
                f"{self._source.label} did not answer {tool!r} for world {self.world_id!r} within {limit_s:g} s"
            ) from None

    def _quoted(self, result: ToolResult, most: int) -> str:
        """The beginning of an answer, for an error or the log. Cut last: a part of a secret is not found."""
        return self.session.notes.redact(result.text)[:most]


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
        if not source.tools:
            dropped = ", ".join(f"{one.tool!r} ({one.reason})" for one in source.left_out)
            told = f"Left out are {dropped}" if dropped else "Check its arguments and its settings"
            raise SourceError(f"{spec.label} offers no tools that can be used. {told}")
    except BaseException:
        with anyio.CancelScope(shield=True):
            await first.close()
        raise
    return source


def _only_read(tools: Iterable[Tool]) -> bool:
    return all(tool.annotations.read_only for tool in tools)


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


def _live_tools(listed: Sequence[mcp_types.Tool], label: str) -> frozenset[str]:
    """The names that `LIVE_META` lists. Raises `SourceError` for what does not list the server's tools: a tool that was
    meant would count as simulated."""
    plain, live = [tool.name for tool in listed if not _is_control(tool)], set[str]()
    for tool in listed:
        names = (tool.meta or {}).get(LIVE_META, [])
        if not isinstance(names, list) or any(name not in plain for name in names):
            raise SourceError(
                f"{label}: tool {tool.name!r} has {LIVE_META!r}: {names!r:.200}; it must be a list of the names of "
                f"tools that reach something outside of their world. The tools are: {', '.join(plain)}"
            )
        live.update(names)
    return frozenset(live)


# ---------------------------------------------------------------------------------------------------------------------
# The state of a world as tables, out of what a server's own tool answers

_KEYS = ("id", "key", "name")
"""The columns that name a row, in this order."""
_RESULT = "result"
"""The table of an answer that is not an object; servers wrap such answers under this name too."""

Tables = dict[str, dict[str, dict[str, Any]]]
"""Table -> key -> column -> value."""


def state_tables(result: ToolResult) -> Tables:
    """The answer as tables, so that two of them can be compared row by row.

    A list of objects is a table with its rows keyed by `id`, `key` or `name`, whichever all have and no two share;
    otherwise by their whole content. Other lists are tables of their values. A value is the table of one row "".

    Example: `{"entities": [{"name": "Ann", "age": 7}]}` is `{"entities": {"Ann": {"name": "Ann", "age": 7}}}`
    """
    content = _content(result)
    parts = content if isinstance(content, Mapping) else {_RESULT: content}
    return {str(name): _table(value) for name, value in parts.items()}


def _content(result: ToolResult) -> Any:
    if result.structured is not None:
        return result.structured
    try:
        return json.loads(result.text)
    except ValueError:
        return result.text


def _table(value: Any) -> dict[str, dict[str, Any]]:
    if isinstance(value, Mapping):
        if all(isinstance(row, Mapping) for row in value.values()):
            return {str(key): dict(row) for key, row in value.items()}
        return {"": dict(value)}
    if not isinstance(value, list):
        return {"": {"value": value}}
    are_rows = all(isinstance(row, Mapping) for row in value)
    column = next((name for name in _KEYS if are_rows and _names_all(name, value)), None)
    counts: Counter[str] = Counter()
    table = {}
    for one in value:
        key = _text(one if column is None else one[column])
        counts[key] += 1
        table[key if counts[key] == 1 else f"{key} #{counts[key]}"] = dict(one) if are_rows else {"value": one}
    return table


def _names_all(column: str, rows: list[Mapping[str, Any]]) -> bool:
    values = [row.get(column) for row in rows]
    return all(isinstance(one, str | int) for one in values) and len(set(map(_text, values))) == len(values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
