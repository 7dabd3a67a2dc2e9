"""What a check found, and the report of all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["good", "advice", "problem"]
_MARKS: dict[Level, str] = {"good": "ok", "advice": "-", "problem": "!!"}


@dataclass(frozen=True)
class Advice:
    """One thing that was looked at."""

    area: str
    """`machine`, `packages`, `tools`, `tasks` or `verifier`."""
    level: Level
    found: str
    do: str = ""
    """What to do about it, with the command or the option."""
    worth: int = 50
    """The order among what is to be done: the lowest first."""


@dataclass(frozen=True)
class Checkup:
    """All that was looked at, in the order in which it was."""

    advice: Sequence[Advice]

    @property
    def to_do(self) -> list[Advice]:
        """What to do, in the order of worth: what must be fixed comes first."""
        return sorted((one for one in self.advice if one.do), key=lambda one: (one.level != "problem", one.worth))

    @property
    def problems(self) -> int:
        return sum(one.level == "problem" for one in self.advice)

    def as_json(self) -> str:
        areas = [asdict(one) for one in self.advice]
        return json.dumps(
            {"problems": self.problems, "checks": areas, "to_do": [one.do for one in self.to_do]}, indent=2
        )

    def __str__(self) -> str:
        lines: list[str] = []
        for area in dict.fromkeys(one.area for one in self.advice):
            lines.append(area)
            lines += [f"  {_MARKS[one.level]:<2} {one.found}" for one in self.advice if one.area == area]
        lines.append("")
        if not self.to_do:
            return "\n".join([*lines, "Nothing is to be done."])
        lines.append(f"To do, what matters most first ({self.problems} must be fixed):")
        for number, one in enumerate(self.to_do, 1):
            lines.append(f"  {number}. {'[must be fixed] ' if one.level == 'problem' else ''}{one.do}")
        return "\n".join(lines)
