"""A request to a simulated API, what it is answered with, and what a rule sees of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..inference.model import Plan
from ..values.making import NOTHING

if TYPE_CHECKING:
    from mcp_bridge.openapi.document import Operation


@dataclass(frozen=True)
class Request:
    """One request. `path`: the path's values in order, by the names that the operation gives them."""

    plan: Plan
    path: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)
    body: Any = NOTHING

    @property
    def sent(self) -> dict[str, Any]:
        """The row that the body holds, or the query of an operation that changes rows and has no body."""
        if self.plan.operation.body is None and self.plan.role in {"create", "update", "replace"}:
            return dict(self.query)
        found = self.body
        for name in self.plan.body_path:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Reply:
    """An answer. `body`: JSON, or `NOTHING`. `text`: a body that is no JSON, with its media type `kind`."""

    status: int
    body: Any = NOTHING
    text: str = ""
    kind: str = "application/json"


class Problem(Exception):
    """What the API refuses. `statuses`: the fitting ones, the best first; the document's choice decides."""

    def __init__(self, statuses: tuple[int, ...], message: str) -> None:
        super().__init__(message)
        self.statuses = statuses


MISSING = (404, 410)
INVALID = (422, 400)
TAKEN = (409, 422, 400)
IN_USE = (409, 422, 400, 403)


def status_for(operation: Operation, wanted: tuple[int, ...]) -> tuple[int, bool]:
    """The status to refuse with, and whether the document has it for the operation."""
    declared = operation.responses
    for status in wanted:
        if str(status) in declared:
            return status, True
    for status in wanted:
        if f"{status // 100}XX" in declared or f"{status // 100}xx" in declared:
            return status, True
    return wanted[0], "default" in declared


def status_of(written: str) -> int:
    """The status of success that a document writes as `200`, `2XX` or `default`."""
    return int(written) if written.isdigit() else 200
