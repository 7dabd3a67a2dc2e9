"""The user that a model plays: any endpoint, the embedded model, or another agent."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mcp_bridge.records import Tool

from ..errors import PolicyFailure, UserFailure
from ..policies.protocol import Agent, Sampling
from ..policies.token_agent import turn_seed
from ..records import CallRecord, Message, Rollout, User, UserTurn
from .user_policy import CallTool

END = "###STOP###"
"""What the model writes to end the talk, as users of tau-bench do."""
_MOST_CALLS = 8
"""Of one turn. A model that makes more does not keep to its part."""
_SAMPLING = Sampling(temperature=0.0, max_tokens=256)
_BEGIN = "(You have called the assistant. Say what you want.)"
_SILENCE = "(The assistant said nothing.)"

_RULES = """You play a user who talks to an assistant. Only the assistant can do things for you.

{scenario}

What you know:
{facts}

- Write only what the user says next: one or two sentences, without quotes.
- Tell what you know when the assistant asks for it, and not before. Tell it as it stands above.
- If you are asked for something that is not above, say that you do not know it. Make nothing up.{never}
- You are not the assistant: do not do its work, and do not offer help.{tools}
- When the assistant has answered or done what you want, or says that it cannot, write {end} and nothing else."""


class ModelUser:
    """Plays users through `agent`. Greedy: a policy that learns should find the same user each time.

    Each turn sends the whole conversation as the user sees it: the policy's words as those of the other side, and of
    its calls nothing.
    """

    def __init__(self, agent: Agent, tools: Sequence[Tool]) -> None:
        """`tools`: all of the source; a user is shown those that it names."""
        self._agent = agent
        self._tools = {tool.name: tool for tool in tools}

    async def turn(self, rollout: Rollout, call: CallTool, *, seed: int) -> UserTurn | None:
        """See `UserPolicy.turn`."""
        user = rollout.task.user
        assert user is not None
        tools = [self._tools[name] for name in user.tools if name in self._tools]
        turn = UserTurn(turn=rollout.turns, by=self._agent.name)
        seen = _as_user(rollout, user)
        while True:
            conversation = self._agent.start(tools, sampling=_SAMPLING, seed=turn_seed(seed, len(seen)))
            try:
                reply = await conversation.reply(seen)
            except PolicyFailure as error:
                raise UserFailure(type(error).__name__, f"the user's model failed: {error}") from error
            if reply.stop_reason == "context":
                raise UserFailure("UserContext", "the conversation does not fit into the context of the user's model")
            if not reply.message.tool_calls:
                break
            if len(turn.calls) + len(reply.message.tool_calls) > _MOST_CALLS:
                raise UserFailure("UserCalls", f"the user made more than {_MOST_CALLS} calls in one turn")
            for one in reply.message.tool_calls:
                made = one.model_copy(update={"id": f"user_{turn.turn}_{len(turn.calls) + 1}"})
                result = await call(made)
                turn.calls.append(CallRecord(turn=turn.turn, call=made, result=result))
                seen += _as_seen(turn.calls[-1])
        said = reply.message.content
        ended = END in said
        said = said.replace(END, "").strip()
        if not said and not ended:
            raise UserFailure("UserSilent", f"the user's model said nothing, and did not end the talk with {END}")
        return turn.model_copy(update={"said": said, "ended": ended})


def _as_user(rollout: Rollout, user: User) -> list[Message]:
    """The conversation from the user's side, with its part before it."""
    messages = [Message(role="system", content=instructions(user)), Message(role="user", content=_BEGIN)]
    prompt = "\n".join(one.content for one in rollout.task.opening() if one.role == "user")
    messages.append(Message(role="assistant", content=prompt))
    for turn in rollout.user_turns:
        messages.append(_as_heard(turn.heard))
        for record in turn.calls:
            messages += _as_seen(record)
        messages.append(Message(role="assistant", content=turn.said))
    return [*messages, _as_heard(rollout.messages[-1].content)]


def _as_heard(said: str) -> Message:
    return Message(role="user", content=said.strip() or _SILENCE)


def _as_seen(record: CallRecord) -> list[Message]:
    """A call of the user's own, as its model made it and read its result."""
    made, result = record.call, record.result.text
    return [
        Message(role="assistant", tool_calls=[made]),
        Message(role="tool", content=result, tool_call_id=made.id, name=made.name),
    ]


def instructions(user: User) -> str:
    """The part that the model is given."""
    known = [f"- {name}: {json.dumps(fact.value)}" for name, fact in user.facts.items() if fact.call is None]
    known += [
        f"- {name}: call {fact.call.name} with {json.dumps(fact.call.arguments)} when asked for it"
        for name, fact in user.facts.items()
        if fact.call is not None
    ]
    never = f"\n- Never say: {'; '.join(user.never_tells)}." if user.never_tells else ""
    tools = "\n- You have tools of your own. Use them when the assistant asks you to." if user.tools else ""
    facts = "\n".join(known) or "- nothing more than that"
    return _RULES.format(scenario=user.scenario.strip(), facts=facts, never=never, tools=tools, end=END)
