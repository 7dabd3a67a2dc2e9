"""A server's resources and prompts as tools of the policy: list and read, list and get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from ..records import ToolResult
from ..toolsets.results import EMPTY, error
from .content import resource_text, text_of

_RESOURCE_NOT_FOUND = -32002
"""The code of the revisions before 2026-07-28."""
_OWN_CODES = range(-32768, -31999)
_MOST_TEMPLATES = 1000
_READ_ONLY = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, destructive_hint=False)
_CURSOR = {
    "type": "object",
    "properties": {"cursor": {"type": "string", "description": "Where the list goes on, as the last answer said."}},
    "additionalProperties": False,
}


class NotOffered(Exception):
    """The user wants a server's resources or prompts as tools, and it has none. The message is complete."""


class _Named(Protocol):
    name: str
    description: str | None


class ReadingTools:
    """The tools for one session. They only read."""

    def __init__(self, client: Client, *, resources: bool, prompts: bool) -> None:
        """Raises `NotOffered`."""
        self._client = client
        has = client.server_capabilities
        for wanted, there, option in ((resources, has.resources, "resources"), (prompts, has.prompts, "prompts")):
            if wanted and there is None:
                raise NotOffered(f"`{option}` is true for it, but it offers no {option}; take that option out")
        self._wanted = [
            *([_LIST_RESOURCES, _READ_RESOURCE] if resources else []),
            *([_LIST_PROMPTS, _GET_PROMPT] if prompts else []),
        ]
        self._handlers: dict[str, Callable[[dict[str, Any], Any], Awaitable[str]]] = {}
        self.reader: str | None = None
        """The name of the tool that reads a resource, where there is one."""

    def tools(self, *, taken: Iterable[str]) -> list[types.Tool]:
        """The tools under names that are not `taken`: with `mcp_` before them where the server has the same."""
        names = set(taken)
        handlers = {
            _LIST_RESOURCES.name: self._list_resources,
            _READ_RESOURCE.name: self._read_resource,
            _LIST_PROMPTS.name: self._list_prompts,
            _GET_PROMPT.name: self._get_prompt,
        }
        tools = []
        self._handlers = {}
        for tool in self._wanted:
            name = tool.name
            while name in names:
                name = f"mcp_{name}"
            self._handlers[name] = handlers[tool.name]
            if tool is _READ_RESOURCE:
                self.reader = name
            tools.append(tool.model_copy(update={"name": name}))
        return tools

    async def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> ToolResult:
        """The result of one of these tools. Raises the SDK's errors."""
        try:
            return ToolResult(text=await self._handlers[name](arguments, meta) or EMPTY)
        except MCPError as problem:
            if problem.code in (INVALID_PARAMS, _RESOURCE_NOT_FOUND) or problem.code not in _OWN_CODES:
                return error(problem.message or "The server refused without a message.", "tool_error")
            raise

    async def _list_resources(self, arguments: dict[str, Any], meta: Any) -> str:
        cursor = arguments.get("cursor")
        page = await self._client.list_resources(cursor=cursor, meta=meta, cache_mode="bypass")
        lines = [_line(one.uri, one, one.mime_type) for one in page.resources]
        if cursor is None:
            lines += await self._template_lines(meta)
        return "\n".join([*lines, *_more(page.next_cursor)]) or "There are no resources."

    async def _template_lines(self, meta: Any) -> list[str]:
        lines: list[str] = []
        cursor: str | None = None
        while len(lines) < _MOST_TEMPLATES:
            try:
                page = await self._client.list_resource_templates(cursor=cursor, meta=meta, cache_mode="bypass")
            except MCPError as problem:
                # Servers with resources need not know of templates.
                if problem.code != METHOD_NOT_FOUND:
                    raise
                break
            lines += [f"{_line(one.uri_template, one, one.mime_type)} [template]" for one in page.resource_templates]
            cursor = page.next_cursor
            if cursor is None:
                break
        else:
            lines.append(f"[more than {_MOST_TEMPLATES} templates; the others are not listed]")
        return lines

    async def _read_resource(self, arguments: dict[str, Any], meta: Any) -> str:
        answer = await self._client.read_resource(arguments["uri"], meta=meta, cache_mode="bypass")
        return "\n".join(resource_text(one) for one in answer.contents)

    async def _list_prompts(self, arguments: dict[str, Any], meta: Any) -> str:
        page = await self._client.list_prompts(cursor=arguments.get("cursor"), meta=meta, cache_mode="bypass")
        lines = [f"{_signature(one)}{_about(one)}" for one in page.prompts]
        return "\n".join([*lines, *_more(page.next_cursor)]) or "There are no prompts."

    async def _get_prompt(self, arguments: dict[str, Any], meta: Any) -> str:
        answer = await self._client.get_prompt(arguments["name"], arguments.get("arguments"), meta=meta)
        return "\n".join(f"{one.role}: {text_of([one.content], reader=self.reader)}" for one in answer.messages)


def _line(uri: str, one: Any, kind: str | None) -> str:
    size = getattr(one, "size", None)
    told = ", ".join([kind or "unknown type", *([f"{size} bytes"] if size is not None else [])])
    return f"{uri}: {one.name} ({told}){_about(one)}"


def _about(one: _Named) -> str:
    return f": {one.description}" if one.description else ""


def _signature(prompt: types.Prompt) -> str:
    given = [one.name if one.required else f"{one.name} (optional)" for one in prompt.arguments or []]
    return f"{prompt.name}({', '.join(given)})"


def _more(cursor: str | None) -> list[str]:
    return [f"[the list goes on: call again with cursor {cursor!r}]"] if cursor is not None else []


_LIST_RESOURCES = types.Tool(
    name="list_resources",
    description="List what the server has to read: one URI in a line. In a template, fill in what is in braces.",
    input_schema=_CURSOR,
    annotations=_READ_ONLY,
)
_READ_RESOURCE = types.Tool(
    name="read_resource",
    description="Read a resource of the server by its URI.",
    input_schema={
        "type": "object",
        "properties": {"uri": {"type": "string", "minLength": 1}},
        "required": ["uri"],
        "additionalProperties": False,
    },
    annotations=_READ_ONLY,
)
_LIST_PROMPTS = types.Tool(
    name="list_prompts",
    description="List the server's prompts, ready-made instructions, with the arguments that each takes.",
    input_schema=_CURSOR,
    annotations=_READ_ONLY,
)
_GET_PROMPT = types.Tool(
    name="get_prompt",
    description="Get the text of a prompt of the server.",
    input_schema={
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    annotations=_READ_ONLY,
)
