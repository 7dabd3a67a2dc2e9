"""A double that ships with the library: an agent that plays a script, with real token rows and no model.

One token is one UTF-8 byte, so everything downstream of tokens can be exercised and read by eye.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence

from mcp_bridge.records import Tool

from ..errors import ConfigError, PolicyFailure
from ..records import Message, Task, TokenRow, ToolCall
from .protocol import Completion, Hearing, Reply, Sampling
from .rendering import ChatRenderer, ParsedReply
from .rendering.call_parsing import format_calls, parse_tagged_reply
from .token_agent import TokenHistory, cut_at_stops, with_call_ids

Line = str | Message | ToolCall | Sequence[ToolCall]
"""One reply of a script: a text, an assistant message, or calls. Calls without an id are given one."""

Script = Callable[[list[Message], int], Line | Awaitable[Line]] | Sequence[Line]
"""Replies in order, or a function of the messages so far and the conversation's seed, sync or async."""

END_TOKEN = 256
_ROLE_TOKENS = {"system": 257, "user": 258, "assistant": 259, "tool": 260, "tools": 261}
_ROLE_NAMES = {token: f"<{name}>" for name, token in _ROLE_TOKENS.items()} | {END_TOKEN: "<end>"}


class ByteRenderer:
    """A `ChatRenderer` whose tokens are bytes: 0 to 255, 256 ends a turn, 257 to 261 begin a role."""

    family = "bytes"
    stop_token_ids = [END_TOKEN]  # noqa: RUF012 - read only, and the protocol has a list

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        ids: list[int] = []
        if tools:
            shown = json.dumps([tool.as_openai() for tool in tools], ensure_ascii=False)
            ids += [_ROLE_TOKENS["tools"], *_bytes(shown), END_TOKEN]
        return ids + self._render(messages)

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool],  # noqa: ARG002 - shown at the start
    ) -> list[int]:
        close = [] if completion_ids and completion_ids[-1] == END_TOKEN else [END_TOKEN]
        return [*prompt_ids, *completion_ids, *close, *self._render(new_messages)]

    def parse(
        self,
        completion_ids: Sequence[int],
        tools: Sequence[Tool],  # noqa: ARG002 - JSON needs no schema to be read
        *,
        prompt_ids: Sequence[int] = (),  # noqa: ARG002 - no prompt opens the reasoning
    ) -> ParsedReply:
        return parse_tagged_reply(self.tagged_text(completion_ids))

    def tagged_text(self, completion_ids: Sequence[int]) -> str:
        ids = list(completion_ids)
        return self.decode(ids[:-1] if ids[-1:] == [END_TOKEN] else ids)

    def encode_reply(self, message: Message, tools: Sequence[Tool]) -> list[int]:  # noqa: ARG002
        reasoning = f"<think>{message.reasoning}</think>" if message.reasoning is not None else ""
        return [*_bytes(reasoning + format_calls(message.content, message.tool_calls)), END_TOKEN]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, markers shown as `<user>`, `<end>` and so on."""
        out, run = "", bytearray()
        for token in ids:
            if token < END_TOKEN:
                run.append(token)
            else:
                out += run.decode(errors="replace") + _ROLE_NAMES[token]
                run = bytearray()
        return out + run.decode(errors="replace")

    def _render(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids.append(_ROLE_TOKENS[message.role])
            ids += (
                self.encode_reply(message, []) if message.role == "assistant" else [*_bytes(message.content), END_TOKEN]
            )
        return [*ids, _ROLE_TOKENS["assistant"]]


class ScriptedAgent:
    """Plays `script`; each conversation plays a list from its beginning.

    A script is not sampled: it is played whole, whatever the token limit, unless `limit_tokens` is set; then a
    reply is cut after that many bytes, as a policy's would be. Log-probabilities are 0.0 (the script was certain)
    and the version is 0. A list that has run out raises `PolicyFailure`; what a function raises is passed on.
    """

    def __init__(
        self,
        script: Script,
        name: str = "scripted",
        *,
        limit_tokens: bool = False,
        renderer: ChatRenderer | None = None,
    ) -> None:
        """`renderer`: writes the rows in a model's tokens; None: in bytes."""
        self._script = script if callable(script) else list(script)
        self.name = name
        self._limit_tokens = limit_tokens
        self._renderer = renderer or ByteRenderer()

    def start(self, tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> ScriptedConversation:
        limit = sampling.max_tokens if self._limit_tokens else None
        return ScriptedConversation(self._script, tools, limit=limit, seed=seed, renderer=self._renderer)


class ScriptedConversation:
    """One conversation that follows a script."""

    def __init__(
        self, script: Script, tools: Sequence[Tool], *, limit: int | None, seed: int, renderer: ChatRenderer
    ) -> None:
        self._script = script
        self._tools = list(tools)
        self._limit = limit
        self._seed = seed
        self._turn = 0
        self._renderer = renderer
        self._history = TokenHistory(self._renderer, tools)

    def rows(self) -> list[TokenRow]:
        return self._history.rows

    async def reply(
        self,
        new_messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        stops: Sequence[str] = (),
        hearing: Hearing | None = None,
    ) -> Reply:
        heard = list(new_messages)
        earlier = [*self._history.messages, *heard]
        message = _as_message(await self._line(earlier))
        tokens = self._renderer.encode_reply(message, self._tools)
        limit = None if self._limit is None else min(self._limit, max_tokens or self._limit)
        cut = limit is not None and len(tokens) > limit
        kept = cut_at_stops(tokens[:limit], stops, self._parse)
        if len(kept) < len(tokens):
            cut, tokens = cut and len(kept) == limit, kept
            parsed = self._parse(tokens)
            message = Message(
                role="assistant", content=parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls
            )
        message = message.model_copy(update={"tool_calls": with_call_ids(message.tool_calls, earlier)})
        prompt, extends = self._history.next_prompt(heard)
        if hearing is not None:
            hear = hearing(self._renderer, prompt)
            for token in tokens:
                hear(token)
        self._history.record(heard, message, prompt, tokens, [0.0] * len(tokens), version=0, extends=extends)
        self._turn += 1
        return Reply(message, "length" if cut else "stop", sampled_tokens=len(tokens), prompt_tokens=len(prompt))

    def _parse(self, ids: Sequence[int]) -> ParsedReply:
        return self._renderer.parse(ids, self._tools)

    async def _line(self, messages: list[Message]) -> Line:
        if callable(self._script):
            line = self._script([message.model_copy(deep=True) for message in messages], self._seed)
            return await line if inspect.isawaitable(line) else line
        if self._turn >= len(self._script):
            raise PolicyFailure(
                f"the script has {len(self._script)} replies and reply {self._turn + 1} was asked for; add one, "
                "or end the script with a message that makes no call"
            )
        return self._script[self._turn]


class ScriptedPolicy:
    """A `Policy` that plays token ids: `completions` in order of the calls, or a function of prompt and seed.

    The ids are cut at the token limit and at the first stop token, as an engine's are; each has the
    log-probability `logprob`. `requests` keeps every prompt it was given.
    """

    def __init__(
        self,
        completions: Sequence[Sequence[int]] | Callable[[list[int], int], Sequence[int]],
        *,
        context_tokens: int = 8192,
        version: int = 0,
        logprob: float = -0.5,
    ) -> None:
        self._completions = completions if callable(completions) else [list(ids) for ids in completions]
        self.context_tokens = context_tokens
        self._version = version
        self._logprob = logprob
        self.requests: list[list[int]] = []

    async def sample(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        if len(prompt_ids) + sampling.max_tokens > self.context_tokens:
            raise PolicyFailure(
                f"{len(prompt_ids)} prompt tokens and {sampling.max_tokens} to sample do not fit into the "
                f"context of {self.context_tokens}"
            )
        index = len(self.requests)
        self.requests.append(list(prompt_ids))
        if callable(self._completions):
            ids = list(self._completions(list(prompt_ids), seed))
        elif index < len(self._completions):
            ids = list(self._completions[index])
        else:
            raise PolicyFailure(
                f"the script has {len(self._completions)} completions; number {index + 1} was asked for"
            )
        ends = [place for place, token in enumerate(ids) if token in stop_token_ids][:1]
        kept = ids[: ends[0] + 1 if ends else len(ids)][: sampling.max_tokens]
        stopped = bool(kept) and kept[-1] in stop_token_ids
        return Completion(kept, [self._logprob] * len(kept), "stop" if stopped else "length", self._version)


def replay_demonstration(task: Task) -> ScriptedAgent:
    """An agent that plays the task's demonstration, to check that the gold solution earns what it should.

    Raises `ConfigError` when the task has none, or when it holds other than assistant messages.
    """
    if not task.demonstration:
        raise ConfigError(f"task {task.id!r} has no demonstration; give it the assistant messages of a right solution")
    others = sorted({message.role for message in task.demonstration} - {"assistant"})
    if others:
        raise ConfigError(
            f"the demonstration of task {task.id!r} holds messages of role {', '.join(others)}; only assistant "
            "messages belong there, because calls are replayed"
        )
    return ScriptedAgent(task.demonstration, name="demonstration")


def _as_message(line: Line) -> Message:
    if isinstance(line, Message):
        if line.role != "assistant":
            raise ConfigError(f"the script played a message of role {line.role!r}; it must be 'assistant'")
        return line
    if isinstance(line, str):
        return Message(role="assistant", content=line)
    return Message(role="assistant", tool_calls=[line] if isinstance(line, ToolCall) else list(line))


def _bytes(text: str) -> list[int]:
    return list(text.encode(errors="replace"))
