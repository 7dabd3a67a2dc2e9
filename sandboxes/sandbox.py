"""A sandbox: tools over a state that can be reset, forked, saved and compared, and a clock that only it moves.

A sandbox is also a source of worlds (`mcp_bridge.world.WorldSource`): each rollout gets a fork of its own.
What every sandbox must do is written down as tests in `tests/sandboxes/sandbox_conformance.py`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Self

import anyio.lowlevel

from mcp_bridge.errors import SourceError, ToolFailure, kind_of
from mcp_bridge.records import ErrorKind, Tool, ToolResult, compact_json, error_result
from mcp_bridge.safe_text import and_more
from mcp_bridge.world import HeldCopy, Setup, World

from .changes import Change, State, diff


class SetupError(SourceError):
    """A seed, a scenario or a setup that the sandbox does not know."""


class Refused(Exception):
    """Raised by a tool that refuses what was asked. The message is what the caller reads; nothing has changed."""

    kind: ErrorKind = "tool_error"


class InvalidArguments(Refused):
    """Arguments that the schema allows and the tool cannot take."""

    kind: ErrorKind = "invalid_arguments"


class Sandbox(ABC):
    """Base of all sandboxes. Not safe for several threads at once; forks may live in different threads.

    A subclass gives `name`, `scenarios`, `tools` and the abstract methods; a change made by a tool that
    raises must be undone.
    """

    name: str
    scenarios: tuple[str, ...] = ("default",)
    simulated = True
    """Calls change nothing outside the sandbox, so that training may call its destructive tools."""
    can_fork = True
    lenient_arguments = False
    """Whether arguments that real servers often take may differ from the schemas; see `ArgumentChecker`."""
    _first: tuple[int, str] = (0, "default")
    """Seed and scenario that the sandbox was made with."""

    def __init__(self) -> None:
        from mcp_bridge.toolsets.validation import (
            ArgumentChecker,  # a tenth of a second: not when the module is imported
        )

        lenient = [tool.name for tool in self.tools] if self.lenient_arguments else []
        self._checker = ArgumentChecker(self.tools, lenient=lenient)

    @property
    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """The tools that a model is shown. They may depend on the scenario, but no call changes them."""

    @property
    def hidden_tools(self) -> Sequence[Tool]:
        """Tools that are not shown but may be called, because a user names them later. Usually none."""
        return ()

    @property
    @abstractmethod
    def now(self) -> datetime:
        """The time in the simulated world. Only `reset`, `restore`, `advance` and rules of the tools move it: the wall
        clock never does."""

    @abstractmethod
    def _reset(self, seed: int, scenario: str) -> None: ...

    @abstractmethod
    def _advance(self, by: timedelta) -> None:
        """Move the clock on by `by`, which is not negative, and do what time brings (a parcel arrives, an offer
        ends). Undoes all of it when it raises."""

    @abstractmethod
    def fork(self) -> Self:
        """A copy that shares nothing with this one that a call can change."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state, clock included, for `restore` of the same kind of sandbox."""

    @abstractmethod
    def _restore(self, snapshot: bytes) -> None:
        """Raises `SetupError` for bytes that are not a snapshot, and then changes nothing."""

    @abstractmethod
    def state(self) -> State:
        """The whole state, clock included, as JSON: table -> key -> column -> value."""

    @abstractmethod
    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a known tool on valid arguments and return JSON, or a whole `ToolResult`.

        Raises `Refused`; undoes its changes when it raises, unless `_all_or_nothing` does.
        """

    def _all_or_nothing(self) -> AbstractContextManager[None]:
        """Around a call, until its result is known to be JSON: what raises inside has changed nothing."""
        return nullcontext()

    def close(self) -> None:  # noqa: B027 - most backends have nothing to close
        """Let go of what the sandbox holds. It cannot be used afterwards."""

    def reset(self, seed: int | None = None, scenario: str | None = None) -> None:
        """Begin again. Equal seeds and scenarios give equal states, on every machine.

        What is left out is as the sandbox was made: `Helpdesk(seed=7).reset()` goes back to seed 7.
        """
        seed = self._first[0] if seed is None else seed
        scenario = self._first[1] if scenario is None else scenario
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise SetupError(f"seed is {seed!r}; it must be a whole number, 0 or more")
        if scenario not in self.scenarios:
            raise SetupError(f"{self.name} has no scenario {scenario!r}; choose from {and_more(self.scenarios, 20)}")
        self._reset(seed, scenario)

    def restore(self, snapshot: bytes) -> None:
        """Go back to a snapshot. Raises `SetupError` for anything else, and then changes nothing."""
        if not isinstance(snapshot, bytes):
            raise SetupError(
                f"{kind_of(snapshot)} is not a snapshot of {self.name}; give the bytes that snapshot() returned"
            )
        self._restore(snapshot)

    def advance(self, by: timedelta) -> None:
        """Let time pass in the simulated world, with all that its rules make of it.

        Raises `SetupError` for a value that is not a `timedelta`, goes back, or goes beyond the year 9999.
        """
        if not isinstance(by, timedelta) or by < timedelta(0):
            raise SetupError(f"cannot advance by {by!r}; give a timedelta of 0 or more, such as timedelta(days=1)")
        try:
            _ = self.now + by
        except OverflowError as error:
            raise SetupError(
                f"cannot advance by {by!r} from {self.now.isoformat()}: the calendar ends first"
            ) from error
        self._advance(by)

    def diff(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
        """The changes between two states; see `sandboxes.diff`."""
        return diff(before, after)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,  # noqa: ARG002 - the signature is that of `World.call`
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> ToolResult:
        """Call a tool. Mistakes of the caller come back as a result with `is_error`.

        A call here never waits for anything, so `timeout_s` cannot pass; `call_id` is for worlds behind a network.
        Raises `ToolFailure` when the tool itself is broken.
        """
        await anyio.lowlevel.checkpoint()
        return self.call_now(name, arguments)

    def call_now(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """`call` without an event loop."""
        if (mistake := self._mistake(name, arguments)) is not None:
            return mistake
        started = time.perf_counter()
        try:
            with self._all_or_nothing():
                result = _result(self._run(name, dict(arguments)))
        except Refused as refusal:
            return error_result(str(refusal), refusal.kind)
        except ToolFailure:
            raise
        except (Exception, SystemExit) as failure:  # a tool that ends the program ends its call alone
            told = f"{self.name}.{name} broke: {type(failure).__name__}: {failure}"
            raise ToolFailure(told, delivery="answered") from failure
        return result.model_copy(update={"duration_s": time.perf_counter() - started})

    def _mistake(self, name: str, arguments: Mapping[str, Any], *, strict: bool = False) -> ToolResult | None:
        """What the caller reads of a tool that is not there, or of arguments that its schema does not allow. `strict`:
        also of those that real servers often take all the same."""
        from mcp_bridge.toolsets.validation import unknown_tool

        names = [tool.name for tool in self.tools]
        if name not in names and all(tool.name != name for tool in self.hidden_tools):
            return error_result(unknown_tool(name, names), "unknown_tool")
        problem = self._checker.problem(name, arguments, strict=strict)
        return error_result(problem, "invalid_arguments") if problem else None

    def prepare(self, setup: Setup | None) -> Self:
        """A fork, reset by `setup` (`seed`, `scenario`); without a setup, in this sandbox's present state.

        Raises `SetupError` for other keys.
        """
        if setup is not None and not isinstance(setup, Mapping):
            raise SetupError(f"the setup for {self.name} is {setup!r:.80}; it must be an object with seed and scenario")
        if unknown := sorted(map(repr, {*(setup or {})} - {"seed", "scenario"})):
            raise SetupError(f"unknown setup {', '.join(unknown)} for {self.name}; it takes seed and scenario")
        world = self.fork()
        if setup:
            try:
                world.reset(**setup)
            except SetupError:
                world.close()
                raise
        return world

    async def serve(self, port: int | None = None) -> None:
        """Serve the tools as an MCP server, over standard input and output until the client hangs up, or with `port` at
        `http://127.0.0.1:PORT/mcp` until cancelled.

        Every world begins in this sandbox's present state. Started with `TOOLBAKE_CONTROL=1`, the server also offers
        the tools of `mcp_bridge.control_tools`, by which a client holds one world for each of its rollouts. Raises
        `SourceError` where the port is taken.
        """
        from mcp_bridge.publishing.listener import serve_app, serve_stdio
        from mcp_bridge.publishing.server import publish

        # A fork of a sandbox is small: many may be open, and need not be closed before their client comes back.
        server = publish(self, name=self.name, max_worlds=10_000, idle_s=7 * 24 * 3600.0)
        if port is None:
            await serve_stdio(server)
        else:
            await serve_app(server.streamable_http_app(host="127.0.0.1"), port=port)

    @asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[World]:
        """A world of its own for one rollout; see `prepare` for `setup`."""
        sandbox = self.prepare(setup)
        try:
            yield SandboxWorld(sandbox, world_id)
        finally:
            sandbox.close()


def _result(found: Any) -> ToolResult:
    """What a tool returned, for the caller. Raises `TypeError` or `ValueError` where it is not JSON."""
    if isinstance(found, ToolResult):
        return found
    return ToolResult(text=found if found and isinstance(found, str) else compact_json(found), structured=found)


class SandboxWorld:
    """One rollout's fork of a sandbox, as the bridge's `World`."""

    def __init__(self, sandbox: Sandbox, world_id: str) -> None:
        self.sandbox = sandbox
        self.world_id = world_id

    @property
    def tools(self) -> Sequence[Tool]:
        return self.sandbox.tools

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """See `Sandbox.call`."""
        return await self.sandbox.call(name, arguments, call_id=call_id, timeout_s=timeout_s)

    async def state(self) -> dict[str, Any] | None:
        """The whole state as JSON."""
        return dict(self.sandbox.state())

    async def fork(self) -> HeldCopy:
        """See `ForkableWorld.fork`. Microseconds, whatever the sandbox holds."""
        sandbox, held = self.sandbox.fork(), AsyncExitStack()
        held.callback(sandbox.close)
        return HeldCopy(sandbox.open_world, held.aclose)
