"""What the evidence says should be in a run's folder, from its entries in their order."""

from __future__ import annotations

from collections.abc import Iterable
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


def replay(entries: Iterable[Entry]) -> Expected:
    """The state after all entries."""
    state = _Replay()
    for entry in entries:
        try:
            state.take(entry)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            state.expected.problems.append((entry.line, f"an entry of the kind {entry.kind!r} with {error!r}"))
    return state.expected


class _Replay:
    def __init__(self) -> None:
        self.expected = Expected()
        self._tools = {""}
        self._verifier: str | None = None
        self._verifiers: dict[str, str] = {}
        self._last: dict[str, Any] = {}

    def take(self, entry: Entry) -> None:
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
            self._last = data
            self._check_inputs(one)
            self._check_weights(data.get("weights", {}), entry.line)
        elif entry.kind == "set_aside":
            self._set_aside(_stage(data["stage"]), [str(sha) for sha in data["sha256"]])
        elif entry.kind == "finished":
            expected.finished[_stage(data["stage"])] = (str(data["sha256"]), entry.line)
            self._last = data
        elif entry.kind == "weights":
            files = {_inside(name): str(sha) for name, sha in data["files"].items()}
            expected.weights[_inside(data["folder"])] = SavedWeights(files, int(data["version"]), entry.line)
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
