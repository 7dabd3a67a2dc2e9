"""Calls of a live API: what becomes of answers, failures and redirects."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import mcp_bridge
from mcp_bridge import CallTimeout, OutcomeUnknown, SourceError, ToolFailure, Toolset

Connecting = Callable[..., AbstractAsyncContextManager[Toolset]]


def get(path: str, *parameters: str, **rest: Any) -> dict[str, Any]:
    """A path with one GET operation, called `it`, that takes strings."""
    listed = [
        {
            "name": name,
            "in": "path" if f"{{{name}}}" in path else "query",
            "schema": {"type": "string"},
            "required": True,
        }
        for name in parameters
    ]
    return {path: {"get": {"operationId": "it", "parameters": listed, **rest}}}


STATUS = {**get("/status/{code}", "code")}
STATUS["/status/{code}"]["get"]["parameters"].append({"name": "retry_after", "in": "query", "schema": {}})


@pytest.mark.parametrize(
    ("path", "text", "structured"),
    [
        ("/text", "plain words", None),
        ("/nothing", "204 No Content (empty)", None),
        ("/made", "201 Created, Location: /orders/7", None),
        ("/binary", "[image/png, 8 bytes]", None),
        ("/count/never", '{"count":0}', {"count": 0}),
    ],
)
async def test_an_answer_becomes_what_the_policy_can_read(
    api: Connecting, path: str, text: str, structured: Any
) -> None:
    async with api(get(path)) as toolset:
        result = await toolset.call("it", {})
    assert (result.text, result.structured, result.is_error) == (text, structured, False)


def paged(page: str, **rest: Any) -> dict[str, Any]:
    """A list whose header `Link` is the argument `link`, with a parameter for pages."""
    parameters = [{"name": "link", "in": "query", "schema": {"type": "string"}}]
    parameters += [{"name": page, "in": "query", "schema": {"type": "integer"}}]
    parameters += [{"name": "key", "in": "query", "schema": {"type": "string"}}]
    return {"/pages": {"get": {"operationId": "it", "parameters": parameters, **rest}}}


@pytest.mark.parametrize(
    ("link", "told"),
    [
        (
            '<https://other.example/repositories/1/issues?page=2&link=x>; rel="next", <https://x/?page=9>; rel="last"',
            'For the next page, call again with these arguments too: {"page": 2, "link": "x"}]',
        ),
        ("</pages?page=c%2Bd>; REL='last Next'", 'call again with these arguments too: {"page": "c+d"}]'),
        ('<?after=1&page=2>; rel="next"', '{"page": 2}; its link has "after" too, which no argument of this tool is]'),
        ('<?after=1&key=k>; rel="next"', 'its link has "after", which no argument of this tool is]'),
        ('</pages/2>; rel="next"', "This tool cannot ask for the next page]"),
        ('<http://[broken>; rel="next"', "This tool cannot ask for the next page]"),
    ],
)
async def test_a_page_whose_next_one_stands_in_the_header_link_says_so(api: Connecting, link: str, told: str) -> None:
    components = {"securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "key"}}}
    async with api(paged("page", security=[{"key": []}]), components=components, auth={"key": "k-e-y-1"}) as toolset:
        page = await toolset.call("it", {"link": link})
        last = await toolset.call("it", {"link": '<?page=1>; rel="prev"'})
    assert page.text.startswith("[This is one page of a longer list.")
    assert page.text.endswith(f"{told}\n[1,2]")
    assert page.structured == [1, 2]
    assert last.text == "[1,2]"


@pytest.mark.parametrize("code", ["400", "404", "409", "410", "418", "422"])
async def test_what_the_policy_did_wrong_comes_back_to_it(api: Connecting, code: str) -> None:
    async with api(STATUS) as toolset:
        result = await toolset.call("it", {"code": code})
    assert result.error_kind == "tool_error"
    assert result.text.startswith(code)
    assert "as asked" in result.text
    assert result.structured == {"problem": "as asked"}


@pytest.mark.parametrize("code", ["401", "405", "415", "500", "501", "503", "304", "300"])
async def test_a_broken_tool_is_no_answer(api: Connecting, code: str) -> None:
    async with api(STATUS) as toolset:
        with pytest.raises(ToolFailure, match=rf"GET /status/\{{code\}} of echo .*{code}") as caught:
            await toolset.call("it", {"code": code})
    assert caught.value.delivery == "answered"


@pytest.mark.parametrize("code", [502, 504])
async def test_what_a_gateway_lost_is_asked_for_again_only_where_that_does_no_harm(
    api: Connecting, echo: str, code: int
) -> None:
    async def asked() -> int:
        async with httpx.AsyncClient() as http:
            count: int = (await http.get(f"{echo}/count/{code}")).json()["count"]
            return count

    operations = {"get": {"operationId": "read"}, "post": {"operationId": "charge"}}
    async with api({f"/status/{code}": operations}) as toolset, toolset.open_world("w") as world:
        before = await asked()
        with pytest.raises(OutcomeUnknown):
            await world.call("charge", {})
        assert (await asked() - before, world.ledger.lines[-1].event) == (1, "unknown")
        with pytest.raises(ToolFailure, match=str(code)):
            await world.call("read", {})
        assert (await asked() - before, world.ledger.lines[-1].event) == (4, "failed")


@pytest.mark.parametrize(("code", "wait"), [("429", "90"), ("503", "70")])
async def test_a_server_that_asks_to_wait_is_quoted(api: Connecting, code: str, wait: str) -> None:
    async with api(STATUS) as toolset:
        with pytest.raises(ToolFailure, match=rf"asks to wait {wait} s \(Retry-After\).*calls_per_second"):
            await toolset.call("it", {"code": code, "retry_after": wait})


async def test_a_call_is_sent_again_when_the_server_said_and_not_before(api: Connecting) -> None:
    post = {"/busy/{name}": {"post": {"operationId": "it", "parameters": []}}}
    for name, where in (("name", "path"), ("retry_after", "query")):
        post["/busy/{name}"]["post"]["parameters"].append({"name": name, "in": where, "schema": {}})
    async with api(post) as toolset, toolset.open_world("w") as world:
        taken = await world.call("it", {"name": "soon", "retry_after": 1})
        assert taken.structured == {"taken": True}
        started = [line.time for line in world.ledger.lines if line.event == "started"]
        assert started[1] - started[0] >= 1.0
        # A wait that is longer than the call may take is not begun.
        began = anyio.current_time()
        with pytest.raises(ToolFailure, match="asks to wait 3600 s"):
            await world.call("it", {"name": "late", "retry_after": 3600}, timeout_s=20)
        assert anyio.current_time() - began < 10
    assert [line.event for line in world.ledger.lines][-2:] == ["started", "failed"]


async def test_the_date_in_retry_after_is_understood(api: Connecting) -> None:
    async with api(STATUS) as toolset:
        with pytest.raises(ToolFailure, match=r"asks to wait \d{6,} s"):
            await toolset.call("it", {"code": "429", "retry_after": "Fri, 31 Dec 2100 23:59:59 GMT"})


async def test_text_of_any_type_and_json_in_the_charset_of_its_type_are_read(api: Connecting) -> None:
    paths = {f"/{name}": {"get": {"operationId": name}} for name in ("latin", "undefined")}
    async with api({**get("/lines"), **paths}) as toolset:
        assert (await toolset.call("undefined", {})).text == "voilà"
        assert (await toolset.call("it", {})).text == '{"a": 1}\n{"b": 2}\n'
        assert (await toolset.call("latin", {})).structured == {"a": "é"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unnamed", "name\nM\ufffdller"),
        ("marked", "name\nMüller"),
        ("mixed", "name\nM\ufffdller"),
        ("xml", "<name>M\ufffdller</name>"),
        ("image", "[text/csv, 6 bytes]"),
    ],
)
async def test_a_text_is_read_though_a_letter_is_not_in_its_charset_or_a_mark_stands_before_it(
    api: Connecting, name: str, text: str
) -> None:
    async with api(get(f"/{name}")) as toolset:
        assert (await toolset.call("it", {})).text == text


async def test_json_that_is_none_is_a_broken_tool(api: Connecting) -> None:
    async with api(get("/nojson")) as toolset:
        with pytest.raises(ToolFailure, match=r"application/json, but that is not valid JSON.*<html>"):
            await toolset.call("it", {})


async def test_an_answer_above_the_cap_costs_the_call_and_nothing_else(api: Connecting) -> None:
    async with api(get("/big", "thousands"), toolbake={"max_answer_mb": 0.1}) as toolset:
        with pytest.raises(ToolFailure, match=r"more than 100000 bytes.*max_answer_mb"):
            await toolset.call("it", {"thousands": "101"})
        assert len((await toolset.call("it", {"thousands": "100"})).text) > 8000


async def test_a_server_that_is_not_there_was_not_reached(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    document = {"openapi": "3.1.0", "info": {}, "paths": get("/x"), "servers": [{"url": url}]}
    async with mcp_bridge.connect(document) as toolset:
        with pytest.raises(ToolFailure, match="cannot be reached") as caught:
            await toolset.call("it", {})
    assert caught.value.delivery == "not_sent"


async def test_an_answer_that_is_cut_off_leaves_the_outcome_unknown(api: Connecting) -> None:
    post = {"/drop": {"post": {"operationId": "it"}}}
    async with api(post) as toolset:
        with pytest.raises(ToolFailure, match="was cut off") as caught:
            await toolset.call("it", {})
    assert caught.value.delivery == "unknown"


async def test_a_call_that_takes_too_long_is_given_up(api: Connecting) -> None:
    async with api(get("/slow")) as toolset:
        with pytest.raises(CallTimeout):
            await toolset.call("it", {}, timeout_s=0.3)


async def test_many_calls_share_the_pool(api: Connecting) -> None:
    async with api(get("/e", "n")) as toolset:
        seen: list[str] = []

        async def one(number: int) -> None:
            seen.append((await toolset.call("it", {"n": str(number)})).structured["query"])

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(one, number)
    assert sorted(seen) == sorted(f"n={number}" for number in range(100))


async def test_a_redirect_on_the_same_host_is_followed(api: Connecting) -> None:
    async with api(get("/redirect", "to")) as toolset:
        result = await toolset.call("it", {"to": "/text"})
        assert result.text == "plain words"
        with pytest.raises(ToolFailure, match="redirects more than 5 times"):
            await toolset.call("it", {"to": "/loop"})


async def test_a_next_page_with_one_value_of_a_list_can_be_asked_for_as_it_is_told(api: Connecting) -> None:
    schemas: dict[str, Any] = {"link": {"type": "string"}, "sort": {"type": "array", "items": {"type": "string"}}}
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]
    async with api({"/pages": {"get": {"operationId": "it", "parameters": parameters}}}) as toolset:
        told = (await toolset.call("it", {"link": '</pages?sort=id>; rel="next"'})).text
        assert '{"sort": ["id"]}]' in told
        assert not (await toolset.call("it", {"sort": ["id"]})).is_error


@pytest.mark.parametrize("name", ["Content-Length", "host", "Transfer-Encoding", "Connection"])
async def test_a_header_that_carries_the_request_is_not_asked_of_the_model(
    api: Connecting, echo: str, name: str
) -> None:
    body = {"content": {"application/json": {"schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}}
    header = {"name": name, "in": "header", "required": True, "schema": {"type": "string"}}
    async with api({"/x": {"put": {"operationId": "it", "parameters": [header], "requestBody": body}}}) as toolset:
        assert list(toolset.tools[0].input_schema["properties"]) == ["a"]
        received = (await toolset.call("it", {"a": "b"})).structured
    assert received["body"] == '{"a":"b"}'
    assert ["host", echo.removeprefix("http://")] in received["headers"]


async def test_what_a_request_has_in_cookies_goes_with_its_redirect(api: Connecting) -> None:
    paths = get("/redirect", "to", security=[{"key": []}])
    paths["/redirect"]["get"]["parameters"].append({"name": "lang", "in": "cookie", "schema": {"type": "string"}})
    key = {"securitySchemes": {"key": {"type": "apiKey", "in": "cookie", "name": "sid"}}}
    async with api(paths, components=key, auth={"key": "k-1234567"}) as toolset:
        result = await toolset.call("it", {"to": "/cookie?session=new", "lang": "de"})
        assert result.structured == {"cookies": {"lang": "de", "sid": "***"}}


@pytest.mark.parametrize("target", ["http://localhost:{port}/text", "https://127.0.0.1:{port}/", "//evil.example/x"])
async def test_a_redirect_to_another_host_is_not_followed(api: Connecting, echo: str, target: str) -> None:
    to = target.format(port=echo.rpartition(":")[2])
    async with api(get("/redirect", "to"), headers={"X-Key": "k-1234567"}) as toolset:
        with pytest.raises(ToolFailure, match=r"302 Found to .*not followed.*set base_url"):
            await toolset.call("it", {"to": to})


async def test_a_change_is_not_repeated_by_a_redirect_that_may_mean_a_read(api: Connecting) -> None:
    listed = [{"name": name, "in": "query", "schema": {}} for name in ("to", "status")]
    post = {"/redirect": {"post": {"operationId": "it", "parameters": listed}}}
    async with api(post) as toolset:
        with pytest.raises(ToolFailure, match="301 Moved"):
            await toolset.call("it", {"to": "/made", "status": 301})
        assert (await toolset.call("it", {"to": "/x", "status": 307})).structured["method"] == "POST"
        assert (await toolset.call("it", {"to": "/x", "status": 303})).structured["method"] == "GET"


async def test_a_redirect_that_the_document_names_is_an_answer(api: Connecting) -> None:
    async with api(get("/redirect", "to", responses={"302": {"description": "look there"}})) as toolset:
        assert (await toolset.call("it", {"to": "https://else.example/x"})).text == (
            "302 Found, Location: https://else.example/x"
        )


async def test_cookies_stay_in_the_world_that_got_them(api: Connecting) -> None:
    async with api(get("/cookie", "session")) as toolset:
        async with toolset.open_world("a") as first, toolset.open_world("b") as second:
            assert (await first.call("it", {"session": "one"})).structured == {"cookies": {}}
            assert (await second.call("it", {"session": "two"})).structured == {"cookies": {}}
            assert (await first.call("it", {"session": "x"})).structured == {"cookies": {"session": "one"}}
            assert (await second.call("it", {"session": "x"})).structured == {"cookies": {"session": "two"}}


async def test_the_base_url_keeps_its_path_and_its_host(api: Connecting, echo: str) -> None:
    paths = get("/orders/{order_id}", "order_id")
    paths["/orders/{order_id}"]["servers"] = [{"url": "https://elsewhere.example"}]
    async with api(paths, base_url=f"{echo}/shop/v2/") as toolset:
        assert (await toolset.call("it", {"order_id": "A 1"})).structured["path"] == "/shop/v2/orders/A%201"


@pytest.mark.parametrize(
    ("server", "called"), [("{echo}/beta/", "/beta/x"), ("/beta", "/beta/x"), ("{echo}", "/x"), ("v2", "/v2/x")]
)
async def test_an_operation_with_a_server_of_its_own_on_the_same_host_is_called_there(
    echo: str, server: str, called: str
) -> None:
    own = {"servers": [{"url": server.replace("{echo}", echo)}]}
    paths = {
        "/x": {"get": {"operationId": "its_own", **own}},
        "/y": {"get": {"operationId": "of_the_api"}},
        "/z": {"get": {"operationId": "of_the_path"}, **own},
    }
    document = {"openapi": "3.1.0", "info": {}, "servers": [{"url": f"{echo}/v1"}], "paths": paths}
    async with mcp_bridge.connect({"openapi": document}) as toolset:
        assert (await toolset.call("its_own", {})).structured["path"] == called
        assert (await toolset.call("of_the_api", {})).structured["path"] == "/v1/y"
        assert (await toolset.call("of_the_path", {})).structured["path"] == called.replace("x", "z")


async def test_an_operation_with_a_host_of_its_own_is_left_out_and_said_to_be(api: Connecting) -> None:
    paths = {**get("/a"), "/b": {"get": {"operationId": "b", "servers": [{"url": "https://elsewhere.example/x"}]}}}
    async with api(paths) as toolset:
        assert [tool.name for tool in toolset.tools] == ["it"]
        assert [(one.tool, one.reason) for one in toolset.left_out] == [
            ("b", "its own server is https://elsewhere.example/x; give a base_url to call it there")
        ]


async def test_slashes_in_a_path_are_sent_only_where_they_are_allowed(api: Connecting) -> None:
    async with api(get("/files/{name}", "name"), slashes_in_path=True) as toolset:
        assert (await toolset.call("it", {"name": "a/b"})).structured["path"] == "/files/a%2Fb"
        for bad in ("a/../b", "/a", "a//b", "a/.."):
            assert (await toolset.call("it", {"name": bad})).error_kind == "invalid_arguments"


async def test_an_object_spread_over_the_query_cannot_pass_for_another_parameter(api: Connecting) -> None:
    paths = get("/x", "page")
    paths["/x"]["get"]["parameters"].append({"name": "filter", "in": "query", "schema": {"type": "object"}})
    async with api(paths) as toolset:
        assert (await toolset.call("it", {"page": "1", "filter": {"a": "b"}})).structured["query"] == "page=1&a=b"
        result = await toolset.call("it", {"page": "1", "filter": {"page": "2"}})
    assert result.error_kind == "invalid_arguments"
    assert "'page', which is a parameter of its own" in result.text


async def test_the_key_of_a_call_goes_into_the_header_that_the_api_has_for_it(api: Connecting) -> None:
    post = {"/x": {"post": {"operationId": "it"}}}
    async with api(post, idempotency_header="Idempotency-Key") as toolset, toolset.open_world("w") as world:
        keys = [dict((await world.call("it", {})).structured["headers"])["idempotency-key"] for _ in range(2)]
        assert keys == [line.key for line in world.ledger.lines if line.event == "started"]
    assert len(set(keys)) == 2


async def test_what_is_write_only_does_not_come_back(api: Connecting) -> None:
    user = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "password": {"type": "string", "writeOnly": True},
            "friends": {"type": "array", "items": {"$ref": "#/components/schemas/User"}},
        },
        "required": ["name", "password"],
    }
    answers = {
        "2XX": {"description": "", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/User"}}}}
    }
    async with api(get("/user", responses=answers), components={"schemas": {"User": user}}) as toolset:
        result = await toolset.call("it", {})
        assert result.structured == {"name": "Ann", "friends": [{"name": "Bo"}]}
        assert "hunter2" not in result.text


async def test_a_query_or_a_fragment_in_a_path_of_the_document_is_none_of_the_path(api: Connecting) -> None:
    parameters = [
        {"name": "box", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "comp", "in": "query", "schema": {"type": "string"}},
        {"name": "q", "in": "path", "required": True, "schema": {"type": "string"}},
    ]
    searched = {"operationId": "search", "parameters": parameters}
    shared = {"operationId": "shared", "parameters": parameters[:1]}
    async with api({"/{box}?kind=a b&comp=list&q={q}": {"get": searched}, "/{box}#acl": {"get": shared}}) as toolset:
        both = await toolset.call("search", {"box": "a?b", "comp": "tags", "q": "x&y#z"})
        fixed = await toolset.call("search", {"box": "c", "q": "x"})
        acl = await toolset.call("shared", {"box": "d#e"})
    assert (both.structured["path"], both.structured["query"]) == ("/a%3Fb", "kind=a%20b&q=x%26y%23z&comp=tags")
    assert fixed.structured["query"] == "kind=a%20b&comp=list&q=x"
    assert (acl.structured["path"], acl.structured["query"]) == ("/d%23e", "")


async def test_a_document_in_a_file_or_behind_a_url_is_a_source(echo: str, tmp_path: Path) -> None:
    document = {
        "openapi": "3.0.3",
        "info": {"title": "T", "version": "1"},
        "paths": get("/text"),
        "servers": [{"url": echo}],
    }
    for name in ("api.json", "api.yaml"):
        (tmp_path / name).write_text(json.dumps(document))
        for source in (tmp_path / name, str(tmp_path / name), [str(tmp_path / name)]):
            async with mcp_bridge.connect(source) as toolset:
                assert (await toolset.call("it", {})).text == "plain words"
    async with mcp_bridge.connect({"openapi": str(tmp_path / "api.yaml"), "base_url": f"{echo}/sub"}) as toolset:
        assert [tool.name for tool in toolset.tools] == ["it"]


async def test_a_url_of_a_document_is_fetched_and_its_servers_are_relative_to_it(echo: str) -> None:
    async with mcp_bridge.connect(f"{echo}/document/openapi.json") as toolset:
        assert (await toolset.call("it", {})).structured["path"] == "/document/v1/x"
    with pytest.raises(SourceError, match=r"/status/404/x.json answered 404"):
        async with mcp_bridge.connect(f"{echo}/status/404/x.json"):
            pass


async def test_an_api_beside_an_mcp_json_is_found_and_its_settings_are_checked(echo: str, tmp_path: Path) -> None:
    (tmp_path / "api.json").write_text(
        json.dumps(
            {
                "openapi": "3.0.3",
                "info": {},
                "paths": {**get("/text", tags=["read"]), **{"/y": {"get": {"operationId": "other"}}}},
            }
        )
    )
    path = tmp_path / "mcp.json"

    def write(**entry: Any) -> str:
        path.write_text(json.dumps({"mcpServers": {"shop": {"openapi": "api.json", **entry}}}))
        return str(path)

    async with mcp_bridge.connect(write(base_url=echo, tags=["read"])) as toolset:
        assert (await toolset.call("it", {})).text == "plain words"
        assert [(one.tool, one.reason) for one in toolset.left_out] == [("other", "it has none of the tags read")]
    async with mcp_bridge.connect(write(base_url=echo, toolbake={"deny": ["it"]})) as toolset:
        assert [tool.name for tool in toolset.tools] == ["other"]
    for entry, complaint in [
        ({}, "the document names no server; give where the API is"),
        ({"base_url": "shop.example"}, "base_url is 'shop.example'"),
        ({"base_url": "https://u:p@shop.example"}, "must not hold a user"),
        ({"base_url": echo, "tag": ["x"]}, "unknown key 'tag'. Did you mean 'tags'"),
        ({"base_url": echo, "tags": ["none"]}, "no operation can be used: it has none of the tags none"),
        ({"base_url": echo, "headers": {"Host": "x"}}, "'Host' is not a header that can be set"),
        ({"base_url": echo, "headers": {"X-A": "a\nb"}}, "must be one line"),
        ({"base_url": echo, "auth": {"key": "v"}}, "auth names 'key'"),
        ({"base_url": echo, "type": "http"}, "does nothing beside 'openapi'"),
        ({"base_url": echo, "slashes_in_path": "yes"}, "must be true or false"),
        ({"base_url": echo, "toolbake": {"isolation": "session"}}, "isolation does nothing"),
    ]:
        with pytest.raises(SourceError) as caught:
            async with mcp_bridge.connect(write(**entry)):
                pass
        assert complaint in str(caught.value)


async def test_a_live_api_takes_no_setup(api: Connecting) -> None:
    async with api(get("/x")) as toolset:
        with pytest.raises(SourceError, match="cannot set up a world"):
            async with toolset.open_world("w", {"seed": 1}):
                pass
        assert not toolset.has_state


async def test_a_live_api_gets_numbers_as_text_and_the_path_its_default(api: Connecting) -> None:
    parameters = [
        {"name": "format", "in": "path", "required": True, "schema": {"type": "string", "default": "json"}},
        {"name": "page", "in": "query", "required": True, "schema": {"type": "integer", "default": 1}},
    ]
    operation = {"operationId": "it", "parameters": parameters, "responses": {}}
    async with api({"/list/{format}": {"get": operation}}) as toolset:
        sent = (await toolset.call("it", {"page": "2"})).structured
        assert (sent["path"], sent["query"]) == ("/list/json", "page=2")
        assert (await toolset.call("it", {})).structured["query"] == "", "the server fills in its own default"
    async with api({"/list/{format}": {"get": operation}}, toolbake={"arguments": "strict"}) as toolset:
        assert (await toolset.call("it", {"format": "xml", "page": "2"})).error_kind == "invalid_arguments"
