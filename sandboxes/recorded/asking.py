"""What a server asks in the middle of a call, on its way through a recorder to the client, and the answer back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mcp_bridge.sessions.handlers import Handlers

if TYPE_CHECKING:
    from mcp import Client

ASKED = ("elicitation", "sampling", "roots")
"""What a server may ask for, as the capabilities of clients name it."""


def answered_by(ctx: Any) -> frozenset[str]:
    """Which of `ASKED` the client of a request answers, as it says itself."""
    told = ctx.session.client_capabilities
    return frozenset(name for name in ASKED if told is not None and getattr(told, name) is not None)


def declared(asked: frozenset[str]) -> Handlers:
    """For a session with the server: that these are answered. `Questions` answers, not these functions."""
    return Handlers(**dict.fromkeys(asked, _somewhere_else))


def _somewhere_else(*_: Any) -> Any:
    raise AssertionError("answered by the recorder's client")


class Questions:
    """Takes the questions of one session with the server to the client whose call is under way in it."""

    def __init__(self, client: Client) -> None:
        self._calls: list[Any] = []
        client.session.dispatch_input_request = self._answer  # type: ignore[method-assign,assignment]

    @contextlib.contextmanager
    def during(self, ctx: Any) -> Iterator[None]:
        """While a request of the client is worked on, it can be asked."""
        self._calls.append(ctx)
        try:
            yield
        finally:
            self._calls.remove(ctx)

    async def _answer(self, _: Any, request: Any) -> Any:
        import mcp_types as types
        from mcp.shared.exceptions import MCPError
        from mcp.shared.message import ServerMessageMetadata

        if not self._calls:
            return types.ErrorData(code=types.INVALID_REQUEST, message="no call is under way that could be asked for")
        # Nothing says to which of several calls a question belongs; they are all of one client.
        ctx = self._calls[-1]
        if isinstance(request, types.ElicitRequest):
            result: Any = types.ElicitResult
        elif isinstance(request, types.ListRootsRequest):
            result = types.ListRootsResult
        else:
            result = types.CreateMessageResultWithTools if request.params.tools else types.CreateMessageResult
        try:
            return await ctx.session.send_request(
                request, result, metadata=ServerMessageMetadata(related_request_id=ctx.request_id)
            )
        except MCPError as error:
            return error.error
