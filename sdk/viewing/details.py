"""One rollout as the page shows it: the conversation, the changes, the verdict; long texts are cut, and say so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxes.divergence.differences import Difference, differences

SHOWN_CHARS = 20_000
"""Of each text as it is sent; the page asks for the rest of it when somebody wants to read on."""

_AS_JSON = ("arguments", "structured", "setup", "expected", "before", "after")
"""Values of any shape. They travel as the text of their JSON: a browser's numbers would round large ones."""

_WHAT = {"missing": "removed", "extra": "added", "changed": "changed", "type": "changed"}


def detail(line: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded rollout for the page, its texts whole.

    The tokens stay behind (see `tokens.token_rows`), and in place of the two states stand their differences: `changes`,
    a list, or None where a state was not recorded.
    """
    shown = {key: value for key, value in line.items() if key not in ("rows", "initial_state", "final_state")}
    shown["changes"] = state_changes(line.get("initial_state"), line.get("final_state"))
    shown["has_tokens"] = any(isinstance(row, Mapping) and row.get("completion_ids") for row in line.get("rows") or ())
    shown["seed"] = str(line.get("seed", ""))
    shown["calls"] = [_without_repetition(call) for call in line.get("calls") or () if isinstance(call, Mapping)]
    as_text: dict[str, Any] = _with_json_text(shown)
    return as_text


def _without_repetition(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call, its result without structured content that only repeats the text, as most servers send it."""
    result = call.get("result")
    if not isinstance(result, Mapping) or result.get("structured") is None:
        return dict(call)
    text, structured = result.get("text"), result["structured"]
    try:
        same = structured in (json.loads(str(text)), {"result": text}, {"result": json.loads(str(text))})
    except (ValueError, RecursionError):
        same = structured == {"result": text}
    return {**call, "result": {**result, "structured": None}} if same else dict(call)


def state_changes(before: Any, after: Any) -> list[dict[str, Any]] | None:
    """What a rollout changed in its world: `path`, `what` (`added`, `removed`, `changed`), `before` and `after`."""
    if before is None or after is None:
        return None
    return [_change(found) for found in differences(before, after, ("state",))]


def _change(found: Difference) -> dict[str, Any]:
    change: dict[str, Any] = {"path": found.path.removeprefix("state."), "what": _WHAT[found.kind]}
    if found.kind != "extra":
        change["before"] = found.recorded
    if found.kind != "missing":
        change["after"] = found.twin
    return change


def _with_json_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _json_text(item) if key in _AS_JSON and item is not None else _with_json_text(item)
            for key, item in value.items()
        }
    return [_with_json_text(item) for item in value] if isinstance(value, list) else value


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def cut_texts(shown: dict[str, Any], most: int = SHOWN_CHARS) -> dict[str, Any]:
    """The detail with each text that is longer than `most` cut to it, and `cut`: where those are and how long.

    Each is `{"at": ["messages", 2, "content"], "chars": 21000000}`.
    """
    cut: list[dict[str, Any]] = []

    def walk(value: Any, at: tuple[str | int, ...]) -> Any:
        if isinstance(value, str) and len(value) > most:
            cut.append({"at": list(at), "chars": len(value)})
            return value[:most]
        if isinstance(value, dict):
            return {key: walk(item, (*at, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*at, number)) for number, item in enumerate(value)]
        return value

    short: dict[str, Any] = walk(shown, ())
    return {**short, "cut": cut}


def text_at(shown: Any, at: Sequence[str | int]) -> str:
    """The text at one of the places of `cut_texts`. Raises `LookupError` where there is none."""
    for step in at:
        try:
            shown = shown[step]
        except (KeyError, IndexError, TypeError) as error:
            raise LookupError(f"there is no text at {list(at)}") from error
    if not isinstance(shown, str):
        raise LookupError(f"there is no text at {list(at)}")
    return shown
