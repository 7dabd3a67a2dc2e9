"""The index of some runs' rollouts: where each lies in its file, read once and on from there as the file grows."""

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
from ..probing import STAGE as PROBES
from ..traces.json_text import dump_json
from ..traces.run_folder import RunFolder
from .rollout_view import summary
from .run_summary import finished_stages

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
        """The numbers of the rollouts whose recorded line has `text`; the case of a to z makes no difference."""
        content = self.content
        if content.generation != generation:
            raise LookupError(f"generation {generation} is over")
        wanted = dump_json(text)[1:-1].lower()
        return [number for number, place in enumerate(content.places) if wanted in _bytes_at(place).lower()]

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


def _bytes_at(place: Place) -> bytes:
    try:
        with open(place.path, "rb") as stream:
            stream.seek(place.offset)
            return stream.read(place.length)
    except FileNotFoundError as error:
        raise LookupError(f"{place.path} is gone") from error
