"""Saved folders held against the evidence: are their files those that were saved, and their weights those published?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..traces.atomic_files import file_sha256
from .findings import Finding
from .recording import EVIDENCE
from .replaying import Expected, Published
from .weight_digests import files_digest, files_of

_MOST_NAMED = 8
_CHECKPOINTS = "checkpoints/grpo"
"""Of the steps of GRPO, whose number is the version of the weights."""
_STEP = re.compile(r"checkpoint-(\d+)")
_WRITTEN_LAST = "trainer_state.json"
"""By the trainer: a checkpoint without it was cut off by a kill, and no run goes on from it."""


@dataclass(frozen=True)
class _Saved:
    folder: str
    version: int


def files_in(folder: Path) -> list[str]:
    """Everything in a folder but its folders, sorted, relative to it. A link to a folder counts, what is in it not."""
    return sorted(
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_symlink() or not file.is_dir()
    )


def compare_file(path: Path, name: str, sha: str, entry: int) -> list[Finding]:
    """What is wrong with the file `name` of the run in `path`, which line `entry` of the evidence has as `sha`."""
    if not (path / name).is_file():
        return [Finding("missing", name, None, f"{EVIDENCE}, line {entry}, announced it, and it is not there")]
    if file_sha256(path / name) != sha:
        return [Finding("changed", name, None, f"it is not the file that {EVIDENCE}, line {entry}, has")]
    return []


def compare_files(path: Path, expected: Expected) -> tuple[list[Finding], list[str]]:
    """Findings for files of saved folders that were changed, removed or added, and notes on what was not compared.

    A folder that is gone as a whole was removed or moved by whoever has the run: nothing can be read from it.
    """
    findings: list[Finding] = []
    notes: list[str] = []
    for folder, saved in expected.weights.items():
        there = files_in(path / folder) if (path / folder).is_dir() else []
        if not there and (not (path / folder).exists() or (path / folder).is_dir()):
            notes.append(f"{folder} is not there any more: its {len(saved.files)} files were not compared")
            continue
        for name, sha in saved.files.items():
            findings += compare_file(path, f"{folder}/{name}", sha, saved.entry)
        other = [name for name in there if name not in saved.files]
        if saved.whole:
            text = (
                f"{EVIDENCE}, line {saved.entry}, has all files of {folder} as it was saved, and this one was not there"
            )
            findings += (Finding("added", f"{folder}/{name}", None, text) for name in other)
        elif other:
            more = f" and {len(other) - _MOST_NAMED} more" if len(other) > _MOST_NAMED else ""
            notes.append(
                f"{folder} was saved by an earlier version, whose evidence covers its weights alone; not covered: "
                f"{', '.join(other[:_MOST_NAMED])}{more}"
            )
    return findings, notes


def compare_weights(path: Path, expected: Expected) -> tuple[list[Finding], list[str]]:
    """Findings for saved weights that are not those published as their version, and notes on what was not compared.

    Compared are the folders that the evidence names and every checkpoint that is still there: its tensors, from the
    files as they are now.
    """
    findings: list[Finding] = []
    notes: list[str] = []
    if not expected.published:
        return findings, notes
    for saved in _saved(path, expected):
        published = expected.published.get(saved.version, [])
        if not published:
            notes.append(f"{saved.folder} has version {saved.version} of the weights, which was never published")
            continue
        fault = _fault(path / saved.folder, saved, published)
        if fault is not None:
            findings.append(Finding("changed", saved.folder, None, fault))
    return findings, notes


def _saved(path: Path, expected: Expected) -> Iterator[_Saved]:
    for folder, one in expected.weights.items():
        if all((path / folder / name).is_file() for name in one.files):  # what is missing is named already
            yield _Saved(folder, one.version)
    for state in sorted((path / _CHECKPOINTS).glob(f"*/{_WRITTEN_LAST}")):
        found = _STEP.fullmatch(state.parent.name)
        if found is not None:
            yield _Saved(state.parent.relative_to(path).as_posix(), int(found[1]))


def _fault(folder: Path, saved: _Saved, published: list[Published]) -> str | None:
    for adapter in {one.adapter for one in published}:
        files = files_of(folder, adapter=adapter)
        if not files:
            continue
        try:
            sha = files_digest(files)
        except (OSError, ValueError) as error:
            return f"its weights cannot be read: {error}"
        if sha in {one.sha256 for one in published if one.adapter == adapter}:
            return None
    lines = ", ".join(str(one.entry) for one in published)
    return f"its weights are not those that evidence.jsonl, line {lines}, has as version {saved.version}"
