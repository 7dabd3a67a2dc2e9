"""What weights are, as one digest: the same of a model in memory and of the files that it is saved into.

The digest of weights is that of a list with `[name, dtype, shape, SHA-256 of the bytes]` for each tensor, sorted by
name, with names, dtypes and the order of bytes as in the safetensors format.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from .canonical import digest, parse

_MOST_HEADER = 100_000_000
"""Bytes; safetensors itself reads no larger one."""
_BLOCK = 1 << 24
ADAPTER_FILE = "adapter_model.safetensors"

Tensor = tuple[str, str, tuple[int, ...], str]
"""Name, dtype as safetensors names it (`F32`, `BF16`), shape, and SHA-256 of the bytes."""


def tensors_digest(tensors: Iterable[Tensor]) -> str:
    """One digest of all tensors, in whichever order they come."""
    return digest(sorted([name, dtype, list(shape), sha] for name, dtype, shape, sha in tensors))


def files_of(folder: Path, *, adapter: bool) -> list[Path]:
    """The files of a model's folder that hold its weights, or those of the adapter in it or in its `adapter/`."""
    if adapter:
        return [file for file in (folder / "adapter" / ADAPTER_FILE, folder / ADAPTER_FILE) if file.is_file()][:1]
    return sorted(file for file in folder.glob("*.safetensors") if file.name != ADAPTER_FILE)


def files_digest(files: Iterable[Path]) -> str:
    """The digest of the tensors in safetensors files. Raises `ValueError` for a file that is none."""
    return tensors_digest(tensor for file in files for tensor in _tensors(file))


def _tensors(path: Path) -> Iterator[Tensor]:
    """Header first: eight bytes with its length, then JSON with the place of each tensor; nothing else is loaded."""
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= _MOST_HEADER:
            raise ValueError(f"{path.name} is no safetensors file")
        header = parse(file.read(length))
        for name, one in header.items():
            if name == "__metadata__":
                continue
            try:
                begin, end = map(int, one["data_offsets"])
                dtype, shape = str(one["dtype"]), tuple(map(int, one["shape"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path.name} is no safetensors file: {error!r}") from error
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
