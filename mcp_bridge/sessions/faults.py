"""Which errors of the SDK's client are no answer of the server: the faults that our own transports put in place of an
answer, and what the client or the protocol makes of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorData,
)

from ..control import FAILURE_META
from ..errors import Delivery

FaultKind = Literal["connection", "no_session", "status", "login", "too_large", "unusable"]
"""`connection`: none, or lost. `no_session`: the server does not know the session. `status`: an HTTP status that is
an error. `too_large`: an answer above the limit. `unusable`: an answer that is no message of MCP."""

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
    """Why there is no answer. A server cannot make one: it is no JSON."""

    kind: FaultKind
    delivery: Delivery
    message: str

    def as_error(self) -> ErrorData:
        return ErrorData(code=INTERNAL_ERROR, message=self.message, data=self)


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


def too_large(size: str, limit: int) -> Fault:
    """`limit` in bytes; `size` in words, for example `20.0 MB`."""
    return Fault(
        "too_large",
        "answered",
        f"the answer has {size}, more than the {limit / 1e6:g} MB that are read (max_answer_mb of the server), and was "
        "not kept. What the tool did, it did; ask for less at a time.",
    )
