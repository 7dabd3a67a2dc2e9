"""The picture: always drawn, whatever is missing, and never in the way of a program's own plots."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rollout_making import make_condition

from sdk.errors import RunFolderError
from sdk.evaluation import build_report, learning_curve
from sdk.evaluation.plots import moving_average

METRICS: list[dict[str, Any]] = [
    {"step": s, "stage": "grpo", "reward": s / 10, "groups_with_signal": s, "groups_without_signal": 10 - s}
    for s in range(10)
]
CONDITIONS = build_report(
    {"untrained": make_condition("000"), "50 $ or 60 $": make_condition("xx"), "after GRPO": make_condition("110")}
).conditions


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


@pytest.mark.parametrize(
    "metrics",
    [METRICS, METRICS[:1], [], [{"note": "no step"}], [{"step": 0}], [{"step": 0, "reward": -3.5}]],
    ids=["ten", "one", "none", "no step", "no reward", "negative"],
)
def test_a_picture_is_drawn_whatever_is_missing(tmp_path: Path, metrics: list[dict[str, Any]]) -> None:
    for name, conditions in {"all": CONDITIONS, "none": {}}.items():
        path = learning_curve(metrics, conditions, tmp_path / f"{name}.png")
        width, height = size(path)
        assert width > 1000
        assert height > 500
    assert (tmp_path / "all.png").read_bytes() != (tmp_path / "none.png").read_bytes()


def test_only_the_stage_asked_for_is_drawn(tmp_path: Path) -> None:
    warm = [{"step": 0, "stage": "warm_start", "reward": 0.9}]
    both = learning_curve([*warm, *METRICS], {}, tmp_path / "a.png", stage="grpo")
    grpo = learning_curve(METRICS, {}, tmp_path / "b.png")
    assert both.read_bytes() == grpo.read_bytes()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"nowhere/curve\.png"):
        learning_curve(METRICS, CONDITIONS, tmp_path / "nowhere" / "curve.png")


def test_a_moving_average_begins_with_what_there_is() -> None:
    assert moving_average([1, 2, 3, 7], 3) == [1, 1.5, 2, 4]


def test_importing_the_evaluation_loads_no_plotting_and_drawing_needs_no_display(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, sdk.evaluation, sdk.traces\n"
        "heavy = {'matplotlib', 'torch', 'transformers', 'datasets', 'mcp'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
        "sdk.evaluation.learning_curve([], {}, pathlib.Path(sys.argv[1]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    without = {
        name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
    }
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "curve.png")], check=True, timeout=60, env=without)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
