"""`publish`: tools of any kind as an MCP server object.

A call meets the world that its client opened with the control tools, else that of its session; clients without sessions
(revision 2026-07-28) share one over HTTP, and have their own over stdio and in process. A world is opened by the first
call that needs it and closed when its session ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.abc

from ..control_tools import (
    CALL_META,
    CLOSE_WORLD,
    CONTROL_ENV,
    CONTROL_VERBS,
    DEFAULT_WORLD,
    FORK_WORLD,
    IDEMPOTENCY_META,
    OPEN_WORLD,
    WORLD_META,
    WORLD_STATE,
)
from ..errors import BridgeError, SourceError, kind_of, positive
from ..records import LeftOut, Tool, ToolResult
from ..safe_text import whole_characters
from ..sessions.handlers import Handlers, LogEntry, LogListener, Progress, log_listener, progress_listener
from ..sources.connecting import FaultInjection, connect
from ..toolsets.schema_checks import result_check
from ..toolsets.toolset import Toolset
from ..world import ForkableWorld, World, WorldSource, not_simulated
from .listener import serve_app, serve_stdio

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

logger = logging.getLogger(__name__)

MAX_WORLDS = 1000
IDLE_S = 1800.0

_WITHOUT_SESSION = object()
_KEY = "toolbake/world_of_session"


# No refusal here may hold the word "session": clients take such a one for the end of theirs.


def publish(
    source: WorldSource,
    *,
    name: str = "toolbake",
    version: str | None = None,
    control: bool | None = None,
    max_worlds: int = MAX_WORLDS,
    idle_s: float = IDLE_S,
) -> Server[Any]:
    """An MCP server object of the SDK with the tools of `source`: a connected toolset, a sandbox, any `WorldSource`.

    `name`, `version`: what clients are told of the server; the version is that of toolbake by default. `control`: offer
    the control tools, by which a client holds a world for each of its rollouts; they name the tools that `source` does
    not simulate. By default they are offered if the environment says `TOOLBAKE_CONTROL=1`. `max_worlds`: how many
    worlds may be open at once; further ones are refused.
    `idle_s`: seconds after which a world that a client opened by name and no longer uses is closed.

    Results and the tools' errors go out as they are, but for the structured content of an error that is against the
    tool's output schema: its text says the same. Raises `SourceError` where `source` cannot open worlds.
    """
    if not isinstance(source, WorldSource) or isinstance(source, type):
        raise SourceError(
            f"cannot publish {kind_of(source)}; give a toolset of `mcp_bridge.connect`, a sandbox, or anything "
            "else with `tools` and `open_world`"
        )
    if isinstance(max_worlds, bool) or not isinstance(max_worlds, int) or max_worlds < 1:
        raise SourceError(f"max_worlds is {max_worlds!r}; it must be a whole number, 1 or more")
    positive("idle_s", idle_s)
    offered = os.environ.get(CONTROL_ENV) == "1" if control is None else control
    publication = _Publication(source, offered)

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[Desk]:
        async with Desk(source, max_worlds=max_worlds, idle_s=idle_s).running() as desk:
            yield desk

    def control_tools() -> list[Any]:
        from .translation import control_tools_as_mcp

        verbs = [verb for verb in CONTROL_VERBS if verb != FORK_WORLD or getattr(source, "can_fork", False)]
        return control_tools_as_mcp(verbs, live=[tool.name for tool in not_simulated(source)])

    more = control_tools if offered else list
    own = version or _own_version()
    return _server(name, own, lambda _: source.tools, publication.answer, more_tools=more, lifespan=lifespan)


def _own_version() -> str:
    try:
        return metadata.version("toolbake")
    except metadata.PackageNotFoundError:  # the packages alone, on a path
        return ""


class FoundWorld(Protocol):
    """The world that a request meets."""

    @property
    def tools(self) -> Sequence[Tool]: ...

    async def answer(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """What a call of a tool returns. Raises `BridgeError` where something broke."""


def publish_found(find: Callable[[Any], FoundWorld]) -> Server[Any]:
    """An MCP server object of the SDK whose every request over HTTP meets the world that `find` gives for it, whatever
    its session: by its key, say. `find` raises `BridgeError` for a request that has none."""

    async def answer(context: Any, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await find(context.request).answer(tool, arguments)

    def shown(context: Any) -> Sequence[Tool]:
        return find(context.request).tools

    return _server("toolbake", _own_version(), shown, answer)


def _server(
    name: str,
    version: str,
    shown: Callable[[Any], Sequence[Tool]],
    answer: Callable[[Any, str, Mapping[str, Any]], Awaitable[ToolResult]],
    *,
    more_tools: Callable[[], list[Any]] = list,
    **options: Any,
) -> Server[Any]:
    """`shown`: the tools for the context of a request; `answer`: what a call returns."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    from .translation import failure_as_mcp, keep_level, levels_of, log_as_mcp, progress_of, result_as_mcp, tool_as_mcp

    async def list_tools(context: Any, _: Any) -> types.ListToolsResult:
        try:
            tools = [tool_as_mcp(tool, protocol=context.protocol_version) for tool in shown(context)]
        except BridgeError as error:
            raise failure_as_mcp(error) from error
        return types.ListToolsResult(tools=tools + more_tools())

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        report = progress_of(context)

        async def pass_on(told: Progress) -> None:
            assert report is not None
            await report(told.progress, told.total, told.message and whole_characters(told.message))

        async def tell(told: LogEntry) -> None:
            if told.level in levels_of(context, _kept(context)):
                await context.session.send_notification(log_as_mcp(told), related_request_id=context.request_id)

        listening = progress_listener.set(pass_on if report is not None else None)
        hearing = log_listener.set(LogListener(_caller(context), tell))
        try:
            output = next((tool.output_schema for tool in shown(context) if tool.name == params.name), None)
            result = await answer(context, params.name, params.arguments or {})
        except BridgeError as error:
            raise failure_as_mcp(error) from error
        except anyio.get_cancelled_exc_class():
            logger.warning("a call of %s was cancelled: its client gave it up or left, or the server ends", params.name)
            raise
        finally:
            progress_listener.reset(listening)
            log_listener.reset(hearing)
        if context.request is not None and await context.request.is_disconnected():
            logger.warning("a call of %s was carried out, but its client had left", params.name)
        if result.is_error and output is not None and not _fits(result, params.name, output):
            result = result.model_copy(update={"structured": None})
        return result_as_mcp(result, protocol=context.protocol_version, output=output)

    async def set_level(context: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        return keep_level(_kept(context), params)

    server = Server(name, version=version, on_list_tools=list_tools, on_call_tool=call_tool, **options)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    return server


def _fits(error: ToolResult, name: str, output: Mapping[str, Any]) -> bool:
    """Whether an error's structured content fits the output schema, by which some clients judge errors, too, and raise
    in place of showing the text."""
    check = result_check(name, json.dumps(output))
    return error.structured is None or check is None or check(error.structured) is None


class _Publication:
    """What is served, and how a call finds its world."""

    def __init__(self, source: WorldSource, control: bool) -> None:
        from ..toolsets.validation import ArgumentChecker
        from .translation import CONTROL_TOOLS

        self.source = source
        self.control = control
        self._verbs = {tool.name: verb for verb, tool in CONTROL_TOOLS.items()} if control else {}
        self._checker = ArgumentChecker(CONTROL_TOOLS.values())
        taken = [tool.name for tool in source.tools if tool.name in self._verbs]
        if taken:
            raise SourceError(f"the tool {taken[0]!r} has the name of a control tool; rename it, or serve without them")

    async def answer(self, context: Any, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        desk: Desk = context.lifespan_context
        if name in self._verbs:
            problem = self._checker.problem(name, arguments)
            if problem:
                raise SourceError(problem)
            return await self._control(desk, self._verbs[name], arguments)
        held = await self._world(desk, context)
        return await call_in(held, name, arguments, context.meta or {})

    async def _world(self, desk: Desk, context: Any) -> HeldWorld:
        named = (context.meta or {}).get(WORLD_META)
        if named is not None and self.control:
            return desk.find(named)
        if _has_session(context):
            connection = _connection_of(context)
            if connection is None:  # nothing tells of a session's end then
                return await desk.of(_session_id(context), idles=context.request is not None)
            key: Hashable = connection.state.get(_KEY)
            if key is None:
                key = connection.state[_KEY] = object()
                connection.exit_stack.push_async_callback(desk.close, key)
            return await desk.of(key)
        if context.request is not None and named is not None and not _is_default(named):
            raise SourceError(
                f"there is no world {named!r} here: all HTTP clients that speak this revision of MCP share one world. "
                "Start the server with control tools (TOOLBAKE_CONTROL=1), or speak a revision that begins with a "
                'handshake: "protocol": "2025-11-25"'
            )
        return await desk.of(_WITHOUT_SESSION)

    async def _control(self, desk: Desk, verb: str, arguments: Mapping[str, Any]) -> ToolResult:
        world: str = arguments["world"]
        found: dict[str, Any] | None = None
        if verb == OPEN_WORLD:
            opened: list[Tool] = list((await desk.open(world, arguments.get("setup"))).tools)
            if len(opened) != len(self.source.tools):
                found = {"tools": [tool.name for tool in opened]}
        elif verb == WORLD_STATE:
            with desk.find(world).used() as held:
                found = await held.state()
            if found is None:
                raise SourceError(f"world {world!r} cannot tell its state: none of the tools' sources can")
        elif verb == FORK_WORLD:
            await desk.fork(world, arguments["into"])
        else:
            desk.find(world)
            await desk.close(world)
        return ToolResult(text="ok", structured=found)


def _has_session(context: Any) -> bool:
    """Whether the client shook hands: its connection then lives as long as its session."""
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    if context.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return False
    # An HTTP request outside a session is a connection of its own.
    return context.request is None or _session_id(context) is not None


def _session_id(context: Any) -> str | None:
    """Of a session over HTTP; None over streams, of which each has a desk of its own."""
    return context.request.headers.get("mcp-session-id") if context.request is not None else None


def _connection_of(context: Any) -> Any:
    return getattr(context.session, "_connection", None)


def _kept(context: Any) -> dict[str, Any]:
    """What is kept with the connection of a client."""
    connection = _connection_of(context)
    kept: dict[str, Any] = {} if connection is None else connection.state
    return kept


def _caller(context: Any) -> Hashable:
    """The same for requests of which it is known that they are of one client."""
    return _WITHOUT_SESSION if context.request is None else _session_id(context) or object()


def _is_default(world: str) -> bool:
    return world == DEFAULT_WORLD or world.endswith(f"/{DEFAULT_WORLD}")


_WHOLE = 100_000_000
"""Characters of a result's text: what a model may read is for the client to say."""


async def _heard_by_clients(_: LogEntry) -> None:
    """Each client hears its calls' log by `log_listener`."""


async def serve_tools(
    source: Any,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    key: str | None = None,
    name: str = "toolbake",
    control: bool | None = None,
    max_worlds: int = MAX_WORLDS,
    idle_s: float = IDLE_S,
    call_timeout_s: float = 30.0,
    connect_timeout_s: float = 120.0,
    handlers: Handlers | None = None,
    inject_faults: FaultInjection | None = None,
    ready: Callable[[Toolset | WorldSource, Sequence[LeftOut]], None] = lambda *_: None,
) -> None:
    """Serve tools over standard input and output, or with `port` over streamable HTTP at `http://HOST:PORT/mcp`, until
    the client hangs up or it is cancelled. Progress and log of a call go to the client that made it.

    `source`: whatever `connect` takes, or a connected toolset. `host`: an address that other machines reach needs a
    `key`, which clients send as `Authorization: Bearer KEY`. A session without requests for `idle_s` seconds ends, and
    its world with it. `ready`: hears what is served and what is left out, once clients may connect. The rest is as for
    `publish` and `connect`; texts of results are not cut.

    Raises `SourceError` where the source cannot be used, the key is missing or the port is taken.
    """
    if port is None and (key is not None or host != "127.0.0.1"):
        raise SourceError("host and key do nothing over standard input and output; give a port as well")
    async with AsyncExitStack() as stack:
        served = source
        if not isinstance(source, Toolset):
            asked = handlers or Handlers()
            if asked.log is None:  # servers are asked for their log where somebody hears it: here the clients
                asked = replace(asked, log=_heard_by_clients)
            connecting = connect(
                source,
                call_timeout_s=call_timeout_s,
                connect_timeout_s=connect_timeout_s,
                max_result_chars=_WHOLE,
                handlers=asked,
                inject_faults=inject_faults,
            )
            served = await stack.enter_async_context(connecting)
        server = publish(served, name=name, control=control, max_worlds=max_worlds, idle_s=idle_s)
        told = partial(ready, served, served.left_out)
        if port is None:
            await serve_stdio(server, told)
        else:
            app = server.streamable_http_app(host=host, session_idle_timeout=idle_s, max_sessions=max_worlds)
            await serve_app(app, port=port, host=host, key=key, listening=told)


# ---------------------------------------------------------------------------------------------------------------------
# The worlds of a published server, each opened and closed in its own task, and their repeated calls

MOST_KEPT = 256
"""Answers of one world. A call is repeated right after its answer was lost, not hundreds of calls later."""


@dataclass(eq=False)
class _Call:
    name: str
    arguments: Mapping[str, Any]
    result: ToolResult | None = None
    ended: anyio.Event | None = None
    """Made by whoever waits for it: most calls are never repeated."""


class Repeats:
    """The answers of one world, by the key that came in the call's `_meta` (`IDEMPOTENCY_META`)."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, _Call] = OrderedDict()

    async def once(
        self, key: object, name: str, arguments: Mapping[str, Any], call: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """What `call` gives, or what it gave before under this key. A repeat waits for the call that is under way.

        A call that raised has no answer: a repeat of it is made. Without a key (a string) every call is made. Raises
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


_CLOSE_S = 15.0
"""How long all worlds together may take to close when the server ends."""


_Opening = Callable[[str], contextlib.AbstractAsyncContextManager[World]]
"""From the id of a world to the world."""


class HeldWorld:
    """One open world. It closes on request, and when it was not used for `idle_s` seconds."""

    def __init__(self, world: World, idle_s: float) -> None:
        self.world = world
        self.repeats = Repeats()
        self._idle_s = idle_s
        self._in_use = 0
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + idle_s)
        self.told = anyio.Event()
        self.ended = anyio.Event()

    async def close(self) -> None:
        """Returns when it is closed."""
        self.told.set()
        await self.ended.wait()

    @contextlib.contextmanager
    def used(self) -> Iterator[World]:
        """While the block runs the world is not idle."""
        self._in_use += 1
        self.scope.deadline = math.inf
        try:
            yield self.world
        finally:
            self._in_use -= 1
            if self._in_use == 0:
                self.scope.deadline = anyio.current_time() + self._idle_s


class Desk:
    """The worlds of a source, by key: the id that a client gave, or the connection that it has."""

    def __init__(self, source: WorldSource, *, max_worlds: int, idle_s: float) -> None:
        self._source = source
        self._max_worlds = max_worlds
        self._idle_s = idle_s
        self._held: dict[Hashable, HeldWorld] = {}
        self._first_asked: dict[Hashable, anyio.Lock] = {}
        self._opening: set[Hashable] = set()
        self._idled: set[Hashable] = set()
        self._group: anyio.abc.TaskGroup | None = None
        self._opened = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Desk]:
        """Worlds can be open while the block runs."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield self
            finally:
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    open_now = list(self._held.values())
                    for held in open_now:
                        held.told.set()
                    for held in open_now:
                        await held.ended.wait()
                group.cancel_scope.cancel()

    async def open(self, name: str, setup: Mapping[str, Any] | None) -> World:
        """A world that clients name. Raises `SourceError` where the id is taken or too many worlds are open."""
        self._require_free(name)
        opening = partial(self._source.open_world, setup=setup or None)
        return (await self._open(name, opening, idle_s=self._idle_s)).world

    async def fork(self, name: str, into: str) -> None:
        """A further world that clients name, which goes on from where the other is. Raises `SourceError` as `open`
        does, and where there is no world `name` or it cannot be forked."""
        self._require_free(into)
        with self.find(name).used() as world:
            if not isinstance(world, ForkableWorld):
                raise SourceError(f"world {name!r} cannot be forked")
            await self._open(into, partial(_opened_fork, world), idle_s=self._idle_s)

    def _require_free(self, name: str) -> None:
        if name in self._held or name in self._opening:
            raise SourceError(f"world {name!r} is open already; every rollout needs an id of its own")

    async def of(self, key: Hashable, *, idles: bool = False) -> HeldWorld:
        """The world of that connection, opened when it is first asked for. It stays as long as the connection does, or
        where it `idles` until nobody has used it for a while: then `SourceError` is raised."""
        async with self._first_asked.setdefault(key, anyio.Lock()):
            held = self._held.get(key)
            if held is None and key in self._idled:
                raise SourceError(f"this world was idle for more than {self._idle_s:g} s and is closed; connect again")
            idle_s = self._idle_s if idles else math.inf
            return held if held is not None else await self._open(key, self._source.open_world, idle_s=idle_s)

    def find(self, name: str) -> HeldWorld:
        """Raises `SourceError` where no world of that name is open."""
        held = self._held.get(name)
        if held is None or held.told.is_set():
            raise SourceError(
                f"there is no world {name!r} here; open it first, or it was idle for more than {self._idle_s:g} s, or "
                "the server has restarted since"
            )
        return held

    async def close(self, key: Hashable) -> None:
        """Close the world of that key, if there is one."""
        self._first_asked.pop(key, None)
        if (held := self._held.get(key)) is not None:
            await held.close()

    async def _open(self, key: Hashable, opening: _Opening, *, idle_s: float) -> HeldWorld:
        if len(self._held) + len(self._opening) >= self._max_worlds:
            raise SourceError(
                f"{self._max_worlds} worlds are open, the most that this server holds; disconnect clients, or "
                f"close worlds with the control tool {CLOSE_WORLD!r}"
            )
        assert self._group is not None, "the server is not running"
        self._opened += 1
        self._opening.add(key)
        try:
            held = await self._group.start(self._hold, key, f"served-{self._opened}", opening, idle_s)
        finally:
            self._opening.discard(key)
        assert isinstance(held, HeldWorld)
        return held

    async def _hold(
        self,
        key: Hashable,
        world_id: str,
        opening: _Opening,
        idle_s: float,
        *,
        task_status: anyio.abc.TaskStatus[HeldWorld],
    ) -> None:
        held: HeldWorld | None = None
        try:
            async with opening(world_id) as world:
                held = self._held[key] = HeldWorld(world, idle_s)
                task_status.started(held)
                with held.scope:
                    await held.told.wait()
                if held.scope.cancelled_caught and key in self._first_asked:
                    self._idled.add(key)
                held.told.set()
        except Exception:
            if held is None:
                raise
            # The world is gone either way, and other worlds must not go with it.
            logger.exception("closing world %r failed", world_id)
        finally:
            if held is not None:
                self._held.pop(key, None)
                held.ended.set()


@contextlib.asynccontextmanager
async def _opened_fork(world: ForkableWorld, world_id: str) -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        copy = await world.fork()
        try:
            fork = await stack.enter_async_context(copy.open(world_id))
        finally:
            with anyio.CancelScope(shield=True):
                await copy.aclose()
        yield fork


async def call_in(held: HeldWorld, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> ToolResult:
    """A call, during which the world does not count as idle. One that is repeated with its idempotency key is answered
    from memory."""
    with held.used() as world:

        async def call() -> ToolResult:
            return await world.call(name, arguments, call_id=meta.get(CALL_META))

        return await held.repeats.once(meta.get(IDEMPOTENCY_META), name, arguments, call)
