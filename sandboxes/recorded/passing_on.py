"""Calls of tools on their way through a recorder, between a client and a server of other revisions of MCP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.control import FAILURE_META

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import Client
    from mcp.server.lowlevel import Server

    from mcp_bridge.sessions.session import Session


def speak_as(server: Server[Any], protocol: str) -> None:
    """Make clients shake hands with `server` where the real server does, whose questions come in the middle of a call.

    That holds over HTTP; `without_discovery` does it for a pair of streams. Clients that speak the newest revision
    without looking first are served all the same.
    """
    import mcp_types as types
    from mcp.shared.exceptions import MCPError

    from mcp_bridge.sessions.protocol_version import is_handshake

    async def unknown(_: Any, __: Any) -> Any:
        raise MCPError(types.METHOD_NOT_FOUND, f"the recorded server speaks revision {protocol}")

    if is_handshake(protocol):
        server.add_request_handler("server/discover", types.RequestParams, unknown)


@contextlib.asynccontextmanager
async def without_discovery(read: Any, write: Any, protocol: str) -> AsyncIterator[Any]:
    """The stream `read` without the question for the newest revision, which is answered on `write`, where the real
    server shakes hands: what a client asks first decides how the SDK's server serves it from then on."""
    import mcp_types as types
    from mcp.shared.message import SessionMessage

    from mcp_bridge.sessions.protocol_version import is_handshake

    if not is_handshake(protocol):
        yield read
        return
    send, receive = anyio.create_memory_object_stream[Any]()

    async def relay() -> None:
        async with send:
            async for item in read:
                asked = getattr(item, "message", None)
                if isinstance(asked, types.JSONRPCRequest) and asked.method == "server/discover":
                    told = types.ErrorData(
                        code=types.METHOD_NOT_FOUND, message=f"the recorded server speaks revision {protocol}"
                    )
                    refused = types.JSONRPCError(jsonrpc="2.0", id=asked.id, error=told)
                    await write.send(SessionMessage(refused))
                else:
                    await send.send(item)

    async with anyio.create_task_group() as group:
        group.start_soon(relay)
        yield receive
        group.cancel_scope.cancel()


async def call_tool(session: Session, params: types.CallToolRequestParams, ctx: Any) -> Any:
    """What the server answers: a result, or for clients that understand it, what it has to know first.

    Raises `MCPError`.
    """
    import mcp_types as types
    from mcp.shared.exceptions import MCPError

    from mcp_bridge.sessions.protocol_version import is_handshake
    from mcp_bridge.sessions.tasks import TaskCalls, TaskInterrupted, wants_task

    client = session.client
    if any(tool.name == params.name and wants_task(tool) for tool in session.listed):
        try:
            return await TaskCalls(client, "the server").call(
                params.name, params.arguments or {}, _progress(ctx), dict(params.meta or {})
            )
        except TaskInterrupted as cut:
            raise MCPError(types.INTERNAL_ERROR, str(cut), {FAILURE_META: True}) from cut
    found = await _send(client, params, ctx)
    if isinstance(found, types.InputRequiredResult) and is_handshake(ctx.protocol_version):
        return await _driven(client, params, found, ctx)
    return found


async def _send(client: Client, params: types.CallToolRequestParams, ctx: Any) -> Any:
    import mcp_types as types
    from pydantic import TypeAdapter

    return await client.session.send_request(
        types.CallToolRequest(params=params),
        TypeAdapter[Any](types.CallToolResult | types.InputRequiredResult),
        progress_callback=_progress(ctx),
    )


async def _driven(client: Client, params: types.CallToolRequestParams, asked: Any, ctx: Any) -> Any:
    """Ask the client what the server wants to know, in the way of the older revisions, and call again with that."""

    async def again(responses: Any, state: str | None) -> Any:
        more = {"input_responses": responses, "request_state": state}
        return await _send(client, params.model_copy(update=more), ctx)

    return await client._drive_input_required(asked, again)


def _progress(ctx: Any) -> Any:
    meta = ctx.meta or {}
    if "progressToken" not in meta and "progress_token" not in meta:
        return None

    async def report(progress: float, total: float | None, message: str | None) -> None:
        await ctx.session.report_progress(progress, total, message)

    return report
