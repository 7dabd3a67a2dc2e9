"""A run as a whole, as the page shows it: settings, the report's figures, metrics, and what its evidence announced."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import RunFolderError
from ..evaluation.faults import FAULTS
from ..evaluation.report import CONDITIONS
from ..evidence.evidence_log import EVIDENCE
from ..probing import STAGE as PROBES
from ..traces.atomic_files import read_json
from ..traces.run_folder import RunFolder


def run_facts(run: RunFolder) -> dict[str, Any]:
    """For the overview. A report is there once the run is done; `problems` lists what could not be read."""
    facts: dict[str, Any] = {
        "name": run.path.name,
        "created_at": run.info.get("created_at"),
        "fingerprint": run.info.get("fingerprint"),
        "versions": run.info.get("versions", {}),
        "config": run.config,
        "threshold": _threshold(run.config),
        "stages_done": list(finished_stages(run)),
        "set_aside": sorted(file.name for file in (run.path / "rollouts").glob("*.discarded.jsonl")),
        "evidence": (run.path / EVIDENCE).is_file(),
        "probes": PROBES,
        "titles": {},
        "intervals": {},
        "faults": {},
        "next_steps": [],
        "fault_meanings": FAULTS,
        "problems": [],
    }
    if run.report_json.is_file():
        try:
            report = read_json(run.report_json)
            facts |= _reported(run, report)
            facts["threshold"] = report.get("success_threshold", facts["threshold"])
        except RunFolderError as error:
            facts["problems"].append(str(error))
    return facts


def _reported(run: RunFolder, report: dict[str, Any]) -> dict[str, Any]:
    """Of each stage that is a condition of the report: its title there, the interval of its success as (low, estimate,
    high), and the fault of each rollout that failed. With what the report advises. Lenient: reports of other versions
    are shown as far as they go."""
    noted = run.stage(CONDITIONS) or {}
    conditions, errors = report.get("conditions", {}), report.get("errors", {})
    stages = noted.get("stages") or {name: name.lower().replace(" ", "_") for name in conditions}
    titles, intervals, faults = {}, {}, {}
    for name, stage in stages.items():
        titles[stage] = name
        if (interval := (conditions.get(name, {}).get("success") or {}).get("interval")) is not None:
            intervals[stage] = [interval[end] for end in ("low", "estimate", "high")]
        faults[stage] = errors.get(name, {}).get("faults", {})
    steps = [str(step) for step in report.get("next_steps", [])]
    return {"titles": titles, "intervals": intervals, "faults": faults, "next_steps": steps}


def facts_version(runs: Sequence[RunFolder]) -> str:
    """Another text whenever `run_facts` or `metrics_of` of a run may give something else."""
    seen = []
    for run in runs:
        for path in (run.path / "run.json", run.report_json, run.path / "metrics.jsonl", run.path / "stages"):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            seen.append(f"{found.st_mtime_ns}.{found.st_size}")
    return " ".join(seen)


def finished_stages(run: RunFolder) -> dict[str, str]:
    """When each stage that is done was done, in that order."""
    markers = [(file, str(read_json(file).get("finished_at"))) for file in (run.path / "stages").glob("*.json")]
    # Stages of small runs end in the same second; the file's own time orders those, unless it was copied.
    markers.sort(key=lambda marker: (marker[1], marker[0].stat().st_mtime_ns))
    return {file.stem: finished_at for file, finished_at in markers}


def metrics_of(run: RunFolder) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, of steps only."""
    return [line for line in run.read_metrics() if isinstance(line.get("step"), int)]


def _threshold(config: dict[str, Any]) -> float:
    train = config.get("train")
    evaluation = train.get("evaluation") if isinstance(train, dict) else None
    found = evaluation.get("success_threshold") if isinstance(evaluation, dict) else None
    return float(found) if isinstance(found, int | float) else 1.0


class Announced:
    """What the evidence of one run announced of its rollouts; read once, and on from there. Threads may share it."""

    def __init__(self, run: Path) -> None:
        self._path = run / EVIDENCE
        self._lock = threading.Lock()
        self._read = 0
        self._lines = 0
        self._known: dict[tuple[str, str], tuple[str, int]] = {}

    def status(self, stage: str, rollout: str, raw: bytes) -> dict[str, Any] | None:
        """`status`, a sentence, and `facts`; None where the run has no evidence. `raw`: the rollout's line."""
        if not self._path.is_file():
            return None
        with self._lock:
            self._read_on()
            found = self._known.get((stage, rollout))
        if found is None:
            return {"status": "The evidence does not know this rollout.", "facts": {}, "right": False}
        announced, number = found
        same = hashlib.sha256(raw).hexdigest() == announced
        text = "As the evidence announced it." if same else "Changed: the evidence announced another line."
        return {"status": text, "facts": {"entry": number, "sha256": announced[:16] + "…"}, "right": same}

    def _read_on(self) -> None:
        if self._path.stat().st_size < self._read:
            self._read, self._lines, self._known = 0, 0, {}
        with open(self._path, "rb") as file:
            file.seek(self._read)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self._read += len(raw)
                self._lines += 1
                try:
                    entry = json.loads(raw)
                    if entry["kind"] == "rollout":
                        data = entry["data"]
                        self._known[data["stage"], data["id"]] = (str(data["sha256"]), self._lines)
                except (ValueError, KeyError, TypeError):
                    continue  # a damaged entry knows no rollout; `toolbake verify` names it
