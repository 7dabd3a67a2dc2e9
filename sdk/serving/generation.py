"""Generation makes finished choices of a checked request: prompt, sampling, grammar and stop strings."""

from __future__ import annotations

import json
import re
import secrets
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.to_thread

from mcp_bridge.records import Tool

from ..errors import ModelError, PolicyFailure, plain_errors
from ..policies.grammar import Grammar, ReplyGrammars
from ..policies.protocol import LOWEST_TEMPERATURE, AdjustedSampling, Completion, Sampling, StreamingPolicy
from ..policies.rendering import ChatRenderer, ParsedReply, reasoning_open
from ..policies.rendering.call_parsing import UnreadCall
from ..policies.tool_prompt import shows_name_alone
from ..records import Message
from ..rollouts import derive_seed
from .chat_request import ChatRequest
from .requests import ApiError, RequestQueue, RequestRecord, bad_request, current_record, shown
from .settled_replies import SettledReply, settled_reply
from .tool_calls import ClientSchemas, WrittenCall, calls_as_text, written_calls

_MOST_CHARACTERS_A_TOKEN = 256
"""More than the longest token of any vocabulary that we know: runs of 128 blanks."""


@dataclass(frozen=True)
class WrittenJson:
    """JSON that `written` puts where it stands in a value. While `json.dumps` writes megabytes at once, no other thread
    runs, and nobody is answered."""

    text: str
    place: str = field(default_factory=lambda: secrets.token_hex(16))
    """Stands for it meanwhile. Nobody can guess it."""

    @classmethod
    def of(cls, items: Iterable[Any]) -> WrittenJson:
        """A list, written item by item."""
        return cls(f"[{','.join(map(json.dumps, items))}]")


def written(value: Any, **options: Any) -> str:
    """`json.dumps` of a value that may have `WrittenJson` in it."""
    parts: dict[str, str] = {}

    def hold(part: Any) -> str:
        if not isinstance(part, WrittenJson):
            raise TypeError(f"{type(part).__name__} is not JSON")
        parts[f'"{part.place}"'] = part.text
        return part.place

    text = json.dumps(value, default=hold, **options)
    return re.sub("|".join(parts), lambda found: parts[found[0]], text) if parts else text


@dataclass(frozen=True)
class Choice:
    """One answer. `finish_reason` is OpenAI's: stop, length or tool_calls."""

    content: str
    reasoning: str | None
    tool_calls: list[WrittenCall]
    finish_reason: str
    tokens: int
    reasoning_tokens: int = 0
    """Of `tokens`, those up to the end of the reasoning."""
    calls_first: bool = False
    """Whether all of the content stands behind a call: what could not be read as one."""
    logprobs: WrittenJson | None = None
    """A list of each token's in OpenAI's form, where they are asked for."""


@dataclass(frozen=True)
class Generated:
    """All answers to one request."""

    choices: list[Choice]
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that were not computed for this request."""

    def usage(self) -> dict[str, Any]:
        completion = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in self.choices)},
        }


class Listener(Protocol):
    """Hears of answers while they are sampled, on the event loop."""

    def grow(self, index: int, reasoning: str, content: str, calls: Sequence[WrittenCall] = ()) -> None:
        """So far answer `index` says this for good; of a call its name, and its arguments as far as they are known."""
        ...

    def finish(self, index: int, choice: Choice) -> None:
        """Answer `index` is complete. Raises `ApiError` where it is not what was said so far."""
        ...


class Answering(Protocol):
    """Answers chat requests, as `Generator` does."""

    @property
    def alive(self) -> bool: ...

    @property
    def context_tokens(self) -> int | None:
        """The most tokens of a prompt and its answer together, where that is known."""
        ...

    @property
    def queue(self) -> RequestQueue:
        """The requests under way, for whoever asks whether another would be taken."""
        ...

    async def generate(self, request: ChatRequest, listener: Listener | None = None) -> Generated:
        """See `Generator.generate`."""
        ...


class Generator:
    """Answers requests with a policy."""

    def __init__(
        self,
        policy: StreamingPolicy,
        renderer: ChatRenderer,
        grammars: ReplyGrammars | None,
        queue: RequestQueue,
        *,
        defaults: Sampling,
    ) -> None:
        self.queue = queue
        self._policy = policy
        self._renderer = renderer
        self._grammars = grammars
        self._defaults = defaults
        self._one_at_a_time = anyio.CapacityLimiter(1)

    @property
    def alive(self) -> bool:
        """False where the policy has ended and every request would fail."""
        return bool(getattr(self._policy, "alive", True))

    @property
    def context_tokens(self) -> int:
        """The most tokens of prompt and answer together."""
        return self._policy.context_tokens

    async def generate(self, request: ChatRequest, listener: Listener | None = None) -> Generated:
        """All answers, of which `listener` hears while they are sampled.

        Raises `ApiError`: 400 for requests that do not fit, 422 for a call that was asked for and not made, 429 where
        too many wait, 500 when the engine broke, 503 when the server shuts down.
        """
        record = current_record()
        assert record is not None, "answers belong to requests"
        with self.queue.place(record):
            self.queue.expect(record, request.n or 1)
            return await self._generate(request, listener, record)

    async def _generate(self, request: ChatRequest, listener: Listener | None, record: RequestRecord) -> Generated:
        # One at a time, and beside the event loop: a long conversation takes seconds, in which others are answered.
        read = partial(self._read, request)
        tools, prompt_ids, sampling, schemas, grammar = await anyio.to_thread.run_sync(
            read, limiter=self._one_at_a_time
        )
        stop_ids = request.read_stop_ids(self._policy.vocabulary) if request.stop_token_ids else []
        if request.logprobs and self._grammars is None:
            raise bad_request(
                "logprobs needs the text of tokens, which this model's tokenizer does not tell", "logprobs"
            )
        record.prompt_tokens = len(prompt_ids)
        seed = secrets.randbits(31) if request.seed is None else request.seed
        choices: dict[int, Choice] = {}

        def parse(ids: Sequence[int]) -> ParsedReply:
            return self._renderer.parse(ids, tools, prompt_ids=prompt_ids)

        def finished(completion: Completion, begun: Sequence[WrittenCall]) -> Choice:
            ids = completion.token_ids
            said = parse(ids[:-1] if ids and ids[-1] in stop_ids else ids)
            made = _choice(request, said if tools else calls_as_text(said), schemas, completion, begun)
            reasoned = _reasoning_tokens(parse, ids, said.reasoning)
            return replace(made, reasoning_tokens=reasoned, logprobs=self._logprobs(completion))

        async def one(index: int) -> None:
            settled = settled_reply(self._renderer, prompt_ids, request, tools)
            try:
                completion = await self._policy.sample(
                    prompt_ids,
                    sampling=sampling,
                    seed=derive_seed("serving", seed, index),
                    stop_token_ids=[*self._renderer.stop_token_ids, *stop_ids],
                    on_token=_teller(
                        partial(record.take_token, index), listener, index, settled, request.stops, stop_ids
                    ),
                    grammar=grammar,
                )
                record.cached_tokens = completion.cached_tokens if index == 0 else record.cached_tokens
                # Beside the event loop: holding a long answer against a schema may take a second, and so may writing
                # log-probabilities; those of many answers would keep the interpreter from it if they were at once.
                limiter = self._one_at_a_time if request.logprobs else None
                choices[index] = await anyio.to_thread.run_sync(finished, completion, settled.calls, limiter=limiter)
                record.finish_reasons.append(choices[index].finish_reason)
                if listener is not None:
                    listener.finish(index, choices[index])
            except PolicyFailure as error:
                raise ApiError(500, f"the engine failed: {error}", kind="server_error", code="engine_failed") from error
            except ValueError as error:
                if grammar is None:
                    raise
                raise _too_complex(request, error) from error

        with plain_errors():
            async with anyio.create_task_group() as group:
                for index in range(request.n or 1):
                    group.start_soon(one, index)
        return Generated([choices[index] for index in sorted(choices)], len(prompt_ids), record.cached_tokens)

    def _logprobs(self, completion: Completion) -> WrittenJson | None:
        if completion.alternatives is None or self._grammars is None:
            return None
        spell = self._grammars.token_bytes
        return WrittenJson.of(
            {
                **_token_logprob(spell(token), one.logprob),
                "top_logprobs": [_token_logprob(spell(other), logprob) for other, logprob in one.top],
            }
            for token, one in zip(completion.token_ids, completion.alternatives, strict=True)
        )

    def _read(self, request: ChatRequest) -> tuple[list[Tool], list[int], Sampling, ClientSchemas, Grammar | None]:
        """The tools, the prompt, the sampling, the schemas that the answer is held against, and what it may be."""
        messages, tools = request.read_messages(), request.read_tools()
        check_characters(messages, self._policy.context_tokens, request.called("messages"))
        prompt_ids = self._prompt(request, messages, tools)
        sampling = self._sampling(request, len(prompt_ids))  # before schemas, which take longer, of what has no room
        schemas = ClientSchemas(
            request.strict_schemas(), request.strict_content_schema(), request.called("response_format")
        )
        return tools, prompt_ids, sampling, schemas, self._grammar(request, tools, prompt_ids)

    def _prompt(self, request: ChatRequest, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        try:
            return self._renderer.start(messages, tools)
        except ModelError as error:
            refused, param = "messages", request.called("messages")
            with suppress(ModelError):
                if tools and self._renderer.start(messages, []):
                    refused = param = "tools"
            raise bad_request(f"the model's chat template does not take these {refused}: {error}", param) from error

    def _sampling(self, request: ChatRequest, prompt_tokens: int) -> Sampling:
        """The sampling of a request that fits into the context."""
        context = self._policy.context_tokens
        room = context - prompt_tokens
        wanted = request.limit
        limiting = "max_completion_tokens" if request.max_completion_tokens else request.called("max_tokens")
        if room < 1 or (wanted is not None and wanted > room):
            asked = f" and {wanted} new ones are asked for" if wanted is not None else ""
            raise bad_request(
                f"the context holds {context} tokens; the messages and tools have {prompt_tokens}{asked}; shorten them"
                + (f" or lower {limiting}" if wanted is not None else ""),
                request.called("messages"),
                "context_length_exceeded",
            )
        limit = min(room, self._defaults.max_tokens if wanted is None else wanted)
        temperature = self._defaults.temperature if request.temperature is None else request.temperature
        return AdjustedSampling(
            temperature=0 if temperature < LOWEST_TEMPERATURE else temperature,  # as vLLM does
            top_p=self._defaults.top_p if request.top_p is None else request.top_p,
            max_tokens=limit,
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            logit_bias=request.read_bias(self._policy.vocabulary) if request.logit_bias else (),
            top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        )

    def _grammar(self, request: ChatRequest, tools: Sequence[Tool], prompt_ids: Sequence[int]) -> Grammar | None:
        """What the answer may be; None where it may be anything."""
        schema, forced = request.content_schema, request.forced_tools
        strict = request.strict_schemas()
        if schema is None and forced is None and not strict and not (self._defaults.strict_tools and tools):
            return None
        if self._defaults.strict_tools:
            tools = [
                tool.model_copy(update={"input_schema": {}})
                if shows_name_alone(tool) and tool.name not in strict
                else tool
                for tool in tools
            ]
        if self._grammars is None:
            if schema is None and forced is None:
                return None  # calls of strict tools are held against their schemas when they are complete
            param = "tool_choice" if schema is None else request.called("response_format")
            raise bad_request(f"{param} needs grammars, which this model has none of", param, "unsupported_value")
        how = {
            "parallel": request.parallel_tool_calls is not False and request.named_tool is None,
            "reasoning": reasoning_open(self._renderer, prompt_ids),
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


def check_characters(messages: Sequence[Message], context_tokens: int, param: str = "messages") -> None:
    """Raises `ApiError` for what cannot fit whatever its tokens are, before they are counted."""
    characters = sum(len(message.content) + len(message.reasoning or "") for message in messages)
    calls = (call for message in messages for call in message.tool_calls)
    characters += sum(
        len(call.written if isinstance(call, UnreadCall) else json.dumps(call.arguments, ensure_ascii=False))
        for call in calls
    )
    if characters > context_tokens * _MOST_CHARACTERS_A_TOKEN:
        raise bad_request(
            f"the context holds {context_tokens} tokens; the messages have {characters} characters, which are more; "
            "shorten them",
            param,
            "context_length_exceeded",
        )


def _too_complex(request: ChatRequest, error: ValueError) -> ApiError:
    """No grammar can be made of a schema, or followed."""
    param = "tools" if request.content_schema is None else request.called("response_format")
    return bad_request(f"no answer can be sampled by the schema: {shown(str(error))}; send a simpler one", param)


_LEAST_LOGPROB = -9999.0
"""JSON has no infinity; vLLM writes this, too."""


def _token_logprob(spelt: bytes, logprob: float) -> dict[str, Any]:
    text = spelt.decode(errors="replace")
    return {"token": text, "logprob": max(logprob, _LEAST_LOGPROB), "bytes": list(spelt)}


def _teller(
    count: Callable[[], None],
    listener: Listener | None,
    index: int,
    settled: SettledReply,
    stops: Sequence[str],
    stop_ids: Sequence[int],
) -> Callable[[int], bool]:
    """Counts each token, and tells the listener of what is settled, and the policy when to end: at a stop string."""
    is_read = listener is not None or bool(stops)

    def tell(token: int) -> bool:
        count()
        if is_read and token not in stop_ids and settled.hear(token) and listener is not None:
            listener.grow(index, settled.reasoning, settled.content, settled.calls)
        return settled.stopped

    return tell


def _choice(
    request: ChatRequest,
    parsed: ParsedReply,
    schemas: ClientSchemas,
    completion: Completion,
    begun: Sequence[WrittenCall],
) -> Choice:
    """The answer that a complete reply is; `begun`: what was said of its calls already."""
    content, calls = written_calls(parsed, schemas, begun)
    content, stopped = cut_at_stop(content, request.stops, parsed)
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
    first = bool(calls) and not parsed.before_calls.strip()
    return Choice(content, parsed.reasoning, calls, reason, len(completion.token_ids), calls_first=first)


def _reasoning_tokens(parse: Callable[[Sequence[int]], ParsedReply], ids: Sequence[int], reasoning: str | None) -> int:
    """How many tokens it takes to read all of the reasoning."""
    if not reasoning:
        return 0
    return bisect_left(range(len(ids)), len(reasoning), key=lambda count: len(parse(ids[:count]).reasoning or ""))


def cut_at_stop(content: str, stops: Sequence[str], parsed: ParsedReply) -> tuple[str, bool]:
    """The content of a reply up to the first stop string, and whether there was one. White space between it and a call
    is not content, and may be one."""
    for text in (parsed.before_calls, content):
        if found := [place for stop in stops if (place := text.find(stop)) >= 0]:
            return text[: min(found)], True
    return content, False


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
