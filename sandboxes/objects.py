"""Any Python class as a sandbox: its public methods are the tools, and every rollout gets a fork of the object.

A module may stand in its place: its functions are the methods, its variables the attributes. Fields, values and results
are shown as JSON, whose form depends on the value alone: no addresses, no order of a set, nothing private.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib
import inspect
import io
import json
import logging
import math
import pickle
import re
import sys
import threading
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
    ValuesView,
)
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any, Self
from uuid import UUID

from mcp_bridge.errors import SourceError, ToolFailure, kind_of
from mcp_bridge.records import Tool, ToolAnnotations, ToolResult
from mcp_bridge.sources.functions import FunctionTool

from .changes import State
from .sandbox import InvalidArguments, Refused, Sandbox, SetupError

SAME_AS = "same_as"
"""Key of the form of an object inside itself; the value is the way from the top to where it stands whole."""

_LONGEST_RANGE = 1000
"""The values of a longer one are not listed."""
_AS_TEXT = (Decimal, Fraction, UUID, PurePath, complex)


class NoForm(TypeError):
    """A value without a form."""


def as_json(value: Any, *, special: Callable[[Any], Any] | None = None) -> Any:
    """`value` as JSON: a new object, which shares nothing with it.

    Objects are their public attributes, or their text where they have none. `special` may replace a value before:
    it returns what to use, or the value itself. Raises `NoForm` where neither says anything of the value, and where it
    is nested too deeply.
    """
    try:
        return _Former(special).form(value, ("$",))
    except RecursionError:
        raise NoForm("it is nested hundreds of levels deep") from None


class _Former:
    def __init__(self, special: Callable[[Any], Any] | None) -> None:
        self._special = special
        self._on_the_way: dict[int, tuple[str, ...]] = {}

    def form(self, value: Any, way: tuple[str, ...]) -> Any:
        if self._special is not None:
            value = self._special(value)
        simple = _simple(value)
        if simple is not _NOT_SIMPLE:
            return simple
        if id(value) in self._on_the_way:
            return {SAME_AS: ".".join(self._on_the_way[id(value)])}
        self._on_the_way[id(value)] = way
        try:
            return self._compound(value, way)
        finally:
            del self._on_the_way[id(value)]

    def _compound(self, value: Any, way: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            return self._named(((_key(key), inner) for key, inner in value.items()), way)
        if isinstance(value, KeysView | ItemsView):  # sets, too, but in the order of their dict
            value = list(value)
        if isinstance(value, AbstractSet):
            return sorted((self.form(inner, (*way, "*")) for inner in value), key=lambda one: json.dumps(one))
        if isinstance(value, range) and value[_LONGEST_RANGE:]:  # a few bytes, which may stand for billions of values
            return _text(value)
        if isinstance(value, list | tuple | deque | range | ValuesView):
            return [self.form(inner, (*way, str(place))) for place, inner in enumerate(value)]
        attributes = dict(public_attributes(value))
        return self._named(iter(attributes.items()), way) if attributes else _text(value)

    def _named(self, items: Iterator[tuple[str, Any]], way: tuple[str, ...]) -> dict[str, Any]:
        formed: dict[str, Any] = {}
        for name, inner in items:
            if name in formed:
                raise NoForm(f"two keys of one mapping are {name!r} as text")
            formed[name] = self.form(inner, (*way, name))
        return formed


_NOT_SIMPLE = object()
_MOST_BITS = 14_000
"""Python makes text of integers of up to 4,300 digits."""


def _simple(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _simple(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            raise NoForm(f"an integer has {value.bit_length()} bits, more than JSON can be made of ({_MOST_BITS})")
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, _AS_TEXT) else _NOT_SIMPLE


def public_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of the attributes that an object holds and that do not begin with '_'."""
    if isinstance(value, type | ModuleType):
        return
    names = dict.fromkeys(getattr(value, "__dict__", ()))
    if dataclasses.is_dataclass(value):
        names |= dict.fromkeys(field.name for field in dataclasses.fields(value))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    for name in names:
        if not name.startswith("_") and hasattr(value, name):
            attribute = getattr(value, name)
            if not isinstance(attribute, logging.Logger):  # it is the process's, and has no data
                yield name, attribute


def _key(key: Any) -> str:
    if isinstance(key, str) and not isinstance(key, enum.Enum):
        return str(key)
    simple = _simple(key)
    if simple is not _NOT_SIMPLE:
        return simple if isinstance(simple, str) else json.dumps(simple)
    if isinstance(key, AbstractSet):  # its own text has its values in another order in each copy
        return json.dumps(sorted(map(_key, key)))
    return json.dumps([_key(part) for part in key]) if isinstance(key, tuple) else _text(key)


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")


def _text(value: Any) -> str:
    if isinstance(value, type | FunctionType | MethodType):
        return f"{value.__module__}.{value.__qualname__}"
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise NoForm(f"{kind_of(value)} has no public attributes and no text of its own")
    text = str(value)
    if _ADDRESS.search(text):  # it differs from world to world
        if callable(value):  # such as functools.partial, which no call changes
            return f"{kind.__module__}.{kind.__qualname__}"
        raise NoForm(f"{kind_of(value)} has no public attributes, and its text has an address")
    return text


_LOCK = threading.RLock()
"""Held during a call: the module has one world's variables at a time."""


def module_world(module: ModuleType, shared: Collection[str]) -> Callable[[], Any]:
    """A function that makes objects whose attributes are copies of the module's variables, as they are now.

    A function runs with the variables of its object in the module, so what it changes there, `global` included, is
    changed for that object alone. `shared`: variables that nobody changes; they stay in the module. Raises
    `SourceError` for a variable that cannot be copied.
    """
    kind = _kind(module, frozenset(shared))
    first: dict[str, Any] = {}
    memo: dict[int, Any] = {}  # what two variables share, they share in the copy too
    for name, value in _variables(module, kind).items():
        try:
            first[name] = copy.deepcopy(value, memo)
        except Exception as error:
            raise SourceError(
                f"variable {name!r} of module {module.__name__} cannot be copied for each world ({error}); make it "
                f"inside the functions, or name it in shared=({name!r},) if no function changes it"
            ) from error
    return lambda: _made(kind, copy.deepcopy(first))


_MODULE, _SHARED = "_module_of_this_world", "_shared_with_other_worlds"


@functools.cache
def _kind(module: ModuleType, shared: frozenset[str]) -> type:
    """The class whose methods are the public functions that the module itself defines."""
    functions = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or _is_cached(value))
        and value.__module__ == module.__name__
    }
    methods = {name: _Method(module, function) for name, function in functions.items()}
    members = {_MODULE: module, _SHARED: shared, "__module__": module.__name__, "__reduce__": _reduced}
    return type(module.__name__.rpartition(".")[2], (), {**members, **methods})


def _reduced(self: Any) -> tuple[Any, ...]:
    return _restored, (getattr(self, _MODULE).__name__, getattr(self, _SHARED), vars(self))


def _restored(module: str, shared: frozenset[str], variables: dict[str, Any]) -> Any:
    return _made(_kind(sys.modules.get(module) or importlib.import_module(module), shared), variables)


def _made(kind: type, variables: dict[str, Any]) -> Any:
    one = kind()
    vars(one).update(variables)
    return one


class _Method:
    """A function of a module as a method: it runs with the variables of its object in the module."""

    def __init__(self, module: ModuleType, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]  # the stubs want a function
        self._module, self._function = module, function

    def __get__(self, one: Any, kind: type) -> Callable[..., Any]:
        function = self._function
        if one is None or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return function  # an async one is refused with its name, as an async method is

        @functools.wraps(function)
        def method(*positional: Any, **named: Any) -> Any:
            with _LOCK:
                outside, variables = _variables(self._module, kind), vars(one)
                _put(self._module, outside, variables)
                try:
                    for value in [*vars(self._module).values()]:
                        if _is_cached(value):
                            value.cache_clear()  # what another world was told
                    found = function(*positional, **named)
                    return list(found) if inspect.isgenerator(found) else found
                finally:
                    inside = _variables(self._module, kind)
                    variables.clear()
                    variables.update(inside)
                    _put(self._module, inside, outside)

        return method


def _is_cached(value: Any) -> bool:
    """Whether this is a function with `functools.cache` or `lru_cache`."""
    return hasattr(value, "cache_clear") and inspect.isfunction(getattr(value, "__wrapped__", None))


def _put(module: ModuleType, before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in before.keys() - after.keys():
        delattr(module, name)
    vars(module).update(after)


def _variables(module: ModuleType, kind: type) -> dict[str, Any]:
    """Its data: neither functions, classes, modules and loggers nor what type hints use, nor what worlds share."""
    shared = vars(kind)[_SHARED]
    return {
        name: value
        for name, value in vars(module).items()
        if not (name in shared or (name.startswith("__") and name.endswith("__")))
        and not isinstance(value, type | ModuleType)
        and not inspect.isroutine(value)
        and not isinstance(value, logging.Logger)
        and not hasattr(value, "__wrapped__")
        and type(value).__module__ not in _OF_HINTS
    }


_OF_HINTS = ("typing", "types", "__future__")


@dataclass(frozen=True)
class Method:
    """A tool, and the method of one object of the world that answers it."""

    tool: Tool
    owner: str
    function: FunctionTool | None
    """Converts the arguments to the hinted types; `None` where the schema is not from the hints."""

    defaults: Mapping[str, Any]
    """Those that the method could change; it gets copies of them."""

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any] | ToolResult:
        """What to call the method with, or the error that the caller reads. Nothing in it is the caller's."""
        own = copy.deepcopy(dict(given))
        ready = own if self.function is None else self.function.convert(own)
        if isinstance(ready, ToolResult) or not self.defaults:
            return ready
        return {**{name: copy.deepcopy(value) for name, value in self.defaults.items() if name not in ready}, **ready}


def method_of(owner: str, name: str, bound: Callable[..., Any], schema: Tool | None, *, reads: bool) -> Method:
    """A method of an object as a tool. `schema` replaces what hints and docstrings say.

    Raises `SourceError` for one that cannot be a tool.
    """
    if inspect.iscoroutinefunction(bound) or inspect.isasyncgenfunction(bound):
        raise _cannot(owner, name, "it is async, and a simulated world waits for nothing")
    function, tool = None, schema
    if tool is None:
        try:
            function = FunctionTool(bound)
        except SourceError as problem:
            raise _cannot(owner, name, str(problem)) from problem
        tool = function.tool
    hints = ToolAnnotations(read_only=True, destructive=False, idempotent=True) if reads else tool.annotations
    tool = tool.model_copy(update={"name": name, "source": tool.source or owner, "annotations": hints})
    return Method(tool, owner, function, mutable_defaults(bound))


def public_methods(kind: type) -> list[str]:
    """Names of the methods that do not begin with '_', those of the bases first."""
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__[:-1]):
        for name, member in vars(base).items():
            if not name.startswith("_") and isinstance(inspect.unwrap(getattr(member, "__func__", member)), _FUNCTIONS):
                names[name] = None
    return [name for name in names if callable(getattr(kind, name, None))]


_FUNCTIONS = (type(lambda: None), type(len), type(str.join))


def _cannot(owner: str, name: str, why: str) -> SourceError:
    return SourceError(
        f"method {name!r} of {owner} cannot be a tool: {why}. Leave it out with `methods=(...)`, which names those to "
        f"offer, or describe it with `schemas={{{name!r}: Tool(...)}}`"
    )


def mutable_defaults(method: Callable[..., Any]) -> dict[str, Any]:
    """Parameter -> default, of those that a method could change for every later call: `def post(tags=[])`."""
    defaults = {}
    for parameter in inspect.signature(method).parameters.values():
        if parameter.default is not parameter.empty:
            twin = copy.deepcopy(parameter.default)
            if twin is not parameter.default:
                defaults[parameter.name] = twin
    return defaults


class ClassAttributes:
    """The data that a class and its bases hold for all of their objects, and the lists, dicts and sets of their module
    that its methods read."""

    def __init__(self, kind: type, shared: Collection[str] = ()) -> None:
        """`shared`: names of those that are left alone. Raises `SourceError` for an iterator: each world would go on
        where another stopped, and nothing tells how far it is; and for a method that sets a variable of its module."""
        self._kind, self._shared = kind, shared
        _refuse_globals(kind, shared)
        self._watched: dict[tuple[type, str], _Watched] = {}
        """Of values that can change; others are only replaced."""
        for base, name in self._places():
            value = vars(base)[name]
            if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
                raise SourceError(
                    f"{base.__name__}.{name} is {kind_of(value)}, which all worlds would go on with; make it in "
                    f"`__init__`, or name it in shared=({name!r},) if no method takes from it"
                )
            if watched := _Watched.of(value):
                self._watched[base, name] = watched
        self._variables = {
            name: (variables, watched)
            for function in _functions_of(kind)
            for name, variables in _read_by(function)
            if name not in shared
            and isinstance(variables[name], MutableMapping | MutableSequence | MutableSet | deque)
            and (watched := _Watched.of(variables[name]))
        }

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raises `ToolFailure` where the call within has changed some of it, and puts it back as it was."""
        before = {(base, name): vars(base)[name] for base, name in self._places()}
        for base in self._kind.__mro__:
            for value in vars(base).values():
                if _is_cached(value):
                    value.cache_clear()  # what another world's object was told, where it counts as equal
        for name, (variables, kept) in [*self._variables.items()]:
            # `load` and `__init__` may have changed it at a reset.
            if not kept.is_unchanged(variables.get(name)) and (changed_before := _Watched.of(variables.get(name))):
                self._variables[name] = variables, changed_before
        try:
            yield
        finally:
            new = [place for place in self._places() if place not in before]
            for base, name in new:
                delattr(base, name)
            changed = [place for place in before if not self._is_unchanged(place, before[place])]
            for base, name in changed:
                watched = self._watched.get((base, name))
                value = before[base, name] if watched is None else copy.deepcopy(watched.copy)
                setattr(base, name, value)
                if again := _Watched.of(value):
                    self._watched[base, name] = again
            names = [f"{base.__name__}.{name}" for base, name in new + changed]
            for name, (variables, watched) in self._variables.items():
                if not watched.is_unchanged(variables.get(name)):
                    variables[name] = copy.deepcopy(watched.copy)
                    names.append(f"{name} of its module")
            if names:
                raise ToolFailure(
                    f"{self._kind.__name__} changed {', '.join(names)}, which all worlds share; set it in `__init__` "
                    "instead, or name it in shared=(...) if the worlds may share it",
                    delivery="answered",
                )

    def _is_unchanged(self, place: tuple[type, str], before: Any) -> bool:
        now, watched = vars(place[0]).get(place[1], self), self._watched.get(place)
        return (now is before or _is_equal(now, before)) if watched is None else watched.is_unchanged(now)

    def _places(self) -> list[tuple[type, str]]:
        return [
            (base, name)
            for base in self._kind.__mro__
            for name, value in vars(base).items()
            if not (name in self._shared or (name.startswith("__") and name.endswith("__")))
            and not inspect.isroutine(value)
            and not hasattr(type(value), "__get__")
        ]


def _functions_of(kind: type) -> Iterator[FunctionType]:
    """The methods that a class and its bases of the same module define."""
    for base in kind.__mro__:
        for member in vars(base).values() if base.__module__ == kind.__module__ else ():
            method = inspect.unwrap(getattr(member, "__func__", member))
            if inspect.isfunction(method) and not isinstance(member, _Method):
                yield method


def _read_by(function: FunctionType) -> Iterator[tuple[str, dict[str, Any]]]:
    """The variables of its module that a function reads, by itself and by other functions there, each with where it
    stands."""
    pending, seen = [function.__code__], {function.__code__}
    while pending:
        code = pending.pop()
        found = [one for one in code.co_consts if inspect.iscode(one)]
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                yield step.argval, function.__globals__
                value = function.__globals__[step.argval]
                if inspect.isfunction(value) and value.__globals__ is function.__globals__:
                    found.append(value.__code__)
        pending += [one for one in found if one not in seen]
        seen.update(found)


def _refuse_globals(kind: type, shared: Collection[str]) -> None:
    """Raises `SourceError` for a method that sets a variable of its module, or takes from an iterator there."""
    for method in _functions_of(kind):
        for step in dis.get_instructions(method):
            value = method.__globals__.get(step.argval) if step.opname == "LOAD_GLOBAL" else None
            is_taken = isinstance(value, Iterator) and not isinstance(value, io.IOBase)
            if (is_taken or step.opname == "STORE_GLOBAL") and step.argval not in shared:
                what = f"takes from {kind_of(value)} of its module" if is_taken else "sets a variable of its module"
                raise SourceError(
                    f"{method.__qualname__.rpartition('<locals>.')[2]} {what}, {step.argval!r}, which all worlds "
                    f"share; keep it in the object, or name it in shared=({step.argval!r},) if the worlds may share it"
                )


@dataclass(frozen=True)
class _Watched:
    """What tells whether a value was changed."""

    copy: Any
    form: bytes | None
    """Of an object that is not equal to its own copy."""

    @classmethod
    def of(cls, value: Any) -> _Watched | None:
        """None where nothing in the value can change, or nothing can copy it: a number, a lock, a module."""
        try:
            twin = copy.deepcopy(value)
            return None if twin is value else cls(twin, None if _is_equal(value, twin) else pickle.dumps(value))
        except Exception:
            return None

    def is_unchanged(self, now: Any) -> bool:
        if self.form is None:
            return _is_equal(now, self.copy)
        try:
            return pickle.dumps(now) == self.form
        except Exception:
            return False


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # of arrays, `==` is not a truth
        return False


_MAGIC = b"toolbake objects 1\n"
_DIGEST_BYTES = 32


def copied(world: dict[str, Any], shared: Collection[str]) -> dict[str, Any]:
    """A deep copy of all objects at once, so that what they share among themselves they share in the copy too.

    Attributes named in `shared` are the same objects in the copy.
    """
    memo = {id(value): value for one in world.values() for name in shared if (value := getattr(one, name, None))}
    try:
        return copy.deepcopy(world, memo)
    except TypeError as error:  # a connection, a lock, a file
        raise TypeError(
            f"{error}, so that no rollout can have one of its own; give ObjectTwin(..., copy=...), which copies it, or "
            "name attributes that nobody changes in shared="
        ) from error


logger = logging.getLogger(__name__)

_START = datetime(2026, 1, 1)
_CLOCK = "clock"


class ObjectTwin(Sandbox):
    """The public methods of a class, or of several, as tools over objects that every rollout has for itself.

    `ObjectTwin(Shop)` makes a `Shop()` at each reset, `ObjectTwin(Shop, "Bath", 3)` a `Shop("Bath", 3)`; instead of the
    class, any function that returns the object, or an object to begin with a copy of. Several objects in one world:
    `ObjectTwin({"shop": Shop, "bank": lambda: Bank("EUR")})`.

    `ObjectTwin(shop)` of a module that was imported: its functions are the tools, and its variables, as they are now,
    are what each world has a copy of. Its calls run one at a time. What a function changes elsewhere, in another module
    or outside the process, all worlds share.

    Options, all by name:

    - `load(object, seed, scenario)` fills the new object (a dict of them where there are several), and may return the
      time at which the world begins; without it every seed is the same world. `scenarios` names those there are.
    - `methods`: the methods to offer (all public ones). `schemas`: method -> `Tool`, where hints and docstrings do not
      say it well; then arguments come as the JSON that they are.
    - `reads`: methods that change nothing. They need no copy of the object, and say so to clients.
    - `refusals`: exceptions that the caller reads: all, as it reads those of a plain function or an MCP server. Where
      some are named, any other is a bug of the tool and leaves a rollout unscored.
    - `undo`: take back what a method changed before it raised. It costs a copy of the object for each call; `False` for
      classes that change nothing before they raise.
    - `copy(objects)`: how to copy the dict of objects, instead of `copy.deepcopy`, which asks a class's `__deepcopy__`.
      `shared`: attributes that nobody changes and that copies therefore share.
    - `state(object)`: a mapping to show as its state, in place of its public attributes; `vars` for all.
    - `time_passes(object, before, after)`: what time brings.

    Raises `SourceError` for a method that cannot be a tool.
    """

    def __init__(
        self,
        make: Any,
        *arguments: Any,
        name: str = "",
        load: Callable[[Any, int, str], datetime | None] | None = None,
        scenarios: Sequence[str] = ("default",),
        start: datetime = _START,
        methods: Collection[str] | None = None,
        schemas: Mapping[str, Tool] | None = None,
        reads: Collection[str] = (),
        refusals: tuple[type[Exception], ...] = (Exception,),
        undo: bool = True,
        copy: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        shared: Collection[str] = (),
        state: Callable[[Any], Mapping[str, Any]] | None = None,
        time_passes: Callable[[Any, datetime, datetime], None] | None = None,
    ) -> None:
        self._makers = _makers(make, arguments, shared)
        self._is_single = not isinstance(make, Mapping)
        self.name = name or "_".join(self._makers)
        self.scenarios = tuple(scenarios)
        self._first = (0, self.scenarios[0])
        self._load, self._start, self._time_passes = load, start, time_passes
        self._refusals, self._undo, self._state = refusals, undo, state
        self._copy = copy or (lambda world: copied(world, shared))
        self._begins_with_a_copy = load is not None or any(isinstance(one, _There) for one in self._makers.values())
        examples = {one: make_one() for one, make_one in self._makers.items()}
        self._methods = _all_methods(examples, methods, dict(schemas or {}), frozenset(reads))
        self._class_attributes = {one: ClassAttributes(type(example), shared) for one, example in examples.items()}
        self._reads = frozenset(reads)
        self._world: dict[str, Any] = {}
        self._is_shared = False
        self._hidden: frozenset[str] = frozenset()
        super().__init__()
        self._checker = type(self._checker)(self.all_tools)
        self.reset()
        shows_public = state is None and type(self).state is ObjectTwin.state
        writing = {method.owner for name, method in self._methods.items() if name not in self._reads}
        for one, example in self._world.items() if shows_public else ():
            private = [key for key in getattr(example, "__dict__", ()) if key.startswith("_")]
            if one in writing and private and not any(True for _ in public_attributes(example)):
                logger.warning(
                    "the state of %s is empty, because all its variables (%s) begin with an underscore, so that no "
                    "task can expect a change of them; give state=vars to show them",
                    one,
                    ", ".join(private),
                )

    # -- what a subclass may change -----------------------------------------------------------------------------------

    def present(self, scenario: str) -> Collection[str]:  # noqa: ARG002
        """The names of the objects that a scenario has: all of them. The tools of the others are not there."""
        return self._makers

    def hidden(self, scenario: str) -> Collection[str]:  # noqa: ARG002
        """Tools of a scenario that are not listed but may be called, because a user names them later: none."""
        return ()

    def jsonable(self, value: Any) -> Any:
        """A result or an attribute as JSON, in an object of its own. Raises `NoForm` where it has no form."""
        return as_json(value)

    @property
    def objects(self) -> Mapping[str, Any]:
        """The objects of this world, by name. Other forks may share them: only look."""
        return self._world

    @property
    def all_tools(self) -> Sequence[Tool]:
        return [method.tool for method in self._methods.values()]

    @property
    def tools(self) -> Sequence[Tool]:
        return [tool for tool in self._callable() if tool.name not in self._hidden]

    @property
    def hidden_tools(self) -> Sequence[Tool]:
        return [tool for tool in self._callable() if tool.name in self._hidden]

    @property
    def now(self) -> datetime:
        return self._now

    def fork(self) -> Self:
        twin = copy.copy(self)
        # Nobody changes objects that two worlds hold: whoever calls next copies them first.
        self._is_shared = twin._is_shared = True
        return twin

    def snapshot(self) -> bytes:
        try:
            body = pickle.dumps((self.name, self._now, self._hidden, self._world))
        except Exception as error:
            raise SetupError(
                f"the objects of {self.name} cannot be pickled ({error}); give the class a `__getstate__` without what "
                "cannot"
            ) from error
        return _MAGIC + hashlib.sha256(body).digest() + body

    def _restore(self, snapshot: bytes) -> None:
        # The digest tells damage, not malice: pickled bytes can run code, so restore only snapshots of your own.
        start = len(_MAGIC) + _DIGEST_BYTES
        body = snapshot[start:]
        if snapshot[:start] != _MAGIC + hashlib.sha256(body).digest():
            raise SetupError(f"this is not a snapshot of {self.name}; give what snapshot() returned")
        try:
            of, now, hidden, world = pickle.loads(body)
        except Exception as error:
            raise SetupError(
                f"this snapshot of {self.name} cannot be read ({error}); was its class renamed?"
            ) from error
        if of != self.name:
            raise SetupError(f"this is a snapshot of {of}, not of {self.name}")
        self._begin(world, now, hidden)

    def state(self) -> State:
        state: State = {_CLOCK: {"world": {"now": self._now.isoformat()}}}
        for name, one in self._world.items():
            attributes = dict(public_attributes(one)) if self._state is None else self._state(one)
            try:
                state[name] = {key: {"value": self.jsonable(value)} for key, value in attributes.items()}
            except NoForm as error:
                raise SourceError(
                    f"the state of {name} has no JSON form: {error}; give `state=`, a function of the object that "
                    "returns what is to be compared"
                ) from error
        return state

    def _callable(self) -> list[Tool]:
        return [method.tool for method in self._methods.values() if method.owner in self._world]

    def _reset(self, seed: int, scenario: str) -> None:
        present = self.present(scenario)
        world = {name: make() for name, make in self._makers.items() if name in present}
        if self._begins_with_a_copy:  # makers may give what other worlds have, too
            try:
                world = self._copy(world)
            except TypeError as error:
                raise SourceError(f"{', '.join(world)}: {error}") from error
        start = None if self._load is None else self._load(self._given(world), seed, scenario)
        self._begin(world, start or self._start, frozenset(self.hidden(scenario)))

    def _begin(self, world: dict[str, Any], now: datetime, hidden: frozenset[str]) -> None:
        self._world, self._now, self._hidden = world, now, hidden
        # What `__init__` and `load` put into the objects may be their module's: `self.orders = ORDERS`.
        self._is_shared = True

    def _given(self, world: dict[str, Any]) -> Any:
        """What hooks see: the object, or the dict of several."""
        return next(iter(world.values())) if self._is_single else world

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        method = self._methods[name]
        ready = method.arguments(arguments)
        if isinstance(ready, ToolResult):
            raise InvalidArguments(ready.text)
        if name in self._reads:
            return self._answer(method, self._world, ready)
        if not self._undo and not self._is_shared:
            return self._answer(method, self._world, ready)
        world = self._copy(self._world)
        if not self._undo:
            self._world, self._is_shared = world, False
        found = self._answer(method, world, ready)
        self._world, self._is_shared = world, False
        return found

    def _answer(self, method: Method, world: dict[str, Any], arguments: dict[str, Any]) -> Any:
        one = world[method.owner]
        try:
            with self._class_attributes[method.owner].unchanged():
                found = getattr(one, method.tool.name)(**arguments)
                found = list(found) if inspect.isgenerator(found) else found
        except (Refused, ToolFailure):
            raise
        except self._refusals as error:
            raise Refused(f"{type(error).__name__}: {error}") from error
        return self.jsonable(found)

    def _advance(self, by: timedelta) -> None:
        before, world = self._now, self._world
        if self._time_passes is not None:
            world = self._copy(world)
            self._time_passes(self._given(world), before, before + by)
            self._is_shared = False
        self._world, self._now = world, before + by


def _makers(make: Any, arguments: tuple[Any, ...], shared: Collection[str]) -> dict[str, Callable[[], Any]]:
    if not isinstance(make, Mapping):
        maker = _maker(make, arguments, shared)
        return {type(maker()).__name__: maker}
    if arguments:
        raise SourceError("several objects take no arguments together; write for example {'bank': lambda: Bank('EUR')}")
    if not make or _CLOCK in make:
        raise SourceError(f"the objects are {sorted(make)}; name at least one, and none {_CLOCK!r}")
    return {name: _maker(one, (), shared) for name, one in make.items()}


def _maker(make: Any, arguments: tuple[Any, ...], shared: Collection[str]) -> Callable[[], Any]:
    if isinstance(make, ModuleType) and not arguments:
        return module_world(make, shared)
    if callable(make) and (isinstance(make, type) or hasattr(make, "__name__") or hasattr(make, "func")):
        try:
            inspect.signature(make).bind(*arguments)
        except TypeError as error:
            raise SourceError(
                f"{getattr(make, '__qualname__', make)} cannot be called with {arguments!r} to make a world ({error}); "
                "give a class or a function that returns the object, and its arguments"
            ) from error
        except ValueError:  # built in, without a signature
            pass
        return lambda: make(*arguments)
    if arguments:
        raise SourceError(f"{kind_of(make)} is an object already and takes no arguments")
    return _There(make)


class _There:
    """Gives an object that is there already, of which each world has a copy."""

    def __init__(self, one: Any) -> None:
        self._one = one

    def __call__(self) -> Any:
        return self._one


def _all_methods(
    examples: Mapping[str, object], offered: Collection[str] | None, schemas: dict[str, Tool], reads: frozenset[str]
) -> dict[str, Method]:
    methods: dict[str, Method] = {}
    for owner, example in examples.items():
        for name in public_methods(type(example)):
            if offered is not None and name not in offered:
                continue
            method = method_of(owner, name, getattr(example, name), schemas.get(name), reads=name in reads)
            if name in methods:
                raise SourceError(
                    f"{methods[name].owner} and {owner} both have a method {name!r}; give each a twin of its own"
                )
            methods[name] = method
    if strangers := sorted({*(offered or ()), *schemas, *reads} - {*methods}):
        known = [name for one in examples.values() for name in public_methods(type(one))]
        raise SourceError(
            f"no public method {', '.join(map(repr, strangers))} in {', '.join(examples)}; there are {', '.join(known)}"
        )
    if not methods:
        raise SourceError(f"{', '.join(examples)}: no public methods, so there are no tools")
    return methods
