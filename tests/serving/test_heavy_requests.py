"""One request, however large or malformed, does not stop the endpoint for the others."""

import json
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import anyio.to_thread
import httpx
import pytest
from fake_policy import GRAMMARS, RENDERER, FakePolicy, running

from mcp_bridge.records import Tool
from sdk.policies.protocol import Alternatives
from sdk.policies.scripted import ByteRenderer
from sdk.records import ToolCall
from sdk.serving.generation import WrittenJson, written
from sdk.serving.tool_calls import ClientSchemas

JSON = {"content-type": "application/json"}


BEARER = {"authorization": "Bearer key"}
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer key\r\n"
POST += b"content-type: application/json\r\ncontent-length: 9\r\n"


class WaitingPolicy(FakePolicy):
    """Thinks beside the event loop."""

    async def sample(self, prompt_ids, **options):
        said = await anyio.to_thread.run_sync(self.say, "", 0)
        return await FakePolicy(lambda prompt, seed: said).sample(prompt_ids, **options)


class Gate:
    """Holds the thread of a request, until somebody else was answered."""

    def __init__(self):
        self._reached, self._open = threading.Event(), threading.Event()

    def wait(self):
        self._reached.set()
        assert self._open.wait(60)

    def others_are_answered(self, server, **fields):
        """The reply to a request that waits at the gate. Meanwhile `/health` is asked."""
        replies = []
        asking = threading.Thread(target=lambda: replies.append(post(server, **fields)))
        asking.start()
        try:
            assert self._reached.wait(60)
            assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200
            assert not replies
        finally:
            self._open.set()
            asking.join(60)
        return replies[0]


class WaitingRenderer(ByteRenderer):
    """Renders when its gate is open."""

    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def start(self, messages, tools):
        self.gate.wait()
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


def post(server, headers=None, **fields):
    return httpx.post(f"{server.url}/v1/chat/completions", json=body(**fields), headers=headers, timeout=100)


@pytest.fixture(scope="module")
def server():
    with running(FakePolicy(lambda prompt, seed: "Hello."), renderer=NoRenderer()) as server:
        yield server


def test_others_are_answered_while_a_prompt_is_rendered():
    renderer = WaitingRenderer()
    with running(FakePolicy(lambda prompt, seed: "Hello."), renderer=renderer) as server:
        reply = renderer.gate.others_are_answered(server)
    assert reply.json()["choices"][0]["message"]["content"] == "Hello."


def test_others_are_answered_while_a_body_is_read(monkeypatch):
    import sdk.serving.openai_api

    gate, read = Gate(), sdk.serving.openai_api.read_request

    def wait_and_read(raw):
        gate.wait()
        return read(raw)

    monkeypatch.setattr(sdk.serving.openai_api, "read_request", wait_and_read)
    with running(FakePolicy(lambda prompt, seed: "Hello."), renderer=RENDERER) as server:
        gate.others_are_answered(server, messages=[{"role": "user", "content": "word " * 40_000}])


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


@pytest.mark.parametrize("values", ["[],", '{"a":1},', "1,"])
def test_a_body_with_more_values_than_are_read_at_once_is_refused_before_it_is_parsed(server, values):
    content = b'{"metadata": [' + values.encode() * 600_000 + b"0"  # not closed: a parser would say so
    reply = httpx.post(f"{server.url}/v1/chat/completions", content=content, headers=JSON, timeout=100)
    assert reply.status_code == 413
    assert "commas and brackets, at most 200000 are read" in reply.json()["error"]["message"]


def test_others_are_answered_while_an_answer_is_held_against_its_schema(monkeypatch):
    gate = Gate()
    monkeypatch.setattr(ClientSchemas, "check_content", lambda self, content: gate.wait())
    with running(FakePolicy(lambda prompt, seed: "Hello."), renderer=RENDERER) as server:
        gate.others_are_answered(server)


class KnowingPolicy(FakePolicy):
    """Tells of two alternatives for each token."""

    async def sample(self, prompt_ids, **options):
        said = await super().sample(prompt_ids, **options)
        return replace(said, alternatives=[Alternatives(-0.5, [(token, -0.5), (97, -1.5)]) for token in said.token_ids])


@pytest.mark.parametrize("stream", [False, True])
def test_others_are_answered_while_log_probabilities_are_written(monkeypatch, stream):
    gate, write = Gate(), WrittenJson.of

    def wait_and_write(items):
        gate.wait()
        return write(items)

    monkeypatch.setattr(WrittenJson, "of", wait_and_write)
    with running(KnowingPolicy(lambda prompt, seed: "Hi"), renderer=RENDERER) as server:
        reply = gate.others_are_answered(server, logprobs=True, top_logprobs=2, n=2, stream=stream)
    text = reply.text
    found = (
        [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        if stream
        else [json.loads(text)]
    )
    said = [choice["logprobs"]["content"] for one in found for choice in one["choices"] if choice["logprobs"]]
    assert [[one["token"] for one in tokens] for tokens in said] == [["H", "i", "<0>"]] * 2
    assert all(one["top_logprobs"][1]["token"] == "a" for tokens in said for one in tokens)


def test_json_in_pieces_is_the_json_of_the_whole():
    items = [{"a": 1.5, "b": 'x"é'}, [], "0" * 32]
    whole = {"content": items, "more": {"content": items, "text": "é"}}
    pieces = {"content": WrittenJson.of(items), "more": {"content": WrittenJson.of(items), "text": "é"}}
    assert json.loads(written(pieces, ensure_ascii=False)) == whole
    assert written(whole) == json.dumps(whole)
    with pytest.raises(TypeError, match="set is not JSON"):
        written({"a": {1}})


def test_a_model_with_a_long_name_does_not_exist(server):
    reply = post(server, model="m" * 5_000_000)
    assert reply.status_code == 404
    assert len(reply.content) < 1000


def test_two_tools_of_one_name_are_found_among_many(server):
    reply = post(server, tools=[tool(n) for n in (*range(1000), 7)])
    assert "two tools have the name 'tool_7'" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/responses", "/v1/models", "/v1/models/desk", "/metrics", "/health", "/ready"],
)
@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""),
        *("user@localhost", "evil.example@127.0.0.1:80", "localhost/a", "localhost?a", "localhost#a", "localhost:a"),
    ],
)
def test_without_a_key_another_sites_name_for_this_machine_is_refused(server, path, host):
    posts = path.endswith(("completions", "responses"))
    send, options = (httpx.post, {"content": json.dumps(body())}) if posts else (httpx.get, {})
    reply = send(f"{server.url}{path}", headers={**JSON, "host": host}, **options)
    assert reply.status_code == 421
    assert "not this machine, and this endpoint has no key" in reply.json()["error"]["message"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:8000", "127.1.2.3"])
def test_without_a_key_any_name_of_this_machine_will_do(server, host):
    assert httpx.get(f"{server.url}/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("sent", [b"", b"GET /health", POST, POST + b"\r\n{"])
def test_a_request_that_does_not_come_to_its_end_is_given_up(sent, key, monkeypatch):
    answering, let = threading.Event(), threading.Event()

    def say(prompt, seed):
        answering.set()
        assert let.wait(60)
        return "Hello."

    with running(WaitingPolicy(say), api_key=key) as server:
        replies = []
        asking = threading.Thread(target=lambda: replies.append(post(server, headers=BEARER)))
        asking.start()
        try:
            assert answering.wait(60)
            monkeypatch.setattr("sdk.serving.server.REQUEST_S", 0.2)
            with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=60) as slow:
                slow.sendall(sent)
                assert slow.recv(999) == b""  # no answer: the connection is closed
        finally:
            let.set()
            asking.join(60)
    assert replies[0].status_code == 200  # which was sampled for longer


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch):
    monkeypatch.setattr("sdk.serving.server.SEND_S", 0.2)
    body = json.dumps(
        {"model": "desk", "messages": [{"role": "user", "content": "Hi."}], "stream": True, "max_tokens": 4000, "n": 16}
    ).encode()
    with running(FakePolicy(lambda prompt, seed: "Hello. " * 500)) as server:
        address, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect((address, int(port)))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n"
            idle.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            deadline = time.monotonic() + 60
            with httpx.Client() as client:
                while 'status="499"' not in client.get(f"{server.url}/metrics").text:
                    assert time.monotonic() < deadline


def test_a_key_that_is_sent_twice_is_no_key():
    with running(FakePolicy(lambda prompt, seed: "Hello."), api_key="key") as server:
        for keys in (["key", "other"], ["other", "key"], ["key", "key"]):
            headers = [("authorization", f"Bearer {key}") for key in keys]
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 401


def test_a_body_whose_end_is_told_twice_is_refused_and_its_connection_closed(server):
    content = json.dumps(body()).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
    with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=60) as client:
        client.sendall(POST + b"transfer-encoding: chunked\r\n\r\n" + chunked)
        said = b"".join(iter(lambda: client.recv(9999), b""))
    assert said.startswith(b"HTTP/1.1 400")
    assert b"both tell where the body ends" in said


def test_with_a_key_the_name_does_not_matter():
    with running(FakePolicy(lambda prompt, seed: "Hello."), api_key="key") as server:
        headers = {"host": "models.example", "authorization": "Bearer key"}
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        assert httpx.get(f"{server.url}/health", headers={"host": "models.example"}).status_code == 200


class NoGrammars:
    def text_or_calls(self, tools, **how):
        raise AssertionError("compiled")


def test_tools_that_do_not_fit_into_the_context_are_refused_before_their_grammar_is_made():
    with running(FakePolicy(lambda prompt, seed: "Hello."), renderer=RENDERER, grammars=NoGrammars()) as server:
        reply = post(server, tools=[tool(n, strict=True) for n in range(1000)])
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_strict_schema_that_takes_exponential_time_is_given_up() -> None:
    definitions: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(24)
    }
    definitions["d24"] = {"type": "integer"}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}
    problem = ClientSchemas({"f": schema}).problem(ToolCall(id="c", name="f", arguments={"a": "x"}))
    assert problem is not None
    assert "could not be checked" in problem


def chain(length, link):
    """A schema whose definitions lead from one to the next."""
    definitions = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}
    ends = {f"d{length}": {"type": "integer"}}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**definitions, **ends}}


def test_definitions_that_lead_from_one_to_the_next_do_not_end_the_process():
    GRAMMARS.content(chain(1400, lambda next_one: {"properties": {"a": {"anyOf": [{"type": "null"}, next_one]}}}))
    schema = chain(4000, lambda next_one: {"properties": {"a": next_one}})
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with running(FakePolicy(lambda prompt, seed: "Hello."), renderer=RENDERER) as server:
        reply = post(server, response_format=asked)
    assert reply.status_code == 400
    assert "its references times its levels are 20010, more than 10000" in reply.json()["error"]["message"]


ITEMS = {"type": "array", "items": {"type": "integer"}}
PATTERNS = [{"type": "string", "pattern": f".*a{{{n + 1}}}.*b"} for n in range(40)]


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ({**ITEMS, "maxItems": 10**12}, [1], "its minItems and maxItems add up to "),
        ({**ITEMS, "maxItems": 10**400}, [1], "its minItems and maxItems add up to "),
        ({**ITEMS, "minItems": 1e9}, [1], "its minItems and maxItems add up to "),
        ({**ITEMS, "minItems": 1, "maxItems": 50_000}, [1], "its minItems and maxItems add up to "),
        ({"type": "integer", "multipleOf": 99_999_989}, 99_999_989, "its multipleOf is 99999989 without its zeros"),
        ({"allOf": PATTERNS}, "a" * 40 + "b", "one of its strings may have to match 40 patterns, more than 8"),
    ],
)
def test_what_a_grammar_would_be_too_large_for_is_refused_and_calls_are_checked_when_complete(kind, value, told):
    schema = {"type": "object", "properties": {"a": kind}}
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    call = f'<tool_call>{{"name": "f", "arguments": {{"a": {json.dumps(value)}}}}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with running(FakePolicy(lambda prompt, seed: call), renderer=RENDERER) as server:
        refused = post(server, response_format=asked)
        called = post(server, tools=tools, tool_choice="required")
    assert refused.status_code == 400
    assert told in refused.json()["error"]["message"]
    assert called.json()["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("combined", ["parts", "references", "beside"])
def test_patterns_that_meet_in_one_string_are_counted_wherever_they_are(combined):
    parts = [{"properties": {"a": one}} for one in PATTERNS]
    if combined == "parts":
        schema = {"allOf": parts}
    elif combined == "references":
        named = {f"d{n}": one for n, one in enumerate(PATTERNS)}
        schema = {"allOf": [{"properties": {"a": {"$ref": f"#/$defs/{name}"}}} for name in named], "$defs": named}
    else:
        named = {f"d{n}": {**one, "$ref": f"#/$defs/d{n + 1}"} for n, one in enumerate(PATTERNS)}
        schema = {"$ref": "#/$defs/d0", "$defs": {**named, "d40": {"type": "string"}}}
    with pytest.raises(ValueError, match="one of its strings may have to match 40 patterns, more than 8"):
        GRAMMARS.content(schema)


def test_patterns_of_strings_that_never_meet_have_a_grammar():
    properties = {f"p{n}": one for n, one in enumerate(PATTERNS)}
    GRAMMARS.content({"type": "object", "properties": properties})
    base = {"type": "object", "properties": {"id": {"type": "string", "pattern": "[a-z]+"}}}
    GRAMMARS.content({"allOf": [{"$ref": "#/$defs/base"}, {"properties": properties}], "$defs": {"base": base}})


def test_tools_whose_arrays_may_have_too_many_items_together_take_any():
    schemas = [
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": kind}, "maxItems": 30_000}}}
        for kind in ("integer", "string")
    ]
    tools = [Tool(name=f"f{n}", description="", input_schema=schema) for n, schema in enumerate(schemas)]
    derivation = GRAMMARS.calls(tools).begin()
    for token in b'<tool_call>{"name": "f0", "arguments": {"a": "':
        assert derivation.allowed()[token]
        assert derivation.take(token) is None


def test_a_strict_schema_whose_references_lead_too_far_is_given_up() -> None:
    schemas = ClientSchemas({"f": chain(500, lambda next_one: {"anyOf": [{"type": "null"}, next_one]})})
    problem = schemas.problem(ToolCall(id="c", name="f", arguments={"a": "x"}))
    assert problem is not None
    assert "its references lead too far" in problem


def test_a_number_of_few_steps_has_a_grammar():
    GRAMMARS.content({"type": "number", "multipleOf": 0.0025})
    GRAMMARS.content({"type": "integer", "multipleOf": 1_000_000})
