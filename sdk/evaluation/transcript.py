"""A rollout as people read it: who said what, which calls were made, what came back."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict

from mcp_bridge.records import ToolResult

from ..records import Message, Rollout
from .safe_text import cut, visible

_WIDTH = 100
_LABEL = 11


def transcript(rollout: Rollout, *, text_limit: int = 1200, piece_limit: int = 40) -> str:
    """The conversation as plain text, one piece a label. Long texts and long conversations are cut visibly.

    `text_limit`: characters of one piece; `piece_limit`: pieces, of which the middle ones are left out.
    """
    pieces = _pieces(rollout)
    left_out = len(pieces) - piece_limit
    lines = [_labelled(label, cut(text, text_limit)) for label, text in pieces]
    if left_out > 0:
        half = piece_limit // 2
        lines = [*lines[:half], f"… {left_out} pieces left out …", *lines[half + left_out :]]
    return "\n".join(lines)


def _pieces(rollout: Rollout) -> list[tuple[str, str]]:
    results: dict[str, list[ToolResult]] = defaultdict(list)
    for record in rollout.calls:
        results[record.call.id].append(record.result)
    messages = rollout.messages or rollout.task.opening()
    return [piece for message in messages for piece in _message_pieces(message, results)]


def _message_pieces(message: Message, results: dict[str, list[ToolResult]]) -> list[tuple[str, str]]:
    if message.role == "tool":
        waiting = results.get(message.tool_call_id or "", [])
        result = waiting.pop(0) if waiting else None
        return [("error" if result is not None and result.is_error else "result", message.content)]
    pieces = [("thinking", message.reasoning)] if message.reasoning else []
    if message.content.strip() or not (message.tool_calls or pieces):
        pieces.append((message.role, message.content))
    for call in message.tool_calls:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        pieces.append(("call", f"{call.name} {arguments}" + (f" (unreadable: {call.error})" if call.error else "")))
    return pieces


def _labelled(label: str, text: str) -> str:
    lines: list[str] = []
    for line in visible(text).split("\n"):
        lines += textwrap.wrap(
            line, _WIDTH - _LABEL, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False
        ) or [""]
    body = ("\n" + " " * _LABEL).join(line.rstrip() for line in lines)
    return f"{label + ':':<{_LABEL}}{body}".rstrip()
