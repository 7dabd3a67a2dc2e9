"""From a line of standard output, or an event, to a message of MCP."""

from __future__ import annotations

import json
import re

import mcp_types
from mcp.shared.message import SessionMessage

from .faults import Fault
from .lines import LongLine
from .listed_tools import make_readable

_ENDS = 4096
_HALVES = re.compile("[\ud800-\udfff]")


def message_in(text: str) -> SessionMessage | None:
    """The message; None where there is none.

    Halves of surrogate pairs are no reason to lose one: servers cut texts between them.
    """
    try:
        message = mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        try:
            whole = _HALVES.sub("\ufffd", json.dumps(json.loads(text), ensure_ascii=False))
            message = mcp_types.jsonrpc_message_adapter.validate_json(whole, by_name=False)
        except (ValueError, RecursionError):
            return None
    if isinstance(message, mcp_types.JSONRPCResponse):
        make_readable(message.result)
    return SessionMessage(message)


def written(message: SessionMessage) -> str | SessionMessage | None:
    """A message as JSON. Where it cannot be written, the error that answers it, which is the caller's mistake and costs
    no other call; None where nobody waits for an answer."""
    try:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        text.encode()
        return text
    except ValueError:
        if not isinstance(message.message, mcp_types.JSONRPCRequest):
            return None
        error = mcp_types.ErrorData(code=mcp_types.INVALID_PARAMS, message=unwritable(message.message.method))
        return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=message.message.id, error=error))


def unwritable(method: str) -> str:
    return (
        f"the parameters of {method} cannot be written as JSON (half of a surrogate pair, too many levels, or no JSON "
        "value); nothing was sent"
    )


def instead_of(line: bytes) -> SessionMessage | None:
    """An error for the request that an unreadable line answers, which would otherwise wait for its time limit."""
    answers = LongLine(len(line), ended=True, head=line[:_ENDS], tail=line[-_ENDS:]).answers()
    if answers is None:
        return None
    fault = Fault("unusable", "answered", "the answer is no message of MCP")
    return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=answers, error=fault.as_error()))
