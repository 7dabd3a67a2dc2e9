"""The agent over an OpenAI-compatible endpoint, against real local servers with faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from chat_endpoints import ChatServer, says
from starlette.responses import JSONResponse, Response, StreamingResponse

from mcp_bridge.records import Tool
from sdk.errors import ConfigError, PolicyFailure
from sdk.policies.endpoint import EndpointAgent
from sdk.policies.model_source import check_model_source, model_label
from sdk.policies.protocol import Sampling
from sdk.policies.token_agent import turn_seed
from sdk.records import Message

KEY = "sk-very-secret"
ASK = [Message(role="user", content="Where is 4417?")]
NOW = {"retry-after": "0"}


def failing(status: int, message: str = "broken", **error: Any) -> JSONResponse:
    return JSONResponse({"error": {"message": message, **error}}, status_code=status, headers=NOW)


def called(*calls: tuple[str, str, str]) -> JSONResponse:
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return says(finish="tool_calls", tool_calls=made)


def talk(url: str, tools: tuple[Tool, ...] = (), **options: Any) -> Any:
    agent = EndpointAgent(url, "small", KEY, backoff_s=0, **options)
    return agent.start(tools, sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=64), seed=3)


async def test_a_models_own_instructions_come_before_what_the_task_says_in_one_system_message(
    chat_server: ChatServer,
) -> None:
    opening = [Message(role="system", content="Be brief."), *ASK]
    for messages, sent in ((ASK, "You are the desk."), (opening, "You are the desk.\n\nBe brief.")):
        chat_server.will(says("Shipped."), says("Yes."))
        conversation = talk(chat_server.url, system="You are the desk.")
        await conversation.reply(messages)
        await conversation.reply([Message(role="user", content="Sure?")])
        assert len(chat_server.bodies) == 2
        for body in chat_server.bodies:
            assert [m["content"] for m in body["messages"] if m["role"] == "system"] == [sent]
            assert body["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        ({"toolbake": {"tool_prompt": "names"}}, "names"),
        ({"tool_prompt": "none"}, None),
        ({"toolbake": {"tool_prompt": "some"}}, None),
        ({"toolbake": {"tool_prompt": ["none"]}}, None),
        ({"toolbake": "none"}, None),
        ({}, None),
    ],
)
async def test_only_in_the_words_of_our_own_server_a_reply_says_how_much_of_the_tools_its_prompt_showed(
    chat_server: ChatServer, extra: dict[str, Any], shown: str | None
) -> None:
    body = json.loads(bytes(says("Shipped.").body))
    chat_server.will(JSONResponse({**body, **extra}))
    reply = await talk(chat_server.url).reply(ASK)
    assert (reply.message.content, reply.tool_prompt) == ("Shipped.", shown)


@pytest.mark.parametrize("system", ["", " \n", 7])
def test_an_empty_system_prompt_is_refused(system: Any) -> None:
    with pytest.raises(ConfigError, match="system prompt is empty"):
        check_model_source({"base_url": "http://host/v1", "model": "large", "system": system})


def test_another_system_prompt_makes_another_run() -> None:
    source = {"base_url": "http://host/v1", "model": "large"}
    labels = [model_label({**source, **extra}) for extra in ({}, {"system": "a"}, {"system": "b"})]
    assert labels[0] == "http://host/v1#large"
    assert len({*labels}) == 3


async def test_a_conversation_with_parallel_calls_sends_what_openai_expects(
    chat_server: ChatServer, order_tool: Tool
) -> None:
    chat_server.will(called(("a", "get_order", '{"order_id": "1"}'), ("a", "get_order", "{}")), says("Shipped."))
    conversation = talk(chat_server.url, (order_tool,))
    first = await conversation.reply(ASK)
    ids = [call.id for call in first.message.tool_calls]
    assert ids[0] == "a"
    assert len(set(ids)) == 2
    assert [call.arguments for call in first.message.tool_calls] == [{"order_id": "1"}, {}]
    assert (first.stop_reason, first.sampled_tokens, first.prompt_tokens) == ("stop", 7, 11)
    second = await conversation.reply([Message(role="tool", content="ok", tool_call_id=i) for i in ids], max_tokens=9)
    assert second.message.content == "Shipped."
    assert conversation.rows() == []
    one, two = chat_server.bodies
    assert one == {
        "model": "small",
        "messages": [{"role": "user", "content": "Where is 4417?"}],
        "tools": [order_tool.as_openai()],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 64,
        "seed": turn_seed(3, 0),
    }
    assert [m["role"] for m in two["messages"]] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in two["messages"][1]["tool_calls"]] == ids
    assert (two["max_tokens"], two["seed"]) == (9, turn_seed(3, 1))
    assert chat_server.headers[0]["authorization"] == f"Bearer {KEY}"


async def test_busy_answers_are_repeated_as_the_server_asks_and_counted(chat_server: ChatServer) -> None:
    chat_server.will(failing(429), failing(502), failing(503), says("Here."))
    reply = await talk(chat_server.url).reply(ASK)
    assert reply.message.content == "Here."
    assert reply.extra["retries"] == 3
    assert reply.extra["retried"] == ["HTTP 429", "HTTP 502", "HTTP 503"]
    assert chat_server.bodies[0] == chat_server.bodies[3]


async def test_retries_end_and_a_wait_that_is_too_long_is_not_waited_for(chat_server: ChatServer) -> None:
    chat_server.will(*[failing(429, "slow down")] * 3)
    with pytest.raises(PolicyFailure, match=r"failed 3 times, at last with HTTP 429: slow down"):
        await talk(chat_server.url, max_retries=2).reply(ASK)
    chat_server.will(Response("later", status_code=503, headers={"retry-after": "3600"}))
    with pytest.raises(PolicyFailure, match="3600 s off, over 60 s: later"):
        await talk(chat_server.url).reply(ASK)
    date = "Wed, 21 Oct 2099 07:28:00 GMT"
    chat_server.will(Response("later", status_code=503, headers={"retry-after": date}))
    with pytest.raises(PolicyFailure, match="off, over 60 s"):
        await talk(chat_server.url).reply(ASK)


@pytest.mark.parametrize("status", [400, 401, 404, 500, 504])
async def test_other_refusals_fail_at_once_with_the_endpoints_message_and_without_the_key(
    chat_server: ChatServer, status: int
) -> None:
    chat_server.will(failing(status, f"Bad key {KEY} for you"))
    conversation = talk(chat_server.url)
    with pytest.raises(PolicyFailure, match=rf"HTTP {status}: Bad key \*\*\* for you") as caught:
        await conversation.reply(ASK)
    assert KEY not in repr(caught.value)
    assert len(chat_server.bodies) == 1


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic"])
async def test_no_part_of_a_key_is_left_where_an_error_is_cut(chat_server: ChatServer, scheme: str) -> None:
    key = "k1e2y3" * 10
    chat_server.will(failing(401, f"{'x' * 470} {key} is wrong"))
    agent = EndpointAgent(chat_server.url, "small", headers={"Authorization": f"{scheme} {key}"})
    with pytest.raises(PolicyFailure, match=r"HTTP 401: x+") as caught:
        await agent.start((), sampling=Sampling(), seed=0).reply(ASK)
    assert "k1e2" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        {"message": "too long", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."},
        {"message": "prompt is too long: 9000 tokens > 8192 maximum"},
    ],
)
async def test_a_conversation_too_long_for_the_model_ends_for_want_of_context(
    chat_server: ChatServer, error: dict[str, str]
) -> None:
    chat_server.will(JSONResponse({"error": error}, status_code=400), says("Short."))
    conversation = talk(chat_server.url)
    reply = await conversation.reply(ASK)
    assert (reply.stop_reason, reply.message.content) == ("context", "")
    assert reply.extra["error"] == error["message"]
    assert (await conversation.reply(ASK)).message.content == "Short."
    assert len(chat_server.bodies[1]["messages"]) == 1


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<html>oops", "not valid JSON.*<html>oops"),
        ("[]", "no choices"),
        ('{"choices": []}', "no choices"),
        ('{"choices": [{"message": null}]}', "no message"),
        ('{"choices": [{"message": {"content": 5}}]}', "neither text nor parts"),
        ('{"choices": [{"message": {"tool_calls": 5}}]}', "tool_calls is not a list"),
        ('{"choices": [{"message": {}, "finish_reason": "content_filter"}]}', "content filter"),
        ('{"choices": [{"message": {"content": "The or"}, "finish_reason": "abort"}]}', "finish_reason is 'abort'"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_a_failure_not_a_reply(
    chat_server: ChatServer, body: str, complaint: str
) -> None:
    chat_server.will(Response(body))
    with pytest.raises(PolicyFailure, match=complaint):
        await talk(chat_server.url).reply(ASK)


async def test_malformed_calls_come_back_as_calls_with_an_error(chat_server: ChatServer) -> None:
    chat_server.will(called(("1", "find", '{"q": '), ("2", "find", "[1]"), ("3", "", "{}")), says("ok"))
    conversation = talk(chat_server.url)
    calls = (await conversation.reply(ASK)).message.tool_calls
    assert ["not valid JSON" in (calls[0].error or ""), "JSON object" in (calls[1].error or "")] == [True, True]
    assert calls[2].error == "the call has no name"
    assert all(call.arguments == {} for call in calls)
    await conversation.reply([Message(role="tool", content="no", tool_call_id=c.id) for c in calls])


async def test_a_cut_answer_reasoning_parts_and_a_refusal_are_read(chat_server: ChatServer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat_server.will(says("par", finish="length"), says(parts, reasoning_content="hm"), says(None, refusal="No."))
    conversation = talk(chat_server.url)
    assert (await conversation.reply(ASK)).stop_reason == "length"
    second = (await conversation.reply(ASK)).message
    assert (second.content, second.reasoning) == ("ab", "hm")
    assert (await conversation.reply(ASK)).message.content == "No."
    assert "reasoning_content" not in json.dumps(chat_server.bodies[-1])


@pytest.mark.parametrize(
    ("said", "reasoning", "content"),
    [
        ("<think>\nIs it 12?\n</think>\n\nIt is 11.", "Is it 12?", "It is 11."),
        ("Is it 12?\n</think>\n\nIt is 11.", "Is it 12?", "It is 11."),
        ("<think>\nIs it", "Is it", ""),
        ("It is <think>11</think>.", None, "It is <think>11</think>."),
    ],
)
async def test_reasoning_that_a_server_leaves_in_the_content_is_none_of_the_answer(
    chat_server: ChatServer, said: str, reasoning: str | None, content: str
) -> None:
    chat_server.will(says(said), says("ok"))
    conversation = talk(chat_server.url)
    message = (await conversation.reply(ASK)).message
    assert (message.reasoning, message.content) == (reasoning, content)
    await conversation.reply(ASK)
    assert chat_server.bodies[-1]["messages"][1]["content"] == content


async def test_fields_can_be_renamed_added_and_taken_out(chat_server: ChatServer) -> None:
    chat_server.will(says("ok"))
    options = {"max_tokens_field": "max_completion_tokens", "extra_body": {"seed": None, "top_k": 5}}
    await talk(chat_server.url, **options).reply(ASK)
    body = chat_server.bodies[0]
    assert (body["max_completion_tokens"], body["top_k"]) == (64, 5)
    assert not {"max_tokens", "seed"} & set(body)


async def test_half_a_surrogate_pair_in_a_message_is_sent_as_the_replacement_character(chat_server: ChatServer) -> None:
    chat_server.will(says("ok"))
    await talk(chat_server.url).reply([Message(role="user", content="a\ud800b")])
    assert chat_server.bodies[0]["messages"][0]["content"] == "a\ufffdb"


COMPLETE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"


async def test_a_connection_dropped_before_an_answer_is_tried_again(raw_server: Any) -> None:
    body = says("Back.").body
    url, seen = raw_server([b"", COMPLETE + b"content-length: %d\r\n\r\n" % len(body) + body])
    reply = await talk(url).reply(ASK)
    assert (reply.message.content, reply.extra["retries"]) == ("Back.", 1)
    assert len(seen) == 2


async def test_an_answer_that_breaks_off_is_not_asked_for_again(raw_server: Any) -> None:
    url, seen = raw_server([COMPLETE + b"content-length: 500\r\n\r\n{", b""])
    with pytest.raises(PolicyFailure, match="broke off its answer"):
        await talk(url).reply(ASK)
    assert len(seen) == 1


async def test_an_answer_that_comes_drop_by_drop_ends_with_the_time_that_it_may_take(chat_server: ChatServer) -> None:
    async def drops() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await anyio.sleep(0.01)

    chat_server.will(StreamingResponse(drops()))
    with pytest.raises(PolicyFailure, match=r"gave no whole answer within 0\.3 s"):
        await talk(chat_server.url, timeout_s=0.3).reply(ASK)


async def test_an_endpoint_that_is_not_there_fails_after_the_retries(unused_tcp_port: int) -> None:
    with pytest.raises(PolicyFailure, match=r"failed 2 times, at last with ConnectError"):
        await talk(f"http://127.0.0.1:{unused_tcp_port}/v1", max_retries=1).reply(ASK)


async def test_an_open_agent_shares_its_connections_among_conversations(chat_server: ChatServer) -> None:
    chat_server.will(*[says("ok")] * 6)
    async with EndpointAgent(chat_server.url, "small", KEY, name="baseline") as agent:
        async with anyio.create_task_group() as group:
            for seed in range(6):
                group.start_soon(agent.start([], sampling=Sampling(), seed=seed).reply, ASK)
    assert len(chat_server.bodies) == 6
    assert agent.name == "baseline"


def test_a_header_whose_value_is_part_of_the_key_leaves_nothing_of_the_key() -> None:
    agent = EndpointAgent("http://127.0.0.1:1/v1", "m", api_key="sk-acme-12345678", headers={"X-Team": "acme"})
    assert agent.shown("acme may not use sk-acme-12345678") == "*** may not use ***"


def test_the_key_is_never_shown() -> None:
    agent = EndpointAgent("http://localhost:1/v1/", "small", KEY, headers={"x-tenant": "hidden-tenant"})
    shown = repr(agent) + repr(vars(agent)) + repr(agent.start([], sampling=Sampling(), seed=0).__dict__)
    assert KEY not in shown
    assert "hidden-tenant" not in shown


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-key", "hidden-key\n"), ("x-key", "hidden-kéy"), ("x-key", " hidden-key"), ("x key", "hidden-key")],
)
def test_a_header_that_http_cannot_carry_is_refused_before_it_is_sent_and_its_value_not_shown(
    name: str, value: str
) -> None:
    with pytest.raises(ConfigError, match="header") as caught:
        EndpointAgent("http://localhost:1/v1", "small", headers={name: value})
    assert "hidden" not in str(caught.value)
    EndpointAgent("http://localhost:1/v1", "small", headers={"x-key": "two words", "x-empty": ""})


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("localhost:8000", None),
        ("ftp://host/v1", None),
        ("http://user:pass@host/v1", None),
        ("http://host/v1?key=1", None),
        ("http://host/v1", "two words"),
        ("http://host/v1", ""),
    ],
)
def test_a_url_or_key_that_cannot_work_is_refused_without_showing_secrets(url: str, key: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        EndpointAgent(url, "small", key)
    assert "pass" not in str(caught.value)
    assert "two words" not in str(caught.value)
