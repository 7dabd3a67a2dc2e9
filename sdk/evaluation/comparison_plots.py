"""Pictures of policies side by side, of a shape and size for slides. Names are shown as they are, never as markup."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..traces.atomic_files import write_bytes
from .errors import FAULTS, FaultKind
from .plots import INK, QUIET, STYLE
from .safe_text import cut, one_line
from .tries import PassRate

if TYPE_CHECKING:
    from .report import Report

SUCCESS, TRIES, COST, ERRORS = "success.png", "tries.png", "success_and_cost.png", "errors.png"
PICTURES = {
    SUCCESS: "Success of each policy with its 95 % interval",
    TRIES: "Solved by any and by all of k tries",
    COST: "Success against what a rollout takes",
    ERRORS: "What went wrong first in each policy",
}
"""File name -> what it shows."""

_COLOURS = (
    "#0969da",
    "#bf8700",
    "#1a7f37",
    "#8250df",
    "#cf222e",
    "#0a7ea4",
    "#9a6700",
    "#57606a",
    "#d4a72c",
    "#bf3989",
)
_FAULT_COLOURS: dict[FaultKind, str] = {
    "broken_tool": "#57606a",
    "broken_policy": "#8c959f",
    "unreadable_call": "#54319e",
    "wrong_tool": "#cf222e",
    "ungrounded_argument": "#bf8700",
    "wrong_argument": "#e16f24",
    "loop": "#0a7ea4",
    "ran_out": "#0969da",
    "gave_up": "#bf3989",
    "ignored_result": "#8250df",
    "wrong_answer": "#82421f",
    "verifier_doubt": "#24292f",
    "unexplained": "#afb8c1",
}
"""The same in every picture. None is green, which says that all is well."""
_SLIDE = {**STYLE, "font.size": 13, "axes.titlesize": 17, "axes.titleweight": "bold", "legend.fontsize": 12}


def draw_comparison(report: Report, folder: Path) -> list[Path]:
    """Draw what the report has figures for; pictures of an earlier report that this one has none for are removed."""
    scored = any(c.success for c in report.conditions.values())
    draw: dict[str, Callable[[Report, Any], None]] = {}
    if scored:
        draw[SUCCESS] = _success
        if len(report.conditions) > 1:
            draw[COST] = _cost
    if any(c.pass_at_k for c in report.conditions.values()):
        draw[TRIES] = _tries
    if any(c.failed for c in report.errors.values()):
        draw[ERRORS] = _errors
    for name in PICTURES:
        if name not in draw:
            (folder / name).unlink(missing_ok=True)
    return [_drawn(report, folder / name, how) for name, how in draw.items()]


def _drawn(report: Report, path: Path, draw: Callable[[Report, Any], None]) -> Path:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # Without pyplot: no global state, no display, safe in any thread. 16:9, sharp at the width of a slide.
    with matplotlib.rc_context(_SLIDE):
        rows = len(report.conditions)
        height = max(6.75, 1.5 + 0.55 * rows)
        inside = ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.2)  # inches
        figure = Figure(figsize=(12, height), dpi=130, facecolor="white", layout=inside)
        canvas = FigureCanvasAgg(figure)
        draw(report, figure.add_subplot())
        picture = io.BytesIO()
        canvas.print_png(picture)
    write_bytes(path, picture.getvalue())
    return path


def _success(report: Report, axes: Any) -> None:
    """A forest plot, the first condition on top; where it is the baseline of others, a line goes through it."""
    axes.set_title("Success on the same tasks, with 95 % intervals")
    names = list(report.conditions)
    for place, name in enumerate(names):
        rate = report.conditions[name].success
        if rate is None:
            axes.text(1, place, "no rollout scored", va="center", color=QUIET)
            continue
        low, middle, high = (100 * v for v in (rate.interval.low, rate.interval.estimate, rate.interval.high))
        colour = _COLOURS[place % len(_COLOURS)]
        axes.barh(place, middle, height=0.5, color=colour, alpha=0.25)
        axes.errorbar(
            middle, place, xerr=[[middle - low], [high - middle]], fmt="o", color=colour, ms=9, capsize=6, lw=2.5
        )
        axes.text(min(high, 100) + 2, place, f"{middle:.1f} %", va="center", weight="bold")
    baseline = report.comparisons[0].first if report.comparisons else None
    if baseline is not None and (rate := report.conditions[baseline].success) is not None:
        axes.axvline(100 * rate.interval.estimate, color=QUIET, lw=1, ls="--", zorder=0)
    tasks = max((c.success.tasks for c in report.conditions.values() if c.success), default=0)
    axes.set_xlabel(f"% of {tasks:,} tasks solved")
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.set_xlim(0, 116)
    axes.set_xticks(range(0, 101, 20))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x")


def _tries(report: Report, axes: Any) -> None:
    axes.set_title("Several tries: solved by any of k (solid), by all of k (dashed)")
    ks: set[int] = set()
    for place, (name, condition) in enumerate(report.conditions.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        for rates, style, label in ((condition.pass_at_k, "-", _label(name)), (condition.pass_hat_k, "--", None)):
            if rates:
                _line(axes, rates, colour, style, label)
                ks |= {rate.k for rate in rates}
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ks), [str(k) for k in sorted(ks)])
    axes.minorticks_off()
    axes.set_xlabel("k, tries at each task")
    axes.set_ylabel("% of tasks")
    axes.set_ylim(-3, 103)
    axes.grid(axis="y")
    axes.legend(frameon=False, loc="best")


def _line(axes: Any, rates: Sequence[PassRate], colour: str, style: str, label: str | None) -> None:
    ks = [rate.k for rate in rates]
    axes.plot(ks, [100 * r.interval.estimate for r in rates], style, marker="o", color=colour, lw=2.5, label=label)
    lows, highs = [100 * r.interval.low for r in rates], [100 * r.interval.high for r in rates]
    axes.fill_between(ks, lows, highs, color=colour, alpha=0.1, lw=0)


def _cost(report: Report, axes: Any) -> None:
    """Success against money where every condition has a price, against seconds otherwise."""
    priced = all(c.cost for c in report.conditions.values())
    axes.set_title(f"Success against {'cost' if priced else 'time'}: up and to the left is better")
    points = []
    for place, (name, c) in enumerate(report.conditions.items()):
        across = 1000 * c.cost.per_rollout if priced and c.cost else c.seconds.mean if c.seconds else None
        if c.success is None or across is None:
            continue
        low, middle, high = (
            100 * v for v in (c.success.interval.low, c.success.interval.estimate, c.success.interval.high)
        )
        colour = _COLOURS[place % len(_COLOURS)]
        axes.errorbar(
            across,
            middle,
            yerr=[[middle - low], [high - middle]],
            fmt="o",
            color=colour,
            ms=12,
            capsize=6,
            lw=2,
            label=_label(name),
        )
        points.append(across)
    spread = max(points) / min(points) if points and min(points) > 0 else 1
    if spread > 20:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.tick_params(axis="x", which="minor", labelbottom=False)
    elif points:
        axes.set_xlim(0, max(max(points) * 1.15, 1e-9))
    unit = (
        "cost of 1 000 rollouts, in the prices' currency"
        if priced
        else "seconds a rollout (mean, among all that ran at once)"
    )
    axes.set_xlabel(unit)
    axes.set_ylabel("% of tasks solved")
    axes.set_ylim(-3, 105)
    axes.grid(True)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _errors(report: Report, axes: Any) -> None:
    axes.set_title("What went wrong first")
    names = list(report.errors)
    kinds = [kind for kind in FAULTS if any(g.kind == kind for c in report.errors.values() for g in c.groups)]
    left = [0.0] * len(names)
    for kind in kinds:
        shares = []
        for name in names:
            condition = report.errors[name]
            rollouts = sum(group.rollouts for group in condition.groups if group.kind == kind)
            shares.append(100 * rollouts / condition.rollouts if condition.rollouts else 0.0)
        axes.barh(
            range(len(names)),
            shares,
            left=left,
            height=0.6,
            color=_FAULT_COLOURS[kind],
            edgecolor="white",
            label=kind.replace("_", " "),
        )
        for place, share in enumerate(shares):
            if share >= 3:
                axes.text(
                    left[place] + share / 2,
                    place,
                    f"{share:.0f}",
                    ha="center",
                    va="center",
                    color="white",
                    weight="bold",
                )
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of rollouts")
    axes.grid(axis="x")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), labelcolor=INK)


def _label(name: str) -> str:
    return textwrap.fill(one_line(cut(name, 60)), 24)
