"""What the evidence says should be in a run's folder, from its entries in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .canonical import digest
from .chained_file import Entry
from .recording import READABLE, STAGE_NAME
from .rollout_files import Announced


@dataclass(frozen=True)
class SavedWeights:
    """Weights in a folder of the run. `files`: SHA-256 of each; `entry`: the line of the evidence that says so."""

    files: dict[str, str]
    version: int
    entry: int
    whole: bool
    """`files` has every file of the folder; False where an earlier version wrote the entry, for its weights alone."""


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
    """How far the calls' ledger was: lines, head, and the line of the entry that says so."""
    lost: list[str] = field(default_factory=list)
    """What was announced and never stored."""
    closed: bool = False
    last_closed: Entry | None = None
    problems: list[tuple[int, str]] = field(default_factory=list)
    """Entries that do not say what their kind must: line, and what is wrong."""
    anchor: int = 0
    """The line of the last entry that a signature or a noted root covers; 0 where there is none."""
    covered_run_sha256: str = ""
    """That of `run.json` at the anchor."""
    overruling: list[tuple[int, str]] = field(default_factory=list)
    """Entries after the anchor that would change what it covers, which they do not: line, and what they would change.
    """
    later: list[Entry] = field(default_factory=list)
    """Entries after the anchor that add something."""


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
        self.expected = Expected(anchor=anchor, covered_run_sha256=covered.run_sha256 if covered is not None else "")
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
            if before is not None and not (
                now.version == before.version
                and (now.files == before.files or (not before.whole and now.files.items() >= before.files.items()))
            ):
                return f"the files of {folder}"
        elif kind == "finished":
            stage = _stage(data["stage"])
            if stage in covered.finished and covered.finished[stage][0] != data["sha256"]:
                return f"what stages/{stage}.json has"
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
        """Whether an entry that overrules nothing says more than what is covered: the same call again does not."""
        kind, data = entry.kind, entry.data
        if kind == "published":
            return int(data["version"]) not in covered.published
        if kind == "weights":
            folder, now = _saved(entry)
            return folder not in covered.weights or covered.weights[folder].files != now.files
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
                if data["format"] not in READABLE:
                    raise ValueError(f"format {data['format']!r}; this toolbake reads {READABLE}")
        elif entry.kind == "tools":
            self._tools.add(digest(data))
        elif entry.kind == "rollout":
            one = self._announced(data, entry.line)
            expected.rollouts.setdefault(one.stage, []).append(one)
            self._last, self._last_line = data, entry.line
            self._check_inputs(one)
            self._check_weights(data.get("weights", {}), entry.line)
        elif entry.kind == "set_aside":
            self._set_aside(_stage(data["stage"]), [str(sha) for sha in data["sha256"]])
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
        marks = tuple(str(mark) for mark in data["marks"])
        return Announced(
            stage=_stage(data["stage"]),
            id=str(data["id"]),
            sha256=str(data["sha256"]),
            head=str(data["head"]),
            inputs=str(data["inputs"]),
            marks=marks,
            tools=str(data["tools"]),
            verifier=str(data["verifier"]),
            entry=line,
        )

    def _check_inputs(self, one: Announced) -> None:
        """Say once of each what the evidence does not have."""
        if one.tools not in self._tools:
            self._tools.add(one.tools)
            self.expected.problems.append((one.entry, "the tools that it names are those of no entry before it"))
        if self._verifier is not None and one.verifier != self._verifiers.get(one.stage, self._verifier):
            self._verifier = None
            self.expected.problems.append((one.entry, "it names another verifier than the run was begun with"))

    def _check_weights(self, weights: dict[str, str], line: int) -> None:
        """A rollout names the digests of the weights that were published last as the versions that sampled it."""
        for version, sha in weights.items():
            published = self.expected.published.get(int(version), [])
            if not published or published[-1].sha256 != sha:
                text = f"the weights that it names as version {version} are not those that were published before it"
                self.expected.problems.append((line, text))

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
    """The folder that a `weights` entry is about, and what it says of it."""
    data = entry.data
    files = {_inside(name): str(sha) for name, sha in data["files"].items()}
    saved = SavedWeights(files, int(data["version"]), entry.line, whole=data.get("whole") is True)
    return _inside(data["folder"]), saved


def _count(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} is no number of lines")
    return number


def _stage(name: Any) -> str:
    if not isinstance(name, str) or not STAGE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a stage")
    return name


def _inside(name: Any) -> str:
    """A path that leads nowhere out of the run's folder."""
    if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r} leads out of the run's folder")
    return name
