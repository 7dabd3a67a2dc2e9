"""Plots of a report: the learning curve, and pictures of policies side by side for slides."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.safe_text import cut, one_line, visible

from ..tasks import tasks_of_families
from ..traces.atomic_files import write_bytes
from .conditions import ConditionSummary
from .faults import FAULTS, FaultKind
from .statistics import Interval, PassRate

if TYPE_CHECKING:
    from .report import Report

INK, QUIET, _REWARD, _SIGNAL, _HELD_OUT = "#1f2328", "#8c959f", "#0969da", "#bf8700", "#1a7f37"
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": QUIET,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "font.size": 10,
    "grid.color": "#d0d7de",
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollar signs is a name
}


def learning_curve(
    metrics: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, ConditionSummary],
    path: Path,
    *,
    stage: str | None = None,
) -> Path:
    """Draw the picture as PNG, on white so that it reads on light and dark pages; returns `path`.

    Left: the mean reward of each training step, its moving average, and the share of groups with signal, from
    metrics lines with `step` and `reward`, `groups_with_signal`, `groups_without_signal` (see `TrainingSummary`),
    of one `stage` where given; beside it success on validation tasks, where it was measured meanwhile. Right: success
    on held-out tasks with 95 % intervals. Works without any steps.

    Raises `RunFolderError` where `path` cannot be written.
    """
    lines = [m for m in metrics if "step" in m and (stage is None or m.get("stage") == stage)]
    with _picture(Path(path), STYLE, figsize=(11, 5.2), dpi=120, layout="constrained") as figure:
        grid = figure.add_gridspec(2, 2, width_ratios=[3, 2], height_ratios=[3, 1])
        reward = figure.add_subplot(grid[0, 0])
        _draw_validation(reward, metrics)
        _draw_reward(reward, lines)
        _draw_signal(figure.add_subplot(grid[1, 0], sharex=reward), lines)
        if lines:
            steps = [int(line["step"]) for line in lines]
            reward.set_xlim(min(steps) - 1, max(steps) + 1)
        _draw_held_out(figure.add_subplot(grid[:, 1]), conditions)
    return Path(path)


@contextmanager
def _picture(path: Path, style: dict[str, Any], **options: Any) -> Iterator[Any]:
    """A figure that is written as PNG at the end. Made without pyplot: no global state, no display, safe in threads."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(style):
        figure = Figure(facecolor="white", **options)
        canvas = FigureCanvasAgg(figure)
        yield figure
        picture = io.BytesIO()
        canvas.print_png(picture)
    write_bytes(path, picture.getvalue())


def _percents(interval: Interval) -> tuple[float, float, list[list[float]]]:
    """The upper end and the estimate in percent, and the error bars around the estimate."""
    low, middle, high = (100 * value for value in (interval.low, interval.estimate, interval.high))
    return high, middle, [[middle - low], [high - middle]]


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and those before it, `window` of them at most."""
    return [sum(part) / len(part) for part in (values[max(0, i + 1 - window) : i + 1] for i in range(len(values)))]


def _draw_reward(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    points = [(int(m["step"]), float(m["reward"])) for m in lines if m.get("reward") is not None]
    axes.set_title("Reward in training")
    axes.set_ylabel("mean reward of a step")
    axes.grid(axis="y")
    axes.tick_params(labelbottom=False)
    if not points:
        _say(axes, "no training steps")
        return
    steps, rewards = zip(*points, strict=True)
    window = max(3, len(points) // 10)
    axes.plot(steps, rewards, "o", color=_REWARD, alpha=0.4, markersize=4, label="step")
    if len(points) > 1:
        axes.plot(steps, moving_average(rewards, window), color=_REWARD, lw=2, label=f"mean of the last {window} steps")
    if all(0 <= reward <= 1 for reward in rewards):
        axes.set_ylim(-0.03, 1.03)
    axes.legend(frameon=False, loc="best")


def _draw_validation(axes: Any, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Success with its interval, at the step whose rollouts came from the same weights."""
    points = [m for m in metrics if m.get("stage") == "validation" and m.get("success") is not None]
    if not points:
        return
    steps = [int(point["step"]) for point in points]
    middle = [float(point["success"]) for point in points]
    errors = [
        [m - float(point["low"]) for m, point in zip(middle, points, strict=True)],
        [float(point["high"]) - m for m, point in zip(middle, points, strict=True)],
    ]
    axes.errorbar(
        steps, middle, yerr=errors, fmt="s-", color=_HELD_OUT, markersize=5, capsize=3, lw=1, label="validation success"
    )


def _draw_signal(axes: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    shares = []
    for line in lines:
        having, lacking = line.get("groups_with_signal"), line.get("groups_without_signal")
        if having is not None and lacking is not None and having + lacking > 0:
            shares.append((int(line["step"]), 100 * having / (having + lacking)))
    axes.set_title("Groups with signal", fontsize=10)
    axes.set_ylabel("% of groups")
    axes.set_xlabel("training step")
    axes.set_ylim(0, 105)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if not shares:
        _say(axes, "not recorded")
        return
    axes.grid(axis="y")
    steps, heights = zip(*shares, strict=True)
    axes.bar(steps, heights, color=_SIGNAL, alpha=0.7, width=0.8)


def _draw_held_out(axes: Any, conditions: Mapping[str, ConditionSummary]) -> None:
    axes.set_title("Success on held-out tasks, 95 % intervals")
    axes.set_ylabel("% of tasks solved")
    axes.set_ylim(-3, 108)
    axes.grid(axis="y")
    names = list(conditions)
    axes.set_xticks(range(len(names)), [textwrap.fill(visible(cut(name, 60)), 14) for name in names])
    axes.set_xlim(-0.5, max(len(names), 1) - 0.3)
    if not names:
        _say(axes, "nothing evaluated")
    for place, name in enumerate(names):
        rate = conditions[name].success
        if rate is None:
            axes.text(place, 50, "no rollout\nscored", ha="center", va="center", color=QUIET)
            continue
        _, middle, errors = _percents(rate.interval)
        axes.errorbar(place, middle, yerr=errors, fmt="o", color=_HELD_OUT, markersize=8, capsize=6, lw=2)
        tasks = tasks_of_families(rate.tasks, rate.families).replace(" of ", "\nof ")
        text = f"{middle:.1f} %\n{tasks}"
        axes.annotate(text, (place, middle), xytext=(12, 0), textcoords="offset points", va="center")


def _say(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET)


SUCCESS, TRIES, COST, ERRORS = "success.png", "tries.png", "success_and_cost.png", "errors.png"
PICTURES = {
    SUCCESS: "Success of each policy with its 95 % interval",
    TRIES: "Solved by any and by all of k tries",
    COST: "Success against what a rollout takes",
    ERRORS: "What went wrong first in each policy",
}
"""File name -> what it shows."""

_COLOURS = ("#0969da", "#bf8700", "#1a7f37", "#8250df", "#cf222e", "#0a7ea4", "#9a6700", "#57606a", "#d4a72c")
_FAULT_COLOURS: dict[FaultKind, str] = {
    "broken_tool": "#57606a",
    "broken_policy": "#8c959f",
    "broken_user": "#afb8c1",
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
"""The same in every picture. None is green, which would mean that all is well."""
_SLIDE = {**STYLE, "font.size": 13, "axes.titlesize": 17, "axes.titleweight": "bold", "legend.fontsize": 12}


def draw_comparison(report: Report, folder: Path) -> list[Path]:
    """Draw what the report has figures for; pictures of an earlier report that this one has none for are removed."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

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
    height = max(6.75, 1.5 + 0.55 * len(report.conditions))  # 16:9, sharp at the width of a slide
    for name, how in draw.items():
        layout = ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.2)  # inches
        with _picture(folder / name, _SLIDE, figsize=(12, height), dpi=130, layout=layout) as figure:
            how(report, figure.add_subplot())
    return [folder / name for name in draw]


def _success(report: Report, axes: Any) -> None:
    """A forest plot, the first condition on top; where it is the baseline of others, a line goes through it."""
    axes.set_title("Success on the same tasks, with 95 % intervals")
    names = list(report.conditions)
    for place, name in enumerate(names):
        rate = report.conditions[name].success
        if rate is None:
            axes.text(1, place, "no rollout scored", va="center", color=QUIET)
            continue
        high, middle, errors = _percents(rate.interval)
        colour = _COLOURS[place % len(_COLOURS)]
        axes.barh(place, middle, height=0.5, color=colour, alpha=0.25)
        axes.errorbar(middle, place, xerr=errors, fmt="o", color=colour, ms=9, capsize=6, lw=2.5)
        axes.text(min(high, 100) + 2, place, f"{middle:.1f} %", va="center", weight="bold")
    baseline = report.comparisons[0].first if report.comparisons else None
    if baseline is not None and (rate := report.conditions[baseline].success) is not None:
        axes.axvline(100 * rate.interval.estimate, color=QUIET, lw=1, ls="--", zorder=0)
    rates = [c.success for c in report.conditions.values() if c.success]
    most = max(rates, key=lambda rate: rate.tasks)
    axes.set_xlabel(f"% of {tasks_of_families(most.tasks, most.families)} solved")
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
        _, middle, errors = _percents(c.success.interval)
        style = {"fmt": "o", "color": _COLOURS[place % len(_COLOURS)], "ms": 12, "capsize": 6, "lw": 2}
        axes.errorbar(across, middle, yerr=errors, label=_label(name), **style)
        points.append(across)
    spread = max(points) / min(points) if points and min(points) > 0 else 1
    if spread > 20:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.tick_params(axis="x", which="minor", labelbottom=False)
    elif points:
        axes.set_xlim(0, max(max(points) * 1.15, 1e-9))
    money, time = (
        "cost of 1 000 rollouts, in the prices' currency",
        "seconds a rollout (mean, among all that ran at once)",
    )
    axes.set_xlabel(money if priced else time)
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
        bars = {"height": 0.6, "color": _FAULT_COLOURS[kind], "edgecolor": "white", "label": kind.replace("_", " ")}
        axes.barh(range(len(names)), shares, left=left, **bars)
        for place, share in enumerate(shares):
            if share >= 3:
                centre = {"ha": "center", "va": "center", "color": "white", "weight": "bold"}
                axes.text(left[place] + share / 2, place, f"{share:.0f}", **centre)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of rollouts")
    axes.grid(axis="x")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), labelcolor=INK)


def _label(name: str) -> str:
    return textwrap.fill(one_line(cut(name, 60)), 24)
