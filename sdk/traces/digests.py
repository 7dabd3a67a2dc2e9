"""What tasks, tools and code are, as short digests that stay the same from process to process.

A run is told from another by these (see `RunFolder.create_or_resume`): `run.json` stays readable with thousands of
tasks in it, and no memory address, which would differ each time, takes part.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from pydantic import BaseModel

from mcp_bridge.access.redaction import redacted, shown_arguments
from mcp_bridge.records import Tool
from mcp_bridge.sessions.handlers import Handlers
from mcp_bridge.sources.identify import identify
from mcp_bridge.sources.specs import FunctionSpec, Spec, StdioSpec, WorldSourceSpec

from ..records import Task
from .identity import is_secret_name

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_OWN_PACKAGES = frozenset({"sdk", "mcp_bridge", "sandboxes"})
"""Their source does not count: what they do is told by their version, and an update is no other run."""


def without_addresses(text: str) -> str:
    """A repr without `at 0x7f...`, which says nothing and differs from process to process."""
    return _ADDRESS.sub("", text)


def digest(value: Any) -> str:
    """A short hash of data, of functions with their source, and of what they hold. See `describe`."""
    return _hash(json.dumps(describe(value)))


def tasks_identity(tasks: Sequence[Task]) -> dict[str, Any]:
    """How many tasks, and a digest of everything in them, in their order."""
    return {"count": len(tasks), "digest": digest(list(tasks))}


def tools_identity(source: Any, tools: Iterable[Tool]) -> dict[str, Any]:
    """The tools of a connected `source` (anything `mcp_bridge.connect` takes).

    `digest` covers what the policy reads of them (name, description, input schema) in any order, and the code of
    Python functions. `source` is a label without secrets.
    """
    shown = sorted((tool.as_openai() for tool in tools), key=lambda tool: str(tool["function"]["name"]))
    specs = identify(source)
    code = [spec.function for spec in specs if isinstance(spec, FunctionSpec)]
    faults = [spec.options.faults for spec in specs if not isinstance(spec, FunctionSpec | WorldSourceSpec)]
    return {
        "source": [_label(spec) for spec in specs],
        "count": len(shown),
        "digest": digest([shown, code]),
        **({"faults": digest(faults)} if any(faults) else {}),
    }


def handlers_identity(handlers: Handlers | None) -> dict[str, str]:
    """A digest of whoever answers the servers, for what a run is known by; nothing without them.

    Those that only listen do not count: no result depends on them.
    """
    if handlers is None:
        return {}
    return {"handlers": digest([handlers.elicitation, handlers.sampling, handlers.roots])}


def _label(spec: Spec) -> str:
    if isinstance(spec, StdioSpec):
        # All of the command, where the label of messages is cut after so many characters.
        words = " ".join(shown_arguments([*spec.command.split(" "), *spec.args]))
        return redacted(f"{spec.name} ({words})" if spec.name else words, spec.secrets)
    if isinstance(spec, FunctionSpec):
        return f"function {_name(spec.function)}"
    if isinstance(spec, WorldSourceSpec):
        return _name(type(spec.source))
    return spec.label


def describe(value: Any) -> Any:
    """Plain data that says what `value` is, the same in every process.

    Functions count with their source, defaults and closure; a `partial` or bound method with its parts; dataclasses
    and records with their fields; objects that verify with their attributes, or with their own repr where they have
    one; any other object with its class only. Values under secret names do not count.

    A class names in `__later_fields__`, a set of names, the fields that it gained after runs had been known by it.
    These count only where they are not at their default, so that a run begun without them is still the same one.
    """
    return _describe(value, frozenset(), whole=True)


def _describe(value: Any, seen: frozenset[int], *, whole: bool = False) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex | bytes):
        return [type(value).__name__, repr(value)]
    if id(value) in seen:
        return "itself"
    seen = seen | {id(value)}
    inside = functools.partial(_describe, seen=seen)
    if isinstance(value, BaseModel):
        cls: Any = type(value)
        return [_name(cls), _source(cls), inside(value.model_dump(exclude=_left_alone(value)))]
    if isinstance(value, Mapping):
        items = [[inside(key), inside(item)] for key, item in value.items() if not is_secret_key(key)]
        return ["mapping", *sorted(items, key=json.dumps)]
    if isinstance(value, list | tuple):
        return ["list", *map(inside, value)]
    if isinstance(value, AbstractSet):
        return ["set", *sorted(map(inside, value), key=json.dumps)]
    if isinstance(value, re.Pattern):
        return ["pattern", inside(value.pattern), value.flags]
    if isinstance(value, functools.partial):
        return ["partial", inside(value.func), inside(value.args), inside(value.keywords)]
    if isinstance(value, types.MethodType):
        return ["method", _describe(value.__self__, seen, whole=True), inside(value.__func__)]
    if isinstance(value, types.FunctionType):
        return _describe_function(value, inside)
    if isinstance(value, type) or inspect.isroutine(value):
        return ["code", _name(value), _source(value)]
    return _describe_object(value, inside, whole=whole)


def is_secret_key(key: Any) -> bool:
    """Whether a mapping's key or an attribute is named as a secret."""
    return isinstance(key, str) and is_secret_name(key)


def _describe_function(function: types.FunctionType, inside: Callable[[Any], Any]) -> Any:
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # a name that is assigned later
            held[name] = None
    given = [function.__defaults__, function.__kwdefaults__]
    return ["function", _name(function), _source(function), inside(held), inside(given)]


def _describe_object(value: Any, inside: Callable[[Any], Any], *, whole: bool) -> Any:
    cls: Any = type(value)
    kind = [_name(cls), _source(cls)]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name not in _later_at_default(value)]
        return [*kind, inside({name: getattr(value, name, None) for name in names})]
    if cls.__module__ != "builtins" and cls.__repr__ is not object.__repr__:
        return [*kind, without_addresses(repr(value))]
    if whole or callable(value) or callable(getattr(value, "verify", None)):
        return [*kind, inside(vars(value) if hasattr(value, "__dict__") else {})]
    return kind[0]


def _left_alone(value: Any) -> Any:
    """What a dump of `value` leaves out, in the form of pydantic's `exclude`: later fields at their default."""
    parts: dict[Any, Any]
    if isinstance(value, BaseModel):
        at_default = _later_at_default(value)
        parts = {name: True if name in at_default else _left_alone(part) for name, part in value}
    elif isinstance(value, Mapping):
        parts = {key: _left_alone(part) for key, part in value.items()}
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(map(_left_alone, value)))
    else:
        return None
    return {name: left_out for name, left_out in parts.items() if left_out} or None


def _later_at_default(value: Any) -> set[str]:
    """The fields of a record or dataclass that its class gained later and that are at their default."""
    cls = type(value)
    later = {name for base in cls.__mro__ for name in vars(base).get("__later_fields__", ())}
    return {name for name in later if describe(getattr(value, name)) == describe(_default(cls, name))}


def _default(cls: type, name: str) -> Any:
    if issubclass(cls, BaseModel):
        return cls.model_fields[name].get_default(call_default_factory=True)
    (field,) = [field for field in dataclasses.fields(cls) if field.name == name]  # type: ignore[arg-type]
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@functools.lru_cache(maxsize=256)
def _source(code: Any) -> str:
    """A hash of the source, or of the compiled code where there is no source; empty for what is not Python."""
    if str(getattr(code, "__module__", "")).partition(".")[0] in _OWN_PACKAGES:
        return ""
    try:
        return _hash(inspect.getsource(code))
    except (OSError, TypeError):
        compiled = getattr(code, "__code__", None)
        return _hash(json.dumps(_compiled(compiled))) if isinstance(compiled, types.CodeType) else ""


def _compiled(code: types.CodeType) -> list[Any]:
    constants = [_compiled(c) if isinstance(c, types.CodeType) else describe(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names)]


def _name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__qualname__
    return f"{getattr(thing, '__module__', None) or 'builtins'}.{name}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
