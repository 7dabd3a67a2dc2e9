"""The folder that a run's evidence expects: its chains read, its entries replayed, and its files of rollouts compared
with them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from .canonical import (
    START,
    RolloutLinks,
    canonical,
    differing,
    digest,
    link,
    numbered_lines,
    parse,
    rollout_links,
    sha256,
)
from .evidence_log import CALL, FORMAT, STAGE_NAME

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
    """What is not a fault and worth knowing: what was not checked, what a kill lost."""

    @property
    def holds(self) -> bool:
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"folder": self.folder, "holds": self.holds, **asdict(self)}


# ---------------------------------------------------------------------------------------------------------------------
# Files whose lines are chained.


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
# The entries, replayed, and the files of rollouts.

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
            findings.append(
                Finding("repeated", name, line, "it stands here a second time", Found(line, raw, 0).rollout)
            )
        else:
            strangers.append(Found(line, raw, after=len(matched)))
    for index in out_of_order([number for number, _ in matched]):
        number, line = matched[index]
        findings.append(Finding("reordered", name, line, "it is not in its order", announced[number].id))
    there = {number for number, _ in matched}
    absent = [number for number in range(len(announced)) if number not in there and not announced[number].lost]
    findings += _explained(strangers, absent, announced, sorted(there), name)
    return findings


def _wrong_head(one: Announced, parsed: dict[str, Any] | None, name: str, line: int) -> list[Finding]:
    """The bytes are as announced; the chain over them must be too."""
    if parsed is None:
        return [Finding("changed", name, line, "it was announced as it is, and is not a JSON object", one.id)]
    found = one.links(parsed)
    if (found.head, found.inputs, found.marks) == (one.head, one.inputs, one.marks):
        return []
    parts = ", ".join(differing(one.marks, found.marks)) or "the hash of its chain"
    text = f"its chain is not the one in evidence.jsonl, line {one.entry}, which was made of another rollout: {parts}"
    return [Finding("changed", name, line, text, one.id)]


def _explained(
    strangers: Sequence[Found], absent: Sequence[int], announced: Sequence[Announced], there: Sequence[int], name: str
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
    for number in left:
        gaps[bisect_left(there, number)].append(number)
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


@dataclass(frozen=True)
class SavedWeights:
    """Weights in a folder of the run. `files`: SHA-256 of every file in it; `entry`: its line of the evidence."""

    files: dict[str, str]
    version: int
    entry: int


@dataclass(frozen=True)
class Published:
    """Weights that were sampled from: the digest of all of them or, with `adapter`, of the adapter."""

    sha256: str
    adapter: bool
    entry: int


@dataclass
class Expected:
    """The state of a folder that its evidence describes."""

    rollouts: dict[str, list[Announced]] = field(default_factory=dict)
    """By stage, in the order written."""
    set_aside: dict[str, list[Announced]] = field(default_factory=dict)
    finished: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Stage -> SHA-256 of its marker, and the line of the entry."""
    weights: dict[str, SavedWeights] = field(default_factory=dict)
    """By the folder they were saved into."""
    published: dict[int, list[Published]] = field(default_factory=dict)
    """By version. More than one where a run that was killed trained the same steps again."""
    run_sha256: str = ""
    calls: list[tuple[int, str, int]] = field(default_factory=list)
    """How long the calls' ledger was: lines, head, and the line of the entry that records it."""
    lost: list[str] = field(default_factory=list)
    """What was announced and never stored."""
    closed: bool = False
    last_closed: Entry | None = None
    problems: list[tuple[int, str]] = field(default_factory=list)
    """Entries without what their kind must have: line, and what is wrong."""
    anchor: int = 0
    """The line of the last entry that a signature or a noted root covers; 0 where there is none."""
    covered_run_sha256: str = ""
    """That of `run.json` at the anchor."""
    covered_closed: bool = False
    """Whether the run was closed at the anchor."""
    overruling: list[tuple[int, str]] = field(default_factory=list)
    """Entries after the anchor that would change what it covers, which they do not: line, and what they would change.
    """
    later: list[Entry] = field(default_factory=list)
    """Entries after the anchor that add something."""

    @property
    def settled(self) -> bool:
        """Nothing is being saved: the run is closed, or it was at the anchor and was only opened again since."""
        return self.closed or (self.covered_closed and not self.later)


def replay(entries: Sequence[Entry], *, anchor: int = 0) -> Expected:
    """The state after all entries. Those after the line `anchor` change nothing of the state that it covers."""
    covered = replay([entry for entry in entries if entry.line <= anchor]) if anchor else None
    state = _Replay(anchor, covered)
    for entry in entries:
        try:
            state.take(entry)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            state.expected.problems.append((entry.line, f"an entry of the kind {entry.kind!r} with {error!r}"))
    return state.expected


class _Replay:
    def __init__(self, anchor: int, covered: Expected | None) -> None:
        self.expected = Expected(anchor=anchor)
        if covered is not None:
            self.expected.covered_run_sha256, self.expected.covered_closed = covered.run_sha256, covered.closed
        self._covered = covered
        here = covered.rollouts if covered is not None else {}
        self._covered_ids = {stage: {one.id for one in announced} for stage, announced in here.items()}
        self._tools = {""}
        self._verifier: str | None = None
        self._verifiers: dict[str, str] = {}
        self._last: dict[str, Any] = {}
        self._last_line = 0

    def take(self, entry: Entry) -> None:
        if self._covered is not None and entry.line > self.expected.anchor:
            changed = self._overruled(self._covered, entry)
            if changed:
                self.expected.overruling.append((entry.line, changed))
                return
            if self._adds(self._covered, entry):
                self.expected.later.append(entry)
        self._take(entry)

    def _overruled(self, covered: Expected, entry: Entry) -> str | None:
        """What of the state at the anchor an entry after it would change; None where that is nothing."""
        kind, data = entry.kind, entry.data
        if kind == "begun":
            return "how the run was begun"
        if kind == "published":
            known = covered.published.get(int(data["version"]), [])
            said = (str(data["sha256"]), data["of"] == "adapter")
            if known and said not in [(one.sha256, one.adapter) for one in known]:
                return f"which weights were published as version {data['version']}"
        elif kind == "weights":
            folder, now = _saved(entry)
            before = covered.weights.get(folder)
            if before is not None and (now.version, now.files) != (before.version, before.files):
                return f"the files of {folder}"
        elif kind == "finished":
            stage = _stage(data["stage"])
            if stage in covered.finished and covered.finished[stage][0] != data["sha256"]:
                return f"what stages/{stage}.json has"
        elif kind == "reopened":
            if _stage(data["stage"]) in covered.finished:
                return f"that stage {data['stage']!r} is finished"
        elif kind == "set_aside":
            stage = _stage(data["stage"])
            moved = {one.sha256 for one in covered.rollouts.get(stage, [])} & {str(sha) for sha in data["sha256"]}
            if moved:
                return f"which rollouts of stage {stage!r} count ({len(moved)} of them set aside)"
        elif kind == "lost":
            if self._last_line <= self.expected.anchor:
                return f"that what line {self._last_line} announced was stored"
        elif kind == "rollout":
            stage = _stage(data["stage"])
            if stage in covered.finished:
                return f"which rollouts the finished stage {stage!r} has"
            if data["id"] in self._covered_ids.get(stage, ()):
                return f"which rollout of stage {stage!r} is {data['id']!r}"
        return None

    def _adds(self, covered: Expected, entry: Entry) -> bool:
        """Whether an entry that overrules nothing adds to what is covered: the same one again does not."""
        kind, data = entry.kind, entry.data
        if kind == "published":
            return int(data["version"]) not in covered.published
        if kind == "weights":
            return _saved(entry)[0] not in covered.weights
        if kind == "finished":
            return _stage(data["stage"]) not in covered.finished
        if kind == "tools":
            return digest(data) not in self._tools
        return kind not in ("resumed", "closed")

    def _take(self, entry: Entry) -> None:
        data, expected = entry.data, self.expected
        if "calls" in data:
            expected.calls.append((_count(data["calls"]["lines"]), str(data["calls"]["head"]), entry.line))
        expected.closed = entry.kind == "closed"
        expected.last_closed = entry if expected.closed else expected.last_closed
        if entry.kind in ("begun", "resumed"):
            expected.run_sha256 = str(data["run"])
            if entry.kind == "begun":
                self._verifier = digest(data["verifier"])
                self._verifiers = {_stage(stage): digest(one) for stage, one in data.get("verifiers", {}).items()}
                if data["format"] != FORMAT:
                    raise ValueError(f"format {data['format']!r}; this toolbake reads {FORMAT}")
        elif entry.kind == "tools":
            self._tools.add(digest(data))
        elif entry.kind == "rollout":
            one = self._announced(data, entry.line)
            expected.rollouts.setdefault(one.stage, []).append(one)
            self._last, self._last_line = data, entry.line
            self._check(one, data.get("weights", {}))
        elif entry.kind == "set_aside":
            self._set_aside(_stage(data["stage"]), [str(sha) for sha in data["sha256"]])
        elif entry.kind == "reopened":
            expected.finished.pop(_stage(data["stage"]), None)
        elif entry.kind == "finished":
            expected.finished[_stage(data["stage"])] = (str(data["sha256"]), entry.line)
            self._last, self._last_line = data, entry.line
        elif entry.kind == "weights":
            folder, saved = _saved(entry)
            expected.weights[folder] = saved
        elif entry.kind == "published":
            one_published = Published(str(data["sha256"]), data["of"] == "adapter", entry.line)
            expected.published.setdefault(int(data["version"]), []).append(one_published)
        elif entry.kind == "lost":
            self._lost(str(data["sha256"]), entry.line)
        elif entry.kind != "closed":
            raise ValueError("no known kind")

    def _announced(self, data: dict[str, Any], line: int) -> Announced:
        names = ("id", "sha256", "head", "inputs", "tools", "verifier")
        texts: dict[str, Any] = {name: str(data[name]) for name in names}
        marks = tuple(str(mark) for mark in data["marks"])
        return Announced(stage=_stage(data["stage"]), marks=marks, entry=line, **texts)

    def _check(self, one: Announced, weights: dict[str, str]) -> None:
        """Whether the evidence has what a rollout names: tools and verifier, each said once, and as `weights` the
        digests of those that were published last as the versions that sampled it."""
        problems = self.expected.problems
        if one.tools not in self._tools:
            self._tools.add(one.tools)
            problems.append((one.entry, "the tools that it names are those of no entry before it"))
        if self._verifier is not None and one.verifier != self._verifiers.get(one.stage, self._verifier):
            self._verifier = None
            problems.append((one.entry, "it names another verifier than the run was begun with"))
        for version, sha in weights.items():
            published = self.expected.published.get(int(version), [])
            if not published or published[-1].sha256 != sha:
                text = f"the weights that it names as version {version} are not those that were published before it"
                problems.append((one.entry, text))

    def _set_aside(self, stage: str, digests: list[str]) -> None:
        here = self.expected.rollouts.get(stage, [])
        aside = self.expected.set_aside.setdefault(stage, [])
        there = {one.sha256 for one in aside}  # the same line twice is kept once
        moving = set(digests)
        aside += [one for one in here if one.sha256 in moving and one.sha256 not in there]
        self.expected.rollouts[stage] = [one for one in here if one.sha256 not in moving]

    def _lost(self, sha: str, line: int) -> None:
        if self._last.get("sha256") != sha:
            raise ValueError("it names something else than what was announced last")
        stage = _stage(self._last["stage"])
        if "id" not in self._last:
            self.expected.finished.pop(stage, None)
            self.expected.lost.append(f"the end of stage {stage!r} (evidence.jsonl, line {line})")
            return
        here = self.expected.rollouts[stage]
        here[-1] = replace(here[-1], lost=True)
        self.expected.lost.append(f"rollout {here[-1].id!r} of stage {stage!r} (evidence.jsonl, line {line})")


def _saved(entry: Entry) -> tuple[str, SavedWeights]:
    """The folder of a `weights` entry, and its saved weights."""
    data = entry.data
    if data["whole"] is not True:
        raise ValueError("it does not have every file of the folder")
    files = {_inside(name): str(sha) for name, sha in data["files"].items()}
    return _inside(data["folder"]), SavedWeights(files, int(data["version"]), entry.line)


def _count(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} is not a number of lines")
    return number


def _stage(name: Any) -> str:
    if not isinstance(name, str) or not STAGE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a stage")
    return name


def _inside(name: Any) -> str:
    """A path that leads nowhere out of the run's folder."""
    if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r} leads out of the run's folder")
    return name
