"""What was put in: nobody is to mistake it for the real tool."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from threading import Lock
from typing import Any

logger = logging.getLogger(__name__)

_MOST_KEPT = 10_000


@dataclass(frozen=True)
class InjectedFault:
    """One fault in one call. `scored`: whether it is part of the task; otherwise the rollout is left unscored."""

    world_id: str
    tool: str
    arguments: dict[str, Any]
    fault: str
    detail: str
    scored: bool
    call_id: str | None = None

    def __str__(self) -> str:
        return f"fault {self.fault}: {self.detail}"


class FaultLog:
    """The faults of all worlds of one source; safe for threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._unscored = 0
        self._calls: Counter[str] = Counter()
        self._kept: deque[InjectedFault] = deque(maxlen=_MOST_KEPT)

    def called(self, tool: str) -> None:
        with self._lock:
            self._calls[tool] += 1

    def add(self, fault: InjectedFault) -> None:
        with self._lock:
            self._counts[fault.tool, fault.fault] += 1
            self._unscored += not fault.scored
            self._kept.append(fault)
        logger.info("world %s, %s: %s", fault.world_id, fault.tool, fault)

    @property
    def kept(self) -> list[InjectedFault]:
        with self._lock:
            return list(self._kept)

    def as_json(self) -> dict[str, Any]:
        """`{"calls": 9, "faults": 2, "unscored": 1, "tools": {"get": {"calls": 9, "ErrorAnswer": 2}}}`."""
        with self._lock:
            tools: dict[str, dict[str, int]] = {tool: {"calls": n} for tool, n in sorted(self._calls.items())}
            for (tool, fault), number in sorted(self._counts.items()):
                tools.setdefault(tool, {"calls": 0})[fault] = number
            return {
                "calls": sum(self._calls.values()),
                "faults": sum(self._counts.values()),
                "unscored": self._unscored,
                "tools": tools,
            }
