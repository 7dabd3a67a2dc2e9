"""The recorded twin is a sandbox like any other."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from noting import record_notes
from sandbox_conformance import Call, SandboxConformance

from sandboxes import Sandbox, SetupError
from sandboxes.recorded import RecordedTwin

CASSETTE = Path(__file__).parents[2] / "examples" / "recorded" / "files.jsonl"


class TestRecordedTwin(SandboxConformance):
    """Of the example's cassette, with an answer to every call."""

    def make(self) -> Sandbox:
        return RecordedTwin(CASSETTE, unseen="nearest", nearest_at_least=0.0)

    def change(self) -> Call:
        return "write_file", {"path": "notes/today.md", "content": "- buy milk\n"}

    def calls(self) -> list[Call]:
        return [
            ("read_text_file", {"path": "notes/today.md"}),
            ("list_directory", {"path": "notes"}),
            ("read_text_file", {"path": "notes/none.md"}),
        ]


def test_a_snapshot_of_another_cassette_is_refused(tmp_path: Path) -> None:
    anyio.run(record_notes, tmp_path / "notes.jsonl", [("list_notes", {})])
    other = RecordedTwin(tmp_path / "notes.jsonl")
    with pytest.raises(SetupError, match="another cassette"):
        RecordedTwin(CASSETTE).restore(other.snapshot())
