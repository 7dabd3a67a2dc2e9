"""What the engine holds: rows, the prefixes that they share, and who goes on from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from .requests import Request


@dataclass(eq=False)
class Prefix:
    """Tokens that conversations begin with, and their keys and values, [Y, 2, K, P, D]."""

    tokens: list[int]
    kv: torch.Tensor
    used: int = 0

    def begins(self, prompt: list[int]) -> bool:
        """Whether `prompt` goes on from it."""
        return len(self.tokens) < len(prompt) and prompt[: len(self.tokens)] == self.tokens


def longest_beginning(prefixes: Iterable[Prefix], prompt: list[int]) -> Prefix | None:
    """The longest of the prefixes that `prompt` goes on from."""
    begun = (prefix for prefix in prefixes if prefix.begins(prompt))
    return max(begun, key=lambda prefix: len(prefix.tokens), default=None)


@dataclass(eq=False)
class Row:
    """A conversation. `tokens`: those whose keys and values are stored, in the prefix and then in the row itself."""

    prefix: Prefix | None = None
    tokens: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """Those that have come to these tokens. Where there is none, the conversation waits for its next turn, and may lose
    its row to another."""
    trail: list[torch.Tensor] = field(default_factory=list)
    """The logits [V] that each token of `requests` was sampled from; fewer than there are tokens where forgotten."""
    used: int = 0

    @property
    def own(self) -> int:
        """How many tokens the row itself stores."""
        return len(self.tokens) - (len(self.prefix.tokens) if self.prefix else 0)

    @property
    def reserved(self) -> int:
        """How many tokens its requests may come to store: each in a row of its own, when they part."""
        return sum(self.own + request.limit - len(request.token_ids) for request in self.requests)

    @property
    def newest(self) -> int:
        """The last token that its requests sampled, which is not stored yet."""
        return self.requests[0].token_ids[-1]


class Way(NamedTuple):
    """Requests that have sampled the same token after the first `length` tokens of a row."""

    length: int
    requests: list[Request]


@dataclass(eq=False)
class Admission:
    """A row that became live, and the tokens of its prompt that are still to compute."""

    row: Row
    missing: list[int]
