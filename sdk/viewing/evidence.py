"""Whether a run's evidence knows a rollout as it stands in its file. Checking all of it is `toolbake verify`'s work."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

from ..evidence.recording import EVIDENCE


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
                self._note(raw)

    def _note(self, raw: bytes) -> None:
        try:
            entry = json.loads(raw)
            if entry["kind"] == "rollout":
                data = entry["data"]
                self._known[data["stage"], data["id"]] = (str(data["sha256"]), self._lines)
        except (ValueError, KeyError, TypeError):
            return  # a damaged entry knows no rollout; `toolbake verify` names it
