"""An agent over a token-level policy: messages in, the policy's own tokens kept as rows, messages out."""

from __future__ import annotations

import bisect
import copy
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread

from mcp_bridge.records import Tool

from ..errors import ConfigError, ModelError, PolicyFailure
from ..records import Message, TokenRow, ToolCall, ToolPrompt
from .grammar import Grammar, ReplyGrammars
from .protocol import Completion, Hearing, Policy, Reply, Sampling, StreamingPolicy
from .rendering import ChatRenderer, ParsedReply, append_tokens, reasoning_open
from .rendering.renderer import ByTools


class TokenHistory:
    """Messages and tokens side by side. Ids are kept as they went in and out; only new messages are rendered."""

    def __init__(self, renderer: ChatRenderer, tools: Sequence[Tool]) -> None:
        self._renderer = renderer
        self._tools = list(tools)
        self.messages: list[Message] = []
        self._rows: list[TokenRow] = []
        self._prompt: list[int] = []
        self._completion: list[int] = []

    @property
    def rows(self) -> list[TokenRow]:
        """Copies, which later turns do not change."""
        return [row.copied() for row in self._rows]

    def fork(self) -> TokenHistory:
        """A copy that goes on by itself. Messages never change once they are there, so both share them."""
        twin = copy.copy(self)
        twin.messages = list(self.messages)
        twin._rows = self.rows
        return twin

    def next_prompt(self, new_messages: Sequence[Message]) -> tuple[list[int], bool]:
        """The next prompt's ids, and whether they go on from the last row (otherwise a new row begins)."""
        if self._rows:
            extended = self._renderer.extend(self._prompt, self._completion, new_messages, self._tools)
            if extended is not None:
                said, end = len(self._prompt), len(self._prompt) + len(self._completion)
                if extended[:said] != self._prompt or extended[said:end] != self._completion:
                    raise ModelError(
                        f"renderer {self._renderer.family!r} changed tokens that were already sampled; "
                        "its extend() must keep them or return None"
                    )
                return extended, True
        return self._renderer.start([*self.messages, *new_messages], self._tools), False

    def record(
        self,
        new_messages: Sequence[Message],
        message: Message,
        prompt: list[int],
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        version: int | Sequence[int],
        extends: bool,
        allowed: Sequence[bytes] | None = None,
    ) -> None:
        """Take a finished turn: what was heard and said, the prompt sent and the tokens sampled.

        `prompt` is kept as it is: nobody changes it from here on. `allowed`: see `append_tokens`.
        """
        if extends:
            append_tokens(self._rows[-1], prompt[len(self._prompt) + len(self._completion) :])
        else:
            self._rows.append(TokenRow(prompt_ids=list(prompt)))
        append_tokens(self._rows[-1], token_ids, sampled=True, logprobs=logprobs, version=version, allowed=allowed)
        self._prompt, self._completion = prompt, list(token_ids)
        self.messages += [*new_messages, message]


def with_call_ids(calls: Sequence[ToolCall], earlier: Sequence[Message]) -> list[ToolCall]:
    """The calls with ids that are unique in the conversation: their own where free, else `call_1`, `call_2`, ..."""
    used = {message.tool_call_id for message in earlier if message.tool_call_id is not None}
    used |= {call.id for message in earlier for call in message.tool_calls}
    return [call.model_copy(update={"id": unique_id(call.id, used)}) for call in calls]


def unique_id(own: str, used: set[str], stem: str = "call") -> str:
    """`own` where it is free, else `call_1`, `call_2`, ...; it is added to those `used`."""
    unique, number = own, len(used)
    while not unique or unique in used:
        number += 1
        unique = f"{stem}_{number}"
    used.add(unique)
    return unique


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
    history = TokenHistory(renderer, tools)
    heard = list(opening)
    for message in conversation:
        if message.role != "assistant":
            heard.append(message)
            continue
        if not heard:
            raise ConfigError("a demonstration has two assistant messages in a row; put the tool results between them")
        prompt, extends = history.next_prompt(heard)
        reply = renderer.encode_reply(message, tools)
        history.record(heard, message, prompt, reply, [0.0] * len(reply), version=-1, extends=extends)
        heard = []
    return history.rows


class _StrictTools:
    """The grammar of replies for each list of tools: any text, and calls that are valid. Safe to use from several
    threads, which wait for one that makes a grammar, since most want the same."""

    def __init__(self, grammars: ReplyGrammars) -> None:
        self._made = {
            reasoning: ByTools(partial(grammars.text_or_calls, reasoning=reasoning)) for reasoning in (False, True)
        }
        self._making = threading.Lock()

    def grammar(self, tools: Sequence[Tool], *, reasoning: bool) -> Grammar | None:
        """None without tools: there is nothing to call. Raises `ValueError` for tools that have no grammar."""
        if not tools:
            return None
        with self._making:
            return self._made[reasoning](tools)


class TokenAgent:
    """Speaks through `policy` in the language of `renderer`. Serves many conversations at once."""

    def __init__(
        self,
        policy: Policy,
        renderer: ChatRenderer,
        name: str = "policy",
        *,
        tool_prompt: ToolPrompt = "full",
        grammars: ReplyGrammars | None = None,
    ) -> None:
        """`grammars`: of the model's replies, for `Sampling.strict_tools`, with a policy that takes grammars."""
        self._policy = policy
        self._renderer = renderer
        self._grammars = grammars
        self._strict = None if grammars is None else _StrictTools(grammars)
        self.name = name
        self.tool_prompt: ToolPrompt = tool_prompt
        """What a rollout shows of the tools where nobody says otherwise: what the policy was trained with."""

    def with_renderer(self, change: Callable[[ChatRenderer], ChatRenderer]) -> TokenAgent:
        """The same policy, speaking through `change(renderer)`."""
        return TokenAgent(self._policy, change(self._renderer), name=self.name, grammars=self._grammars)

    @property
    def context_tokens(self) -> int:
        """The most tokens of a prompt and its reply together."""
        return self._policy.context_tokens

    def pressure(self) -> float:
        """How full the policy's cache is, 0 to 1 and above where requests wait; 0 where it does not tell."""
        tell = getattr(self._policy, "pressure", None)
        return float(tell()) if callable(tell) else 0.0

    def start(self, tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> TokenConversation:
        """Raises `ConfigError` for `strict_tools` where there are no grammars, or the policy takes none."""
        if sampling.strict_tools and (self._strict is None or not getattr(self._policy, "takes_grammars", False)):
            raise ConfigError(
                f"strict_tools is true, which {self.name!r} cannot sample: give its TokenAgent `grammars` and a policy "
                "that takes them, such as the embedded engine or vLLM, or set strict_tools to false"
            )
        strict = self._strict if sampling.strict_tools else None
        return TokenConversation(self._policy, self._renderer, tools, sampling=sampling, seed=seed, strict=strict)


class TokenConversation:
    """One conversation with a policy. A turn that raises or finds no room leaves it as it was."""

    def __init__(
        self,
        policy: Policy,
        renderer: ChatRenderer,
        tools: Sequence[Tool],
        *,
        sampling: Sampling,
        seed: int,
        strict: _StrictTools | None = None,
    ) -> None:
        self._policy = policy
        self._renderer = renderer
        self._strict = strict
        self._tools = list(tools)
        self._sampling = sampling
        self._seed = seed
        self._turn = 0
        self._history = TokenHistory(renderer, tools)
        self._speaking = False

    def rows(self) -> list[TokenRow]:
        return self._history.rows

    def fork(self, *, seed: int) -> TokenConversation:
        """See `ForkableConversation.fork`. Raises `RuntimeError` while a reply is in progress."""
        if self._speaking:
            raise RuntimeError("a reply is in progress; a conversation is forked between two turns")
        twin = copy.copy(self)
        twin._seed = seed
        twin._history = self._history.fork()
        return twin

    async def reply(
        self,
        new_messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        stops: Sequence[str] = (),
        hearing: Hearing | None = None,
    ) -> Reply:
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

            def parse(ids: Sequence[int]) -> ParsedReply:
                return self._renderer.parse(ids, self._tools, prompt_ids=prompt)

            streams = hearing is not None and isinstance(self._policy, StreamingPolicy)
            hears = {"on_token": hearing(self._renderer, prompt)} if hearing is not None and streams else {}
            grammar = await self._grammar(prompt)
            completion = await self._sample(prompt, sampling, grammar, **hears)
            _check(completion, sampling.max_tokens)
            if stops and len(kept := cut_at_stops(completion.token_ids, stops, parse)) < len(completion.token_ids):
                completion = _up_to(completion, len(kept))
            allowed = await _allowed(grammar, completion)
            return self._said(completion, heard, prompt, extends=extends, allowed=allowed)
        finally:
            self._speaking = False

    async def _grammar(self, prompt: Sequence[int]) -> Grammar | None:
        """What the next reply is held to; None where it may be anything."""
        if self._strict is None:
            return None
        make = partial(self._strict.grammar, self._tools, reasoning=reasoning_open(self._renderer, prompt))
        try:
            return await anyio.to_thread.run_sync(make)  # which takes up to seconds, once for each list of tools
        except ValueError as error:
            raise PolicyFailure(f"strict_tools: no grammar can be made of the tools: {error}") from error

    async def _sample(
        self, prompt: Sequence[int], sampling: Sampling, grammar: Grammar | None, **hears: Any
    ) -> Completion:
        try:
            return await self._policy.sample(
                list(prompt),
                sampling=sampling,
                seed=turn_seed(self._seed, self._turn),
                stop_token_ids=list(self._renderer.stop_token_ids),
                **hears,
                **({"grammar": grammar} if grammar is not None else {}),
            )
        except ValueError as error:  # the grammar has become too complex, which is not a fault of the reply
            if grammar is None:
                raise
            raise PolicyFailure(f"strict_tools: {error}") from error

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

    def _said(
        self,
        completion: Completion,
        heard: list[Message],
        prompt: list[int],
        *,
        extends: bool,
        allowed: Sequence[bytes] | None,
    ) -> Reply:
        """The completion read and recorded."""
        parsed = self._renderer.parse(completion.token_ids, self._tools, prompt_ids=prompt)
        message = Message(
            role="assistant",
            content=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=with_call_ids(parsed.tool_calls, [*self._history.messages, *heard]),
        )
        self._history.record(
            heard,
            message,
            prompt,
            completion.token_ids,
            completion.logprobs,
            version=completion.version if completion.versions is None else completion.versions,
            extends=extends,
            allowed=allowed,
        )
        self._turn += 1
        return Reply(
            message,
            completion.stop_reason,
            sampled_tokens=len(completion.token_ids),
            prompt_tokens=len(prompt),
            parsed=parsed,
        )


async def _allowed(grammar: Grammar | None, completion: Completion) -> list[bytes] | None:
    """What each token was chosen from. The grammar is followed once more: the engine keeps no masks."""
    if grammar is None:
        return None
    try:
        return await anyio.to_thread.run_sync(grammar.allowed_along, completion.token_ids)
    except ValueError as error:
        raise PolicyFailure(f"strict_tools: {error}") from error


def turn_seed(seed: int, turn: int) -> int:
    """The seed of one turn, in [0, 2**31): the same for the same conversation seed and turn, on every machine."""
    digest = hashlib.sha256(f"{seed}:{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def cut_at_stops(ids: list[int], stops: Sequence[str], parse: Callable[[Sequence[int]], ParsedReply]) -> list[int]:
    """The tokens up to the first after which the content has one of `stops`.

    They are distributed as those of a sampling that ends there, whatever was sampled after them.
    """

    def has_stop(count: int) -> bool:
        content = parse(ids[:count]).before_calls
        return any(stop in content for stop in stops)

    if not stops or not has_stop(len(ids)):
        return ids
    return ids[: bisect.bisect_left(range(len(ids)), True, lo=1, key=has_stop)]


def _up_to(completion: Completion, count: int) -> Completion:
    """The first `count` tokens of a completion, ended there."""
    return replace(
        completion,
        token_ids=completion.token_ids[:count],
        logprobs=completion.logprobs[:count],
        versions=None if completion.versions is None else completion.versions[:count],
        stop_reason="stop",
    )


def _check(completion: Completion, max_tokens: int) -> None:
    tokens, logprobs = len(completion.token_ids), len(completion.logprobs)
    if tokens != logprobs:
        raise PolicyFailure(f"the policy returned {tokens} tokens but {logprobs} log-probabilities")
    if completion.versions is not None and len(completion.versions) != tokens:
        raise PolicyFailure(f"the policy returned {tokens} tokens but {len(completion.versions)} versions of weights")
    if tokens > max_tokens:
        raise PolicyFailure(f"the policy returned {tokens} tokens where at most {max_tokens} were asked for")
