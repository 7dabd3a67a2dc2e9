"""Shared state: which tools change what other rollouts see.

Of a Python function its source tells what it may change outside itself; it is read and never run.
"""

from __future__ import annotations

import ast
import builtins
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import textwrap
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel

from mcp_bridge import Toolset
from mcp_bridge.records import Tool
from mcp_bridge.safe_text import and_more
from mcp_bridge.sources.functions import function_name
from mcp_bridge.sources.specs import FunctionSpec

from .words import words

_SHOWN = 6


def changes_shared(source: Toolset) -> dict[str, str]:
    """The tools whose calls other rollouts may see, each with the reason. Functions whose code changes nothing are not
    among them."""
    functions = {function_name(spec.function): spec.function for spec in source.specs if isinstance(spec, FunctionSpec)}
    found = {}
    for tool in source.shared_tools:
        function = functions.get(tool.name_at_source or tool.name) if tool.source.startswith("function ") else None
        if tool.annotations.open_world:
            reason: str | None = "it acts outside its world (openWorldHint)"
        else:
            reason = may_change(function) if function is not None else "nothing says that it only reads"
        if reason is not None:
            found[tool.name] = reason
    return found


def shared_state_line(source: Toolset) -> str | None:
    """What it means that tools change a state that all rollouts share; None where none does, as far as is known."""
    if not (found := changes_shared(source)):
        return None
    named = and_more([f"{tool} ({why})" for tool, why in found.items()], _SHOWN, ";")
    return (
        f"rollouts may share state that cannot be reset, by way of {named}: each sees what others changed, calls "
        "are real, and no demonstration is searched with these tools. Give each rollout a world of its own "
        "(sandboxes.objects.ObjectTwin for Python objects and modules, docs/sandboxes.md), mark what only reads "
        "(mcp_bridge.behaves(read_only=True), or read_only in mcp.json), or name them in allow_destructive"
    )


def searchable_tools(source: Toolset, allowed: Sequence[str] = ()) -> list[Tool]:
    """The tools that a search may try: no destructive ones of live servers, and none that change a shared state unless
    `allowed` names them."""
    live = {tool.name for tool in source.live_destructive}
    shared = changes_shared(source)
    return [
        tool
        for tool in source.tools
        if tool.name not in live and (tool.name not in shared or any(fnmatchcase(tool.name, name) for name in allowed))
    ]


# ---------------------------------------------------------------------------------------------------------------------

_READING_MODULES = frozenset(
    words(
        "math cmath datetime json re statistics string decimal fractions itertools functools collections operator "
        "textwrap unicodedata calendar copy random difflib dataclasses typing enum uuid bisect heapq "
        "numbers zoneinfo time"
    )
) | {"hashlib", "base64"}
"""Modules whose functions change nothing but their arguments."""
_READING_METHODS = frozenset(
    words(
        "get items keys values copy index count startswith endswith lower upper title capitalize casefold strip lstrip "
        "rstrip split rsplit splitlines join format replace find rfind isdigit isalpha isdecimal isoformat strftime "
        "date time weekday partition rpartition removeprefix removesuffix union intersection difference issubset "
        "issuperset isdisjoint total encode decode"
    )
) | {"model_dump", "most_common", "symmetric_difference"}
_CHANGING_METHODS = frozenset(
    words("append extend insert add update sort reverse pop popitem remove discard clear setdefault appendleft popleft")
)
"""Of lists, dicts and sets."""
_CONTAINERS = (dict, list, tuple, set, collections.deque, collections.Counter, collections.defaultdict)
_MOST_DATA = 100_000
_OUTSIDE = frozenset({"open", "exec", "eval", "compile", "input", "__import__", "setattr", "delattr", "breakpoint"})
_PLAIN = (
    *(str, bytes, int, float, complex, bool, type(None), frozenset, range, types.EllipsisType, uuid.UUID),
    *(decimal.Decimal, datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
)
_CACHED = type(functools.lru_cache(len))
_DEEPEST = 6


def may_change(function: Callable[..., Any]) -> str | None:
    """What a function may change that outlives its call, in words; None where its code changes only its own values.

    It errs on the side of a change: code that cannot be read, or that calls what is not known, may change anything.
    Example: `may_change(book) == "it changes ROOMS"`
    """
    try:
        return next(_changes(function, frozenset(), frozenset()), None)
    except RecursionError:
        return "its code is nested too deeply to be read"


def _changes(function: Any, seen: frozenset[Any], shared_arguments: frozenset[str]) -> Iterator[str]:
    while isinstance(function, functools.partial):
        function = function.func
    bound = None
    if inspect.ismethod(function):
        function, bound = function.__func__, function.__self__
    elif not inspect.isfunction(function) and inspect.ismethod(getattr(function, "__call__", None)):  # noqa: B004
        function, bound = function.__call__.__func__, function
    if isinstance(function, _CACHED):
        function = function.__wrapped__
    if hasattr(function, "__wrapped__"):
        yield "what its decorator does is not known"
        return
    if function in seen:
        return
    if len(seen) >= _DEEPEST:
        yield f"it calls {getattr(function, '__name__', 'a function')}, too deep to be read"
        return
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        definition = None
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        yield f"the code of {getattr(function, '__name__', 'it')} cannot be read"
        return
    reader = _Reader(function, seen | {function})
    first = [one.arg for one in definition.args.args[:1]]
    if bound is not None and not inspect.isclass(bound):
        reader.shared.update(first)
    reader.shared.update(shared_arguments)
    yield from reader.read(definition)


class _Reader:
    """Follows which names of one function mean something that is shared."""

    def __init__(self, function: Any, seen: frozenset[Any]) -> None:
        outer = inspect.getclosurevars(function)
        self._outer: dict[str, Any] = {**vars(builtins), **function.__globals__, **outer.nonlocals}
        self._seen = seen
        self.shared: set[str] = {
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.default is not parameter.empty and not isinstance(parameter.default, _PLAIN)
        }
        self._own: set[str] = set()
        self._inner: set[str] = set()
        """Functions that it defines, whose code is read with its own."""
        self._declared: set[str] = set()
        self._has_data_alone = False
        """Whether all that it shares with others is made of builtin values."""

    def read(self, definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
        arguments = definition.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self._own.update(one.arg for one in named if one is not None)
        nodes = [node for statement in definition.body for node in ast.walk(statement)]
        for node in nodes:
            if isinstance(node, ast.Global | ast.Nonlocal):
                self._declared.update(node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._own.add(node.id)
            elif isinstance(node, ast.arg):
                self._own.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._inner.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                if (module or "").partition(".")[0] not in _READING_MODULES:
                    yield f"it imports {module}"
                self._own.update((one.asname or one.name).partition(".")[0] for one in node.names)
        self._own -= self._declared
        used = {node.id for node in nodes if isinstance(node, ast.Name)} - self._own
        calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        self._has_data_alone = not (
            self.shared
            or any(inspect.isfunction(self._outer.get(name)) for name in calls - self._own)
            or any(self._names_shared(name) and not _is_data(self._outer[name]) for name in used)
        )
        for _ in range(3):  # a name may be shared by way of others
            for node in nodes:
                self._spread(node)
        for node in nodes:
            yield from self._change(node)

    def _spread(self, node: ast.AST) -> None:
        pairs: list[tuple[ast.AST, ast.AST]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            pairs = [(node.target, node.iter)]
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            pairs = [(node.optional_vars, node.context_expr)]
        for target, value in pairs:
            if self._is_shared(value):
                self.shared.update(one.id for one in ast.walk(target) if isinstance(one, ast.Name))

    def _is_shared(self, value: ast.AST) -> bool:
        """Whether the value may be, or hold, something mutable that is shared."""
        if isinstance(value, ast.Compare | ast.JoinedStr | ast.Constant):
            return False
        called = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
        if called and inspect.isfunction(self._outer.get(called)) and called not in self._own:
            return not _is_reading(self._outer[called])  # it may return a row of what is shared
        if called in ("len", "str", "int", "float", "bool", "sum", "round", "repr", "abs", "deepcopy"):
            return False
        return any(isinstance(one, ast.Name) and self._names_shared(one.id) for one in ast.walk(value))

    def _names_shared(self, name: str) -> bool:
        if name in self.shared:
            return True
        if name in self._own or name not in self._outer:
            return False
        value = self._outer[name]
        if isinstance(value, tuple):
            return not all(isinstance(one, _PLAIN) for one in value)
        return not (isinstance(value, (*_PLAIN, type, types.ModuleType)) or inspect.isroutine(value))

    def _change(self, node: ast.AST) -> Iterator[str]:
        targets: list[ast.AST] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
            targets = [node.target]
        for target in targets:
            for one in [target, *ast.walk(target)]:
                if isinstance(one, ast.Name) and one.id in self._declared:
                    yield f"it changes {one.id}"
                elif isinstance(one, ast.Subscript | ast.Attribute) and not isinstance(one.ctx, ast.Load):
                    root = _root(one)
                    if root is None or self._names_shared(root) or root not in self._own:
                        yield f"it changes {ast.unparse(one)}"
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in self.shared:
            yield f"it may change {node.target.id}"
        if isinstance(node, ast.Name) and node.id not in self._own and isinstance(self._outer.get(node.id), Iterator):
            yield f"it uses up {node.id}"  # or writes to it: files are iterators
        if isinstance(node, ast.Attribute) and node.attr in _CHANGING_METHODS and self._is_shared(node.value):
            yield f"it may call {ast.unparse(node)}"  # or hand it on: map(ROOMS.pop, names)
        if isinstance(node, ast.Call):
            yield from self._called(node)

    def _called(self, node: ast.Call) -> Iterator[str]:
        given = [*node.args, *(one.value for one in node.keywords)]
        hands_on = any(self._is_shared(one) for one in given)
        if isinstance(node.func, ast.Attribute):
            root = _root(node.func)
            if root is not None and root not in self._own and isinstance(self._outer.get(root), types.ModuleType):
                if self._outer[root].__name__.partition(".")[0] not in _READING_MODULES:
                    yield f"it calls {ast.unparse(node.func)}"
                elif hands_on and self._outer[root].__name__ in ("random", "heapq", "bisect"):
                    yield f"it may change what it gives to {ast.unparse(node.func)}"
            elif not self._is_harmless_method(node.func, root):
                yield f"it calls {ast.unparse(node.func)}"
            return
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name in self._inner:
            return
        if name is None or (name in self._own and name not in self._declared):
            yield f"it calls {ast.unparse(node.func)}"
            return
        value = self._outer.get(name)
        if name in _OUTSIDE and value is getattr(builtins, name, None):
            yield f"it calls {name}"
        elif inspect.isfunction(value) and not _is_reading(value):
            parameters = frozenset(inspect.signature(value).parameters) if hands_on else frozenset()
            yield from _changes(value, self._seen, parameters)
        elif value is not getattr(builtins, name, self) and not _is_reading(value) and not self._is_known_class(value):
            yield f"it calls {name}"

    def _is_harmless_method(self, method: ast.Attribute, root: str | None) -> bool:
        """Whether it reads plain data, or changes a value that the function made."""
        if root is not None and root not in self._own and root in self._outer:
            value = self._outer[root]
            reads_class = isinstance(value, type) and self._is_known_class(value)
            return method.attr in _READING_METHODS and (reads_class or _is_data(value))
        if self._is_shared(method.value):
            return method.attr in _READING_METHODS and self._has_data_alone
        return method.attr in _READING_METHODS or method.attr in _CHANGING_METHODS

    def _is_known_class(self, value: Any) -> bool:
        """Whether it is a class whose instances are plain values, or no class at all."""
        if not isinstance(value, type):
            return not inspect.isclass(value) and not callable(value)
        return (
            value.__module__ == "builtins"
            or _is_reading(value)
            or dataclasses.is_dataclass(value)
            or issubclass(value, BaseException | BaseModel | tuple | enum.Enum)
        )


def _is_data(value: Any, depth: int = 0) -> bool:
    """Whether it is made of builtin values alone, whose methods are known."""
    if type(value) in _PLAIN:
        return True
    if depth > _DEEPEST or type(value) not in _CONTAINERS:
        return False
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
    return len(inner) <= _MOST_DATA and all(_is_data(one, depth + 1) for one in inner)


def _is_reading(value: Any) -> bool:
    if not (inspect.isroutine(value) or isinstance(value, type)):
        return False
    return str(getattr(value, "__module__", "")).partition(".")[0] in _READING_MODULES


def _root(node: ast.AST) -> str | None:
    """The name that a chain of attributes, places and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
