"""The report's short form for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..policies.tool_prompt import PROMPT_NAMES
from . import figures
from .comparisons import PairedComparison
from .conditions import ConditionSummary
from .safe_text import one_line

if TYPE_CHECKING:
    from .report import Report

_MANY = 0.1
"""From this share of unscored rollouts on, the report begins with them."""
_LONGEST_REASON = 300

_HEAD = ("condition", "success (95 % interval)", "score", "turns", "calls", "unscored")


def render_short(report: Report) -> str:
    """A table of the conditions and one line for each comparison, after what is to be known of unscored rollouts."""
    rows = [_HEAD]
    for name, c in report.conditions.items():
        score = figures.decimal(c.score.estimate if c.score else None)
        turns = figures.decimal(c.turns.mean if c.turns else None, 1)
        calls = figures.decimal(c.calls.mean if c.calls else None, 1)
        rows.append((one_line(name), figures.success(c.success), score, turns, calls, f"{c.unscored} of {c.rollouts}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines += [compared(comparison) for comparison in report.comparisons]
    return "\n".join([*unscored_notes(report), *lines, *prompt_note(report), *weights_note(report)])


def unscored_notes(report: Report) -> list[str]:
    """A sentence for each condition with so many unscored rollouts, or such alike ones, that its rate misleads."""
    return [
        f"{one_line(name)}: {c.unscored} of {c.rollouts} rollouts are unscored"
        + (f", all for one reason: {one_line(c.shared_failure)[:_LONGEST_REASON]}" if c.shared_failure else "")
        + f". {_at_worst(c)}"
        for name, c in report.conditions.items()
        if c.shared_failure or c.unscored > _MANY * c.rollouts
    ]


def _at_worst(condition: ConditionSummary) -> str:
    rate = condition.success
    if rate is None or rate.worst_case is None:
        return "There is no success rate."
    worst, shown = figures.percent(rate.worst_case), figures.percent(rate.interval.estimate)
    return f"If they count as failed, success is {worst}, not {shown}."


def weights_note(report: Report) -> list[str]:
    """A sentence of a training's report: which weights the run ends with, and why."""
    reason = report.run.get("handed_over")
    return [f"{one_line(reason[:1].upper() + reason[1:])}."] if isinstance(reason, str) and reason else []


def prompt_note(report: Report) -> list[str]:
    """A sentence where a training showed less of the tools than their full schemas, and one for each condition of an
    evaluation that did so without saying it in its name: a model behind an endpoint that shows less than it is sent."""
    shown = report.run.get("tool_prompt")
    if isinstance(shown, Mapping):
        other = {name: said for name, said in shown.items() if said and said != _named(name)}
        return [f"Tools in the prompts of {one_line(name)}: {one_line(said)}." for name, said in other.items()]
    if not isinstance(shown, str) or shown == PROMPT_NAMES["full"]:
        return []
    return [f"Tools in the prompts: {one_line(shown)}."]


def _named(condition: str) -> str:
    """What a condition's name says of its prompts; full schemas where it says nothing."""
    return next((said for said in PROMPT_NAMES.values() if condition.endswith(f", {said}")), PROMPT_NAMES["full"])


def compared(comparison: PairedComparison) -> str:
    """One comparison as a sentence without markup."""
    names = f"{one_line(comparison.first)} → {one_line(comparison.second)}"
    if comparison.success is None:
        return f"{names}: no task was scored in both"
    text = (
        f"{names}: {figures.points(comparison.success.estimate)} points "
        f"(95 % interval {figures.points_range(comparison.success)}) on {_tasks(comparison.tasks)}"
    )
    if comparison.p_value is not None:
        p = figures.p_value(comparison.p_value)
        text += f", p {p}" if p.startswith("<") else f", p = {p}"
    return text + (f", {_tasks(len(comparison.left_out))} left out" if comparison.left_out else "")


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number:,} tasks"
