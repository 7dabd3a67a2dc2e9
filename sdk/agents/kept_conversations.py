"""The conversations of one rollout, kept so that a request goes on with the one whose messages it extends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_bridge.records import Tool

from ..policies.protocol import Agent, Conversation, Sampling
from ..records import Message
from ..rollouts.seeds import derive_seed


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


class KeptConversations:
    """All of a rollout, in the order in which they began. Each is a row of tokens, and where the template rewrites its
    history, several."""

    def __init__(self, agent: Agent, world_tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> None:
        self._agent = agent
        self._world_tools = list(world_tools)
        self._sampling = sampling
        self._seed = seed
        self._kept: list[KeptConversation] = []

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
        return KeptConversation(self._agent.start(known, sampling=self._sampling, seed=seed), known)

    def keep(self, conversation: KeptConversation) -> None:
        """Keep a new one, now that it has a reply."""
        if not any(one is conversation for one in self._kept):
            self._kept.append(conversation)

    def messages(self) -> list[Message]:
        """One conversation after the other, as their rows are, each assistant message once: where it was sampled. Of
        what else a later one repeats, only what is new. Results have their tools' names, which clients leave out."""
        told: list[Message] = []
        for kept in self._kept:
            repeated = [one for one in kept.opening if told and (one.role == "assistant" or one in told)]
            told += [one for one in kept.opening if not any(one is other for other in repeated)] + kept.turns
        names = {call.id: call.name for message in told for call in message.tool_calls}
        return [
            message.model_copy(update={"name": names[message.tool_call_id]})
            if message.role == "tool" and message.name is None and message.tool_call_id in names
            else message
            for message in told
        ]
