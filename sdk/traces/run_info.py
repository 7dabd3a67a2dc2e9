"""The `run.json` of a run folder: what is checked and written where a run starts in it or goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp_bridge.safe_text import and_more

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


LAST_CHECKPOINT = "checkpoints/last"
"""The weights, the optimiser and the schedule after the last step of a finished run: what trains it longer."""


def refuse_foreign_content(path: Path, stored: dict[str, Any], grows: str | None = None) -> None:
    """Raises `RunFolderError` unless the folder is new, empty, or holds this configuration's run or nothing to lose.

    `grows`: see `identity.grown`.
    """
    try:
        names = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    except OSError as error:
        raise folder_error(path, error) from error
    if "run.json" in names:
        _refuse_other_run(path, stored, grows)
        return
    foreign = [name for name in names if name not in _OWN_LEFTOVERS]
    if foreign:
        shown = and_more(foreign, 5)
        raise RunFolderError(f"{path} is not empty and holds no run ({shown}); choose a new or empty output_dir")


def _refuse_other_run(path: Path, stored: dict[str, Any], grows: str | None) -> None:
    info = read_info(path)
    if identity.same_run(info, stored) or not has_work(path):
        return
    numbers = identity.grown(info["config"], stored, grows)
    if numbers is not None:
        _require_last_checkpoint(path, grows, *numbers)
        return
    differ = identity.differences(info["config"], stored) or ["the fingerprint differs"]
    shown = and_more(differ, 5, ";")
    raise RunFolderError(
        f"{path} holds another run: {shown}. Choose another output_dir, or use the folder's options to resume it"
        f"{_longer(path, info['config'])}"
    )


def _require_last_checkpoint(path: Path, option: str | None, before: int, now: int) -> None:
    """Of a finished run that is to be trained longer. Raises `RunFolderError`."""
    if not (path / "stages" / "grpo.json").is_file() or (path / LAST_CHECKPOINT).is_dir():
        return
    if any((path / "checkpoints" / "grpo").glob(f"checkpoint-{before}")):  # it was stopped as it began to go on
        return
    raise RunFolderError(
        f"{path} holds a run that is finished, with {option} {before}, and cannot be trained to {now}: the state of "
        f"its optimiser is gone ({LAST_CHECKPOINT}){_another(path)}"
    )


def _longer(path: Path, held: Mapping[str, Any]) -> str:
    """How to go on training the model of a finished run."""
    if "train" not in held or not (path / "stages" / "report.json").is_file():
        return ""
    return f". It is finished, and is trained longer where grpo.max_steps alone is raised{_another(path)}"


def _another(path: Path) -> str:
    model = path / "model"
    return (
        f". To train its model further with other options, begin another run from it: model={str(model)!r}, "
        f"config={{'warm_start.max_steps': 0}} (--model {model} --set warm_start.max_steps=0)"
    )


def holds_run(path: Path, stored: dict[str, Any], grows: str | None = None) -> bool:
    """Whether the folder holds the run of this configuration; False too where another's is to be taken over."""
    if not (path / "run.json").exists():
        return False
    info = read_info(path)
    same = identity.same_run(info, stored) or identity.grown(info["config"], stored, grows)
    if not same:
        log.warning("%s: another run was begun here and did nothing; its folder is taken over", path)
    return bool(same)


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


def note_growth(info: dict[str, Any], stored: dict[str, Any], option: str, before: int) -> None:
    """In the latest resume of `info`, that the run goes on with a larger number of an option: `stored` has it."""
    info["resumed"][-1]["raised"] = {option: before}
    info |= {"config": stored, "fingerprint": identity.fingerprint(stored)}


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
