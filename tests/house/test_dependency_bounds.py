"""The lowest versions that pyproject.toml takes have what the code uses."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version
from project_files import product_files, read

NOTES = re.compile(r"\.\. version(added|changed):: ([\d.]+\d)\s*([^.]*)")


def lowest(package: str) -> Version:
    listed = map(Requirement, tomllib.loads(read(Path("pyproject.toml")))["project"]["dependencies"])
    (bounds,) = [line.specifier for line in listed if line.name == package]
    (bound,) = [Version(bound.version) for bound in bounds if bound.operator in (">=", "==")]
    return bound


def uses(code: str) -> Iterator[tuple[str, frozenset[str]]]:
    """What of anyio that code names, and the keywords it is called by."""
    nodes = list(ast.walk(ast.parse(code))) if "anyio." in code else []
    words = {id(n.func): frozenset(word.arg or "" for word in n.keywords) for n in nodes if isinstance(n, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and (name := dotted(node)).startswith("anyio."):
            yield name, words.get(id(node), frozenset())


def dotted(node: ast.expr) -> str:
    """`a.b.c`; empty for what does not begin with a name."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def since(name: str, keywords: frozenset[str]) -> Version:
    """The first release of anyio with that name and those keywords, as far as its documentation says."""
    for module in ("anyio.from_thread", "anyio.to_thread", "anyio.lowlevel", "anyio.abc", "anyio.streams.memory"):
        importlib.import_module(module)
    found = reduce(getattr, name.split(".")[1:], importlib.import_module("anyio"))
    versions = [Version("0")]
    for kind, version, said in NOTES.findall(found.__doc__ or ""):
        if kind == "added" or {*re.findall(r"``(\w+)``", said)} & keywords:
            versions.append(Version(version))
    return max(versions)


def test_the_lowest_anyio_has_all_that_the_code_calls() -> None:
    used = {use for path in product_files() for use in uses(read(path))}
    assert len(used) > 30
    assert [(name, str(since(name, words))) for name, words in used if since(name, words) > lowest("anyio")] == []


def test_newer_names_and_keywords_are_told_from_older_ones() -> None:
    code = "anyio.move_on_at(1); anyio.sleep(1); anyio.from_thread.run_sync(f, token=t); anyio.from_thread.run_sync(f)"
    told = {(name.rpartition(".")[2], tuple(words)): str(since(name, words)) for name, words in uses(code)}
    told.pop(("from_thread", ()))
    assert told == {
        ("move_on_at", ()): "4.15.0",
        ("sleep", ()): "0",
        ("run_sync", ("token",)): "4.11.0",
        ("run_sync", ()): "0",
    }
