"""The way of a parameter: the calls that pass it on, read from the syntax trees.

    python tests/house/parameter_way.py [sdk.trainer.pipeline.train_async tools]

A call counts where an argument is the parameter itself, or the `Toolset` that is made of it, and where what is called
makes an object of it or passes it on in turn: a function that only looks at it is the way's end. An attribute of it, an
item, or what a method of it returns is no longer it. What is kept in `self` is followed through the methods of the
class. Each call counts once, wherever the way to it came from.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sdk", "sandboxes", "mcp_bridge")

MADE_OF_IT = {"Toolset"}
"""Classes whose objects are followed, too."""

CONVERSIONS = {"Path", "list", "tuple"}
"""Functions that give back what they are given."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """A function, a method or a class."""

    module: str
    name: str


Arrival = tuple[Place, str]
"""Where the value is, and its name there: that of a parameter, or `self.name`."""


class Module:
    """The functions, classes and imports of one file."""

    def __init__(self, name: str, path: Path) -> None:
        self.definitions: dict[str, ast.AST] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        tree = ast.parse(path.read_text(encoding="utf-8"))
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                origin = ".".join([*above, *filter(None, [node.module])])
                self.imports |= {alias.asname or alias.name: (origin, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                self.imports |= {alias.name: ("", alias.name) for alias in node.names if alias.asname is None}
        for node in tree.body:
            if isinstance(node, Function | ast.ClassDef):
                self.definitions[node.name] = node
            if isinstance(node, ast.ClassDef):
                inner = [one for one in node.body if isinstance(one, Function)]
                self.definitions |= {f"{node.name}.{one.name}": one for one in inner}


@cache
def module_of(name: str) -> Module | None:
    """The file of a module of ours; None for others."""
    path = ROOT / name.replace(".", "/")
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if name.partition(".")[0] in PACKAGES and file.is_file():
            return Module(name, file)
    return None


def defined(origin: str, name: str) -> Place | None:
    """Where a name that is used in a module is defined, through re-exports."""
    found = module_of(origin)
    if found is None:
        return None
    if name in found.definitions:
        return Place(origin, name)
    return defined(*found.imports[name]) if name in found.imports else None


def node_of(place: Place) -> ast.AST:
    found = module_of(place.module)
    assert found is not None
    return found.definitions[place.name]


class Way:
    """What a parameter of a function goes through."""

    def __init__(self, function: str, parameter: str) -> None:
        origin, _, name = function.rpartition(".")
        self.calls: dict[tuple[str, int, int], Place] = {}
        """From the file, line and column of an argument to what is called with it."""
        self._passing: set[Place] = set()
        waiting: list[Arrival] = [(Place(origin, name), parameter)]
        done = set(waiting)
        while waiting:
            for arrival in self._arrivals(*waiting.pop()):
                if arrival not in done:
                    done.add(arrival)
                    waiting.append(arrival)
        self.calls = {
            call: place
            for call, place in self.calls.items()
            if place in self._passing or isinstance(node_of(place), ast.ClassDef)
        }
        self.files = {origin, *(file for file, *_ in self.calls), *(place.module for place in self.calls.values())}

    def _arrivals(self, place: Place, name: str) -> Iterator[Arrival]:
        reader = _Reader(place, name)
        for node in ast.walk(reader.node):
            called = reader.called(node) if isinstance(node, ast.Call) else None
            for key, value in _arguments(node) if isinstance(node, ast.Call) and called is not None else ():
                if called is not None and reader.holds(value):
                    self.calls[(place.module, value.lineno, value.col_offset)] = called
                    self._passing.add(place)
                    yield from _entered(called, key)
        cls, _, method = place.name.rpartition(".")
        if method == "__init__":
            for kept in reader.names:
                if kept.startswith("self."):
                    yield from ((one, kept) for one in _methods(Place(place.module, cls)) if one != place)


class _Reader:
    """One function, and the names under which it has the value."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self.node = node_of(place)
        self.names = {name}
        before = 0
        while before != len(self.names):
            before = len(self.names)
            for node in ast.walk(self.node):
                for target, value in _bound(node):
                    if self.holds(value):
                        self.names |= {one for one in map(_name, ast.walk(target)) if one is not None and one != "self"}

    def holds(self, node: ast.AST | None) -> bool:
        """Whether an expression is the value, or a list of it and others."""
        if _name(node) in self.names:
            return True
        if isinstance(node, ast.Await | ast.Starred):
            return self.holds(node.value)
        if isinstance(node, ast.IfExp):
            return self.holds(node.body) or self.holds(node.orelse)
        if isinstance(node, ast.List | ast.Tuple | ast.BoolOp):
            return any(map(self.holds, node.values if isinstance(node, ast.BoolOp) else node.elts))
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self.holds(node.elt)
        return isinstance(node, ast.Call) and self._makes(node)

    def _makes(self, node: ast.Call) -> bool:
        given = any(self.holds(value) for _, value in _arguments(node))
        called = self.called(node)
        if called is None:
            return given and getattr(node.func, "id", "") in CONVERSIONS
        made = node_of(called)
        if isinstance(made, ast.ClassDef):
            return given and called.name in MADE_OF_IT
        names = {one.id for one in ast.walk(getattr(made, "returns", None) or node) if isinstance(one, ast.Name)}
        return given and bool(names & MADE_OF_IT)

    def called(self, node: ast.Call) -> Place | None:
        """The function or class of ours that a call calls."""
        function = node.args[0] if getattr(node.func, "id", "") == "partial" and node.args else node.func
        if isinstance(function, ast.Name):
            return defined(self._place.module, function.id)
        if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
            return None
        owner, found = function.value.id, module_of(self._place.module)
        assert found is not None
        if owner == "self":
            place = Place(self._place.module, f"{self._place.name.partition('.')[0]}.{function.attr}")
            return place if place.name in found.definitions else None
        origin, name = found.imports.get(owner, ("", ""))
        return defined(".".join(filter(None, [origin, name])), function.attr)


def _bound(node: ast.AST) -> list[tuple[ast.AST, ast.AST | None]]:
    """The names that a statement gives, and what it gives them to."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AnnAssign | ast.NamedExpr):
        return [(node.target, node.value)]
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        return [(node.target, node.iter)]
    if isinstance(node, ast.With | ast.AsyncWith):
        return [(item.optional_vars, item.context_expr) for item in node.items if item.optional_vars is not None]
    return []


def _arguments(node: ast.Call) -> list[tuple[int | str, ast.expr]]:
    """The arguments of a call, by place or name."""
    placed = node.args[1:] if getattr(node.func, "id", "") == "partial" else node.args
    return [*enumerate(placed), *((one.arg, one.value) for one in node.keywords if one.arg is not None)]


def _entered(called: Place, key: int | str) -> Iterator[Arrival]:
    """Where an argument of a call arrives."""
    node = node_of(called)
    if isinstance(node, Function):
        names = [one.arg for one in (*node.args.posonlyargs, *node.args.args) if one.arg != "self"]
        names += [node.args.vararg.arg] if node.args.vararg is not None else []
        if isinstance(key, str) or key < len(names):
            yield called, key if isinstance(key, str) else names[key]
        return
    made = Place(called.module, f"{called.name}.__init__")
    if made in _methods(called):
        yield from _entered(made, key)
    elif isinstance(node, ast.ClassDef):  # a dataclass
        fields = [_name(one.target) for one in node.body if isinstance(one, ast.AnnAssign)]
        name = key if isinstance(key, str) else fields[key]
        yield from ((one, f"self.{name}") for one in _methods(called))


def _methods(cls: Place) -> list[Place]:
    found = module_of(cls.module)
    assert found is not None
    return [Place(cls.module, name) for name in found.definitions if name.startswith(f"{cls.name}.")]


def _name(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


if __name__ == "__main__":
    way = Way(*(sys.argv[1:] or ("sdk.trainer.pipeline.train_async", "tools")))
    for (file, line, _), place in way.calls.items():
        print(f"{file}:{line} calls {place.module}.{place.name}")
    print(f"{len(way.calls)} calls, {len(way.files)} files")
