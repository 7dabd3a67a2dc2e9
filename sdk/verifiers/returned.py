"""What the tools returned, as values that an answer may repeat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcp_bridge.records import ToolResult

from ..records import Rollout
from .tokens import Token, positions, tokenize

_SPACES = re.compile(r"\s*")


def returned_values(rollout: Rollout, answer: Sequence[Token], known: Sequence[Sequence[Token]]) -> list[str]:
    """The texts and numbers in results that `answer` says, each once, in the order in which they came.

    A result is structured content, or text that is JSON: many servers send no other. Not counted is what lies in one of
    `known`: the user's own words, and what was asked for.
    """
    found: dict[str, None] = {}
    for record in rollout.calls:
        for value in _leaves(_content(record.result)):
            said = tokenize(str(value))
            if said and positions(said, list(answer)) and not any(positions(said, list(words)) for words in known):
                found[str(value)] = None
    return list(found)


def _content(result: ToolResult) -> Any:
    """Structured content; where there is none, the JSON documents that the text begins with: a list may come as one
    document for each of its items."""
    if result.structured is not None:
        return result.structured
    decoder, text, at = json.JSONDecoder(), result.text.strip(), 0
    found: list[Any] = []
    while text[at : at + 1] in ("{", "["):
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        found.append(document)
        at = _SPACES.match(text, at).end()  # type: ignore[union-attr]
    return found


def _leaves(value: Any) -> Iterator[str | int | float]:
    """Texts and numbers anywhere inside, however deep, in their order; yes and no say nothing by themselves."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, Mapping):
            rest += [*one.values()][::-1]
        elif isinstance(one, list):
            rest += one[::-1]
        elif isinstance(one, str | int | float) and not isinstance(one, bool):
            yield one
