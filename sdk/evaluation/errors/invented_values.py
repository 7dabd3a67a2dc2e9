"""Where an argument comes from: the words before the call, by letter. Paraphrases and sums are beyond it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcp_bridge.records import Tool

from ...records import Rollout
from ...verifiers.text_tokens import positions, tokenize

_SHORTEST = 3


def ungrounded_argument(
    name: str, arguments: Mapping[str, Any], context: str, tools: Mapping[str, Tool], *, identifiers_only: bool = False
) -> str | None:
    """The first argument with a value that `context` does not have; None where all can be traced.

    Judged are numbers and single words of three letters or more; sentences are the policy's own to write, and the
    schema's enumerations, defaults and constants are known to it. `identifiers_only`: only values with a digit.
    """
    tokens, text = tokenize(context), context.casefold()
    known = _schema_values(tools[name].input_schema) if name in tools else frozenset[str]()
    for argument, value in arguments.items():
        for leaf in _leaves(value):
            said = str(leaf)
            if said in known or len(said.split()) > 1 or (identifiers_only and not any(c.isdigit() for c in said)):
                continue
            short = len(said) < _SHORTEST and not said.isdigit()
            if not short and said.casefold() not in text and not positions(tokenize(said), tokens):
                return argument
    return None


def words_before(rollout: Rollout, turn: int) -> str:
    """All that was said before the assistant's `turn`-th message (from 1), its own earlier words left out."""
    said: list[str] = []
    turns = 0
    for message in rollout.messages:
        if message.role == "assistant":
            turns += 1
            if turns >= turn:
                break
        else:
            said.append(message.content)
    return "\n".join(said)


def _leaves(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _schema_values(schema: Any) -> frozenset[str]:
    """Enumerated values, constants and defaults anywhere in a schema, as text."""
    found: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            enumerated: Sequence[Any] = part["enum"] if isinstance(part.get("enum"), list) else []
            found |= {
                str(value) for value in [*enumerated, part.get("const"), part.get("default")] if value is not None
            }
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return frozenset(found)
