"""A server whose tools do what their arguments say, so that a test can compare what two clients make of it.

Over HTTP: `app` makes it. `define` replaces the listed tools. A call of any tool carries `answer`, one of the
functions below and its parameters.
"""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

_BLOCKS: TypeAdapter[Any] = TypeAdapter(list[types.ContentBlock])


def scripted_server() -> Server[Any]:
    listed: list[types.Tool] = [types.Tool(name="plain", input_schema={"type": "object"})]

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> Any:
        arguments = params.arguments or {}
        if params.name == "define":
            listed[:] = [types.Tool.model_validate(tool) for tool in arguments["tools"]]
            return types.CallToolResult(content=[])
        kind, told = arguments.get("answer", {"": {}}).popitem()
        return await _ANSWERS.get(kind, _echo)(context, params, told)

    return Server("scripted", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def _echo(context: Any, params: types.CallToolRequestParams, told: Any) -> types.CallToolResult:
    """What reached the handler. The SDK adds keys of its own to `_meta`, which differ from session to session."""
    meta = {key: value for key, value in (context.meta or {}).items() if not key.startswith(("io.", "progress"))}
    seen = {"arguments": params.arguments, "meta": meta, "version": context.protocol_version, "name": params.name}
    return types.CallToolResult(content=[types.TextContent(text=repr(seen))], structured_content=seen)


async def _result(context: Any, params: Any, told: dict[str, Any]) -> types.CallToolResult:
    content = _BLOCKS.validate_python(told.get("content", []))
    fields = {key: told[key] for key in ("structured_content", "is_error") if key in told}
    return types.CallToolResult(content=content, _meta=told.get("meta"), **fields)


async def _raw(context: Any, params: Any, told: Any) -> Any:
    return told


async def _error_data(context: Any, params: Any, told: dict[str, Any]) -> types.ErrorData:
    return types.ErrorData(code=told["code"], message=told["message"], data=told.get("data"))


async def _protocol_error(context: Any, params: Any, told: dict[str, Any]) -> Any:
    raise MCPError(code=told["code"], message=told["message"], data=told.get("data"))


async def _crash(context: Any, params: Any, told: Any) -> Any:
    raise ValueError(f"a secret of the server: {told}")


async def _bad_record(context: Any, params: Any, told: Any) -> Any:
    return types.CallToolResult.model_validate(told)


async def _tell(context: Any, params: Any, told: dict[str, Any]) -> types.CallToolResult:
    """Reports and logs before it answers."""
    await context.session.report_progress(1, 2, "half")
    entry = types.LoggingMessageNotificationParams(level="warning", data=told, logger="scripted")
    log = types.LoggingMessageNotification(params=entry)
    await context.session.send_notification(log, related_request_id=context.request_id)
    return types.CallToolResult(content=[types.TextContent(text="told")])


async def _ask(context: Any, params: types.CallToolRequestParams, told: dict[str, Any]) -> Any:
    """Asks the user for a name, in the way of the session's revision of the protocol."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    request = types.ElicitRequestFormParams(message="Who?", requested_schema=schema)
    if context.session.can_send_request:
        answer = await context.session.elicit_form("Who?", schema, context.request_id)
    elif not params.input_responses:
        return types.InputRequiredResult(input_requests={"who": types.ElicitRequest(params=request)})
    else:
        answer = params.input_responses["who"]
    return types.CallToolResult(content=[types.TextContent(text=f"{answer.action} {answer.content}")])


_ANSWERS = {
    "echo": _echo,
    "result": _result,
    "raw": _raw,
    "error_data": _error_data,
    "protocol_error": _protocol_error,
    "crash": _crash,
    "bad_record": _bad_record,
    "tell": _tell,
    "ask": _ask,
}


_ODD_RESPONSES: dict[str, tuple[int, str, bytes]] = {
    "http-202": (202, "application/json", b""),
    "http-307": (307, "text/plain", b"elsewhere"),
    "http-302": (302, "text/plain", b"elsewhere"),
    "http-400": (
        400,
        "application/json",
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no","data":[1]}}',
    ),
    "http-401": (401, "text/html", b"<p>Who are you?</p>"),
    "http-404": (404, "text/plain", b"Not Found"),
    "http-500": (500, "application/json", b"{}"),
    "http-text": (200, "text/plain", b"hello"),
    "http-no-json": (200, "application/json", b"{"),
    "http-list": (200, "application/json", b"[]"),
    "http-null": (200, "application/json", b"null"),
    "http-cut-events": (200, "text/event-stream", b"event: message\ndata: {"),
    "http-odd-event": (200, "text/event-stream", b"event: message\ndata: []\n\n"),
    "http-no-event": (200, "text/event-stream", b""),
}
"""What comes back over HTTP for the tool of that name, before any server of MCP sees the request."""


class OddResponses:
    """An ASGI app around another; `Mcp-Name` says which tool is called."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", []))
        odd = _ODD_RESPONSES.get(headers.get(b"mcp-name", b"").decode())
        if odd is None or scope["path"] == "/mcp/elsewhere":
            scope = {**scope, "path": "/mcp"} if scope["type"] == "http" else scope
            await self._app(scope, receive, send)
            return
        status, kind, body = odd
        fields = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        location = [(b"location", b"/mcp/elsewhere")] if status in (302, 307) else []
        await send({"type": "http.response.start", "status": status, "headers": fields + location})
        await send({"type": "http.response.body", "body": body})


def app(*, json: bool = False) -> OddResponses:
    return OddResponses(scripted_server().streamable_http_app(json_response=json))
