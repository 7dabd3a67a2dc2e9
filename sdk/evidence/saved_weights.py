"""Saved weights: their digest, in memory and on disk, and saved folders compared with the evidence.

The digest of weights is that of a list with `[name, dtype, shape, SHA-256 of the bytes]` for each tensor, sorted by
name, with names, dtypes and the order of bytes as in the safetensors format.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..traces.atomic_files import file_sha256
from .canonical import digest, parse
from .evidence_log import EVIDENCE
from .expected_run import Expected, Finding, Published

_MOST_HEADER = 100_000_000
"""Bytes; safetensors itself reads no larger one."""
_BLOCK = 1 << 24
ADAPTER_FILE = "adapter_model.safetensors"
REFERENCE_FILE = "reference.safetensors"
"""In a checkpoint of GRPO: the weights that the divergence is measured from."""

Tensor = tuple[str, str, tuple[int, ...], str]
"""Name, dtype as safetensors names it (`F32`, `BF16`), shape, and SHA-256 of the bytes."""


def tensors_digest(tensors: Iterable[Tensor]) -> str:
    """One digest of all tensors, in whichever order they come."""
    return digest(sorted([name, dtype, list(shape), sha] for name, dtype, shape, sha in tensors))


def files_of(folder: Path, *, adapter: bool) -> list[Path]:
    """The files of a model's folder that hold its weights, or those of the adapter in it or in its `adapter/`."""
    if adapter:
        return [file for file in (folder / "adapter" / ADAPTER_FILE, folder / ADAPTER_FILE) if file.is_file()][:1]
    return sorted(file for file in folder.glob("*.safetensors") if file.name not in (ADAPTER_FILE, REFERENCE_FILE))


def files_digest(files: Iterable[Path]) -> str:
    """The digest of the tensors in safetensors files. Raises `ValueError` for a file that is none."""
    return tensors_digest(tensor for file in files for tensor in _tensors(file))


def _tensors(path: Path) -> Iterator[Tensor]:
    """Header first: eight bytes with its length, then JSON with the place of each tensor; nothing else is loaded."""
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= _MOST_HEADER:
            raise ValueError(f"{path.name} is not a safetensors file")
        header = parse(file.read(length))
        for name, one in header.items():
            if name == "__metadata__":
                continue
            try:
                begin, end = map(int, one["data_offsets"])
                dtype, shape = str(one["dtype"]), tuple(map(int, one["shape"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path.name} is not a safetensors file: {error!r}") from error
            file.seek(8 + length + begin)
            yield str(name), dtype, shape, _sha256(file, end - begin)


def _sha256(file: BinaryIO, size: int) -> str:
    found = hashlib.sha256()
    while size > 0:
        block = file.read(min(size, _BLOCK))
        if not block:
            raise ValueError("a safetensors file ends too early")
        found.update(block)
        size -= len(block)
    return found.hexdigest()


_CHECKPOINTS = "checkpoints/grpo"
"""Of the steps of GRPO, whose number is the version of the weights."""
_STEP = re.compile(r"checkpoint-(\d+)")
_WRITTEN_LAST = "trainer_state.json"
"""By the trainer: a checkpoint without it was cut off by a kill, and no run goes on from it."""


_TRAINERS = ("checkpoints/grpo", "checkpoints/warm_start_trainer", "checkpoints/untrained")
"""What resuming needs, and no entry announces; removed as the model is saved."""
_FOLDERS = frozenset({"rollouts", "stages", "checkpoints", "vllm"})
_FILES = re.compile(
    r"run\.json|evidence\.(?:jsonl|root\.json|sig\.json)|report\.(?:md|json)|.*\.png|\..*"
    r"|(?:calls|metrics|metrics\.discarded|demonstrations|demonstrations\.work|labels)\.jsonl"
)
"""What else a run has beside its model."""


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


def compare_files(path: Path, expected: Expected) -> Iterator[Finding | str]:
    """Findings for files of saved folders that were changed, removed or added, and notes on what was not compared.

    A folder that is gone as a whole was removed or moved by whoever has the run: nothing can be read from it.
    """
    for folder, saved in expected.weights.items():
        there = files_in(path / folder) if (path / folder).is_dir() else []
        if not there and (not (path / folder).exists() or (path / folder).is_dir()):
            yield f"{folder} is not there any more: its {len(saved.files)} files were not compared"
            continue
        for name, sha in saved.files.items():
            yield from compare_file(path, f"{folder}/{name}", sha, saved.entry)
        text = f"{EVIDENCE}, line {saved.entry}, has all files of {folder} as it was saved, and this one was not there"
        other = [name for name in there if name not in saved.files]
        yield from (Finding("added", f"{folder}/{name}", None, text) for name in other)


def compare_folders(path: Path, expected: Expected) -> Iterator[Finding | str]:
    """Findings for what lies beside the model or the checkpoints and was not announced, and notes on what can be that.

    A loose file beside the model is a note: nothing reads it.
    """
    known = {*expected.weights, *(() if expected.settled and "report" in expected.finished else _TRAINERS)}
    for one in sorted((*path.iterdir(), *(path / "checkpoints").glob("*"))):
        name = one.relative_to(path).as_posix()
        is_saved = one.parent != path or one.is_dir() or one.is_symlink()
        if name in known or (name in _FOLDERS and not one.is_symlink()) or (not is_saved and _FILES.fullmatch(name)):
            continue
        if not is_saved:
            yield f"{name} is not a file of a run, and is not covered"
        elif expected.settled:
            text = f"no entry of {EVIDENCE} announced it; if the run was stopped as it saved it, let the run go on"
            yield Finding("added", name, None, text)
        else:
            yield f"{name} was not announced: the run is saving it, or was killed then, or it was put there"


def compare_weights(path: Path, expected: Expected) -> Iterator[Finding | str]:
    """Findings for saved weights that are not those published as their version, and notes on what was not compared.

    Compared are the folders that the evidence names and every checkpoint that is still there: its tensors, from the
    files as they are now.
    """
    if not expected.published:
        return
    for folder, version in _saved(path, expected):
        published = expected.published.get(version, [])
        if not published:
            yield f"{folder} has version {version} of the weights, which was never published"
            continue
        fault = _fault(path / folder, version, published)
        if fault is not None:
            yield Finding("changed", folder, None, fault)


def _saved(path: Path, expected: Expected) -> Iterator[tuple[str, int]]:
    """Each folder with weights, and their version."""
    for folder, one in expected.weights.items():
        if all((path / folder / name).is_file() for name in one.files):  # what is missing is named already
            yield folder, one.version
    for state in sorted((path / _CHECKPOINTS).glob(f"*/{_WRITTEN_LAST}")):
        found = _STEP.fullmatch(state.parent.name)
        if found is not None:
            yield state.parent.relative_to(path).as_posix(), int(found[1])


def _fault(folder: Path, version: int, published: list[Published]) -> str | None:
    """Adapters beside whole weights must both be right: those that nothing has trained yet change no whole weights."""
    right = []
    for adapter in {one.adapter for one in published}:
        files = files_of(folder, adapter=adapter)
        if not files:
            continue
        try:
            sha = files_digest(files)
        except (OSError, ValueError) as error:
            return f"its weights cannot be read: {error}"
        right.append(sha in {one.sha256 for one in published if one.adapter == adapter})
    if right and all(right):
        return None
    lines = ", ".join(str(one.entry) for one in published)
    return f"its weights are not those that evidence.jsonl, line {lines}, has as version {version}"
