"""Tools, calls and results as plain records: what the bridge hands to everything above it."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, Field


class ToolAnnotations(BaseModel, frozen=True):
    """What a server says about a tool's behaviour. `None` means that it says nothing.

    Names follow MCP's `ToolAnnotations` without the `_hint` suffix.
    """

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


MADE_UP = "toolbake/made_up"
"""Key in a tool's `meta` where a simulation cannot know what it does. Its results are not answers to ask for."""


class Tool(BaseModel, frozen=True):
    """One tool as the policy sees it.

    Example: `Tool(name="get_order", description="Read an order.",
    input_schema={"type": "object", "properties": {"order_id": {"type": "string"}}})`
    """

    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations = ToolAnnotations()
    source: str = ""
    """Which server or function the tool comes from; for error messages and traces."""
    name_at_source: str = ""
    """What the source calls it, where that is another name; see `mcp_bridge.guard`."""
    title: str = ""
    """Its name for people; like `meta`, for clients of `publish`, and no part of what the policy is shown."""
    meta: dict[str, Any] = Field(default_factory=dict)
    """What an MCP server says of it in `_meta`. Under `MADE_UP`: why its results are made up."""
    icons: list[dict[str, Any]] = Field(default_factory=list)
    """Its icons, as MCP has them; for people, too."""

    def as_openai(self) -> dict[str, Any]:
        """The tool in the form of OpenAI's `tools` parameter, which chat templates also read."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ServerInfo(BaseModel, frozen=True):
    """A connected MCP server, as it says of itself."""

    label: str
    """What errors and logs call it."""
    protocol: str
    """The revision of MCP that is spoken with it, for example `2025-11-25`."""
    name: str = ""
    version: str = ""


class WorldKind(BaseModel, frozen=True):
    """What each rollout gets of one source."""

    source: str
    name: str = ""
    """What options and setups call the source."""
    kind: Literal["copy", "control", "process", "session", "shared", "unknown"]
    """A copy of a sandbox, a world in a server with control tools, a process, a session, or the same for all."""
    is_fresh: bool | None = None
    """Whether nothing of other rollouts is there when one begins; None where nobody can tell."""
    shares: tuple[str, ...] = ()
    """The files that all are given, or were seen to use."""
    has_folder: bool = False
    """Whether its process has a folder of its own."""
    can_setup: bool = False
    """Whether a task's `setup` says how it begins."""
    has_state: bool = False
    """Whether verifiers see its state."""
    tools: tuple[str, ...] = ()
    """What the policy may call there, by the names that it is shown."""
    live_tools: tuple[str, ...] = ()
    """Those of them that reach something outside: their calls are real."""
    may_share: bool = False
    """Whether its options allow state that rollouts share (`allow_shared_state`)."""


class LeftOut(BaseModel, frozen=True):
    """A tool that a source has and the policy is not shown."""

    tool: str
    """Its name at the source."""
    source: str
    reason: str


ErrorKind = Literal["unknown_tool", "invalid_arguments", "tool_error"]
"""The policy's own mistakes, which come back to it as text it can act on.

Failures of servers and networks are not among them: they are raised (see `mcp_bridge.errors`)."""


class ToolResult(BaseModel, frozen=True):
    """What one call returned. `text` is what the policy reads; it is never evaluated."""

    text: str
    structured: Any = None
    is_error: bool = False
    error_kind: ErrorKind | None = None
    truncated_chars: int = 0
    """How many characters the cap cut from `text`; the text itself says so at its end."""
    duration_s: float = 0.0
    """How long the call took. A source that leaves it at 0 has it filled in by the toolset; what one says itself is
    believed, because a delay may only be simulated."""
    notes: tuple[str, ...] = ()
    """How the answer came about, where no tool gave it as it stands: a twin's nearest one, or one with a fault in it
    that was put there on purpose. For people and verifiers; the policy never reads it."""
    content: tuple[dict[str, Any], ...] | None = Field(default=None, exclude=True, repr=False)
    """The parts as an MCP server gave them, images and sound included, for clients of `publish`; None where `text` is
    all of it. Not written into traces. Whoever changes `text` sets it to None."""
    meta: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    """The server's `_meta` of the result, as `content`."""


EMPTY = "(empty result)"
EMPTY_ERROR = "The tool reported an error without a message."


def error_result(text: str, kind: ErrorKind, *, structured: Any = None) -> ToolResult:
    """A mistake that the policy reads and can act on."""
    return ToolResult(text=text, structured=structured, is_error=True, error_kind=kind)


def compact_json(value: Any) -> str:
    """JSON without spaces, with letters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def capped(result: ToolResult, max_chars: int, *, duration_s: float) -> ToolResult:
    """`result` with at most `max_chars` characters of its text, then a line that says what was cut."""
    cut = len(result.text) - max_chars
    if cut <= 0:
        return result.model_copy(update={"duration_s": duration_s})
    text = f"{result.text[:max_chars]}\n[{cut} more characters were cut; ask for less at a time]"
    changes = {"text": text, "truncated_chars": result.truncated_chars + cut, "duration_s": duration_s, "content": None}
    return type(result)(**{**result.__dict__, **changes})
