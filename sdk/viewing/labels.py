"""Labels that people give rollouts: kept in its folder, and exported as examples to check a judge with."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import BaseModel, Field, ValidationError

from ..errors import RunFolderError, ToolbakeError, wrong_fields
from ..evidence.canonical import numbered_lines
from ..records import Rollout
from ..traces.journal import Journal
from ..traces.json_text import dump_json
from ..traces.run_folder import RunFolder, now
from .index import RunIndex, find_runs, line_at, run_facts, run_names

log = logging.getLogger(__name__)

FILE = "labels.jsonl"
_SCORES = {"good": 1.0, "bad": 0.0}
_MOST_CHARS = 20_000
_MOST_PROBLEMS = 20
"""On the page."""


class Label(BaseModel, extra="forbid"):
    """A person's label of a rollout. A later line about the same rollout replaces an earlier one."""

    stage: str
    rollout: str
    label: Literal["good", "bad", "unsure"] | None = None
    """None: no label, or it was taken back."""
    comment: str = Field(default="", max_length=_MOST_CHARS)
    at: str = ""
    """When, in UTC."""
    said: str = ""
    """The digest of the conversation that was read, see `digest_of`: ids come again where a run goes on. Empty in files
    of before it was kept."""


def digest_of(line: Mapping[str, Any]) -> str:
    """Of what is said in a rollout's line; empty where that cannot be read."""
    try:
        messages = Rollout.model_validate(dict(line)).messages
    except ValidationError:
        return ""
    return hashlib.sha256(dump_json([message.model_dump() for message in messages])).hexdigest()[:16]


class Labels:
    """The labels of one run, in `labels.jsonl` beside it. Threads may share it; one process writes it."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._journal = Journal(run.path / FILE)
        self._lock = threading.Lock()

    def read(self) -> dict[tuple[str, str], Label]:
        """The standing label of each rollout by stage and id. Raises `RunFolderError` where a line is damaged."""
        found, problems = self.readable()
        if problems:
            raise RunFolderError(problems[0])
        return found

    def readable(self) -> tuple[dict[tuple[str, str], Label], list[str]]:
        """The same of the lines that can be read, and what is wrong with each of the others."""
        found: dict[tuple[str, str], Label] = {}
        problems = []
        for number, raw in numbered_lines(self._journal.path):
            try:
                label = Label.model_validate_json(raw)  # also a last line that an editor did not end
            except ValidationError as error:
                if not raw.endswith(b"\n"):
                    log.warning("%s: line %d was not written to its end; it is left out", self._journal.path, number)
                    continue
                problems.append(
                    f"{self._journal.path}, line {number}, is not a label ({wrong_fields(error, 'line')}); correct it, "
                    "or remove it"
                )
            else:
                found[label.stage, label.rollout] = label
        return {key: label for key, label in found.items() if label.label is not None or label.comment}, problems

    def write(self, label: Label) -> Label:
        """Keep it, with the time. Raises `RunFolderError` where it cannot be written."""
        dated = label.model_copy(update={"at": now()})
        with self._lock:
            self._end_last_line()
            self._journal.cut_torn_line()
            self._journal.append(dated)
            self._journal.close()
        return dated

    def _end_last_line(self) -> None:
        """People correct this file by hand, and editors need not end its last line."""
        path = self._journal.path
        last = path.read_bytes().rpartition(b"\n")[2] if path.is_file() else b""
        with contextlib.suppress(ValidationError):
            Label.model_validate_json(last)
            with path.open("ab") as file:
                file.write(b"\n")

    def examples(self) -> Iterator[dict[str, Any]]:
        """Every labelled rollout: `score` (1.0 good, 0.0 bad, None for unsure), `comment` and the whole `rollout`.

        Rollouts whose file no longer has them, or has another conversation under their id, are left out, with a
        warning; their labels stay in `labels.jsonl`.
        """
        labels = {key: label for key, label in self.read().items() if label.label is not None}
        stages = self._run.rollout_stages()
        for stage in sorted({stage for stage, _ in labels if stage in stages}):
            for rollout in self._run.iter_rollouts(stage):
                label = labels.get((stage, rollout.id))
                if label is not None and label.said in ("", digest_of(rollout.model_dump())):
                    assert label.label is not None
                    del labels[stage, rollout.id]
                    yield {
                        "stage": stage,
                        "label": label.label,
                        "score": _SCORES.get(label.label),
                        "comment": label.comment,
                        "at": label.at,
                        "rollout": rollout.model_dump(),
                    }
        for stage, gone in labels:
            log.warning("%s: %s of stage %s has a label, and is no longer there", self._run.path, gone, stage)


def labels_of(runs: Sequence[Labels], index: RunIndex) -> list[dict[str, Any]]:
    """The labels of all runs that can be read, each with the number of its run, as the page reads them. Those of
    conversations that are no longer there are left out."""
    found = {(n, *key): label for n, labels in enumerate(runs) for key, label in labels.readable()[0].items()}
    for place in index.content.places:
        label = found.get((place.run, place.stage, place.id))
        if label is not None and label.said not in ("", digest_of(line_at(place))):
            del found[place.run, place.stage, place.id]
    return [{"run": run, **label.model_dump()} for (run, _, _), label in found.items()]


def facts_of(runs: Sequence[RunFolder], labels: Sequence[Labels]) -> list[dict[str, Any]]:
    """See `run_facts`; with what of each run's labels cannot be read."""
    found = []
    for run, name, of_run in zip(runs, run_names(runs), labels, strict=True):
        facts, problems = run_facts(run, name), of_run.readable()[1]
        facts["problems"] += problems[:_MOST_PROBLEMS]
        if (more := len(problems) - _MOST_PROBLEMS) > 0:
            facts["problems"].append(f"and {more} more of its lines")
        found.append(facts)
    return found


def export_labels(paths: Sequence[Path], target: Path) -> int:
    """Write the labelled rollouts of runs as JSON lines, see `Labels.examples`; returns how many.

    Raises `RunFolderError` where there is no run, `ToolbakeError` where the file cannot be written, or is a run's own.
    """
    count = 0
    runs = find_runs(paths)
    require_outside(target, runs)
    with exported_file(target) as file:
        for path in runs:
            for example in Labels(RunFolder.open_to_read(path)).examples():
                file.write(dump_json(example) + b"\n")
                count += 1
    return count


def require_outside(target: Path, runs: Sequence[Path]) -> None:
    """Raises `ToolbakeError` for a file that is there in the folder of a run: it would be written over."""
    for run in runs:
        if target.is_file() and target.resolve().is_relative_to(run.resolve()) and target.suffix != ".html":
            raise ToolbakeError(f"{target} is a file of the run {run}; choose another file")


@contextmanager
def exported_file(target: Path, like: Path | None = None) -> Iterator[BinaryIO]:
    """A file that takes the place of `target` at the end, with the access rights of `like` (`target` where None).

    Raises `ToolbakeError` where it cannot be written.
    """
    like = like or target
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        mode = like.stat().st_mode & 0o777 if like.exists() else None
        temporary.unlink(missing_ok=True)
        with open(
            temporary, "wb", opener=lambda path, flags: os.open(path, flags, 0o666 if mode is None else mode)
        ) as file:
            yield file
        if mode is not None:
            temporary.chmod(mode)  # also where the umask takes rights away
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise ToolbakeError(f"{target} cannot be written: {error.strerror or error}; choose another file") from error
