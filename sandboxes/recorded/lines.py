"""The lines of a cassette: one JSON object each, told apart by `kind`.

{"kind": "header", "format": "toolbake cassette", "version": 1, "tools": [...], ...}
{"kind": "session", "session": "3f9c01ab", "setup": {}, "began_at": "2026-01-05T10:00:00+00:00"}
{"kind": "call", "session": "3f9c01ab", "order": 0, "tool": "read_file", "arguments": {...}, "result": {...}, ...}
"""

from __future__ import annotations

import copy
import hashlib
import json
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mcp_bridge.records import ErrorKind, Tool, ToolResult

FORMAT: Literal["toolbake cassette"] = "toolbake cassette"
VERSION: Literal[1] = 1


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def as_text(self) -> str:
        """The line without its end."""
        always = {name: getattr(self, name) for name in ("kind", "format", "version") if hasattr(self, name)}
        found = {**always, **self.model_dump(exclude_defaults=True)}
        text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair, which some tools return and UTF-8 cannot hold
            return json.dumps(found, separators=(",", ":"))
        return text


class Header(_Line):
    """The first line: what was recorded. Again where more tools were offered than before: the last one counts."""

    kind: Literal["header"] = "header"
    format: Literal["toolbake cassette"] = FORMAT
    version: Literal[1] = VERSION
    recorded_at: str
    """When the cassette was begun: ISO 8601, with a zone."""
    source: str
    """The command, URL or object that was recorded, without secrets."""
    server: dict[str, Any] = Field(default_factory=dict)
    """`name` and `version`, where a server told them."""
    tools: list[Tool]

    @field_validator("recorded_at")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        datetime.fromisoformat(value)
        return value

    @field_validator("tools")
    @classmethod
    def _have_names_of_their_own(cls, value: list[Tool]) -> list[Tool]:
        names = [tool.name for tool in value]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"there are two tools {twice!r}")
        return value


class SessionLine(_Line):
    """A session, or a world, has begun. Its calls name it."""

    kind: Literal["session"] = "session"
    session: str
    setup: dict[str, Any] = Field(default_factory=dict)
    began_at: str = ""


class RecordedResult(BaseModel):
    """What a call returned: see `mcp_bridge.ToolResult`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    structured: Any = None
    is_error: bool = False
    error_kind: ErrorKind | None = None
    truncated_chars: int = 0

    @classmethod
    def of(cls, result: ToolResult) -> RecordedResult:
        return cls.model_validate({name: getattr(result, name) for name in cls.model_fields})

    def as_tool_result(self, notes: tuple[str, ...] = ()) -> ToolResult:
        # A copy: what a caller does to a result must not change the recording.
        structured = copy.deepcopy(self.structured)
        return ToolResult(
            text=self.text,
            structured=structured,
            is_error=self.is_error,
            error_kind=self.error_kind,
            truncated_chars=self.truncated_chars,
            notes=notes,
        )


class RecordedFailure(BaseModel):
    """Why a call has no result: the infrastructure broke, so whether it took effect is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: str
    text: str


class CallLine(_Line):
    """One call with its result or its failure."""

    kind: Literal["call"] = "call"
    session: str
    order: int = Field(ge=0)
    """The place among the session's calls by when they were made, from 0. Lines stand in the order of the answers."""
    tool: str
    arguments: dict[str, Any]
    result: RecordedResult | None = None
    failure: RecordedFailure | None = None
    duration_s: float = 0.0
    simulated: bool = False
    """A model made this answer up; no real tool gave it."""
    place: str | None = None
    """Of a simulated answer: the place in the twin at which it was given."""


_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def canonical(value: Any) -> str:
    """One text for equal JSON: keys sorted, and `2.0` written as `2`, which models do not tell apart."""
    return _ENCODER.encode(_plain(value))


def digest(*parts: str) -> str:
    """A short name for a sequence of texts."""
    hashed = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
