"""Names of files that say what is in them, and that no export hides."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pytest
from project_files import PACKAGES, ROOT, own_files, product_files, read

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}


def test_no_file_has_a_name_that_says_nothing() -> None:
    code = [path for path in own_files() if path.suffix == ".py"]
    assert [str(path) for path in code if VAGUE_NAMES & {part.removesuffix(".py") for part in path.parts}] == []


def test_no_two_files_of_a_package_have_one_name() -> None:
    # But for the commands, which are named by the user.
    counted = Counter(
        (path.parts[0], path.name)
        for path in product_files()
        if path.name not in ("__init__.py", "__main__.py") and path.parts[:3] != ("sdk", "cli", "commands")
    )
    assert [name for name, count in counted.items() if count > 1] == []


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
