"""The report's sections for policies side by side: several tries, what they cost, how fast they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import figures
from .conditions import ConditionSummary
from .safe_text import inline, table
from .tries import PassRate

if TYPE_CHECKING:
    from .report import Report


def render_pictures(pictures: Mapping[str, str]) -> str:
    """The pictures that lie beside the report."""
    return "\n\n".join(f"![{said}]({name})" for name, said in pictures.items())


def render_tries(report: Report) -> str:
    """pass@k and pass^k; empty where each task was tried once."""
    ks = sorted({rate.k for c in report.conditions.values() for rate in c.pass_at_k})
    if not ks:
        return ""
    rows = []
    for name, condition in report.conditions.items():
        for label, rates in (("pass@k", condition.pass_at_k), ("pass^k", condition.pass_hat_k)):
            by_k = {rate.k: rate for rate in rates}
            rows.append((inline(name), label, *(_rate(by_k.get(k)) for k in ks)))
    head = ("condition", "", *(f"k = {k}" for k in ks))
    note = "pass@k: at least one of k tries succeeds; pass^k: all of them do. With 95 % intervals over tasks."
    few = sorted({(rate.k, rate.left_out) for c in report.conditions.values() for rate in c.pass_at_k if rate.left_out})
    if few:
        left = ", ".join(f"k = {k}: {count}" for k, count in few)
        note += f" Tasks with fewer scored tries than k are left out: {left}."
    return f"## Several tries\n\n{table(head, rows, left_columns=2)}\n\n{note}"


def _rate(rate: PassRate | None) -> str:
    if rate is None:
        return figures.NONE
    return f"{figures.percent(rate.interval.estimate)} ({figures.percent_range(rate.interval)})"


def cost_rows(conditions: list[ConditionSummary]) -> dict[str, list[str]]:
    """Rows for the table of what a rollout costs."""
    rows = {
        "turns": [figures.spread(c.turns) for c in conditions],
        "calls": [figures.spread(c.calls) for c in conditions],
        "tokens sampled": [figures.spread(c.sampled_tokens, 0) for c in conditions],
        "tokens in prompts": [figures.spread(c.prompt_tokens, 0) for c in conditions],
        "seconds": [figures.spread(c.seconds) for c in conditions],
        "seconds, 95 % of rollouts within": [
            figures.decimal(c.seconds.p95 if c.seconds else None, 1) for c in conditions
        ],
    }
    if any(c.cost for c in conditions):
        rows["price of a million tokens, in / out"] = [
            f"{c.cost.price.input:g} / {c.cost.price.output:g}" if c.cost else figures.NONE for c in conditions
        ]
        rows["cost of 1 000 rollouts"] = [_money(c.cost.per_rollout * 1000 if c.cost else None) for c in conditions]
        rows["cost of 1 000 successes"] = [
            _money(c.cost.per_success * 1000 if c.cost and c.cost.per_success is not None else None) for c in conditions
        ]
    return rows


def _money(value: float | None) -> str:
    if value is None:
        return figures.NONE
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"
