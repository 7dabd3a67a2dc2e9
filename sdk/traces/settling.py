"""What a killed run had announced in its evidence and not finished: finished now, or written down as lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ..evidence.canonical import sha256
from ..evidence.recording import STAGE_NAME, EvidenceLog
from .journal import Journal

log = logging.getLogger(__name__)


def settle(evidence: EvidenceLog, path: Path) -> None:
    """Settle the last announcement in the evidence of the run in `path`; torn lines must be cut off before.

    A kill can only be between the last announcement and what it announced. Anything else that is missing stays
    missing, for `toolbake verify` to name.
    """
    entry = evidence.last_announced
    if entry is None:
        return
    kind, data = entry["kind"], entry["data"]
    if not STAGE_NAME.fullmatch(data["stage"]):
        raise ValueError(f"{data['stage']!r} is no name of a stage")
    if kind == "set_aside":
        move_to_discarded(path, data["stage"], set(data["sha256"]))
    elif not _is_stored(path, kind, data):
        what = f"rollout {data['id']!r} of" if kind == "rollout" else "the end of"
        log.warning(
            "%s: %s stage %r was announced and not stored; it is written down as lost", path, what, data["stage"]
        )
        evidence.lost(data["sha256"])


def move_to_discarded(path: Path, stage: str, digests: set[str]) -> None:
    """Move the lines with these SHA-256 from a stage's rollouts to its discarded ones."""
    journal = Journal(path / "rollouts" / f"{stage}.jsonl")
    journal.move_lines(
        [raw for raw in journal.raw_lines() if sha256(raw) in digests], path / "rollouts" / f"{stage}.discarded.jsonl"
    )


def _is_stored(path: Path, kind: str, data: dict[str, Any]) -> bool:
    if kind == "finished":
        return (path / "stages" / f"{data['stage']}.json").is_file()
    journal = Journal(path / "rollouts" / f"{data['stage']}.jsonl")
    return any(sha256(raw) == data["sha256"] for raw in journal.raw_lines())
