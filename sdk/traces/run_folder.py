"""The folder of one run: everything needed to read it, to trust it and to go on with it.

Its `run.json` is checked and written where a run starts in it or goes on.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcp_bridge.errors import kind_of
from mcp_bridge.ledger import ENDS, LedgerLine
from mcp_bridge.records import Tool
from mcp_bridge.safe_text import and_more

from ..errors import RunFolderError
from ..evidence.canonical import sha256
from ..evidence.evidence_log import EVIDENCE, ROOT, STAGE_NAME, EvidenceLog
from ..evidence.saved_weights import files_in
from ..records import Rollout
from . import identity
from .atomic_files import file_sha256, folder_error, make_folder, read_json, require_space, write_bytes, write_json
from .journal import Journal, Line
from .json_text import dump_json, json_line
from .run_lock import RunLock

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
CALLS = "calls.jsonl"
"""The ledger of all calls, written as they happen."""
_OWN_LEFTOVERS = frozenset({".lock", ".run.json.tmp"})
_OWN_FOLDERS = ("rollouts", "stages", "checkpoints")
"""What a run killed in its first moments leaves behind, its folders empty; such a folder still counts as empty."""


LAST_CHECKPOINT = "checkpoints/last"
"""The weights, the optimiser and the schedule after the last step of a finished run: what trains it longer."""
_WEIGHTS = {"warm_start": "warm_start", "grpo": "trained", "choice": "chosen"}
"""The weights that finished stages of a training leave in `checkpoints`, which the next call in the folder loads."""


def refuse_foreign_content(path: Path, stored: dict[str, Any], grows: str | None = None) -> None:
    """Raises `RunFolderError` unless the folder is new, empty, or holds this configuration's run or nothing to lose.

    `grows`: see `identity.grown`.
    """
    try:
        names = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
        begun = [name for name in _OWN_FOLDERS if (path / name).is_dir() and not any((path / name).iterdir())]
    except OSError as error:
        raise folder_error(path, error) from error
    if "run.json" in names:
        _refuse_other_run(path, stored, grows)
        return
    foreign = [name for name in names if name not in _OWN_LEFTOVERS and name not in begun]
    if foreign:
        shown = and_more(foreign, 5)
        raise RunFolderError(f"{path} is not empty and holds no run ({shown}); choose a new or empty output_dir")


def _refuse_other_run(path: Path, stored: dict[str, Any], grows: str | None) -> None:
    info = read_info(path)
    if not has_work(path):
        return
    if identity.same_run(info, stored):
        if "train" in stored:  # other runs have no weights
            _require_weights(path, *_WEIGHTS)
        return
    numbers = identity.grown(info["config"], stored, grows)
    if numbers is not None:
        _require_last_checkpoint(path, grows, *numbers)
        _require_weights(path, "warm_start", "choice")  # the others are trained again
        return
    differ = identity.differences(info["config"], stored) or ["the fingerprint differs"]
    shown = and_more(differ, 5, ";")
    raise RunFolderError(
        f"{path} holds another run: {shown}. Choose another output_dir, or use the folder's options to resume it"
        f"{_longer(path, info['config'])}"
    )


def _require_weights(path: Path, *stages: str) -> None:
    """Before anything is written, so that the folder stays what it was. Raises `RunFolderError`."""
    done = [stage for stage in stages if (path / "stages" / f"{stage}.json").is_file()]
    gone = [name for name in (f"checkpoints/{_WEIGHTS[stage]}" for stage in done) if not any((path / name).glob("*"))]
    if gone:
        raise RunFolderError(
            f"{path} holds a run whose weights are missing in {', '.join(gone)}; put them back from a copy, or choose "
            "another output_dir to train anew"
            + (f". Its report is in {path / 'report.md'}{_another(path)}" if (path / "model").is_dir() else "")
        )


def _require_last_checkpoint(path: Path, option: str | None, before: int, now: int) -> None:
    """Of a finished run that is to be trained longer. Raises `RunFolderError`."""
    if not (path / "stages" / "grpo.json").is_file() or any((path / LAST_CHECKPOINT).glob("*")):
        return
    if any((path / "checkpoints" / "grpo").glob("checkpoint-*")):  # it was stopped as it began to go on
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

    The calls of demonstrations that were checked are not work; whoever takes the folder over goes on with their file.
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


_SHOWN_CALLS = 5


class RunFolder:
    """One run on disk. One process writes it; a killed run goes on from it.

    Example:
        with RunFolder.create_or_resume(Path("runs/a"), config={"model": "m", "seed": 7}) as run:
            run.append_rollout("grpo", rollout)
            run.append_metrics({"step": 0, "reward": 0.25})
            run.finish_stage("grpo", {"steps": 1})

    Under several training processes (DDP, FSDP) only the main one opens it.
    """

    def __init__(self, path: Path, info: dict[str, Any], *, lock: RunLock | None, resumed: bool) -> None:
        """Use `create_or_resume` or `open_to_read`."""
        self.path = path
        self.info = info
        """The content of `run.json`."""
        self.resumed = resumed
        self._lock = lock
        self._journals: dict[str, Journal] = {}
        self._ids: dict[str, set[str]] = {}
        self._evidence: EvidenceLog | None = None
        self.interrupted_calls: list[LedgerLine] = []
        """Calls that were under way when the run was killed, found when it was opened: whether they took effect is
        unknown, and they are not made again. Rollouts that run again make calls of their own."""

    # ---- opening and closing

    @classmethod
    def create_or_resume(
        cls,
        path: Path,
        config: Mapping[str, Any],
        versions: Mapping[str, str] | None = None,
        *,
        needed_bytes: int = 0,
        grows: str | None = None,
    ) -> RunFolder:
        """Start a run in a new or empty folder, or go on with the run of the same `config` in it.

        A folder in which another run was only begun, without a rollout, a metric or a finished stage to lose, is
        taken over: a call whose first try was refused for a mistake in it works in the same folder.

        `config` holds what makes the run this run and no other (model, tasks, seeds, hyperparameters), as plain
        values; secrets in it are neither stored nor compared. `versions`: those installed, where not given.
        `needed_bytes`: what the run will write, estimated. `grows`: a number in `config`
        by its dotted name: a run that has a smaller one, and is the same otherwise, goes on with the larger one.

        Raises `RunFolderError` for a folder that holds another run or other files, is in use, cannot be written,
        or has too little space.
        """
        path = Path(path).absolute()
        stored = identity.plain_config(config)
        known_versions = dict(versions) if versions is not None else identity.installed_versions()
        require_space(path, needed_bytes)
        refuse_foreign_content(path, stored, grows)
        make_folder(path)
        lock = RunLock(path / ".lock")
        try:
            refuse_foreign_content(path, stored, grows)  # again: another process may have been faster
            resumed = holds_run(path, stored, grows)
            info = read_info(path) if resumed else new_info(stored, known_versions)
            if resumed:
                note_resume(info, known_versions, path)
                if grows is not None and (numbers := identity.grown(info["config"], stored, grows)):
                    note_growth(info, stored, grows, numbers[0])
            for name in _OWN_FOLDERS:
                make_folder(path / name)
            if not resumed:
                for name in (EVIDENCE, ROOT):  # of a run that was begun here and is taken over
                    (path / name).unlink(missing_ok=True)
            run = cls(path, info, lock=lock, resumed=resumed)
            # Its journals alone: other files of lines are there for people, who may edit them.
            journals = [path / name for name in ("calls.jsonl", "metrics.jsonl", EVIDENCE)]
            for file in [*(path / "rollouts").glob("*.jsonl"), *filter(Path.is_file, journals)]:
                Journal(file).cut_torn_line()
            run._go_on_with_evidence()
        except BaseException:
            lock.close()
            raise
        return run

    @classmethod
    def open_to_read(cls, path: Path) -> RunFolder:
        """A run to look at, also while another process writes it. Raises `RunFolderError` where there is none."""
        path = Path(path).absolute()
        if not (path / "run.json").is_file():
            raise RunFolderError(f"{path} holds no run (it has no run.json); give the output_dir of a run")
        return cls(path, read_info(path), lock=None, resumed=False)

    def close(self) -> None:
        """Close the files and let go of the lock. A second call does nothing."""
        if self._evidence is not None:
            try:
                write_bytes(self.path / ROOT, self._evidence.close())
            except RunFolderError as error:  # a full disk: what led to it is the error to see
                log.warning("%s: the end of the run could not be written to %s: %s", self.path, EVIDENCE, error)
            self._evidence = None
        for journal in self._journals.values():
            journal.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- where things are

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as stored: secrets are `***`."""
        config: dict[str, Any] = self.info["config"]
        return config

    @property
    def fingerprint(self) -> str:
        return str(self.info["fingerprint"])

    @property
    def model_dir(self) -> Path:
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def report_json(self) -> Path:
        return self.path / "report.json"

    @property
    def curve_png(self) -> Path:
        return self.path / "learning_curve.png"

    # ---- rollouts

    def append_rollout(self, stage: str, rollout: Rollout) -> None:
        """Write a rollout to its stage's file. Raises `RunFolderError`, also for a known id and what is not JSON."""
        evidence = self._require_writable()
        journal = self._journal(f"rollouts/{_checked(stage)}.jsonl")
        ids = self._known_ids(stage)
        if rollout.id in ids:
            raise RunFolderError(
                f"stage {stage!r} has a rollout {rollout.id!r} already; ids are unique within a stage "
                "(on resume, call drop_after for what the checkpoint does not know)"
            )
        # Verdicts check themselves; these are the numbers that training rests on.
        for number, row in enumerate(rollout.rows):
            if not all(map(math.isfinite, row.logprobs)):
                raise ValueError(f"rollout {rollout.id!r}: row {number} has a log-probability that is nan or inf")
        line = json_line(rollout, f"rollout {rollout.id!r}")
        with evidence.rollout(stage, line):
            journal.append_raw(line)
        ids.add(rollout.id)

    def read_rollouts(self, stage: str) -> list[Rollout]:
        """All rollouts of a stage in the order written. For large stages see `iter_rollouts`."""
        return list(self.iter_rollouts(stage))

    def iter_rollouts(self, stage: str) -> Iterator[Rollout]:
        """The rollouts of a stage one by one. Raises `RunFolderError` where a line is damaged."""
        journal = self._journal(f"rollouts/{_checked(stage)}.jsonl")
        for line in journal.read():
            try:
                yield Rollout.model_validate(line)
            except ValidationError as error:
                raise RunFolderError(
                    f"{journal.path}: rollout {line.get('id')!r} is damaged: {error}; remove its line"
                ) from error

    def rollout_stages(self) -> list[str]:
        """The stages that have rollouts."""
        return sorted(f.stem for f in (self.path / "rollouts").glob("*.jsonl") if STAGE_NAME.fullmatch(f.stem))

    def drop_after(self, stage: str, step: int) -> int:
        """Set aside rollouts of steps after `step`, the last that a checkpoint knows; returns how many.

        They move to `rollouts/<stage>.discarded.jsonl`, so that none is counted twice when the steps run again.
        """
        moved = self._set_aside(stage, lambda line: int(line.get("step", -1)) > step)
        if moved:
            log.info("%s: set aside %d rollouts of %s after step %d", self.path, moved, stage, step)
        return moved

    def drop_unscored(self, stage: str) -> int:
        """Set aside rollouts that are not `scored`, so that they run again, as `drop_after` does; returns how many."""
        moved = self._set_aside(stage, lambda line: line.get("verdict") is None or line.get("failure") is not None)
        if moved:
            log.info("%s: set aside %d unscored rollouts of %s", self.path, moved, stage)
        return moved

    def _set_aside(self, stage: str, unwanted: Callable[[Line], bool]) -> int:
        evidence = self._require_writable()
        moved = [sha256(line) for line in self._journal(f"rollouts/{_checked(stage)}.jsonl").lines_where(unwanted)]
        if moved:
            self._journal(f"rollouts/{stage}.jsonl").close()
            evidence.set_aside(stage, moved)
            _move_to_discarded(self.path, stage, set(moved))
        self._ids.pop(stage, None)
        return len(moved)

    # ---- calls

    def append_call(self, line: LedgerLine) -> None:
        """Write a line of the ledger. The system has it when this returns: a killed run shows what it had begun."""
        self._require_writable().call(line)

    def read_calls(self) -> list[LedgerLine]:
        """All lines of the ledger in the order written. Raises `RunFolderError` where one is damaged."""
        journal = self._journal(CALLS)
        try:
            return [LedgerLine.model_validate(line) for line in journal.read()]
        except ValidationError as error:
            raise RunFolderError(f"{journal.path} has a damaged line: {error}; remove it") from error

    def _go_on_with_evidence(self) -> None:
        entries, calls, config = self._journal(EVIDENCE), self._journal(CALLS), self.config
        try:
            known = {name: config.get(name) for name in ("verifier", "verifiers")}
            self._evidence = EvidenceLog(entries, calls, **known)
            _settle(self._evidence, self.path)
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{self.path / EVIDENCE} is damaged ({error!r}); `toolbake verify` names where. Choose another folder"
            ) from error
        self._end_interrupted_calls()
        write_json(self.path / "run.json", self.info)
        self._evidence.open(file_sha256(self.path / "run.json"))

    def _end_interrupted_calls(self) -> None:
        self.interrupted_calls = _interrupted(self.read_calls())
        for line in self.interrupted_calls:
            self.append_call(_ended(line))
        if self.interrupted_calls:
            log.warning(
                "%s: calls under way when the run was killed: %d; whether they took effect is unknown: %s",
                self.path,
                len(self.interrupted_calls),
                ", ".join(f"{line.tool} ({line.call})" for line in self.interrupted_calls[:_SHOWN_CALLS]),
            )

    # ---- metrics

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write a line of metrics: plain numbers, strings, dicts. Raises `ValueError` for `nan` and `inf`."""
        self._require_writable()
        _require_plain(metrics, "")
        self._journal("metrics.jsonl").append(dict(metrics))

    def read_metrics(self) -> list[Line]:
        """All lines of metrics in the order written."""
        return list(self._journal("metrics.jsonl").read())

    def drop_metrics_after(self, step: int, stage: str | None = None) -> int:
        """Set aside metrics of steps after `step`, of one stage where given; returns how many.

        Lines without a `step` stay.
        """
        self._require_writable()

        def later(line: Line) -> bool:
            return int(line.get("step", -1)) > step and (stage is None or line.get("stage") == stage)

        journal = self._journal("metrics.jsonl")
        moved = journal.lines_where(later)
        journal.move_lines(moved, self.path / "metrics.discarded.jsonl")
        return len(moved)

    # ---- tools and weights

    def record_tools(self, tools: Sequence[Tool]) -> None:
        """The tools that rollouts use from here on, with their schemas, into the run's evidence."""
        self._require_writable().tools([json.loads(dump_json(tool)) for tool in tools])

    def record_weights(self, folder: Path, version: int) -> None:
        """A model that was saved into a folder of the run, into its evidence: a digest of every file, so whatever is
        written into the folder later must be recorded again.

        `version`: that by which token rows name the weights. Raises `RunFolderError` for a file that cannot be read.
        """
        self._require_writable().weights(folder.relative_to(self.path).as_posix(), version, _digests(folder))

    def has_weights(self, folder: Path, version: int) -> bool:
        """Whether a folder of the run holds these weights, and every file in it is as it was recorded."""
        return folder.is_dir() and self._require_writable().has_weights(
            folder.relative_to(self.path).as_posix(), version, _digests(folder)
        )

    def record_published(self, version: int, weights: Mapping[str, Any]) -> None:
        """Weights that rollouts are sampled from, from here on, into the run's evidence: their `weights_digest`."""
        self._require_writable().published(version, dict(weights))

    # ---- stages

    def finish_stage(self, name: str, data: Mapping[str, Any]) -> None:
        """Mark a stage as done, after everything it wrote is on the disk. `data` is what later stages need.

        A stage that is done with this data stays as it is: the same call again changes nothing in a finished run.
        """
        evidence = self._require_writable()
        marker_file = self.path / "stages" / f"{_checked(name)}.json"
        known = marker_file.is_file() and evidence.has_finished(name, file_sha256(marker_file))
        if known and self.stage(name) == json.loads(dump_json(dict(data))):
            return
        for journal in self._journals.values():
            journal.sync()
        marker = {"stage": name, "finished_at": now(), "data": dict(data)}
        content = dump_json(marker, indent=2) + b"\n"
        with evidence.finished(name, content):
            write_bytes(marker_file, content)

    def reopen_stage(self, name: str) -> None:
        """A finished stage goes on: its marker is removed, and the evidence says so. Nothing where it is not done."""
        evidence = self._require_writable()
        marker_file = self.path / "stages" / f"{_checked(name)}.json"
        if marker_file.is_file():
            evidence.reopened(name)
            marker_file.unlink()

    def stage(self, name: str) -> dict[str, Any] | None:
        """The data of a finished stage, or `None` where it is not done."""
        path = self.path / "stages" / f"{_checked(name)}.json"
        if not path.exists():
            return None
        data = read_json(path).get("data")
        if not isinstance(data, dict):
            raise RunFolderError(f"{path} is damaged: it has no object `data`; choose another folder")
        return data

    # ---- inside

    def _journal(self, name: str) -> Journal:
        if name not in self._journals:
            self._journals[name] = Journal(self.path / name)
        return self._journals[name]

    def _known_ids(self, stage: str) -> set[str]:
        if stage not in self._ids:
            self._ids[stage] = {
                str(line.get("id")) for line in self._journal(f"rollouts/{_checked(stage)}.jsonl").read()
            }
        return self._ids[stage]

    def _require_writable(self) -> EvidenceLog:
        if self._lock is None or self._evidence is None:
            raise RunFolderError(
                f"{self.path} is open to read only, or closed; use RunFolder.create_or_resume to write"
            )
        return self._evidence


def _digests(folder: Path) -> dict[str, str]:
    return {name: file_sha256(folder / name) for name in files_in(folder)}


def _checked(stage: str) -> str:
    if not STAGE_NAME.fullmatch(stage):
        raise RunFolderError(
            f"stage name {stage!r} cannot be a file name; use 1 to 64 of a-z, 0-9, '_' and '-', such as 'warm_start'"
        )
    return stage


def _require_plain(value: Any, at: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"metric {at!r} is nan or inf; find out why before writing it, or leave it out")
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        _require_plain(item, f"{at}.{key}" if at else str(key))
    if not isinstance(value, str | int | float | list | tuple | Mapping) and value is not None:
        raise ValueError(f"metric {at!r} is {kind_of(value)}; give a plain number, for example x.item()")


# ---------------------------------------------------------------------------------------------------------------------
# Loose ends of a killed run: an announcement without its rollout, and calls without an end.


def _settle(evidence: EvidenceLog, path: Path) -> None:
    """Settle the last announcement in the evidence of the run in `path`; torn lines must be cut off before.

    A kill can only be between the last announcement and what it announced. Anything else that is missing stays
    missing, for `toolbake verify` to name.
    """
    entry = evidence.last_announced
    if entry is None:
        return
    kind, data = entry["kind"], entry["data"]
    if not STAGE_NAME.fullmatch(data["stage"]):
        raise ValueError(f"{data['stage']!r} is not the name of a stage")
    if kind == "set_aside":
        _move_to_discarded(path, data["stage"], set(data["sha256"]))
    elif kind == "reopened":
        (path / "stages" / f"{data['stage']}.json").unlink(missing_ok=True)
    elif not _is_stored(path, kind, data):
        what = f"rollout {data['id']!r} of" if kind == "rollout" else "the end of"
        log.warning("%s: %s stage %r was announced and not stored; it is recorded as lost", path, what, data["stage"])
        evidence.lost(data["sha256"])


def _move_to_discarded(path: Path, stage: str, digests: set[str]) -> None:
    """Move the lines with these SHA-256 from a stage's rollouts to its discarded ones."""
    journal = Journal(path / "rollouts" / f"{stage}.jsonl")
    journal.move_lines(
        [raw for raw in journal.raw_lines() if sha256(raw) in digests], path / "rollouts" / f"{stage}.discarded.jsonl"
    )


def _is_stored(path: Path, kind: str, data: dict[str, Any]) -> bool:
    if kind == "finished":
        return (path / "stages" / f"{data['stage']}.json").is_file()
    journal = Journal(path / "rollouts" / f"{data['stage']}.jsonl")
    return any(sha256(raw) == data["sha256"] for raw in journal.raw_lines())


def _interrupted(lines: Iterable[LedgerLine]) -> list[LedgerLine]:
    """The last line of each call that has no end, in the order in which they were begun."""
    open_calls: dict[str, LedgerLine] = {}
    for line in lines:
        if line.event in ("started", "accepted"):
            open_calls[line.key] = line
        elif line.event in ENDS:
            open_calls.pop(line.key, None)
    return list(open_calls.values())


def _ended(line: LedgerLine) -> LedgerLine:
    """The end of an interrupted call: nobody knows whether it took effect."""
    taken = f", which the server works on as {line.note}" if line.event == "accepted" else ""
    note = f"the run was killed during the call{taken}"
    return line.model_copy(update={"event": "unknown", "time": time.time(), "arguments": "", "note": note})
