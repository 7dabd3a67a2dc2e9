"""The report's section on what went wrong first."""

from __future__ import annotations

from collections.abc import Mapping

from . import figures
from .errors import FAULTS, ConditionErrors
from .errors.grouping import TELLING_RULE, TellingRollout
from .safe_text import cut, fence, inline, table
from .transcript import transcript

MOST_TELLING = 5
"""Rollouts shown in full; the others are in report.json."""


def render_errors(errors: Mapping[str, ConditionErrors], *, most_telling: int = MOST_TELLING) -> str:
    """Groups by condition, what changed against the baseline, and the rollouts that tell most. Empty without faults."""
    if not any(condition.failed for condition in errors.values()):
        return ""
    parts = ["## What went wrong first", _counts(errors), _meanings(errors), _where(errors), _changes(errors)]
    judge_errors = sum(condition.judge_errors for condition in errors.values())
    if judge_errors:
        parts.append(f"The judge failed for {judge_errors} rollouts; there the rules' word stands.")
    parts.append(_telling(errors, most_telling))
    return "\n\n".join(part for part in parts if part)


def _kinds(errors: Mapping[str, ConditionErrors]) -> list[str]:
    found = {group.kind for condition in errors.values() for group in condition.groups}
    return [kind for kind in FAULTS if kind in found]


def _title(kind: str) -> str:
    return kind.replace("_", " ")


def _counts(errors: Mapping[str, ConditionErrors]) -> str:
    rows = []
    for kind in _kinds(errors):
        cells = []
        for condition in errors.values():
            group = next((g for g in condition.groups if g.kind == kind), None)
            cells.append(f"{group.rollouts} ({group.share:.0%})" if group else "0")
        rows.append((_title(kind), *cells))
    rows.append(("failed of all", *(f"{c.failed} of {c.rollouts}" for c in errors.values())))
    head = ("rollouts (share of failures)", *(inline(name) for name in errors))
    return table(head, rows)


def _meanings(errors: Mapping[str, ConditionErrors]) -> str:
    meanings: Mapping[str, str] = {str(kind): said for kind, said in FAULTS.items()}
    lines = [f"- *{_title(kind)}*: {meanings[kind]}" for kind in _kinds(errors)]
    note = "The earliest fault that was not made good later, by rules"
    judged = any(t.fault.by == "judge" for c in errors.values() for g in c.groups for t in g.telling)
    return "\n".join([f"{note}{', and by a judge where it had a word' if judged else ''}:", "", *lines])


def _where(errors: Mapping[str, ConditionErrors]) -> str:
    rows = [
        (inline(name), _title(group.kind), ", ".join(f"{inline(s)} {n}×" for s, n in group.signatures.items()))
        for name, condition in errors.items()
        for group in condition.groups
        if group.signatures
    ]
    return table(("condition", "fault", "tools and arguments"), rows, left_columns=3) if rows else ""


def _changes(errors: Mapping[str, ConditionErrors]) -> str:
    rows = [
        (
            f"{inline(condition.baseline or '')} → {inline(name)}",
            _title(kind),
            *(figures.count(n) for n in (c.before, c.fixed, c.stayed, c.moved, c.new)),
        )
        for name, condition in errors.items()
        for kind, c in condition.changes.items()
    ]
    if not rows:
        return ""
    head = ("from → to", "tasks that failed by", "before", "fixed", "stayed", "moved here", "new")
    note = (
        "Of the tasks in both: *fixed* are solved now, *moved here* failed otherwise before, *new* were solved before."
    )
    return f"{table(head, rows, left_columns=2)}\n\n{note}"


def _telling(errors: Mapping[str, ConditionErrors], most: int) -> str:
    """The most telling rollout of each group, group after group by its size, over all conditions but a baseline."""
    later = {name: c for name, c in errors.items() if c.baseline is not None} or dict(errors)
    groups = sorted(
        ((name, group) for name, condition in later.items() for group in condition.groups),
        key=lambda pair: -pair[1].rollouts,
    )
    shown = [_one(name, group.telling[0]) for name, group in groups[:most] if group.telling]
    left = len(groups) - len(shown)
    more = f" The first of {left} smaller groups, and more of each, are in report.json." if left > 0 else ""
    return "\n\n".join(["### The most telling of each group", f"{TELLING_RULE}{more}", *shown]) if shown else ""


def _one(name: str, telling: TellingRollout) -> str:
    fault, rollout = telling.fault, telling.rollout
    newly = ", solved by the baseline" if telling.newly_failing else ""
    where = f" ({inline(fault.signature)})" if fault.signature else ""
    title = f"#### {_title(fault.kind).capitalize()}{where}: task {inline(rollout.task.id)}{newly}"
    turn = f"turn {fault.turn}" if fault.turn else "before the first turn"
    said = f"{inline(name)}, {turn}: {inline(fault.detail, limit=300)}" if fault.detail else f"{inline(name)}, {turn}."
    return "\n\n".join([title, said, fence(cut(transcript(rollout, piece_limit=20), 4000))])
