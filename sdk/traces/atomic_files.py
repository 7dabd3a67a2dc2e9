"""Atomic files: what is written here is whole or absent, whenever the process is killed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import RunFolderError
from ..evidence.canonical import MOST_BYTES
from .json_text import dump_json

_GOES_ON = "what is there stays good: the same call with this folder goes on from it"


def folder_error(path: Path, error: OSError) -> RunFolderError:
    """The operating system's error as one that names the path and the fix."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunFolderError(f"no space left to write {path}; free some, or choose another disk ({_GOES_ON})")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return RunFolderError(f"{path} cannot be written ({error.strerror}); choose a folder you may write to")
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return RunFolderError(f"{path} cannot be a folder: a file is in the way; remove it or choose another folder")
    return RunFolderError(f"{path} cannot be written: {error.strerror or error}; choose another folder")


def make_folder(path: Path) -> None:
    """The folder and its parents, where they are missing. Raises `RunFolderError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise folder_error(path, error) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def write_bytes(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write the file as a whole: readers see the old content or the new, also after a power cut.

    One writer at a time per folder (see `RunLock`). Raises `RunFolderError`.
    """
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise folder_error(path, error) from error


def write_json(path: Path, data: Any) -> None:
    """`write_bytes` of `json_file(data)`. Raises `RunFolderError`."""
    write_bytes(path, json_file(data))


def json_file(data: Any) -> bytes:
    """Indented JSON, as the files of a run folder have it."""
    return dump_json(data, indent=2) + b"\n"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises `RunFolderError` where it cannot be read or is none."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RunFolderError(f"{path} is damaged: it is larger than {MOST_BYTES >> 20} MiB")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged ({error}); choose another folder") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{path} is damaged: it does not hold an object; choose another folder")
    return content


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal. Raises `RunFolderError` where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def require_writable(path: Path) -> None:
    """Makes the file's folder. Raises `RunFolderError` where `write_bytes` could not write the file."""
    make_folder(path.parent)
    temporary = _temporary(path)
    try:
        temporary.open("wb").close()
        temporary.unlink()
    except OSError as error:
        raise folder_error(path, error) from error


def require_space(path: Path, needed_bytes: int) -> None:
    """Raises `RunFolderError` where the disk under `path` has fewer bytes free. `path` need not exist yet."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        raise folder_error(path, error) from error
    if free < needed_bytes:
        raise RunFolderError(
            f"{path} has {free / 1e9:.2f} GB free and the run needs about {needed_bytes / 1e9:.2f} GB; "
            "free some, or choose a folder on another disk"
        )
