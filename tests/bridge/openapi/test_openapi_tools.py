"""What a model sees of an API: names, arguments, annotations, and what is kept from it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from mcp.client import Client

import mcp_bridge
from mcp_bridge import Tool, Toolset
from mcp_bridge.openapi.document import read_document
from mcp_bridge.openapi.schemas import View
from mcp_bridge.openapi.tools import ToolMaker

Connecting = Callable[..., AbstractAsyncContextManager[Toolset]]

NODE_MODULES = Path(__file__).parents[2] / "node" / "node_modules"
PUBLISHED = [
    "@octokit/openapi/generated/api.github.com.json",
    "@octokit/openapi/generated/ghes-2.18.json",
    "@figma/rest-api-spec/openapi/openapi.yaml",
]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


def path_of(published: str) -> str:
    path = NODE_MODULES / published
    if not path.exists() and shutil.which("npm") is None:
        pytest.skip("npm is not installed on this machine; the published documents come with it")
    assert path.exists(), "run `npm ci --no-audit --no-fund --ignore-scripts` in tests/node"
    return str(path)


def operations_of(document: Path) -> list[Any]:
    text = document.read_text()
    paths = (json.loads(text) if document.suffix == ".json" else yaml.safe_load(text))["paths"]
    return [item[method] for item in paths.values() for method in METHODS & set(item)]


async def one_tool(api: Connecting, operation: dict[str, Any], *, path: str = "/x", **rest: Any) -> Tool:
    async with api({path: {"post": {"operationId": "it", **operation}}}, **rest) as toolset:
        return toolset.tools[0]


def body(schema: dict[str, Any], *, required: bool = True, kind: str = "application/json") -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {kind: {"schema": schema}}}}


@pytest.mark.parametrize("published", PUBLISHED)
async def test_every_operation_of_a_published_document_is_a_valid_tool(published: str) -> None:
    entry = {"openapi": path_of(published), "base_url": "https://api.example"}
    operations = operations_of(Path(path_of(published)))
    assert len(operations) > (500 if "octokit" in published else 40)
    async with mcp_bridge.connect(entry) as toolset:
        assert len(toolset.tools) == len(operations)
        assert toolset.left_out == []
        assert len({tool.name for tool in toolset.tools}) == len(toolset.tools)
        for tool in toolset.tools:
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name)
            assert 0 < len(tool.description) <= 1024
            for schema in (tool.input_schema, tool.output_schema or {}):
                jsonschema_rs.meta.validate({"$schema": DIALECT, **schema})
            assert tool.input_schema["type"] == "object"
            for name in tool.input_schema["properties"]:
                assert re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name)
            # Every reference leads to a definition of the schema's own.
            text = json.dumps(tool.input_schema)
            for name in re.findall(r'"\$ref": "([^"]*)"', text):
                assert name.removeprefix("#/$defs/") in tool.input_schema["$defs"]


async def test_a_call_of_a_published_document_is_sent_as_its_publisher_says(echo: str) -> None:
    path = path_of("@octokit/openapi/generated/api.github.com.json")
    entry = {"openapi": path, "base_url": echo, "toolbake": {"allow": ["issues_*"]}}
    async with mcp_bridge.connect(entry) as toolset:
        made = await toolset.call(
            "issues_create",
            {"owner": "octo", "repo": "hello world", "title": "It's ä bug", "labels": ["bug", {"name": "p1"}]},
        )
        listed = await toolset.call("issues_list-for-repo", {"owner": "o", "repo": "r", "state": "all", "per_page": 5})
        wrong = await toolset.call("issues_list-for-repo", {"owner": "o", "repo": "r", "state": "some"})
    assert (made.structured["method"], made.structured["path"]) == ("POST", "/repos/octo/hello%20world/issues")
    assert json.loads(made.structured["body"]) == {"title": "It's ä bug", "labels": ["bug", {"name": "p1"}]}
    assert (listed.structured["path"], listed.structured["query"]) == ("/repos/o/r/issues", "state=all&per_page=5")
    assert wrong.error_kind == "invalid_arguments"
    assert 'one of "open", "closed", "all"' in wrong.text


async def test_parameters_and_the_properties_of_a_body_are_arguments_side_by_side(api: Connecting) -> None:
    operation = {
        "summary": "Add a line",
        "description": "Only to open orders.",
        "parameters": [
            {
                "name": "order_id",
                "in": "path",
                "description": "which order",
                "schema": {"type": "string", "minLength": 1},
            },
            {"name": "dry_run", "in": "query", "deprecated": True, "schema": {"type": "boolean"}},
        ],
        **body(
            {
                "type": "object",
                "required": ["item"],
                "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
            }
        ),
    }
    tool = await one_tool(api, operation, path="/orders/{order_id}/lines")
    assert tool.description == "Add a line. Only to open orders."
    assert tool.input_schema == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "minLength": 1, "description": "which order"},
            "dry_run": {"type": "boolean", "deprecated": True},
            "item": {"type": "string"},
            "count": {"type": "integer"},
        },
        "required": ["order_id", "item"],
        "additionalProperties": False,
    }


async def test_arguments_of_one_name_are_told_apart_and_say_where_they_go(api: Connecting) -> None:
    operation = {
        "parameters": [
            {"name": "id", "in": "path", "schema": {"type": "string"}},
            {"name": "filter[name]", "in": "query", "schema": {"type": "string"}},
            {"name": "$top", "in": "query", "schema": {"type": "integer"}},
        ],
        **body({"type": "object", "properties": {"id": {"type": "integer", "description": "the new one"}}}),
    }
    async with api({"/x/{id}": {"put": {"operationId": "it", **operation}}}) as toolset:
        properties = toolset.tools[0].input_schema["properties"]
        result = await toolset.call("it", {"id_in_path": "a", "id_in_body": 7, "filter_name": "n", "top": 3})
    assert {name: one.get("description") for name, one in properties.items()} == {
        "id_in_path": "Sent as the path parameter 'id'.",
        "filter_name": "Sent as the query parameter 'filter[name]'.",
        "top": "Sent as the query parameter '$top'.",
        "id_in_body": "the new one. Sent as the property of the body 'id'.",
    }
    received = result.structured
    assert (received["path"], received["query"]) == ("/x/a", "filter%5Bname%5D=n&%24top=3")
    assert json.loads(received["body"]) == {"id": 7}


async def test_names_that_are_alike_only_in_what_is_legal_of_them_are_counted(api: Connecting) -> None:
    names = ("DateSent<", "DateSent", "DateSent>", "ids[]")
    parameters = [{"name": one, "in": "query", "schema": {"type": "string"}} for one in names]
    async with api({"/x": {"get": {"operationId": "it", "parameters": parameters}}}) as toolset:
        asked = toolset.tools[0].input_schema["properties"]
        result = await toolset.call("it", {"DateSent": "a", "DateSent_2": "b", "DateSent_3": "c", "ids": "d"})
    assert [*asked] == ["DateSent_2", "DateSent", "DateSent_3", "ids"]
    assert asked["DateSent"] == {"type": "string"}
    assert result.structured["query"] == "DateSent%3C=b&DateSent=a&DateSent%3E=c&ids%5B%5D=d"


async def test_a_value_that_fits_several_choices_is_sent(api: Connecting) -> None:
    parts = [{"type": "object", "properties": {"name": {}, one: {}}} for one in ("north", "south")]
    days = [{"type": "string", "format": one} for one in ("date", "date-time")]
    ways = {
        "amount": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        "day": {"oneOf": days, "anyOf": [{"pattern": "-"}, {"pattern": "/"}]},
        "part": {"oneOf": parts},
    }
    sent = {"amount": 3, "day": "2026-01-01", "part": {"name": "n"}}
    async with api({"/x": {"post": {"operationId": "it", **body({"type": "object", "properties": ways})}}}) as toolset:
        assert json.loads((await toolset.call("it", sent)).structured["body"]) == sent
        for none in ({"amount": "many"}, {"day": "20260101"}, {"part": 7}):
            assert (await toolset.call("it", none)).error_kind == "invalid_arguments"


async def test_choices_of_what_is_required_do_not_hide_the_object_from_who_gave_wrong_arguments(
    api: Connecting,
) -> None:
    ways = [{"required": [name]} for name in ("description", "files")]
    gist = {
        "type": "object",
        "properties": {"description": {"type": "string"}, "files": {"type": "object"}},
        "anyOf": ways,
    }
    async with api({"/x": {"post": {"operationId": "it", **body(gist)}}}) as toolset:
        text = (await toolset.call("it", {"files": {}})).text
    assert "body (object {description?: string, files?: object}, required)" in text


async def test_a_choice_of_an_object_and_a_text_is_sent_as_either_under_deep_object(api: Connecting) -> None:
    card = {"anyOf": [{"type": "object", "properties": {"number": {"type": "string"}}}, {"type": "string"}]}
    form = body({"properties": {"card": card, "note": card}}, kind="application/x-www-form-urlencoded")
    content = form["requestBody"]["content"]["application/x-www-form-urlencoded"]
    content["encoding"] = {name: {"style": "deepObject", "explode": True} for name in ("card", "note")}
    deep = {"name": "created", "in": "query", "style": "deepObject", "schema": {"type": ["object", "integer"]}}
    async with api({"/x": {"post": {"operationId": "it", "parameters": [deep], **form}}}) as toolset:
        plain = (await toolset.call("it", {"created": 5, "card": "tok_1", "note": ""})).structured
        deep_ones = (await toolset.call("it", {"created": {"gt": 5}, "card": {"number": "4"}})).structured
    assert (plain["query"], plain["body"]) == ("created=5", "card=tok_1&note=")
    assert (deep_ones["query"], deep_ones["body"]) == ("created%5Bgt%5D=5", "card%5Bnumber%5D=4")


async def test_a_body_that_can_hold_nothing_is_not_asked_for(api: Connecting) -> None:
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    async with api({"/x": {"get": {"operationId": "it", **body(nothing, required=False)}}}) as toolset:
        assert toolset.tools[0].input_schema["properties"] == {}
        assert (await toolset.call("it", {})).structured["body"] == ""


async def test_whole_numbers_are_written_without_a_fraction(api: Connecting) -> None:
    number = {"type": "integer"}
    parameters = [{"name": name, "in": place, "schema": number} for name, place in (("id", "path"), ("X-N", "header"))]
    parameters.append({"name": "page", "in": "query", "schema": {"type": "array", "items": number}})
    form = body({"properties": {"count": number}}, kind="application/x-www-form-urlencoded")
    async with api({"/x/{id}": {"post": {"operationId": "it", "parameters": parameters, **form}}}) as toolset:
        received = (await toolset.call("it", {"id": 7.0, "X-N": 8.0, "page": [1.0, 2], "count": 3.0})).structured
    assert (received["path"], received["query"]) == ("/x/7", "page=1&page=2")
    assert (dict(received["headers"])["x-n"], received["body"]) == ("8", "count=3")


async def test_a_part_of_a_body_that_only_the_server_sets_does_not_hide_the_others(api: Connecting) -> None:
    resource = {"type": "object", "properties": {"id": {"type": "string", "readOnly": True}}, "required": ["id"]}
    part = {"allOf": [{"$ref": "#/components/schemas/Resource"}], "properties": {"name": {"type": "string"}}}
    async with api(
        {"/x": {"put": {"operationId": "it", **body(part)}}}, components={"schemas": {"Resource": resource}}
    ) as toolset:
        assert toolset.tools[0].input_schema["properties"] == {"name": {"type": "string"}}
        assert json.loads((await toolset.call("it", {"name": "n"})).structured["body"]) == {"name": "n"}


async def test_a_body_that_may_be_left_out_must_be_complete_where_it_is_given(api: Connecting) -> None:
    operation = body({"type": "object", "required": ["a"], "properties": {"a": {}, "b": {}}}, required=False)
    async with api({"/x": {"post": {"operationId": "it", **operation}}}) as toolset:
        nothing = await toolset.call("it", {})
        assert "content-type" not in dict(nothing.structured["headers"])
        assert (await toolset.call("it", {"b": 1})).error_kind == "invalid_arguments"
        assert json.loads((await toolset.call("it", {"a": 1, "b": 2})).structured["body"]) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}},
        {"oneOf": [{"type": "object", "required": [name]} for name in ("a", "b")]},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
    ],
)
async def test_a_body_that_is_no_plain_object_is_one_argument(api: Connecting, schema: dict[str, Any]) -> None:
    value = [1, 2] if schema.get("type") == "array" else {"a": 1}
    async with api({"/x": {"post": {"operationId": "it", **body(schema)}}}) as toolset:
        assert list(toolset.tools[0].input_schema["properties"]) == ["body"]
        assert json.loads((await toolset.call("it", {"body": value})).structured["body"]) == value


async def test_a_body_put_together_of_parts_is_taken_apart(api: Connecting) -> None:
    schemas = {
        "Base": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
        "Whole": {
            "allOf": [
                {"$ref": "#/components/schemas/Base"},
                {"type": "object", "properties": {"extra": {"type": "integer"}}},
            ]
        },
    }
    tool = await one_tool(api, body({"$ref": "#/components/schemas/Whole"}), components={"schemas": schemas})
    assert tool.input_schema["properties"] == {"id": {"type": "string"}, "extra": {"type": "integer"}}
    assert tool.input_schema["required"] == ["id"]


ORDER = {
    "type": "object",
    "required": ["id", "item", "lines"],
    "properties": {
        "id": {"type": "string", "readOnly": True},
        "state": {"$ref": "#/components/schemas/State"},
        "item": {"type": "string"},
        "pin": {"type": "string", "writeOnly": True},
        "lines": {"type": "array", "items": {"$ref": "#/components/schemas/Line"}},
    },
}
LINE = {
    "type": "object",
    "required": ["number"],
    "properties": {"number": {"type": "integer", "readOnly": True}, "text": {"type": "string"}},
}
STATE = {"type": "string", "readOnly": True}
COMPONENTS = {"schemas": {"Order": ORDER, "Line": LINE, "State": STATE}}


async def test_what_only_the_server_sets_is_not_asked_for_and_not_sent(api: Connecting) -> None:
    operation = {"operationId": "it", **body({"$ref": "#/components/schemas/Order"})}
    async with api({"/x": {"post": operation}}, components=COMPONENTS) as toolset:
        schema = toolset.tools[0].input_schema
        assert list(schema["properties"]) == ["item", "pin", "lines"]
        assert schema["required"] == ["item", "lines"]
        assert "number" not in json.dumps(schema)
        sent = await toolset.call("it", {"item": "x", "lines": [{"text": "a"}]})
        assert json.loads(sent.structured["body"]) == {"item": "x", "lines": [{"text": "a"}]}
        for arguments in (
            {"item": "x", "lines": [], "id": "1"},
            {"item": "x", "lines": [], "state": "open"},
            {"item": "x", "lines": [{"number": 1}]},
        ):
            assert (await toolset.call("it", arguments)).error_kind == "invalid_arguments"
        refused = await toolset.call("it", {"item": "x", "lines": [{"number": 1}]})
    assert "lines[0].number: only the server sets this; leave it out" in refused.text


@pytest.mark.parametrize("whole", [False, True])
async def test_what_a_part_calls_read_only_is_not_asked_for_as_another_part_has_it(
    api: Connecting, whole: bool
) -> None:
    user = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {}}, "required": ["id", "name"]}
    base = {"allOf": [{"$ref": "#/components/schemas/User"}]}
    own = {"properties": {"id": {"type": "integer", "readOnly": True}}, **({"minProperties": 1} if whole else {})}
    change = {"allOf": [{"$ref": "#/components/schemas/Base"}, own]}
    components = {"schemas": {"User": user, "Base": base, "Change": change}}
    paths = {
        "/x": {"put": {"operationId": "change", **body({"$ref": "#/components/schemas/Change"})}},
        "/y": {"post": {"operationId": "make", **body({"$ref": "#/components/schemas/User"})}},
    }
    async with api(paths, components=components) as toolset:
        assert "id" not in json.dumps(toolset.tools[0].input_schema)
        for given_id, is_error in (({}, False), ({"id": 7}, True)):
            value = {"name": "Ann", **given_id}
            assert (await toolset.call("change", {"body": value} if whole else value)).is_error is is_error
        assert (await toolset.call("make", {"name": "Ann"})).is_error
        assert not (await toolset.call("make", {"name": "Ann", "id": 7})).is_error


async def test_a_recursive_body_is_a_finite_valid_schema(api: Connecting) -> None:
    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
        },
    }
    operation = {"operationId": "it", **body({"$ref": "#/components/schemas/Node"})}
    async with api({"/x": {"post": operation}}, components={"schemas": {"Node": node}}) as toolset:
        tree = {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]}
        assert json.loads((await toolset.call("it", tree)).structured["body"]) == tree
        tree["children"][0]["children"][0]["name"] = ["c"]  # type: ignore[index]
        wrong = await toolset.call("it", tree)
    assert wrong.error_kind == "invalid_arguments"
    assert 'children[0].children[0].name is ["c"]' in wrong.text


async def test_annotations_come_from_the_method(api: Connecting) -> None:
    paths = {"/x": {method: {"operationId": method} for method in ("get", "head", "post", "put", "patch", "delete")}}
    async with api(paths) as toolset:
        said = {tool.name: tool.annotations for tool in toolset.tools}
        assert [tool.name for tool in toolset.live_destructive] == ["delete"]
    assert {name for name, one in said.items() if one.read_only} == {"get", "head"}
    assert {name for name, one in said.items() if one.idempotent} == {"get", "head", "put", "delete"}
    assert {name: one.destructive for name, one in said.items()} == {
        "get": False, "head": False, "post": None, "put": None, "patch": None, "delete": True,
    }  # fmt: skip


async def test_names_are_legal_and_unique_and_long_ones_keep_a_hash(api: Connecting) -> None:
    ids = ["orders/list", "orders.list", "orders list", "x" * 80 + "a", "x" * 80 + "b", "été"]
    async with api({f"/{number}": {"get": {"operationId": one}} for number, one in enumerate(ids)}) as toolset:
        names = [tool.name for tool in toolset.tools]
    assert names[:3] == ["orders_list", "orders_list_2", "orders_list_3"]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)


async def test_a_long_description_is_cut_where_one_sees_it(api: Connecting) -> None:
    tool = await one_tool(api, {"summary": "Short", "description": "word " * 1000, "deprecated": True})
    assert tool.description.startswith("Deprecated. Short. word")
    assert tool.description.endswith("word [...]")
    assert len(tool.description) <= 1024


async def test_a_pattern_that_python_cannot_read_is_told_and_not_checked(api: Connecting) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "pattern": r"^\p{Lu}+$"}}}
    async with api({"/x": {"post": {"operationId": "it", **body(schema)}}}) as toolset:
        assert toolset.tools[0].input_schema["properties"]["name"] == {
            "type": "string",
            "description": r"Must match ^\p{Lu}+$.",
        }
        assert not (await toolset.call("it", {"name": "abc"})).is_error


async def test_a_body_in_another_language_is_written_by_the_model(api: Connecting) -> None:
    for kind, sent in (
        ("application/xml", "application/xml"),
        ("text/csv", "text/csv"),
        ("*/*", "application/octet-stream"),
    ):
        operation = {"operationId": "it", **body({"type": "string"}, kind=kind)}
        async with api({"/x": {"post": operation}}) as toolset:
            received = (await toolset.call("it", {"body": "<a/>,ä"})).structured
        assert received["body"] == "<a/>,ä"
        assert dict(received["headers"])["content-type"] == sent


@pytest.mark.parametrize(
    ("kinds", "sent"),
    [
        (["multipart/form-data", "application/vnd.x+json", "application/json; charset=utf-8", "text/plain"], 2),
        (["application/json-patch+json", "application/strategic-merge-patch+json", "application/merge-patch+json"], 2),
        (["application/json-patch+json", "application/vnd.x+json", "application/apply-patch+yaml"], 1),
    ],
)
async def test_what_is_easiest_to_write_is_sent_where_a_body_has_several_forms(
    api: Connecting, kinds: list[str], sent: int
) -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    content = {kind: {"schema": schema} for kind in kinds}
    async with api({"/x": {"patch": {"operationId": "it", "requestBody": {"content": content}}}}) as toolset:
        received = (await toolset.call("it", {"a": 1})).structured
    assert dict(received["headers"])["content-type"] == kinds[sent]


async def test_the_encoding_of_a_form_is_followed(api: Connecting) -> None:
    media = {
        "schema": {
            "type": "object",
            "properties": {"tags": {"type": "array"}, "at": {"type": "object"}, "raw": {"type": "string"}},
        },
        "encoding": {
            "tags": {"style": "form", "explode": False},
            "at": {"style": "deepObject"},
            "raw": {"allowReserved": True},
        },
    }
    content = {"application/x-www-form-urlencoded": media}
    async with api({"/x": {"post": {"operationId": "it", "requestBody": {"content": content}}}}) as toolset:
        received = await toolset.call("it", {"tags": ["a", "b,c"], "at": {"x": 1}, "raw": "a/b?c&d"})
    assert received.structured["body"] == "tags=a,b%2Cc&at%5Bx%5D=1&raw=a/b?c%26d"


async def test_lists_and_objects_of_a_form_that_the_document_calls_json_are_sent_as_json(api: Connecting) -> None:
    properties = {"tags": {"type": "array"}, "at": {"type": "object"}, "own": {"type": "array"}}
    as_json = {"contentType": "application/json; charset=utf-8, text/plain"}
    encoding = {"tags": as_json, "at": as_json, "own": {**as_json, "style": "form"}}
    content = {"application/x-www-form-urlencoded": {"schema": {"properties": properties}, "encoding": encoding}}
    async with api({"/x": {"post": {"operationId": "it", "requestBody": {"content": content}}}}) as toolset:
        received = await toolset.call("it", {"tags": ["a", 1], "at": {"x": 1}, "own": ["a", 1]})
    sent = parse_qsl(received.structured["body"])
    # A style takes the place of a content type.
    assert sent == [("tags", '["a",1]'), ("at", '{"x":1}'), ("own", "a"), ("own", "1")]


async def test_the_parts_of_a_multipart_body_have_the_types_and_styles_of_the_document(api: Connecting) -> None:
    text, items = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    properties = {
        "note": text,
        "tags": items,
        "at": {"type": "object"},
        "scan": {"contentMediaType": "image/png"},
        "scans": {"type": "array", "items": {"type": "string", "contentMediaType": "image/png"}},
        "photo": {"contentMediaType": "image/png"},
    }
    encoding = {
        "note": {"contentType": "text/plain; charset=utf-8"},
        "tags": {"style": "form", "explode": False},
        "at": {"style": "deepObject", "explode": True},
        "photo": {"contentType": "image/png, image/jpeg"},
    }
    media = {"schema": {"type": "object", "properties": properties}, "encoding": encoding}
    content = {"multipart/form-data": media}
    given = {"note": "a b", "tags": ["a", "b c"], "at": {"x": 1, "y": ["z"]}, "scan": "dots", "scans": ["more"]}
    given["photo"] = f"data:image/jpeg;base64,{base64.b64encode(b'jpeg').decode()}"
    async with api({"/x": {"post": {"operationId": "it", "requestBody": {"content": content}}}}) as toolset:
        received = (await toolset.call("it", given)).structured
    assert received["form"] == [
        ["note", "a b"],
        ["tags", "a,b c"],
        ["at[x]", "1"],
        ["at[y][0]", "z"],
        ["scan", ["scan", "image/png", base64.b64encode(b"dots").decode()]],
        ["scans", ["scans", "image/png", base64.b64encode(b"more").decode()]],
        ["photo", ["photo", "image/jpeg", base64.b64encode(b"jpeg").decode()]],
    ]
    assert b"Content-Type: text/plain; charset=utf-8\r\n" in base64.b64decode(received["bytes"])


async def test_a_required_multipart_body_without_a_part_has_its_content_type(api: Connecting) -> None:
    content = {"multipart/form-data": {"schema": {"type": "object", "properties": {"note": {"type": "string"}}}}}
    operation = {"operationId": "it", "requestBody": {"required": True, "content": content}}
    async with api({"/x": {"post": operation}}) as toolset:
        received = (await toolset.call("it", {})).structured
    assert dict(received["headers"])["content-type"].startswith("multipart/form-data; boundary=")
    assert received["form"] == []


def promised(operation: dict[str, Any]) -> dict[str, Any] | None:
    """The output schema where the answers are those of the document."""
    read = read_document({"openapi": "3.1.0", "info": {}, "paths": {"/x": {"post": operation}}})
    ((tool, *_), _) = ToolMaker(read, source="x").make(lambda _: None)
    return tool.tool.output_schema


def test_output_schemas_are_those_of_success() -> None:
    def answers(**by_status: Any) -> dict[str, Any]:
        return {
            "responses": {
                status.lstrip("s"): {"description": "", "content": {"application/json": {"schema": schema}}}
                for status, schema in by_status.items()
            }
        }

    thing = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert promised(answers(s200=thing, s404={"type": "object"})) == thing
    assert promised(answers(s200={"type": "array"})) is None
    both = promised(answers(s200=thing, s201={"type": "object"}))
    assert both == {"type": "object", "anyOf": [thing, {"type": "object"}]}
    or_nothing = answers(s200=thing)
    or_nothing["responses"]["204"] = {"description": "there was nothing to do"}
    assert promised(or_nothing) is None


async def test_clients_of_mcp_take_whatever_an_api_answers_against_its_document(api: Connecting) -> None:
    said = {"content": {"application/json": {"schema": {"type": "object", "required": ["id"]}}}, "description": ""}
    paths = {f"/{one}": {"get": {"operationId": one, "responses": {"200": said}}} for one in ("nothing", "text", "x")}
    async with api(paths) as toolset, Client(mcp_bridge.publish(toolset)) as client:
        nothing, text, other = [await client.call_tool(one, {}) for one in ("nothing", "text", "x")]
    assert [one.content[0].text for one in (nothing, text)] == ["204 No Content (empty)", "plain words"]
    assert other.structured_content["path"] == "/x"
    assert not any(one.is_error for one in (nothing, text, other))


NAMES = st.text(max_size=12) | st.sampled_from(
    ["id", "id_in_path", "id in path", "body", "id_in_query", "x" * 70, "x" * 71]
)


@given(
    query=st.lists(NAMES, unique=True, max_size=5),
    header=st.lists(NAMES, unique=True, max_size=5),
    properties=st.lists(NAMES, unique=True, max_size=5),
)
def test_whatever_things_are_called_arguments_have_legal_names_of_their_own(
    query: list[str], header: list[str], properties: list[str]
) -> None:
    parameters = [{"name": one, "in": "query", "schema": {"type": "string"}} for one in query]
    parameters += [{"name": one, "in": "header", "schema": {"type": "string"}} for one in header]
    listed = {"type": "object", "properties": {one: {"type": "integer"} for one in properties}}
    operation = {"parameters": parameters, **body(listed)}
    document = read_document({"openapi": "3.1.0", "info": {}, "paths": {"/x": {"post": operation}}})
    ((tool, *_), _) = ToolMaker(document, source="x").make(lambda _: None)
    asked = tool.tool.input_schema["properties"]
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in asked)
    kept = [one for one in header if one.lower() not in {"accept", "content-type", "authorization"}]
    assert len(asked) == len(query) + len(kept) + (len(properties) or 1)


def an_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


MARKED = st.recursive(
    st.fixed_dictionaries({"type": st.just("string"), "readOnly": st.booleans()}),
    lambda inner: (
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=3).map(an_object)
        | inner.map(lambda items: {"type": "array", "items": items} if "readOnly" not in items else items)
    ),
    max_leaves=8,
)


def whole(schema: dict[str, Any], *, read_only: bool) -> Any:
    """A value with everything that the schema has, with or without what is read-only."""
    if schema["type"] == "array":
        return [whole(schema["items"], read_only=read_only)]
    if schema["type"] == "string":
        return "text"
    return {
        name: whole(one, read_only=read_only)
        for name, one in schema["properties"].items()
        if read_only or not one.get("readOnly")
    }


@given(schema=st.dictionaries(st.sampled_from("abcd"), MARKED, min_size=1, max_size=3).map(an_object))
def test_a_value_without_what_is_read_only_fits_and_one_with_it_does_not(schema: dict[str, Any]) -> None:
    document = read_document({"openapi": "3.1.0", "info": {}, "components": {"schemas": {"A": schema}}, "paths": {}})
    reference = {"$ref": "#/$defs/A"}
    shown, strict = View(document.schemas, "readOnly"), View(document.schemas, "readOnly", is_strict=True)
    without, full = whole(schema, read_only=False), whole(schema, read_only=True)
    for view in (shown, strict):
        assert Draft202012Validator(view.closed(reference)).is_valid(without)
    assert "readOnly" not in json.dumps(shown.closed(reference))
    assert Draft202012Validator(strict.closed(reference)).is_valid(full) == (without == full)
    assert shown.pruned(full, reference) == without


def pets(**discriminator: Any) -> dict[str, Any]:
    """A Cat, a Dog and a Fish behind one body: the first two fit one another's values, and the third says its own."""
    kind = {"kind": {"type": "string"}}
    schemas = {
        "Cat": {"type": "object", "required": ["kind"], "properties": {**kind, "lives": {"type": "integer"}}},
        "Dog": {"type": "object", "properties": {**kind, "id": {"type": "string", "readOnly": True}}},
        "Fish": {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": ["wet"]}}},
    }
    choices = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    choice = {"oneOf": choices, "discriminator": {"propertyName": "kind", **discriminator}}
    operation = {"operationId": "it", **body(choice)}
    return {"paths": {"/pets": {"post": operation}}, "components": {"schemas": schemas}}


@pytest.mark.parametrize(
    ("mapping", "right", "wrong"),
    [
        ({}, ["Cat", "Dog", "wet"], ["Fish", "cat", ""]),
        ({"tom": "#/components/schemas/Cat", "tim": "Cat", "rex": "Dog"}, ["tom", "tim", "rex", "wet"], ["Cat", "Dog"]),
    ],
)
async def test_a_discriminator_says_which_choice_a_value_is(
    api: Connecting, mapping: dict[str, str], right: list[str], wrong: list[str]
) -> None:
    made = pets(**({"mapping": mapping} if mapping else {}))
    async with api(made["paths"], components=made["components"]) as toolset:
        for kind in right:
            sent = await toolset.call("it", {"body": {"kind": kind}})
            assert json.loads(sent.structured["body"]) == {"kind": kind}
        for kind in wrong:
            refused = await toolset.call("it", {"body": {"kind": kind}})
            assert refused.error_kind == "invalid_arguments"
            assert f'body.kind is "{kind}"; expected' in refused.text
        cat, dog = right[0], right[-2]
        told = await toolset.call("it", {"body": {"kind": cat, "lives": "nine"}})
        assert 'of 3 choices the nearest says: body.lives is "nine"; expected integer' in told.text
        # Only a Dog's id is the server's to set; a Cat may have one by the letter.
        assert "only the server sets this" in (await toolset.call("it", {"body": {"kind": dog, "id": "x"}})).text
        assert not (await toolset.call("it", {"body": {"kind": cat, "id": "x"}})).is_error


@pytest.mark.parametrize("mapping", [{}, {"mapping": {"Cat": "Cat", "Tabby": "#/components/schemas/Tabby"}}])
async def test_a_discriminator_stands_for_the_schemas_that_inherit_from_it(
    api: Connecting, mapping: dict[str, Any]
) -> None:
    def heir(of: str, **properties: Any) -> dict[str, Any]:
        inner = {"type": "object", "properties": properties}
        return {"allOf": [{"$ref": f"#/components/schemas/{of}"}, inner]}

    schemas = {
        "Pet": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"type": "string"}},
            "discriminator": {"propertyName": "kind", **mapping},
        },
        "Cat": heir("Pet", lives={"type": "integer"}),
        "Tabby": heir("Cat", stripes={"type": "integer"}, id={"type": "string", "readOnly": True}),
    }
    pet = {"$ref": "#/components/schemas/Pet"}
    paths = {
        "/pets": {"post": {"operationId": "add", **body(pet)}},
        "/homes": {"post": {"operationId": "move", **body({"type": "object", "properties": {"pet": pet}})}},
    }
    async with api(paths, components={"schemas": schemas}) as toolset:
        for name, argument in (("add", "body"), ("move", "pet")):
            for given in ({"kind": "Tabby", "lives": 9, "stripes": 3}, {"kind": "Cat", "lives": 9}, {"kind": "other"}):
                sent = await toolset.call(name, {argument: given})
                assert not sent.is_error, sent.text
            told = await toolset.call(name, {argument: {"kind": "Tabby", "stripes": "many"}})
            assert f'{argument}.stripes is "many"; expected integer' in told.text
            hidden = await toolset.call(name, {argument: {"kind": "Tabby", "id": "x"}})
            assert hidden.error_kind == "invalid_arguments"
        assert "stripes" in json.dumps(toolset.tools[0].input_schema)


async def test_a_discriminator_that_only_the_server_sets_is_not_asked_for(api: Connecting) -> None:
    made = pets()
    for schema in made["components"]["schemas"].values():
        schema["properties"]["kind"] = {"type": "string", "readOnly": True}
    async with api(made["paths"], components=made["components"]) as toolset:
        sent = await toolset.call("it", {"body": {"lives": 9}})
        assert json.loads(sent.structured["body"]) == {"lives": 9}
