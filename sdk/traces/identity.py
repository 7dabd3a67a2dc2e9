"""The identity of a run: its configuration without secrets, with short digests of its tasks, tools and code.

Runs are distinguished by these (see `RunFolder.create_or_resume`). `run.json` stays readable with thousands of tasks,
and no memory address, which differs from process to process, takes part.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import inspect
import itertools
import json
import platform
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel

from mcp_bridge.access import redaction
from mcp_bridge.access.redaction import redacted, shown_arguments
from mcp_bridge.records import Tool
from mcp_bridge.sessions.handlers import Handlers
from mcp_bridge.sources.specs import FunctionSpec, Spec, StdioSpec, WorldSourceSpec

from ..errors import RunFolderError
from ..records import Task

PACKAGES = ("toolbake", "torch", "transformers", "trl", "peft", "accelerate", "mcp", "renderers", "vllm")

# Tokens of a vocabulary and counts per token are not secrets, nor is a key without another word.
_NOT_SECRET = re.compile(
    r"^key$|\b(eos|bos|pad|unk|sep|cls|mask|stop|special|end|start|image|think|tool|next|per) token$"
)

_URL_SECRETS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_BEARER = re.compile(r"(?<=\b[Bb]earer )\S+")
_ASSIGNMENT = re.compile(r"(?P<name>[\w-]+)(?P<sign>=)(?P<value>[^\s&]+)")


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages a result depends on; none of them is imported."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def is_secret_name(name: str) -> bool:
    """Whether a value under this name is kept out of files: `api_key`, `HF_TOKEN`, `headers`; not `max_tokens`.

    The bridge's rule, and `env`, whose values are secrets as often as not; less the tokens of a vocabulary.
    """
    words = re.sub(r"[^A-Za-z0-9]+", " ", name).lower().strip()
    return words.rpartition(" ")[2] == "env" or (redaction.is_secret_name(name) and not _NOT_SECRET.search(words))


def without_secrets(value: Any) -> Any:
    """The same data with `***` in place of secrets.

    Hidden are values under secret names, passwords in URLs (`https://user:pass@host`), secret parameters
    (`?api_key=...`, `--token=...`) and what follows a flag like `--api-key` in a list.
    """
    if isinstance(value, Mapping):
        return {
            key: redaction.HIDDEN if item is not None and is_secret_name(str(key)) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, str):
        text = _BEARER.sub(redaction.HIDDEN, _URL_SECRETS.sub(redaction.HIDDEN, value))
        return _ASSIGNMENT.sub(
            lambda m: f"{m['name']}{m['sign']}{redaction.HIDDEN}" if is_secret_name(m["name"]) else m[0], text
        )
    if isinstance(value, list | tuple):
        hidden: list[Any] = []
        after_secret_flag = False
        for item in value:
            hidden.append(redaction.HIDDEN if after_secret_flag else without_secrets(item))
            is_flag = isinstance(item, str) and item.startswith("-") and "=" not in item
            after_secret_flag = is_flag and is_secret_name(item)
        return hidden
    return value


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as it is stored: JSON, secrets hidden.

    Raises `RunFolderError` for a value that has no stable text, such as a function: two runs could not be
    told apart by it.
    """
    try:
        text = json.dumps(without_secrets(config), allow_nan=False, default=_stable)
    except (TypeError, ValueError) as error:
        raise RunFolderError(
            f"the run's config cannot be stored: {error}; use numbers, strings, lists and dicts"
        ) from error
    stored: dict[str, Any] = json.loads(text)
    return stored


def _stable(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} {getattr(value, '__name__', '')!r} is not a plain value")


def fingerprint(stored_config: Mapping[str, Any]) -> str:
    """A hash of a configuration as stored. Secrets take no part: a new key or token is still the same run."""
    text = json.dumps(_drop_hidden(stored_config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _drop_hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _drop_hidden(v) for k, v in value.items() if not is_secret_name(str(k))}
    if isinstance(value, list):
        return [_drop_hidden(item) for item in value]
    return value


def same_run(info: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the content `info` of a folder's `run.json` is that of the configuration `now`, as it would be stored."""
    return bool(info["fingerprint"] == fingerprint(now))


def grown(stored: Mapping[str, Any], now: Mapping[str, Any], option: str | None) -> tuple[int, int] | None:
    """The numbers of `option`, a dotted name, in a stored configuration and now, where it is larger now and nothing
    else differs; None otherwise."""
    then, fresh = flat(_drop_hidden(stored)), flat(_drop_hidden(now))
    if option is None or option not in then or option not in fresh or then | {option: fresh[option]} != fresh:
        return None
    return (then[option], fresh[option]) if then[option] < fresh[option] else None


def seeds_of(stored_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every seed in the configuration, by its dotted name."""
    return {name: v for name, v in flat(stored_config).items() if re.search(r"(^|[._])seed$", name)}


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, for people: `lr is 1e-05 in the folder and 2e-05 now`."""
    then, new = flat(_drop_hidden(stored)), flat(_drop_hidden(now))
    lines = []
    for name in sorted(then.keys() | new.keys()):
        old = _short(then[name]) if name in then else "absent"
        fresh = _short(new[name]) if name in new else "absent"
        if name not in then or name not in new or then[name] != new[name]:
            why = " (the code or data behind it has changed)" if name.endswith(".digest") else ""
            lines.append(f"{name} is {old} in the folder and {fresh} now{why}")
    return lines


def flat(value: Any, at: str = "") -> dict[str, Any]:
    """The values inside by their paths, such as `grpo.max_steps`; empty mappings are values."""
    if isinstance(value, Mapping) and value:
        found: dict[str, Any] = {}
        for key, item in value.items():
            found |= flat(item, f"{at}.{key}" if at else str(key))
        return found
    return {at: value} if at else {}


def _short(value: Any, limit: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_OWN_PACKAGES = frozenset({"sdk", "mcp_bridge", "sandboxes"})
"""Their source does not count: what they do is told by their version, and an update is not another run."""


def without_addresses(text: str) -> str:
    """A repr without `at 0x7f...`, which says nothing and differs from process to process."""
    return _ADDRESS.sub("", text)


def digest(value: Any) -> str:
    """A short hash of data, of functions with their source, and of what they hold. See `describe`."""
    return _hash(json.dumps(describe(value)))


def tasks_identity(tasks: Sequence[Task]) -> dict[str, Any]:
    """How many tasks, and a digest of everything in them, in their order."""
    return {"count": len(tasks), "digest": digest(list(tasks))}


def tools_identity(specs: Sequence[Spec], tools: Iterable[Tool]) -> dict[str, Any]:
    """The tools of a connected source, and what `mcp_bridge.connect` read from it (`Toolset.specs`).

    `digest` covers what the policy reads of them (name, description, input schema) in any order, and the code of
    Python functions. `source` is a label without secrets.
    """
    shown = sorted((tool.as_openai() for tool in tools), key=lambda tool: str(tool["function"]["name"]))
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

    Functions count with their source, defaults and closure, and the user's own with what their code names in the user's
    modules: plain values, functions, classes and their objects. A `partial` or bound method counts with its parts;
    dataclasses and records with their fields; objects with their own repr where they have one, else objects that verify
    or can be called, and those of the user's own classes, with their attributes; any other object, such as a library's
    client, with its class only. Values under secret names do not count, nor those that a module's functions change.
    """
    return _describe(value, frozenset(), {}, whole=True)


def _describe(value: Any, seen: frozenset[int], known: dict[int, int], *, whole: bool = False) -> Any:
    """`seen`: what `value` is in; `known`: numbers of the user's own objects that are described already."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex | bytes):
        return [type(value).__name__, repr(value)]
    if id(value) in seen:
        return "itself"
    seen = seen | {id(value)}
    inside = functools.partial(_describe, seen=seen, known=known)
    if isinstance(value, BaseModel):
        cls: Any = type(value)
        return [_name(cls), _source(cls), inside(value.model_dump())]
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
        return ["method", inside(value.__self__, whole=True), inside(value.__func__)]

    def named(code: Any = value) -> list[Any]:
        return _describe_named(code, inside, known) if len(seen) < _DEEPEST and id(code) not in known else []

    if id(value) in known:  # objects and functions may name each other in more ways than there is time for
        return ["known", known[id(value)]]
    if isinstance(value, types.FunctionType):
        return [*_describe_function(value, inside), *named()]
    if isinstance(value, type):
        return ["code", _name(value), _source(value), *named()]
    if inspect.isroutine(value):
        return ["code", _name(value), _source(value)]
    if _is_of_users_class(value) and len(seen) < _DEEPEST:
        known[id(value)] = len(known)
        whole = True
    return _describe_object(value, inside, named(type(value)), whole=whole)


_DEEPEST = 50
"""How many values within each other are described with their attributes, and with what their code names."""
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _is_of_users_class(value: Any) -> bool:
    return _is_users(type(value).__module__)


def _is_users(module: str) -> bool:
    """Whether a module is not a library's. One that Python does not list was made by the user's program."""
    file = getattr(sys.modules.get(module), "__file__", None)
    is_library = file.startswith(_LIBRARIES) if file else module != "__main__" and module in sys.modules
    return not is_library and module.partition(".")[0] not in _OWN_PACKAGES


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


_CONTAINERS = (dict, list, set)
_COUNTED = (str, bytes, int, float, complex, type(None), tuple, frozenset, re.Pattern, functools.partial, *_CONTAINERS)
_CHANGING = frozenset(
    ("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")
)


def _describe_named(code: Any, inside: Callable[[Any], Any], known: dict[int, int]) -> list[Any]:
    """What a function or class of the user's names in modules of the user's, and the files that it imports. What
    functions of a module assign to or change does not count: it tells how far a program is."""
    bases = [base for base in getattr(code, "__bases__", ()) if _is_users(str(base.__module__))]
    named: dict[str, Any] = {_name(base): base for base in bases}
    changed: dict[int, set[str]] = {}
    for function in _functions_of(code):
        is_users = _is_users(str(function.__globals__.get("__name__")))
        names = _names_of(function.__code__) if is_users else _Names()
        for path in names.reads:
            space, name = _place(function.__globals__, path)
            value: Any = space.get(name)
            if hasattr(value, "cache_info"):
                value = inspect.unwrap(value)
            kind: Any = type(value)
            if _is_of_users_class(value) and _has_state(kind):
                value = kind
            if name not in space or name.startswith("__") or is_secret_key(name) or not _counts(value):
                continue
            if id(space) not in changed:
                changed[id(space)] = _changed(space)
            label = f"{space.get('__name__')}.{name}"
            if name in changed[id(space)] or label in named:
                continue
            named[label] = ["known", known[id(value)]] if id(value) in known else value
            if isinstance(value, _CONTAINERS):  # which may be long, and read by many
                known.setdefault(id(value), len(known))
        for imported in names.imports:
            named |= _imported_files(*imported, getattr(function.__globals__.get("__spec__"), "parent", ""))
    if isinstance(code, type):  # its source has no code of its methods' decorators
        named |= {f"{one.__qualname__}()": one for one in _functions_of(code) if hasattr(one, "__wrapped__")}
    if named:
        known[id(code)] = len(known)
    return [inside(named)] if named else []


def _counts(value: Any) -> bool:
    if isinstance(value, types.FunctionType | type):
        return _is_users(str(value.__module__))
    return isinstance(value, _COUNTED) or _is_of_users_class(value)


@functools.lru_cache(maxsize=1024)
def _has_state(kind: type) -> bool:
    """Whether methods of the user's set what an object of this class holds, other than the one that makes it."""
    methods = [one for base in kind.__mro__ if _is_users(base.__module__) for one in _functions_of(base)]
    return any(_names_of(one.__code__).sets for one in methods if one.__name__ not in ("__init__", "__post_init__"))


def _functions_of(code: Any) -> list[types.FunctionType]:
    """A function, or the methods of a class, with what decorators wrap."""
    parts = [getattr(one, "__func__", one) for one in (vars(code).values() if isinstance(code, type) else [code])]
    functions = [one for one in parts if isinstance(one, types.FunctionType)]
    return [*functions, *(inspect.unwrap(one) for one in functions if hasattr(one, "__wrapped__"))]


def _changed(space: Mapping[str, Any]) -> set[str]:
    """The names of a module that its functions and methods assign to, or whose items they may change: of rows in a
    dict, any that sets an item of something."""
    found = [_names_of(each.__code__) for one in list(space.values()) for each in _functions_of(one)]
    touched = {path[0] for names in found if names.sets for path in names.reads}
    return {name for names in found for name in names.changes} | {one for one in touched if _has_rows(space.get(one))}


def _has_rows(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, _CONTAINERS) else ()
    return any(isinstance(one, _CONTAINERS) or _is_of_users_class(one) for one in inner)


def _place(space: dict[str, Any], path: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The module of the user's, by its names, that has what a path of attributes begins with, and its name there:
    `package.prompts.SYSTEM.format` reads `SYSTEM` of `package.prompts`."""
    for name in path[:-1]:
        module = space.get(name)
        if not isinstance(module, types.ModuleType) or not _is_users(module.__name__):
            return space, name
        space = vars(module)
    return space, path[-1]


@dataclasses.dataclass
class _Names:
    """What code names."""

    reads: list[tuple[str, ...]] = dataclasses.field(default_factory=list)
    """Globals, each with the attributes that it reads of it."""
    changes: list[str] = dataclasses.field(default_factory=list)
    """Globals that it assigns to, or may change an item of."""
    imports: list[tuple[int, str, tuple[str, ...]]] = dataclasses.field(default_factory=list)
    """Level, module and what is imported from it."""
    sets: bool = False
    """Whether it sets an item or attribute of something."""


@functools.lru_cache(maxsize=4096)
def _names_of(code: types.CodeType) -> _Names:
    steps = list(dis.get_instructions(code))
    names = _Names()
    for at, step in enumerate(steps):
        if step.opname == "LOAD_GLOBAL":
            following = itertools.takewhile(lambda one: one.opname in ("LOAD_ATTR", "LOAD_METHOD"), steps[at + 1 :])
            attributes = [one.argval for one in following]
            names.reads.append((step.argval, *attributes))
            if _CHANGING.intersection(attributes) or _sets_item(steps[at:]):
                names.changes.append(step.argval)
        elif step.opname == "STORE_GLOBAL":
            names.changes.append(step.argval)
        elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_ATTR"):
            names.sets = True
        elif step.opname == "IMPORT_NAME":
            names.imports.append((steps[at - 2].argval, step.argval, steps[at - 1].argval or ()))
    for inner in [_names_of(one) for one in code.co_consts if isinstance(one, types.CodeType)]:
        names.reads += inner.reads
        names.changes += inner.changes
        names.imports += inner.imports
        names.sets |= inner.sets
    return names


def _sets_item(steps: Sequence[dis.Instruction]) -> bool:
    """Whether an item or attribute is set of what the first step loads."""
    above = 0  # values on the stack, from that one on
    for step, following in itertools.pairwise(steps):
        if (step.opname, above) in (("STORE_SUBSCR", 2), ("DELETE_SUBSCR", 2), ("STORE_ATTR", 1)):
            return True
        if step.opname == "COPY" and step.arg == above and following.opname in ("COPY", "LOAD_ATTR"):  # as for +=
            return True
        above += dis.stack_effect(step.opcode, step.arg, jump=False)
        if above < 1:
            return False
    return False


def _imported_files(level: int, name: str, parts: Sequence[str], package: str) -> dict[str, str]:
    """Hashes of the user's files that code imports as it runs. None is imported for this."""
    above = package.split(".")[: -(level - 1) or None] if level else []
    whole = ".".join([*above, *filter(None, [name])])
    files = {module: _file_of(module) for module in (whole, *(f"{whole}.{part}" for part in parts))}
    return {f"import {module}": _hash(file.read_text()) for module, file in files.items() if file is not None}


def _file_of(module: str) -> Path | None:
    """The file of a module of the user's."""
    names, places, origin = module.split("."), None, ""
    for length in range(1, len(names) + 1):
        found = (finder.find_spec(".".join(names[:length]), places) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return None
        places, origin = spec.submodule_search_locations, spec.origin or ""
    is_users = origin.endswith(".py") and not origin.startswith(_LIBRARIES) and names[0] not in _OWN_PACKAGES
    return Path(origin) if is_users else None


def _describe_object(value: Any, inside: Callable[[Any], Any], named: list[Any], *, whole: bool) -> Any:
    cls: Any = type(value)
    own = str(cls.__module__).partition(".")[0] in _OWN_PACKAGES
    kind = [getattr(cls, "known_as", _name(cls)) if own else _name(cls), _source(cls), *named]
    if dataclasses.is_dataclass(value):
        return [*kind, inside({field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)})]
    if cls.__module__ != "builtins" and cls.__repr__ is not object.__repr__:
        return [*kind, without_addresses(repr(value))]
    if whole or callable(value) or callable(getattr(value, "verify", None)):
        return [*kind, inside(vars(value) if hasattr(value, "__dict__") else {})]
    return kind[0]


@functools.lru_cache(maxsize=256)
def _source(code: Any) -> str:
    """A hash of the source, or of the compiled code where there is no source; empty for what is not Python."""
    if str(getattr(code, "__module__", "")).partition(".")[0] in _OWN_PACKAGES:
        return ""
    compiled = getattr(code, "__code__", None)
    try:
        if getattr(compiled, "co_filename", "") == "<string>":  # all that was typed in has one file since Python 3.13
            raise OSError
        # The code's own: `inspect` gives that of what a decorator has wrapped for a wrapper.
        return _hash(inspect.getsource(compiled or code))
    except (OSError, TypeError):
        return _hash(json.dumps(_compiled(compiled))) if isinstance(compiled, types.CodeType) else ""


def _compiled(code: types.CodeType) -> list[Any]:
    constants = [_compiled(c) if isinstance(c, types.CodeType) else describe(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names)]


def _name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__qualname__
    return f"{getattr(thing, '__module__', None) or 'builtins'}.{name}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
