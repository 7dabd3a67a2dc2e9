"""The listener of `serve-tools` and recorders: whom it answers, and what when it is stopped."""

from __future__ import annotations

import functools
import logging
from typing import Any

import anyio
import httpx
import pytest
from free_ports import free_port

from mcp_bridge.publishing.listener import serve_app


@pytest.mark.parametrize("begins", [False, True])
async def test_an_answer_that_is_under_way_is_ended_when_the_listener_stops(
    begins: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    port, listening, asked = free_port(), anyio.Event(), anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        asked.set()
        await anyio.sleep_forever()

    answers: list[httpx.Response] = []

    async def ask() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            answers.append(await client.get(f"http://127.0.0.1:{port}/", timeout=60))

    async with anyio.create_task_group() as group:
        serving = anyio.CancelScope()

        async def serve() -> None:
            with serving:
                await functools.partial(serve_app, app, port=port, listening=listening.set)()

        group.start_soon(serve)
        await listening.wait()
        group.start_soon(ask)
        await asked.wait()
        serving.cancel()
    [answer] = answers
    assert (answer.status_code, answer.text) == ((200, "half") if begins else (503, ""))
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_without_a_key_only_requests_that_mean_this_machine_are_answered(host: str) -> None:
    # A page of another site, whose name was made to lead here, could call the tools.
    port, listening = free_port(), anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})

    async with anyio.create_task_group() as group, httpx.AsyncClient(trust_env=False) as client:
        group.start_soon(functools.partial(serve_app, app, port=port, host=host, listening=listening.set))
        await listening.wait()
        for headers, status in (
            ({}, 200),
            ({"host": f"localhost:{port}", "origin": "http://localhost:3000"}, 200),
            ({"host": f"evil.example:{port}"}, 421),
            ({"origin": "http://evil.example"}, 403),
            ({"origin": "null"}, 403),
        ):
            assert (await client.get(f"http://{host}:{port}/", headers=headers, timeout=60)).status_code == status
        group.cancel_scope.cancel()
