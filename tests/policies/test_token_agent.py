"""The agent over a token-level policy: limits, seeds, ids, failures."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from sdk.errors import ConfigError, ModelError, PolicyFailure
from sdk.policies.protocol import Completion, Sampling
from sdk.policies.scripted import END_TOKEN, ByteRenderer, ScriptedPolicy
from sdk.policies.token_agent import TokenAgent, turn_seed
from sdk.records import Message, ToolCall

ASK = [Message(role="user", content="Hi")]


def says(text: str) -> list[int]:
    return [*text.encode(), END_TOKEN]


class AskedPolicy(ScriptedPolicy):
    """Keeps the sampling and the seed of every request too."""

    def __init__(self, completions: list[list[int]], **options: int) -> None:
        super().__init__(completions, **options)
        self.asked: list[tuple[int, int]] = []

    async def sample(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        self.asked.append((sampling.max_tokens, seed))
        return await super().sample(prompt_ids, sampling=sampling, seed=seed, stop_token_ids=stop_token_ids)


async def test_a_request_never_exceeds_the_context_and_no_room_is_said() -> None:
    prompt = ByteRenderer().start(ASK, [])
    policy = AskedPolicy([says("abc")], context_tokens=len(prompt) + 2)
    conversation = TokenAgent(policy, ByteRenderer()).start([], sampling=Sampling(max_tokens=50), seed=0)
    reply = await conversation.reply(ASK)
    assert (reply.message.content, reply.stop_reason, reply.sampled_tokens) == ("ab", "length", 2)
    assert policy.asked[0][0] == 2
    before = conversation.rows()
    full = await conversation.reply(ASK)
    assert (full.stop_reason, full.message.content, full.sampled_tokens) == ("context", "", 0)
    assert conversation.rows() == before
    assert len(policy.requests) == 1


async def test_the_turn_limit_is_the_lower_of_both_and_below_one_is_refused() -> None:
    policy = AskedPolicy([says("a"), says("b")])
    conversation = TokenAgent(policy, ByteRenderer()).start([], sampling=Sampling(max_tokens=50), seed=0)
    await conversation.reply(ASK, max_tokens=7)
    await conversation.reply(ASK, max_tokens=90)
    assert [limit for limit, _ in policy.asked] == [7, 50]
    with pytest.raises(ValueError, match="max_tokens is 0"):
        await conversation.reply(ASK, max_tokens=0)


async def test_every_turn_has_a_seed_of_its_own_that_only_depends_on_seed_and_turn() -> None:
    policy = AskedPolicy([says("a"), says("b"), says("c")])
    agent = TokenAgent(policy, ByteRenderer())
    conversation = agent.start([], sampling=Sampling(), seed=5)
    await conversation.reply(ASK)
    await conversation.reply(ASK)
    await agent.start([], sampling=Sampling(), seed=6).reply(ASK)
    seeds = [seed for _, seed in policy.asked]
    assert seeds == [turn_seed(5, 0), turn_seed(5, 1), turn_seed(6, 0)]
    assert len(set(seeds)) == 3


async def test_parallel_calls_get_ids_that_are_unique_in_the_conversation() -> None:
    call = '<tool_call>{"name": "find", "arguments": {}}</tool_call>'
    policy = ScriptedPolicy([says(call + call), says(call + "<tool_call>oops")])
    conversation = TokenAgent(policy, ByteRenderer()).start([], sampling=Sampling(), seed=0)
    earlier = Message(role="assistant", tool_calls=[ToolCall(id="call_2", name="find")])
    first = await conversation.reply([*ASK, earlier, *ASK])
    second = await conversation.reply(
        [Message(role="tool", content="x", tool_call_id=c.id) for c in first.message.tool_calls]
    )
    ids = [c.id for reply in (first, second) for c in reply.message.tool_calls]
    assert len(set(ids) | {"call_2"}) == 5
    assert second.message.tool_calls[1].error


@pytest.mark.parametrize(
    ("completion", "complaint"),
    [
        (Completion([1, 2], [0.0], "stop"), "2 tokens but 1 log-probabilities"),
        (Completion([1] * 9, [0.0] * 9, "length"), "9 tokens where at most 4"),
    ],
)
async def test_a_policy_that_breaks_its_promise_is_a_policy_failure(completion: Completion, complaint: str) -> None:
    class Broken(ScriptedPolicy):
        async def sample(self, *args: object, **options: object) -> Completion:
            return completion

    conversation = TokenAgent(Broken([]), ByteRenderer()).start([], sampling=Sampling(max_tokens=4), seed=0)
    with pytest.raises(PolicyFailure, match=complaint):
        await conversation.reply(ASK)
    assert conversation.rows() == []


async def test_after_a_failed_turn_the_conversation_goes_on_as_if_it_had_not_been_asked() -> None:
    attempts = iter([says("a"), None, says("b")])

    class Flaky(ScriptedPolicy):
        async def sample(self, *args: object, **options: object) -> Completion:
            ids = next(attempts)
            if ids is None:
                raise PolicyFailure("the engine fell over")
            return Completion(ids, [-1.0] * len(ids), "stop")

    conversation = TokenAgent(Flaky([]), ByteRenderer()).start([], sampling=Sampling(), seed=0)
    await conversation.reply(ASK)
    with pytest.raises(PolicyFailure, match="fell over"):
        await conversation.reply([Message(role="user", content="lost")])
    await conversation.reply([Message(role="user", content="kept")])
    text = ByteRenderer().decode(conversation.rows()[0].completion_ids)
    assert text == "a<end><user>kept<end><assistant>b<end>"


async def test_a_renderer_that_changes_sampled_tokens_is_caught() -> None:
    class Rewriting(ByteRenderer):
        def extend(self, prompt_ids: object, completion_ids: object, new_messages: object, tools: object) -> list[int]:
            return self.start(ASK * 3, [])

    conversation = TokenAgent(ScriptedPolicy([says("x"), says("y")]), Rewriting()).start(
        [], sampling=Sampling(), seed=0
    )
    await conversation.reply(ASK)
    with pytest.raises(ModelError, match="changed tokens that were already sampled"):
        await conversation.reply(ASK)


async def test_two_replies_at_once_in_one_conversation_are_refused() -> None:
    entered, release = anyio.Event(), anyio.Event()

    class Waiting(ScriptedPolicy):
        async def sample(self, *args: object, **options: object) -> Completion:
            entered.set()
            await release.wait()
            return Completion([END_TOKEN], [0.0], "stop")

    conversation = TokenAgent(Waiting([]), ByteRenderer()).start([], sampling=Sampling(), seed=0)
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.reply, ASK)
        await entered.wait()
        with pytest.raises(RuntimeError, match="in progress"):
            await conversation.reply(ASK)
        release.set()


async def test_rows_given_out_are_not_changed_by_later_turns() -> None:
    conversation = TokenAgent(ScriptedPolicy([says("a"), says("b")]), ByteRenderer()).start(
        [], sampling=Sampling(), seed=0
    )
    await conversation.reply(ASK)
    rows = conversation.rows()
    kept = rows[0].model_copy(deep=True)
    await conversation.reply(ASK)
    assert rows[0] == kept


@pytest.mark.parametrize("temperature", [-0.1, 1e-6, 1e308, float("nan"), float("inf")])
def test_a_temperature_that_no_logits_can_be_divided_by_is_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match=r"it must be 0 \(greedy\) or a number from 1e-05 to 100000"):
        Sampling(temperature=temperature)
