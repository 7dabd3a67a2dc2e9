"""A served model is loaded again without a restart: no request is lost, and each is answered by one model."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fake_policy import GRAMMARS, RENDERER, FakePolicy, endpoint_over
from test_operating import BODY, Pausing, post

from sdk.errors import ModelError, ToolbakeError
from sdk.policies.protocol import Sampling
from sdk.serving import Server
from sdk.serving.backend import Backend
from sdk.serving.generation import Generator
from sdk.serving.openai_api import Endpoint
from sdk.serving.requests import RequestQueue
from sdk.serving.server import bind


def backend(policy, queue, fingerprint, **options):
    generator = Generator(policy, RENDERER, GRAMMARS, queue, defaults=Sampling())
    return Backend(generator, Sampling(), fingerprint=fingerprint, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_under_way_end_with_the_old_model_and_later_ones_get_the_new(stream):
    old, new, closed = Pausing(), FakePolicy(lambda prompt, seed: "I am new."), threading.Event()
    queue = RequestQueue()
    endpoint = Endpoint(backend(old, queue, "fp_old", close=closed.set), "desk", None, 15.0)
    with Server(
        endpoint,
        bind("127.0.0.1", 0, None),
        model_name="desk",
        queue=queue,
        load=lambda: backend(new, queue, "fp_new"),
    ) as server:
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(post, server, stream=stream)
            assert old.begun.wait(60)
            server.reload()
            later = post(server).json()
            assert (later["system_fingerprint"], later["choices"][0]["message"]["content"]) == ("fp_new", "I am new.")
            assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["system_fingerprint"] == "fp_new"
            assert not closed.is_set(), "one of its requests is under way"
            old.may_end.set()
            reply = asked.result()
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        assert {chunk["system_fingerprint"] for chunk in (chunks if stream else [reply.json()])} == {"fp_old"}
        said = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
        assert "left the house" in (reply.text if not stream else "".join(said))
        assert closed.wait(60)
        server.reload()
        assert post(server).status_code == 200
    with pytest.raises(ToolbakeError, match="was closed"):
        server.reload()


def test_a_model_that_cannot_be_loaded_leaves_the_old_one():
    def broken():
        raise ModelError("the model folder is not whole")

    queue = RequestQueue()
    old = backend(FakePolicy(lambda prompt, seed: "I am old."), queue, "fp_old")
    listener = bind("127.0.0.1", 0, None)
    with Server(Endpoint(old, "desk", None, 15.0), listener, model_name="desk", queue=queue, load=broken) as server:
        with pytest.raises(ModelError, match="not whole"):
            server.reload()
        assert post(server).json()["system_fingerprint"] == "fp_old"


def test_a_server_over_a_policy_of_ones_own_has_nothing_to_load_again():
    app = endpoint_over(FakePolicy(lambda prompt, seed: "hi"))
    with Server(app, bind("127.0.0.1", 0, None), model_name="desk", queue=app.queue) as server:
        with pytest.raises(ToolbakeError, match=r"was not made by sdk\.serve"):
            server.reload()
        assert httpx.post(f"{server.url}/v1/chat/completions", json=BODY).status_code == 200
