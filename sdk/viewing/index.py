"""The index of the rollouts of some runs. It finds each in its file, which is read once, and on from there as it grows.
It also holds what the page shows of a run as a whole."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from mcp_bridge.errors import kind_of

from ..errors import RunFolderError
from ..evaluation.faults import FAULTS
from ..evaluation.report import CONDITIONS
from ..evidence.canonical import sha256
from ..evidence.evidence_log import EVIDENCE
from ..probing import STAGE as PROBES
from ..traces.atomic_files import read_json
from ..traces.json_text import dump_json
from ..traces.run_folder import RunFolder
from .rollout_view import summary

_MOST_PROBLEMS = 50
"""As many damaged lines are described; the others are counted."""


@dataclass(frozen=True, slots=True)
class Place:
    """One line: `offset` and `length` in bytes."""

    run: int
    stage: str
    path: Path
    offset: int
    length: int
    id: str


@dataclass(slots=True)
class _File:
    inode: int
    read: int = 0
    lines: int = 0


@dataclass(slots=True)
class Content:
    """All rollouts as of one generation. A file that was rewritten begins the next one, with other numbers."""

    generation: int
    rows: list[bytes] = field(default_factory=list)
    """For each rollout its row (see `rollout_view.FIELDS`) as JSON."""
    places: list[Place] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Lines and files that could not be read."""
    unread: int = 0
    """How many there are."""
    whole: bool = False
    """Everything that was there at the last look has been read."""
    files: dict[tuple[int, str], _File] = field(default_factory=dict)
    unopened: set[Path] = field(default_factory=set)


class RunIndex:
    """The rollouts of runs, numbered from 0 in the order in which they are found.

    `refresh` is called by one thread, all else by any.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises `RunFolderError` where a path holds no run."""
        self.runs = [RunFolder.open_to_read(path) for path in paths]
        self.content = Content(generation=1)
        self._stopping = threading.Event()
        self._wake = threading.Event()

    def refresh(self) -> None:
        """Read what was written since the last time; all of it the first time."""
        if any(self._rewritten(key, file) for key, file in self.content.files.items()):
            self.content = Content(generation=self.content.generation + 1)
        content = self.content
        for number, run in enumerate(self.runs):
            for stage in _in_order(run):
                if self._stopping.is_set():
                    return
                path = run.path / "rollouts" / f"{stage}.jsonl"
                try:
                    self._read(content, number, stage, path)
                except FileNotFoundError:  # it was moved since it was listed; the next look sees what is there then
                    continue
                except OSError as error:
                    if path not in content.unopened:  # it is tried again at each look
                        content.unopened.add(path)
                        _note_problem(content, f"{path.name} cannot be read: {error.strerror or error}")
        content.whole = True

    def follow(self, every_s: float) -> None:
        """`refresh`, again and again, until `stop`."""
        while not self._stopping.is_set():
            self.refresh()
            self._wake.wait(every_s)
            self._wake.clear()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def line(self, generation: int, number: int) -> tuple[Place, dict[str, Any], bytes]:
        """The place of a rollout, the whole of it, and its line as bytes. Raises
        `LookupError` where that generation is over or has no such number.
        """
        content = self.content
        if content.generation != generation or not 0 <= number < len(content.places):
            raise LookupError(f"there is no rollout {number} in generation {generation}")
        place = content.places[number]
        raw = _bytes_at(place)
        try:
            found = _parsed(raw)
        except ValueError:
            found = {}
        if found.get("id") != place.id:
            raise LookupError(f"rollout {place.id!r} is no longer where it was; its file was written anew")
        return place, found, raw

    def containing(self, generation: int, text: str) -> list[int]:
        """The numbers of the rollouts whose recorded line has `text`, besides token ids and other figures of the
        sampling; the case of a to z makes no difference."""
        content = self.content
        if content.generation != generation:
            raise LookupError(f"generation {generation} is over")
        wanted = dump_json(text)[1:-1].lower()
        return [
            number
            for number, place in enumerate(content.places)
            if wanted in (raw := _bytes_at(place)).lower() and wanted in _conversation(raw).lower()
        ]

    def _rewritten(self, key: tuple[int, str], file: _File) -> bool:
        number, stage = key
        try:
            found = (self.runs[number].path / "rollouts" / f"{stage}.jsonl").stat()
        except FileNotFoundError:
            return True
        return found.st_ino != file.inode or found.st_size < file.read

    def _read(self, content: Content, run: int, stage: str, path: Path) -> None:
        with open(path, "rb") as stream:
            inode = os.fstat(stream.fileno()).st_ino
            file = content.files.setdefault((run, stage), _File(inode))
            if file.inode != inode:  # written anew since `_rewritten`; the next look begins again
                return
            stream.seek(file.read)
            for raw in stream:
                if self._stopping.is_set() or not raw.endswith(b"\n"):  # its writer is not done
                    return
                file.lines += 1
                place = (run, stage, path, file.read, len(raw))
                file.read += len(raw)
                try:
                    row = summary(_parsed(raw), run=run, stage=stage)
                except ValueError as error:
                    _note_problem(content, f"{path.name}, line {file.lines}, cannot be read: {error}")
                    continue
                # The row last: whoever counts rows finds a place for each.
                content.places.append(Place(*place, id=row[2]))
                content.rows.append(dump_json(row))


def _note_problem(content: Content, problem: str) -> None:
    content.unread += 1
    if len(content.problems) < _MOST_PROBLEMS:
        content.problems.append(problem)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs at these paths; a folder of runs means all that are directly in it, in the order of their names.

    Raises `RunFolderError` for a path that holds neither.
    """
    found: list[Path] = []
    for path in paths:
        if (path / "run.json").is_file():
            found.append(path)
            continue
        inside = sorted(file.parent for file in path.glob("*/run.json"))
        if not inside:
            why = "holds no run (no run.json, nor has a folder in it)" if path.exists() else "is not there"
            why = "is a file and no run" if path.is_file() else why
            raise RunFolderError(f"{path} {why}; give the output_dir of a run, or a folder of several")
        found += inside
    return list(dict.fromkeys(path.resolve() for path in found))


def _in_order(run: RunFolder) -> list[str]:
    """The stages with rollouts in the order in which they ended; then those that go on, and degenerate probes."""
    try:
        done = list(finished_stages(run))
    except (RunFolderError, FileNotFoundError):  # a damaged marker is named where the run's facts are asked for
        done = []
    known = {stage: place for place, stage in enumerate(done)}
    return sorted(run.rollout_stages(), key=lambda stage: (stage == PROBES, known.get(stage, len(known)), stage))


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        found = from_json(raw)
    except ValueError:  # it is five times as fast, and knows no half of a surrogate pair
        try:
            found = json.loads(raw)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"it is {kind_of(found)}, not an object")
    return found


def line_at(place: Place) -> dict[str, Any]:
    """The line that is at a place now; empty where it cannot be read."""
    try:
        return _parsed(_bytes_at(place))
    except (ValueError, LookupError):
        return {}


def _bytes_at(place: Place) -> bytes:
    try:
        with open(place.path, "rb") as stream:
            stream.seek(place.offset)
            return stream.read(place.length)
    except FileNotFoundError as error:
        raise LookupError(f"{place.path} is gone") from error


def _conversation(raw: bytes) -> bytes:
    """A rollout's line without what nobody reads as text."""
    try:
        found = _parsed(raw)
    except ValueError:
        return raw
    return dump_json({name: value for name, value in found.items() if name not in _FIGURES})


_FIGURES = frozenset({"rows", "seed", "duration_s"})


# ---------------------------------------------------------------------------------------------------------------------
# A run as a whole: settings, the report's figures, metrics, and what its evidence announced.


def run_names(runs: Sequence[RunFolder]) -> list[str]:
    """What each run is called: its folder, with as many of those above it as tell it from the others."""
    parts = [run.path.resolve().parts for run in runs]
    lengths = [1] * len(runs)
    while True:
        names = ["/".join(one[-length:]) for one, length in zip(parts, lengths, strict=True)]
        longer = [
            length + 1 if names.count(name) > 1 and length < len(one) else length
            for name, one, length in zip(names, parts, lengths, strict=True)
        ]
        if longer == lengths:
            return names
        lengths = longer


def run_facts(run: RunFolder, name: str) -> dict[str, Any]:
    """For the overview, under a name. A report is there once the run is done; `problems` lists what could not be
    read."""
    facts: dict[str, Any] = {
        "name": name,
        "created_at": run.info.get("created_at"),
        "fingerprint": run.info.get("fingerprint"),
        "versions": run.info.get("versions", {}),
        "config": run.config,
        "threshold": _threshold(run.config),
        "stages_done": list(finished_stages(run)),
        "set_aside": sorted(file.name for file in (run.path / "rollouts").glob("*.discarded.jsonl")),
        "evidence": (run.path / EVIDENCE).is_file(),
        "probes": PROBES,
        "titles": {},
        "intervals": {},
        "faults": {},
        "next_steps": [],
        "fault_meanings": FAULTS,
        "problems": [],
    }
    if run.report_json.is_file():
        try:
            report = read_json(run.report_json)
            facts |= _reported(run, report)
            facts["threshold"] = report.get("success_threshold", facts["threshold"])
        except RunFolderError as error:
            facts["problems"].append(str(error))
    return facts


def _reported(run: RunFolder, report: dict[str, Any]) -> dict[str, Any]:
    """Of each stage that is a condition of the report: its title there, the interval of its success as (low, estimate,
    high), and the fault of each rollout that failed. With what the report advises. Lenient: reports of other versions
    are shown as far as they go."""
    noted = run.stage(CONDITIONS) or {}
    conditions, errors = report.get("conditions", {}), report.get("errors", {})
    stages = noted.get("stages") or {name: name.lower().replace(" ", "_") for name in conditions}
    titles, intervals, faults = {}, {}, {}
    for name, stage in stages.items():
        titles[stage] = name
        if (interval := (conditions.get(name, {}).get("success") or {}).get("interval")) is not None:
            intervals[stage] = [interval[end] for end in ("low", "estimate", "high")]
        faults[stage] = errors.get(name, {}).get("faults", {})
    steps = [str(step) for step in report.get("next_steps", [])]
    return {"titles": titles, "intervals": intervals, "faults": faults, "next_steps": steps}


def facts_version(runs: Sequence[RunFolder]) -> str:
    """Another text whenever `run_facts` or `metrics_of` of a run may give something else."""
    seen = []
    for run in runs:
        for path in (run.path / "run.json", run.report_json, run.path / "metrics.jsonl", run.path / "stages"):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            seen.append(f"{found.st_mtime_ns}.{found.st_size}")
    return " ".join(seen)


def finished_stages(run: RunFolder) -> dict[str, str]:
    """When each stage that is done was done, in that order."""
    markers = [(file, str(read_json(file).get("finished_at"))) for file in (run.path / "stages").glob("*.json")]
    # Stages of small runs end in the same second; the file's own time orders those, unless it was copied.
    markers.sort(key=lambda marker: (marker[1], marker[0].stat().st_mtime_ns))
    return {file.stem: finished_at for file, finished_at in markers}


def metrics_of(run: RunFolder) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, of steps only."""
    return [line for line in run.read_metrics() if isinstance(line.get("step"), int)]


def _threshold(config: dict[str, Any]) -> float:
    train = config.get("train")
    evaluation = train.get("evaluation") if isinstance(train, dict) else None
    found = evaluation.get("success_threshold") if isinstance(evaluation, dict) else None
    return float(found) if isinstance(found, int | float) else 1.0


class Announced:
    """What the evidence of one run announced of its rollouts; read once, and on from there. Threads may share it."""

    def __init__(self, run: Path) -> None:
        self._path = run / EVIDENCE
        self._lock = threading.Lock()
        self._read = 0
        self._lines = 0
        self._known: dict[tuple[str, str], tuple[str, int]] = {}

    def status(self, stage: str, rollout: str, raw: bytes) -> dict[str, Any] | None:
        """`status`, a sentence, and `facts`; None where the run has no evidence. `raw`: the rollout's line."""
        if not self._path.is_file():
            return None
        with self._lock:
            self._read_on()
            found = self._known.get((stage, rollout))
        if found is None:
            return {"status": "The evidence does not know this rollout.", "facts": {}, "right": False}
        announced, number = found
        same = sha256(raw) == announced
        text = "As the evidence announced it." if same else "Changed: the evidence announced another line."
        return {"status": text, "facts": {"entry": number, "sha256": announced[:16] + "…"}, "right": same}

    def _read_on(self) -> None:
        if self._path.stat().st_size < self._read:
            self._read, self._lines, self._known = 0, 0, {}
        with open(self._path, "rb") as file:
            file.seek(self._read)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self._read += len(raw)
                self._lines += 1
                try:
                    entry = json.loads(raw)
                    if entry["kind"] == "rollout":
                        data = entry["data"]
                        self._known[data["stage"], data["id"]] = (str(data["sha256"]), self._lines)
                except (ValueError, KeyError, TypeError):
                    continue  # a damaged entry knows no rollout; `toolbake verify` names it
