"""Histories that agents rewrite: each unbroken conversation is a row, and each sampled token is in exactly one."""

import anyio
import pytest
from orders import ANSWER, QUESTION, as_text, call, get_order, play, sampled_texts
from plain_agent import as_function, model_at, plain_agent, result_of, tools_at

import sdk
from sdk.agents import history_breaks
from sdk.policies.scripted import END_TOKEN, ByteRenderer, ScriptedAgent, ScriptedPolicy
from sdk.policies.token_agent import TokenAgent


def numbered():
    """Answers with how many were given before, over all conversations, so that each answer is another one."""
    given = []

    def say(messages, seed):
        given.append(seed)
        return f"answer {len(given)}"

    return ScriptedAgent(say), given


def user(text):
    return {"role": "user", "content": text}


async def asked(model, endpoint, *messages, **options):
    reply = await model.chat.completions.create(model=endpoint.model, messages=list(messages), **options)
    return reply.choices[0].message.model_dump(exclude_none=True)


def agent_of(talk):
    async def agent(task, endpoint):
        async with model_at(endpoint) as model:
            return await talk(lambda *messages, **options: asked(model, endpoint, *messages, **options))

    return agent


async def rows_of(talk, script=None):
    model = numbered()[0] if script is None else script
    found = await play(agent_of(talk), model)
    assert found.failure is None, found.failure
    sampled = [message.content for message in found.messages if message.role == "assistant"]
    assert sampled == sampled_texts(found), "assistant messages are not the sampled turns, in their order"
    assert len(sampled) == found.turns
    assert sum(sum(row.sampled) for row in found.rows) == found.sampled_tokens
    return found


async def test_a_history_that_is_sent_back_goes_on_in_one_row():
    async def talk(ask):
        first = await ask(user("one"))
        second = await ask(user("one"), first, user("two"))
        return (await ask(user("one"), first, user("two"), second, user("three")))["content"]

    found = await rows_of(talk)
    assert len(found.rows) == 1
    assert sampled_texts(found) == ["answer 1", "answer 2", "answer 3"]
    assert found.answer == "answer 3"


async def test_an_answer_that_a_stop_text_cut_is_judged_as_the_agent_got_it():
    got = []

    async def talk(ask):
        got.append((await ask(user("one"), stop="STOP"))["content"])

    script = ScriptedAgent(["It is shipped. STOP It is not."])
    found = await play(agent_of(talk), script)
    assert (found.answer, got) == ("It is shipped. ", [found.answer])
    assert sampled_texts(found) == ["It is shipped. STOP"]


async def test_a_history_that_was_compacted_begins_another_row():
    async def talk(ask):
        first = await ask(user("one"))
        await ask(user("one"), first, user("two"))
        third = await ask(user("so far: one, two"))
        await ask(user("so far: one, two"), third, user("go on"))

    found = await rows_of(talk)
    assert len(found.rows) == 2
    assert [message.content for message in found.messages] == [
        *("one", "answer 1", "two", "answer 2"),
        *("so far: one, two", "answer 3", "go on", "answer 4"),
    ]


class NotingPolicy(ScriptedPolicy):
    """Says other tokens each time, and keeps what it said."""

    def __init__(self):
        super().__init__(lambda prompt, seed: [*f"step {len(self.said)}".encode(), END_TOKEN])
        self.said = []

    async def sample(self, prompt_ids, **options):
        self.said.append(None)  # the script counts it
        self.said[-1] = completion = await super().sample(prompt_ids, **options)
        return completion


async def test_a_history_that_is_compacted_three_times_has_each_sampled_token_once():
    async def talk(ask):
        history = [user("Do twelve steps.")]
        for number in range(1, 13):
            history += [await ask(*history), user("Go on.")]
            if number % 3 == 0 and number < 12:
                history = [user(f"Do twelve steps. {number} are done.")]

    policy = NotingPolicy()
    found = await play(agent_of(talk), TokenAgent(policy, ByteRenderer()), limits={"max_turns": 20})
    assert found.failure is None, found.failure
    assert len(found.rows) == 4
    assert history_breaks([found]) == 3
    in_rows = [
        (token, logprob)
        for row in found.rows
        for token, logprob, sampled in zip(row.completion_ids, row.logprobs, row.sampled, strict=True)
        if sampled
    ]
    assert in_rows == [pair for one in policy.said for pair in zip(one.token_ids, one.logprobs, strict=True)]
    assert sampled_texts(found) == [f"step {number}" for number in range(1, 13)]


async def test_two_conversations_side_by_side_are_two_rows_whatever_their_order():
    async def talk(ask):
        left = await ask(user("left"))
        right = await ask(user("right"))
        left_again = await ask(user("left"), left, user("more"))
        await ask(user("right"), right, user("more"))
        await ask(user("left"), left, user("more"), left_again, user("end"))

    found = await rows_of(talk)
    assert [sum(row.sampled) for row in found.rows] == [3 * len("answer 1") + 3, 2 * len("answer 1") + 2]


async def test_an_answer_that_was_changed_begins_another_row_with_the_history_as_it_was_sent():
    async def talk(ask):
        first = await ask(user("one"))
        await ask(user("one"), {**first, "content": "shorter"}, user("two"))

    found = await rows_of(talk)
    assert len(found.rows) == 2
    assert b"shorter" in bytes(token for token in found.rows[1].prompt_ids if token < 256)
    assert [message.content for message in found.messages] == ["one", "answer 1", "two", "answer 2"]


async def test_reasoning_that_was_left_out_begins_another_row():
    async def talk(ask):
        first = await ask(user("one"))
        assert first["reasoning_content"] == "I think."
        await ask(user("one"), first, user("two"))
        first.pop("reasoning_content")
        await ask(user("one"), first, user("two"))

    thinking = ScriptedAgent(lambda messages, seed: sdk.Message(role="assistant", content="Yes.", reasoning="I think."))
    found = await play(agent_of(talk), thinking)
    assert [sum(map(int, row.sampled)) > 0 for row in found.rows] == [True, True]
    assert found.turns == 3


async def test_several_conversations_of_one_rollout_teach_nobody_and_one_without_its_reasoning_does(tmp_path):
    async def agent(task, endpoint):
        async with model_at(endpoint) as model:
            if task.opening()[0].content == "Plan first.":
                await asked(model, endpoint, user("Plan it."))
            told = [{"role": message.role, "content": message.content} for message in task.opening()]
            return (await asked(model, endpoint, *told))["content"]

    thinking = ScriptedAgent(lambda messages, seed: sdk.Message(role="assistant", content="Yes.", reasoning="I think."))
    tasks = [{"prompt": prompt, "later_turns": ["Go on."]} for prompt in ("Plan first.", "Answer at once.")]
    run = tmp_path / "run"
    await sdk.evaluate_async(get_order, tasks, lambda _: 1.0, model=thinking, agent=agent, output_dir=run)
    data = await sdk.distill_async(run, tools=get_order, to=tmp_path / "d.jsonl", licence="mit")
    (kept,) = data.selection.kept
    assert [message.content for message in kept.messages] == ["Answer at once.", "Yes.", "Go on.", "Yes."]
    assert (len(kept.rows), kept.conversations) == (2, 1)
    assert (data.selection.several, data.selection.seen) == (1, 2)
    assert "1 of several conversations" in str(data)
    run = tmp_path / "several"
    await sdk.evaluate_async(get_order, tasks[:1], lambda _: 1.0, model=thinking, agent=agent, output_dir=run)
    with pytest.raises(sdk.ConfigError, match=r"1 are several conversations\. Let the agent keep one conversation"):
        await sdk.distill_async(run, tools=get_order, to=tmp_path / "several.jsonl", licence="mit")


async def test_a_request_that_is_made_again_is_another_answer_in_a_row_of_its_own():
    model, seeds = numbered()

    async def talk(ask):
        for _ in range(3):
            await ask(user("one"))

    found = await rows_of(talk, model)
    assert len(found.rows) == 3
    assert len(set(seeds)) == 3, "the same request would be answered the same each time"


async def test_other_tools_begin_another_row():
    tool = {"type": "function", "function": {"name": "more", "parameters": {"type": "object", "properties": {}}}}

    async def talk(ask):
        first = await ask(user("one"))
        await ask(user("one"), first, user("two"), tools=[tool])

    assert len((await rows_of(talk)).rows) == 2


async def test_requests_at_once_are_all_answered_and_trained_once():
    async def talk(ask):
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(ask, user(f"part {number}"))

    assert len((await rows_of(talk)).rows) == 5


async def test_what_a_request_limits_is_cut_and_goes_on():
    async def talk(ask):
        first = await ask(user("one"), max_tokens=4)
        assert first["content"] == "answ"
        await ask(user("one"), first, user("two"))

    script = ScriptedAgent(["answer 1", "answer 2"], limit_tokens=True)
    found = await rows_of(talk, script)
    assert (len(found.rows), found.stop_reason) == (1, "answered")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_ends_with_the_tokens_of_its_stop_text_and_another_row_goes_on(stream):
    async def agent(task, endpoint):
        async with model_at(endpoint) as model:
            options = {"model": endpoint.model, "stop": ["Observation:", "Question:"]}
            thought = {"role": "assistant", "content": ""}
            if stream:
                async for chunk in await model.chat.completions.create(messages=[user("one")], stream=True, **options):
                    thought["content"] += chunk.choices[0].delta.content or ""
                    reason = chunk.choices[0].finish_reason
            else:
                answer = (await model.chat.completions.create(messages=[user("one")], **options)).choices[0]
                thought["content"], reason = answer.message.content, answer.finish_reason
            assert (thought["content"], reason) == ("Thought: look.\n", "stop")
            reply = await model.chat.completions.create(messages=[user("one"), thought, user("42")], **options)
            return reply.choices[0].message.content

    said = ["Thought: look.\nObservation: made up by the model", "Answer: 42"]
    script = ScriptedAgent(lambda messages, seed: said[sum(one.role == "assistant" for one in messages)])
    found = await play(agent, script)
    assert found.failure is None, found.failure
    assert found.answer == "Answer: 42"
    assert sampled_texts(found) == ["Thought: look.\nObservation:", "Answer: 42"]
    assert [message.content for message in found.messages if message.role == "assistant"] == sampled_texts(found)
    assert len(found.rows) == 2
    assert found.sampled_tokens == sum(sum(row.sampled) for row in found.rows)


async def test_a_second_call_that_the_agent_wanted_none_of_ends_the_row_after_it():
    async def agent(task, endpoint):
        async with model_at(endpoint) as model, tools_at(endpoint) as client:
            tools = [as_function(tool) for tool in (await client.list_tools()).tools]
            options = {"model": endpoint.model, "tools": tools, "parallel_tool_calls": False}
            reply = (await model.chat.completions.create(messages=[user("one")], **options)).choices[0].message
            (made,) = reply.tool_calls
            heard = [user("one"), reply.model_dump(exclude_none=True), await result_of(client, made)]
            return (await model.chat.completions.create(messages=heard, **options)).choices[0].message.content

    seen = []

    def script(messages, seed):
        seen.append([len(one.tool_calls) for one in messages if one.role == "assistant"])
        return "Done." if messages[-1].role == "tool" else [call(), call()]

    found = await play(agent, ScriptedAgent(script))
    assert found.failure is None, found.failure
    assert [text.count("<tool_call>") for text in sampled_texts(found)] == [2, 0]
    assert (seen, len(found.rows)) == ([[], [1]], 2), "the answer is asked for as the agent saw the conversation"


async def test_sub_agents_with_calls_of_the_same_name_keep_their_results_apart():
    script = ScriptedAgent(lambda messages, seed: call() if messages[-1].role == "user" else "Done.")

    async def agent(task, endpoint):
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(plain_agent, task, endpoint)
        return "Both."

    found = await play(agent, script)
    assert found.answer == "Both."
    assert len(found.rows) == 2
    ids = [record.call.id for record in found.calls]
    assert len(set(ids)) == 2
    assert sampled_texts(found) == [as_text([call()]), "Done."] * 2


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"n": 2}, "n must be 1"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "get_order"}}},
            "tool_choice cannot name a tool in a rollout: an answer that is forced",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format must be text in a rollout: an answer"),
        ({"model": "gpt-large"}, "'gpt-large' does not exist"),
    ],
)
async def test_what_would_sample_from_another_distribution_is_refused_by_name(option, named):
    async def agent(task, endpoint):
        async with model_at(endpoint) as model, tools_at(endpoint) as client:
            tools = [as_function(tool) for tool in (await client.list_tools()).tools]
            options = {"model": endpoint.model, "tools": tools, **option}
            await model.chat.completions.create(messages=[user("one")], **options)

    found = await play(agent)
    assert (found.failure.boundary, found.failure.kind) == ("agent", "AgentCrashed")
    assert named in found.failure.message
    assert found.verdict is None


async def test_calls_that_the_agent_makes_late_are_found_again_by_name_and_arguments():
    async def agent(task, endpoint):
        async with model_at(endpoint) as model, tools_at(endpoint) as client:
            tools = [as_function(tool) for tool in (await client.list_tools()).tools]
            reply = await model.chat.completions.create(model=endpoint.model, messages=[user(QUESTION)], tools=tools)
            for one in reversed(reply.choices[0].message.tool_calls):
                await result_of(client, one)
        return ANSWER

    found = await play(agent, ScriptedAgent([[call("1"), call("2")]]), tools=get_order)
    written = found.messages[1].tool_calls
    assert [record.call for record in found.calls] == [written[1], written[0]]


def get_price(order_id: str) -> str:
    """Read a price."""
    return "73"


async def test_calls_of_several_conversations_have_ids_of_their_own_and_each_result_its_tools_name():
    def script(messages, seed):
        if messages[-1].role == "tool":
            return f"heard {messages[-1].tool_call_id}"
        return call(name="get_order" if "order" in messages[0].content else "get_price")

    async def agent(task, endpoint):
        async with model_at(endpoint) as model, tools_at(endpoint) as desk:
            tools = [as_function(tool) for tool in (await desk.list_tools()).tools]
            for prompt in ("the order", "the price", "the order again"):
                history = [user(prompt)]
                for _ in range(2):
                    reply = await model.chat.completions.create(model=endpoint.model, messages=history, tools=tools)
                    said = reply.choices[0].message
                    history.append(said.model_dump(exclude_none=True))
                    history += [await result_of(desk, one) for one in said.tool_calls or []]
            return said.content

    found = await play(agent, ScriptedAgent(script), tools=[get_order, get_price])
    assert found.failure is None, found.failure
    asked_for = [(one.id, one.name) for message in found.messages for one in message.tool_calls]
    assert asked_for == [("call_1", "get_order"), ("call_2", "get_price"), ("call_3", "get_order")]
    assert [(one.call.id, one.call.name) for one in found.calls] == asked_for
    assert [(one.tool_call_id, one.name) for one in found.messages if one.role == "tool"] == asked_for
    assert found.answer == "heard call_1", "each conversation goes on with the ids that it knows"
