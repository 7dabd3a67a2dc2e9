"""One rollout as people read it: its conversation, how it ended, and the verdict."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from typing import TYPE_CHECKING

from mcp_bridge.safe_text import cut, fence, one_line, plural, visible

if TYPE_CHECKING:
    from mcp_bridge.records import ToolResult

    from .records import Message, Rollout, UserTurn, Verdict

_WIDTH = 100
_LABEL = 11
_TEXT_LIMIT = 1200


def transcript(rollout: Rollout, *, piece_limit: int = 40) -> str:
    """The conversation as plain text, one piece a label. Long texts are cut visibly; of more than `piece_limit` pieces
    the middle ones are left out."""
    results: dict[str, list[ToolResult]] = defaultdict(list)
    for record in rollout.calls:
        results[record.call.id].append(record.result)
    pieces: list[tuple[str, str]] = []
    turns = [turn for turn in rollout.user_turns if turn.said]
    answered = False
    for message in rollout.messages or rollout.task.opening():
        # Conversations of an agent of one's own come one after the other, and not as they were led.
        if answered and turns and (message.role, message.content) == ("user", turns[0].said):
            pieces += _user_pieces(turns.pop(0))
        pieces += _message_pieces(message, results)
        answered = answered or message.role == "assistant"
    last = next((one.content for one in reversed(rollout.messages) if one.role == "assistant"), "")
    if rollout.answer.strip() and rollout.answer.strip() != last.strip():
        pieces.append(("answer", rollout.answer))  # an agent's own, or what a tool gave: it is what counts
    left_out = len(pieces) - piece_limit
    lines = [_labelled(label, cut(text, _TEXT_LIMIT)) for label, text in pieces]
    if left_out > 0:
        half = piece_limit // 2
        lines = [*lines[:half], f"… {left_out} pieces left out …", *lines[half + left_out :]]
    return "\n".join(lines)


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


def _user_pieces(turn: UserTurn) -> list[tuple[str, str]]:
    """The calls that a user made before it spoke."""
    return [
        (f"user {kind}", text)
        for record in turn.calls
        for kind, text in (
            ("call", f"{record.call.name} {json.dumps(record.call.arguments, ensure_ascii=False)}"),
            ("saw", record.result.text),
        )
    ]


def _labelled(label: str, text: str) -> str:
    lines: list[str] = []
    for line in visible(text).split("\n"):
        lines += textwrap.wrap(
            line, _WIDTH - _LABEL, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False
        ) or [""]
    body = ("\n" + " " * _LABEL).join(line.rstrip() for line in lines)
    return f"{label + ':':<{_LABEL}}{body}".rstrip()


def rollout_text(rollout: Rollout) -> str:
    """The conversation, how it ended, and the verdict."""
    turns = f"{rollout.turns} {plural(rollout.turns, 'turn')}"
    calls = f"{len(rollout.calls)} {plural(len(rollout.calls), 'call')}"
    lines = [transcript(rollout), ""]
    if rollout.tool_prompt != "full":
        lines.append(f"tools in the prompt: {rollout.tool_prompt_name}")
    lines.append(f"ended: {rollout.stop_reason} after {turns} and {calls}, {rollout.duration_s:.1f} s")
    if rollout.verdict is not None:
        lines.append(verdict_text(rollout.verdict))
    return "\n".join(lines)


def rollout_markdown(rollout: Rollout) -> str:
    """The same for notebooks, with what broke: in a block that nothing in it can end."""
    broke = "" if rollout.failure is None else f"\nunscored: {rollout.failure.message}"
    return fence(rollout_text(rollout) + broke)


def verdict_text(verdict: Verdict) -> str:
    """Score and components in one line, the reasons under it."""
    components = ", ".join(f"{one_line(name)} {value:g}" for name, value in verdict.components.items())
    lines = [f"verdict: {verdict.score:g}" + (f" ({components})" if components else "")]
    lines += [f"         {line}" for line in visible(verdict.explanation).splitlines()]
    return "\n".join(lines)
