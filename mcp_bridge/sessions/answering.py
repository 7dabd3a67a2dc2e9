"""Answers what a server asks in the middle of a call, through the user's handlers; refuses the rest in words."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import mcp_types as types
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError

from ..access.redaction import redacted
from ..errors import ToolFailure, kind_of
from ..safe_text import with_texts
from .handlers import Elicitation, Handlers, LogEntry, LogListener, Progress, Sampling, log_listener, progress_listener
from .protocol_version import is_handshake

# ---------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_LONGEST_QUESTION = 300
_REFUSED = "This was refused: nobody answers servers here."


class Answers:
    """The answers of one session."""

    def __init__(self, handlers: Handlers, *, label: str, secrets: Callable[[], tuple[str, ...]]) -> None:
        """`secrets`: asked each time, because tokens are learned while a session goes on."""
        self._handlers = handlers
        self._label = label
        self._secrets = secrets
        self._failures: list[ToolFailure] = []
        """Of handlers that no single call is known to have caused."""
        self._heard: deque[tuple[str, Any, Progress | LogEntry, list[ToolFailure]]] = deque()
        self._telling = anyio.Lock()
        self._hearing: list[LogListener] = []

    def client_options(self) -> dict[str, Any]:
        """What the SDK's `Client` needs to tell the server of the handlers that there are."""
        handlers = self._handlers
        return {
            "logging_callback": self._log,
            "elicitation_callback": self._elicit if handlers.elicitation is not None else None,
            "sampling_callback": self._sample if handlers.sampling is not None else None,
            "list_roots_callback": self._roots if handlers.roots is not None else None,
            "log_level": "debug" if handlers.log is not None else None,
        }

    def capabilities(self) -> types.ClientCapabilities:
        """The same for a handshake of our own."""
        handlers = self._handlers
        return types.ClientCapabilities(
            elicitation=types.ElicitationCapability(
                form=types.FormElicitationCapability(), url=types.UrlElicitationCapability()
            )
            if handlers.elicitation is not None
            else None,
            sampling=types.SamplingCapability() if handlers.sampling is not None else None,
            roots=types.RootsCapability(list_changed=False) if handlers.roots is not None else None,
        )

    async def ask_for_log(self, client: Client) -> None:
        """Choose the log's level where the session began with a handshake; other sessions say it in each request."""
        if self._handlers.log is None or client.server_capabilities.logging is None:
            return
        if is_handshake(client.protocol_version):
            level = types.SetLevelRequest(params=types.SetLevelRequestParams(level="debug"))
            await client.session.send_request(level, types.EmptyResult)

    def install(self, client: Client) -> None:
        """Refuse in words, in place of the SDK, what has no handler. `client` is entered."""
        session = client.session
        dispatch = session.dispatch_input_request

        async def answer(
            ctx: ClientRequestContext, request: types.InputRequest
        ) -> types.InputResponse | types.ErrorData:
            refusal = self._refusal(request)
            return await dispatch(ctx, request) if refusal is None else refusal

        session.dispatch_input_request = answer  # type: ignore[method-assign]

    def progress_for(self, tool: str, call_id: str | None, failures: list[ToolFailure]) -> Callable[..., Any] | None:
        """A callback for the SDK, or None where nobody wants to know: then the server need not report. What a handler
        raises is added to `failures`."""
        handler, listener = self._handlers.progress, progress_listener.get()
        if handler is None and listener is None and not logger.isEnabledFor(logging.DEBUG):
            return None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            told = Progress(self._label, tool, call_id, progress, total, message)
            cleaned = told if message is None else replace(told, message=redacted(message, self._secrets()))
            logger.debug("%s: %s is at %s of %s %s", self._label, tool, progress, total, cleaned.message or "")
            hearing = [(handler, told), (listener, cleaned)]
            self._heard += [("progress", one, said, failures) for one, said in hearing if one is not None]
            await self.tell()

        return report

    @contextlib.contextmanager
    def heard_by_caller(self) -> Iterator[None]:
        """While a call is under way, its `log_listener` hears the log."""
        listener = log_listener.get()
        if listener is None:
            yield
            return
        self._hearing.append(listener)
        try:
            yield
        finally:
            self._hearing.remove(listener)

    async def tell(self) -> None:
        """Let the handlers hear all that came so far, in its order."""
        if not self._heard and not self._telling.locked():
            return
        async with self._telling:
            while self._heard:
                name, handler, told, failures = self._heard.popleft()
                await self._run(name, handler, told, failures=failures)

    def raise_failure(self, of_the_call: list[ToolFailure]) -> None:
        """Raises `ToolFailure` where a handler has raised in a call, or, since the last time, one of no known call."""
        for failures in (of_the_call, self._failures):
            if failures:
                failure = failures[-1]
                failures.clear()
                raise failure

    def _refusal(self, request: types.InputRequest) -> types.ErrorData | None:
        handlers = self._handlers
        if isinstance(request, types.ElicitRequest) and handlers.elicitation is None:
            asked, question = "The tool asked the user", request.params.message
        elif isinstance(request, types.CreateMessageRequest) and handlers.sampling is None:
            asked = "The tool asked a language model"
            question = _content_text(request.params.messages[-1].content) if request.params.messages else ""
        elif isinstance(request, types.ListRootsRequest) and handlers.roots is None:
            asked, question = "The tool asked which folders it may work in", None
        else:
            return None
        if question is not None:
            # Cut last: a part of a secret is not found.
            asked += f": {redacted(question, self._secrets())[:_LONGEST_QUESTION]!r}"
        logger.info("%s was refused an answer: %s.", self._label, asked)
        return types.ErrorData(code=types.INVALID_REQUEST, message=f"{asked}. {_REFUSED}")

    async def _elicit(
        self, _context: ClientRequestContext, parameters: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        if form := isinstance(parameters, types.ElicitRequestFormParams):
            question = Elicitation(self._label, parameters.message, schema=parameters.requested_schema)
        else:
            question = Elicitation(self._label, parameters.message, url=parameters.url)

        def result(value: Any) -> types.ElicitResult:
            if value is None:
                return types.ElicitResult(action="decline")
            if not isinstance(value, Mapping):
                raise TypeError(f"it returned {kind_of(value)}; return a dict of the form's values, or None")
            return types.ElicitResult(action="accept", content=dict(value) if form else None)

        return await self._answer("elicitation", self._handlers.elicitation, result, question)

    async def _sample(
        self, _context: ClientRequestContext, parameters: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        question = Sampling(
            server=self._label,
            messages=[one.model_dump(by_alias=True, mode="json", exclude_none=True) for one in parameters.messages],
            max_tokens=parameters.max_tokens,
            system_prompt=parameters.system_prompt,
            temperature=parameters.temperature,
            stop_sequences=tuple(parameters.stop_sequences or ()),
        )

        def result(value: Any) -> types.CreateMessageResult:
            if not isinstance(value, str):
                raise TypeError(f"it returned {kind_of(value)}; return the text that the model says")
            return types.CreateMessageResult(
                role="assistant", content=types.TextContent(text=value), model="handler", stop_reason="endTurn"
            )

        return await self._answer("sampling", self._handlers.sampling, result, question)

    async def _roots(self, _context: ClientRequestContext) -> types.ListRootsResult | types.ErrorData:
        given = self._handlers.roots

        def result(value: Any) -> types.ListRootsResult:
            return types.ListRootsResult(roots=[_root(one) for one in value])

        return await self._answer("roots", given if callable(given) else lambda: given, result)

    async def _log(self, entry: types.LoggingMessageNotificationParams) -> None:
        shown = redacted(str(entry.data), self._secrets())
        logger.debug("%s logs (%s): %s", self._label, entry.level, shown)
        told = LogEntry(self._label, entry.level, entry.data, entry.logger)
        if self._handlers.log is not None:
            self._heard.append(("log", self._handlers.log, told, self._failures))
        if len({one.caller for one in self._hearing}) == 1:
            secrets = self._secrets()
            cleaned = replace(told, data=with_texts(entry.data, lambda text: redacted(text, secrets)))
            self._heard.append(("log", self._hearing[-1].hear, cleaned, self._failures))
        await self.tell()

    async def _answer(
        self, name: str, handler: Any, result: Callable[[Any], _Result], *question: Any
    ) -> _Result | types.ErrorData:
        """What the handler gives, as `result` makes it; for the server an internal error where it fails."""
        value, failed = await self._run(name, handler, *question, then=result, failures=self._failures)
        if failed:
            return types.ErrorData(code=types.INTERNAL_ERROR, message="The client failed to answer.")
        answer: _Result = value
        return answer

    async def _run(
        self,
        name: str,
        handler: Any,
        *question: Any,
        failures: list[ToolFailure],
        then: Callable[[Any], Any] = lambda value: value,
    ) -> tuple[Any, bool]:
        try:
            if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
                value = await handler(*question)
            else:
                value = await anyio.to_thread.run_sync(handler, *question, abandon_on_cancel=True)
                if inspect.isawaitable(value):
                    value = await value
            return then(value), False
        except Exception as error:
            failure = ToolFailure(
                f"handlers.{name} failed on what {self._label} sent: {type(error).__name__}: {error}",
                delivery="answered",
            )
            failure.__cause__ = error
            failures.append(failure)
            return None, True


def is_refusal(error: MCPError) -> bool:
    """Whether a call failed because what its tool asked for was refused, by us or by the server itself beforehand."""
    if error.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY:
        return True
    return error.code == types.INVALID_REQUEST and error.message.endswith(_REFUSED)


def _content_text(content: Any) -> str:
    blocks = content if isinstance(content, list) else [content]
    return " ".join(str(getattr(block, "text", f"[{block.type}]")) for block in blocks)


def _root(given: Any) -> types.Root:
    text = str(given)
    uri = text if "://" in text else Path(text).expanduser().resolve().as_uri()
    return types.Root(uri=uri, name=Path(text).name or None)  # type: ignore[arg-type]
