"""Fresh worlds of a source that can be reset: played through once each, call by call."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp_bridge import Toolset
from mcp_bridge.errors import BridgeError
from mcp_bridge.records import ToolResult
from mcp_bridge.world import Setup, World
from sandboxes import diff

from ..errors import ConfigError

SEEDS = 24
"""How many worlds are walked where nobody names any: the seeds 1 to this."""
_FIX = (
    "give a sandbox or a twin in its place: sandboxes.objects.ObjectTwin for Python objects, sandboxes.api.ApiTwin for "
    "an OpenAPI document, or an MCP server that keeps a world for each rollout (docs/servers.md)"
)

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and the arguments."""


@dataclass(frozen=True)
class Played:
    """Calls in a world of their own: what each returned, and what they changed."""

    results: list[ToolResult]
    changes: list[dict[str, Any]]


class Worlds:
    """The worlds that tasks are made in. Example: `await worlds.play({"seed": 1}, [("get_order", {...})])`"""

    def __init__(self, source: Toolset, setups: Sequence[Setup]) -> None:
        self.source = source
        self.setups = list(setups)
        self._numbers = itertools.count()

    @asynccontextmanager
    async def open(self, setup: Setup) -> AsyncIterator[World]:
        async with self.source.open_world(f"synthesis/{next(self._numbers)}", setup or None) as world:
            yield world

    async def play(self, setup: Setup, calls: Sequence[Call]) -> Played:
        async with self.open(setup) as world:
            before = await told(world)
            results = [await world.call(name, arguments) for name, arguments in calls]
            return Played(results, [dict(change) for change in diff(before, await told(world))])


async def told(world: World) -> dict[str, Any]:
    """The state. Raises `ConfigError` where the world cannot tell it."""
    state = await world.state()
    if state is None:
        raise ConfigError(f"the tools' worlds cannot tell their state, so that no end of a task can be checked; {_FIX}")
    return state


async def open_worlds(source: Toolset, setups: Sequence[Setup] | None) -> Worlds:
    """The worlds of a connected source. Raises `ConfigError` where it has none that can be reset and compared."""
    simulated = {tool.name for tool in source.simulated_tools}
    live = [tool.name for tool in source.tools if tool.name not in simulated]
    if live:
        shown = ", ".join(live[:8]) + (f" and {len(live) - 8} more" if len(live) > 8 else "")
        raise ConfigError(f"tasks are made by trying tools, and {shown} are not simulated: calls would be real; {_FIX}")
    if not source.has_state:
        raise ConfigError(f"the tools' worlds cannot tell their state, so that no end of a task can be checked; {_FIX}")
    if setups is not None and not setups:
        raise ConfigError('setups is empty; give at least one, such as [{"seed": 1}], or leave it out')
    if setups is None and not source.can_setup:
        raise ConfigError("the tools take no setup, so there is one world only; say so with setups=[{}]")
    worlds = Worlds(source, setups if setups is not None else [{"seed": seed} for seed in range(1, SEEDS + 1)])
    states = []
    for _ in range(2):
        try:
            async with worlds.open(worlds.setups[0]) as world:
                states.append(await told(world))
        except BridgeError as error:
            raise ConfigError(
                f"a world with the setup {worlds.setups[0]!r} cannot be opened: {error}. Give `setups` that fit the "
                "tools"
            ) from error
    if states[0] != states[1]:
        places = ", ".join(sorted(name for name in states[0] if states[0][name] != states[1].get(name)))
        raise ConfigError(
            f"two fresh worlds with the setup {worlds.setups[0]!r} differ in {places or 'their parts'}: they cannot be "
            "reset, so that no solution can be played again. Take chance and time from the setup's seed"
        )
    return worlds
