"""What a sandbox is: tools over a state that can be reset, forked, saved and compared.

A sandbox is also a source of worlds (`mcp_bridge.world.WorldSource`): each rollout gets a fork of its own.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, ClassVar, Self

import anyio.lowlevel

from mcp_bridge.errors import SourceError, ToolFailure
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.world import Setup, World

from .changes import Change, State, diff


class SetupError(SourceError):
    """A seed, a scenario or a setup that the sandbox does not know."""


class Refused(Exception):
    """Raised by a tool that refuses what was asked. The message is what the caller reads; nothing has changed."""


class Sandbox(ABC):
    """Base of all sandboxes. Not safe for several threads at once; forks may live in different threads.

    A subclass gives `name`, `scenarios`, `tools` and the abstract methods; a change made by a tool that
    raises must be undone.
    """

    name: ClassVar[str]
    scenarios: ClassVar[tuple[str, ...]] = ("default",)

    def __init__(self) -> None:
        from mcp_bridge.validation import ArgumentChecker  # a tenth of a second: not when the module is imported

        self._checker = ArgumentChecker(self.tools)

    @property
    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """The tools, the same in every state."""

    @property
    @abstractmethod
    def now(self) -> datetime:
        """The time in the simulated world. Only `reset` sets it: the wall clock never moves it."""

    @abstractmethod
    def _reset(self, seed: int, scenario: str) -> None: ...

    @abstractmethod
    def fork(self) -> Self:
        """A copy that shares nothing with this one that a call can change."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state, clock included, for `restore` of the same kind of sandbox."""

    @abstractmethod
    def restore(self, snapshot: bytes) -> None:
        """Go back to a snapshot. Raises `SetupError` for bytes that are none, and then changes nothing."""

    @abstractmethod
    def state(self) -> State:
        """The whole state, clock included, as JSON: table -> key -> column -> value."""

    @abstractmethod
    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a known tool on valid arguments and return JSON. Raises `Refused`; undoes its changes when it raises."""

    def close(self) -> None:  # noqa: B027 - most backends have nothing to close
        """Let go of what the sandbox holds. It cannot be used afterwards."""

    def reset(self, seed: int = 0, scenario: str = "default") -> None:
        """Begin again. Equal seeds and scenarios give equal states, on every machine."""
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise SetupError(f"seed is {seed!r}; it must be a whole number, 0 or more")
        if scenario not in self.scenarios:
            raise SetupError(f"{self.name} has no scenario {scenario!r}; choose from {', '.join(self.scenarios)}")
        self._reset(seed, scenario)

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
        from mcp_bridge.validation import unknown_tool

        names = [tool.name for tool in self.tools]
        if name not in names:
            return _mistake("unknown_tool", unknown_tool(name, names))
        if problem := self._checker.problem(name, arguments):
            return _mistake("invalid_arguments", problem)
        started = time.perf_counter()
        try:
            found = self._run(name, dict(arguments))
        except Refused as refusal:
            return _mistake("tool_error", str(refusal))
        except Exception as error:
            raise ToolFailure(f"{self.name}.{name} broke: {type(error).__name__}: {error}") from error
        text = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
        return ToolResult(text=text, structured=found, duration_s=time.perf_counter() - started)

    def prepare(self, setup: Setup | None) -> Self:
        """A fork, reset as `setup` says (`seed`, `scenario`); without a setup, in this sandbox's present state.

        Raises `SetupError` for other keys.
        """
        if unknown := sorted({*(setup or {})} - {"seed", "scenario"}):
            raise SetupError(
                f"unknown setup {', '.join(map(repr, unknown))} for {self.name}; it takes seed and scenario"
            )
        world = self.fork()
        if setup:
            try:
                world.reset(**setup)
            except SetupError:
                world.close()
                raise
        return world

    @asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[World]:
        """A world of its own for one rollout; see `prepare` for `setup`."""
        sandbox = self.prepare(setup)
        try:
            yield SandboxWorld(sandbox, world_id)
        finally:
            sandbox.close()


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


def _mistake(kind: Any, text: str) -> ToolResult:
    return ToolResult(text=text, is_error=True, error_kind=kind)
