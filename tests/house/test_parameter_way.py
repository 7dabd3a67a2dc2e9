"""`tools` is read in one place, and its way through the code stays short."""

from __future__ import annotations

from parameter_way import Place, Way

IDENTIFY = Place("mcp_bridge.sources.connecting", "identify")
MOST_CALLS, MOST_FILES = 28, 12


def test_the_tools_of_a_run_are_read_in_one_place() -> None:
    way = Way("sdk.trainer.pipeline.train_async", "tools")
    readers = {file for (file, *_), place in way.calls.items() if place == IDENTIFY}
    assert readers == {"mcp_bridge.sources.connecting"}


def test_the_way_of_the_tools_through_the_code_becomes_no_longer() -> None:
    way = Way("sdk.trainer.pipeline.train_async", "tools")
    assert len(way.calls) <= MOST_CALLS
    assert len(way.files) <= MOST_FILES
