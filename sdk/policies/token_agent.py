"""An agent over a token-level policy: messages in, the policy's own tokens kept, messages out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from mcp_bridge.records import Tool

from ..errors import PolicyFailure
from ..records import Message, TokenRow, ToolPrompt
from .protocol import Completion, Policy, Reply, Sampling
from .rendering import ChatRenderer
from .token_history import TokenHistory


class TokenAgent:
    """Speaks through `policy` in the language of `renderer`. Serves many conversations at once."""

    def __init__(
        self, policy: Policy, renderer: ChatRenderer, name: str = "policy", *, tool_prompt: ToolPrompt = "full"
    ) -> None:
        self._policy = policy
        self._renderer = renderer
        self._name = name
        self.tool_prompt: ToolPrompt = tool_prompt
        """What a rollout shows of the tools where nobody says otherwise: what the policy was trained with."""

    @property
    def name(self) -> str:
        return self._name

    def with_renderer(self, change: Callable[[ChatRenderer], ChatRenderer]) -> TokenAgent:
        """The same policy, speaking through `change(renderer)`."""
        return TokenAgent(self._policy, change(self._renderer), name=self._name)

    def pressure(self) -> float:
        """How full the policy's cache is, 0 to 1 and above where requests wait; 0 where it does not tell."""
        tell = getattr(self._policy, "pressure", None)
        return float(tell()) if callable(tell) else 0.0

    def start(self, tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> TokenConversation:
        return TokenConversation(self._policy, self._renderer, tools, sampling=sampling, seed=seed)


class TokenConversation:
    """One conversation with a policy. A turn that raises or finds no room leaves it as it was."""

    def __init__(
        self, policy: Policy, renderer: ChatRenderer, tools: Sequence[Tool], *, sampling: Sampling, seed: int
    ) -> None:
        self._policy = policy
        self._renderer = renderer
        self._tools = list(tools)
        self._sampling = sampling
        self._seed = seed
        self._turn = 0
        self._history = TokenHistory(renderer, tools)
        self._speaking = False

    def rows(self) -> list[TokenRow]:
        return self._history.rows

    async def reply(self, new_messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        """See `Conversation.reply`. Raises `PolicyFailure` when the engine broke, `ModelError` when the messages
        do not fit the template, `RuntimeError` when a reply is already in progress."""
        if self._speaking:
            raise RuntimeError("a reply is in progress; await it before the next one")
        self._speaking = True
        try:
            heard = list(new_messages)
            prompt, extends = self._history.next_prompt(heard)
            sampling = self._turn_sampling(len(prompt), max_tokens)
            if sampling is None:
                return Reply(Message(role="assistant"), "context", prompt_tokens=len(prompt))
            completion = await self._policy.sample(
                list(prompt),
                sampling=sampling,
                seed=turn_seed(self._seed, self._turn),
                stop_token_ids=list(self._renderer.stop_token_ids),
            )
            _check(completion, sampling.max_tokens)
            return self._said(completion, heard, prompt, extends=extends)
        finally:
            self._speaking = False

    def _turn_sampling(self, prompt_tokens: int, max_tokens: int | None) -> Sampling | None:
        """How the next turn is sampled; None where no room is left for it."""
        limit = self._sampling.max_tokens if max_tokens is None else min(max_tokens, self._sampling.max_tokens)
        if limit < 1:
            raise ValueError(f"max_tokens is {max_tokens}; it must be 1 or more")
        room = self._policy.context_tokens - prompt_tokens
        if room < 1:
            return None
        most = min(limit, room)
        return self._sampling if most == self._sampling.max_tokens else replace(self._sampling, max_tokens=most)

    def _said(self, completion: Completion, heard: list[Message], prompt: list[int], *, extends: bool) -> Reply:
        """The completion read and recorded."""
        parsed = self._renderer.parse(completion.token_ids, self._tools, prompt_ids=prompt)
        message = Message(
            role="assistant",
            content=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=self._history.with_call_ids(parsed.tool_calls, heard),
        )
        self._history.record(
            heard,
            message,
            prompt,
            completion.token_ids,
            completion.logprobs,
            version=completion.version if completion.versions is None else completion.versions,
            extends=extends,
        )
        self._turn += 1
        return Reply(
            message, completion.stop_reason, sampled_tokens=len(completion.token_ids), prompt_tokens=len(prompt)
        )


def turn_seed(seed: int, turn: int) -> int:
    """The seed of one turn, in [0, 2**31): the same for the same conversation seed and turn, on every machine."""
    digest = hashlib.sha256(f"{seed}:{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _check(completion: Completion, max_tokens: int) -> None:
    tokens, logprobs = len(completion.token_ids), len(completion.logprobs)
    if tokens != logprobs:
        raise PolicyFailure(f"the policy returned {tokens} tokens but {logprobs} log-probabilities")
    if completion.versions is not None and len(completion.versions) != tokens:
        raise PolicyFailure(f"the policy returned {tokens} tokens but {len(completion.versions)} versions of weights")
    if tokens > max_tokens:
        raise PolicyFailure(f"the policy returned {tokens} tokens where at most {max_tokens} were asked for")
