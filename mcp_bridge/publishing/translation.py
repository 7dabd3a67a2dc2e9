"""Translation of tools, results and failures between our records and MCP's types."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from ..control_tools import CLOSE_WORLD, CONTROL_META, FAILURE_META, FORK_WORLD, OPEN_WORLD, WORLD_STATE
from ..errors import BridgeError, SourceError
from ..records import Tool, ToolAnnotations, ToolResult

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


def control_tools_as_mcp(*, can_fork: bool) -> list[types.Tool]:
    """`can_fork`: whether the worlds behind the server can be forked."""
    return [
        tool_as_mcp(tool, meta={CONTROL_META: verb})
        for verb, tool in CONTROL_TOOLS.items()
        if can_fork or verb != FORK_WORLD
    ]


def tool_as_mcp(tool: Tool, *, protocol: str | None = None, meta: dict[str, Any] | None = None) -> types.Tool:
    """`protocol`: the revision that the client speaks; those with a handshake know objects as output alone."""
    says, output = tool.annotations, tool.output_schema
    if output is not None and not _takes_any_output(protocol) and output.get("type") != "object":
        output = None
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=output,
        annotations=types.ToolAnnotations(
            read_only_hint=says.read_only,
            destructive_hint=says.destructive,
            idempotent_hint=says.idempotent,
            open_world_hint=says.open_world,
        ),
        _meta=meta,
    )


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
    )


def result_as_mcp(result: ToolResult, *, protocol: str | None = None) -> types.CallToolResult:
    """Where the client takes only objects as structured content, the text holds everything."""
    keeps = isinstance(result.structured, dict) or (result.structured is not None and _takes_any_output(protocol))
    content: list[types.ContentBlock] = [types.TextContent(text=result.text)]
    structured = result.structured if keeps else None
    return types.CallToolResult(content=content, structured_content=structured, is_error=result.is_error)


def failure_as_mcp(failure: BridgeError) -> MCPError:
    """What the client asked for cannot be, or the tools behind this server failed."""
    code = types.INVALID_REQUEST if isinstance(failure, SourceError) else types.INTERNAL_ERROR
    return MCPError(code, str(failure), {FAILURE_META: True})


def _takes_any_output(protocol: str | None) -> bool:
    return protocol is not None and protocol not in HANDSHAKE_PROTOCOL_VERSIONS
