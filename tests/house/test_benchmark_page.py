"""The page of benchmarks: sections are replaced one by one, and all of them can be made again."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_page", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_section_takes_the_place_of_its_last_one_and_leaves_the_others() -> None:
    placed = program().placed
    page = "# Benchmarks\n\nWords.\n\n## A\n\nold a\n\n## B\n\nold b\n\n## C\n\nold c\n"
    assert placed(page, "## B\n\nnew\n\n### More of B\n") == page.replace("old b\n", "new\n\n### More of B\n")
    # A program may have two sections; a title that is new comes last.
    both = placed(page, "## A\n\nnew a\n\n## D\n\nnew d\n")
    assert [line for line in both.splitlines() if line] == [
        "# Benchmarks", "Words.", "## A", "new a", "## D", "new d", "## B", "old b", "## C", "old c",
    ]  # fmt: skip
    assert placed(page, "## E\n\nnew e\n").endswith("old c\n\n## E\n\nnew e\n")
    assert placed(placed(page, "## A\n\nnew\n"), "## A\n\nold a\n") == page


def test_every_benchmark_is_one_that_make_bench_runs() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py") if "\ndef section(" in path.read_text()}
    # Part of `vllm_engine`, and a program of its own where there is no vLLM.
    assert programs - {"engine_throughput"} == set(program().NAMES)


@pytest.mark.timeout(120)
def test_the_steps_beside_trl_have_the_quickstarts_tasks_and_options_that_fit_them() -> None:
    # In a process of its own: the program sets how memory is kept before torch is loaded.
    found = subprocess.run(
        [sys.executable, "-c", _SIDES], capture_output=True, text=True, cwd=FOLDER, timeout=100, check=False
    )
    assert found.returncode == 0, found.stderr
    trained, validation, heldout, rise, fall = map(int, found.stdout.split())
    assert trained > 100
    assert (validation, heldout) == (0, 1)
    assert (rise, fall) == (0, 0), "TRL's rate is constant"


_SIDES = """
import sys
sys.path.insert(0, ".")
import end_to_end
from sdk.cli.quickstart_options import quickstart_tasks
from sdk.trainer.config import TrainConfig
from sdk.trainer.sides import choose_sides

config = TrainConfig.of(end_to_end.step_config(seed=0, steps=2, prompts=8, group_size=6))
print(*map(len, choose_sides(quickstart_tasks(), config)), config.learning_rate_rise, config.learning_rate_fall)
"""
