"""Agents of the user's play rollouts: the same tokens, limits, verdicts and evidence as by the library's own loop."""

import asyncio
import json
import threading

import anyio
import httpx
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from orders import ANSWER, QUESTION, call, get_order, looks_up_and_says, play, says
from plain_agent import as_function, model_at, plain_agent, result_of, tools_at

import sdk
from mcp_bridge import ToolFailure
from sandboxes.helpdesk import Helpdesk
from sdk.policies.scripted import END_TOKEN, ByteRenderer, ScriptedAgent, ScriptedPolicy
from sdk.policies.token_agent import TokenAgent

PLAYED = {"messages", "answer", "stop_reason", "rows", "turns", "sampled_tokens", "prompt_tokens", "verdict"}


def what_was_played(rollout):
    calls = [(record.turn, record.call, record.result.text) for record in rollout.calls]
    return {**rollout.model_dump(include=PLAYED), "calls": calls, "ledger": [line.event for line in rollout.ledger]}


async def test_an_agent_plays_the_same_rollout_as_the_own_loop():
    own, by_agent = await play(None), await play(plain_agent)
    assert by_agent.failure is None
    assert what_was_played(by_agent) == what_was_played(own)
    assert by_agent.answer == ANSWER


async def test_an_agent_that_speaks_the_responses_api_plays_the_same_rollout():
    async def agent(task, endpoint):
        async with model_at(endpoint) as model, tools_at(endpoint) as client:
            tools = [as_function(tool) for tool in (await client.list_tools()).tools]
            items = [message.as_openai() for message in task.opening()]
            while True:
                asked = {"tools": [{"type": "function", **tool["function"]} for tool in tools], "input": items}
                response = await model.responses.create(model=endpoint.model, **asked)
                items += [item.model_dump() for item in response.output]
                calls = [item for item in response.output if item.type == "function_call"]
                if not calls:
                    return response.output_text
                for one in calls:
                    result = await client.call_tool(one.name, json.loads(one.arguments))
                    said = "".join(part.text for part in result.content)
                    items.append({"type": "function_call_output", "call_id": one.call_id, "output": said})

    own, by_agent = await play(None), await play(agent)
    assert by_agent.failure is None
    assert what_was_played(by_agent) == what_was_played(own)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_real_model_samples_the_same_tokens_for_an_agent(tiny_model_folder, temperature):
    how = {"model": str(tiny_model_folder), "temperature": temperature, "limits": {"max_turn_tokens": 24}, "seed": 3}
    own, by_agent = [(await play(agent, **how)).rows for agent in (None, plain_agent)]
    assert by_agent == own
    assert sum(own[0].sampled) == 24


async def test_the_world_of_an_agent_is_that_of_its_task_and_its_state_is_evidence():
    model = ScriptedAgent([sdk.ToolCall(id="", name="cancel_order", arguments={"order_id": "1002"}), "Done."])
    tasks = [sdk.Task(prompt="Cancel order 1002.", setup={"seed": seed}) for seed in (1, 2)]
    for task in tasks:
        own = await play(None, model, tools=Helpdesk(), prompt=task)
        by_agent = await play(plain_agent, model, tools=Helpdesk(), prompt=task)
        assert (by_agent.initial_state, by_agent.final_state) == (own.initial_state, own.final_state)
    assert own.initial_state != (await play(plain_agent, model, tools=Helpdesk(), prompt=tasks[0])).initial_state


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_turns": 2}, "turn_limit"),
        ({"max_tokens": 130}, "token_limit"),
        ({"max_turn_tokens": 20}, "token_limit"),
        ({"max_calls": 1}, "call_limit"),
        ({"final_tools": {"get_order": "order_id"}}, "answered"),
        ({"final_tools": {"get_order": "order_id"}, "max_turns": 1}, "answered"),
    ],
)
async def test_limits_end_a_rollout_of_an_agent_where_they_end_one_of_the_own_loop(limits, reason):
    model = ScriptedAgent([call("1"), call("2"), call("3"), call("4"), "Done."], limit_tokens=True)
    own, by_agent = [await play(agent, model, limits=limits) for agent in (None, plain_agent)]
    assert own.stop_reason == reason
    assert what_was_played(by_agent) == what_was_played(own)


async def test_the_answer_of_a_final_tool_is_kept_where_one_more_call_is_one_too_many():
    limits = {"final_tools": {"get_order": "order_id"}, "max_calls": 1}
    found = await play(plain_agent, ScriptedAgent([[call("1"), call("2")], "Done."]), limits=limits)
    assert (found.stop_reason, found.answer, len(found.calls)) == ("answered", "1", 1)


async def test_uses_of_tools_of_its_own_are_no_calls():
    note = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}

    async def agent(task, endpoint):
        return await plain_agent(task, endpoint, own=[note])

    own = sdk.ToolCall(id="", name="note", arguments={})
    found = await play(agent, ScriptedAgent([call("1"), own, own, "Done."]), limits={"max_calls": 1})
    assert (found.stop_reason, found.answer, len(found.calls)) == ("answered", "Done.", 1)


async def test_an_agent_that_calls_more_than_the_limit_by_itself_is_stopped():
    async def agent(task, endpoint):
        async with model_at(endpoint) as model, tools_at(endpoint) as tools:
            await model.chat.completions.create(model=endpoint.model, messages=[{"role": "user", "content": "Hi"}])
            while True:
                await tools.call_tool("get_order", {"order_id": "1"})

    found = await play(agent, ScriptedAgent(["Hi."]), limits={"max_calls": 3})
    assert (found.stop_reason, len(found.calls), found.failure) == ("call_limit", 3, None)
    assert [record.call.id for record in found.calls] == ["mcp_1", "mcp_2", "mcp_3"]


async def test_a_plain_function_is_an_agent_too_and_none_means_what_the_model_said():
    def agent(task, endpoint):
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": task.prompt}]}
        httpx.post(f"{endpoint.base_url}/chat/completions", json=body, headers=headers).raise_for_status()

    assert (await play(agent, ScriptedAgent(["It is shipped."]))).answer == "It is shipped."
    assert (
        await play(lambda task, endpoint: agent(task, endpoint) or "Mine.", ScriptedAgent(["No."]))
    ).answer == "Mine."


async def test_an_async_agent_that_blocks_its_loop_is_answered_all_the_same():
    async def agent(task, endpoint):
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": task.prompt}]}
        answer = httpx.post(f"{endpoint.base_url}/chat/completions", json=body, headers=headers)  # noqa: ASYNC210
        return answer.json()["choices"][0]["message"]["content"]

    assert (await play(agent, ScriptedAgent(["Shipped."]))).answer == "Shipped."


@pytest.mark.virtual_clock
async def test_a_connection_that_an_agent_leaves_idle_takes_its_next_request():
    found, done = asyncio.get_running_loop().create_future(), threading.Event()

    def agent(task, endpoint):
        found.get_loop().call_soon_threadsafe(found.set_result, endpoint)
        done.wait()

    async def asks_twice():
        endpoint = await found
        try:
            url = httpx.URL(endpoint.base_url)
            body = json.dumps({"model": endpoint.model, "messages": [{"role": "user", "content": QUESTION}]})
            request = (
                f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {len(body)}\r\n"
                f"Authorization: Bearer {endpoint.api_key}\r\nContent-Type: application/json\r\n\r\n{body}"
            )
            connection = await anyio.connect_tcp(url.host, url.port)
            async with BufferedByteReceiveStream(connection) as received:
                for _ in range(2):
                    await connection.send(request.encode())
                    head = (await received.receive_until(b"\r\n\r\n", 10_000)).decode().lower()
                    assert head.startswith("http/1.1 200")
                    await received.receive_exactly(int(head.split("content-length: ")[1].split()[0]))
                    await anyio.sleep(60)
        finally:
            done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(asks_twice)
        rollout = await play(agent, says(ANSWER, ANSWER), limits={"max_seconds": 1e9})
    assert rollout.failure is None
    assert rollout.turns == 2


async def test_a_streamed_answer_has_the_calls_and_the_usage():
    async def agent(task, endpoint):
        async with model_at(endpoint) as model, tools_at(endpoint) as client:
            tools = [as_function(tool) for tool in (await client.list_tools()).tools]
            messages = [{"role": "user", "content": task.prompt}]
            asked = {"model": endpoint.model, "tools": tools, "stream_options": {"include_usage": True}}
            while True:
                async with model.chat.completions.stream(messages=messages, **asked) as stream:
                    completion = await stream.get_final_completion()
                message = completion.choices[0].message
                assert completion.usage.completion_tokens > 0
                messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
                if not message.tool_calls:
                    return message.content
                for one in messages[-1]["tool_calls"]:
                    one["function"].pop("parsed_arguments", None)
                messages += [await result_of(client, c) for c in message.tool_calls]

    assert what_was_played(await play(agent)) == what_was_played(await play(None))


class HeldBackPolicy(ScriptedPolicy):
    """Tells its tokens, all but the first only once somebody has read that."""

    vocabulary = 262

    def __init__(self, text, read):
        super().__init__([[*text.encode(), END_TOKEN]])
        self.read = read

    async def sample(self, prompt_ids, *, on_token=None, **options):
        completion = await super().sample(prompt_ids, **options)
        for place, token in enumerate(completion.token_ids):
            if place == 1:
                assert await anyio.to_thread.run_sync(self.read.wait, 60), "nothing came while it was sampled"
            on_token(token)
        return completion


async def test_words_come_while_they_are_sampled():
    read = threading.Event()

    async def agent(task, endpoint):
        said = ""
        async with model_at(endpoint) as model:
            messages = [{"role": "user", "content": task.prompt}]
            stream = await model.chat.completions.create(model=endpoint.model, messages=messages, stream=True)
            async for chunk in stream:
                said += chunk.choices[0].delta.content or ""
                if said:
                    read.set()
        return said

    said = "It was shipped on Monday, and comes on Wednesday."
    found = await play(agent, TokenAgent(HeldBackPolicy(said, read), ByteRenderer()))
    assert found.failure is None, found.failure
    assert found.answer == said


async def test_a_limit_ends_a_rollout_in_the_middle_of_a_stream():
    async def agent(task, endpoint):
        async with model_at(endpoint) as model:
            messages = [{"role": "user", "content": task.prompt}]
            stream = await model.chat.completions.create(model=endpoint.model, messages=messages, stream=True)
            async for _ in stream:
                pass
        return "never"

    model = ScriptedAgent(["word " * 20], limit_tokens=True)
    own, by_agent = [await play(one, model, limits={"max_turn_tokens": 60}) for one in (None, agent)]
    assert own.stop_reason == "token_limit"
    assert by_agent.model_dump(include=PLAYED - {"prompt_tokens", "rows"}) == own.model_dump(
        include=PLAYED - {"prompt_tokens", "rows"}
    )


async def test_an_agent_gets_its_task_without_what_is_expected():
    seen = []

    async def agent(task, endpoint):
        seen.append(task)
        return await plain_agent(task, endpoint)

    shown = [sdk.Message(role="assistant", content=ANSWER)]
    task = sdk.Task(prompt=QUESTION, expected={"answer": "shipped"}, demonstration=shown, tags={"tier": "1"})
    found = await play(agent, prompt=task, verifier=lambda rollout: rollout.task.expected["answer"] in rollout.answer)
    assert found.verdict.score == 1.0
    assert seen == [sdk.Task(prompt=QUESTION, tags={"tier": "1"}, id=task.id, family=task.family)]


async def test_a_tool_that_breaks_leaves_the_rollout_unscored_at_the_tools():
    def get_order(order_id: str) -> str:
        """Read an order."""
        raise ToolFailure("the backend is down")

    own, by_agent = [await play(agent, tools=get_order) for agent in (None, plain_agent)]
    assert by_agent.failure == own.failure
    assert by_agent.failure.boundary == "tools"
    assert by_agent.verdict is None


ASKED = []


async def noting_agent(task, endpoint):
    ASKED.append(task.prompt)
    return await plain_agent(task, endpoint)


async def test_a_measurement_goes_on_from_its_folder_and_another_agent_is_another_run(tmp_path):
    ASKED.clear()

    def evaluate(agent):
        tasks = [f"Where is order {number}?" for number in (1, 2, 3)]
        return sdk.evaluate_async(
            get_order, tasks, lambda rollout: 1.0, model=looks_up_and_says(), agent=agent, output_dir=tmp_path / "run"
        )

    first = await evaluate(noting_agent)
    again = await evaluate(noting_agent)
    assert len(ASKED) == 3
    assert first.run["agent"] == "noting_agent"
    assert first.run["history_breaks"] == 0
    assert again.conditions["scripted"].success == first.conditions["scripted"].success
    with pytest.raises(sdk.RunFolderError, match="agent"):
        await evaluate(plain_agent)


async def test_agents_at_once_are_never_mixed_up():
    together = threading.Barrier(16, timeout=60)

    def numbered(messages, seed):
        number = messages[0].content.split()[-1]
        results = [message.content for message in messages if message.role == "tool"]
        return call(number) if not results else f"{number}: {results[-1]}"

    async def agent(task, endpoint):
        return await plain_agent(task, endpoint)

    def waiting(task, endpoint):
        together.wait()
        return agent(task, endpoint)

    tasks = [f"Look up {number}" for number in range(16)]
    verify = lambda rollout: rollout.answer == "{0}: order {0}: shipped".format(rollout.task.prompt.split()[-1])  # noqa: E731
    report = await sdk.evaluate_async(get_order, tasks, verify, model=ScriptedAgent(numbered), agent=waiting)
    assert report.conditions["scripted"].success.interval.estimate == 1.0
    assert json.loads(report.model_dump_json())["conditions"]["scripted"]["unscored"] == 0


@pytest.mark.parametrize("stands_still", [False, True])
async def test_what_an_agent_left_open_closes_itself_before_its_loop_ends(stands_still):
    closed, left = [], []

    class Client:
        """Closes itself in a task when it is collected, as openai's does."""

        def __del__(self):
            left.append(asyncio.get_running_loop().create_task(self.close()))

        async def close(self):
            await asyncio.sleep(0)
            closed.append(self)

    async def wait(client):
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(3600)
        finally:
            late = loop.time() + 60
            loop.time = (lambda: late) if stands_still else loop.time

    async def agent(task, endpoint):
        asyncio.get_running_loop().create_task(wait(Client()))
        return await plain_agent(task, endpoint)

    assert (await play(agent)).answer == ANSWER
    assert closed
    assert all(task.done() for task in left)
