"""A server takes its port before anything else, gives it back, and is never open to others by accident."""

import socket
import subprocess
import sys
import threading

import httpx
import pytest
from fake_policy import FakePolicy, endpoint_over

from sdk.errors import ConfigError
from sdk.serving import Server, serve
from sdk.serving.server import bind


def start(**options):
    app = endpoint_over(FakePolicy(lambda prompt, seed: "hi"))
    return Server(app, bind("127.0.0.1", 0, None), model_name="desk", **options)


def test_a_port_in_use_is_said_before_the_model_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use"):
            serve("/no/such/model", port=port)


def test_two_servers_cannot_claim_one_port_while_the_first_still_loads():
    with bind("127.0.0.1", 0, None) as first:
        with pytest.raises(ConfigError, match="is in use"):
            bind("127.0.0.1", first.getsockname()[1], None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_host_that_others_reach_needs_a_key(host):
    with pytest.raises(ConfigError, match="which other machines can reach, and there is no key"):
        serve("/no/such/model", host=host, port=0)
    bind(host, 0, "key").close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70000}, "port is 70000"),
        ({"port": -1}, "port is -1"),
        ({"port": "8000"}, "port is '8000'"),
        ({"host": "no.such.host.invalid"}, "host is 'no.such.host.invalid'"),
        ({"host": "192.0.2.1", "api_key": "key"}, "cannot listen on port"),
        ({"api_key": ""}, "api_key is empty"),
        ({"api_key": "key\n"}, "api_key is empty or holds blanks, line ends"),
        ({"api_key": "schlüssel"}, "no client can send"),
        ({"default_max_tokens": 0}, "default_max_tokens is 0"),
    ],
)
def test_an_address_that_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        serve("/no/such/model", **{"port": 0, **options})


def test_a_model_that_cannot_be_loaded_gives_the_port_back(unused_tcp_port):
    from sdk.errors import ModelError

    with pytest.raises(ModelError):
        serve("/no/such/model", port=unused_tcp_port)
    bind("127.0.0.1", unused_tcp_port, None).close()


def test_closing_frees_the_port_and_the_engine_once():
    closed = []
    server = start(on_close=lambda: closed.append(True))
    with server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert repr(server) == f"Server('{server.url}', model_name='desk')"
    server.close()
    assert closed == [True]
    assert "closed" in repr(server)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")
    bind("127.0.0.1", int(server.url.rpartition(":")[2]), None).close()


def test_waiting_returns_when_the_server_is_closed():
    server = start()
    waiter = threading.Thread(target=server.wait)
    waiter.start()
    server.close()
    waiter.join(20)
    assert not waiter.is_alive()


def test_a_loopback_address_of_the_new_kind_is_written_with_brackets():
    app = endpoint_over(FakePolicy(lambda prompt, seed: "hi"))
    try:
        listener = bind("::1", 0, None)
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    with Server(app, listener, model_name="desk") as server:
        assert server.url.startswith("http://[::1]:")
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_importing_the_package_loads_no_server():
    code = "import sys, sdk.serving; print({'uvicorn', 'starlette', 'torch'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
