"""How the answers of a twin came about, over all its worlds."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

logger = logging.getLogger(__name__)

How = Literal["recorded", "repeated", "other_session", "nearest", "simulated", "kept", "mistake", "not_recorded"]
"""How a call was answered:

| word | the answer |
| --- | --- |
| `recorded` | was recorded at this place |
| `repeated` | is the last one recorded here, given again: the call was made more often than in the recording |
| `other_session` | was recorded at this place in another session than the answers before it |
| `nearest` | was recorded for the nearest call |
| `simulated` | is a model's |
| `kept` | is a model's from before, kept in memory or in the cassette |
| `mistake` | says that there is no such tool or that the arguments do not fit its schema |
| `not_recorded` | there is none: `NotRecorded` was raised |
"""

_MOST_KEPT = 1000


@dataclass(frozen=True)
class Unusual:
    """A call that was not answered by its own recording."""

    tool: str
    arguments: dict[str, Any]
    how: How
    detail: str = ""
    """For a nearest answer, the recorded arguments and how near they are; for others, what was missing."""


class Tally:
    """Counts shared by a twin and all its forks; safe for threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[tuple[str, How]] = Counter()
        self._unusual: deque[Unusual] = deque(maxlen=_MOST_KEPT)

    def add(self, tool: str, how: How, arguments: dict[str, Any] | None = None, detail: str = "") -> None:
        with self._lock:
            self._counts[tool, how] += 1
            if arguments is not None:
                self._unusual.append(Unusual(tool, arguments, how, detail))
        if arguments is not None:
            logger.info("%s answered %s%s", tool, how, f" ({detail})" if detail else "")

    @property
    def unusual(self) -> list[Unusual]:
        """The latest calls that were not answered by their own recording, at most 1000."""
        with self._lock:
            return list(self._unusual)

    def as_json(self) -> dict[str, Any]:
        """`{"calls": 7, "answers": {"recorded": 6, "nearest": 1}, "tools": {"get": {"recorded": 6, ...}}}`."""
        with self._lock:
            counts = dict(self._counts)
        answers: Counter[str] = Counter()
        tools: dict[str, dict[str, int]] = {}
        for (tool, how), number in sorted(counts.items()):
            answers[how] += number
            tools.setdefault(tool, {})[how] = number
        return {"calls": sum(answers.values()), "answers": dict(answers), "tools": tools}
