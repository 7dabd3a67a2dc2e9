"""What every engine asks of a prompt before it samples."""

from __future__ import annotations

from collections.abc import Sequence


def require_room(prompt: Sequence[int], context_tokens: int) -> None:
    """Raises `ValueError` for a prompt without tokens, or one that leaves no room in the context for an answer."""
    if not prompt:
        raise ValueError("the prompt is empty; give at least one token")
    if len(prompt) >= context_tokens:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens and the context holds {context_tokens}, which leaves no room for an "
            "answer; shorten the prompt"
        )
