"""Short answers that tools' results allow: the field that a prompt asks for, a count, a yes or no, a short text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .words import PromptValues, stems
from .worlds import leaves

MOST_WORDINGS = 14
_SHORT = 30
"""Words of a text that is an answer as it stands."""
_COUNTING = frozenset(stems("many much count number total"))
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
DONE = "Done."


def wordings(contents: Sequence[Any], prompt: PromptValues) -> list[str]:
    """Answers from what the calls returned, in their order: short ones that the prompt asks for first.

    `contents`: what each call returned, see `content_of`. Example: `{"status": "shipped"}` is answered with "shipped".
    """
    found: dict[str, None] = {}
    for content in reversed(contents):
        for one in _of(content, prompt):
            found.setdefault(one)
    found.setdefault(DONE)
    return list(found)[:MOST_WORDINGS]


def _of(content: Any, prompt: PromptValues) -> Iterator[str]:
    if isinstance(content, Mapping) and set(content) == {"result"}:
        content = content["result"]
    if not isinstance(content, Mapping | list):
        yield from _of_text(_written(content), prompt)
        return
    if isinstance(content, list) and _COUNTING & prompt.vocabulary:
        yield str(len(content))
    fields = (field for field in leaves(content, is_leaf=lambda value: value is not None) if field[0])
    ranked = sorted(fields, key=lambda field: -_asked_for(field[0], field[1], content, prompt))
    yield from (_written(value) for _, value in ranked[:8])
    last = next((path[-1] for path, _ in ranked if isinstance(path[-1], str)), None)
    if isinstance(content, list) and len(content) > 1 and last is not None:
        column = [row[last] for row in content if isinstance(row, Mapping) and last in row]
        yield ", ".join(map(_written, column))
    if isinstance(content, list) and content and not any(isinstance(one, Mapping | list) for one in content):
        yield ", ".join(map(_written, content))
    if len(ranked) > 1:
        yield ", ".join(_written(value) for _, value in ranked[:2])


def _of_text(text: str, prompt: PromptValues) -> Iterator[str]:
    if not text:
        return
    if len(text.split()) <= _SHORT:
        yield text
        return
    sentences = [one.strip() for one in _SENTENCE.split(text) if one.strip()]
    by_likeness = sorted(sentences, key=lambda one: -len(prompt.vocabulary.intersection(stems(one))))
    yield from (one for one in by_likeness[:3] if len(one.split()) <= _SHORT)


def _asked_for(path: tuple[str | int, ...], value: Any, content: Any, prompt: PromptValues) -> float:
    """How well a field of a result answers the prompt: its name is asked for, its row is named, it is new."""
    names = [stems(part) for part in path if isinstance(part, str)]
    asked = (
        3.0 * _share(names[-1], prompt) + 1.0 * max((_share(one, prompt) for one in names[:-1]), default=0.0)
        if names
        else 0.0
    )
    row: Any = content
    for part in path[:-1]:
        row = row[part]
    if isinstance(row, Mapping) and any(isinstance(part, int) for part in path):
        others = {word for other in row.values() if not isinstance(other, Mapping | list) for word in stems(str(other))}
        asked += 2.0 * min(2, len(others & prompt.vocabulary))
    words = stems(str(value))
    is_known = bool(words) and all(word in prompt.vocabulary for word in words)
    return asked - 2.5 * is_known - 0.05 * len(words)


def _share(words: Sequence[str], prompt: PromptValues) -> float:
    return sum(word in prompt.vocabulary for word in words) / len(words) if words else 0.0


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return str(value).strip()
