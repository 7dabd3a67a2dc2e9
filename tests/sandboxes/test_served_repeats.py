"""A served world that is called twice with one idempotency key acts once."""

from __future__ import annotations

import functools
import json
from typing import Any

import anyio
import pytest
from free_ports import free_port
from mcp import Client
from mcp.shared.exceptions import MCPError

from mcp_bridge import ToolResult, connect, publish
from mcp_bridge.control_tools import IDEMPOTENCY_META
from mcp_bridge.publishing.listener import serve_app
from mcp_bridge.publishing.server import MOST_KEPT, Repeats
from sandboxes.helpdesk import Helpdesk


def new_order(customers: dict[str, Any]) -> dict[str, Any]:
    return {"customer_id": next(iter(customers)), "product": "lamp", "quantity": 1}


@pytest.fixture
def order() -> dict[str, Any]:
    """An order that the helpdesk takes."""
    desk = Helpdesk()
    for product in desk.state()["products"].values():
        wanted = {**new_order(desk.state()["customers"]), "product": product["name"]}
        if not desk.fork().call_now("place_order", wanted).is_error:
            return wanted
    raise AssertionError("the helpdesk takes no order")


async def test_a_call_that_is_repeated_with_its_key_is_answered_from_memory(order: dict[str, Any]) -> None:
    async with Client(publish(Helpdesk(), control=False)) as client:

        async def place(key: str | None, arguments: dict[str, Any] = order) -> str:
            meta: Any = None if key is None else {IDEMPOTENCY_META: key}
            result = await client.call_tool("place_order", arguments, meta=meta)
            assert not result.is_error, result.content
            return json.dumps(result.structured_content)

        first = await place("k1")
        assert await place("k1") == first
        assert await place("k2") != first
        assert await place(None) != await place(None)
        with pytest.raises(MCPError, match="was that of another call"):
            await place("k1", {**order, "quantity": 2})


async def test_an_answer_that_was_lost_on_the_way_is_given_again_without_a_second_order(order: dict[str, Any]) -> None:
    server = publish(Helpdesk(), control=True)
    app, lost = server.streamable_http_app(host="127.0.0.1"), 0

    async def lossy(scope: Any, receive: Any, send: Any) -> None:
        """The first answer to `place_order` never leaves."""
        nonlocal lost
        if scope["type"] != "http" or lost:
            await app(scope, receive, send)
            return
        parts: list[bytes] = []

        async def heard() -> Any:
            event = await receive()
            parts.append(event.get("body", b""))
            return event

        async def told(event: Any) -> None:
            nonlocal lost
            if b'"place_order"' in b"".join(parts):
                lost += 1
                raise ConnectionResetError
            await send(event)

        await app(scope, heard, told)

    listening = anyio.Event()
    async with anyio.create_task_group() as group:
        port = free_port()
        group.start_soon(functools.partial(serve_app, lossy, port=port, listening=listening.set))
        await listening.wait()
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "toolbake": {"idempotent": ["place_order"]}}
        async with connect({"mcpServers": {"desk": entry}}) as toolset, toolset.open_world("one") as world:
            before = (await world.state() or {})["orders"]
            assert not (await world.call("place_order", order)).is_error
            after = (await world.state() or {})["orders"]
            events = [line.event for line in world.ledger.lines]
        group.cancel_scope.cancel()
    assert lost == 1
    assert events == ["started", "lost", "started", "answered"]
    assert len(after) == len(before) + 1


async def test_a_repeat_waits_for_the_call_that_is_under_way_and_is_made_where_that_failed() -> None:
    repeats, made, go = Repeats(), 0, anyio.Event()

    async def slow() -> ToolResult:
        nonlocal made
        made += 1
        await go.wait()
        if made == 1:
            raise ValueError("the first one breaks")
        return ToolResult(text=f"call {made}")

    told: list[str] = []

    async def ask() -> None:
        try:
            told.append((await repeats.once("key", "act", {}, slow)).text)
        except ValueError as error:
            told.append(str(error))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert made == 1
        go.set()
    assert sorted(told) == ["call 2", "call 2", "the first one breaks"]


async def test_only_the_latest_answers_are_kept() -> None:
    repeats, made = Repeats(), 0

    async def act() -> ToolResult:
        nonlocal made
        made += 1
        return ToolResult(text=str(made))

    for number in range(MOST_KEPT + 1):
        await repeats.once(f"key {number}", "act", {}, act)
    assert (await repeats.once(f"key {MOST_KEPT}", "act", {}, act)).text == str(MOST_KEPT + 1)
    assert (await repeats.once("key 0", "act", {}, act)).text == str(MOST_KEPT + 2)
