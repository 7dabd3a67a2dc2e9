"""Agents that crash, hang, flood, go on after their end or use another rollout's key harm their own rollout at most."""

import asyncio
import gc
import threading

import anyio
import httpx
import httpx2
import openai
import pytest
from orders import ANSWER, QUESTION, call, get_order, looks_up_and_says, play
from plain_agent import as_function, model_at, plain_agent, tools_at

import sdk
from sdk.evaluation.conditions import errors_of
from sdk.policies.scripted import END_TOKEN, ByteRenderer, ScriptedAgent, ScriptedPolicy
from sdk.policies.token_agent import TokenAgent
from sdk.records import Message
from sdk.transcript import rollout_text


def post(endpoint, key=None, path="/chat/completions", **more):
    """The status and the error of a request, by a plain client."""
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": QUESTION}], **more}
    headers = {"Authorization": f"Bearer {endpoint.api_key if key is None else key}"}
    answer = httpx.post(f"{endpoint.base_url}{path}", json=body, headers=headers, timeout=60)
    return answer.status_code, answer.json().get("error", {}).get("message")


async def test_an_agent_that_raises_leaves_its_rollout_unscored_with_the_place():
    async def agent(task, endpoint):
        await plain_agent(task, endpoint)
        raise KeyError(f"no such {endpoint.api_key}")

    found = await play(agent)
    assert (found.failure.boundary, found.failure.kind) == ("agent", "AgentCrashed")
    assert "the agent agent raised KeyError: 'no such ***'" in found.failure.message
    assert "test_bad_agents.py" in found.failure.message
    assert found.verdict is None


async def test_what_an_agent_raises_is_told_with_its_cause():
    async def agent(task, endpoint):
        async with openai.AsyncOpenAI(base_url="http://127.0.0.1:1/v1", api_key="none", max_retries=0) as elsewhere:
            await elsewhere.models.list()

    found = await play(agent)
    assert "APIConnectionError: Connection error.; caused by ConnectError" in found.failure.message


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no text")


async def test_an_error_with_a_circle_of_causes_or_without_a_text_ends_its_rollout_alone():
    async def agent(task, endpoint):
        error, cause = Unspeakable(), KeyError("lost")
        cause.__cause__ = error
        raise error from cause

    found = await play(agent)
    expected = "raised Unspeakable: (its text cannot be shown: ValueError); caused by KeyError: 'lost'"
    assert expected in found.failure.message


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_an_agent_that_tries_to_end_the_process_ends_its_rollout_alone(error):
    async def agent(task, endpoint):
        if "9" in task.prompt:
            raise error("all of it")
        return await plain_agent(task, endpoint)

    tasks = [f"Where is order {number}?" for number in (8, 9)]
    report = await sdk.evaluate_async(get_order, tasks, lambda _: 1.0, model=looks_up_and_says(), agent=agent)
    assert report.conditions["scripted"].unscored == 1


async def test_an_agent_that_never_ends_is_cut_off_when_the_time_is_over(caplog):
    cancelled = threading.Event()

    async def agent(task, endpoint):
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
            raise ConnectionError("its server is gone")

    found = await play(agent, limits={"max_seconds": 2.0})
    assert (found.failure.boundary, found.failure.kind) == ("agent", "time_limit")
    assert await anyio.to_thread.run_sync(cancelled.wait, 30)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_an_agent_that_returns_no_text_is_told_what_to_return():
    async def agent(task, endpoint):
        await plain_agent(task, endpoint)
        return {"answer": 7}

    found = await play(agent)
    assert found.failure.kind == "AgentAnswer"
    assert "returned a dict; return the answer as text" in found.failure.message


async def test_a_wrong_key_and_one_whose_rollout_has_ended_are_refused():
    seen = []

    def agent(task, endpoint):
        seen.append(post(endpoint, key="guessed"))
        seen.append(post(endpoint, key=f"{endpoint.api_key}x"))
        seen.extend(post(before) for before in endpoints)
        endpoints.append(endpoint)
        assert post(endpoint)[0] == 200
        return "Done."

    endpoints: list[sdk.AgentEndpoint] = []
    tasks = ["one", "two"]
    report = await sdk.evaluate_async(
        get_order, tasks, lambda _: 1.0, model=ScriptedAgent(["Hm."]), agent=agent, concurrency=1
    )
    assert report.conditions["scripted"].unscored == 0
    assert len(seen) == 5
    assert {status for status, _ in seen} == {401}
    assert "this key is of no rollout, or its rollout has ended" in seen[-1][1]


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer guessed"}, {"api-key": "guessed"}])
async def test_requests_with_a_wrong_key_are_the_reason_of_a_rollout_without_a_message(headers):
    def agent(task, endpoint):
        for _ in range(2):
            httpx.post(f"{endpoint.base_url}/chat/completions", json={}, headers=headers)
        return "It is shipped."

    found = await play(agent)
    assert (found.failure.boundary, found.failure.kind, found.verdict) == ("agent", "AgentSilent", None)
    assert "2 requests came meanwhile without the key of a rollout; it must send its" in found.failure.message


@pytest.mark.parametrize("is_swallowed", [True, False])
@pytest.mark.parametrize("except_for", ["", "127.0.0.1"])
async def test_a_proxy_that_gets_the_requests_of_an_agent_is_named(monkeypatch, is_swallowed, except_for):
    for name, value in {"HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": except_for, "no_proxy": except_for}.items():
        monkeypatch.setenv(name, value)

    def agent(task, endpoint):
        try:
            assert post(endpoint)[0] == 200
        except httpx.ConnectError:
            if not is_swallowed:
                raise

    found = await play(agent, ScriptedAgent(["Hm."]))
    if except_for:
        assert found.failure is None, found.failure
    else:
        assert found.failure.kind == ("AgentSilent" if is_swallowed else "AgentCrashed")
        said = "no request came, and HTTP_PROXY is set: clients may ask that proxy; add 127.0.0.1 to NO_PROXY"
        assert said in found.failure.message


async def test_tools_are_reached_with_the_key_of_the_rollout_alone():
    async def agent(task, endpoint):
        refused = httpx.post(endpoint.mcp_url, json={}, headers={"Authorization": "Bearer guessed"})  # noqa: ASYNC210
        assert refused.status_code == 401
        with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever the client makes of a 401
            async with tools_at(endpoint, {"Authorization": "Bearer guessed"}) as client:
                await client.list_tools()
        return await plain_agent(task, endpoint)

    found = await play(agent)
    assert found.failure is None
    assert len(found.calls) == 1


async def test_a_session_of_one_rollout_meets_the_world_of_the_key_that_a_call_is_sent_with():
    first_in = threading.Event()
    sessions = []

    def who(number: str) -> str:
        """Say who asks."""
        return f"I am {number}"

    async def agent(task, endpoint):
        async with model_at(endpoint) as model:
            await model.chat.completions.create(model=endpoint.model, messages=[{"role": "user", "content": "Hi"}])
        async with tools_at(endpoint) as client:
            sessions.append(endpoint)
            result = await client.call_tool("who", {"number": task.prompt})
        first_in.set()
        return result.content[0].text

    tasks = [str(number) for number in range(8)]
    own = lambda rollout: [one.call.arguments["number"] for one in rollout.calls] == [rollout.task.prompt]  # noqa: E731
    report = await sdk.evaluate_async(who, tasks, own, model=ScriptedAgent(["Hm."]), agent=agent)
    assert report.conditions["scripted"].success.interval.estimate == 1.0
    assert len({endpoint.api_key for endpoint in sessions}) == len(tasks)


async def test_requests_and_calls_after_the_end_of_a_rollout_reach_nothing():
    late = []
    begun, ended = threading.Event(), threading.Event()

    async def agent(task, endpoint):
        if task.prompt == "first":
            threading.Thread(target=go_on_after_the_end, args=(endpoint,)).start()
            return await plain_agent(task, endpoint)
        begun.set()
        await anyio.to_thread.run_sync(ended.wait, 60)
        return await plain_agent(task, endpoint)

    def go_on_after_the_end(endpoint):
        begun.wait(60)
        late.append(post(endpoint)[0])
        late.append(httpx.post(endpoint.mcp_url, json={}, headers=endpoint.mcp_headers).status_code)
        ended.set()

    report = await sdk.evaluate_async(
        get_order, ["first", "second"], lambda _: 1.0, model=looks_up_and_says(), agent=agent, concurrency=1
    )
    assert report.conditions["scripted"].unscored == 0
    assert late == [401, 401]


async def test_too_many_requests_at_once_are_refused_and_the_rollout_goes_on():
    statuses = []

    async def agent(task, endpoint):
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Hi"}]}
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(headers=headers, limits=limits, timeout=60) as client:

            async def ask():
                answer = await client.post(f"{endpoint.base_url}/chat/completions", json=body)
                statuses.append(answer.status_code)

            async with anyio.create_task_group() as group:
                for _ in range(100):
                    group.start_soon(ask)
        return "Done."

    asked = []

    async def slowly(messages, seed):
        asked.append(seed)
        while len(asked) == 1 and 429 not in statuses:  # noqa: ASYNC110 - the agent's thread sets it
            await anyio.sleep(0.01)
        return "Hm."

    found = await play(agent, ScriptedAgent(slowly), limits={"max_turns": 100})
    assert found.failure is None
    assert set(statuses) == {200, 429}
    assert found.turns == statuses.count(200) == len(asked)


async def test_requests_without_end_are_a_failure_that_names_them():
    def agent(task, endpoint):
        with httpx.Client(headers=endpoint.mcp_headers) as client:
            while True:
                client.get(f"{endpoint.base_url}/models")

    found = await play(agent, limits={"max_turns": 1, "max_calls": 0})
    assert (found.failure.boundary, found.failure.kind) == ("agent", "AgentFlooded")
    assert "more than 1020 requests" in found.failure.message


@pytest.mark.parametrize("size", [10_000_000, 100_000])
async def test_a_history_of_megabytes_is_refused_by_its_size_or_ends_at_the_context(tiny_model_folder, size):
    statuses = []

    def agent(task, endpoint):
        history = [{"role": "user", "content": "word " * (size // 5)}]
        statuses.append(post(endpoint, messages=history))
        return "Done."

    found = await play(agent, str(tiny_model_folder))
    ((status, message),) = statuses or [(403, "ended")]
    if size > 1_000_000:
        assert (status, found.failure.kind) == (400, "AgentSilent")
        assert "the context holds 1024 tokens" in message
        assert message in found.failure.message
    else:
        assert found.stop_reason == "context_limit"
    assert found.rows == []


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


SHOWS = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]}


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        ({"messages": [SHOWS]}, 400, "messages.0.content.1 is a part of type 'image_url'; only text is supported"),
        ({"model": "gpt-9"}, 404, "the model 'gpt-9' does not exist; this endpoint serves 'scripted'"),
        ({"messages": "Hello"}, 400, 'messages is "Hello": input should be a valid list'),
    ],
)
async def test_what_is_refused_is_named_and_is_the_reason_of_a_rollout_without_a_message(sent, status, said):
    seen = []

    def agent(task, endpoint):
        seen.append(post(endpoint, **sent))

    found = await play(agent)
    assert seen == [(status, said)]
    assert (found.failure.boundary, found.failure.kind, found.verdict) == ("agent", "AgentSilent", None)
    assert said in found.failure.message


async def test_a_bad_request_later_costs_nothing_of_what_was_sampled_before():
    def agent(task, endpoint):
        assert post(endpoint)[0] == 200
        for wrong in ({"messages": [{"role": "user", "content": [PICTURE]}]}, {"model": "gpt-large"}, {"n": 2}):
            assert post(endpoint, **wrong)[0] in (400, 404)
        assert post(endpoint)[0] == 200

    found = await play(agent, ScriptedAgent(["Hm."]))
    assert (found.failure, found.turns, len(found.rows), found.answer) == (None, 2, 2, "Hm.")


async def test_a_tool_of_the_agents_own_with_the_name_of_one_of_the_world_is_the_agents():
    """The model's calls are the agent's to make: what never reaches the world is in no evidence."""

    async def agent(task, endpoint):
        async with model_at(endpoint) as model:
            tool = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object"}}}
            messages = [{"role": "user", "content": task.prompt}]
            for _ in range(2):
                reply = await model.chat.completions.create(model=endpoint.model, messages=messages, tools=[tool])
                message = reply.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                for one in message.tool_calls or []:
                    messages.append({"role": "tool", "tool_call_id": one.id, "content": "made up"})
        return message.content

    found = await play(agent)
    assert found.calls == []
    assert found.ledger == []
    assert found.answer == ANSWER


async def test_a_call_that_could_not_be_read_comes_to_the_agent_as_the_model_wrote_it():
    slip = b'<tool_call>{"name": "get_order", "arguments": {"order_id": 44"17}}</tool_call>'
    policy = ScriptedPolicy([[*said, END_TOKEN] for said in (slip, ANSWER.encode())])
    model = TokenAgent(policy, ByteRenderer())
    found = await play(plain_agent, model, limits={"max_turn_tokens": 1000})
    assert found.failure is None, found.failure
    assert found.answer == ANSWER
    assert [message.role for message in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert "the arguments are not valid JSON" in found.messages[2].content
    assert len(found.rows) == 1
    assert found.calls == []
    assert errors_of(found) == {"unreadable_call": 1}


async def test_settings_of_sampling_that_a_rollout_does_not_follow_are_named_once(caplog):
    async def agent(task, endpoint):
        async with model_at(endpoint) as model:
            asked = {"model": endpoint.model, "messages": [{"role": "user", "content": "Hi"}]}
            for _ in range(2):
                await model.chat.completions.create(**asked, temperature=0.7, top_p=1.0, seed=5, presence_penalty=0.5)
        return "Done."

    await sdk.evaluate_async(get_order, ["1", "2"], lambda _: 1.0, model=ScriptedAgent(["Hi."] * 2), agent=agent)
    said = [record.getMessage() for record in caplog.records if "asks for" in record.getMessage()]
    assert len(said) == 3
    assert "the agent agent asks for a seed; what is sampled" in said[0]
    assert "presence_penalty (rollouts have none)" in said[1]
    assert "temperature 0.7 (it is 0)" in said[2]


async def test_an_agent_that_writes_into_its_task_changes_no_other_rollout(tmp_path):
    async def agent(task, endpoint):
        messages = task.opening()
        messages[-1].content += " Be brief."
        task.prompt.insert(0, Message(role="system", content="Hurry."))
        task.tags["kind"], task.setup["seed"] = "mine", 5
        async with model_at(endpoint) as model:
            asked = [message.as_openai() for message in messages]
            reply = await model.chat.completions.create(model=endpoint.model, messages=asked)
        return reply.choices[0].message.content

    kept = []
    task = sdk.Task(prompt=[Message(role="user", content="Hi.")], tags={"kind": "yours"})
    models = {"a": ScriptedAgent(["Hi."] * 2), "b": ScriptedAgent(["Hi."] * 2)}
    how = {"models": models, "agent": agent, "samples": 2, "concurrency": 1}
    await sdk.evaluate_async(get_order, [task], lambda rollout: kept.append(rollout) or 1.0, **how)
    assert [one.messages[0].content for one in kept] == ["Hi. Be brief."] * 4
    assert [(len(one.task.prompt), one.task.tags, one.task.setup) for one in kept] == [(1, {"kind": "yours"}, {})] * 4


async def test_the_answer_that_is_judged_is_shown_where_the_model_said_another():
    async def agent(task, endpoint):
        async with model_at(endpoint) as model:
            asked = [message.as_openai() for message in task.opening()]
            await model.chat.completions.create(model=endpoint.model, messages=asked)
        return "log line: starting"

    found = await sdk.rollout_async(get_order, "Hi", model=ScriptedAgent(["Hello."]), agent=agent)
    shown = rollout_text(found).splitlines()
    assert shown[1:3] == ["assistant: Hello.", "answer:    log line: starting"]


async def test_a_call_that_is_required_is_left_to_the_model_and_the_log_says_so(caplog):
    async def agent(task, endpoint):
        async with model_at(endpoint) as model, tools_at(endpoint) as client:
            tools = [as_function(tool) for tool in (await client.list_tools()).tools]
            asked = {"model": endpoint.model, "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
            return (await model.chat.completions.create(**asked, tool_choice="required")).choices[0].message.content

    found = await play(agent, ScriptedAgent(["I would rather talk."]))
    assert (found.failure, found.answer) == (None, "I would rather talk.")
    [said] = [record.getMessage() for record in caplog.records if "asks for" in record.getMessage()]
    assert "tool_choice required (no call is forced)" in said


async def test_an_engine_that_fails_leaves_the_rollout_unscored_at_the_policy():
    own, by_agent = [await play(agent, ScriptedAgent([call()])) for agent in (None, plain_agent)]
    assert own.failure.boundary == "policy"
    assert by_agent.failure == own.failure


async def test_a_policy_whose_code_raises_is_no_failure_of_an_agent_that_swallows_errors():
    async def tolerant(task, endpoint):
        try:
            return await plain_agent(task, endpoint)
        except openai.APIError:
            return "I could not do that."

    def script(messages, seed):
        return call() if messages[-1].role == "user" else {}["the template"]

    for agent in (None, tolerant):
        with pytest.raises(KeyError, match="the template"):
            await play(agent, ScriptedAgent(script))
