"""What a verification found, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["changed", "missing", "added", "repeated", "reordered", "unearned", "signature"]
"""What is wrong.

| kind | means |
| --- | --- |
| `changed` | bytes are not those that the evidence has |
| `missing` | the evidence has it, and it is not there |
| `added` | it is there, and the evidence does not have it |
| `repeated` | it is there more than once |
| `reordered` | it is not in the place that the evidence has it in |
| `unearned` | the evidence does not give this reward, or does not show a call that it rests on |
| `signature` | the signature, or the root that was given, is not of this run, or does not cover all of it |
"""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `file` is relative to the run's folder; `line` counts from 1, None for a whole file."""

    kind: Kind
    file: str
    line: int | None
    text: str
    rollout: str = ""
    """The id of the rollout that it is about, where it is about one."""

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line is not None else ""
        rollout = f", rollout {self.rollout!r}" if self.rollout else ""
        return f"{self.kind}: {self.file}{line}{rollout}: {self.text}"


@dataclass
class Verification:
    """The outcome of `verify_run`."""

    folder: str
    root: str = ""
    """The hash of the last entry of the evidence: it stands for everything before it."""
    entries: int = 0
    rollouts: dict[str, int] = field(default_factory=dict)
    """How many the evidence has in each stage, those set aside left out."""
    calls: int = 0
    """Lines of the calls' ledger."""
    rescored: int = 0
    """Verdicts that a verifier gave again, from the evidence alone."""
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is no fault and worth knowing: what was not checked, what a kill lost."""

    @property
    def holds(self) -> bool:
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "folder": self.folder,
            "holds": self.holds,
            "root": self.root,
            "entries": self.entries,
            "rollouts": self.rollouts,
            "calls": self.calls,
            "rescored": self.rescored,
            "findings": [vars(finding) for finding in self.findings],
            "notes": self.notes,
        }
