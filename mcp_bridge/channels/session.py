"""The SDK's session, with a short way for a plain call of a tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self

import anyio
import anyio.abc
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession, _CallToolResultAdapter, _input_required_unexpected
from mcp.shared.dispatcher import Dispatcher, ProgressFnT

from ..toolsets.plain import NotPlain, is_plain, plain_copy
from .sharing import QuickChecks, Shared

_CALL = "tools/call"
_RESERVED = "io.modelcontextprotocol/"
_PROGRESS_KEYS = frozenset({"progressToken", "progress_token"})
PlainAnswer = dict[str, Any]
"""A complete result of texts and structured content alone, as it is on the wire."""
CallAnswer = types.CallToolResult | types.InputRequiredResult


class Attached(Protocol):
    """The lower half of a session: it works in its callers' tasks and needs none of its own to run."""

    def attach(self, session: ClientSession, group: anyio.abc.TaskGroup) -> None:
        """Ready from here on. What the server sends goes to `session`, in `group` where it takes a task."""

    def close(self) -> None:
        """Calls under way and all later ones end as on a closed connection."""


class LightSession(ClientSession):
    """A session whose plain calls skip the steps that cannot change anything about them.

    Plain is a call whose arguments are JSON already, without the extras of the protocol; every other call, and every
    other request, goes through the SDK's session as it is. A subclass says how a plain call is sent.
    """

    _answers_are_plain: ClassVar = False
    """Whether what `_call` gives as a plain answer is known to be plain JSON."""

    def __init__(self, *, dispatcher: Dispatcher[Any], attached: Attached, shared: Shared, **options: Any) -> None:
        super().__init__(dispatcher=dispatcher, **options)
        self._attached = attached
        self._shared = shared
        self._quick: QuickChecks = {}
        self.refusal: Callable[[types.InputRequest], types.ErrorData | None] | None = None
        """Says of what a server asks for why nobody answers that."""

    async def dispatch_input_request(
        self, ctx: ClientRequestContext, request: types.InputRequest
    ) -> types.InputResponse | types.ErrorData:
        """As `ClientSession.dispatch_input_request`, where `refusal` lets it."""
        refused = None if self.refusal is None else self.refusal(request)
        return await super().dispatch_input_request(ctx, request) if refused is None else refused

    async def __aenter__(self) -> Self:
        if self._notification_bindings:
            raise ValueError("a light session takes no notification bindings; use the SDK's client for them")
        # Without a task: the group is for what the session may start later, for example `listen`.
        self._task_group = anyio.create_task_group()
        await self._task_group.__aenter__()
        self._attached.attach(self, self._task_group)
        return self

    async def __aexit__(self, *raised: Any) -> bool | None:
        self._attached.close()
        return await super().__aexit__(*raised)

    async def call_tool(  # type: ignore[override]
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        read_timeout_seconds: float | None = None,
        progress_callback: ProgressFnT | None = None,
        *,
        input_responses: types.InputResponses | None = None,
        request_state: str | None = None,
        meta: types.RequestParamsMeta | None = None,
        allow_input_required: bool = False,
        allow_claimed: bool = False,
    ) -> types.CallToolResult | types.InputRequiredResult | types.Result:
        """As `ClientSession.call_tool`."""
        params = None
        if input_responses is None and request_state is None and read_timeout_seconds is None and self._can_be_short():
            params = plain_params(name, arguments, meta)
        if params is None:
            return await super().call_tool(
                name,
                arguments,
                read_timeout_seconds,
                progress_callback,
                input_responses=input_responses,
                request_state=request_state,
                meta=meta,
                allow_input_required=allow_input_required,
                allow_claimed=allow_claimed,
            )
        answer = await self._call(params, progress_callback)
        result = self._as_record(answer) if isinstance(answer, dict) else answer
        if isinstance(result, types.CallToolResult):
            if not result.is_error:
                await self.validate_tool_result(name, result)
        elif not allow_input_required:
            raise _input_required_unexpected("call_tool")
        return result

    async def call_plain(
        self, name: str, arguments: Any, progress: ProgressFnT | None, meta: dict[str, str]
    ) -> PlainAnswer | CallAnswer | None:
        """A plain call, as `call_tool` makes it with its result not made into a record where that is plain too.

        `meta`: under keys of ours (`mcp_bridge.control`) alone. None where the call is not plain: nothing was sent
        then.
        """
        if not self._can_be_short() or not "".join(meta.values()).isascii():
            return None
        params = plain_params(name, arguments, None)
        if params is None:
            return None
        params["_meta"] = meta.copy()
        answer = await self._call(params, progress)
        if not isinstance(answer, dict):
            if isinstance(answer, types.CallToolResult) and not answer.is_error:
                await self.validate_tool_result(name, answer)
        elif not (answer.get("isError") or self._is_quickly_valid(name, answer)):
            await self.validate_tool_result(name, self._as_record(answer))
        return answer

    def _as_record(self, answer: PlainAnswer) -> types.CallToolResult:
        return types.CallToolResult.model_validate(answer, by_name=False)

    def _is_quickly_valid(self, name: str, answer: PlainAnswer) -> bool:
        schema = self._tool_output_schemas.get(name, True)
        if schema is None:
            return True  # listed without one
        quick = self._quick.get(name)
        if quick is None or quick[0] is not schema or "structuredContent" not in answer:
            return False
        accepts = quick[1].of_plain if self._answers_are_plain else quick[1]
        return accepts(answer["structuredContent"])

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """As `ClientSession.validate_tool_result`, in a limited time."""
        if name not in self._tool_output_schemas:
            await self.list_tools()
        schema = self._tool_output_schemas.get(name)
        if schema is None:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        check = self._shared.check(name, schema)
        if check.accepts is not None:
            self._quick[name] = (schema, check.accepts)
        if problem := check.problem(result.structured_content):
            raise RuntimeError(problem)

    def _can_be_short(self) -> bool:
        """Whether the session is in the state in which a plain call is known to give the same either way."""
        return (
            self._session_read_timeout_seconds is None
            and self._negotiated_version is not None
            and self._call_tool_adapter is _CallToolResultAdapter
            and self._is_plain_server(_CALL)
        )

    def _is_plain_server(self, method: str) -> bool:  # noqa: ARG002 - for subclasses
        """Whether the server does nothing about such a request but answer it, as far as is known here."""
        return True

    async def _call(self, params: dict[str, Any], progress: ProgressFnT | None) -> PlainAnswer | CallAnswer:
        """Send a plain call. `params` is the caller's no more: name, arguments and, where given, `_meta`.

        A plain answer comes as it is on the wire: the SDK's record of it would say the same.
        """
        raise NotImplementedError


def plain_params(name: Any, arguments: Any, meta: Any) -> dict[str, Any] | None:
    """A call's parameters as the SDK would put them on the wire, or `None` where that takes more than a copy."""
    if type(name) is not str or type(arguments) is not dict or not (name.isascii() or is_plain(name)):
        return None
    try:
        params = {"name": name, "arguments": plain_copy(arguments)}
        if meta is not None:
            if type(meta) is not dict or not all(_is_handed_on(key, value) for key, value in meta.items()):
                return None
            params["_meta"] = plain_copy(meta)
    except NotPlain:
        return None
    return params


def _is_handed_on(key: Any, value: Any) -> bool:
    """Whether the SDK does nothing with an entry of `_meta`: it does with its own keys, and with those without one."""
    if value is None or type(key) is not str:
        return False
    return not key.startswith(_RESERVED) and key not in _PROGRESS_KEYS
