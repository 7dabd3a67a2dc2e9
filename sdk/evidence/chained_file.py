"""Files whose lines are chained, and the findings of a verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from .canonical import START, canonical, digest, link, numbered_lines, parse
from .evidence_log import CALL


def out_of_order(places: Sequence[int]) -> list[int]:
    """Indexes of `places`, all different, that come after a higher one. Example: `out_of_order([0, 3, 1, 2])` is
    `[2, 3]`."""
    highest = list(accumulate(places, max))
    return [index for index, place in enumerate(places) if place < highest[index]]


@dataclass(frozen=True)
class Entry:
    """One link, as a file has it."""

    line: int
    kind: str
    data: dict[str, Any]
    prev: str
    hash: str


def evidence_entry(parsed: dict[str, Any], line: int) -> Entry:
    """A line of `evidence.jsonl`. Raises `ValueError` for another form."""
    if parsed.keys() != {"data", "hash", "kind", "prev"} or not isinstance(parsed["data"], dict):
        raise ValueError("it is not an entry of data, hash, kind and prev")
    return Entry(line, _text(parsed["kind"]), parsed["data"], _text(parsed["prev"]), _text(parsed["hash"]))


def call_entry(parsed: dict[str, Any], line: int) -> Entry:
    """A line of `calls.jsonl`. Raises `ValueError` where it is not chained."""
    fields = dict(parsed)
    return Entry(line, CALL, fields, _text(fields.pop("prev", None)), _text(fields.pop("hash", None)))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a part of its chain is missing")
    return value


def read_chain(
    path: Path, name: str, as_entry: Callable[[dict[str, Any], int], Entry]
) -> tuple[list[Entry], list[Finding]]:
    """The entries whose content has their hash, in the order of the file, and what is wrong with the others.

    What was cut off at the end does not show in a chain itself; other files know how long it was.
    """
    entries: list[Entry] = []
    findings: list[Finding] = []
    damaged: set[int] = set()
    first_line: dict[str, int] = {}
    for line, raw in numbered_lines(path):
        try:
            entry = _checked(raw, as_entry, line)
        except ValueError as error:
            findings.append(Finding("changed", name, line, str(error)))
            damaged.add(line)
            continue
        if entry.hash in first_line:
            findings.append(Finding("repeated", name, line, f"it is line {first_line[entry.hash]} again"))
        else:
            first_line[entry.hash] = line
            entries.append(entry)
    return entries, findings + _misplaced(entries, name, damaged)


def _checked(raw: bytes, as_entry: Callable[[dict[str, Any], int], Entry], line: int) -> Entry:
    if not raw.endswith(b"\n"):
        raise ValueError("it is not whole: its line break is missing")
    try:
        parsed = parse(raw)
    except ValueError as error:
        raise ValueError(f"it cannot be read as JSON: {error}") from error
    entry = as_entry(parsed, line)
    if link(entry.prev, entry.kind, digest(entry.data)) != entry.hash:
        raise ValueError(f"its hash is not that of its content ({entry.kind})")
    if canonical(parsed) + b"\n" != raw:
        raise ValueError("its bytes are not in canonical form, though they mean the same")
    return entry


def _misplaced(entries: Sequence[Entry], name: str, damaged: set[int]) -> list[Finding]:
    """Entries that do not follow the one before them; what follows a damaged line is not known."""
    before = [START, *(entry.hash for entry in entries)]
    return [
        Finding(
            "reordered", name, entry.line, "it does not follow the line before it: lines are missing, added or moved"
        )
        for entry, prev in zip(entries, before, strict=False)
        if entry.prev != prev and entry.line - 1 not in damaged
    ]


# ---------------------------------------------------------------------------------------------------------------------
# The findings of a verification, and their text.

Kind = Literal["changed", "missing", "added", "repeated", "reordered", "unearned", "signature"]
"""What is wrong.

| kind | means |
| --- | --- |
| `changed` | bytes are not those that the evidence has |
| `missing` | the evidence has it, and it is not there |
| `added` | it is there, and the evidence does not have it |
| `repeated` | it is there more than once |
| `reordered` | it is not in the place that the evidence has it in |
| `unearned` | the evidence does not give this reward, or does not show a call that it rests on |
| `signature` | the signature, or the root that was given, is not of this run, or does not cover all of it |
"""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `file` is relative to the run's folder; `line` counts from 1, None for a whole file."""

    kind: Kind
    file: str
    line: int | None
    text: str
    rollout: str = ""
    """The id of the rollout that it is about, where it is about one."""

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line is not None else ""
        rollout = f", rollout {self.rollout!r}" if self.rollout else ""
        return f"{self.kind}: {self.file}{line}{rollout}: {self.text}"


@dataclass
class Verification:
    """The outcome of `verify_run`."""

    folder: str
    root: str = ""
    """The hash of the last entry of the evidence: it stands for everything before it."""
    entries: int = 0
    rollouts: dict[str, int] = field(default_factory=dict)
    """How many the evidence has in each stage, those set aside left out."""
    calls: int = 0
    """Lines of the calls' ledger."""
    rescored: int = 0
    """Verdicts that a verifier gave again, from the evidence alone."""
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is no fault and worth knowing: what was not checked, what a kill lost."""

    @property
    def holds(self) -> bool:
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "folder": self.folder,
            "holds": self.holds,
            **{name: value for name, value in vars(self).items() if name != "folder"},
            "findings": [vars(finding) for finding in self.findings],
        }
