"""One rollout from the task to its final state: an agent plays it, between a policy and a world.

What the policy did wrong comes back to it as tool messages. What broke around it ends the rollout
with a `Failure`, and leaves it unscored.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import anyio

from mcp_bridge.errors import BridgeError, ToolFailure, is_cancelled
from mcp_bridge.ledger import Ledger, Listener
from mcp_bridge.records import ToolResult
from mcp_bridge.toolsets.validation import unknown_tool
from mcp_bridge.world import World, WorldSource

from ..errors import AgentFailure, PolicyFailure, UserFailure
from ..policies.protocol import Agent, Conversation, Hearing, Reply, Sampling
from ..policies.tool_prompt import shortest
from ..records import CallRecord, Failure, Message, Rollout, StopReason, Task, TokenRow, ToolCall, ToolPrompt
from ..users.fidelity import user_fault
from ..users.played_users import UserPolicy, Users
from . import derive_seed
from .forks import ForkFailed, TurnStart
from .limits import Limits


@dataclass(frozen=True)
class Job:
    """A rollout to be run. `id` is unique in the run; rollouts of one `group` are compared with each other."""

    id: str
    task: Task
    seed: int
    group: str = ""
    step: int = -1
    tool_prompt: ToolPrompt | None = None
    """How much of the tools the policy is shown; None: as much as it was trained with."""
    start: TurnStart | None = None
    """Where a branch begins; None: at the task's beginning."""

    @property
    def world_is_replayed(self) -> bool:
        """Whether it is a branch whose world is made by the calls so far, and not forked."""
        return self.start is not None and self.start.is_replayed


async def run_episode(
    job: Job,
    *,
    agent: Agent,
    source: WorldSource,
    limits: Limits,
    sampling: Sampling,
    on_call: Listener | None = None,
    world_id: str | None = None,
    host: AgentHost,
    users: Users | None = None,
) -> Rollout:
    """Play one task in a world of its own. Never raises for what can go wrong outside: see `Rollout.failure`.

    `on_call` is called before each call is sent and after it ended, where the world keeps a ledger, as those of a
    connected toolset do. `world_id`: the job's id where not given; another one for each further attempt. `host`: plays
    it, and asks `agent` for every message. `users`: who takes the turns of the task's user; rules where None.
    """
    rollout = Rollout(
        id=job.id,
        task=job.task,
        policy=agent.name,
        group=job.group or job.task.id,
        seed=job.seed,
        step=job.step,
        tool_prompt=job.tool_prompt or "full",
    )
    started = anyio.current_time()
    try:
        with anyio.move_on_after(limits.max_seconds) as clock:
            async with _opened(job, source, world_id or job.id) as world:
                with _ledger_kept(world, rollout, on_call, job.start):
                    user = (users or Users()).of(job.task)
                    # A model that plays a user should not do again what it did in an attempt that broke.
                    user_seed = derive_seed(job.seed, "user", world_id or job.id)
                    episode = Episode(rollout, world, source, limits, sampling, job.start, user, user_seed)
                    if len(episode.tools) != len(source.tools):  # a setup may show fewer
                        rollout.shown_tools = [tool.name for tool in episode.tools]
                    if job.start is None:
                        rollout.initial_state = await world.state()
                    try:
                        await host.play(episode, agent)
                    finally:
                        rollout.rows = episode.rows()
                    rollout.final_state = await world.state()
                    rollout.failure = user_fault(rollout)
        if clock.cancelled_caught:
            spent = f"not finished after {limits.max_seconds} s; raise max_seconds or lower max_turns and max_tokens"
            rollout.failure = Failure(boundary=host.boundary, kind="time_limit", message=spent)
    except ForkFailed as error:
        rollout.failure = Failure(boundary="world", kind="ForkFailed", message=str(error))
    except ToolFailure as error:
        rollout.failure = Failure(boundary="tools", kind=type(error).__name__, message=str(error))
    except BridgeError as error:
        rollout.failure = Failure(boundary="world", kind=type(error).__name__, message=str(error))
    except AgentFailure as error:
        rollout.failure = Failure(boundary="agent", kind=error.kind, message=str(error))
    except UserFailure as error:
        rollout.failure = Failure(boundary="user", kind=error.kind, message=str(error))
    except PolicyFailure as error:
        rollout.failure = Failure(boundary="policy", kind=type(error).__name__, message=str(error))
    except anyio.get_cancelled_exc_class():
        if is_cancelled():
            raise
        told = f"something that the {host.boundary} waited for was cancelled"
        rollout.failure = Failure(boundary=host.boundary, kind="cancelled", message=told)
    if rollout.failure is not None:
        rollout.stop_reason = "time_limit" if rollout.failure.kind == "time_limit" else "failed"
    rollout.duration_s = anyio.current_time() - started
    return rollout


def _opened(job: Job, source: WorldSource, world_id: str) -> AbstractAsyncContextManager[World]:
    return source.open_world(world_id, job.task.setup) if job.start is None else job.start.world.open(world_id)


@contextlib.contextmanager
def _ledger_kept(world: World, rollout: Rollout, on_call: Listener | None, start: TurnStart | None) -> Iterator[None]:
    """Whatever ends the block, the rollout has the world's ledger; a branch, also that of its past."""
    ledger = getattr(world, "ledger", None)
    if not isinstance(ledger, Ledger):
        yield
        return
    past = start.ledger if start is not None else []
    replayed = len(ledger.lines)
    ledger.listener = on_call
    try:
        yield
    finally:
        rollout.ledger = [*past, *ledger.lines[replayed:]]


class AgentHost(Protocol):
    """Plays episodes with an agent: the loop that comes with the library, or one of the user's."""

    @property
    def boundary(self) -> Literal["policy", "agent"]:
        """What is at fault where the time runs out."""

    async def play(self, episode: Episode, agent: Agent) -> None:
        """Play until the episode is over, with `agent` for every message. Raises what `run_episode` makes a failure
        of."""


class Episode:
    """What whoever plays a rollout does: `ask` the policy, `call` tools and note them with `answered`, `end`.

    Limits, final tools, rows and evidence are so the same for all agents: they are kept here. What happens is written
    into the rollout as it happens.
    """

    def __init__(
        self,
        rollout: Rollout,
        world: World,
        source: WorldSource,
        limits: Limits,
        sampling: Sampling,
        start: TurnStart | None,
        user: UserPolicy,
        user_seed: int,
    ) -> None:
        self.rollout = rollout
        own = rollout.task.user.tools if rollout.task.user is not None else ()
        self.tools = [tool for tool in world.tools if tool.name not in own]
        """Those of the policy: the world's, without the user's own."""
        self._user, self._user_seed = user, user_seed
        self.world = world
        self.source = source
        self.limits = limits
        self.sampling = sampling
        self.start = start
        """Where a branch begins; None: at the task's beginning."""
        self.over = anyio.Event()
        """Set when the rollout has ended."""
        self._conversations: list[Conversation] = []
        self._calls_under_way = 0

    def rows(self) -> list[TokenRow]:
        """The tokens of all conversations, one after the other as they began."""
        return [row for one in self._conversations for row in one.rows()]

    def end(self, reason: StopReason, answer: str = "") -> None:
        """The rollout has ended without anything broken; the first reason counts."""
        if not self.over.is_set():
            self.rollout.stop_reason = reason
            self.rollout.answer = answer
            self.over.set()

    async def ask(
        self,
        conversation: Conversation,
        incoming: Sequence[Message],
        *,
        at_most: int | None = None,
        stops: Sequence[str] = (),
        hearing: Hearing | None = None,
    ) -> Reply | None:
        """The policy's next message, noted; what it is may end the rollout. None: the rollout was over before, or is
        now, since a final tool has answered or a limit is reached.

        `at_most`: tokens that who asks wants no more of; `stops`, `hearing`: see `Conversation.reply`. Raises
        `PolicyFailure`.
        """
        if self.is_spent():
            return None
        if not any(one is conversation for one in self._conversations):
            self._conversations.append(conversation)
        left = self.limits.max_tokens - self.rollout.sampled_tokens
        allowed = min(self.limits.max_turn_tokens, self.sampling.max_tokens, left)
        most = allowed if at_most is None else min(allowed, at_most)
        reply: Reply | None = None
        # An agent of somebody else's may implement no more than it is asked for.
        more: dict[str, Any] = {"stops": stops} if stops else {}
        more |= {} if hearing is None else {"hearing": hearing}
        with anyio.move_on_after(self.limits.reply_timeout_s):
            reply = await conversation.reply(incoming, max_tokens=most, **more)
        if reply is None:
            raise PolicyFailure(
                f"the policy did not reply within {self.limits.reply_timeout_s:g} s; it hangs, or has too many "
                "rollouts at once: lower concurrency, or raise limits.reply_timeout_s"
            )
        stop = self._heard(reply, most, cut_is_wanted=most < allowed)
        if stop is not None:
            self.end(stop)
        return reply

    async def users_turn(self) -> Message | StopReason:
        """What the task's user says to the policy's last message, noted already; the reason to stop where it has ended
        the conversation, or may say no more. Raises `BridgeError` and `UserFailure`."""
        rollout = self.rollout
        user = rollout.task.user
        spent = user is not None and len(rollout.user_turns) >= user.max_turns
        if spent and user is not None and user.tools:  # it might change the world
            return "turn_limit"
        try:
            turn = await self._user.turn(rollout, self._call_of_user, seed=self._user_seed)
        except UserFailure:
            if spent:  # nothing more was to be said
                return "turn_limit"
            raise
        if turn is None:
            return "answered"
        if spent and (turn.said or not turn.ended):
            return "turn_limit"  # to end without a word is not a message
        rollout.user_turns.append(turn.model_copy(update={"heard": rollout.messages[-1].content}))
        said = Message(role="user", content=turn.said)
        if turn.said:
            rollout.messages.append(said)
        return "answered" if turn.ended else said

    async def _call_of_user(self, call: ToolCall) -> ToolResult:
        own = self.rollout.task.user.tools if self.rollout.task.user is not None else []
        if call.error is not None:
            return ToolResult(text=call.error, is_error=True, error_kind="invalid_arguments")
        if call.name not in own:
            return ToolResult(text=unknown_tool(call.name, own), is_error=True, error_kind="unknown_tool")
        call_id = f"{self.rollout.id}/user/{call.id}"
        return await self.world.call(call.name, call.arguments, call_id=call_id, timeout_s=self.limits.call_timeout_s)

    def is_spent(self) -> bool:
        """Whether nothing more can be asked: the rollout is over, and ends here where a final tool has answered or a
        limit is reached."""
        if self.over.is_set():
            return True
        if (final := self.final_answer()) is not None:
            self.end("answered", final)
        elif self.rollout.turns >= self.limits.max_turns:
            self.end("turn_limit")
        elif self.rollout.sampled_tokens >= self.limits.max_tokens:
            self.end("token_limit")
        return self.over.is_set()

    def _heard(self, reply: Reply, most: int, *, cut_is_wanted: bool) -> StopReason | None:
        """Note a reply; the reason to stop, if it gives one."""
        if reply.stop_reason == "context":
            return "context_limit"
        self.rollout.turns += 1
        self.rollout.sampled_tokens += reply.sampled_tokens
        self.rollout.prompt_tokens += reply.prompt_tokens
        self.rollout.messages.append(reply.message)
        if reply.tool_prompt is not None:  # an endpoint of a model that was trained with less of its tools
            self.rollout.tool_prompt = shortest(self.rollout.tool_prompt, reply.tool_prompt)
        if reply.stop_reason == "length":
            # One that is cut before its limit had no room left; an endpoint that does not count tells of 0 tokens.
            if 0 < reply.sampled_tokens < most:
                return "context_limit"
            if not cut_is_wanted:
                return "token_limit"
        return None

    def final_answer(self) -> str | None:
        """The answer that the first final tool gave; None where none was called."""
        final = self.limits.final_tools
        for record in self.rollout.calls if final else ():
            if record.call.name in final and not record.result.is_error:
                argument = final[record.call.name]
                given = record.result.text if argument is None else record.call.arguments.get(argument, "")
                return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return None

    async def call(self, call: ToolCall) -> ToolResult | None:
        """What the world answers, not noted yet; None: the rollout is over, also where this is one call too many.
        Raises `BridgeError` where something broke."""
        if self.over.is_set():
            return None
        if len(self.rollout.calls) + self._calls_under_way >= self.limits.max_calls:
            final = self.final_answer()
            if final is None:
                self.end("call_limit")
            else:  # which had ended it before this call
                self.end("answered", final)
            return None
        if call.error is not None:  # it could not be read
            return ToolResult(text=call.error, is_error=True, error_kind="invalid_arguments")
        user = self.rollout.task.user
        if user is not None and call.name in user.tools:  # the world has it, and the policy has not
            text = unknown_tool(call.name, [tool.name for tool in self.tools])
            return ToolResult(text=text, is_error=True, error_kind="unknown_tool")
        self._calls_under_way += 1
        try:
            return await self.world.call(
                call.name, call.arguments, call_id=f"{self.rollout.id}/{call.id}", timeout_s=self.limits.call_timeout_s
            )
        finally:
            self._calls_under_way -= 1

    def answered(self, call: ToolCall, result: ToolResult) -> Message:
        """Note a call that ended. Returns the message for the policy."""
        # Thousands of rollouts with images in them are more than the memory holds, and no trace has them.
        is_more = result.content is not None or result.meta
        read = result.model_copy(update={"content": None, "meta": {}}) if is_more else result
        self.rollout.calls.append(CallRecord(turn=self.rollout.turns, call=call, result=read))
        return Message(role="tool", content=result.text, tool_call_id=call.id, name=call.name)
