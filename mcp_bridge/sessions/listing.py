"""The tools that a session offers. They are the server's, and its resources and prompts as tools where the user wants
them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.abc
import mcp_types as types
from mcp import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from ..control_tools import CALL_META
from ..errors import ToolFailure
from ..records import EMPTY, EMPTY_ERROR, ToolResult, compact_json, error_result
from ..safe_text import json_in
from ..sources.specs import ServerOptions
from ..toolsets.schema_checks import result_check
from .messages import CLOSED, UNUSABLE_META, unwritable
from .protocol_version import is_handshake
from .tasks import TaskCalls, wants_task

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, CallToolResult, ContentBlock, ResourceLink, TextResourceContents

    from .answering import Answers


# ---------------------------------------------------------------------------------------------------------------------
# A server's resources and prompts as tools of the policy: list and read, list and get.

_RESOURCE_NOT_FOUND = -32002
"""The code of the revisions before 2026-07-28."""
_OWN_CODES = range(-32768, -31999)
_MOST_TEMPLATES = 1000
_READ_ONLY = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, destructive_hint=False)


class NotOffered(Exception):
    """The user wants a server's resources or prompts as tools, and it has none. The message is complete."""


_Handler = Callable[[dict[str, Any], Any], Awaitable[str]]


class ReadingTools:
    """The tools for one session. They only read."""

    def __init__(self, client: Client, *, resources: bool, prompts: bool) -> None:
        """Raises `NotOffered`."""
        self._client = client
        has = client.server_capabilities
        for wanted, there, option in ((resources, has.resources, "resources"), (prompts, has.prompts, "prompts")):
            if wanted and there is None:
                raise NotOffered(f"`{option}` is true for it, but it offers no {option}; take that option out")
        self._wanted: list[tuple[types.Tool, _Handler]] = []
        if resources:
            self._wanted += [(_LIST_RESOURCES, self._list_resources), (_READ_RESOURCE, self._read_resource)]
        if prompts:
            self._wanted += [(_LIST_PROMPTS, self._list_prompts), (_GET_PROMPT, self._get_prompt)]
        self._handlers: dict[str, _Handler] = {}
        self.reader: str | None = None
        """The name of the tool that reads a resource, where there is one."""

    def tools(self, *, taken: Iterable[str]) -> list[types.Tool]:
        """The tools under names that are not `taken`: with `mcp_` before them where the server has the same."""
        names, tools = set(taken), []
        self._handlers = {}
        for tool, handler in self._wanted:
            name = tool.name
            while name in names:
                name = f"mcp_{name}"
            self._handlers[name] = handler
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
                return error_result(problem.message or "The server refused without a message.", "tool_error")
            raise

    async def _list_resources(self, arguments: dict[str, Any], meta: Any) -> str:
        cursor = _cursor(arguments)
        page = await self._client.list_resources(cursor=cursor, meta=meta, cache_mode="bypass")
        lines = [_line(one.uri, one, one.mime_type) for one in page.resources]
        if cursor is None:
            lines += await self._template_lines(meta)
        return "\n".join([*lines, *_more(page.next_cursor)]) or "There are no resources."

    async def _template_lines(self, meta: Any) -> list[str]:
        async def fetch(cursor: str | None) -> tuple[list[types.ResourceTemplate], str | None]:
            page = await self._client.list_resource_templates(cursor=cursor, meta=meta, cache_mode="bypass")
            return page.resource_templates, page.next_cursor

        lines: list[str] = []
        try:
            async for page in _pages(fetch, "resources/templates/list"):
                if page and len(lines) >= _MOST_TEMPLATES:
                    return [*lines, f"[more than {len(lines)} templates; the others are not listed]"]
                lines += [f"{_line(one.uri_template, one, one.mime_type)} [template]" for one in page]
        except MCPError as problem:
            # Servers with resources need not know of templates.
            if problem.code != METHOD_NOT_FOUND:
                raise
        return lines

    async def _read_resource(self, arguments: dict[str, Any], meta: Any) -> str:
        answer = await self._client.read_resource(_text(arguments["uri"]), meta=meta, cache_mode="bypass")
        return "\n".join(resource_text(one) for one in answer.contents)

    async def _list_prompts(self, arguments: dict[str, Any], meta: Any) -> str:
        cursor = _cursor(arguments)
        page = await self._client.list_prompts(cursor=cursor, meta=meta, cache_mode="bypass")
        lines = [f"{_signature(one)}{_about(one)}" for one in page.prompts]
        return "\n".join([*lines, *_more(page.next_cursor)]) or "There are no prompts."

    async def _get_prompt(self, arguments: dict[str, Any], meta: Any) -> str:
        given = arguments.get("arguments")
        given = json.loads(given) if isinstance(given, str) else given or {}
        texts = {name: _text(value) for name, value in given.items()}
        answer = await self._client.get_prompt(_text(arguments["name"]), texts or None, meta=meta)
        return "\n".join(f"{one.role}: {text_of([one.content], reader=self.reader)}" for one in answer.messages)


def _text(value: Any) -> str:
    """What is asked for in a request. Arguments may have other types than the schemas say; see `ArgumentChecker`."""
    return value if isinstance(value, str) else json.dumps(value)


def _cursor(arguments: dict[str, Any]) -> str | None:
    return None if arguments.get("cursor") is None else _text(arguments["cursor"])


def _line(uri: str, one: Any, kind: str | None) -> str:
    size = getattr(one, "size", None)
    told = ", ".join([kind or "unknown type", *([f"{size} bytes"] if size is not None else [])])
    return f"{uri}: {one.name} ({told}){_about(one)}"


def _about(one: Any) -> str:
    return f": {one.description}" if one.description else ""


def _signature(prompt: types.Prompt) -> str:
    given = [one.name if one.required else f"{one.name} (optional)" for one in prompt.arguments or []]
    return f"{prompt.name}({', '.join(given)})"


def _more(cursor: str | None) -> list[str]:
    return [f"[the list goes on: call again with cursor {cursor!r}]"] if cursor is not None else []


def _reading_tool(name: str, description: str, properties: dict[str, Any], *required: str) -> types.Tool:
    schema = {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
    if not required:
        del schema["required"]
    return types.Tool(name=name, description=description, input_schema=schema, annotations=_READ_ONLY)


_CURSOR = {"cursor": {"type": "string", "description": "Where the list goes on, as the last answer said."}}
_NAME = {"type": "string", "minLength": 1}
_LIST_RESOURCES = _reading_tool(
    "list_resources",
    "List what the server has to read: one URI in a line. In a template, fill in what is in braces.",
    _CURSOR,
)
_READ_RESOURCE = _reading_tool("read_resource", "Read a resource of the server by its URI.", {"uri": _NAME}, "uri")
_LIST_PROMPTS = _reading_tool(
    "list_prompts",
    "List the server's prompts, ready-made instructions, with the arguments that each takes.",
    _CURSOR,
)
_GET_PROMPT = _reading_tool(
    "get_prompt",
    "Get the text of a prompt of the server.",
    {"name": _NAME, "arguments": {"type": "object", "additionalProperties": {"type": "string"}}},
    "name",
)


# ---------------------------------------------------------------------------------------------------------------------

_TEXTUAL = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/javascript")
_MOST_LEAVES = 500
_OF_THE_PROTOCOL = "io.modelcontextprotocol/"
"""How the keys of `_meta` begin that are about one connection."""
_MOST_PLACES = 1000
_WORD_ENDS_IN = re.compile(r"[\w+-]\Z|\w\.\Z")
_WORD_GOES_ON = re.compile(r"[\w+-]|\.\w")


def from_mcp(result: CallToolResult, *, reader: str | None = None) -> ToolResult:
    """A server's result as a record. The text is not capped here; see `mcp_bridge.records.capped`.

    `reader`: the tool that reads linked resources, where there is one; links then say so. What the text does not tell
    of the structured content follows it as JSON.
    """
    structured, text = result.structured_content, text_of(result.content, reader=reader)
    if structured is not None and not _tells(own := _own_text(result.content), structured):
        text = "\n".join(part for part in (text, compact_json(_untold(own, structured))) if part)
    if result.is_error:
        found = error_result(text or EMPTY_ERROR, "tool_error", structured=structured)
    else:
        found = ToolResult(text=text or EMPTY, structured=structured)
    parts = tuple(block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content)
    kept: dict[str, Any] = {} if parts == ({"type": "text", "text": found.text},) else {"content": parts}
    if meta := {key: value for key, value in (result.meta or {}).items() if not key.startswith(_OF_THE_PROTOCOL)}:
        kept["meta"] = meta
    return found.model_copy(update=kept) if kept else found


def text_of(content: Iterable[ContentBlock], *, reader: str | None = None) -> str:
    """Text parts as they are, one under the other; everything else as a short line in brackets.

    The text of an embedded text resource follows its line: for many servers it is the answer.
    """
    return "\n".join(part for part in (_part_text(block, reader) for block in content) if part)


def resource_text(resource: TextResourceContents | BlobResourceContents) -> str:
    """A line in brackets that says what it is, and the text under it, also where a text came as bytes."""
    kind = resource.mime_type or "unknown type"
    text = getattr(resource, "text", None)
    if text is None and (decoded := _decoded(resource)) is not None:
        text = decoded
    if text is None:
        return f"[resource {resource.uri}, {kind}, {_decoded_size(getattr(resource, 'blob', ''))} bytes]"
    return f"[resource {resource.uri}, {kind}, {len(text)} characters]\n{text}"


def _part_text(block: ContentBlock, reader: str | None) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource":
        return resource_text(block.resource)
    if block.type == "resource_link":
        return _link_text(block, reader)
    return f"[{block.type}, {block.mime_type}, {_decoded_size(block.data)} bytes]"


def _link_text(link: ResourceLink, reader: str | None) -> str:
    size = f", {link.size} bytes" if link.size is not None else ""
    about = f": {link.description}" if link.description else ""
    how = f"; read it with {reader}" if reader else ""
    return f"[link {link.uri}, {link.name}{about}, {link.mime_type or 'unknown type'}{size}{how}]"


def _decoded(resource: Any) -> str | None:
    kind = (resource.mime_type or "").partition(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind in _TEXTUAL or kind.endswith(("+json", "+xml"))):
        return None
    try:
        return base64.b64decode(resource.blob, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None


def _decoded_size(data: str) -> int:
    """Bytes behind a base64 string, without decoding it."""
    return len(data.rstrip("=")) * 3 // 4


def _untold(text: str, structured: Any) -> Any:
    """The fields of the structured content that the text does not tell."""
    if not text or not isinstance(structured, dict):
        return structured
    if _is_wrapped(structured):
        return {"result": _untold(text, structured["result"])}
    return {name: value for name, value in structured.items() if not _tells(text, [value])}


def _is_wrapped(structured: Any) -> bool:
    """Whether it is a bare value, which servers put under "result" in the structured form."""
    return isinstance(structured, dict) and list(structured) == ["result"]


def _tells(text: str, structured: Any) -> bool:
    """Whether the text is the structured content, or holds every value of it."""
    bare = structured["result"] if _is_wrapped(structured) else structured
    if bare is not structured and (bare is None or isinstance(bare, str)):
        return not bare or _stands_in(bare, text)
    if not text:
        return False
    if structured == {}:
        return True
    told = json_in(text)
    # Python holds 1 and True to be equal; JSON does not.
    if told == structured or (told == bare and isinstance(told, bool) == isinstance(bare, bool)):
        return True
    leaves = list(_leaves(bare, _MOST_LEAVES + 1))
    return len(leaves) <= _MOST_LEAVES and all(_stands_in(leaf, text) for leaf in leaves)


def _stands_in(leaf: str, text: str) -> bool:
    """Whether a value is in a text by itself: as a part of a longer word or number it is there by chance."""
    at = -1
    for _ in range(_MOST_PLACES if leaf else 0):
        at = text.find(leaf, at + 1)
        if at < 0:
            break
        if not (_WORD_ENDS_IN.search(text[max(at - 2, 0) : at]) or _WORD_GOES_ON.match(text, at + len(leaf))):
            return True
    return False


def _own_text(content: Iterable[ContentBlock]) -> str:
    """What the server wrote, without the lines in brackets."""
    texts = []
    for block in content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "resource":
            texts.append(getattr(block.resource, "text", ""))
    return "\n".join(texts)


def _leaves(value: Any, most: int) -> Iterator[str]:
    """The values inside, as a text would show them, up to about `most`."""
    waiting = [value]
    while waiting and most > 0:
        one = waiting.pop()
        if one and isinstance(one, dict):
            waiting.extend(one.values())
        elif one and isinstance(one, list):
            waiting.extend(one)
        else:
            most -= 1
            yield one if isinstance(one, str) else json.dumps(one)


# ---------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

_MOST_PAGES = 1000
_CONFIRM_S = 5.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 60.0
_NO_SUCH = ("unknown", "not found")
"""How servers say in words that they have no such tool."""


class Notices:
    """What one session was told of its server's lists."""

    def __init__(self) -> None:
        self.changes = 0
        """How often the tools have changed."""
        self.is_followed = False
        """Whether a session listens to what the server tells all of them."""

    async def hear(self, message: types.ServerNotification | Exception) -> None:
        """The SDK's `message_handler`."""
        self.changes += isinstance(message, types.ToolListChangedNotification)


@contextlib.asynccontextmanager
async def watched(client: Client, notices: Notices) -> AsyncIterator[None]:
    """Hear of changed tools while the block runs. Before the newest revision servers tell without being asked."""
    offered = client.server_capabilities.tools
    tells = offered is not None and bool(offered.list_changed)
    if is_handshake(client.protocol_version) or not tells or notices.is_followed:
        yield
        return
    notices.is_followed = True
    try:
        async with anyio.create_task_group() as group:
            with anyio.move_on_after(_CONFIRM_S) as limit:
                await group.start(_follow, client, notices)
            if limit.cancelled_caught:
                logger.warning("a server says that it tells of changed tools and does not confirm it; not listening")
            yield
            group.cancel_scope.cancel()
    finally:
        notices.is_followed = False


async def _follow(client: Client, notices: Notices, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Listen, and again after each end of it, for as long as the session lives."""
    is_first, pause = True, _FIRST_PAUSE_S
    while True:
        try:
            async with client.listen(tools_list_changed=True) as events:
                if is_first:
                    task_status.started()
                else:
                    # Whatever changed while nobody listened.
                    notices.changes += 1
                is_first, pause = False, _FIRST_PAUSE_S
                async for _ in events:
                    notices.changes += 1
        except (MCPError, SubscriptionLost, *CLOSED) as error:
            logger.debug("the subscription to changes of tools ended: %s", error)
            if is_first:
                task_status.started()
                is_first = False
        await anyio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class Catalogue:
    """The tools of one session. `tools` is as the server last listed them; `load` lists them."""

    def __init__(
        self, client: Client, options: ServerOptions, notices: Notices, answers: Answers, *, label: str
    ) -> None:
        self.client = client
        self._label = label
        self._notices = notices
        self._answers = answers
        self._extra = ReadingTools(client, resources=options.resources, prompts=options.prompts)
        self._reading: frozenset[str] = frozenset()
        self._tasks = TaskCalls(client, label)
        self._as_tasks: frozenset[str] = frozenset()
        self._relisting = anyio.Lock()
        self._vanished: frozenset[str] = frozenset()
        self._seen = 0
        self.tools: list[types.Tool] = []
        self._result_checks: dict[str, Callable[[Any], str | None] | None] = {}
        # The SDK's own matches the patterns of an output schema without a time limit.
        client.session.validate_tool_result = self._check_result  # type: ignore[method-assign]
        self._send = client.session.send_request
        client.session.send_request = self._sent  # type: ignore[method-assign]

    async def load(self) -> None:
        """List the tools. Raises the SDK's errors, and `NotOffered` for an option that the server has nothing for."""
        seen = self._notices.changes
        listed = await _list_tools(self.client)
        before, names = {tool.name for tool in self.tools}, {tool.name for tool in listed}
        extra = self._extra.tools(taken=names)
        self._reading = frozenset(tool.name for tool in extra)
        self._vanished = (self._vanished | before) - names - self._reading
        self.tools = [*listed, *extra]
        self._as_tasks = frozenset(tool.name for tool in listed if wants_task(tool))
        self._seen = seen
        self._result_checks = {}

    async def _sent(self, request: Any, *rest: Any, **options: Any) -> Any:
        """As `ClientSession.send_request`. What the SDK leaves out of a listing stays, as tools that cannot be used:
        it tells its log alone."""
        result = await self._send(request, *rest, **options)
        if isinstance(result, types.ListToolsResult) and not is_handshake(self.client.protocol_version):
            result.tools = [_with_sound_headers(tool) for tool in result.tools]
        return result

    async def _check_result(self, name: str, result: types.CallToolResult) -> None:
        """As `ClientSession.validate_tool_result`, in a limited time."""
        if name not in self._result_checks:
            schema = next((tool.output_schema for tool in self.tools if tool.name == name), None)
            self._result_checks[name] = None if schema is None else result_check(name, json.dumps(schema))
        check = self._result_checks[name]
        if check is None:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        if problem := check(result.structured_content):
            raise RuntimeError(problem)

    @property
    def is_outdated(self) -> bool:
        """Whether the server said that its tools changed since they were listed."""
        return self._notices.changes != self._seen

    async def load_changes(self) -> bool:
        """List the tools again where the server said that they changed. Whether it had."""
        if not self.is_outdated:
            return False
        async with self._relisting:
            if self.is_outdated:
                await self.load()
        return True

    async def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> ToolResult:
        """Call a tool. Raises the SDK's errors, and `ToolFailure` where the server no longer has the tool."""
        try:
            json.dumps(arguments, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError):
            # The SDK's transports do not survive it.
            return error_result(unwritable("tools/call"), "invalid_arguments")
        if name in self._vanished:
            raise self._gone(name)
        answers = self._answers
        failures: list[ToolFailure] = []
        if name in self._reading:
            result = await self._extra.call(name, arguments, meta)
        else:
            with answers.heard_by_caller():
                progress = answers.progress_for(name, meta.get(CALL_META), failures)
                try:
                    if name in self._as_tasks:
                        answer = await self._tasks.call(name, arguments, progress, meta)
                    else:
                        answer = await self.client.call_tool(name, arguments, progress_callback=progress, meta=meta)  # type: ignore[arg-type]
                    result = from_mcp(answer, reader=self._extra.reader)
                except MCPError as error:
                    answers.raise_failure(failures)
                    if error.code == INVALID_PARAMS and name in error.message:
                        await self._raise_if_gone(name)
                    raise
                if result.is_error and name in result.text and any(words in result.text.lower() for words in _NO_SUCH):
                    await self._raise_if_gone(name)
        await answers.tell()
        answers.raise_failure(failures)
        return result

    async def _raise_if_gone(self, name: str) -> None:
        """Servers say in words that they have no such tool; only a new listing tells that from a mistaken argument."""
        with contextlib.suppress(MCPError):
            await self.load()
        if name in self._vanished:
            raise self._gone(name)

    def _gone(self, name: str) -> ToolFailure:
        # Answered, by the list of tools at least: the call is not sent again.
        return ToolFailure(
            f"{self._label} no longer offers the tool {name!r}, which it had when this world was opened. Its list of "
            "tools has changed; new worlds see the new one.",
            delivery="answered",
        )


def _with_sound_headers(tool: types.Tool) -> types.Tool:
    problem = find_invalid_x_mcp_header(tool.input_schema)
    if problem is None:
        return tool
    meta = {**(tool.meta or {}), UNUSABLE_META: f"MCP asks clients to leave it out, because {problem}"}
    return tool.model_copy(update={"input_schema": {"type": "object"}, "meta": meta})


_Item = TypeVar("_Item")


async def _pages(
    fetch: Callable[[str | None], Awaitable[tuple[list[_Item], str | None]]], method: str
) -> AsyncIterator[list[_Item]]:
    """The pages of a list. `fetch`: a cursor to a page and the next cursor.

    Many servers end a list with an empty cursor, or do not advance: a page that was there already ends it. Raises
    `RuntimeError` where there are too many.
    """
    seen: list[list[_Item]] = []
    asked: set[str | None] = {None}
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page, cursor = await fetch(cursor)
        if page and page in seen:
            return
        yield page
        if cursor is None:
            return
        if cursor in asked:
            if cursor:
                logger.warning("%s goes on with the cursor %.80r again; the list may not be whole", method, cursor)
            return
        seen.append(page)
        asked.add(cursor)
    raise RuntimeError(f"{method} has not ended after {_MOST_PAGES} pages")


async def _list_tools(client: Client) -> list[types.Tool]:
    async def fetch(cursor: str | None) -> tuple[list[types.Tool], str | None]:
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        return page.tools, page.next_cursor

    return [tool async for page in _pages(fetch, "tools/list") for tool in page]
