"""What the list of the page shows of a rollout, and what it is filtered and searched by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = (
    "run",
    "stage",
    "id",
    "task",
    "policy",
    "group",
    "step",
    "score",
    "state",
    "stop",
    "turns",
    "tokens",
    "seconds",
    "mistakes",
    "tools",
    "prompt",
    "answer",
    "tags",
    "note",
)
"""The places of a row, in their order. `run` is a number, `state` one of `scored`, `failed` and `unscored`, `mistakes`
the tool results that were errors, `tools` the names that were called in order, and `note` what broke or what the
verdict explains."""

SHOWN_CHARS = 240
"""Of each text in a row; the search of whole conversations reads the rest."""


def summary(line: Mapping[str, Any], *, run: int, stage: str) -> list[Any]:
    """The row of one recorded rollout, in the order of `FIELDS`.

    Lenient: a run folder of another version is shown as far as it is understood. Raises `ValueError` for a line without
    an id, which no rollout is.
    """
    if not isinstance(line.get("id"), str):
        raise ValueError("it has no id")
    task, verdict, failure = _mapping(line, "task"), _mapping(line, "verdict"), _mapping(line, "failure")
    calls = [call for call in _items(line, "calls") if isinstance(call, Mapping)]
    scored = bool(verdict) and not failure
    broke = f"{failure.get('boundary')}: {failure.get('kind')}: {failure.get('message')}" if failure else ""
    return [
        run,
        stage,
        line["id"],
        str(task.get("id", "")),
        str(line.get("policy", "")),
        str(line.get("group", "")),
        line.get("step", -1),
        verdict.get("score") if scored else None,
        "scored" if scored else "failed" if failure else "unscored",
        str(line.get("stop_reason", "")),
        line.get("turns", 0),
        line.get("sampled_tokens", 0),
        line.get("duration_s", 0.0),
        sum(bool(_mapping(call, "result").get("is_error")) for call in calls),
        [str(_mapping(call, "call").get("name", "")) for call in calls],
        opening_text(task)[:SHOWN_CHARS],
        str(line.get("answer", ""))[:SHOWN_CHARS],
        {str(key): str(value) for key, value in _mapping(task, "tags").items()},
        (broke or str(verdict.get("explanation", "")))[:SHOWN_CHARS],
    ]


def opening_text(task: Mapping[str, Any]) -> str:
    """What the user asks for first."""
    prompt = task.get("prompt", "")
    if isinstance(prompt, str):
        return prompt
    asked = [m for m in prompt if isinstance(m, Mapping) and m.get("role") == "user"]
    return str(asked[0].get("content", "")) if asked else ""


def _mapping(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = line.get(name)
    return found if isinstance(found, Mapping) else {}


def _items(line: Mapping[str, Any], name: str) -> list[Any]:
    found = line.get(name)
    return found if isinstance(found, list) else []
