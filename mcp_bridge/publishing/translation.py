"""Translation of tools, results, failures and log levels between our records and MCP's types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args

import mcp_types as types
from mcp.server.connection import allowed_log_levels
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError

from ..control_tools import CLOSE_WORLD, CONTROL_META, FAILURE_META, FORK_WORLD, LIVE_META, OPEN_WORLD, WORLD_STATE
from ..errors import BridgeError, SourceError
from ..records import Tool, ToolAnnotations, ToolResult
from ..safe_text import whole_characters, with_texts
from ..sessions.handlers import LogEntry
from ..sessions.listing import text_of
from ..toolsets.schema_parts import followed

Message = TypeVar("Message", bound=BaseModel)

_WORLD = {"type": "string", "minLength": 1}


def _control_tool(verb: str, says: str, **more: Any) -> Tool:
    properties = {"world": _WORLD, **more}
    required = [name for name in properties if name != "setup"]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Tool(name=f"toolbake_{verb}", description=says, input_schema=schema)


CONTROL_TOOLS = {
    OPEN_WORLD: _control_tool(OPEN_WORLD, "Open a world.", setup={"type": "object"}),
    WORLD_STATE: _control_tool(WORLD_STATE, "The whole state of a world."),
    CLOSE_WORLD: _control_tool(CLOSE_WORLD, "Close a world."),
    FORK_WORLD: _control_tool(FORK_WORLD, "A new world that goes on from where this one is.", into=_WORLD),
}
"""By verb; see `mcp_bridge.control_tools`."""


def control_tools_as_mcp(verbs: Iterable[str], *, live: Sequence[str] = ()) -> list[types.Tool]:
    """The control tools of the `verbs` that the worlds behind the server can do. `live`: see `LIVE_META`."""
    return [
        tool_as_mcp(
            CONTROL_TOOLS[verb], meta={CONTROL_META: verb, **({LIVE_META: live} if live and verb == OPEN_WORLD else {})}
        )
        for verb in verbs
    ]


def tool_as_mcp(tool: Tool, *, protocol: str | None = None, meta: dict[str, Any] | None = None) -> types.Tool:
    """`protocol`: the revision that the client speaks; those with a handshake know objects as output alone."""
    says, output = tool.annotations, tool.output_schema
    if output is not None and not _takes_any_output(protocol):
        output = {**output, "type": "object"} if _is_of_objects(output) else _wrapped_schema(output)
    made = types.Tool(
        name=tool.name,
        title=tool.title or None,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=output,
        annotations=types.ToolAnnotations(
            read_only_hint=says.read_only,
            destructive_hint=says.destructive,
            idempotent_hint=says.idempotent,
            open_world_hint=says.open_world,
        ),
        icons=[types.Icon.model_validate(icon) for icon in tool.icons] or None,
        _meta={**tool.meta, **(meta or {})} or None,
    )
    return _sendable(made)


def tool_from_mcp(tool: types.Tool, source: str = "") -> Tool:
    hints = tool.annotations or types.ToolAnnotations()
    return Tool(
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=ToolAnnotations(
            read_only=hints.read_only_hint,
            destructive=hints.destructive_hint,
            idempotent=hints.idempotent_hint,
            open_world=hints.open_world_hint,
        ),
        source=source,
        title=tool.title or hints.title or "",
        meta=tool.meta or {},
        icons=[icon.model_dump(by_alias=True, mode="json", exclude_none=True) for icon in tool.icons or ()],
    )


def result_as_mcp(
    result: ToolResult, *, protocol: str | None = None, output: dict[str, Any] | None = None
) -> types.CallToolResult:
    """With the parts as a server gave them, where one did. Where the client takes only objects as structured content,
    another value is in one, under `result`. `output`: the tool's output schema."""
    structured = result.structured
    is_object = isinstance(structured, dict) if output is None else _is_of_objects(output)
    if structured is not None and not is_object and not _takes_any_output(protocol):
        structured = {"result": structured}
    made = types.CallToolResult(
        content=_content(result, protocol or LATEST_MODERN_VERSION),
        structured_content=structured,
        is_error=result.is_error,
        _meta=result.meta or None,
    )
    return _sendable(made)


def _sendable(message: Message) -> Message:
    """The message with U+FFFD for each half of a surrogate pair. JSON in UTF-8 holds none, and to write one would end
    the server for all of its clients."""
    try:
        message.model_dump_json()
    except PydanticSerializationError:
        return type(message).model_validate(with_texts(message.model_dump(by_alias=True), whole_characters))
    return message


_PARTS = TypeAdapter[list[types.ContentBlock]](list[types.ContentBlock])
_PARTS_SINCE = {"audio": "2025-03-26", "resource_link": "2025-06-18"}
"""The revisions that brought a kind of part. Clients of earlier ones get the line that a model reads of it."""


def _content(result: ToolResult, protocol: str) -> list[types.ContentBlock]:
    if result.content is None:
        return [types.TextContent(text=result.text)]
    parts = _PARTS.validate_python(list(result.content))
    return [
        types.TextContent(text=text_of([part])) if protocol < _PARTS_SINCE.get(part.type, "") else part
        for part in parts
    ]


def _is_of_objects(output: dict[str, Any]) -> bool:
    """Whether it says so, itself or by a reference, as the schema of a type that holds itself does."""
    return followed(output, output).get("type") == "object"


def _wrapped_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with such a value under `result`, marked as FastMCP's clients know it."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    whole = {"type": "object", "properties": {"result": inner}, "required": ["result"], "x-fastmcp-wrap-result": True}
    return {**whole, "$defs": schema["$defs"]} if "$defs" in schema else whole


def progress_of(context: Any) -> Callable[[float, float | None, str | None], Awaitable[None]] | None:
    """Tells the client of a request how far it is; None where it does not want to know."""
    meta = context.meta or {}
    # Between two objects of the newest revision no token asks: the SDK knows who hears, and drops the rest.
    has_token = context.request is not None or context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
    if has_token and "progressToken" not in meta and "progress_token" not in meta:
        return None
    report: Callable[[float, float | None, str | None], Awaitable[None]] = context.session.report_progress
    return report


def log_as_mcp(entry: LogEntry) -> types.LoggingMessageNotification:
    """Without a logger's name, the server's."""
    level = TypeAdapter[types.LoggingLevel](types.LoggingLevel).validate_python(entry.level)
    params = types.LoggingMessageNotificationParams(level=level, data=entry.data, logger=entry.logger or entry.server)
    return _sendable(types.LoggingMessageNotification(params=params))


def failure_as_mcp(failure: BridgeError) -> MCPError:
    """What the client asked for cannot be, or the tools behind this server failed."""
    code = types.INVALID_REQUEST if isinstance(failure, SourceError) else types.INTERNAL_ERROR
    return MCPError(code, whole_characters(str(failure)), {FAILURE_META: True})


def _takes_any_output(protocol: str | None) -> bool:
    return protocol is not None and protocol not in HANDSHAKE_PROTOCOL_VERSIONS


_LEVELS: tuple[str, ...] = get_args(types.LoggingLevel)
_UNASKED = "info"
"""Where a client that shook hands has not chosen a level."""
_KEY = "toolbake/log_level"


def keep_level(kept: dict[str, Any], params: types.SetLevelRequestParams) -> types.EmptyResult:
    """`logging/setLevel`. `kept`: what is kept with the client's connection."""
    kept[_KEY] = params.level
    return types.EmptyResult()


def levels_of(context: Any, kept: dict[str, Any]) -> frozenset[str]:
    """The levels that go to the client of a request: by its connection, and since 2026-07-28 by the request itself."""
    if context.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return frozenset(allowed_log_levels(context.protocol_version, context.meta))
    return frozenset(_LEVELS[_LEVELS.index(kept.get(_KEY, _UNASKED)) :])
