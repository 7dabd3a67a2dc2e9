"""What a tool returned, as text that the policy reads, with a cap that says so."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .errors import SourceError
from .records import ErrorKind, ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

EMPTY = "(empty result)"
EMPTY_ERROR = "The tool reported an error without a message."


def from_mcp(result: CallToolResult) -> ToolResult:
    """A server's result as a record. The text is not capped here; see `capped`."""
    text = text_of(result.content)
    structured = result.structured_content
    if not text and structured is not None:
        text = compact_json(structured)
    if result.is_error:
        return error(text or EMPTY_ERROR, "tool_error", structured=structured)
    return ToolResult(text=text or EMPTY, structured=structured)


def text_of(content: Iterable[ContentBlock]) -> str:
    """Text parts as they are, one under the other; everything else as a short line in brackets.

    The text of an embedded text resource follows its line: for many servers it is the answer.
    """
    return "\n".join(part for part in (_part_text(block) for block in content) if part)


def _part_text(block: ContentBlock) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource":
        resource = block.resource
        kind = resource.mime_type or "unknown type"
        if hasattr(resource, "text"):
            return f"[resource {resource.uri}, {kind}, {len(resource.text)} characters]\n{resource.text}"
        return f"[resource {resource.uri}, {kind}, {_decoded_size(resource.blob)} bytes]"
    if block.type == "resource_link":
        size = f", {block.size} bytes" if block.size is not None else ""
        return f"[link {block.uri}, {block.name}, {block.mime_type or 'unknown type'}{size}]"
    return f"[{block.type}, {block.mime_type}, {_decoded_size(block.data)} bytes]"


def _decoded_size(data: str) -> int:
    """Bytes behind a base64 string, without decoding it."""
    stripped = data.rstrip("=")
    return len(stripped) * 3 // 4


def error(text: str, kind: ErrorKind, *, structured: Any = None) -> ToolResult:
    """A mistake that the policy reads and can act on."""
    return ToolResult(text=text, structured=structured, is_error=True, error_kind=kind)


def compact_json(value: Any) -> str:
    """JSON without spaces, with letters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def capped(result: ToolResult, max_chars: int, *, duration_s: float) -> ToolResult:
    """`result` with at most `max_chars` characters of its text, then a line that says what was cut."""
    cut = max(0, len(result.text) - max_chars)
    changes: dict[str, Any] = {"duration_s": duration_s}
    if cut:
        changes["text"] = f"{result.text[:max_chars]}\n[{cut} more characters were cut; ask for less at a time]"
        changes["truncated_chars"] = result.truncated_chars + cut
    return result.model_copy(update=changes)


def positive(name: str, value: float) -> float:
    """`value` where it is a finite number above zero; `SourceError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise SourceError(f"{name} is {value!r}; it must be a number above 0")
    return value
