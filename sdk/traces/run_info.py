"""The `run.json` of a run folder: what is checked and written where a run starts in it or goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import RunFolderError
from ..evidence.evidence_log import EVIDENCE
from . import identity
from .atomic_files import folder_error, read_json

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
CALLS = "calls.jsonl"
"""The ledger of all calls, written as they happen."""
_OWN_LEFTOVERS = frozenset({".lock", ".run.json.tmp"})
"""What a run killed in its first moments leaves behind; such a folder still counts as empty."""


def refuse_foreign_content(path: Path, stored: dict[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
    """Raises `RunFolderError` unless the folder is new, empty, or holds this configuration's run or nothing to lose.

    `defaults`: see `identity.with_defaults`.
    """
    try:
        names = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    except OSError as error:
        raise folder_error(path, error) from error
    if "run.json" in names:
        _refuse_other_run(path, stored, defaults or {})
        return
    foreign = [name for name in names if name not in _OWN_LEFTOVERS]
    if foreign:
        shown = ", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if len(foreign) > 5 else "")
        raise RunFolderError(f"{path} is not empty and holds no run ({shown}); choose a new or empty output_dir")


def _refuse_other_run(path: Path, stored: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    info = read_info(path)
    if identity.same_run(info, stored, defaults) or not has_work(path):
        return
    held = identity.with_defaults(info["config"], defaults)
    differ = identity.differences(held, stored) or ["the fingerprint differs"]
    shown = "; ".join(differ[:5]) + (f"; and {len(differ) - 5} more" if len(differ) > 5 else "")
    raise RunFolderError(
        f"{path} holds another run: {shown}. Choose another output_dir, or use the folder's options to resume it"
        f"{_longer(path, held)}"
    )


def _longer(path: Path, held: Mapping[str, Any]) -> str:
    """How to go on training the model of a finished run."""
    if "train" not in held or not (path / "stages" / "report.json").is_file():
        return ""
    return (
        f". It is finished; to train its model further, begin another run from it: model={str(path / 'model')!r}, "
        f"config={{'warm_start.max_steps': 0}} (--model {path / 'model'} --set warm_start.max_steps=0)"
    )


def holds_run(path: Path, stored: dict[str, Any], defaults: Mapping[str, Any] | None = None) -> bool:
    """Whether the folder holds the run of this configuration; False too where another's is to be taken over."""
    if not (path / "run.json").exists():
        return False
    same = identity.same_run(read_info(path), stored, defaults)
    if not same:
        log.warning("%s: another run was begun here and did nothing; its folder is taken over", path)
    return same


def has_work(path: Path) -> bool:
    """Whether a run has left anything that took work: rollouts, metrics, finished stages, checkpoints or a model.

    The calls of demonstrations that were checked are no work; whoever takes the folder over goes on with their file.
    Nor is the evidence that a run was begun.
    """
    files = (*path.glob("*.jsonl"), *path.glob("rollouts/*.jsonl"))
    written = [file for file in files if file.name not in (CALLS, EVIDENCE)]
    return any(file.stat().st_size for file in written) or any(
        any((path / name).glob("*")) for name in ("stages", "checkpoints", "model")
    )


def read_info(path: Path) -> dict[str, Any]:
    """The checked content of a run's `run.json`. Raises `RunFolderError`."""
    info = read_json(path / "run.json")
    if info.get("format_version") != FORMAT_VERSION:
        raise RunFolderError(
            f"{path} has format version {info.get('format_version')!r}, and this toolbake reads {FORMAT_VERSION}; "
            "choose another output_dir, or the toolbake that wrote it"
        )
    if not isinstance(info.get("config"), dict) or not isinstance(info.get("fingerprint"), str):
        raise RunFolderError(
            f"{path / 'run.json'} is damaged: config or fingerprint is missing; choose another output_dir"
        )
    return info


def new_info(stored: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
    """The first `run.json` of a run; `stored` is its configuration without secrets."""
    return {
        "format_version": FORMAT_VERSION,
        "created_at": now(),
        "fingerprint": identity.fingerprint(stored),
        "seeds": identity.seeds_of(stored),
        "versions": versions,
        "config": stored,
        "resumed": [],
    }


def note_resume(info: dict[str, Any], versions: dict[str, str], path: Path) -> None:
    """Add this resume to `info`, and log which versions have changed since."""
    changed = [
        f"{name} {info['versions'].get(name)} -> {versions.get(name)}"
        for name in sorted(info["versions"].keys() | versions.keys())
        if info["versions"].get(name) != versions.get(name)
    ]
    if changed:
        log.warning("%s: the run resumes with other versions: %s", path, ", ".join(changed))
    info.setdefault("resumed", []).append({"at": now(), "versions": versions})


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
