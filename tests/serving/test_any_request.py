"""No request, whatever is in it, is answered as a fault of the server. A tiny model answers, with real grammars."""

import json
import random
import sys
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdk.serving import serve
from sdk.serving.chat_request import ChatRequest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from endpoint_load import Found, fuzzed


@pytest.fixture(scope="module")
def client(tiny_model_folder):
    with serve(tiny_model_folder, port=0, model_name="desk", default_max_tokens=4) as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            yield client


KEYS = st.sampled_from(
    ["type", "properties", "items", "enum", "const", "anyOf", "allOf", "$ref", "$defs", "pattern", "required"]
) | st.sampled_from(
    ["role", "content", "name", "function", "arguments", "tool_calls", "id", "tool_call_id", "text", "parameters", "5"]
)
WORDS = st.sampled_from(["object", "string", "integer", "array", "user", "assistant", "tool", "function", "#/$defs/a"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | WORDS
    | st.text(max_size=8)
    | st.sampled_from(["<think>", "</tool_call>", "<|im_end|>", "(a+)+$", "[", "\\p{L}", "\x00", "👩‍👩‍👧", "a" * 3000])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "boolean", "null", "x"])})
    | st.fixed_dictionaries({"enum": st.lists(SCALARS, max_size=3)})
    | st.dictionaries(KEYS, ANYTHING, max_size=2),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(st.text(max_size=4), inner)})
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=2)})
    ),
    max_leaves=4,
)
FUNCTIONS = st.fixed_dictionaries(
    {"name": st.sampled_from(["f", "get order", "é", "<x>", "a" * 128])},
    optional={"parameters": SCHEMAS, "strict": st.booleans(), "description": st.text(max_size=9)},
)
CALLS = st.fixed_dictionaries(
    {
        "id": st.text(max_size=3),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.text(max_size=4), "arguments": ANYTHING.map(json.dumps)}),
    }
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]), "content": st.text() | ANYTHING},
    optional={
        "tool_calls": st.lists(CALLS, max_size=2),
        "tool_call_id": st.text(max_size=3),
        "reasoning": st.text(max_size=9),
        "name": st.text(max_size=3) | ANYTHING,
    },
)
FINE = {
    "messages": st.lists(MESSAGES, min_size=1, max_size=4),
    "tools": st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTIONS}), max_size=3),
    "tool_choice": st.sampled_from(["none", "auto", "required"])
    | st.just({"type": "function", "function": {"name": "f"}}),
    "response_format": st.just({"type": "json_object"})
    | st.builds(
        lambda schema, strict: {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": schema, "strict": strict},
        },
        SCHEMAS,
        st.booleans(),
    ),
    "stream": st.booleans(),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "max_tokens": st.integers(1, 9),
    "n": st.integers(1, 3),
    "seed": st.integers(-(2**70), 2**70),
    "stop": st.lists(st.text(min_size=1, max_size=2), max_size=4),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 20),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, 300).map(str), st.floats(-100, 100), max_size=3),
    "stop_token_ids": st.lists(st.integers(0, 300), max_size=3),
    "parallel_tool_calls": st.booleans(),
}
MEANT = st.fixed_dictionaries(
    {"model": st.just("desk"), "messages": st.just([{"role": "user", "content": "Hi"}]) | FINE["messages"]},
    optional={name: values for name, values in FINE.items() if name != "messages"},
)
MISTAKES = st.just({}) | st.dictionaries(st.sampled_from(sorted(FINE)), ANYTHING, max_size=1)
BODIES = st.builds(lambda meant, mistake: {**meant, **mistake}, MEANT, MISTAKES)


def test_the_fuzzed_parameters_are_all_that_there_are():
    others = {"model", "max_completion_tokens", "stream_options"}
    assert set(FINE) | others == set(ChatRequest.model_fields)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=BODIES)
def test_no_request_is_a_fault_of_the_server(client, body):
    try:
        content = json.dumps(body).encode()
    except ValueError:
        return
    reply = client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert reply.status_code in (200, 400, 404, 413, 422), reply.text
    if reply.headers["content-type"].startswith("text/event-stream"):
        errors = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith('data: {"error"')]
        assert all(error["error"]["type"] != "server_error" for error in errors), errors
    elif reply.status_code != 200:
        assert reply.json()["error"]["message"]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=60) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_no_body_is_a_fault_of_the_server(client, content):
    reply = client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]


def test_no_request_of_any_path_is_a_fault_of_the_server(client):
    found = Found()
    for number in range(200):
        asked = fuzzed("desk", random.Random(f"any path {number}"))
        reply = client.request(**asked)
        found.take(reply.status_code, reply.text, asked)
    assert not found.faults
    assert found.statuses[200] > 10
