"""Twins made of recordings: real sessions written into a cassette, and a sandbox that replays them.

async with mcp_bridge.connect("mcp.json") as toolset:
    recorded = record(toolset, "orders.jsonl")      # use it in place of the toolset
twin = RecordedTwin("orders.jsonl")                 # the same tools, without the server
"""

from .cassette import Cassette, RecordedSession, RecordingSource, record
from .recorded_twin import NotRecorded, RecordedTwin, serve_replay
from .simulation import SimulatedAnswers

__all__ = [
    "Cassette",
    "NotRecorded",
    "RecordedSession",
    "RecordedTwin",
    "RecordingSource",
    "SimulatedAnswers",
    "record",
    "serve_replay",
]
