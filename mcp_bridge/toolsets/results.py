"""Results that the bridge makes itself, and the cap on the text of all. Of a server's results: `sessions.listing`."""

from __future__ import annotations

import json
import math
from typing import Any

from ..errors import SourceError
from ..records import ErrorKind, ToolResult

EMPTY = "(empty result)"
EMPTY_ERROR = "The tool reported an error without a message."


def error(text: str, kind: ErrorKind, *, structured: Any = None) -> ToolResult:
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


def positive(name: str, value: float) -> float:
    """`value` where it is a finite number above zero; `SourceError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise SourceError(f"{name} is {value!r}; it must be a number above 0")
    return value
