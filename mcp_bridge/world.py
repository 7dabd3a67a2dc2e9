"""The protocols between the bridge and whoever runs rollouts: a source of worlds, and one world.

A *world* is one rollout's own copy of the tools' state. Two worlds never share anything
that a call can change.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .records import LeftOut, ServerInfo, Tool, ToolResult, WorldKind

Setup = Mapping[str, Any]
"""How a world begins, for example `{"seed": 7, "scenario": "late_parcel"}`. Empty: as the backend starts."""


@runtime_checkable
class World(Protocol):
    """One rollout's tools and the state behind them."""

    @property
    def tools(self) -> Sequence[Tool]: ...

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        """Call a tool. Concurrent calls are allowed.

        The policy's mistakes (unknown tool, arguments against the schema, an error the tool reports)
        come back as a result with `is_error`. Raises `ToolFailure` when the infrastructure broke.
        """

    async def state(self) -> dict[str, Any] | None:
        """The backend's whole state as JSON, or `None` where the backend cannot tell."""


class WorldCopy(Protocol):
    """A world as it was at one moment, to go on from as often as one likes. Holds it until `aclose`."""

    def open(self, world_id: str) -> AbstractAsyncContextManager[World]:
        """A world of its own that goes on from there. `world_id` is unique in the run. Raises `ToolFailure`."""

    async def aclose(self) -> None:
        """Let go of what is held. Worlds opened from it stay. Bounded; never raises for a server that is gone."""


@dataclass(frozen=True)
class HeldCopy:
    """A `WorldCopy` by its two functions."""

    open: Callable[[str], AbstractAsyncContextManager[World]]
    aclose: Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class SharedWorld:
    """A world of a source that keeps nothing apart, and cannot tell what it keeps. `answer`: what a call returns."""

    tools: Sequence[Tool]
    answer: Callable[[str, Mapping[str, Any], float | None], Coroutine[Any, Any, ToolResult]]

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,  # noqa: ARG002 - whoever passes it on has it from `ledger.current_call`
        timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, ToolResult]:
        """See `World.call`."""
        return self.answer(name, arguments, timeout_s)

    async def state(self) -> None:
        """See `World.state`."""


@runtime_checkable
class ForkableWorld(World, Protocol):
    """A world that can be copied while it is open. Sources whose worlds are of this kind say so: `can_fork`."""

    async def fork(self) -> WorldCopy:
        """The world as it is now; none of its calls may be under way. Raises `ToolFailure`."""


@runtime_checkable
class WorldSource(Protocol):
    """Anything that can open worlds: a sandbox, a connected server, a list of them.

    What a source is able to do beyond this it says in attributes: `simulated`, `has_state`, `can_setup`, `can_fork`.
    One whose tools differ in that, such as connected tools, lists its `simulated_tools` and `live_destructive` ones.
    """

    @property
    def tools(self) -> Sequence[Tool]: ...

    def open_world(self, world_id: str, setup: Setup | None = None) -> AbstractAsyncContextManager[World]:
        """A fresh world. `world_id` is unique in the run; what reaches a server is in `mcp_bridge.control_tools`."""


def not_simulated(source: WorldSource) -> list[Tool]:
    """The tools of a source whose calls reach something outside their world."""
    if getattr(source, "simulated", False):
        return []
    simulated = {tool.name for tool in getattr(source, "simulated_tools", ())}
    return [tool for tool in source.tools if tool.name not in simulated]


class SaidBySource:
    """What a source says of itself, for whoever stands before it, and what holds where it does not say it.

    Worlds of a source that says nothing are asked for a state and given a setup all the same.
    """

    source: WorldSource
    has_state: bool
    """Whether its worlds can tell their state."""
    can_setup: bool
    """Whether its worlds can begin with a setup."""
    can_fork: bool
    """Whether its worlds can be forked."""
    simulated: bool
    """Whether calls change nothing outside their world."""
    simulated_tools: Sequence[Tool]
    live_destructive: Sequence[Tool] | None
    """None where it is for the options of the source to say."""
    left_out: Sequence[LeftOut]
    lenient_arguments: bool
    """Whether something real checks the arguments, or did, which often takes more than its schemas say."""
    world_kind: WorldKind | None
    """What each rollout gets."""
    info: ServerInfo | None
    revision: int
    """Another one where what it offers has changed."""

    def __getattr__(self, name: str) -> Any:
        if name not in _UNSAID:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.source, name, _UNSAID[name])

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not be written down: its own, and those that the user gave for it."""
        spec = getattr(self.source, "spec", None)
        return (*getattr(self.source, "secrets", ()), *getattr(spec, "secrets", ()))


_UNSAID = {
    **dict.fromkeys(("has_state", "can_setup"), True),
    **dict.fromkeys(("can_fork", "simulated", "lenient_arguments"), False),
    **dict.fromkeys(("simulated_tools", "left_out"), ()),
    **dict.fromkeys(("live_destructive", "world_kind", "info"), None),
    "revision": 0,
}
