"""What our own transports say of a request that brought no answer. It travels in place of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ErrorData

from ..errors import Delivery

FaultKind = Literal["connection", "no_session", "status", "login", "too_large"]
"""`connection`: none, or lost. `no_session`: the server does not know the session. `status`: an HTTP status that is
an error. `too_large`: an answer above the limit."""


@dataclass(frozen=True)
class Fault:
    """Why there is no answer. A server cannot make one: it is no JSON."""

    kind: FaultKind
    delivery: Delivery
    message: str

    def as_error(self) -> ErrorData:
        return ErrorData(code=INTERNAL_ERROR, message=self.message, data=self)


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
