"""The double that ships with the library."""

from __future__ import annotations

import pytest

from mcp_bridge.records import Tool
from sdk.errors import ConfigError, PolicyFailure
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import END_TOKEN, ByteRenderer, ScriptedAgent, ScriptedPolicy, replay_demonstration
from sdk.policies.token_agent import render_demonstration
from sdk.records import Message, Task, ToolCall

ASK = [Message(role="user", content="Où?")]
CALL = ToolCall(id="", name="find", arguments={"q": "é"})


async def test_a_list_is_played_in_order_with_one_token_for_each_byte() -> None:
    conversation = ScriptedAgent([[CALL, CALL], "Voilà"]).start([], sampling=Sampling(), seed=0)
    first = await conversation.reply(ASK)
    assert [c.id for c in first.message.tool_calls] == ["call_1", "call_2"]
    results = [Message(role="tool", content="ok", tool_call_id=c.id) for c in first.message.tool_calls]
    second = await conversation.reply(results)
    assert (second.message.content, second.stop_reason, second.sampled_tokens) == ("Voilà", "stop", 7)
    (row,) = conversation.rows()
    assert row.prompt_ids == [258, *"Où?".encode(), END_TOKEN, 259]
    call = '<tool_call>{"name": "find", "arguments": {"q": "é"}}</tool_call>'
    assert ByteRenderer().decode(row.completion_ids) == (
        f"{call}\n{call}<end><tool>ok<end><tool>ok<end><assistant>Voilà<end>"
    )
    sampled = [token for token, chosen in zip(row.completion_ids, row.sampled, strict=True) if chosen]
    assert len(sampled) == first.sampled_tokens + second.sampled_tokens
    assert sampled.count(END_TOKEN) == 2


async def test_the_same_agent_plays_to_many_conversations_from_the_beginning() -> None:
    agent = ScriptedAgent(["one", "two"], "double")
    for _ in range(2):
        conversation = agent.start([], sampling=Sampling(), seed=0)
        assert [(await conversation.reply(ASK)).message.content for _ in range(2)] == ["one", "two"]
    with pytest.raises(PolicyFailure, match="has 2 replies and reply 3"):
        await conversation.reply(ASK)
    assert agent.name == "double"


async def test_a_function_sees_the_messages_and_the_seed_and_may_be_async() -> None:
    async def script(messages: list[Message], seed: int) -> Message:
        return Message(role="assistant", content=f"{len(messages)} {seed}", reasoning="hm")

    conversation = ScriptedAgent(script).start([], sampling=Sampling(), seed=9)
    assert (await conversation.reply(ASK)).message.content == "1 9"
    reply = await conversation.reply(ASK)
    assert (reply.message.content, reply.message.reasoning) == ("3 9", "hm")
    assert (
        await ScriptedAgent(lambda m, s: "hi").start([], sampling=Sampling(), seed=0).reply(ASK)
    ).message.content == "hi"


async def test_what_a_script_raises_is_passed_on_and_a_wrong_role_is_refused() -> None:
    def broken(messages: list[Message], seed: int) -> str:
        raise PolicyFailure("no engine")

    with pytest.raises(PolicyFailure, match="no engine"):
        await ScriptedAgent(broken).start([], sampling=Sampling(), seed=0).reply(ASK)
    with pytest.raises(ConfigError, match="role 'user'"):
        await ScriptedAgent(ASK).start([], sampling=Sampling(), seed=0).reply(ASK)


async def test_a_reply_is_cut_only_where_limits_are_asked_for() -> None:
    tight = Sampling(max_tokens=3)
    whole = await ScriptedAgent(["Hello"]).start([], sampling=tight, seed=0).reply(ASK)
    assert (whole.message.content, whole.stop_reason) == ("Hello", "stop")
    conversation = ScriptedAgent(["Hello", [CALL]], limit_tokens=True).start([], sampling=tight, seed=0)
    cut = await conversation.reply(ASK)
    assert (cut.message.content, cut.stop_reason, cut.sampled_tokens) == ("Hel", "length", 3)
    assert (await conversation.reply(ASK, max_tokens=2)).message.content == "<t"


async def test_a_demonstration_is_replayed_and_renders_to_the_same_rows(order_tool: Tool) -> None:
    said = [Message(role="assistant", tool_calls=[CALL]), Message(role="assistant", content="Done.")]
    task = Task(prompt="Où?", demonstration=said)
    conversation = replay_demonstration(task).start([order_tool], sampling=Sampling(), seed=0)
    first = await conversation.reply(task.opening())
    result = Message(role="tool", content="ok", tool_call_id=first.message.tool_calls[0].id)
    assert (await conversation.reply([result])).message.content == "Done."
    (row,) = conversation.rows()
    (shown,) = render_demonstration(ByteRenderer(), task.opening(), [order_tool], [said[0], result, said[1]])
    assert (row.prompt_ids, row.completion_ids, row.sampled) == (shown.prompt_ids, shown.completion_ids, shown.sampled)


@pytest.mark.parametrize("demonstration", [[], ASK])
def test_a_task_without_a_playable_demonstration_is_refused(demonstration: list[Message]) -> None:
    with pytest.raises(ConfigError, match="demonstration"):
        replay_demonstration(Task(prompt="Hi", demonstration=demonstration))


async def test_a_scripted_policy_stops_and_cuts_as_an_engine_does() -> None:
    policy = ScriptedPolicy([[7, 2, 8], [7, 8, 9]], context_tokens=10, version=3)
    stopped = await policy.sample([1], sampling=Sampling(max_tokens=5), seed=0, stop_token_ids=[2])
    assert (stopped.token_ids, stopped.stop_reason, stopped.version) == ([7, 2], "stop", 3)
    cut = await policy.sample([1], sampling=Sampling(max_tokens=2), seed=0, stop_token_ids=[2])
    assert (cut.token_ids, cut.logprobs, cut.stop_reason) == ([7, 8], [-0.5, -0.5], "length")
    with pytest.raises(PolicyFailure, match="2 completions; number 3"):
        await policy.sample([1], sampling=Sampling(max_tokens=2), seed=0)
    with pytest.raises(PolicyFailure, match="do not fit"):
        await policy.sample([1] * 9, sampling=Sampling(max_tokens=2), seed=0)
