"""A recorder's session with the real server: requests of its client go on to the server, and what the server asks and
tells goes back to the client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import mcp_types as types
from mcp.client import ClientRequestContext, InputRequiredRoundsExceededError
from mcp.client.subscriptions import SubscriptionLost
from mcp.server.connection import allowed_log_levels
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY, event_to_notification
from pydantic import TypeAdapter

from mcp_bridge.control_tools import FAILURE_META
from mcp_bridge.errors import BridgeError
from mcp_bridge.publishing.translation import progress_of
from mcp_bridge.sessions.messages import is_closed
from mcp_bridge.sessions.protocol_version import is_handshake
from mcp_bridge.sessions.session import Session
from mcp_bridge.sessions.tasks import TaskCalls, TaskInterrupted, wants_task

_ASK_AGAIN_S = 0.25
ASKED = ("elicitation", "sampling", "roots")
"""What a server may ask for, as the capabilities of clients name it."""

_CHANGES = (
    types.ResourceUpdatedNotification,
    types.ResourceListChangedNotification,
    types.ToolListChangedNotification,
    types.PromptListChangedNotification,
)
"""What a server tells without being asked, up to 2025-11-25. Later revisions tell it in subscriptions."""


def answered_by(ctx: Any) -> frozenset[str]:
    """Which of `ASKED` the client of a request answers, by its capabilities."""
    told = ctx.session.client_capabilities
    return frozenset(name for name in ASKED if told is not None and getattr(told, name) is not None)


class Upstream:
    """A session with the real server, for one client."""

    def __init__(self, session: Session, answered: frozenset[str] | None) -> None:
        self.session = session
        self.answered = answered
        """What its client answers of what the server asks; None before a client has said so."""
        self.lost = False
        """Whether a request found that the server has gone."""
        self.used = time.monotonic()
        """When a request last came."""
        self.learned: Sequence[types.Tool] | None = None
        """The tools, as they were when the cassette heard of them."""
        self._calls: list[Any] = []
        self._last: Any = None
        self._log_level: types.LoggingLevel | None = None
        self._telling = anyio.Lock()
        session.client.session.dispatch_input_request = self._answer  # type: ignore[method-assign,assignment]
        session.notes.listener = self._pass_back

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self._calls)

    async def list_tools(self, ctx: Any, cursor: str | None) -> types.ListToolsResult:
        """A page of the server's tools, as they are now. Raises `MCPError`."""
        async with self._during(ctx):
            return await self.session.client.list_tools(cursor=cursor, cache_mode="refresh")

    async def forward(self, ctx: Any, request: Any, result: Any) -> Any:
        """What the server answers to a request, which is of the type `result`. Raises `MCPError`."""
        async with self._during(ctx):
            return await self._send(ctx, request, result)

    async def ask(self, ctx: Any, request: Any, result: Any) -> Any:
        """The same where the server may ask before it answers: clients that understand it get what it has to know
        first, and others are asked here."""
        async with self._during(ctx):
            found = await self._send(ctx, request, TypeAdapter[Any](result | types.InputRequiredResult))
            if isinstance(found, types.InputRequiredResult) and is_handshake(ctx.protocol_version):
                return await self._driven(ctx, request, result, found)
            return found

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        """As `ask`, also where the server wants the tool called as a task. Raises `MCPError`."""
        if not any(tool.name == params.name and wants_task(tool) for tool in self.session.listed):
            return await self.ask(ctx, types.CallToolRequest(params=params), types.CallToolResult)
        params = self._passed_on(params)
        async with self._during(ctx):
            tasks = TaskCalls(self.session.client, "the server")
            try:
                return await tasks.call(
                    params.name, params.arguments or {}, self._progress(ctx), dict(params.meta or {})
                )
            except TaskInterrupted as cut:
                raise MCPError(types.INTERNAL_ERROR, str(cut), {FAILURE_META: True}) from cut

    async def set_log_level(self, ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """From which level on the client wants to hear the server's log."""
        if is_handshake(self.session.protocol_version):
            await self.forward(ctx, types.SetLevelRequest(params=params), types.EmptyResult)
        self._log_level = params.level
        return types.EmptyResult()

    async def listen(self, ctx: Any, params: types.SubscriptionsListenRequestParams) -> types.SubscriptionsListenResult:
        """Tell the client of the changes that it subscribes to, until the server or the client ends it."""
        wanted, meta = params.notifications, {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        try:
            events = self.session.client.listen(
                tools_list_changed=bool(wanted.tools_list_changed),
                prompts_list_changed=bool(wanted.prompts_list_changed),
                resources_list_changed=bool(wanted.resources_list_changed),
                resource_subscriptions=wanted.resource_subscriptions or (),
            )
            async with events as heard:
                begun = types.SubscriptionsAcknowledgedNotificationParams(notifications=heard.honored, _meta=meta)
                told: types.ServerNotification = types.SubscriptionsAcknowledgedNotification(params=begun)
                await ctx.session.send_notification(told, related_request_id=ctx.request_id)
                async for event in heard:
                    told = event_to_notification(event, meta)
                    await ctx.session.send_notification(told, related_request_id=ctx.request_id)
        except (SubscriptionLost, BridgeError) as error:
            raise MCPError(types.INTERNAL_ERROR, str(error), {FAILURE_META: True}) from error
        return types.SubscriptionsListenResult(_meta=meta)

    @contextlib.asynccontextmanager
    async def _during(self, ctx: Any) -> AsyncIterator[None]:
        """While a request of the client is worked on, it can be asked; it hears all that was told before the end."""
        self._calls.append(ctx)
        self._last = ctx
        try:
            yield
            async with self._telling:  # the answer would overtake what is still being sent
                pass
        except BridgeError as error:
            self.lost = True
            raise MCPError(types.INTERNAL_ERROR, str(error), {FAILURE_META: True}) from error
        except MCPError as error:
            self.lost = self.lost or is_closed(error)
            raise
        finally:
            self._calls.remove(ctx)

    async def _send(self, ctx: Any, request: Any, result: Any) -> Any:
        request = request.model_copy(update={"params": self._passed_on(request.params)})
        return await self.session.client.session.send_request(request, result, progress_callback=self._progress(ctx))

    def _passed_on(self, params: Any) -> Any:
        """The parameters of a request for another connection: the fields of `_meta` about this one are left out."""
        if params is None:
            return None
        own = {"progressToken", "progress_token"}
        meta = {
            key: value
            for key, value in (params.meta or {}).items()
            if key not in own and (key == types.LOG_LEVEL_META_KEY or not key.startswith("io.modelcontextprotocol/"))
        }
        if self._log_level is not None and not is_handshake(self.session.protocol_version):
            meta.setdefault(types.LOG_LEVEL_META_KEY, self._log_level)
        return params.model_copy(update={"meta": meta or None})

    async def _driven(self, ctx: Any, request: Any, result: Any, asked: Any) -> Any:
        """Ask the client what the server wants to know, in the way of the older revisions, and send the request again
        with that, until there is a result."""
        client = self.session.client
        for _ in range(client.input_required_max_rounds):
            answers: dict[str, Any] = {}
            for key, question in (asked.input_requests or {}).items():
                meta = question.params.meta if question.params else None
                context = ClientRequestContext(session=client.session, request_id=key, meta=meta)
                answer = await self._answer(context, question)
                if isinstance(answer, types.ErrorData):
                    raise MCPError.from_error_data(answer)
                answers[key] = answer
            if not answers:
                await anyio.sleep(_ASK_AGAIN_S)  # the server only wants to be asked later
            more = {"input_responses": answers or None, "request_state": asked.request_state}
            again = request.model_copy(update={"params": request.params.model_copy(update=more)})
            asked = await self._send(ctx, again, TypeAdapter[Any](result | types.InputRequiredResult))
            if not isinstance(asked, types.InputRequiredResult):
                return asked
        raise InputRequiredRoundsExceededError(client.input_required_max_rounds)

    def _progress(self, ctx: Any) -> Any:
        """How the client hears of progress; None where it does not want to."""
        report = progress_of(ctx)
        if report is None:
            return None

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            async with self._telling:
                await report(progress, total, message)

        return tell

    async def _pass_back(self, told: types.ServerNotification) -> None:
        """What the server tells without being asked."""
        async with self._telling:
            if isinstance(told, types.LoggingMessageNotification):
                level = told.params.level
                hearing = (
                    ctx for ctx in reversed(self._calls) if level in allowed_log_levels(ctx.protocol_version, ctx.meta)
                )
                ctx = next(hearing, None)
                if ctx is not None:
                    await ctx.session.send_notification(told, related_request_id=ctx.request_id)
                elif self._last is not None and is_handshake(self._last.protocol_version):
                    await self._last.session.send_notification(told)
            elif isinstance(told, _CHANGES) and is_handshake(self.session.protocol_version) and self._last is not None:
                await self._last.session.send_notification(told)

    async def _answer(self, _: Any, request: Any) -> Any:
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
