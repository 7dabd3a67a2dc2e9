"""A file of rollouts held against what the evidence announced for it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .canonical import numbered_lines, parse, sha256
from .findings import Finding
from .links import RolloutLinks, differing, rollout_links
from .ordering import out_of_order

Look = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class Announced:
    """A rollout as the evidence has it."""

    stage: str
    id: str
    sha256: str
    head: str
    inputs: str
    marks: tuple[str, ...]
    tools: str
    """The digest of the entry with the tools' schemas."""
    verifier: str
    """The digest of the verifier's identity."""
    entry: int
    """Its line in the evidence."""
    lost: bool = False
    """Written down as announced and never stored: it need not be there."""

    def links(self, line: dict[str, Any]) -> RolloutLinks:
        """The chain over a line, as it was made over the one that was announced."""
        return rollout_links(line, stage=self.stage, tools=self.tools, verifier=self.verifier)


@dataclass(frozen=True)
class Found:
    """A line that is not what was announced."""

    line: int
    raw: bytes
    after: int
    """How many lines before it are as announced."""

    @property
    def rollout(self) -> str:
        try:
            return str(parse(self.raw).get("id", ""))
        except ValueError:
            return ""


def compare_rollouts(path: Path, name: str, announced: Sequence[Announced], look: Look | None = None) -> list[Finding]:
    """What differs between the lines of a file and those that were announced for it, in their order.

    `look` is called with each line of the file that is an object, whoever put it there.
    """
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for number, one in enumerate(announced):
        waiting[one.sha256].append(number)
    findings: list[Finding] = []
    strangers: list[Found] = []
    matched: list[tuple[int, int]] = []  # number in `announced`, line
    known = set(waiting)
    for line, raw in numbered_lines(path):
        sha = sha256(raw)
        try:
            parsed = parse(raw)
        except ValueError:
            parsed = None
        if parsed is not None and look is not None:
            look(line, parsed)
        if waiting[sha]:
            number = waiting[sha].popleft()
            findings += _wrong_head(announced[number], parsed, name, line)
            matched.append((number, line))
        elif sha in known:
            findings.append(Finding("repeated", name, line, "it stands here a second time", _id(raw)))
        else:
            strangers.append(Found(line, raw, after=len(matched)))
    for index in out_of_order([number for number, _ in matched]):
        number, line = matched[index]
        findings.append(Finding("reordered", name, line, "it is not in its order", announced[number].id))
    there = {number for number, _ in matched}
    absent = [number for number in range(len(announced)) if number not in there and not announced[number].lost]
    findings += _explained(strangers, absent, announced, sorted(there), name)
    return findings


def _id(raw: bytes) -> str:
    return Found(0, raw, 0).rollout


def _wrong_head(one: Announced, parsed: dict[str, Any] | None, name: str, line: int) -> list[Finding]:
    """The bytes are as announced; the chain over them must be too."""
    if parsed is None:
        return [Finding("changed", name, line, "it was announced as it is, and is no object in JSON", one.id)]
    found = one.links(parsed)
    if (found.head, found.inputs, found.marks) == (one.head, one.inputs, one.marks):
        return []
    parts = ", ".join(differing(one.marks, found.marks)) or "the hash of its chain"
    text = f"its chain is not the one in evidence.jsonl, line {one.entry}, which was made of another rollout: {parts}"
    return [Finding("changed", name, line, text, one.id)]


def _explained(
    strangers: Sequence[Found],
    absent: Sequence[int],
    announced: Sequence[Announced],
    there: Sequence[int],
    name: str,
) -> list[Finding]:
    """Lines that nothing announced and announcements without a line: pairs of the two were changed."""
    findings: list[Finding] = []
    by_id = {announced[number].id: number for number in reversed(absent)}
    left = list(absent)
    rest: list[Found] = []
    for found in strangers:
        number = by_id.pop(found.rollout, None) if found.rollout else None
        if number is None:
            rest.append(found)
        else:
            left.remove(number)
            findings.append(_changed(found, announced[number], name))
    gaps: dict[int, deque[int]] = defaultdict(deque)
    rank = 0
    for number in left:
        while rank < len(there) and there[rank] < number:
            rank += 1
        gaps[rank].append(number)
    for found in rest:
        if gaps[found.after]:
            number = gaps[found.after].popleft()
            left.remove(number)
            findings.append(_changed(found, announced[number], name))
        else:
            text = "no entry of the evidence announced it"
            findings.append(Finding("added", name, found.line, text, found.rollout))
    for number in left:
        one = announced[number]
        text = f"evidence.jsonl, line {one.entry}, announced it, and it is not there"
        findings.append(Finding("missing", name, None, text, one.id))
    return findings


def _changed(found: Found, one: Announced, name: str) -> Finding:
    if not found.raw.endswith(b"\n"):
        return Finding("changed", name, found.line, "it is not whole: its line break is missing", one.id)
    try:
        marks = one.links(parse(found.raw)).marks
    except ValueError as error:
        return Finding("changed", name, found.line, f"it cannot be read as JSON: {error}", one.id)
    parts = ", ".join(differing(one.marks, marks))
    text = f"{parts}: not as recorded" if parts else "its bytes were changed; they mean the same as before"
    return Finding("changed", name, found.line, text, one.id)
