"""A sandbox over Python objects: their methods as tools, their copies and snapshots."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import io
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any, Self

from mcp_bridge.errors import SourceError, ToolFailure, kind_of
from mcp_bridge.records import Tool, ToolAnnotations, ToolResult
from mcp_bridge.sources.functions import FunctionTool

from ..changes import State
from ..sandbox import InvalidArguments, Refused, Sandbox, SetupError
from .json_form import NoForm, as_json, public_attributes
from .module_world import module_world


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


def methods_of(
    owner: str, example: object, *, offered: Collection[str] | None, schemas: Mapping[str, Tool], reads: Collection[str]
) -> list[Method]:
    """The public methods of `example` as tools, in the order in which its class writes them; `offered` chooses.

    `schemas` replaces what hints and docstrings say. Raises `SourceError` for a method that cannot be a tool.
    """
    made = []
    for name in public_methods(type(example)):
        if offered is not None and name not in offered:
            continue
        bound = getattr(example, name)
        if inspect.iscoroutinefunction(bound) or inspect.isasyncgenfunction(bound):
            raise _cannot(owner, name, "it is async, and a simulated world waits for nothing")
        function = None
        try:
            if name not in schemas:
                function = FunctionTool(bound)
        except SourceError as problem:
            raise _cannot(owner, name, str(problem)) from problem
        tool = schemas[name] if function is None else function.tool
        hints = ToolAnnotations(read_only=True, destructive=False, idempotent=True) if name in reads else None
        tool = tool.model_copy(
            update={"name": name, "source": tool.source or owner, "annotations": hints or tool.annotations}
        )
        made.append(Method(tool, owner, function, mutable_defaults(bound)))
    return made


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
    """The data that a class and its bases hold for all of their objects."""

    def __init__(self, kind: type, shared: Collection[str] = ()) -> None:
        """`shared`: names of those that are left alone. Raises `SourceError` for an iterator: each world would go on
        where another stopped, and nothing tells how far it is."""
        self._kind, self._shared = kind, shared
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

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raises `ToolFailure` where the call within has changed some of it, and puts it back as it was."""
        before = {(base, name): vars(base)[name] for base, name in self._places()}
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
            if names := ", ".join(f"{base.__name__}.{name}" for base, name in new + changed):
                raise ToolFailure(
                    f"{self._kind.__name__} changed {names}, which all worlds share; set it in `__init__` instead",
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
    except Exception:  # of arrays, `==` is no truth
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


def to_bytes(name: str, now: datetime, world: dict[str, Any]) -> bytes:
    """Raises `SetupError` for objects that cannot be pickled."""
    try:
        body = pickle.dumps((name, now, world))
    except Exception as error:
        raise SetupError(
            f"the objects of {name} cannot be pickled ({error}); give the class a `__getstate__` without what cannot"
        ) from error
    return _MAGIC + hashlib.sha256(body).digest() + body


def from_bytes(name: str, snapshot: bytes) -> tuple[datetime, dict[str, Any]]:
    """What `to_bytes` was given. Raises `SetupError` for anything else.

    The digest tells damage, not malice: pickled bytes can run code, so restore only snapshots of your own.
    """
    start = len(_MAGIC) + _DIGEST_BYTES
    body = snapshot[start:]
    if not snapshot.startswith(_MAGIC) or snapshot[len(_MAGIC) : start] != hashlib.sha256(body).digest():
        raise SetupError(f"this is not a snapshot of {name}; give what snapshot() returned")
    try:
        of, now, world = pickle.loads(body)
    except Exception as error:
        raise SetupError(f"this snapshot of {name} cannot be read ({error}); was its class renamed?") from error
    if of != name:
        raise SetupError(f"this is a snapshot of {of}, not of {name}")
    return now, world


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
    - `state(object)`: a mapping to show as its state, instead of its public attributes.
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
        self._load, self._start, self._time_passes = load, start, time_passes
        self._refusals, self._undo, self._state = refusals, undo, state
        self._copy = copy or (lambda world: copied(world, shared))
        examples = {one: make_one() for one, make_one in self._makers.items()}
        self._methods = _all_methods(examples, methods, dict(schemas or {}), frozenset(reads))
        self._class_attributes = {one: ClassAttributes(type(example), shared) for one, example in examples.items()}
        self._reads = frozenset(reads)
        self._world: dict[str, Any] = {}
        self._is_shared = False
        self._hidden: frozenset[str] = frozenset()
        super().__init__()
        self._checker = type(self._checker)(self.all_tools)
        self.reset(0, self.scenarios[0])

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

    # -- a sandbox ----------------------------------------------------------------------------------------------------

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
        return to_bytes(self.name, self._now, {"hidden": self._hidden, "objects": self._world})

    def _restore(self, snapshot: bytes) -> None:
        now, kept = from_bytes(self.name, snapshot)
        self._begin(kept["objects"], now, kept["hidden"])

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
        start = None if self._load is None else self._load(self._given(world), seed, scenario)
        self._begin(world, start or self._start, frozenset(self.hidden(scenario)))

    def _begin(self, world: dict[str, Any], now: datetime, hidden: frozenset[str]) -> None:
        self._world, self._now, self._hidden = world, now, hidden
        self._is_shared = False

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
        return lambda: make(*arguments)
    if arguments:
        raise SourceError(f"{kind_of(make)} is an object already and takes no arguments")
    return lambda: copy.deepcopy(make)


def _all_methods(
    examples: Mapping[str, object], offered: Collection[str] | None, schemas: dict[str, Tool], reads: frozenset[str]
) -> dict[str, Method]:
    methods: dict[str, Method] = {}
    for owner, example in examples.items():
        for method in methods_of(owner, example, offered=offered, schemas=schemas, reads=reads):
            if method.tool.name in methods:
                raise SourceError(
                    f"{methods[method.tool.name].owner} and {owner} both have a method {method.tool.name!r}; "
                    "give each a twin of its own"
                )
            methods[method.tool.name] = method
    if strangers := sorted({*(offered or ()), *schemas, *reads} - {*methods}):
        raise SourceError(
            f"no public method {', '.join(map(repr, strangers))} in {', '.join(examples)}; "
            f"there are {', '.join(methods)}"
        )
    if not methods:
        raise SourceError(f"{', '.join(examples)}: no public methods, so there are no tools")
    return methods
