"""Bodies other than JSON over a twin's HTTP: the live source sends them, and the twin understands what was meant."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_bridge import connect
from sandboxes.api import ApiTwin
from sandboxes.api.http import http_app

FILE = {"type": "string", "format": "binary"}
PARCEL = {
    "type": "object",
    "required": ["id", "label", "weight"],
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "label": {"type": "string"},
        "weight": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "sender": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "scan": FILE,
    },
}


def document(kind: str) -> dict[str, Any]:
    content = {kind: {"schema": {"$ref": "#/components/schemas/Parcel"}}}
    made = {"description": "It.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Parcel"}}}}
    post = {
        "operationId": "createParcel",
        "requestBody": {"required": True, "content": content},
        "responses": {"201": made, "422": {"description": "Wrong."}, "400": {"description": "Unreadable."}},
    }
    get = {"operationId": "getParcel", "responses": {"200": made, "404": {"description": "None."}}}
    by_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Post", "version": "1"},
        "paths": {"/parcels": {"post": post}, "/parcels/{id}": {"parameters": [by_id], "get": get}},
        "components": {"schemas": {"Parcel": PARCEL}},
    }


KINDS = ("multipart/form-data", "application/x-www-form-urlencoded")
words = st.text("abc 123&=;\"'\n-é%", max_size=8)
parcels = st.fixed_dictionaries(
    {"label": words, "weight": st.integers(-5, 10**6)},
    optional={
        "tags": st.lists(words, min_size=1, max_size=3),
        "sizes": st.lists(st.integers(0, 9), min_size=1, max_size=3),
        "sender": st.fixed_dictionaries({"name": words, "age": st.integers(0, 99)}),
        "note": st.sampled_from(["fragile", "12a", "two words"]),
    },
)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_live_source_and_the_tool_make_the_same_row(kind: str) -> None:
    twin = ApiTwin(document(kind), scenario="empty")
    transport = httpx.ASGITransport(http_app(twin))
    calls: list[dict[str, Any]] = []
    settings(max_examples=25, deadline=None, database=None)(given(parcels)(lambda one: calls.append(one)))()
    assert len(calls) >= 5
    async with connect(twin) as tools, tools.open_world("w") as here:
        async with httpx.AsyncClient(transport=transport, base_url="http://post") as client:
            for parcel in calls:
                made = (await here.call("createParcel", parcel)).structured
                sent = await client.post("/parcels", **written(kind, parcel))
                assert (sent.status_code, sent.json()) == (201, made), parcel
                assert {key: made[key] for key in parcel} == parcel


def written(kind: str, parcel: dict[str, Any]) -> dict[str, Any]:
    """The request that the live source would send."""
    from mcp_bridge.openapi.document import read_document
    from mcp_bridge.openapi.requests import prepare

    twin = ApiTwin(read_document(document(kind)))
    tool = twin.blueprint.tools["createParcel"]
    body = prepare(tool.operation, tool.plan, parcel).body
    assert body is not None
    if body.parts:
        return {"files": body.parts}
    return {"content": body.content, "headers": {"content-type": str(body.content_type)}}


async def test_files_are_text_where_they_are_and_data_urls_otherwise() -> None:
    twin = ApiTwin(document(KINDS[0]), scenario="empty")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(http_app(twin)), base_url="http://post") as client:
        for content, expected in (
            ("grüße\n".encode(), "grüße\n"),
            (
                b"\xff\xd8\x00",
                "data:application/octet-stream;base64,/9gA",
            ),
        ):
            fields = {"label": "A", "weight": "3"}
            made = await client.post("/parcels", data=fields, files={"scan": ("s.jpg", content, "image/jpeg")})
            assert (made.status_code, made.json()["scan"]) == (201, expected)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=x", b"--x\r\nnonsense"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\nA\r\n'),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\nA\r\n--x--\r\n"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\n\xff\r\n--x--',
        ),
        ("application/x-www-form-urlencoded", b"label=\xff"),
        ("application/x-www-form-urlencoded", b"label=A&weight=heavy"),
        ("application/json", b'{"label": "A", "weight": NaN}'),
        ("application/json", b"[" * 100_000),
        ("application/x-www-form-urlencoded", b"label=A&weight=1&sender=" + b"[" * 100_000),
        ("text/plain", b"hello"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_as_the_document_says(kind: str, content: bytes) -> None:
    twin = ApiTwin(document(KINDS[0]), scenario="empty")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(http_app(twin)), base_url="http://post") as client:
        refused = await client.post("/parcels", content=content, headers={"content-type": kind})
        assert refused.status_code in (400, 422), refused.text
        assert (await client.get("/parcels/1")).status_code == 404


async def test_a_field_of_the_body_does_not_take_the_place_of_the_one_in_the_path() -> None:
    order = {"type": "object", "properties": {"id": {"type": "integer"}, "state": {"type": "string"}}}
    answer = {"200": {"description": "", "content": {"application/json": {"schema": order}}}}
    change = {
        "operationId": "change_order",
        "requestBody": {"content": {"application/json": {"schema": {"properties": {"state": {"type": "string"}}}}}},
        "responses": {**answer, "422": {"description": ""}},
    }
    order_id = {"name": "order_id", "in": "path", "required": True, "schema": {"type": "integer"}}
    item = {"parameters": [order_id], "get": {"operationId": "get_order", "responses": answer}, "patch": change}
    paths = {"/orders": {"get": {"operationId": "list_orders", "responses": answer}}, "/orders/{order_id}": item}
    twin = ApiTwin({"openapi": "3.1.0", "info": {"title": "Orders", "version": "1"}, "paths": paths})
    first, second = [row["id"] for row in next(iter(tables_with_rows(twin).values())).values()][:2]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(http_app(twin)), base_url="http://post") as client:
        refused = await client.patch(f"/orders/{first}", json={"state": "changed", "order_id": second})
        assert refused.status_code == 422
        assert (await client.get(f"/orders/{second}")).json()["state"] != "changed"
        changed = await client.patch(f"/orders/{first}", json={"state": "changed"})
        assert changed.json() == {"id": first, "state": "changed"}


def tables_with_rows(twin: ApiTwin) -> dict[str, Any]:
    """The tables that have rows."""
    return {name: rows for name, rows in twin.state().items() if rows and not name.startswith("@")}
