"""A twin over HTTP is the API to the live source: the same tools, and the same answers call for call."""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from free_ports import free_port
from random_calls import RandomCalls

from mcp_bridge import connect
from mcp_bridge.openapi.document import read_document
from mcp_bridge.publishing.listener import serve_app
from mcp_bridge.records import MADE_UP, Tool
from sandboxes.api import ApiTwin
from sandboxes.api.http import http_app

SHOP = Path(__file__).parent / "shop.yaml"
GITEA = Path(__file__).parent / "published" / "gitea.openapi.json"


@asynccontextmanager
async def served(twin: ApiTwin) -> AsyncIterator[str]:
    port = free_port()
    ready = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(functools.partial(serve_app, http_app(twin), port=port, listening=ready.set))
        await ready.wait()
        yield f"http://127.0.0.1:{port}"
        group.cancel_scope.cancel()


ROW = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "size": {"type": "integer"}}}


@pytest.mark.parametrize(
    "form", [{}, {"explode": False}, {"style": "deepObject", "explode": True}, {"content": "application/json"}]
)
async def test_parameters_in_cookies_and_objects_in_the_query_reach_the_twin(form: dict[str, Any]) -> None:
    colours = {"type": "object", "properties": {"color": {"type": "string"}, "size": {"type": "integer"}}}
    shown: dict[str, Any] = (
        {"content": {form["content"]: {"schema": colours}}} if "content" in form else {"schema": colours, **form}
    )
    parameters = [
        {"name": "lang", "in": "cookie", "required": True, "schema": {"type": "string", "enum": ["de", "en"]}},
        {"name": "filter", "in": "query", "required": True, **shown},
    ]
    answer = {"description": "", "content": {"application/json": {"schema": {"type": "array", "items": ROW}}}}
    listed = {"operationId": "list", "parameters": parameters, "responses": {"200": answer}}
    document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {"/things": {"get": listed}}}
    async with served(ApiTwin(document)) as url, connect({"openapi": document, "base_url": url}) as live:
        found = await live.call("list", {"lang": "de", "filter": {"color": "red", "size": 3}})
        assert not found.is_error, found.text


WORDS, NUMBERS = ({"type": "array", "items": {"type": kind}} for kind in ("string", "integer"))
FLAT = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
NESTED = {"type": "object", "properties": {"o": FLAT, "l": WORDS, "lines": {"type": "array", "items": FLAT}}}
VALUES: list[tuple[dict[str, Any], Any]] = [
    ({"type": "integer"}, 5),
    (NUMBERS, [1, 2]),
    (WORDS, ["x y", "z%2F"]),
    (FLAT, {"a": "q", "n": 3}),
]
DEEP = [(NESTED, {"o": {"a": "x", "n": 3}, "l": ["a", "b"], "lines": [{"a": "1"}, {"n": 2}]}), (WORDS, ["a", "b"])]


def cases() -> list[tuple[str, str, dict[str, Any], dict[str, Any], Any]]:
    """Where a value stands, its media type, its style, its schema and the value."""
    styles = {
        "path": ("simple", "label", "matrix"),
        "query": ("form", "spaceDelimited", "pipeDelimited"),
        "header": ("simple",),
        "cookie": ("form",),
    }
    made: list[Any] = [
        (place, "", {"style": style, "explode": explode}, *value)
        for place, names in styles.items()
        for style in names
        for explode in (False, True)
        for value in VALUES
        if "Delimited" not in style or value[1] in ([1, 2], {"a": "q", "n": 3})
    ]
    deep = {"style": "deepObject", "explode": True}
    made += [("query", "", deep, *value) for value in DEEP]
    made += [("query", "", {"style": "form", "explode": False}, WORDS, ["a,b", "c"])]
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        made += [("body", kind, deep, *value) for value in (*DEEP, VALUES[3])]
        made += [("body", kind, {"style": "form", "explode": False}, WORDS, ["a", "b"])]
        made += [("body", kind, {}, *value) for value in (*VALUES, DEEP[0])]
    made += [("raw", "application/octet-stream", {}, {}, "data:application/octet-stream;base64,/w==")]
    return made


async def test_the_twin_reads_every_style_that_the_live_source_writes() -> None:
    paths: dict[str, Any] = {}
    for number, (place, kind, style, schema, value) in enumerate(cases()):
        only = {**schema, "const": value}
        post: dict[str, Any] = {"operationId": f"op{number}", "responses": {"204": {"description": ""}}}
        path = f"/op{number}"
        if place == "raw":
            post["requestBody"] = {"required": True, "content": {kind: {"schema": only}}}
        elif place == "body":
            whole = {"type": "object", "required": ["it"], "properties": {"it": only}}
            media = {"schema": whole, **({"encoding": {"it": style}} if style else {})}
            post["requestBody"] = {"required": True, "content": {kind: media}}
        else:
            post["parameters"] = [{"name": "it", "in": place, "required": True, "schema": only, **style}]
            path += "/{it}" if place == "path" else ""
        paths[path] = {"post": post}
    document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths}
    async with served(ApiTwin(document)) as url, connect({"openapi": document, "base_url": url}) as live:
        for number, case in enumerate(cases()):
            done = await live.call(f"op{number}", {"body" if case[0] == "raw" else "it": case[-1]})
            assert not done.is_error, (case, done.text)


async def test_a_form_may_spread_an_object_over_brackets_where_the_document_says_nothing() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer", "readOnly": True}, "metadata": FLAT}}
    made = {"201": {"description": "", "content": {"application/json": {"schema": row}}}}
    body = {"content": {"application/x-www-form-urlencoded": {"schema": row}}}
    paths = {"/rows": {"post": {"operationId": "make", "requestBody": body, "responses": made}}}
    twin = ApiTwin({"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(http_app(twin)), base_url="http://rows") as client:
        done = await client.post("/rows", data={"metadata[a]": "x", "metadata[n]": "3"})
        assert (done.status_code, done.json()["metadata"]) == (201, {"a": "x", "n": 3})
        assert (await client.post("/rows", data={"metadata" + "[a]" * 1000: "x"})).status_code in (400, 422)


@pytest.mark.parametrize(
    ("document", "base", "count"), [(SHOP, "", 200), (GITEA, "/api/v1", 150)], ids=["shop", "gitea"]
)
async def test_the_live_source_sees_the_tools_and_answers_of_the_twin(document: Path, base: str, count: int) -> None:
    twin = ApiTwin(document)
    calls = RandomCalls(twin, read_document(document))
    chance = random.Random(5)
    async with (
        served(twin) as url,
        connect({"openapi": str(document), "base_url": url + base}) as live,
        connect(twin) as simulated,
        simulated.open_world("w") as world,
        live.open_world("w") as api,
    ):
        assert _described(live.tools) == _described(simulated.tools)
        assert {tool.output_schema for tool in live.tools} == {None}
        mirror = twin.fork()  # in step with both, to choose calls about rows that exist
        refused = 0
        for _ in range(count):
            call = calls.call(chance, world=mirror)
            if any("\\" in str(value) or value == "" for value in call[1].values()):
                continue
            mirror.call_now(*call)
            here, there = await world.call(*call), await api.call(*call)
            assert (here.text, here.is_error, here.structured) == (there.text, there.is_error, there.structured), call
            refused += here.is_error
        assert refused < count / 2


def _described(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools without their source, the twin's mark on what it makes up, and what answers only a twin promises."""
    return [tool.model_dump(exclude={"source": True, "meta": {MADE_UP}, "output_schema": True}) for tool in tools]


async def test_a_request_that_breaks_the_schema_has_the_status_and_shape_of_the_document() -> None:
    twin = ApiTwin(SHOP)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(http_app(twin)), base_url="http://shop") as client:

        async def asked(method: str, path: str, **more: Any) -> tuple[int, Any]:
            answer = await client.request(method, path, **more)
            return answer.status_code, answer.json() if answer.content else None

        status, body = await asked("POST", "/customers", json={"name": ""})
        assert (status, body["error"]["code"]) == (422, "unprocessable_entity")
        assert "email" in body["error"]["message"]
        assert (await asked("GET", "/customers?limit=900"))[0] == 400
        assert (await asked("GET", "/orders/none"))[0] == 400
        assert (await asked("POST", "/customers", content=b"{"))[0] == 422
        assert (await asked("GET", "/nowhere"))[0] == 404
        assert (await asked("PATCH", "/books"))[0] == 405
        status, body = await asked("POST", "/customers", json={"name": "Ada", "email": "ada@example.com"})
        assert (status, body["name"]) == (201, "Ada")
        assert await asked("DELETE", f"/customers/{body['id']}") == (204, None)
        assert (await asked("GET", f"/customers/{body['id']}"))[0] == 404


async def test_letters_beyond_ascii_in_a_path_are_found_and_bytes_that_are_no_text_break_nothing() -> None:
    listed = {"content": {"application/json": {"schema": {"type": "array", "items": ROW}}}, "description": ""}
    paths = {"/bücher/neue reihe": {"get": {"operationId": "list", "responses": {"200": listed}}}}
    app = http_app(ApiTwin({"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        assert (await client.get("/bücher/neue reihe")).status_code == 200

        async def asked(raw_path: bytes, query: bytes) -> int:
            told: list[Any] = []
            scope = {"type": "http", "method": "GET", "path": "/", "raw_path": raw_path, "query_string": query}

            async def body() -> dict[str, Any]:
                return {"type": "http.request", "body": b""}

            async def tell(message: Any) -> None:
                told.append(message)

            await app({**scope, "headers": [], "server": ("t", 80), "scheme": "http"}, body, tell)
            return int(told[0]["status"])

        assert await asked("/bücher/neue%20reihe".encode(), b"q=\xff") == 200
        assert await asked(b"/b\xfccher", b"") == 404


def test_the_command_prints_the_report_and_says_what_is_wrong() -> None:
    command = [sys.executable, "-m", "sandboxes.api"]
    done = subprocess.run([*command, str(SHOP)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{ApiTwin(SHOP).report()}\n"
    wrong = subprocess.run([*command, "nothing.yaml"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "there is no file 'nothing.yaml'\n")


async def test_the_command_serves_the_tools_over_stdio() -> None:
    async with connect([sys.executable, "-m", "sandboxes.api", str(SHOP), "--stdio"]) as toolset:
        result = await toolset.call("listBooks", {"per_page": 1})
        assert json.loads(result.text)["meta"]["total"] == 8
