"""`connect`: from whatever the user has to a set of tools.

`identify` says what kind of source that is, before anything is started.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import typing
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.abc

from ..access.redaction import is_url, shown_arguments, shown_text, url_secrets
from ..errors import SourceError, as_itself, kind_of, positive
from ..sessions.handlers import Handlers
from ..toolsets.toolset import Limits, Part, Toolset, look_at
from ..world import WorldSource
from .functions import FunctionSource, function_name
from .mcp_json import check_url, read_config, read_file
from .specs import FunctionSpec, HttpSpec, OpenApiSpec, ServerObjectSpec, ServerSpec, Spec, StdioSpec, WorldSourceSpec

logger = logging.getLogger(__name__)

_FIRST_LINE_S = 10.0
"""After this time, and then each time that it has doubled, a line tells which sources are still starting."""

FaultInjection = Callable[[Mapping[str, Any], str], Callable[[WorldSource], WorldSource]]
"""From `faults` of an entry and its label to what wraps the entry's source. Raises `SourceError` for others."""


@contextlib.asynccontextmanager
async def connect(
    source: Any,
    *,
    call_timeout_s: float = 30.0,
    connect_timeout_s: float = 120.0,
    max_result_chars: int = 8000,
    handlers: Handlers | None = None,
    inject_faults: FaultInjection | None = None,
) -> AsyncIterator[Toolset]:
    """Connect to tools of any kind; leaving the block ends every session and every process that was started.

        async with connect(["python", "server.py"]) as toolset:
            result = await toolset.call("get_order", {"order_id": "A-1"})

    `source`: the path of an `mcp.json` (format: `docs/tools.md`) or the same as a dict, a URL, a command
    as a list of strings, an OpenAPI document (a file, a URL or a dict), an MCP server object or a function annotated
    to return one, Python functions with type hints, a sandbox, or a list of any of these.

    `call_timeout_s`: the longest a call may take, unless the call says otherwise. `connect_timeout_s`: the longest
    a server may take to start and answer, unless its entry says otherwise. `max_result_chars`: the most characters of
    a result's text.

    `handlers`: who answers what servers ask during a call, and hears of progress; without it they are refused.

    `inject_faults`: wraps a source whose entry in an `mcp.json` asks for `faults`; `sandboxes.faults.faults_for` does,
    which `sdk` passes by itself. Without it such an entry is refused.

    Which worlds share what is said at `mcp_bridge.sessions.server_source.ServerSource`.

    Raises `SourceError` where a source cannot be used. Calls raise `ToolFailure` where the infrastructure broke:
    `CallTimeout`, after which the session is still usable, and `ServerDied`, with the end of the server's stderr.
    """
    limits = Limits(positive("call_timeout_s", call_timeout_s), int(positive("max_result_chars", max_result_chars)))
    positive("connect_timeout_s", connect_timeout_s)
    specs = identify(source)
    async with _owners() as group:
        parts = await _open(specs, group, limits, connect_timeout_s, handlers, inject_faults)
        toolset = Toolset(parts, limits, group, specs, await look_at(parts))
        try:
            yield toolset
        finally:
            await toolset.aclose()


@contextlib.asynccontextmanager
async def _owners() -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group for the sessions' owner tasks. An error of the block ends the sessions and comes out as it is,
    not wrapped in an exception group."""
    raised: BaseException | None = None
    async with anyio.create_task_group() as group:
        try:
            yield group
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            raised = error
        # Only what is left open by an error is ended so: each session then stops its process, shielded and
        # within bounds.
        group.cancel_scope.cancel()
    if raised is not None:
        raise as_itself(raised)


async def _open(
    specs: Sequence[Spec],
    group: anyio.abc.TaskGroup,
    limits: Limits,
    connect_timeout_s: float,
    handlers: Handlers | None,
    inject_faults: FaultInjection | None,
) -> list[Part]:
    """All sources, in their order; servers start side by side. One `SourceError` tells of all that failed."""
    servers = [spec for spec in specs if not isinstance(spec, FunctionSpec | WorldSourceSpec)]
    started: dict[int, Part] = {}
    problems: list[Exception] = []

    async def start(spec: ServerSpec | OpenApiSpec) -> None:
        try:
            started[id(spec)] = await _started(spec, group, limits, connect_timeout_s, handlers, inject_faults)
        except Exception as error:
            problems.append(error)  # so that it comes out as it is and not in a group
            if not isinstance(error, SourceError):  # the others are not waited for
                starting.cancel_scope.cancel()
        finally:
            del waiting[id(spec)]

    waiting = {id(spec): spec for spec in servers}
    async with anyio.create_task_group() as telling:
        telling.start_soon(_tell_of, waiting, connect_timeout_s)
        async with anyio.create_task_group() as starting:
            for spec in servers:
                starting.start_soon(start, spec)
        telling.cancel_scope.cancel()
    faults = [one for one in problems if not isinstance(one, SourceError)]
    if faults or len(problems) == 1:
        raise (faults or problems)[0]
    if problems:
        raise SourceError(f"{len(problems)} sources cannot be used:\n" + "\n".join(f"- {one}" for one in problems))

    functions = [spec.function for spec in specs if isinstance(spec, FunctionSpec)]
    function_part = Part("functions", FunctionSource(functions)) if functions else None
    parts: list[Part] = []
    for one in specs:
        if isinstance(one, WorldSourceSpec):
            parts.append(Part(one.label, one.source))
        elif not isinstance(one, FunctionSpec):
            parts.append(started[id(one)])
        elif function_part is not None and function_part not in parts:
            parts.append(function_part)
    return _distinct(parts)


async def _tell_of(waiting: Mapping[int, ServerSpec | OpenApiSpec], connect_timeout_s: float) -> None:
    """Log which sources have not answered yet, now and then, so that a download does not look like a fault."""
    begin, pause = anyio.current_time(), _FIRST_LINE_S
    while waiting:
        await anyio.sleep(pause)
        for spec in waiting.values():
            logger.warning(
                "waiting for %s to start: %.0f s of at most %g s. What npx, uvx or docker download first takes longer",
                spec.label,
                anyio.current_time() - begin,
                spec.options.connect_timeout_s or connect_timeout_s,
            )
        pause = anyio.current_time() - begin


async def _started(
    spec: ServerSpec | OpenApiSpec,
    group: anyio.abc.TaskGroup,
    limits: Limits,
    connect_timeout_s: float,
    handlers: Handlers | None,
    inject_faults: FaultInjection | None,
) -> Part:
    with_faults = _faults_of(spec, inject_faults)
    # Loaded here: importing the SDK takes seconds, and functions and sandboxes do without.
    if isinstance(spec, OpenApiSpec):
        from ..openapi.source import open_api

        api = await open_api(spec, connect_timeout_s=connect_timeout_s)
        return _part(spec, with_faults(api), api.aclose)
    from ..sessions.server_source import open_server

    server = await open_server(
        spec, group, connect_timeout_s=connect_timeout_s, call_timeout_s=limits.call_timeout_s, handlers=handlers
    )
    return _part(spec, with_faults(server), server.aclose)


def _part(spec: ServerSpec | OpenApiSpec, source: Any, aclose: Callable[[], Coroutine[Any, Any, None]]) -> Part:
    """Of what was started by its description."""
    return Part(spec.name or spec.label, source, aclose=aclose, options=spec.options, is_named=bool(spec.name))


def _faults_of(spec: ServerSpec | OpenApiSpec, inject_faults: FaultInjection | None) -> Callable[[Any], Any]:
    """What wraps the source in the faults that its entry asks for; without faults it stays as it is."""
    if spec.options.faults is None:
        return lambda source: source
    if inject_faults is None:
        raise SourceError(
            f"{spec.label} has faults, which nothing here injects; pass inject_faults=sandboxes.faults.faults_for to "
            "connect, or remove them"
        )
    return inject_faults(spec.options.faults, spec.label)


def _distinct(parts: Sequence[Part]) -> list[Part]:
    """The parts with labels that differ, because setups and states are keyed by them."""
    counts: dict[str, int] = {}
    out = []
    for part in parts:
        counts[part.label] = counts.get(part.label, 0) + 1
        number = counts[part.label]
        out.append(part if number == 1 else replace(part, label=f"{part.label}-{number}"))
    return out


# ---------------------------------------------------------------------------------------------------------------------
# What kind of source the user gave

_YAML = (".yaml", ".yml")

ACCEPTED = """Accepted are:
  - the path of an mcp.json, or the same as a dict: {"mcpServers": {"name": {"command": "...", "args": [...]}}}
  - a URL of a streamable HTTP server: "https://host/mcp"
  - an OpenAPI document: "openapi.json", "openapi.yaml", a URL that ends so, or the document as a dict
  - a command as a list of strings: ["python", "server.py"]
  - an MCP server object (MCPServer, Server), or a function annotated to return one, called once for each world
  - Python functions with type hints
  - a sandbox, or anything else with `tools` and `open_world`
  - a list of any of these"""


def identify(source: Any) -> list[Spec]:
    """The servers, functions and sandboxes behind `source`. Raises `SourceError` listing the accepted forms.

    A list of strings is one command, unless every string is a URL or names a `.json` or `.yaml` file.
    """
    if isinstance(source, str):
        return _from_text(source)
    if isinstance(source, os.PathLike):
        return _from_file(Path(os.fspath(source)).expanduser())
    if isinstance(source, Mapping):
        is_api = "mcpServers" not in source and not {"openapi", "swagger"}.isdisjoint(source)
        # Either a document, which begins with its version, or an entry of an mcp.json by itself.
        if is_api and ("swagger" in source or str(source["openapi"])[:2] == "3."):
            return [OpenApiSpec("", source)]
        config = {"mcpServers": {"": source}} if is_api else source
        return [*read_config(config, where="the dict", folder=Path.cwd())]
    if isinstance(source, list | tuple):
        return _from_list(list(source))
    return [_from_object(source)]


def _from_text(source: str) -> list[Spec]:
    if is_url(source):
        check_url(source, "the source")
        if urlsplit(source).path.lower().endswith((".json", *_YAML)):
            return [OpenApiSpec("", source, secrets=url_secrets(source))]
        return [HttpSpec("", source, secrets=url_secrets(source))]
    if not source.strip():
        raise SourceError(f"the source is an empty string. {ACCEPTED}")
    path = Path(source).expanduser()
    if not path.exists() and any(character.isspace() for character in source):
        words = shown_arguments(source.split())
        raise SourceError(f"there is no file {' '.join(words)!r}. If it is a command, give it as a list: {words!r}")
    if "://" in source and not path.exists():
        raise SourceError(
            f"the source {shown_text(source)!r} must begin with http:// or https:// to be a URL. {ACCEPTED}"
        )
    return _from_file(path)


def _from_file(path: Path) -> list[Spec]:
    if path.suffix.lower() in _YAML:
        return [OpenApiSpec("", str(path))]
    if path.suffix.lower() == ".jsonl":
        raise SourceError(
            f"{str(path)!r} has lines of JSON, and an mcp.json is one object; a cassette is a source in Python as "
            f"sandboxes.recorded.RecordedTwin({str(path)!r})"
        )
    return [*read_file(path)]


def _from_list(source: list[Any]) -> list[Spec]:
    if not source:
        raise SourceError(f"the source is an empty list. {ACCEPTED}")
    if all(isinstance(part, str) for part in source) and not all(
        is_url(part) or part.endswith((".json", *_YAML)) for part in source
    ):
        command, *args = source
        if not command:
            raise SourceError(
                f"the command {shown_arguments(source)!r} begins with an empty string; begin with a program"
            )
        return [StdioSpec("", os.path.expanduser(command), tuple(args))]
    return [spec for part in source for spec in identify(part)]


def _from_object(source: Any) -> Spec:
    server_types = _server_types()
    if isinstance(source, type):
        raise SourceError(f"the source is the class {source.__name__}; {_instead_of(source, server_types)}. {ACCEPTED}")
    if server_types and isinstance(source, server_types):
        return ServerObjectSpec(str(getattr(source, "name", "")), source)
    # A class in place of an instance was refused above: its attributes would look right here.
    if isinstance(source, WorldSource):
        return WorldSourceSpec(source, label=type(source).__name__)
    if callable(source):
        factory = _as_factory(source, server_types)
        return factory if factory is not None else FunctionSpec(source)
    if isinstance(source, ModuleType):
        raise SourceError(
            f"the source is the module {source.__name__}; give each rollout variables of its own with "
            f"sandboxes.objects.ObjectTwin({source.__name__}) (docs/sandboxes.md), or its functions, whose calls are "
            f"real. {ACCEPTED}"
        )
    kind = type(source)
    is_users = kind.__module__ != "builtins" and not hasattr(kind, "open_world")
    fix = f"; {_instead_of(kind, server_types)}" if is_users else ""
    raise SourceError(f"{source!r:.200} ({kind.__name__}) is not a source of tools{fix}. {ACCEPTED}")


def _instead_of(kind: type, server_types: tuple[type[Any], ...]) -> str:
    """What to give in the place of a class, or of an instance that is not a source."""
    if issubclass(kind, server_types) or hasattr(kind, "open_world"):
        return "give an instance of it"
    methods = [name for name, one in vars(kind).items() if inspect.isfunction(one) and not name.startswith("_")]
    if not methods:
        return "give functions or an MCP server in its place"
    return (
        f"give each rollout one of its own with sandboxes.objects.ObjectTwin({kind.__name__}) (docs/sandboxes.md), or "
        f"the methods of one as functions that all rollouts share, such as [one.{methods[0]}], or an MCP server"
    )


def _server_types() -> tuple[type[Any], ...]:
    """The SDK's server classes where somebody has loaded them; without that no object of theirs can exist."""
    found = []
    for module, name in (("mcp.server.mcpserver", "MCPServer"), ("mcp.server.lowlevel.server", "Server")):
        loaded = getattr(sys.modules.get(module), name, None)
        if isinstance(loaded, type):
            found.append(loaded)
    return tuple(found)


def _as_factory(source: Callable[..., Any], server_types: tuple[type[Any], ...]) -> ServerObjectSpec | None:
    """A factory of servers: annotated to return one, or a lambda or `partial`, which could be no tool anyway."""
    if not server_types or not _takes_nothing(source):
        return None
    name = function_name(source)
    annotated = typing.get_origin(_return_hint(source)) or _return_hint(source)
    if isinstance(annotated, type) and issubclass(annotated, server_types):
        return ServerObjectSpec(name, None, factory=_checked(source, name, server_types))
    if name == "<lambda>" or isinstance(source, functools.partial):
        made = source()
        if isinstance(made, server_types):
            return ServerObjectSpec(str(getattr(made, "name", "")), None, factory=_checked(source, name, server_types))
    return None


def _checked(source: Callable[..., Any], name: str, server_types: tuple[type[Any], ...]) -> Callable[[], Any]:
    def make() -> Any:
        server = source()
        if not isinstance(server, server_types):
            raise SourceError(f"{name!r} returned {kind_of(server)}; it must return a new MCP server object")
        return server

    return make


def _takes_nothing(source: Callable[..., Any]) -> bool:
    try:
        return not inspect.signature(source).parameters
    except (TypeError, ValueError):
        return False


def _return_hint(source: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(source).get("return")
    except (NameError, TypeError):
        return None
