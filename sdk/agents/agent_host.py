"""The host of a user's agent: one port of this machine, behind which each key leads to one rollout.

A hosted rollout has the agent's requests for messages, the conversations that they go on with, its calls, and what ends
it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import anyio
import anyio.to_thread
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from mcp_bridge.errors import BridgeError, SourceError
from mcp_bridge.publishing.listener import KEPT_OPEN_S, sent_key
from mcp_bridge.publishing.server import publish_found
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.safe_text import plural

from ..errors import AgentFailure, ModelError, PolicyFailure, UserFailure, plain_errors
from ..policies.protocol import Agent, Conversation, Reply, Sampling
from ..policies.rendering import ChatRenderer, ParsedReply
from ..policies.token_agent import unique_id
from ..records import Message, TokenRow, ToolCall
from ..rollouts import derive_seed
from ..rollouts.episode import Episode
from ..serving.backend import Backend
from ..serving.chat_request import ChatRequest, read_message
from ..serving.generation import Choice, Generated, Listener, check_characters, cut_at_stop
from ..serving.openai_api import Endpoint
from ..serving.replies import KEEP_ALIVE_S, chat_message
from ..serving.requests import ApiError, RequestQueue, bad_request
from ..serving.server import bind
from ..serving.settled_replies import settled_reply
from ..serving.tool_calls import ClientSchemas, calls_as_text, written_calls
from .agent_endpoint import AgentEndpoint
from .agent_programs import AgentProgram, FunctionAgent, asked_proxy, told_task

log = logging.getLogger(__name__)


@dataclass
class KeptConversation:
    """One unbroken conversation with the policy."""

    conversation: Conversation
    tools: list[Tool]
    sent: list[Message] = field(default_factory=list)
    """As the agent sent them, and the answers as they were returned to it: what its next request begins with."""
    opening: list[Message] = field(default_factory=list)
    """The messages of its first request."""
    turns: list[Message] = field(default_factory=list)
    """What followed, the answers as the policy gave them."""
    closed: bool = False
    """Whether nothing goes on with it: its last tokens are more than the agent was told."""

    def goes_on_in(self, messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        """Whether a request has all of this, and after it only messages that are not the assistant's."""
        known = len(self.sent)
        return (
            not self.closed
            and known < len(messages)
            and list(messages[:known]) == self.sent
            and all(message.role != "assistant" for message in messages[known:])
            and shown(tools) == shown(self.tools)
        )

    def record(
        self, new_messages: Sequence[Message], *, returned: Message, said: Message, closed: bool = False
    ) -> None:
        """Note a turn."""
        self.closed = closed
        if self.sent:
            self.turns += new_messages
        else:
            self.opening = list(new_messages)
        self.sent += [*new_messages, returned]
        self.turns.append(said)


def shown(tools: Sequence[Tool]) -> list[dict[str, object]]:
    """What a policy reads of tools."""
    return [tool.as_openai() for tool in tools]


class UniqueCalls:
    """A conversation whose calls have ids that no other call of the rollout has, so that each result belongs to one.

    A policy numbers the calls of each conversation anew. It goes on to read its own ids: its template may show them.
    """

    def __init__(self, conversation: Conversation, used: set[str]) -> None:
        """`used`: the ids of the rollout so far, to which those of this conversation are added."""
        self._conversation = conversation
        self._used = used
        self._own: dict[str, str] = {}

    async def reply(self, new_messages: Sequence[Message], **options: Any) -> Reply:
        """See `Conversation.reply`."""
        self._used.update(call.id for message in new_messages for call in message.tool_calls)
        heard = [
            message.model_copy(update={"tool_call_id": self._own[message.tool_call_id]})
            if message.tool_call_id in self._own
            else message
            for message in new_messages
        ]
        reply = await self._conversation.reply(heard, **options)
        calls = [call.model_copy(update={"id": self._unique(call.id)}) for call in reply.message.tool_calls]
        return replace(reply, message=reply.message.model_copy(update={"tool_calls": calls}))

    def rows(self) -> list[TokenRow]:
        return self._conversation.rows()

    def _unique(self, own: str) -> str:
        unique = unique_id(own, self._used)
        if unique != own:
            self._own[unique] = own
        return unique


class KeptConversations:
    """All of a rollout, in the order in which they began. Each is a row of tokens, and where the template rewrites its
    history, several."""

    def __init__(self, agent: Agent, world_tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> None:
        self._agent = agent
        self._world_tools = list(world_tools)
        self._sampling = sampling
        self._seed = seed
        self._kept: list[KeptConversation] = []
        self._call_ids: set[str] = set()

    def of(self, messages: Sequence[Message], tools: Sequence[Tool]) -> KeptConversation:
        """The one that a request goes on with: the longest that it extends, or a new one, which is not kept yet."""
        found = [one for one in self._kept if one.goes_on_in(messages, tools)]
        if found:
            return max(found, key=lambda one: len(one.sent))
        # The same objects as elsewhere where they read the same, so that they are rendered once.
        same = shown(tools) == shown(self._world_tools)
        known = self._world_tools if same else list(tools)
        number = len(self._kept)
        seed = self._seed if number == 0 else derive_seed(self._seed, "conversation", number)
        started = self._agent.start(known, sampling=self._sampling, seed=seed)
        return KeptConversation(UniqueCalls(started, self._call_ids), known)

    def keep(self, conversation: KeptConversation) -> None:
        """Keep a new one, now that it has a reply."""
        if not any(one is conversation for one in self._kept):
            self._kept.append(conversation)

    def separate(self) -> int:
        """How many conversations there are that do not begin with all that was said before them; the assistant's words
        may be other ones, and without its reasoning."""
        count, told = 0, list[Message]()
        for kept in self._kept:
            goes_on = 0 < len(told) < len(kept.opening) and all(
                one == other or one.role == other.role == "assistant"
                for one, other in zip(kept.opening, told, strict=False)
            )
            count += not goes_on
            told = [*([] if goes_on else told), *kept.opening, *kept.turns]
        return count

    def messages(self) -> list[Message]:
        """One conversation after the other, as their rows are, each assistant message once: where it was sampled. Of
        what else a later one repeats, only what is new. Results have their tools' names, which clients leave out."""
        told: list[Message] = []
        for kept in self._kept:
            known, new = [one for one in told if one.role != "assistant"], []
            for one in kept.opening:
                if told and one.role == "assistant":
                    continue
                if one in known:
                    known.remove(one)  # what was said twice is repeated twice
                else:
                    new.append(one)
            told += new + kept.turns
        names = {call.id: call.name for message in told for call in message.tool_calls}
        return [
            message.model_copy(update={"name": names[message.tool_call_id]})
            if message.role == "tool" and message.name is None and message.tool_call_id in names
            else message
            for message in told
        ]


MOST_WAITING = 64
"""Requests for messages under way at once. They are answered one after the other: limits then hold exactly."""
_FEWEST_REQUESTS = 1000
_REQUESTS_A_TURN = 20
_NO_SCHEMAS = ClientSchemas({})


class HostedRollout:
    """Answers what one agent asks. `Answering` for the model's URL, `FoundWorld` for the tools' URL."""

    def __init__(self, episode: Episode, agent: Agent) -> None:
        self._episode = episode
        self._rollout = episode.rollout
        self.context_tokens: int | None = getattr(agent, "context_tokens", None)
        """The most tokens of a prompt and its reply together, where the policy says so."""
        tools = list(episode.tools)
        self.tools: Sequence[Tool] = tools
        """Of the rollout's world."""
        self._kept = KeptConversations(agent, tools, sampling=episode.sampling, seed=episode.rollout.seed)
        self._latest: KeptConversation | None = None
        """The one that went on last, since the user spoke."""
        self._said_last = Message(role="assistant", content="")
        """By the model, as the agent was told it, or by the agent to the user."""
        self._told: list[Message] = episode.rollout.task.opening()
        """The conversation with the user as the agent was told it."""
        self._last_words: list[Message] = []
        """Of the user, which the agent did not hear any more."""
        self._asked: list[ToolCall] = []
        """Calls that the policy wrote and that did not reach the world yet."""
        self._call_ids: set[str] = set()
        self._calling = 0
        limits = episode.limits
        self._most_requests = _FEWEST_REQUESTS + _REQUESTS_A_TURN * (limits.max_turns + limits.max_calls)
        self._requests = 0
        self.queue = RequestQueue(MOST_WAITING)
        self.overruled: set[str] = set()
        """Settings of sampling that requests had and the rollout does not follow."""
        self.refused = ""
        """Why the latest request was refused."""
        self.strangers = 0
        """Requests that came meanwhile without the key of a rollout: this agent's, or another's."""
        self._waiting = 0
        self._one_at_a_time = anyio.Lock()
        self._under_way: set[anyio.CancelScope] = set()
        self._settled = anyio.Condition()
        self.over = episode.over
        """Set when something has ended the rollout."""
        self.error: Exception | None = None
        """What broke, for `run_episode`."""

    @property
    def alive(self) -> bool:
        """See `Answering`."""
        return not self.over.is_set()

    # What ends it: the first that does counts.

    def fail(self, error: Exception) -> None:
        """Something broke."""
        if self.alive:
            self.error = error
            self.over.set()

    def finish(self, text: str | None) -> None:
        """The agent has ended by itself, with this answer; None: what the policy said last is it."""
        if not self._rollout.turns:
            came = f"{self.strangers} {plural(self.strangers, 'request')} came meanwhile without the key of a rollout; "
            why = (
                f"its latest request was refused: {self.refused}"
                if self.refused
                else f"{came if self.strangers else ''}it must send its chat requests to endpoint.base_url "
                "(OPENAI_BASE_URL) with endpoint.api_key (OPENAI_API_KEY), in the header Authorization after the word "
                "Bearer"
            )
            self.fail(AgentFailure("AgentSilent", f"the agent ended without a message of its model; {why}"))
            return
        final = self._episode.final_answer()
        if final is None:
            final = self._last_answer() if text is None else text
        self._episode.end("answered", final)

    async def hear_user(self, text: str | None) -> list[Message] | None:
        """What the agent hears after its answer: the conversation so far with the user's next words at its end. None
        where it has ended. See `finish`."""
        task = self._rollout.task
        is_alone = task.user is None and not task.later_turns
        if is_alone or not self._rollout.turns or self._episode.final_answer() is not None:
            self.finish(text)
        if not self.alive:
            return None
        spoken = self._last_answer() if text is None else text
        # The user hears the agent, which may say it otherwise than its model; what the model said is noted in the end.
        if self._rollout.messages[-1].role == "assistant":
            self._rollout.messages.pop()
        self._said_last = Message(role="assistant", content=spoken)
        self._rollout.messages.append(self._said_last)
        try:
            said = await self._episode.users_turn()
        except (BridgeError, UserFailure) as error:
            self.fail(error)
            return None
        if isinstance(said, Message):
            self._told = [*self._so_far(spoken), said]
            self._latest = None
            return self._told
        if self._rollout.user_turns[-1].ended and self._rollout.user_turns[-1].said:
            self._last_words = [self._rollout.messages[-1]]
        self._episode.end(said, spoken if said == "answered" else "")
        return None

    def _so_far(self, spoken: str) -> list[Message]:
        """The conversation from the task's beginning as the agent had it, without its own instructions before that, and
        `spoken` at its end; what the two sides said alone where the agent worded its task otherwise, or did not ask its
        model again."""
        opening = self._rollout.task.opening()
        sent = self._latest.sent if self._latest is not None else []
        starts = [at for at in range(len(sent)) if sent[at : at + len(opening)] == opening]
        if not starts or sent[-1].tool_calls:
            return [*self._told, Message(role="assistant", content=spoken)]
        if sent[-1].content != spoken:
            return [*sent[starts[0] : -1], Message(role="assistant", content=spoken)]
        return sent[starts[0] :]

    def _last_answer(self) -> str:
        return "" if self._said_last.tool_calls else self._said_last.content

    async def close(self) -> None:
        """Cut off requests for messages, let calls end, and put what was said in order. Shield it."""
        self.over.set()
        for scope in self._under_way:
            scope.cancel()
        async with self._settled:
            while self._under_way or self._calling:
                await self._settled.wait()
        if messages := self._kept.messages():
            self._rollout.messages = [*messages, *self._last_words]
            self._rollout.conversations = self._kept.separate()

    @property
    def is_unheard(self) -> bool:
        """Whether no request came that may be its agent's."""
        return not self._requests and not self.strangers

    def count_request(self) -> None:
        """Raises `ApiError` where the agent sends requests without end."""
        self._requests += 1
        if self._requests > self._most_requests:
            said = f"the agent sent more than {self._most_requests} requests in one rollout"
            self.fail(AgentFailure("AgentFlooded", said))
            raise ApiError(429, said, code="rate_limit_exceeded", kind="rate_limit_error")

    # Requests for messages

    async def generate(self, request: ChatRequest, listener: Listener | None = None) -> Generated:
        """The next message of the conversation that the request goes on with. Raises `ApiError`."""
        self._require_open()
        if self._waiting >= MOST_WAITING:
            raise ApiError(
                429,
                f"{MOST_WAITING} requests of this rollout are under way, which is the most; send fewer at once",
                code="rate_limit_exceeded",
                kind="rate_limit_error",
            )
        self._waiting += 1
        scope = anyio.CancelScope()
        self._under_way.add(scope)
        generated: Generated | None = None
        try:
            with scope:
                messages = await anyio.to_thread.run_sync(self._read, request)  # megabytes take seconds
                async with self._one_at_a_time:
                    generated = await self._answer(request, messages, listener)
        finally:
            self._waiting -= 1
            self._under_way.discard(scope)
            await self._tell_settled()
        if generated is None:
            raise self._ended()
        if listener is not None:
            listener.finish(0, generated.choices[0])
        return generated

    def _read(self, request: ChatRequest) -> list[Message]:
        _refuse(request)
        messages = request.read_messages()
        if self.context_tokens is not None:
            check_characters(messages, self.context_tokens, request.called("messages"))
        return messages

    async def _answer(self, request: ChatRequest, messages: list[Message], listener: Listener | None) -> Generated:
        self._require_open()
        tools = request.read_tools()
        self._note_overruled(request)
        hearing = None if listener is None else partial(_hearing, request, listener)
        try:
            kept = self._kept.of(messages, tools)
            new = messages[len(kept.sent) :]
            reply = await self._episode.ask(
                kept.conversation, new, at_most=request.limit, stops=request.stops, hearing=hearing
            )
        except ModelError as error:
            raise bad_request(
                f"the model's chat template does not take these messages: {error}", request.called("messages")
            ) from error
        except PolicyFailure as error:
            self.fail(error)
            raise ApiError(500, f"the engine failed: {error}", kind="server_error", code="engine_failed") from error
        except Exception as error:  # a fault of ours or of a policy's code, which the agent must not hide
            self.fail(error)
            raise
        if reply is None:
            kept.turns += new  # heard, and never answered
            raise self._ended()
        if reply.stop_reason == "context":
            raise self._ended()
        choice, is_cut = _choice(request, reply)
        returned = read_message(chat_message(choice), "the answer")
        self._said_last = returned
        kept.record(new, returned=returned, said=reply.message, closed=is_cut)
        self._kept.keep(kept)
        self._latest = kept
        told = {call.id for call in choice.tool_calls}
        self._asked += [call for call in reply.message.tool_calls if call.error is None and call.id in told]
        self._require_open()
        return Generated([choice], reply.prompt_tokens, cached_tokens=0)

    def _note_overruled(self, request: ChatRequest) -> None:
        sampling = self._episode.sampling
        if request.temperature not in (None, sampling.temperature):
            self.overruled.add(f"temperature {request.temperature:g} (it is {sampling.temperature:g})")
        if request.top_p not in (None, sampling.top_p):
            self.overruled.add(f"top_p {request.top_p:g} (it is {sampling.top_p:g})")
        if request.seed is not None:
            self.overruled.add("a seed")
        if request.tool_choice == "required":
            self.overruled.add("tool_choice required (no call is forced)")
        without = ("presence_penalty", "frequency_penalty", "logit_bias", "stop_token_ids")
        self.overruled |= {f"{name} (rollouts have none)" for name in without if getattr(request, name)}

    # Calls of tools

    async def answer(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """See `FoundWorld.answer`."""
        if not self.alive:
            raise SourceError(self._how_it_ended())
        call = self._asked_for(name, arguments)
        self._calling += 1
        try:
            with anyio.CancelScope(shield=True):  # what was sent is heard to its end, also where the agent is gone
                result = await self._episode.call(call)
                if result is not None:
                    self._episode.answered(call, result)
        except BridgeError as error:
            self.fail(error)
            raise
        finally:
            self._calling -= 1
            await self._tell_settled()
        if result is None:
            raise SourceError(self._how_it_ended())
        # A model reads the text, which may be cut, and not the parts that it was made of.
        only_text = result.content is not None and all(part.get("type") == "text" for part in result.content)
        return result.model_copy(update={"content": None}) if only_text else result

    def _asked_for(self, name: str, arguments: Mapping[str, Any]) -> ToolCall:
        """The call as the policy wrote it, where it wrote the same; agents may make calls of their own, too."""
        found = next((one for one in self._asked if (one.name, one.arguments) == (name, arguments)), None)
        if found is not None:
            self._asked.remove(found)
        call_id = unique_id(found.id if found is not None else "", self._call_ids, "mcp")
        return ToolCall(id=call_id, name=name, arguments=dict(arguments))

    async def _tell_settled(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._settled:
                self._settled.notify_all()

    def _require_open(self) -> None:
        if not self.alive:
            raise self._ended()

    def _ended(self) -> ApiError:
        return ApiError(403, self._how_it_ended(), code="rollout_ended", kind="permission_error")

    def _how_it_ended(self) -> str:
        how = f"{type(self.error).__name__}" if self.error is not None else self._rollout.stop_reason
        return f"the rollout of this key has ended ({how}); nothing more is answered"


_NOT_FORCED = "an answer that is forced into a form is sampled from another distribution than the one that is trained"


def _refuse(request: ChatRequest) -> None:
    """Raises `ApiError` for what would sample from another distribution than that which is trained and measured."""
    if request.n is not None and request.n > 1:
        raise bad_request("n must be 1 in a rollout; send several requests", "n", "unsupported_value")
    if request.logprobs:
        raise bad_request("logprobs are kept in a rollout, and not sent; leave it out", "logprobs", "unsupported_value")
    if request.named_tool is not None:  # which the model is not told
        raise bad_request(
            f"tool_choice cannot name a tool in a rollout: {_NOT_FORCED}; ask for the call in the prompt",
            "tool_choice",
            "unsupported_value",
        )
    if request.content_schema is not None:
        raise bad_request(
            f"{request.called('response_format')} must be text in a rollout: {_NOT_FORCED}; ask for the form in the "
            "prompt, and read the answer yourself",
            request.called("response_format"),
            "unsupported_value",
        )


def _hearing(
    request: ChatRequest, listener: Listener, renderer: ChatRenderer, prompt_ids: Sequence[int]
) -> Callable[[int], bool]:
    """Tells the listener of the words that will not change any more, and the policy when to end: at a stop string."""
    settled = settled_reply(renderer, prompt_ids, request, request.read_tools())

    def hear(token: int) -> bool:
        if settled.hear(token):
            listener.grow(0, settled.reasoning, settled.content)
        return settled.stopped

    return hear


def _choice(request: ChatRequest, reply: Reply) -> tuple[Choice, bool]:
    """The reply as a client gets it, and whether it was cut: before a stop string, or after its only call."""
    message = reply.message
    parsed = reply.parsed or ParsedReply(content=message.content, reasoning=message.reasoning)
    parsed = replace(parsed, tool_calls=message.tool_calls)  # with their ids
    content, calls = written_calls(parsed if request.tools else calls_as_text(parsed), _NO_SCHEMAS)
    content, stopped = cut_at_stop(content, request.stops, parsed)
    if stopped:
        calls = []
    most = 1 if request.parallel_tool_calls is False else len(calls)
    is_cut = stopped or len(calls) > most
    calls = calls[:most]
    reason = "length" if reply.stop_reason == "length" else "tool_calls" if calls else "stop"
    return Choice(content, message.reasoning, calls, reason, reply.sampled_tokens), is_cut


_HOST = "127.0.0.1"
_GRACE_S = 1
_MOST_BODY = 16 * 2**20


@dataclass(frozen=True)
class _Served:
    rollout: HostedRollout
    chat: ASGIApp


class Host:
    """Plays rollouts with one program. An `AgentHost`. Made by `open_host`."""

    boundary: Literal["policy", "agent"] = "agent"

    def __init__(self, program: AgentProgram) -> None:
        self.program = program
        self.url = ""
        self._served: dict[bytes | None, _Served] = {}
        self._told: set[str] = set()
        server = publish_found(self._found)
        self._mcp = server.streamable_http_app(host=_HOST, stateless_http=True, max_request_body_size=_MOST_BODY)

    async def play(self, episode: Episode, agent: Agent) -> None:
        """See `AgentHost.play`."""
        rollout = HostedRollout(episode, agent)
        key = secrets.token_urlsafe(32)
        backend = Backend(rollout, episode.sampling, episode.rollout.tool_prompt)
        chat = Endpoint(backend, agent.name, key, KEEP_ALIVE_S)
        self._served[key.encode()] = _Served(rollout, chat)
        episode.rollout.messages = episode.rollout.task.opening()
        endpoint = AgentEndpoint(f"{self.url}/v1", key, agent.name, f"{self.url}/mcp")

        async def run() -> None:
            task = told_task(episode.rollout.task)
            try:
                while (heard := await rollout.hear_user(await self.program.play(task, endpoint))) is not None:
                    task = told_task(task.model_copy(update={"prompt": heard}))
            except AgentFailure as error:
                rollout.fail(error)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await rollout.over.wait()
                group.cancel_scope.cancel()
        finally:
            del self._served[key.encode()]
            with anyio.CancelScope(shield=True):
                await rollout.close()
            self._warn_of(rollout.overruled)
        error, in_process = rollout.error, isinstance(self.program, FunctionAgent)
        if in_process and isinstance(error, AgentFailure) and rollout.is_unheard and (name := asked_proxy()):
            hint = f"no request came, and {name} is set: clients may ask that proxy; add 127.0.0.1 to NO_PROXY"
            raise AgentFailure(error.kind, f"{error}; {hint}")
        if error is not None:
            raise error

    def _warn_of(self, overruled: set[str]) -> None:
        """Once for each: the agent may ask so in every request."""
        for setting in sorted(overruled - self._told):
            self._told.add(setting)
            log.warning(
                "the agent %s asks for %s; what is sampled in rollouts is set by the training or measurement",
                self.program.name,
                setting,
            )

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Both URLs of all rollouts: the key says whose."""
        if scope["type"] == "lifespan":
            await self._mcp(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        served = self._served.get(sent_key(scope))
        try:
            if served is None:
                for one in self._served.values():
                    one.rollout.strangers += 1
                raise ApiError(
                    401,
                    "this key is of no rollout, or its rollout has ended; send endpoint.api_key, in the header "
                    "Authorization after the word Bearer",
                    code="invalid_api_key",
                    kind="authentication_error",
                )
            served.rollout.count_request()
        except ApiError as error:
            await JSONResponse(error.body, status_code=error.status)(scope, receive, send)
            return
        if scope["path"].rstrip("/") == "/mcp":
            await self._mcp(scope, receive, send)
        else:
            await served.chat(scope, receive, _noting(served.rollout, send))

    def _found(self, request: Any) -> HostedRollout:
        """The rollout of a request to the tools' URL. Raises `SourceError` where it has ended meanwhile."""
        served = self._served.get(sent_key(request.scope))
        if served is None:
            raise SourceError("the rollout of this key has ended")
        return served.rollout


def _noting(rollout: HostedRollout, send: Send) -> Send:
    """Sends, and tells the rollout why a request was refused, also where it was none that could be read."""
    status = 0

    async def noted(message: AsgiMessage) -> None:
        nonlocal status
        status = message.get("status", status)
        if status >= 400 and message.get("body"):
            rollout.refused = json.loads(message["body"])["error"]["message"]
        await send(message)

    return noted


@asynccontextmanager
async def open_host(program: AgentProgram) -> AsyncIterator[Host]:
    """A host that listens on this machine alone while this is open."""
    host = Host(program)
    async with program.running(), _listening(host):
        yield host


class _Uvicorn(uvicorn.Server):
    """uvicorn's server inside an event loop that is not its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C is for whoever owns the loop."""
        yield


@asynccontextmanager
async def _listening(host: Host) -> AsyncIterator[None]:
    listener: socket.socket = bind(_HOST, 0, None)
    listener.listen()  # requests wait from here on until the server takes them
    host.url = f"http://{_HOST}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        host.app,
        interface="asgi3",
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=KEPT_OPEN_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Uvicorn(config)
    with contextlib.closing(listener), plain_errors():
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                # Shielded: uvicorn leaves its sockets open when it is cancelled, but not when it is told to stop.
                with anyio.CancelScope(shield=True):
                    await server.serve(sockets=[listener])

            group.start_soon(serve)
            try:
                yield
            finally:
                server.should_exit = True
