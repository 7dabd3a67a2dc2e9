"""The learning curve: one picture of what training did and whether held-out tasks noticed."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..traces.atomic_files import write_bytes
from .conditions import ConditionSummary
from .safe_text import cut, visible

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
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = [m for m in metrics if "step" in m and (stage is None or m.get("stage") == stage)]
    # The figure is made without pyplot: no global state, no display, safe in any thread.
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 5.2), dpi=120, facecolor="white", layout="constrained")
        canvas = FigureCanvasAgg(figure)
        grid = figure.add_gridspec(2, 2, width_ratios=[3, 2], height_ratios=[3, 1])
        reward = figure.add_subplot(grid[0, 0])
        _draw_validation(reward, metrics)
        _draw_reward(reward, lines)
        _draw_signal(figure.add_subplot(grid[1, 0], sharex=reward), lines)
        if lines:
            steps = [int(line["step"]) for line in lines]
            reward.set_xlim(min(steps) - 1, max(steps) + 1)
        _draw_held_out(figure.add_subplot(grid[:, 1]), conditions)
        picture = io.BytesIO()
        canvas.print_png(picture)
    write_bytes(Path(path), picture.getvalue())
    return Path(path)


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
        low, middle, high = (100 * v for v in (rate.interval.low, rate.interval.estimate, rate.interval.high))
        errors = [[middle - low], [high - middle]]
        axes.errorbar(place, middle, yerr=errors, fmt="o", color=_HELD_OUT, markersize=8, capsize=6, lw=2)
        axes.annotate(
            f"{middle:.1f} %\n{rate.tasks} tasks",
            (place, middle),
            xytext=(12, 0),
            textcoords="offset points",
            va="center",
        )


def _say(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET)
