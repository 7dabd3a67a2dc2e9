"""An agent over a token-level policy whose conversations can be copied in the middle, tokens included."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from mcp_bridge.records import Tool

from ..policies.protocol import Conversation, Policy, Sampling
from ..policies.rendering import ChatRenderer
from ..policies.token_agent import TokenAgent, TokenConversation
from ..policies.token_history import TokenHistory


@runtime_checkable
class ForkableConversation(Protocol):
    """A conversation that can be copied."""

    def fork(self, *, seed: int) -> Conversation:
        """A copy that goes on by itself: the same tokens so far, other ones from here on."""
        ...


class KeptHistory(TokenHistory):
    """A token history that can be copied."""

    def fork(self) -> KeptHistory:
        """A copy of the tokens so far. Messages are not changed once they are there, so the copies share them."""
        twin = copy.copy(self)
        twin.messages = list(self.messages)
        twin._rows = self.rows
        twin._ids = self._ids.copy()
        return twin


class ForkableTokenConversation(TokenConversation):
    """A `TokenConversation` that can be copied between two turns."""

    def __init__(
        self, policy: Policy, renderer: ChatRenderer, tools: Sequence[Tool], *, sampling: Sampling, seed: int
    ) -> None:
        super().__init__(policy, renderer, tools, sampling=sampling, seed=seed)
        self._history: KeptHistory = KeptHistory(renderer, tools)

    def fork(self, *, seed: int) -> ForkableTokenConversation:
        """See `ForkableConversation.fork`. Raises RuntimeError while a reply is in progress."""
        if self._speaking:
            raise RuntimeError("a reply is in progress; a conversation is forked between two turns")
        twin = copy.copy(self)
        twin._seed = seed
        twin._history = self._history.fork()
        return twin


class ForkableAgent(TokenAgent):
    """A `TokenAgent` for rollouts that branch. Example: `ForkableAgent(engine, make_renderer(tokenizer))`"""

    def with_renderer(self, change: Callable[[ChatRenderer], ChatRenderer]) -> ForkableAgent:
        """The same policy, speaking through `change(renderer)`."""
        return ForkableAgent(self._policy, change(self._renderer), name=self._name)

    def start(self, tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> ForkableTokenConversation:
        return ForkableTokenConversation(self._policy, self._renderer, tools, sampling=sampling, seed=seed)
