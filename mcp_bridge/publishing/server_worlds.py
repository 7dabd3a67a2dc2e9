"""Worlds for an MCP server of one's own: an object for each rollout, in place of the one that the server keeps.

The server gets the control tools of `mcp_bridge.control_tools`, and every call of a tool finds the object of its world.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio
from pydantic_core import PydanticSerializationError, to_jsonable_python

from .. import control_tools
from ..errors import BridgeError, SourceError, ToolFailure, kind_of, users_line
from ..records import ToolResult
from ..safe_text import shown_parameters
from .server import IDLE_S, MAX_WORLDS

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

logger = logging.getLogger(__name__)

Backend = TypeVar("Backend")
Made = TypeVar("Made")

_EXAMPLES = {
    "make": "make=Hotel",
    "state": "state=Hotel.tables",
    "fork": "fork=copy.deepcopy",
    "close": "close=Hotel.close",
}


def worlds(
    server: Any,
    *,
    make: Callable[..., Backend | Awaitable[Backend]],
    state: Callable[[Backend], Mapping[str, Any] | Awaitable[Mapping[str, Any]]] | None = None,
    fork: Callable[[Backend], Backend | Awaitable[Backend]] | None = None,
    close: Callable[[Backend], object] | None = None,
    control: bool | None = None,
    max_worlds: int = MAX_WORLDS,
    idle_s: float = IDLE_S,
) -> ServerWorlds[Backend]:
    """Give an MCP server a backend for each rollout. The result, when called in a tool, is the backend of that call.

    `server`: an `MCPServer` or `Server` of the MCP SDK, or a `FastMCP`. `make`: returns a new backend; the setup of a
    task comes as keyword arguments (`{"seed": 7}` calls `make(seed=7)`, no setup calls `make()`). `state`: the whole
    state of a backend as JSON; as `table -> key -> column -> value`, `final_state` can compare the changes. `fork`:
    returns a copy that shares nothing with its original, for rollouts that branch; `copy.deepcopy` will do where the
    backend can be copied so. `close`: called with a backend that is no longer needed. Each may be asynchronous.

    `control`: whether the control tools are offered; by default if the environment has `TOOLBAKE_CONTROL=1`, which the
    bridge sets for commands that it starts. Clients without worlds share one backend. `max_worlds`: how many may be
    open at once; a world that was not used for `idle_s` seconds makes room for a new one.

    Raises `SourceError` where `server` is none of these or has worlds already, and where `make` or another of the
    functions cannot be called.
    """
    for option, function in (("make", make), ("state", state), ("fork", fork), ("close", close)):
        if not callable(function) and (option == "make" or function is not None):
            raise SourceError(
                f"worlds({option}={function!r:.200}): {kind_of(function)} cannot be called; give a function or "
                f"a class, such as {_EXAMPLES[option]}"
            )
    offered = os.environ.get(control_tools.CONTROL_ENV) == "1" if control is None else control
    registry = _Registry(make, state, fork, close, max_worlds, idle_s)
    kind = type(server).__module__.split(".")[0]
    if any(isinstance(one, _Chooser) for one in getattr(server, "middleware", ())):
        raise SourceError(f"the server {_name(server)!r} has worlds already; call mcp_bridge.worlds once for a server")
    current: ContextVar[Backend] = ContextVar("toolbake_backend")
    if kind == "mcp" and isinstance(getattr(server, "middleware", None), list):
        server.middleware.append(_SdkChooser(registry, current, offered))
    elif kind == "fastmcp" and hasattr(server, "add_middleware"):
        server.add_middleware(_Chooser(registry, current, offered))
        if offered:
            _add_control_tools(server, registry)
    else:
        raise SourceError(
            f"worlds cannot be given to a {type(server).__module__}.{type(server).__qualname__}; give an MCPServer or "
            "Server of the MCP SDK (2.x), or a FastMCP (4.x)"
        )
    return ServerWorlds(current, _name(server))


class SetupRefused(SourceError):
    """A setup that `make` does not take."""


class ServerWorlds(Generic[Backend]):
    """The backends of a server's worlds. Call it in a tool to get the one of the call under way."""

    def __init__(self, current: ContextVar[Backend], server: str) -> None:
        self._current = current
        self._server = server

    def __call__(self) -> Backend:
        """Raises `RuntimeError` where no call of a tool is under way."""
        try:
            return self._current.get()
        except LookupError:
            raise RuntimeError(
                f"no call of a tool of {self._server!r} is under way, so there is no world; ask for it inside a tool"
            ) from None


@dataclass
class _World(Generic[Backend]):
    backend: Backend
    uses: int = 0
    """Calls under way. The world that all clients without worlds share has one more: it is never idle."""
    left: float = field(default_factory=time.monotonic)

    @contextmanager
    def used(self) -> Iterator[Backend]:
        """While the block runs the world is not idle."""
        self.uses += 1
        try:
            yield self.backend
        finally:
            self.uses -= 1
            self.left = time.monotonic()


class _Registry(Generic[Backend]):
    """The backends by the ids of their worlds, and what the control tools do with them."""

    def __init__(
        self,
        make: Callable[..., Backend | Awaitable[Backend]],
        state: Callable[[Backend], Mapping[str, Any] | Awaitable[Mapping[str, Any]]] | None,
        fork: Callable[[Backend], Backend | Awaitable[Backend]] | None,
        close: Callable[[Backend], object] | None,
        max_worlds: int,
        idle_s: float,
    ) -> None:
        self._make, self._state, self._fork, self._close = make, state, fork, close
        self._max_worlds, self._idle_s = max_worlds, idle_s
        self._worlds: dict[str, _World[Backend]] = {}
        self._opening: set[str] = set()
        self._first = anyio.Lock()

    @property
    def verbs(self) -> list[str]:
        """The control tools that this server can have."""
        given = {control_tools.WORLD_STATE: self._state, control_tools.FORK_WORLD: self._fork}
        return [verb for verb in control_tools.CONTROL_VERBS if given.get(verb, self) is not None]

    async def world(self, name: str | None) -> _World[Backend]:
        """The world that a call names; the one that all clients without worlds share where it names none."""
        if name is None:
            async with self._first:
                if control_tools.DEFAULT_WORLD not in self._worlds:
                    self._worlds[control_tools.DEFAULT_WORLD] = _World(await self._new({}), uses=1)
            name = control_tools.DEFAULT_WORLD
        return self._find(name)

    async def control(self, verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a control tool is for. Raises `SourceError` for a world or a setup that cannot be, and `ToolFailure`
        where a function of the user raises."""
        world = arguments["world"]
        if verb == control_tools.OPEN_WORLD:
            await self._keep(world, lambda: self._new(arguments.get("setup") or {}))
        elif verb == control_tools.WORLD_STATE:
            with self._find(world).used() as backend:
                return await self._told(backend)
        elif verb == control_tools.FORK_WORLD:
            fork = self._fork
            assert fork is not None
            with self._find(world).used() as backend:
                await self._keep(arguments["into"], lambda: _made("fork", lambda: fork(backend)))
        else:
            self._find(world)
            await self._end(world)
        return {}

    def _new(self, setup: Mapping[str, Any]) -> Awaitable[Backend]:
        try:
            inspect.signature(self._make).bind(**setup)
        except TypeError as error:
            name = getattr(self._make, "__name__", "make")
            raise SetupRefused(
                f"the setup {dict(setup)} does not fit {name}{shown_parameters(self._make)}: {error}"
            ) from None
        except ValueError:
            pass  # a callable without a signature: it says itself what it takes
        return _made("make", lambda: self._make(**setup), f" with the setup {dict(setup)}")

    async def _told(self, backend: Backend) -> dict[str, Any]:
        state = self._state
        assert state is not None
        told = await _made("state", lambda: state(backend))
        if not isinstance(told, Mapping):
            raise ToolFailure(
                f"the function state= of worlds returned {kind_of(told)}; it must return a dict, such as "
                "{table: {key: {column: value}}}",
                delivery="answered",
            )
        try:
            return dict(to_jsonable_python(told))
        except (PydanticSerializationError, ValueError) as error:
            raise ToolFailure(
                f"the function state= of worlds returned what has no JSON form ({error}); return dicts and lists of "
                "texts, numbers, truths and None",
                delivery="answered",
            ) from error

    async def _keep(self, world: str, make: Callable[[], Awaitable[Backend]]) -> None:
        if world in self._worlds or world in self._opening:
            raise SourceError(f"world {world!r} is open already")
        self._opening.add(world)  # before anything else runs: others may be opened meanwhile
        try:
            while (idle := self._idle()) is not None:
                try:
                    await self._end(idle)
                except BridgeError as error:  # the world is gone, and this does not matter to the one that opens
                    logger.warning("closing the idle world %r failed: %s", idle, error)
            if len(self._worlds) + len(self._opening) > self._max_worlds:
                raise SourceError(
                    f"{self._max_worlds} worlds are open, which is the most; close some, or raise max_worlds"
                )
            self._worlds[world] = _World(await make())
        finally:
            self._opening.remove(world)

    def _idle(self) -> str | None:
        since = time.monotonic() - self._idle_s
        return next((name for name, one in self._worlds.items() if not one.uses and one.left < since), None)

    async def _end(self, world: str) -> None:
        ended = self._worlds.pop(world)
        if self._close is not None:
            close = self._close
            await _made("close", lambda: close(ended.backend))

    def _find(self, world: str) -> _World[Backend]:
        if world not in self._worlds:
            raise SourceError(f"there is no world {world!r}; open it first")
        return self._worlds[world]


class _Chooser(Generic[Backend]):
    """Middleware that finds the backend of each call of a tool. Both kinds of servers call it in the same way."""

    def __init__(self, registry: _Registry[Backend], current: ContextVar[Backend], control: bool) -> None:
        self._registry = registry
        self._current = current
        self._control = control

    async def __call__(self, context: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        from .translation import failure_as_mcp

        if context.method != "tools/call":
            return await call_next(context)
        if self._control and context.message.name in {f"toolbake_{verb}" for verb in control_tools.CONTROL_VERBS}:
            try:
                return await call_next(context)
            except Exception as wrapped:
                cause = wrapped.__cause__  # FastMCP puts its own words before what a control tool raises
                if isinstance(cause, SetupRefused):
                    raise type(wrapped)(str(cause)) from cause
                if isinstance(cause, BridgeError):
                    raise failure_as_mcp(cause) from cause
                raise
        request = context.fastmcp_context.request_context
        try:
            return await self._within(request.meta if request is not None else None, lambda: call_next(context))
        except BridgeError as error:  # FastMCP would hide what `make` raised
            raise failure_as_mcp(error) from error

    async def _within(self, meta: Mapping[str, Any] | None, call: Callable[[], Awaitable[Made]]) -> Made:
        named = (meta or {}).get(control_tools.WORLD_META) if self._control else None
        world = await self._registry.world(named)
        with world.used() as backend:
            token = self._current.set(backend)
            try:
                return await call()
            finally:
                self._current.reset(token)


class _SdkChooser(_Chooser[Backend]):
    """The same for servers of the MCP SDK, to which it adds the control tools as well."""

    def __init__(self, registry: _Registry[Backend], current: ContextVar[Backend], control: bool) -> None:
        from ..toolsets.validation import ArgumentChecker
        from .translation import CONTROL_TOOLS

        super().__init__(registry, current, control)
        self._verbs = {CONTROL_TOOLS[verb].name: verb for verb in registry.verbs} if control else {}
        self._checker = ArgumentChecker(CONTROL_TOOLS.values())

    async def __call__(self, context: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        from .translation import CONTROL_TOOLS, control_tools_as_mcp, failure_as_mcp, result_as_mcp

        if context.method == "tools/list" and self._verbs:
            listed = await call_next(context)
            if isinstance(listed, dict) and listed.get("nextCursor") is None:
                more = control_tools_as_mcp(self._verbs.values())
                told = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in more]
                listed = {**listed, "tools": [*listed["tools"], *told]}
            return listed
        if context.method != "tools/call":
            return await call_next(context)
        params = context.params or {}
        try:
            verb = self._verbs.get(str(params.get("name")))
            if verb is None:
                return await self._within(context.meta, lambda: call_next(context))
            arguments = params.get("arguments") or {}
            if problem := self._checker.problem(CONTROL_TOOLS[verb].name, arguments):
                raise SourceError(problem)
            done = ToolResult(text="ok", structured=await self._registry.control(verb, arguments))
        except SetupRefused as error:
            done = ToolResult(text=str(error), is_error=True)
        except BridgeError as error:
            raise failure_as_mcp(error) from error
        return result_as_mcp(done, protocol=context.protocol_version)


def _add_control_tools(server: Any, registry: _Registry[Any]) -> None:
    """To a `FastMCP`, as tools like any other."""
    from .translation import CONTROL_TOOLS

    async def open_world(world: str, setup: dict[str, Any] | None = None) -> None:
        await registry.control(control_tools.OPEN_WORLD, {"world": world, "setup": setup})

    async def world_state(world: str) -> dict[str, Any]:
        return await registry.control(control_tools.WORLD_STATE, {"world": world})

    async def close_world(world: str) -> None:
        await registry.control(control_tools.CLOSE_WORLD, {"world": world})

    async def fork_world(world: str, into: str) -> None:
        await registry.control(control_tools.FORK_WORLD, {"world": world, "into": into})

    for verb, function in zip(
        control_tools.CONTROL_VERBS, (open_world, world_state, close_world, fork_world), strict=True
    ):
        if verb in registry.verbs:
            tool = CONTROL_TOOLS[verb]
            server.tool(name=tool.name, description=tool.description, meta={control_tools.CONTROL_META: verb})(function)


async def _made(option: str, call: Callable[[], Made | Awaitable[Made]], given: str = "") -> Made:
    """What one of the user's functions returns. What it raises comes as an error of the bridge, because the client is
    told nothing of any other."""
    try:
        value = call()
        return cast(Made, await value if inspect.isawaitable(value) else value)
    except BridgeError:
        raise
    except Exception as error:
        logger.exception("%s= of worlds failed%s", option, given)
        raise ToolFailure(
            f"the function {option}= of worlds raised {type(error).__name__}{given}: {error}{users_line(error)}",
            delivery="answered",
        ) from error


def _name(server: Any) -> str:
    return str(getattr(server, "name", type(server).__name__))
