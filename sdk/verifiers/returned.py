"""What the tools returned, as values that an answer may repeat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..records import Rollout
from .tokens import Token, positions, tokenize


def returned_values(rollout: Rollout, answer: Sequence[Token], known: Sequence[Sequence[Token]]) -> list[str]:
    """The texts and numbers in structured results that `answer` says, each once, in the order in which they came.

    Not counted is what lies in one of `known`: the user's own words, and what was asked for.
    """
    found: dict[str, None] = {}
    for record in rollout.calls:
        for value in _leaves(record.result.structured):
            said = tokenize(str(value))
            if said and positions(said, list(answer)) and not any(positions(said, list(words)) for words in known):
                found[str(value)] = None
    return list(found)


def _leaves(value: Any) -> Iterator[str | int | float]:
    """Texts and numbers anywhere inside; yes and no say nothing by themselves."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value
