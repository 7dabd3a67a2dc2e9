"""Sizes and names of files and functions, so that every file can be read from top to bottom."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from project_files import PACKAGES, ROOT, own_files, product_files, read

MOST_LINES = 400
MOST_FUNCTION_LINES = 59

LONGER_FUNCTIONS: dict[str, int] = {}
"""`file:function` -> the most lines it may have for now; an entry may only get smaller or go."""

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}


def functions(source: str) -> dict[str, int]:
    """Name -> lines of the functions in `source`, decorators left out."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found[node.name] = max(lines, found.get(node.name, 0))
    return found


def test_product_files_have_at_most_400_lines() -> None:
    sizes = {str(path): len(read(path).splitlines()) for path in product_files()}
    assert {path: lines for path, lines in sizes.items() if lines > MOST_LINES} == {}


def test_product_functions_have_less_than_60_lines() -> None:
    sizes = {f"{path}:{name}": lines for path in product_files() for name, lines in functions(read(path)).items()}
    long = {name: lines for name, lines in sizes.items() if lines > MOST_FUNCTION_LINES}
    assert {name: lines for name, lines in long.items() if lines > LONGER_FUNCTIONS.get(name, 0)} == {}
    assert set(LONGER_FUNCTIONS) - set(long) == set(), "short now: take it out of LONGER_FUNCTIONS"


def test_a_long_function_is_measured_also_inside_a_class() -> None:
    body = "\n".join("        x = 1" for _ in range(60))
    assert functions(f"class A:\n    async def f(self):\n{body}\n") == {"f": 61}


def test_no_file_has_a_name_that_says_nothing() -> None:
    code = [path for path in own_files() if path.suffix == ".py"]
    assert [str(path) for path in code if VAGUE_NAMES & {part.removesuffix(".py") for part in path.parts}] == []


def exporting_packages() -> list[str]:
    files = [path for path in product_files() if path.name == "__init__.py" and "__all__" in read(path)]
    return [".".join(path.parent.parts) for path in files]


@pytest.mark.parametrize("name", exporting_packages())
def test_no_module_has_the_name_of_something_its_package_exports(name: str) -> None:
    # `from sdk import train` would then mean the module or the function, whichever was loaded last.
    package = importlib.import_module(name)
    folder = ROOT / Path(*name.split("."))
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert modules & set(package.__all__) == set()


def test_all_three_packages_say_what_they_export() -> None:
    assert set(PACKAGES) <= set(exporting_packages())
