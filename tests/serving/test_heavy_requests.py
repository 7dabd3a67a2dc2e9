"""One request, however large or malformed, does not stop the endpoint for the others."""

import json
import threading
from typing import Any

import httpx
import pytest
from fake_policy import RENDERER, FakePolicy, running

from sdk.policies.scripted import ByteRenderer
from sdk.records import ToolCall
from sdk.serving.client_schemas import ClientSchemas

JSON = {"content-type": "application/json"}


class WaitingRenderer(ByteRenderer):
    """Renders when it is let; says that it was asked."""

    def __init__(self):
        super().__init__()
        self.asked, self.let = threading.Event(), threading.Event()

    def start(self, messages, tools):
        self.asked.set()
        assert self.let.wait(60)
        return super().start(messages, tools)


class NoRenderer(ByteRenderer):
    def start(self, messages, tools):
        raise AssertionError("rendered")


def body(**fields):
    return {"model": "desk", "messages": [{"role": "user", "content": "Hi"}], **fields}


def tool(number, **function):
    return {"type": "function", "function": {"name": f"tool_{number}", **function}}


def call(text):
    return {"id": "c", "type": "function", "function": {"name": "tool_0", "arguments": f'{{"a": "{text}"}}'}}


def post(server, **fields):
    return httpx.post(f"{server.url}/v1/chat/completions", json=body(**fields), timeout=100)


@pytest.fixture(scope="module")
def server():
    with running(FakePolicy(lambda prompt, seed: "Hello."), renderer=NoRenderer()) as server:
        yield server


def test_others_are_answered_while_a_prompt_is_rendered():
    renderer = WaitingRenderer()
    with running(FakePolicy(lambda prompt, seed: "Hello."), renderer=renderer) as server:
        replies = []
        asking = threading.Thread(target=lambda: replies.append(post(server)))
        asking.start()
        try:
            assert renderer.asked.wait(60)
            assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200
            assert not replies
        finally:
            renderer.let.set()
            asking.join(60)
    assert replies[0].json()["choices"][0]["message"]["content"] == "Hello."


def test_others_are_answered_while_a_body_is_read(monkeypatch):
    import sdk.serving.openai_api

    asked, let = threading.Event(), threading.Event()
    read = sdk.serving.openai_api.read_request

    def wait_and_read(raw):
        asked.set()
        assert let.wait(60)
        return read(raw)

    monkeypatch.setattr(sdk.serving.openai_api, "read_request", wait_and_read)
    with running(FakePolicy(lambda prompt, seed: "Hello."), renderer=RENDERER) as server:
        asking = threading.Thread(target=post, args=(server,))
        asking.start()
        try:
            assert asked.wait(60)
            assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200
        finally:
            let.set()
            asking.join(60)


def nested(levels):
    schema = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [tool(n) for n in range(1025)]}, "tools", "at most 1024 items"),
        ({"messages": [{"role": "user", "content": "a"}] * 10_001}, "messages", "at most 10000 items"),
        ({"tools": [tool(0, description="a" * 1_000_001)]}, "tools", "the tools have 10000"),
        ({"tools": [tool(0, parameters=nested(400))]}, None, "more than 100 levels deep"),
        ({"messages": [{"role": "user", "content": "a" * 1_100_000}]}, "messages", "the context holds 4096 tokens"),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [call("\\ud800" + "a" * 1_100_000)]}]},
            "messages",
            "the context holds 4096 tokens",
        ),
        ({"a" * 5_000_000: 1}, "a" * 100, "aaa... (5000000 characters) is not supported; the parameters are model"),
        ({"messages": [{"role": "user", "content": "a", "b" * 5_000_000: 1}]}, "messages.0.bb", "is not supported for"),
        ({"messages": [{"role": "r" * 5_000_000, "content": "a"}]}, "messages.0.role", "choose from system"),
        ({"messages": [{"role": "user", "content": [{"type": "t" * 5_000_000}]}]}, "messages.0.content.0", "only text"),
        ({"tools": [tool(0, **{"c" * 5_000_000: 1})]}, "tools.0.function.cc", "extra inputs are not permitted"),
        (
            {"tools": [tool(0)], "tool_choice": {"type": "function", "function": {"name": "d" * 5_000_000}}},
            "tool_choice",
            "the tools are tool_0",
        ),
    ],
)
def test_what_is_too_much_is_refused_by_name_before_it_is_rendered(server, fields, param, message):
    reply = post(server, **fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error"), error
    assert message in error["message"]
    assert (error["param"] or "").startswith(param or "")
    assert len(reply.content) < 4000


def test_a_model_with_a_long_name_does_not_exist(server):
    reply = post(server, model="m" * 5_000_000)
    assert reply.status_code == 404
    assert len(reply.content) < 1000


def test_two_tools_of_one_name_are_found_among_many(server):
    reply = post(server, tools=[tool(n) for n in (*range(1000), 7)])
    assert "two tools have the name 'tool_7'" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/models/desk", "/health"])
@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""),
        *("user@localhost", "evil.example@127.0.0.1:80", "localhost/a", "localhost?a", "localhost#a", "localhost:a"),
    ],
)
def test_without_a_key_another_sites_name_for_this_machine_is_refused(server, path, host):
    send = httpx.post if path.endswith("completions") else httpx.get
    options = {"content": json.dumps(body())} if path.endswith("completions") else {}
    reply = send(f"{server.url}{path}", headers={**JSON, "host": host}, **options)
    assert reply.status_code == 421
    assert "not this machine, and this endpoint has no key" in reply.json()["error"]["message"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:8000", "127.1.2.3"])
def test_without_a_key_any_name_of_this_machine_will_do(server, host):
    assert httpx.get(f"{server.url}/health", headers={"host": host}).status_code == 200


def test_with_a_key_the_name_does_not_matter():
    with running(FakePolicy(lambda prompt, seed: "Hello."), api_key="key") as server:
        headers = {"host": "models.example", "authorization": "Bearer key"}
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        assert httpx.get(f"{server.url}/health", headers={"host": "models.example"}).status_code == 200


def test_a_strict_schema_that_takes_exponential_time_is_given_up() -> None:
    definitions: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(24)
    }
    definitions["d24"] = {"type": "integer"}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}
    problem = ClientSchemas({"f": schema}).problem(ToolCall(id="c", name="f", arguments={"a": "x"}))
    assert problem is not None
    assert "could not be checked" in problem
