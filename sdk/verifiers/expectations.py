"""The verifier that needs no code: every field of a task's `expected` is compared by the check that is made for it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError, VerifierError
from .answer_forms import answer_json, answer_pattern
from .answers import answer_match
from .calls import calls_match
from .combining import joined, run_parts
from .states import final_state

if TYPE_CHECKING:
    from ..records import Rollout, Task, Verdict
    from .verifier import VerifierLike

_CALLS, _CALLS_ALONE = calls_match(), calls_match(only=True)
_ANSWERS = frozenset({"answer", "answer_json", "answer_schema", "answer_pattern"})
_CHECKS: tuple[tuple[frozenset[str], VerifierLike], ...] = (
    (frozenset({"changes", "state"}), final_state()),
    (frozenset({"calls", "forbid"}), _CALLS),
    (frozenset({"answer"}), answer_match()),
    (frozenset({"answer_json", "answer_schema"}), answer_json()),
    (frozenset({"answer_pattern"}), answer_pattern()),
)
_KNOWN = frozenset[str]().union(*(fields for fields, _ in _CHECKS), {"options"})


@dataclass(frozen=True, repr=False)
class AsExpected:
    """See `as_expected`."""

    def __repr__(self) -> str:
        return "as_expected()"

    async def verify(self, rollout: Rollout) -> Verdict:
        if problem := _problem(rollout.task):
            raise VerifierError(problem)
        verdicts = await run_parts(_checks(set(rollout.task.expected)), rollout)
        return joined(verdicts, float(all(verdict.score >= 1 for verdict in verdicts.values())))

    def require_fields(self, tasks: Sequence[Task]) -> None:
        """Raises `ConfigError` for tasks that do not say what is expected, before any rollout."""
        problems = [problem for task in tasks if (problem := _problem(task))]
        if problems:
            more = f" ({len(problems)} of {len(tasks)} tasks)" if len(problems) > 1 else ""
            raise ConfigError(problems[0] + more)


def as_expected() -> AsExpected:
    """A verifier: 1 if everything holds that the task expects, otherwise 0.

    `changes` and `state` are compared by `final_state()`, `calls` and `forbid` by `calls_match()`, `answer` by
    `answer_match()`, `answer_json` and `answer_schema` by `answer_json()`, `answer_pattern` by `answer_pattern()`.
    Where a task expects calls and no answer, no other call may succeed: calling every tool would be right otherwise. A
    task with other fields, or none, is unscored: it needs a verifier of its own. On the command line:
    `--verifier expected`.
    """
    return AsExpected()


def _checks(expected: set[str]) -> list[VerifierLike]:
    checks = [check for fields, check in _CHECKS if fields & expected]
    if "calls" in expected and not expected & _ANSWERS:
        return [_CALLS_ALONE if check is _CALLS else check for check in checks]
    return checks


def _problem(task: Task) -> str:
    """Why this task cannot be judged by its own fields; empty where it can."""
    known = ", ".join(sorted(_KNOWN - {"options"}))
    fix = "give a verifier of your own for it (FILE.py:NAME on the command line)"
    if unknown := sorted(set(task.expected) - _KNOWN):
        near = difflib.get_close_matches(unknown[0], _KNOWN, n=1)
        meant = f"did you mean {near[0]!r}? Or {fix}" if near else fix
        told = f"task {task.id!r} expects {unknown[0]!r}, which no ready-made check compares"
        return f"{told}; {meant}. They know {known}"
    if not set(task.expected) - {"options"}:
        return f"task {task.id!r} expects nothing; give expected with some of {known} (toolbake solve does), or {fix}"
    return ""
