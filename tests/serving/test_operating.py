"""What a service needs of the endpoint: figures, readiness, a limit of its queue, ids, logs, and a quiet end."""

import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import anyio
import httpx
import openai
import pytest
from fake_policy import BrokenPolicy, FakePolicy, HangingPolicy, running
from prometheus_client.parser import text_string_to_metric_families

from sdk.errors import ConfigError
from sdk.serving import serve
from sdk.serving.request_log import logging_to_stderr

BODY = {"model": "desk", "messages": [{"role": "user", "content": "Hi"}]}


def post(server, **fields):
    return httpx.post(f"{server.url}/v1/chat/completions", json={**BODY, **fields}, timeout=60)


def figures(server, **headers):
    """All samples of `/metrics`, by name and labels but the model's."""
    text = httpx.get(f"{server.url}/metrics", headers=headers).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "desk"
            found[(sample.name.removeprefix("toolbake:"), *sorted(labels.values()))] = sample.value
    return found


@pytest.fixture
def server():
    with running(FakePolicy(lambda prompt, seed: "Hello.")) as server:
        yield server


def test_metrics_count_requests_tokens_and_times(server):
    usage = post(server, n=2).json()["usage"]
    list(httpx.post(f"{server.url}/v1/chat/completions", json={**BODY, "stream": True}).iter_lines())
    post(server, temperature=9)
    httpx.get(f"{server.url}/no/such/page")
    found = figures(server)
    assert found["prompt_tokens_total",] == 2 * usage["prompt_tokens"] == found["prefix_cache_queries_total",]
    assert found["generation_tokens_total",] == 3 * usage["completion_tokens"] / 2
    assert found["request_success_total", "stop"] == 3
    assert found["http_requests_total", "/v1/chat/completions", "200"] == 2
    assert found["http_requests_total", "/v1/chat/completions", "400"] == 1
    assert found["http_requests_total", "404", "other"] == 1
    assert found["time_to_first_token_seconds_count",] == 3
    assert found["request_time_per_output_token_seconds_count",] == 3
    assert found["e2e_request_latency_seconds_count",] == 2
    assert found["e2e_request_latency_seconds_sum",] >= found["time_to_first_token_seconds_sum",] / 3 > 0
    assert (found["num_requests_running",], found["num_requests_waiting",]) == (0, 0)


def test_metrics_need_the_key_and_readiness_does_not():
    with running(FakePolicy(lambda prompt, seed: "Hello."), api_key="key") as server:
        assert httpx.get(f"{server.url}/metrics").status_code == 401
        assert figures(server, authorization="Bearer key")["http_requests_total", "/metrics", "401"] == 1
        assert httpx.get(f"{server.url}/ready").json() == {"status": "ready", "model": "desk", "waiting": 0}


@contextmanager
def hanging(requests=1, **options):
    """A server with so many requests that get no token."""
    policy = HangingPolicy()
    with ThreadPoolExecutor(8) as threads:
        with running(policy, **{"drain_seconds": 0, **options}) as server:
            asked = []
            for _ in range(requests):
                asked.append(threads.submit(post, server))
                assert policy.times_asked.acquire(timeout=60)
            server.asked, server.policy = asked, policy
            yield server


def test_a_request_beyond_the_queue_gets_429_and_the_server_is_not_ready():
    with hanging(2, max_waiting=2) as server:
        reply = post(server)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        ready = httpx.get(f"{server.url}/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "the queue is full")
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert figures(server)["num_requests_waiting",] == 2


def test_several_answers_count_as_several_but_one_request_alone_is_taken():
    with hanging(1, max_waiting=3) as server:
        assert post(server, n=3).status_code == 429
    with running(FakePolicy(lambda prompt, seed: "Hello."), max_waiting=2) as server:
        assert len(post(server, n=5).json()["choices"]) == 5


class Pausing(FakePolicy):
    """Says all but the last of its answer, and the rest when it may."""

    def __init__(self):
        super().__init__(lambda prompt, seed: "Hello, the order has left the house.")
        self.begun, self.may_end = threading.Event(), threading.Event()

    async def sample(self, prompt_ids, *, on_token=None, **options):
        on_token(ord("H"))
        self.begun.set()
        await anyio.to_thread.run_sync(self.may_end.wait, abandon_on_cancel=True)
        heard = iter(range(10_000))
        return await super().sample(
            prompt_ids, on_token=lambda token: next(heard) > 0 and bool(on_token(token)), **options
        )


def test_an_answer_that_has_begun_is_running_and_takes_no_place_in_the_queue():
    policy = Pausing()
    with running(policy, max_waiting=1) as server, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(post, server)
        assert policy.begun.wait(60)
        found = figures(server)
        assert (found["num_requests_running",], found["num_requests_waiting",]) == (1, 0)
        assert httpx.get(f"{server.url}/ready").status_code == 200
        policy.may_end.set()
        assert asked.result().status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_closing_lets_requests_finish_while_no_more_are_taken(stream):
    policy = Pausing()
    with running(policy) as server, ThreadPoolExecutor(2) as threads:
        asked = threads.submit(post, server, stream=stream)
        assert policy.begun.wait(60)
        closing = threads.submit(server.close)
        with httpx.Client() as client:
            while (ready := client.get(f"{server.url}/ready")).status_code == 200:
                pass
            assert ready.json()["status"] == "shutting down"
        refused = post(server)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert not closing.done()
        policy.may_end.set()
        assert "left the house" in "".join(
            (json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
            for line in asked.result().text.splitlines()
            if line.startswith("data: {")
        ) or (not stream and "left the house" in asked.result().text)
        closing.result(60)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_take_longer_than_the_drain_end_with_an_error_that_says_so(stream):
    policy = HangingPolicy()
    with ThreadPoolExecutor(1) as threads:
        with running(policy, drain_seconds=0) as server:
            asked = threads.submit(post, server, stream=stream)
            assert policy.asked.wait(60)
        reply = asked.result()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")
    assert "retry-after" in reply.headers
    assert policy.cancelled.is_set()


def test_a_request_id_is_given_back_or_made(server):
    for given in ("abc-123", "x" * 128):
        assert httpx.get(f"{server.url}/health", headers={"x-request-id": given}).headers["x-request-id"] == given
    made = {httpx.get(f"{server.url}/health").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for wrong in ("a b", "x" * 129, "é".encode().decode("latin-1"), ""):
        headers = {"x-request-id": wrong.encode("latin-1")}
        assert httpx.get(f"{server.url}/health", headers=headers).headers["x-request-id"].startswith("req_")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**BODY, n=17, extra_headers={"x-request-id": "mine"})
        assert caught.value.request_id == "mine"


def test_an_error_nobody_thought_of_names_the_request_that_the_log_names(caplog):
    def fails(prompt, seed):
        raise KeyError("x")

    with running(FakePolicy(fails)) as server:
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=BODY, headers={"x-request-id": "mine"})
    assert (reply.status_code, reply.headers["x-request-id"]) == (500, "mine")
    assert "about mine" in reply.json()["error"]["message"]


def lines_of(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if "request_log" in line or line.startswith("{")]


def test_a_log_in_json_has_a_line_for_each_request_without_what_was_said(capsys):
    with logging_to_stderr("json"), running(FakePolicy(lambda prompt, seed: "Hello.")) as server:
        httpx.post(f"{server.url}/v1/chat/completions", json=BODY, headers={"x-request-id": "mine"})
        httpx.get(f"{server.url}/health")
        httpx.get(f"{server.url}/a%0a%1b%5b31m")
    first, second = map(json.loads, lines_of(capsys))
    assert (first["request_id"], first["status"], first["level"]) == ("mine", 200, "info")
    assert (first["completion_tokens"], first["finish_reasons"]) == (7, ["stop"])
    assert 0 < first["first_token_seconds"] <= first["seconds"]
    assert "Hello" not in json.dumps(first)
    assert (second["path"], second["status"]) == ("/a\\n\\x1b[31m", 404)


def test_a_log_as_text_has_ids_and_the_kind_of_an_error_also_in_the_midst_of_a_stream(capsys):
    with logging_to_stderr("text"), running(BrokenPolicy(None)) as server:
        for stream in (False, True):
            url = f"{server.url}/v1/chat/completions"
            httpx.post(url, json={**BODY, "stream": stream}, headers={"x-request-id": "mine"})
    assert [("500: " in line, "error engine_failed" in line, line.endswith("[mine]")) for line in lines_of(capsys)] == [
        (True, True, True)
    ] * 2


class Calling(FakePolicy):
    """Begins a call, and says no more."""

    def __init__(self):
        super().__init__(None)
        self.cancelled = threading.Event()

    async def sample(self, prompt_ids, *, on_token=None, **options):
        for token in b'<tool_call>{"name": "get_order", "arguments": {"order_id": "44':
            on_token(token)
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_a_client_that_leaves_in_the_midst_of_a_call_ends_its_sampling_and_the_log_says_so(path, caplog):
    policy = Calling()
    function = {"name": "get_order", "parameters": {"type": "object"}}
    asked = {
        "chat/completions": {**BODY, "tools": [{"type": "function", "function": function}]},
        "responses": {"model": "desk", "input": "Hi", "tools": [{"type": "function", **function}]},
    }[path]
    with caplog.at_level("INFO", logger="sdk.serving"), running(policy) as server:
        with httpx.stream("POST", f"{server.url}/v1/{path}", json={**asked, "stream": True}, timeout=60) as reply:
            assert next(line for line in reply.iter_lines() if "arguments" in line)
        assert policy.cancelled.wait(60)
        while not (found := figures(server)).get(("http_requests_total", f"/v1/{path}", "499")):
            pass
        assert (found["num_requests_running",], found["num_requests_waiting",]) == (0, 0)
        assert httpx.get(f"{server.url}/ready").json()["waiting"] == 0
    (line,) = [line for line in caplog.messages if "499" in line]
    assert "error client_left" in line


@pytest.mark.parametrize("sent", [b"Content-Length: 99\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_client_that_leaves_before_its_request_is_whole_is_no_error_of_the_server(sent, caplog):
    with caplog.at_level("INFO"), running(FakePolicy(lambda prompt, seed: "Hi")) as server:
        with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=60) as client:
            client.sendall(
                b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + sent
            )
        while not figures(server).get(("http_requests_total", "/v1/responses", "499")):
            pass
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_a_log_ends_with_its_block():
    before = list(logging.getLogger().handlers)
    with logging_to_stderr("json"):
        assert len(logging.getLogger().handlers) == len(before) + 1
    assert logging.getLogger().handlers == before


def test_a_stream_sends_comments_while_nothing_is_sampled_and_clients_skip_them():
    policy = Pausing()
    with running(policy, keep_alive_s=0.01) as server:
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**BODY, "stream": True}) as reply:
            lines = reply.iter_lines()
            assert any(line == ": keep-alive" for line in lines)
            policy.may_end.set()
            assert list(lines)[-2] == "data: [DONE]"
        policy.may_end.clear()
        policy.begun.clear()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(**BODY, stream=True)  # its headers come with the first comment
            policy.may_end.set()
            said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert said.endswith("left the house.")


def test_an_error_after_a_comment_ends_the_stream_and_counts_by_its_own_status():
    class Failing(Pausing):
        async def sample(self, prompt_ids, *, on_token=None, **options):
            await anyio.to_thread.run_sync(self.may_end.wait, abandon_on_cancel=True)
            raise KeyError("x")

    policy = Failing()
    with running(policy, keep_alive_s=0.01) as server:
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**BODY, "stream": True}) as reply:
            lines = reply.iter_lines()
            assert (reply.status_code, next(lines)) == (200, ": keep-alive")
            policy.may_end.set()
            assert "its log says more" in [line for line in lines if line.startswith("data: ")][-1]
        assert figures(server)["http_requests_total", "/v1/chat/completions", "500"] == 1


def test_answers_and_the_model_name_the_fingerprint_of_the_weights():
    with running(FakePolicy(lambda prompt, seed: "Hello."), fingerprint="fp_1") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            assert client.chat.completions.create(**BODY).system_fingerprint == "fp_1"
            chunks = list(client.chat.completions.create(**BODY, stream=True))
            assert {chunk.system_fingerprint for chunk in chunks} == {"fp_1"}
            (model,) = client.models.list()
            assert (model.system_fingerprint, model.max_model_len) == ("fp_1", 4096)


@pytest.mark.parametrize(
    ("options", "message"), [({"max_waiting": 0}, "max_waiting is 0"), ({"drain_seconds": -1}, "drain_seconds is -1")]
)
def test_limits_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        serve("/no/such/model", port=0, **options)
