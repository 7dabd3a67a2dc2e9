"""Private names of other libraries in our packages, found in the source and in the classes that ours derive from."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("mcp_bridge", "sandboxes", "sdk")
DOCUMENTED = {
    *("_asdict", "_exit", "_fields", "_fields_", "_make", "_replace"),  # of the standard library
    *("__config__", "_meta"),  # pydantic's `create_model`; a field of MCP's messages
    "__kmpc_fork_call",  # a symbol of LLVM's OpenMP, which is looked for and not called
    "_LIBC",  # ours, by way of `globals()`
}
"""Names with an underscore that are not private, or not of others."""
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "import_module", "vars"}
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_PYTHONS = (object, type, types.FunctionType, types.ModuleType, types.MethodType, types.TracebackType, Exception)
_DUNDERS = {name for one in _PYTHONS for name in dir(one)} | {
    *(
        "__args__",
        "__file__",
        "__metadata__",
        "__notes__",
        "__origin__",
        "__path__",
        "__signature__",
        "__supertype__",
        "__version__",
    ),
    *(
        "__wrapped__",
        "__future__",
        "__main__",
        "__all__",
        "__slots__",
        "__required_keys__",
        "__optional_keys__",
        "__name__",
        "__spec__",
    ),
}


def private_names(root: Path) -> set[tuple[str, str]]:
    """(file, name) of all private names of others that the packages under `root` use."""
    files = {path.relative_to(root): path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))}
    sources = {file: _Source(file, path.read_text()) for file, path in files.items()}
    ours = {source.name: source.own for source in sources.values()}
    found = {(str(file), name) for file, source in sources.items() for name in source.foreign(ours)}
    return found | set(_overridden(sources))


def _is_private(name: str) -> bool:
    if not name.strip("_"):
        return False
    if name.startswith("__") and name.endswith("__"):
        return name not in _DUNDERS | DOCUMENTED
    return name.startswith("_") and name not in DOCUMENTED


class _Source:
    """One of our modules."""

    def __init__(self, file: Path, text: str) -> None:
        self.nodes = list(ast.walk(ast.parse(text)))
        parts = file.with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self._package = parts[:-1]
        self.own = set(self._own())
        self.imported = list(self._imported())

    def _own(self) -> Iterator[str]:
        """The private names that the module itself defines."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.arg):
                yield node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _of_self(node):
                yield node.attr

    def _imported(self) -> Iterator[str]:
        """The names of the modules, ours or not, that it imports from."""
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                parent = self._package[: len(self._package) + 1 - node.level] if node.level else ()
                module = ".".join([*parent, *([node.module] if node.module else [])])
                yield module
                yield from (f"{module}.{one.name}" for one in node.names)
            elif isinstance(node, ast.Import):
                yield from (one.name for one in node.names)

    def foreign(self, ours: dict[str, set[str]]) -> Iterator[str]:
        """Private names used that neither it nor one of `ours` that it imports defines."""
        own = self.own.union(*(ours.get(name, set()) for name in self.imported))
        for node in self.nodes:
            yield from (name for name in _used(node) if _is_private(name) and name not in own)
        for name in self.imported:
            if name.partition(".")[0] not in PACKAGES:
                yield from (part for part in name.split(".") if _is_private(part))


def _of_self(node: ast.Attribute) -> bool:
    held = node.value
    return isinstance(held, ast.Name) and held.id in ("self", "cls")


def _of_super(node: ast.Attribute) -> bool:
    held = node.value
    return isinstance(held, ast.Call) and isinstance(held.func, ast.Name) and held.func.id == "super"


def _used(node: ast.AST) -> Iterator[str]:
    """Names of attributes, and of keywords, that a node uses; those of `self` are looked at by `_overridden`."""
    if isinstance(node, ast.Attribute) and not _of_self(node):
        yield node.attr
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(map(_by_name, ast.walk(node))):
        texts = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))
        yield from (part for text in texts if _NAME.fullmatch(text) for part in text.split("."))


def _by_name(node: ast.AST) -> bool:
    """Whether it is a call that takes names as texts, which may come to it by way of a variable."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    return name in _BY_NAME


def _overridden(sources: dict[Path, _Source]) -> Iterator[tuple[str, str]]:
    """Private names of classes of others that classes of ours, derived from them, define or use."""
    by_module = {source.name: (file, source) for file, source in sources.items()}
    for source in sources.values():
        if not any(isinstance(node, ast.ClassDef) and node.bases for node in source.nodes):
            continue
        try:
            module = importlib.import_module(source.name)
        except ImportError:
            continue  # it runs in another environment, where only its text can be looked at
        for made in list(vars(module).values()):
            if not inspect.isclass(made) or made.__module__ != source.name:
                continue
            theirs = {name for one in made.__mro__ if not _is_ours(one) for name in _privates_of(one)}
            for one in filter(_is_ours, made.__mro__):
                where, its_source = by_module[one.__module__]
                names = _names_in(its_source, one.__name__)
                yield from ((str(where), name) for name in names & theirs if _is_private(name))


def _is_ours(one: type) -> bool:
    return one.__module__.partition(".")[0] in PACKAGES


def _names_in(source: _Source, name: str) -> set[str]:
    """What a class defines, and uses of `self` and `super()`."""
    found: set[str] = set()
    for made in (node for node in source.nodes if isinstance(node, ast.ClassDef) and node.name == name):
        for node in ast.walk(made):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and (_of_self(node) or _of_super(node)):
                found.add(node.attr)
    return found


@functools.cache
def _privates_of(one: type) -> frozenset[str]:
    """The private names of a class of others: what it has, and what its methods set."""
    if one is object or one.__module__ in ("typing", "abc", "enum", "builtins"):
        return frozenset()
    names = {name for name in (*vars(one), *inspect.get_annotations(one)) if name.startswith("_")}
    for node in _classes_of(sys.modules[one.__module__]):
        if node.name == one.__name__:
            inner = (part for part in ast.walk(node) if isinstance(part, ast.Attribute))
            names |= {part.attr for part in inner if isinstance(part.ctx, ast.Store) and _of_self(part)}
    return frozenset(name for name in names if not name.startswith("__"))


@functools.cache
def _classes_of(module: Any) -> list[ast.ClassDef]:
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


if __name__ == "__main__":
    everything = private_names(Path(sys.argv[1]))
    for row in sorted(everything):
        print(*row)
    print(len({name for _, name in everything}), "names in", len(everything), "places")
