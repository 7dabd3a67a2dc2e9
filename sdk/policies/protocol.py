"""The protocol of a policy: token ids in, token ids and log-probabilities out; and of the agents that drive one.

`Policy` is the exact, token-level protocol that can be trained. `Agent` is what the rollout engine drives: it turns
messages into a policy's tokens and back (`TokenAgent`), or talks to an endpoint that only knows text (`EndpointAgent`),
or plays a script (`ScriptedAgent`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from mcp_bridge.records import Tool

from ..errors import ConfigError
from ..records import Message, TokenRow, ToolPrompt
from .grammar import Grammar
from .rendering import ChatRenderer, ParsedReply

LOWEST_TEMPERATURE = 1e-5
"""Logits divided by much less are infinite. vLLM takes the most likely token below it."""
HIGHEST_TEMPERATURE = 1e5
"""Logits divided by more are all the same, and by much more no numbers."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample. `temperature=0` takes the most likely token, whatever the seed.

    Raises `ConfigError` for numbers that nothing can be sampled by.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    """The most tokens of one turn."""
    strict_tools: bool = False
    """Where a reply begins a call, it becomes one of a tool that there is, with arguments that its schema allows.
    Rollouts of GRPO may be sampled so (`rollouts.strict_tools`), and evaluations. A `TokenAgent` gives its policy the
    grammar, and an `EndpointAgent` sends `strict: true` with each tool; a policy itself does not read this."""

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or LOWEST_TEMPERATURE <= self.temperature <= HIGHEST_TEMPERATURE):
            raise ConfigError(
                f"temperature is {self.temperature}; it must be 0 (greedy) or a number from "
                f"{LOWEST_TEMPERATURE:g} to {HIGHEST_TEMPERATURE:g}"
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; it must be in (0, 1]")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; it must be 1 or more")


@dataclass(frozen=True, kw_only=True)
class AdjustedSampling(Sampling):
    """Sampling as OpenAI's clients may ask for it, of a `StreamingPolicy`. No training samples so.

    Before temperature and `top_p`, the logit of token v becomes `logit + logit_bias[v] - presence_penalty * (n > 0)
    - frequency_penalty * n`, where v has come n times in the answer so far (OpenAI's API reference).
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, each at most once, and what is added to their logits."""
    top_logprobs: int | None = None
    """For so many of the most likely tokens, `Completion.alternatives` tells the log-probability; None: not at all."""

    @property
    def adjustments(self) -> tuple[float, float, tuple[tuple[int, float], ...]] | None:
        """What changes the logits; None where nothing does."""
        found = (self.presence_penalty, self.frequency_penalty, self.logit_bias)
        return found if any(found) else None


@dataclass(frozen=True)
class Alternatives:
    """What the model itself gave a place of a completion: before grammar, temperature, bias and penalties, in nats."""

    logprob: float
    """Of the token that was sampled."""
    top: list[tuple[int, float]]
    """The most likely tokens, the likeliest first."""


@dataclass(frozen=True)
class Completion:
    """Tokens as sampled. `logprobs` [T] are of the distribution sampled from (after the temperature)."""

    token_ids: list[int]
    logprobs: list[float]
    stop_reason: Literal["stop", "length"]
    version: int = 0
    versions: list[int] | None = None
    """[T] the version of the weights that chose each token, where new weights came in between; None: all `version`."""
    cached_tokens: int = field(default=0, compare=False)
    """Tokens of the prompt that were not computed for it, where the engine tells."""
    alternatives: list[Alternatives] | None = None
    """[T] where `AdjustedSampling.top_logprobs` asks for them."""


class Policy(Protocol):
    """Token ids in, token ids and log-probabilities out. Many calls may be in flight at once.

    One whose `takes_grammars` is True can be held to a grammar: `sample` takes one as `StreamingPolicy.sample` does.
    """

    @property
    def context_tokens(self) -> int:
        """The most tokens of prompt and completion together."""

    async def sample(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        """Continue `prompt_ids`. The result depends on the prompt, `sampling`, `seed` and the weights only,
        not on what else is in flight. The stop token, where one ended it, is the last of `token_ids`.

        Raises `PolicyFailure` when the engine broke.
        """


@runtime_checkable
class StreamingPolicy(Policy, Protocol):
    """A policy that tells of each token as soon as it is sampled. It takes an `AdjustedSampling`, too."""

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop_token_ids: Sequence[int] = (),
        on_token: Callable[[int], bool | None] | None = None,
        grammar: Grammar | None = None,
    ) -> Completion:
        """As `Policy.sample`. `on_token` is called on the caller's event loop, in order, before this returns. Where it
        returns True, the completion ends with that token.

        With a `grammar`, what it does not allow has no probability, and log-probabilities are of what is left.
        """


@dataclass(frozen=True)
class Reply:
    """One assistant message and what it cost."""

    message: Message
    stop_reason: Literal["stop", "length", "context"]
    """`length`: the turn's token limit cut it; `context`: no room was left for a reply at all."""
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    tool_prompt: ToolPrompt | None = None
    """How much of the tools that it was sent the prompt showed, where whoever answers says so, as `sdk.serve` does."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    parsed: ParsedReply | None = None
    """The message as it was read from the tokens, with what could not be read as calls; None where nobody says."""


Hearing = Callable[[ChatRenderer, Sequence[int]], Callable[[int], bool | None]]
"""Called as a reply begins, with what reads its tokens and those of its prompt. What it returns is called with each of
them, see `StreamingPolicy.sample`."""


class Conversation(Protocol):
    """One conversation in progress."""

    async def reply(
        self,
        new_messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        stops: Sequence[str] = (),
        hearing: Hearing | None = None,
    ) -> Reply:
        """Hear `new_messages` (the opening, tool results or a later user turn) and answer.

        `max_tokens` lowers the sampling's own limit for this turn. `stops`: the reply ends with the first token after
        which its content has one of these texts, which it keeps. `hearing`: hears the tokens as they are sampled, of
        a policy that tells them. Only who is asked for the last two must take them.
        """

    def rows(self) -> list[TokenRow]:
        """The tokens so far, exactly as sampled; empty for an endpoint that only knows text."""


@runtime_checkable
class ForkableConversation(Conversation, Protocol):
    """A conversation that can be copied between two turns, as rollouts that branch need it."""

    def fork(self, *, seed: int) -> Conversation:
        """A copy with the same tokens so far that goes on by itself and samples with `seed`."""


class Agent(Protocol):
    """Speaks in conversations. One agent serves many at once."""

    @property
    def name(self) -> str: ...

    def start(self, tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> Conversation: ...


class WeightPublisher(Protocol):
    """The one back edge: the trainer hands new weights to whoever samples."""

    def publish(self, state: Mapping[str, Any], *, version: int) -> None:
        """Take the weights (name to tensor). Later samples carry `version`."""


def require_room(prompt: Sequence[int], context_tokens: int) -> None:
    """Raises `ValueError` for a prompt without tokens, or one that leaves no room in the context for an answer."""
    if not prompt:
        raise ValueError("the prompt is empty; give at least one token")
    if len(prompt) >= context_tokens:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens and the context holds {context_tokens}, which leaves no room for an "
            "answer; shorten the prompt"
        )
