"""No module imports itself by way of others, inside functions either."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from project_files import product_files, read


def modules() -> dict[str, Path]:
    """Dotted name -> file. What a package's `__init__` re-exports is no way of its own."""
    return {".".join(path.with_suffix("").parts): path for path in product_files() if path.name != "__init__.py"}


def imported(name: str, source: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules that `source` imports, without those for type checkers alone."""
    tree = ast.parse(source)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")[: -node.level] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (one for alias in node.names if (one := f"{base}.{alias.name}") in known)
            if base in known:
                yield base


def circle(sources: Mapping[str, str]) -> list[str]:
    graph = {name: set(imported(name, source, sources)) - {name} for name, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_imports_go_in_a_circle() -> None:
    assert circle({name: read(path) for name, path in modules().items()}) == []


@pytest.mark.parametrize("late", ["from .b import g", "def f():\n    from . import b"])
def test_a_planted_circle_is_found(late: str) -> None:
    assert set(circle({"p.a": late, "p.b": "from p.a import f"})) == {"p.a", "p.b"}
    for_types = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n{textwrap.indent(late, '    ')}"
    assert circle({"p.a": for_types, "p.b": "from p.a import f"}) == []
