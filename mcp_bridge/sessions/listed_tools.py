"""Listings of tools made readable: the SDK's client refuses a whole list for one entry that is not as MCP wants it."""

from __future__ import annotations

import json
import logging
from typing import Any

import mcp_types
from pydantic import ValidationError

logger = logging.getLogger(__name__)

UNUSABLE_META = "toolbake/unusable"
"""Key in the `_meta` of a tool that was listed in a form that cannot be used; the value says why."""

_NOTHING_KNOWN = {"type": "object"}


def make_readable(result: Any) -> bool:
    """Change what a server listed so that each entry can be read. Whether anything had to be changed."""
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(tools, list):
        return False
    readable = [_readable(tool) for tool in tools]
    changed = any(new is not old for new, old in zip(readable, tools, strict=True))
    if changed:
        result["tools"] = [tool for tool in readable if tool is not None]
    return changed


def readable_body(body: bytes) -> bytes:
    """The same for a message of JSON-RPC as it is on the wire."""
    if b'"tools"' not in body:
        return body
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return body
    changed = isinstance(message, dict) and make_readable(message.get("result"))
    return json.dumps(message).encode() if changed else body


def _readable(tool: Any) -> Any:
    """The entry itself where nothing is wrong with it; None where it does not even have a name."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        logger.warning("a tool is left out, because its server lists it without a name: %.200s", json.dumps(tool))
        return None
    schema = tool.get("inputSchema")
    if schema is None or (isinstance(schema, dict) and schema.get("type") is None):
        # Arguments are always an object, whether a server says so or not.
        tool = {**tool, "inputSchema": {**(schema or {}), **_NOTHING_KNOWN}}
    elif not isinstance(schema, dict):
        return _unusable(tool, f"its input schema is {schema!r:.80}, and must be an object")
    elif schema["type"] != "object":
        return _unusable(tool, f'its input schema has the type {schema["type"]!r:.80}, and must have "object"')
    try:
        mcp_types.Tool.model_validate(tool, by_name=False)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        return _unusable(tool, f"its server lists it in a form that MCP does not have: {where}: {problem['msg']}")
    return tool


def _unusable(tool: dict[str, Any], reason: str) -> dict[str, Any]:
    return {"name": tool["name"], "inputSchema": _NOTHING_KNOWN, "_meta": {UNUSABLE_META: reason}}
