"""Answers made worse: a part left out, keys renamed, orders put in. Text and structured content stay of one mind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from mcp_bridge.records import ToolResult
from mcp_bridge.toolsets.results import compact_json


def part_of(result: ToolResult, keep: float) -> tuple[ToolResult, str] | None:
    """The first `keep` of every list in the result, or of its text, and what was left out; None where nothing was."""
    dropped = [0]

    def cut(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: cut(one) for key, one in value.items()}
        if isinstance(value, list):
            kept = math.ceil(len(value) * keep)
            dropped[0] += len(value) - kept
            return [cut(one) for one in value[:kept]]
        return value

    changed = _rewritten(result, cut)
    if changed is not None and dropped[0]:
        return changed, f"{dropped[0]} entries of lists left out"
    if isinstance(_as_json(result.text), dict | list):
        return None  # half of a JSON text would be an error that gives itself away
    kept_chars = math.ceil(len(result.text) * keep)
    if kept_chars == len(result.text):
        return None
    cut_text = result.text[:kept_chars] or "(empty result)"
    return result.model_copy(update={"text": cut_text}), f"{len(result.text) - kept_chars} characters left out"


def renamed(result: ToolResult, fields: Mapping[str, str]) -> tuple[ToolResult, str] | None:
    """The result with other keys, and which; None where it has none of them."""
    found: dict[str, str] = {}

    def rename(value: Any) -> Any:
        if isinstance(value, Mapping):
            found.update({key: fields[key] for key in value if key in fields})
            return {fields.get(key, key): rename(one) for key, one in value.items()}
        return [rename(one) for one in value] if isinstance(value, list) else value

    changed = _rewritten(result, rename)
    if changed is None or not found:
        return None
    return changed, ", ".join(f"{old} is called {new}" for old, new in sorted(found.items()))


def with_instruction(result: ToolResult, text: str) -> ToolResult:
    """The result with a text in it: at the end of the longest text among its fields, or at its own end."""
    whole = result.structured if result.structured is not None else _as_json(result.text)
    longest = max(_texts(whole), key=lambda found: len(found[1]), default=None)
    if longest is not None:
        changed = _rewritten(result, lambda value: _appended(value, longest[0], text))
        if changed is not None:
            return changed
    return result.model_copy(update={"text": f"{result.text}\n{text}"})


def _rewritten(result: ToolResult, change: Callable[[Any], Any]) -> ToolResult | None:
    """The result with its JSON changed, in the text too where that is the same JSON; None where it holds none."""
    told = _as_json(result.text)
    if result.structured is None:
        if not isinstance(told, dict | list):
            return None
        return result.model_copy(update={"text": compact_json(change(told))})
    changed = change(result.structured)
    if told == result.structured:
        return result.model_copy(update={"structured": changed, "text": compact_json(changed)})
    if isinstance(told, dict | list):
        return result.model_copy(update={"structured": changed, "text": compact_json(change(told))})
    # Words of their own beside the structured content: they are changed where they repeat one of its texts.
    text = result.text
    for (_, old), (_, new) in zip(_texts(result.structured), _texts(changed), strict=False):
        text = text.replace(old, new) if old != new and old in text else text
    return result.model_copy(update={"structured": changed, "text": text})


def _texts(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], str]]:
    """Every text inside a JSON object or list, with its path."""
    if isinstance(value, Mapping):
        return [found for key, one in value.items() for found in _texts(one, (*path, key))]
    if isinstance(value, list):
        return [found for number, one in enumerate(value) for found in _texts(one, (*path, number))]
    return [(path, value)] if isinstance(value, str) and path else []


def _appended(value: Any, path: tuple[str | int, ...], text: str) -> Any:
    if not path:
        return f"{value} {text}" if isinstance(value, str) else value
    step, *rest = path
    if isinstance(value, Mapping) and step in value:
        return {**value, step: _appended(value[step], tuple(rest), text)}
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return [*value[:step], _appended(value[step], tuple(rest), text), *value[step + 1 :]]
    return value


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
