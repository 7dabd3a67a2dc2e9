"""From rollouts to examples: which are kept, and what one looks like. Plain data: no torch, no datasets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_bridge.records import Tool

from ..records import Rollout


@dataclass
class Selection:
    """The rollouts that were kept, and how many were not, and why."""

    kept: list[Rollout] = field(default_factory=list)
    unscored: int = 0
    not_verified: int = 0
    not_json: int = 0
    """Verified, but with text or numbers that JSON has not, and tokenizers and data sets with it: half a surrogate
    pair, or `nan` in the arguments of a call. A model can write both."""
    duplicates: int = 0
    beyond_per_task: int = 0

    @property
    def seen(self) -> int:
        left_out = self.unscored + self.not_verified + self.not_json + self.duplicates + self.beyond_per_task
        return len(self.kept) + left_out


def select(rollouts: Iterable[Rollout], *, threshold: float, per_task: int) -> Selection:
    """Rollouts that reached `threshold`, no two alike, at most `per_task` of one task: the shortest of them.

    Two rollouts are alike when the same was asked, called with the same arguments, and answered.
    """
    selection = Selection()
    by_task: dict[str, dict[str, Rollout]] = {}
    for rollout in rollouts:
        if not rollout.scored or rollout.verdict is None:
            selection.unscored += 1
        elif rollout.verdict.score < threshold:
            selection.not_verified += 1
        elif not _fits_json(rollout):
            selection.not_json += 1
        else:
            distinct = by_task.setdefault(rollout.task.id, {})
            key = content_key(rollout)
            if key in distinct:
                selection.duplicates += 1
            else:
                distinct[key] = rollout
    for distinct in by_task.values():
        shortest = sorted(distinct.values(), key=lambda rollout: (rollout.turns, _length(rollout)))
        selection.kept += shortest[:per_task]
        selection.beyond_per_task += max(0, len(shortest) - per_task)
    return selection


def content_key(rollout: Rollout) -> str:
    """The same for rollouts that would teach the same: spaces, call ids and tool results do not count."""
    said: list[Any] = []
    for message in rollout.messages:
        if message.role != "tool":
            calls = [[call.name, call.arguments] for call in message.tool_calls]
            said.append([message.role, " ".join(message.content.split()), calls])
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def example(rollout: Rollout, tools: Sequence[Tool], *, licence: str, run: str) -> dict[str, Any]:
    """One line of the data set: TRL's conversational format, with where it comes from.

    `tools` is JSON text, as TRL reads it: a table of schemas of different shapes would get every field of each.
    """
    versions = [version for row in rollout.rows for version in row.versions if version >= 0]
    return {
        "messages": [_plain(message.as_openai()) for message in rollout.messages],
        "tools": json.dumps([tool.as_openai() for tool in tools], ensure_ascii=False),
        "license": licence,
        "origin": {
            "run": run,
            "rollout": rollout.id,
            "task": rollout.task.id,
            "policy": rollout.policy,
            "tool_prompt": rollout.tool_prompt,
            "weights_version": max(versions) if versions else None,
            "score": rollout.verdict.score if rollout.verdict is not None else None,
        },
    }


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments as an object, which chat templates want, where OpenAI's format has them as text."""
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message


def _fits_json(rollout: Rollout) -> bool:
    messages = [message.model_dump() for message in rollout.messages]
    try:
        json.dumps(messages, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # a `UnicodeEncodeError` is a ValueError
        return False
    return True


def _length(rollout: Rollout) -> int:
    return sum(len(message.content) for message in rollout.messages if message.role == "assistant")
