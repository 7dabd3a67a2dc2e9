"""Rollouts as people read them: the transcript of one, and which ones a report shows in full."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel

from mcp_bridge.records import ToolResult

from ..records import Message, Rollout
from .conditions import by_task, is_success
from .safe_text import cut, visible

_WIDTH = 100
_LABEL = 11


def transcript(rollout: Rollout, *, text_limit: int = 1200, piece_limit: int = 40) -> str:
    """The conversation as plain text, one piece a label. Long texts and long conversations are cut visibly.

    `text_limit`: characters of one piece; `piece_limit`: pieces, of which the middle ones are left out.
    """
    results: dict[str, list[ToolResult]] = defaultdict(list)
    for record in rollout.calls:
        results[record.call.id].append(record.result)
    messages = rollout.messages or rollout.task.opening()
    pieces = [piece for message in messages for piece in _message_pieces(message, results)]
    left_out = len(pieces) - piece_limit
    lines = [_labelled(label, cut(text, text_limit)) for label, text in pieces]
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


def _labelled(label: str, text: str) -> str:
    lines: list[str] = []
    for line in visible(text).split("\n"):
        lines += textwrap.wrap(
            line, _WIDTH - _LABEL, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False
        ) or [""]
    body = ("\n" + " " * _LABEL).join(line.rstrip() for line in lines)
    return f"{label + ':':<{_LABEL}}{body}".rstrip()


Kind = Literal["newly solved", "still failing", "newly failing", "still solved", "solved", "failed"]

RULE = (
    "By rule, not by taste: one newly solved, one still failing and one newly failing task, the first of each in the "
    "order of task ids; where a kind has none, the next of another kind."
)
_ORDER: tuple[Kind, ...] = ("newly solved", "still failing", "newly failing", "solved", "failed", "still solved")


class Example(BaseModel):
    """One rollout to read, without its tokens and states."""

    kind: Kind
    condition: str
    rollout: Rollout
    earlier_score: float | None = None
    """The score of the same task in the first condition."""


def choose_examples(conditions: Mapping[str, Sequence[Rollout]], *, threshold: float, count: int = 3) -> list[Example]:
    """Rollouts of the last condition, set against the first where there are two. See `RULE`."""
    if not conditions:
        return []
    names = list(conditions)
    last = by_task(conditions[names[-1]])
    first = by_task(conditions[names[0]]) if len(names) > 1 else {}
    by_kind: dict[Kind, list[Example]] = defaultdict(list)
    for task, tries in last.items():
        if first and task not in first:
            continue
        now, earlier = tries[0], first[task][0] if first else None
        kind = _kind(now, earlier, threshold)
        earlier_score = earlier.verdict.score if earlier is not None and earlier.verdict is not None else None
        shown = now.model_copy(update={"rows": [], "initial_state": None, "final_state": None})
        by_kind[kind].append(Example(kind=kind, condition=names[-1], rollout=shown, earlier_score=earlier_score))
    # Round by round over the kinds: the first of each, then the second of each.
    rounds = max((len(examples) for examples in by_kind.values()), default=0)
    in_order = [by_kind[kind][i] for i in range(rounds) for kind in _ORDER if i < len(by_kind[kind])]
    return in_order[:count]


def _kind(now: Rollout, earlier: Rollout | None, threshold: float) -> Kind:
    solved = is_success(now, threshold)
    if earlier is None:
        return "solved" if solved else "failed"
    if is_success(earlier, threshold):
        return "still solved" if solved else "newly failing"
    return "newly solved" if solved else "still failing"
