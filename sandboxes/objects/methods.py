"""The methods of a class as tools, and the values that all objects of a class share."""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_bridge.errors import SourceError, ToolFailure
from mcp_bridge.records import Tool, ToolAnnotations, ToolResult
from mcp_bridge.sources.functions import FunctionTool

_NEVER_DELIBERATE = (AssertionError, NotImplementedError)


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


def is_deliberate(error: BaseException, kind: type) -> bool:
    """True where the error was raised by a `raise` in a package of the class, and not by an operation that failed.

    `raise LookupError("no such order")` is a message to the caller; `self.orders[17]` that fails with the same
    class is a bug of the tool, or an argument that it forgot to check.
    """
    if isinstance(error, _NEVER_DELIBERATE):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__} - {"builtins"}
    module = str(trace.tb_frame.f_globals.get("__name__", ""))
    instruction = dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]]
    return module.partition(".")[0] in packages and instruction == "RAISE_VARARGS"


_CONTAINERS = (list, dict, set, bytearray)


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
    """The containers that a class and its bases hold for all of their objects."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._pristine = {
            (base, name): copy.deepcopy(value)
            for base in kind.__mro__
            for name, value in vars(base).items()
            if isinstance(value, _CONTAINERS) and not (name.startswith("__") and name.endswith("__"))
        }

    def require_unchanged(self) -> None:
        """Raises `ToolFailure` where a call has changed one, and puts it back as it was."""
        changed = [place for place, value in self._pristine.items() if vars(place[0]).get(place[1]) != value]
        for base, name in changed:
            setattr(base, name, copy.deepcopy(self._pristine[base, name]))
        if changed:
            names = ", ".join(f"{base.__name__}.{name}" for base, name in changed)
            raise ToolFailure(
                f"{self._kind.__name__} changed {names}, which all worlds share; set it in `__init__` instead",
                delivery="answered",
            )
