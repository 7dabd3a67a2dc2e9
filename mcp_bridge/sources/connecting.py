"""`connect`: from whatever the user has to a set of tools."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc

from ..errors import SourceError, as_itself
from ..sessions.handlers import Handlers
from ..toolsets.results import positive
from ..toolsets.toolset import Limits, Part, Toolset, look_at
from ..world import WorldSource
from .functions import FunctionSource
from .identify import identify
from .specs import FunctionSpec, OpenApiSpec, ServerSpec, Spec, WorldSourceSpec

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
    problems: list[SourceError] = []
    faults: list[Exception] = []

    async def start(spec: ServerSpec | OpenApiSpec) -> None:
        try:
            started[id(spec)] = await _started(spec, group, limits, connect_timeout_s, handlers, inject_faults)
        except SourceError as error:
            problems.append(error)
        except Exception as error:
            # Kept, so that it comes out as it is and not in a group; the others are not waited for.
            faults.append(error)
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
    if faults:
        raise faults[0]
    if len(problems) > 1:
        raise SourceError(f"{len(problems)} sources cannot be used:\n" + "\n".join(f"- {one}" for one in problems))
    if problems:
        raise problems[0]

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
        return Part(spec.name or spec.label, with_faults(api), aclose=api.aclose, options=spec.options)
    from ..sessions.server_source import open_server

    server = await open_server(
        spec, group, connect_timeout_s=connect_timeout_s, call_timeout_s=limits.call_timeout_s, handlers=handlers
    )
    return Part(spec.name or spec.label, with_faults(server), aclose=server.aclose, options=spec.options)


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
