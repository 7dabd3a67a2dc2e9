"""The key that vLLM's own check does not ask for: at all paths but those of probes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sdk.policies.vllm.in_server.toolbake_key import Key

PATHS = ("/v1/models", "/invocations", "/tokenize", "/health", "/metrics")


def answers(**headers: str) -> dict[str, int]:
    def answer(_: Any) -> PlainTextResponse:
        return PlainTextResponse("answered")

    client = TestClient(Key(Starlette(routes=[Route(path, answer) for path in PATHS])))
    return {path: client.get(path, headers=headers).status_code for path in PATHS}


def test_only_probes_are_answered_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "right")
    refused = {**dict.fromkeys(PATHS, 401), "/health": 200, "/metrics": 200}
    assert answers() == refused
    assert answers(Authorization="Bearer wrong") == refused
    assert answers(Authorization="right") == refused
    assert set(answers(Authorization="Bearer right").values()) == {200}


def test_all_is_open_where_no_key_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert set(answers().values()) == {200}


async def test_two_keys_in_one_request_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "right")

    async def app(*_: Any) -> None:
        raise AssertionError

    transport = httpx.ASGITransport(Key(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        twice = [("Authorization", "Bearer right"), ("Authorization", "Bearer wrong")]
        assert (await client.get("/v1/models", headers=twice)).status_code == 401
