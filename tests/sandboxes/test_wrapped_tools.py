"""Connected tools behind a recorder or behind faults: under their own names, and as live as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mcp_bridge
from mcp_bridge import Toolset, connect
from sandboxes.faults import Faulty, Latency
from sandboxes.helpdesk import Helpdesk
from sandboxes.recorded import record

Wrap = Callable[[Toolset], Any]


@pytest.fixture(params=["recorder", "faults", "nothing"])
def wrap(request: pytest.FixtureRequest, tmp_path: Path) -> Wrap:
    wraps: dict[str, Wrap] = {
        "recorder": lambda toolset: record(toolset, tmp_path / "calls.jsonl"),
        "faults": lambda toolset: Faulty(toolset, {"*": Latency()}),
        "nothing": lambda toolset: toolset,
    }
    return wraps[request.param]


def charge(amount: int) -> str:
    """Charge a card."""
    return f"charged {amount}"


@mcp_bridge.behaves(destructive=True)
def wipe() -> str:
    """Delete everything."""
    return "gone"


async def test_what_is_live_stays_live(wrap: Wrap) -> None:
    # What is simulated may be called again after a failure: a card must not be charged twice.
    async with connect([charge, Helpdesk()]) as toolset, connect(wrap(toolset)) as outer:
        names = [tool.name for tool in outer.simulated_tools]
        assert names == [tool.name for tool in toolset.simulated_tools]
        assert "charge" not in names
        assert "get_order" in names
        assert outer.live_destructive == []


async def test_what_may_destroy_something_real_is_named_alone(wrap: Wrap) -> None:
    async with connect([charge, wipe, Helpdesk()]) as toolset, connect(wrap(toolset)) as outer:
        assert [tool.name for tool in outer.live_destructive] == ["wipe"]
        with pytest.raises(mcp_bridge.SourceError, match="'wipe'"):
            outer.for_training()
        outer.for_training(["wipe"])


async def test_tools_that_were_told_apart_are_reached_under_their_new_names(wrap: Wrap) -> None:
    async with connect([Helpdesk(), Helpdesk()]) as toolset, connect(wrap(toolset)) as outer:
        names = [tool.name for tool in outer.tools]
        assert names == [tool.name for tool in toolset.tools]
        policies = [name for name in names if name.endswith("__get_policy")]
        assert len(policies) == 2
        for name in policies:
            assert (await outer.call(name, {"topic": "returns"})).structured["days"] > 0
        assert outer.live_destructive == []
        assert len(outer.simulated_tools) == len(names)
