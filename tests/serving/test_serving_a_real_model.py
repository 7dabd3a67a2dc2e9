"""The embedded model behind the endpoint: real tokens, real chat template, real engine."""

import json

import httpx
import openai
import pytest

from sdk.serving import serve

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Orders.",
            "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
        },
    }
    for name in ("get_order", "cancel_order")
]
USER = [{"role": "user", "content": "Where is order 4417?"}]


@pytest.fixture(scope="module")
def client():
    with serve(None, port=0, model_name="base") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            yield client


def ask(client, **options):
    return client.chat.completions.create(**{"model": "base", "messages": USER, "max_tokens": 24, **options})


def test_it_answers_and_a_stream_says_the_same_for_the_same_seed(client):
    options = {"seed": 7, "temperature": 1.0}
    whole = ask(client, **options)
    stream = list(ask(client, stream=True, **options))
    text = whole.choices[0].message.content
    assert text.strip()
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == text
    assert len(pieces) > 5
    assert ask(client, seed=8).choices[0].message.content != text
    assert 0 < whole.usage.completion_tokens <= 24


def test_its_prompt_grows_with_the_tools(client):
    plain, with_tools = ask(client, max_tokens=1), ask(client, max_tokens=1, tools=TOOLS)
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens + 50


def test_a_named_call_is_that_call_or_an_honest_error_even_from_a_model_never_trained_for_it(client):
    choice = {"type": "function", "function": {"name": "cancel_order"}}
    body = {
        "model": "base",
        "messages": USER,
        "tools": TOOLS,
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 64,
    }
    reply = httpx.post(f"{client.base_url}chat/completions", json=body, timeout=60).json()
    if "error" in reply:
        assert reply["error"]["code"] == "tool_choice_not_met"
        return
    answer = reply["choices"][0]
    if answer["finish_reason"] == "tool_calls":
        assert {call["function"]["name"] for call in answer["message"]["tool_calls"]} == {"cancel_order"}
        assert all(isinstance(json.loads(c["function"]["arguments"]), dict) for c in answer["message"]["tool_calls"])
    else:
        assert answer["finish_reason"] == "length"


def test_a_conversation_longer_than_its_context_is_refused(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages=[{"role": "user", "content": "order " * 9000}])
    assert caught.value.code == "context_length_exceeded"
