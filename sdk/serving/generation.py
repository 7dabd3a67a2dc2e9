"""From a checked request to finished choices: prompt, sampling, grammar, stop strings, and what of a growing reply
counts for good."""

from __future__ import annotations

import itertools
import json
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread

from mcp_bridge.records import Tool

from ..errors import ModelError, PolicyFailure
from ..policies.grammar import Grammar
from ..policies.protocol import LOWEST_TEMPERATURE, Completion, Sampling, StreamingPolicy
from ..policies.rendering import ChatRenderer, ParsedReply
from ..policies.rendering.reply_grammar import ReplyGrammars
from ..records import Message
from ..rollouts.seeds import derive_seed
from .api_errors import ApiError, bad_request, shown
from .chat_request import ChatRequest
from .client_schemas import ClientSchemas
from .tool_calls import WrittenCall, calls_as_text, written_calls

_MOST_CHARACTERS_A_TOKEN = 256
"""More than the longest token of any vocabulary that we know: runs of 128 blanks."""


@dataclass(frozen=True)
class Choice:
    """One answer. `finish_reason` is OpenAI's: stop, length or tool_calls."""

    content: str
    reasoning: str | None
    tool_calls: list[WrittenCall]
    finish_reason: str
    tokens: int


@dataclass(frozen=True)
class Generated:
    """All answers to one request."""

    choices: list[Choice]
    prompt_tokens: int

    def usage(self) -> dict[str, int]:
        completion = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }


class Listener(Protocol):
    """Hears of answers while they are sampled, on the event loop."""

    def grow(self, index: int, reasoning: str, content: str) -> None:
        """So far answer `index` says this for good."""
        ...

    def finish(self, index: int, choice: Choice) -> None:
        """Answer `index` is complete. Raises `ApiError` where it is not what was said so far."""
        ...


class Generator:
    """Answers requests with a policy."""

    def __init__(
        self, policy: StreamingPolicy, renderer: ChatRenderer, grammars: ReplyGrammars | None, *, defaults: Sampling
    ) -> None:
        self._policy = policy
        self._renderer = renderer
        self._grammars = grammars
        self._defaults = defaults
        self._one_at_a_time = anyio.CapacityLimiter(1)

    @property
    def alive(self) -> bool:
        """False where the policy has ended and every request would fail."""
        return bool(getattr(self._policy, "alive", True))

    async def generate(self, request: ChatRequest, listener: Listener | None = None) -> Generated:
        """All answers, of which `listener` hears while they are sampled.

        Raises `ApiError`: 400 for requests that do not fit, 422 for a call that was asked for and not made, 500 when
        the engine broke.
        """
        # One at a time, and beside the event loop: a long conversation takes seconds, in which others are answered.
        read = partial(self._read, request)
        tools, schemas, prompt_ids, grammar = await anyio.to_thread.run_sync(read, limiter=self._one_at_a_time)
        sampling = self._sampling(request, len(prompt_ids))
        seed = secrets.randbits(31) if request.seed is None else request.seed
        choices: dict[int, Choice] = {}
        failures: list[Exception] = []

        def parse(ids: Sequence[int]) -> ParsedReply:
            return self._renderer.parse(ids, tools, prompt_ids=prompt_ids)

        async def one(index: int) -> None:
            try:
                completion = await self._policy.sample(
                    prompt_ids,
                    sampling=sampling,
                    seed=derive_seed("serving", seed, index),
                    stop_token_ids=self._renderer.stop_token_ids,
                    on_token=_teller(listener, index, SettledReply(parse, request.stops, with_tools=bool(tools))),
                    grammar=grammar,
                )
                said = parse(completion.token_ids)
                choices[index] = _choice(request, said if tools else calls_as_text(said), schemas, completion)
                if listener is not None:
                    listener.finish(index, choices[index])
            except PolicyFailure as error:
                failures.append(ApiError(500, f"the engine failed: {error}", kind="server_error", code="engine_failed"))
                group.cancel_scope.cancel()
            except ValueError as error:
                failures.append(error if grammar is None else _too_complex(request, error))
                group.cancel_scope.cancel()
            except Exception as error:  # carried out of the task group, which would wrap it
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for index in range(request.n or 1):
                group.start_soon(one, index)
        if failures:
            raise failures[0]
        return Generated([choices[index] for index in sorted(choices)], len(prompt_ids))

    def _read(self, request: ChatRequest) -> tuple[list[Tool], ClientSchemas, list[int], Grammar | None]:
        """The tools, the schemas that the answer is held against, the prompt, and what the answer may be."""
        messages, tools = request.read_messages(), request.read_tools()
        self._check_characters(messages)
        schemas = ClientSchemas(request.strict_schemas(), request.strict_content_schema())
        prompt_ids = self._prompt(messages, tools)
        return tools, schemas, prompt_ids, self._grammar(request, tools, prompt_ids)

    def _check_characters(self, messages: Sequence[Message]) -> None:
        """Raises `ApiError` for what cannot fit whatever its tokens are, before they are counted."""
        characters = sum(len(message.content) + len(message.reasoning or "") for message in messages)
        calls = (call for message in messages for call in message.tool_calls)
        characters += sum(len(json.dumps(call.arguments, ensure_ascii=False)) for call in calls)
        context = self._policy.context_tokens
        if characters > context * _MOST_CHARACTERS_A_TOKEN:
            raise bad_request(
                f"the context holds {context} tokens; the messages have {characters} characters, which are more; "
                "shorten them",
                "messages",
                "context_length_exceeded",
            )

    def _prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        try:
            return self._renderer.start(messages, tools)
        except ModelError as error:
            raise bad_request(f"the model's chat template does not take these messages: {error}", "messages") from error

    def _sampling(self, request: ChatRequest, prompt_tokens: int) -> Sampling:
        """The sampling of a request that fits into the context."""
        context = self._policy.context_tokens
        room = context - prompt_tokens
        wanted = request.limit
        if room < 1 or (wanted is not None and wanted > room):
            asked = f" and {wanted} new ones are asked for" if wanted is not None else ""
            raise bad_request(
                f"the context holds {context} tokens; the messages and tools have {prompt_tokens}{asked}; shorten them"
                + (" or lower max_tokens" if wanted is not None else ""),
                "messages",
                "context_length_exceeded",
            )
        limit = min(room, self._defaults.max_tokens if wanted is None else wanted)
        temperature = self._defaults.temperature if request.temperature is None else request.temperature
        return Sampling(
            temperature=0 if temperature < LOWEST_TEMPERATURE else temperature,  # as vLLM does
            top_p=self._defaults.top_p if request.top_p is None else request.top_p,
            max_tokens=limit,
        )

    def _grammar(self, request: ChatRequest, tools: Sequence[Tool], prompt_ids: Sequence[int]) -> Grammar | None:
        """What the answer may be; None where it may be anything."""
        schema, forced = request.content_schema, request.forced_tools
        if schema is None and forced is None and not request.strict_schemas():
            return None
        if self._grammars is None:
            if schema is None and forced is None:
                return None  # calls of strict tools are held against their schemas when they are complete
            param = "tool_choice" if schema is None else "response_format"
            raise bad_request(f"{param} needs grammars, which this model has none of", param, "unsupported_value")
        how = {
            "parallel": request.parallel_tool_calls is not False and request.named_tool is None,
            # Any token after a prompt that has opened the reasoning is reasoning.
            "reasoning": self._renderer.parse(prompt_ids[:1], tools, prompt_ids=prompt_ids).reasoning is not None,
        }
        try:
            if forced is not None:
                return self._grammars.calls([tool for tool in tools if tool.name in forced], **how)
            return (
                self._grammars.text_or_calls(tools, **how)
                if schema is None
                else self._grammars.content(schema, tools, **how)
            )
        except ModelError as error:
            raise bad_request(f"{error}; use tool_choice 'auto'", "tool_choice", "unsupported_value") from error
        except ValueError as error:
            raise _too_complex(request, error) from error


def _too_complex(request: ChatRequest, error: ValueError) -> ApiError:
    """No grammar can be made of a schema, or followed."""
    param = "tools" if request.content_schema is None else "response_format"
    return bad_request(f"no answer can be sampled by the schema: {shown(str(error))}; send a simpler one", param)


def _teller(listener: Listener | None, index: int, settled: SettledReply) -> Callable[[int], bool] | None:
    """Tells the listener of what is settled, and the policy when to end: at a stop string."""
    if listener is None and not settled.stops:
        return None

    def tell(token: int) -> bool:
        if settled.hear(token) and listener is not None:
            listener.grow(index, settled.reasoning, settled.content)
        return settled.stopped

    return tell


def _choice(request: ChatRequest, parsed: ParsedReply, schemas: ClientSchemas, completion: Completion) -> Choice:
    """The answer that a complete reply is."""
    content, calls = written_calls(parsed, schemas)
    content, stopped = _cut_at_stop(content, request.stops)
    calls = [] if stopped else calls
    if request.parallel_tool_calls is False:
        calls = calls[:1]
    if request.forced_tools is not None:
        broken = next((call.error for call in parsed.tool_calls if call.error is not None), None)
        _check_forced(request.forced_tools, calls, broken, completion)
    if not calls and not stopped and completion.stop_reason != "length":
        schemas.check_content(content)
    reason = "stop"
    if completion.stop_reason == "length" and not stopped:
        reason = "length"
    elif calls:
        reason = "tool_calls"
    return Choice(content, parsed.reasoning, calls, reason, len(completion.token_ids))


def _cut_at_stop(content: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The content up to the first stop string, and whether there was one."""
    places = [content.find(stop) for stop in stops]
    found = [place for place in places if place >= 0]
    return (content[: min(found)], True) if found else (content, False)


def _check_forced(
    names: Sequence[str], calls: Sequence[WrittenCall], broken: str | None, completion: Completion
) -> None:
    """Raises `ApiError` where no such call came of it: a model whose form of calls is not known may go astray after
    their beginning."""
    if calls and broken is None and all(call.name in names and call.problem is None for call in calls):
        return
    if completion.stop_reason == "length":
        return  # cut off, which finish_reason says
    problem = (
        broken
        or next((call.problem for call in calls if call.problem), None)
        or (f"it called {', '.join(repr(call.name) for call in calls)}" if calls else "it wrote no call")
    )
    raise ApiError(
        422,
        f"tool_choice asks for a call of {' or '.join(names)}, and the model did not write one: {problem}",
        param="tool_choice",
        code="tool_choice_not_met",
        kind="model_error",
    )


_READS = 64
"""How often a reply is read while it doubles: each token would make long replies cost the square of their length."""
_LOOK_BACK = 12
"""Tokens. A mark that changes what text before it means (`<tool_call>`, `<think>`) is read only when it is whole; the
longest has 11 characters, and no token has less than one."""


class SettledReply:
    """The reasoning and the content so far, up to where later tokens could still change them.

    Text counts once it stands in two readings of the reply, `_LOOK_BACK` tokens apart: half a mark stands in the first
    only, and so does half a character. White space at the end may yet be cut off, and the beginning of a stop string
    may become one.
    """

    def __init__(
        self,
        parse: Callable[[Sequence[int]], ParsedReply],
        stops: Sequence[str],
        *,
        with_tools: bool = False,
    ) -> None:
        """`parse` reads the reply's tokens; `stops` end the content before them.

        `with_tools`: content that begins as JSON does waits for its end, since some families write calls without marks.
        """
        self._with_tools = with_tools
        self._parse = parse
        self._ids: list[int] = []
        self.stops = stops
        self.stopped = False
        """Whether a stop string has come."""
        self._readings: deque[tuple[int, ParsedReply]] = deque()
        """With how many tokens each was read; the first is the latest that lies far enough back, if any does."""
        self._next_reading = 0
        self.reasoning = ""
        self.content = ""

    def hear(self, token: int) -> bool:
        """Take one more token; True when there is more to say."""
        self._ids.append(token)
        count = len(self._ids)
        if count < self._next_reading:
            return False
        self._next_reading = count + max(1, count // _READS)
        new = self._parse(self._ids)
        self._readings.append((count, new))
        while len(self._readings) > 1 and self._readings[1][0] <= count - _LOOK_BACK:
            self._readings.popleft()
        read_with, old = self._readings[0]
        if read_with > count - _LOOK_BACK:
            return False
        before = self.reasoning, self.content
        self.reasoning = _grown(self.reasoning, _common(old.reasoning or "", new.reasoning or "", self.reasoning))
        common = _common(old.content, new.content, self.content)
        settled = before_stops(common, self.stops)
        if not (self._with_tools and settled.lstrip().startswith(("{", "["))):
            self.content = _grown(self.content, settled)
            self.stopped = any(stop in common for stop in self.stops)
        return (self.reasoning, self.content) != before


def before_stops(content: str, stops: Sequence[str]) -> str:
    """The content up to the first stop string, or up to what may be the beginning of one."""
    places = [content.find(stop) for stop in stops]
    ends = [place for place in places if place >= 0]
    ends += [
        len(content) - size
        for stop in stops
        for size in range(1, min(len(stop), len(content) + 1))
        if content.endswith(stop[:size])
    ]
    return content[: min(ends, default=len(content))]


def _common(old: str, new: str, said: str) -> str:
    """The beginning that both have, without white space at its end; from what was `said` on where both have that."""
    start = len(said) if old.startswith(said) and new.startswith(said) else 0
    pairs = zip(old[start:], new[start:], strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return new[: start + same].rstrip()


def _grown(said: str, now: str) -> str:
    """What was said is not taken back; whether the reply keeps to it shows when it is complete."""
    return now if now.startswith(said) else said
