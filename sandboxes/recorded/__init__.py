"""Twins made of recordings: real sessions written into a cassette, and a sandbox that replays them.

async with mcp_bridge.connect("mcp.json") as toolset:
    recorded = record(toolset, "orders.jsonl")      # use it in place of the toolset
twin = RecordedTwin("orders.jsonl")                 # the same tools, without the server
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cassette import Cassette, RecordedSession, RecordingSource, record
    from .recorded_twin import NotRecorded, RecordedTwin, serve_replay
    from .recorder import serve_recorder
    from .simulation import SimulatedAnswers

_MODULES = {
    "Cassette": "cassette",
    "NotRecorded": "recorded_twin",
    "RecordedSession": "cassette",
    "RecordedTwin": "recorded_twin",
    "RecordingSource": "cassette",
    "SimulatedAnswers": "simulation",
    "record": "cassette",
    "serve_recorder": "recorder",
    "serve_replay": "recorded_twin",
}

__all__ = [
    "Cassette",
    "NotRecorded",
    "RecordedSession",
    "RecordedTwin",
    "RecordingSource",
    "SimulatedAnswers",
    "record",
    "serve_recorder",
    "serve_replay",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sandboxes.recorded' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
