"""Saved weights held against the versions that were published: are the checkpoints those that were sampled from?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .findings import Finding
from .replaying import Expected, Published
from .weights import files_digest, files_of

_CHECKPOINTS = "checkpoints/grpo"
"""Of the steps of GRPO, whose number is the version of the weights."""
_STEP = re.compile(r"checkpoint-(\d+)")
_WRITTEN_LAST = "trainer_state.json"
"""By the trainer: a checkpoint without it was cut off by a kill, and no run goes on from it."""


@dataclass(frozen=True)
class _Saved:
    folder: str
    version: int


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
