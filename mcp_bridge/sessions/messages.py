"""Messages of MCP, read from lines of standard output and from events. What is not a message is told, and why."""

from __future__ import annotations

import codecs
import contextlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorData,
)
from mcp_types.methods import validate_server_result
from pydantic import ValidationError
from pydantic_core import from_json

from ..access.redaction import redacted
from ..control_tools import FAILURE_META
from ..errors import Delivery, retry_after_s
from ..safe_text import whole_characters

if TYPE_CHECKING:
    from httpx2 import Response

    from ..sources.specs import ServerSpec

logger = logging.getLogger(__name__)

# ---------------------------------------------------------------------------------------------------------------------
# Bytes into lines, with a limit on what one line may hold in memory.

CLOSED = (anyio.ClosedResourceError, anyio.BrokenResourceError)
"""What a stream of messages raises where nobody is at its other end any more."""

ToClient = MemoryObjectSendStream[SessionMessage | Exception]

_KEPT = 4096
_SHOWN = 200
_COUNTED_TIMES = 16
"""A line is read and counted up to so many times the limit; after that it is taken not to end."""

_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,\s*"(?:result|error)"')
_RESULT_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(?:result|error)"\s*:')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


@dataclass(frozen=True)
class LongLine:
    """A line above the limit: how long it is, and its two ends."""

    size: int
    """Bytes, without the line's end."""
    ended: bool
    """False where its end was not waited for."""
    head: bytes
    tail: bytes

    @property
    def told(self) -> str:
        """Its size in words."""
        return f"{'' if self.ended else 'more than '}{self.size / 1e6:.1f} MB"

    @property
    def can_be_skipped(self) -> bool:
        """Whether it costs one request alone."""
        return self.ended and self.answers() is not None

    def answers(self) -> int | None:
        """The id of the request that it answers; `None` where it is something else, or cannot be told from its ends.

        The id is read only where it must be a member of the outermost object: right at its begin or at its end.
        """
        found = _ID_FIRST.match(self.head)
        if found is None and self.ended and _RESULT_FIRST.match(self.head):
            found = _ID_LAST.search(self.tail)
        return int(found.group(1)) if found else None


class LineSplitter:
    """Feed it chunks. Holds at most `limit` bytes, and copies each byte a fixed number of times."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes | LongLine]:
        """The lines that end in `chunk`. Stop feeding after a `LongLine` that has not ended."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            yield self._take(ended=True)
        self._add(rest)
        if self._size > self._limit * _COUNTED_TIMES:
            yield self._take(ended=False)

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size <= self._limit:
            return
        whole = b"".join(self._parts)
        if self._head is None:
            self._head = whole[:_KEPT]
        self._parts = [whole[-_KEPT:]]

    def _take(self, *, ended: bool) -> bytes | LongLine:
        line: bytes | LongLine = b"".join(self._parts)
        if self._head is not None:
            assert isinstance(line, bytes)
            line = LongLine(self._size, ended, self._head, line)
        self._parts, self._size, self._head = [], 0, None
        return line


class EventSplitter:
    """The same for server-sent events. The data of one is a `LongLine` where it is above the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines = LineSplitter(limit)
        self._after_return = False
        self._kind = "message"
        self._data: bytearray | LongLine | None = None

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes | LongLine]]:
        """The events that end in `chunk`: kind and data. Stop feeding after a `LongLine` that has not ended."""
        if not chunk:
            return
        if self._after_return:
            chunk = chunk.removeprefix(b"\n")
        self._after_return = chunk.endswith(b"\r")
        for line in self._lines.feed(chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")):
            if isinstance(line, LongLine):
                if line.head.startswith(b"data:"):
                    self._add(replace(line, head=line.head[5:].removeprefix(b" ")))
                if not line.ended:
                    yield self._kind, line
            elif line:
                name, _, value = line.partition(b":")
                if name == b"event":
                    self._kind = value.decode(errors="replace").removeprefix(" ")
                elif name == b"data":
                    self._add(value.removeprefix(b" "))
            else:
                if self._data is not None:
                    yield self._kind, self._data if isinstance(self._data, LongLine) else bytes(self._data)
                self._kind, self._data = "message", None

    def _add(self, part: bytes | LongLine) -> None:
        before = self._data
        if before is None:
            self._data = part if isinstance(part, LongLine) else bytearray(part)
            return
        size = _size(before) + 1 + _size(part)
        if isinstance(before, bytearray) and not isinstance(part, LongLine) and size <= self._limit:
            before += b"\n" + part
        else:
            # Its last line may end in the midst of an object, so only its begin may tell what it answers.
            head = before.head if isinstance(before, LongLine) else bytes(before[:_KEPT])
            self._data = LongLine(size, True, head, b"")


def _size(data: bytes | bytearray | LongLine) -> int:
    return data.size if isinstance(data, LongLine) else len(data)


# ---------------------------------------------------------------------------------------------------------------------

FaultKind = Literal["connection", "no_session", "status", "login", "too_large", "unusable"]
"""`connection`: none, or lost. `no_session`: the server does not know the session. `status`: an HTTP status that is
an error. `too_large`: an answer above the limit. `unusable`: an answer that is not a message of MCP."""

_MADE_BY_THE_CLIENT = {
    CONNECTION_CLOSED: ("SSE stream ended", "SSE stream failed"),
    PARSE_ERROR: ("Failed to parse JSON response: ", "Failed to parse SSE message: "),
    INVALID_REQUEST: (
        "Unexpected content type: ",
        "Redirect to http",
        "server answered a request with 202 Accepted",
        "The server sent something else than the answer",
    ),
}
"""How the errors begin that the SDK's client makes itself, where no answer came or none that it can read. Only their
words tell them from errors that a server sent."""


@dataclass(frozen=True)
class Fault:
    """Why there is no answer. A server cannot make one: it is not JSON."""

    kind: FaultKind
    delivery: Delivery
    message: str
    retry_after_s: float | None = None
    """How long the server asks to wait."""

    def as_error(self) -> ErrorData:
        return ErrorData(code=INTERNAL_ERROR, message=self.message, data=self)

    def answer_to(self, request: int | str) -> SessionMessage:
        """The error in place of the answer to a request."""
        return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=request, error=self.as_error()))


def is_closed(error: BaseException) -> bool:
    """Whether the SDK says that the connection is gone. A server may send -32000 too, with a text of its own."""
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message == "Connection closed"


def is_made_by_the_client(error: MCPError) -> bool:
    """Whether the SDK's client made this error of an answer that is missing or that it cannot read."""
    return error.message.startswith(_MADE_BY_THE_CLIENT.get(error.code, ()))


def is_answer(error: MCPError) -> bool:
    """Whether a server sent this error as its answer to a call, and so it is what the tool said. No fault is asked of.

    Not where it refused the request as such, or one of our servers says that what is behind it failed.
    """
    if is_closed(error) or error.code in (HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION):
        return False
    if isinstance(error.data, dict) and error.data.get(FAILURE_META):
        return False
    return not is_made_by_the_client(error)


def fault_of(error: BaseException | None) -> Fault | None:
    """The fault that the SDK's client raised as an error, if it is one."""
    data = error.error.data if isinstance(error, MCPError) else None
    return data if isinstance(data, Fault) else None


def refused_with(response: Response, kind: FaultKind, delivery: Delivery, told: str = "") -> Fault:
    """`told`: what the body says, after a colon."""
    wait_s = retry_after_s(response.headers.get("retry-after"))
    asked = "" if wait_s is None else f", and asks to wait {wait_s:.10g} s (Retry-After)"
    return Fault(kind, delivery, f"it answered HTTP {response.status_code}{told}{asked}", wait_s)


def too_large(size: str, limit: int) -> Fault:
    """`limit` in bytes; `size` in words, for example `20.0 MB`."""
    return Fault(
        "too_large",
        "answered",
        f"the answer has {size}, more than the {limit / 1e6:g} MB that are read (max_answer_mb of the server), and was "
        "not kept. What the tool did, it did; ask for less at a time.",
    )


# ---------------------------------------------------------------------------------------------------------------------


def message_in(text: str | bytes) -> SessionMessage | None:
    """The message; None where there is none.

    Halves of surrogate pairs are not a reason to lose it: servers cut texts there. Nor is one tool that is nested
    too deeply a reason to lose a listing.
    """
    try:
        message = mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        try:
            whole = _without_halves(shallow(text if isinstance(text, str) else text.decode()))
            message = mcp_types.jsonrpc_message_adapter.validate_json(whole, by_name=False)
        except (ValueError, RecursionError):
            return None
    return complete(SessionMessage(message))


def _without_halves(text: str) -> str:
    return whole_characters(json.dumps(json.loads(text), ensure_ascii=False))


def complete(message: SessionMessage) -> SessionMessage:
    """The message, with what servers leave out of a result and the SDK's client does not: its kind, which a client has
    to take for "complete", and an empty `content`, which others write as null, or not at all beside structured
    content. Of a list of tools, each entry is one that the client can read."""
    if isinstance(message.message, mcp_types.JSONRPCResponse):
        result = message.message.result
        _make_readable(result)
        result.setdefault("resultType", "complete")
        if result.get("content") is None and ("content" in result or "structuredContent" in result):
            result["content"] = []
    return message


async def written(message: SessionMessage, to_client: ToClient) -> str | None:
    """A message as JSON. None where it cannot be written, which is the caller's mistake and costs no other call: the
    error that answers it goes `to_client`, where somebody waits for an answer."""
    try:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        text.encode()
        return text
    except ValueError:
        if isinstance(request := message.message, mcp_types.JSONRPCRequest):
            error = mcp_types.ErrorData(code=mcp_types.INVALID_PARAMS, message=unwritable(request.method))
            with contextlib.suppress(*CLOSED):
                await to_client.send(SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error)))
        return None


def unwritable(method: str) -> str:
    return (
        f"the parameters of {method} cannot be written as JSON (half of a surrogate pair, too many levels, or a value "
        "that is not JSON); nothing was sent"
    )


def batch(data: bytes) -> list[bytes]:
    """The messages of a batch, which revision 2025-03-26 allows; what is none as it is. Both without the mark of the
    byte order, which some servers put before their first message."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if data.lstrip()[:1] == b"[":
        with contextlib.suppress(ValueError, RecursionError):
            return [json.dumps(one).encode() for one in json.loads(data)]
    return [data]


def _in_place_of(line: LongLine, fault: Fault) -> Iterator[SessionMessage]:
    answers = line.answers()
    if answers is not None:
        yield fault.answer_to(answers)


def _is_sound(message: mcp_types.JSONRPCMessage) -> bool:
    """Whether it is not a notification that the SDK's client would log with a traceback each time: it lacks what its
    method wants. One of a method that is not known is sound: the client passes over it."""
    if not isinstance(message, mcp_types.JSONRPCNotification):
        return True
    told = {"method": message.method, "params": message.params}
    try:
        mcp_types.server_notification_adapter.validate_python(told, by_name=False)
    except ValidationError as error:
        places = [one["loc"] for one in error.errors(include_url=False, include_context=False, include_input=False)]
        of_another_method = {kind for kind, *place in places if place == ["method"]}
        return all(place[0] in of_another_method for place in places)
    return True


class Incoming:
    """What one server sends in all its sessions, as messages of MCP.

    Where its tools print, each call brings something that is none. So the first is a warning, and the others are for
    who debugs.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.limit = spec.options.max_answer_bytes
        self._is_warned = False

    def messages(self, data: bytes | LongLine, told: str) -> Iterator[SessionMessage]:
        """The messages; mostly one. Where there is none, or it is above the limit, an error answers the request that
        the data answers, which would otherwise wait for its time limit. `told`: how it came: "sent an event"."""
        if isinstance(data, LongLine):
            yield from _in_place_of(data, too_large(data.told, self.limit))
            return
        for part in batch(data):
            # Not strict: one broken letter in a text is not a reason to lose an answer.
            text = part.decode(errors="replace")
            message = message_in(text)
            if message is not None and _is_sound(message.message):
                self._tell_of_stray_error(message)
                yield message
                continue
            self._tell(text, told)
            if message is not None:
                continue  # a notification answers nothing
            line = LongLine(len(part), ended=True, head=part[:_KEPT], tail=part[-_KEPT:])
            yield from _in_place_of(line, Fault("unusable", "answered", "the answer is not a message of MCP"))

    def _tell_of_stray_error(self, message: SessionMessage) -> None:
        error = message.message
        if isinstance(error, mcp_types.JSONRPCError) and error.id is None:
            text = redacted(error.error.message, self.spec.secrets)[:_SHOWN]
            logger.warning("%s sent an error without saying which request it answers: %r", self.spec.label, text)

    def _tell(self, text: str, told: str) -> None:
        level = logging.DEBUG if self._is_warned else logging.WARNING
        more = "" if self._is_warned else ". Others of this server are logged at level DEBUG"
        self._is_warned = True
        shown = redacted(text, self.spec.secrets)[:_SHOWN]  # cut last: a part of a secret is not found
        logger.log(level, "%s %s that is not an MCP message: %r%s", self.spec.label, told, shown, more)


# ---------------------------------------------------------------------------------------------------------------------
# Listings of tools made readable: the SDK's client refuses a whole list for one entry that is not as MCP wants it.

UNUSABLE_META = "toolbake/unusable"
"""Key in the `_meta` of a tool that was listed in a form that cannot be used; the value says why."""

_NOTHING_KNOWN = {"type": "object"}
_NEWEST, _BEFORE = "2026-07-28", "2025-11-25"
"""Revisions with other forms of a tool; those before them have that of the earlier one."""
_DEEPEST = 190
"""Levels of a message; the SDK's client reads 200."""
_TOO_DEEP = '"toolbake/too_deep"'
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def shallow(text: str) -> str:
    """A listing of tools, as JSON, with a sign in the place of each value that is nested too deeply to be read. Any
    other text as it is. Without recursion."""
    parts, level, kept = [], 0, 0
    for found in _STRING_OR_BRACKET.finditer(text) if '"tools"' in text else ():
        if found[0] in "[{":
            level += 1
            if level == _DEEPEST + 1:
                parts += [text[kept : found.start()], _TOO_DEEP]
        elif found[0] in "]}":
            if level == _DEEPEST + 1:
                kept = found.end()
            level -= 1
    return "".join([*parts, text[kept:]])


def readable(body: bytes) -> bytes:
    """A body of JSON as `message_in` would read it, for the SDK's client; itself where that reads it, too."""
    try:
        from_json(body)
    except ValueError:
        text = shallow(body.decode(errors="replace"))
        with contextlib.suppress(ValueError, RecursionError):
            text = _without_halves(text)
        return text.encode(errors="replace")
    return body


def _make_readable(result: dict[str, Any]) -> None:
    tools = result.get("tools")
    if isinstance(tools, list):
        any_output = "resultType" in result  # of the newest revision; in those before it, results are objects
        readable = [_readable(tool, any_output=any_output) for tool in tools]
        result["tools"] = [tool for tool in readable if tool is not None]


def _readable(tool: Any, *, any_output: bool) -> Any:
    """The entry itself where nothing is wrong with it; None where it does not even have a name."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        logger.warning("a tool is left out, because its server lists it without a name: %.200s", json.dumps(tool))
        return None
    if _TOO_DEEP in json.dumps(tool):
        return _unusable(
            tool, f"its server lists it with a schema of more than {_DEEPEST} levels, which cannot be read"
        )
    for key in ("inputSchema", "outputSchema"):
        if isinstance(tool.get(key), dict) and tool[key].get("properties") == []:
            # PHP writes an object without keys so.
            tool = {**tool, key: {**tool[key], "properties": {}}}
    schema = tool.get("inputSchema")
    if schema is None or (isinstance(schema, dict) and schema.get("type") is None):
        # Arguments are always an object, whether a server says so or not.
        tool = {**tool, "inputSchema": {**(schema or {}), **_NOTHING_KNOWN}}
    elif not isinstance(schema, dict):
        return _unusable(tool, f"its input schema is {schema!r:.80}, and must be an object")
    elif schema["type"] != "object":
        return _unusable(tool, f'its input schema has the type {schema["type"]!r:.80}, and must have "object"')
    output = tool.get("outputSchema")
    if isinstance(output, dict) and output.get("type") is None and not any_output:
        tool = {**tool, "outputSchema": {**output, **_NOTHING_KNOWN}}
    elif output is not None and (not isinstance(output, dict) or (output.get("type") != "object" and not any_output)):
        return _without_output(tool, 'must have the type "object"', any_output=any_output)
    problem = _wrong_form(tool, any_output=any_output)
    if problem is not None and "outputSchema" in tool and problem.startswith("outputSchema."):
        return _without_output(tool, f"is not valid ({problem})", any_output=any_output)
    if problem is not None:
        return _unusable(tool, f"its server lists it in a form that MCP does not have: {problem}")
    return tool


def _without_output(tool: dict[str, Any], why: str, *, any_output: bool) -> Any:
    logger.warning(
        "tool %r: its output schema is %.80r, and %s; its results are not checked",
        tool["name"],
        tool["outputSchema"],
        why,
    )
    return _readable({key: value for key, value in tool.items() if key != "outputSchema"}, any_output=any_output)


def _wrong_form(tool: dict[str, Any], *, any_output: bool) -> str | None:
    """What the SDK's client would refuse the whole list for."""
    listed = {
        "tools": [tool],
        **({"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if any_output else {}),
    }
    try:
        mcp_types.Tool.model_validate(tool, by_name=False)
        validate_server_result("tools/list", _NEWEST if any_output else _BEFORE, listed)
    except ValidationError as error:
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc'])).removeprefix('tools.0.')}: {problem['msg']}"
    return None


def _unusable(tool: dict[str, Any], reason: str) -> dict[str, Any]:
    return {"name": tool["name"], "inputSchema": _NOTHING_KNOWN, "_meta": {UNUSABLE_META: reason}}
