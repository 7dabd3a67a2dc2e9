"""Demonstrations as token rows: supervised training on exactly the tokens that a policy would have sampled."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_bridge.records import Tool

from ...errors import ConfigError
from ...records import Message, TokenRow
from .renderer import ChatRenderer


def render_demonstration(
    renderer: ChatRenderer, opening: Sequence[Message], tools: Sequence[Tool], conversation: Sequence[Message]
) -> list[TokenRow]:
    """The rows of a conversation that begins with `opening` and goes on with `conversation`.

    `conversation` starts with an assistant message; tool results and later user turns stand between the
    assistant's. `sampled` is True for the assistant's tokens, the turn-ending one included; log-probabilities are
    0.0 and versions -1, because nobody sampled them. Messages after the last assistant's are in no row. One row,
    unless the template rewrites history.
    """
    if not conversation or conversation[0].role != "assistant":
        first = conversation[0].role if conversation else "nothing"
        raise ConfigError(f"a demonstration begins with {first}; it must begin with an assistant message")
    rows: list[TokenRow] = []
    prompt: list[int] = []
    reply: list[int] = []
    heard = list(opening)
    spoken: list[Message] = []
    for message in conversation:
        if message.role != "assistant":
            heard.append(message)
            continue
        if not heard:
            raise ConfigError("a demonstration has two assistant messages in a row; put the tool results between them")
        history = len(prompt) + len(reply)
        extended = renderer.extend(prompt, reply, heard, tools) if rows else None
        if extended is None:
            prompt = renderer.start([*spoken, *heard], tools)
            rows.append(TokenRow(prompt_ids=prompt))
        else:
            prompt = extended
            append_tokens(rows[-1], prompt[history:])
        reply = renderer.encode_reply(message, tools)
        append_tokens(rows[-1], reply, sampled=True)
        spoken += [*heard, message]
        heard = []
    return rows


def append_tokens(
    row: TokenRow,
    token_ids: Sequence[int],
    *,
    sampled: bool = False,
    logprobs: Sequence[float] | None = None,
    version: int | Sequence[int] = -1,
) -> None:
    """Append tokens [T] to the row; those not sampled have log-probability 0.0 and version -1. `version`: of all
    tokens, or of each [T]."""
    row.completion_ids.extend(token_ids)
    row.sampled.extend([sampled] * len(token_ids))
    row.logprobs.extend(logprobs if logprobs is not None else [0.0] * len(token_ids))
    row.versions.extend([version] * len(token_ids) if isinstance(version, int) else version)
