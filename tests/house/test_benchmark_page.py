"""The page of benchmarks: sections are replaced one by one, and all of them can be made again."""

import importlib.util
from pathlib import Path
from types import ModuleType

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
