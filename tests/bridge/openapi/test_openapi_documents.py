"""Reading OpenAPI documents: both versions, references, and errors that say where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import mcp_bridge
from mcp_bridge import SourceError
from mcp_bridge.openapi.document import Document, read_document
from mcp_bridge.openapi.references import load_text


def document(paths: Mapping[str, Any], *, openapi: str = "3.1.0", **rest: Any) -> dict[str, Any]:
    return {"openapi": openapi, "info": {"title": "Shop", "version": "2"}, "paths": dict(paths), **rest}


def with_schemas(schemas: Mapping[str, Any], *, openapi: str = "3.0.3") -> Document:
    return read_document(document({}, openapi=openapi, components={"schemas": dict(schemas)}))


OK = {"200": {"description": "fine"}}

ORDERS = """
openapi: 3.0.3
info: {title: Orders, version: 1.2.0}
servers:
  - url: https://{region}.shop.example/v1
    variables: {region: {default: eu}}
security: [{key: []}]
paths:
  /orders/{order_id}:
    parameters:
      - {name: order_id, in: path, required: true, schema: {type: string}}
      - {name: verbose, in: query, schema: {type: boolean}}
    get:
      operationId: getOrder
      tags: [orders]
      parameters:
        - {name: verbose, in: query, description: say more, schema: {type: boolean}}
        - {$ref: '#/components/parameters/Fields'}
      responses:
        200:
          description: the order
          content: {application/json: {schema: {$ref: '#/components/schemas/Order'}}}
        404: {$ref: '#/components/responses/Missing'}
    put:
      deprecated: true
      security: []
      requestBody:
        required: true
        content: {application/json: {schema: {$ref: '#/components/schemas/Order'}}}
      responses: {204: {description: done}}
components:
  securitySchemes:
    key: {type: apiKey, in: header, name: X-Key}
  parameters:
    Fields: {name: fields, in: query, style: pipeDelimited, schema: {type: array, items: {type: string}}}
  responses:
    Missing: {description: no such order}
  schemas:
    Order:
      type: object
      required: [id]
      properties:
        id: {type: string, readOnly: true}
        placed: {type: string, example: 2026-01-31}
        express: {type: string, enum: [yes, no]}
        note: {type: string, nullable: true}
        parts: {type: array, items: {$ref: '#/components/schemas/Order'}}
"""


@pytest.fixture
def orders(tmp_path: Path) -> Document:
    path = tmp_path / "orders.yaml"
    path.write_text(ORDERS)
    return read_document(path)


def test_a_document_says_its_title_servers_operations_and_schemes(orders: Document) -> None:
    assert (orders.title, orders.version, orders.servers) == ("Orders", "1.2.0", ("https://eu.shop.example/v1",))
    get, put = orders.operations
    assert (get.method, get.path, get.operation_id, get.tags) == ("get", "/orders/{order_id}", "getOrder", ("orders",))
    assert [(one.name, one.location, one.required) for one in get.parameters] == [
        ("order_id", "path", True),
        ("verbose", "query", False),
        ("fields", "query", False),
    ]
    assert get.parameters[1].description == "say more"
    assert [(one.style, one.explode) for one in get.parameters] == [
        ("simple", False),
        ("form", True),
        ("pipeDelimited", False),
    ]
    assert get.security == ({"key": ()},)
    assert put.security == ()
    assert put.deprecated
    assert put.operation_id == "put_orders_by_order_id"
    assert put.body is not None
    assert put.body.required
    assert put.body.content["application/json"].schema == {"$ref": "#/$defs/Order"}
    assert sorted(get.responses) == ["200", "404"]
    assert get.responses["404"].description == "no such order"
    assert orders.security_schemes["key"].parameter == "X-Key"


def test_yaml_keeps_dates_and_yes_and_no_as_the_strings_that_they_are(orders: Document) -> None:
    properties = orders.schemas["Order"]["properties"]  # type: ignore[index]
    assert properties["placed"]["examples"] == ["2026-01-31"]
    assert properties["express"]["enum"] == ["yes", "no"]


def test_a_schema_that_holds_itself_stands_alone_and_judges_values(orders: Document) -> None:
    schema = orders.closed({"$ref": "#/$defs/Order"})
    Draft202012Validator.check_schema(schema)
    judge = Draft202012Validator(schema)
    assert judge.is_valid({"id": "1", "note": None, "parts": [{"id": "2", "parts": []}]})
    assert not judge.is_valid({"id": "1", "parts": [{"id": "2", "parts": [{}]}]})


def test_what_is_used_once_is_written_where_it_is_used() -> None:
    made = with_schemas(
        {"A": {"properties": {"b": {"$ref": "#/components/schemas/B"}}}, "B": {"type": "integer"}, "C": {}}
    )
    assert made.closed({"$ref": "#/$defs/A"}) == {"properties": {"b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"nullable": True}, {}),
        ({"nullable": False, "type": "string"}, {"type": "string"}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": False}, {"type": "integer", "minimum": 1}),
        ({"type": "string", "example": "x"}, {"type": "string", "examples": ["x"]}),
        ({"type": "string", "required": True}, {"type": "string"}),
        ({"type": "file"}, {"type": "string", "format": "binary"}),
        ({"default": {"nullable": True, "example": 1}}, {"default": {"nullable": True, "example": 1}}),
        (
            {"properties": {"example": {"type": "string"}, "nullable": {"type": "string", "nullable": True}}},
            {"properties": {"example": {"type": "string"}, "nullable": {"type": ["string", "null"]}}},
        ),
        (
            {"allOf": [{"type": "string"}], "nullable": True, "description": "d"},
            {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}], "description": "d"},
        ),
        (
            {"allOf": [{"properties": {"a": {}}}], "additionalProperties": False},
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        ),
    ],
)
def test_version_3_0_becomes_json_schema(written: dict[str, Any], meant: dict[str, Any]) -> None:
    assert with_schemas({"A": written}).schemas["A"] == meant


def test_beside_a_reference_version_3_0_keeps_words_and_version_3_1_keeps_everything() -> None:
    schemas = {
        "A": {"$ref": "#/components/schemas/B", "description": "words", "maxLength": 3},
        "B": {"type": "string"},
    }
    assert with_schemas(schemas).schemas["A"] == {"$ref": "#/$defs/B", "description": "words"}
    newer = with_schemas(schemas, openapi="3.1.0")
    assert newer.schemas["A"] == {"$ref": "#/$defs/B", "description": "words", "maxLength": 3}
    assert not Draft202012Validator(newer.closed({"$ref": "#/$defs/A"})).is_valid("four")


def test_references_in_dependencies_of_older_drafts_are_followed() -> None:
    schemas = {
        "A": {"dependencies": {"a": {"$ref": "#/components/schemas/B"}, "b": ["c"]}},
        "B": {"required": ["d"]},
    }
    made = with_schemas(schemas, openapi="3.1.0")
    assert made.schemas["A"] == {"dependencies": {"a": {"$ref": "#/$defs/B"}, "b": ["c"]}}
    assert made.closed({"$ref": "#/$defs/A"}) == {"dependencies": {"a": {"required": ["d"]}, "b": ["c"]}}


def test_references_lead_to_files_beside_the_document(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "item.yaml").write_text(
        "Item: {type: object, properties: {price: {$ref: 'money.json'}, next: {$ref: '#/Item'}}}"
    )
    (tmp_path / "parts" / "money.json").write_text('{"type": "number", "minimum": 0}')
    root = document(
        {
            "/items": {
                "post": {
                    "requestBody": {"content": {"application/json": {"schema": {"$ref": "parts/item.yaml#/Item"}}}},
                    "responses": OK,
                }
            }
        }
    )
    (tmp_path / "api.json").write_text(json.dumps(root))
    read = read_document(tmp_path / "api.json")
    assert read.operations[0].body is not None
    judge = Draft202012Validator(read.closed(read.operations[0].body.content["application/json"].schema))
    assert judge.is_valid({"price": 1, "next": {"price": 2}})
    assert not judge.is_valid({"next": {"next": {"price": -1}}})


@pytest.mark.parametrize(
    "reference", ["../secret.yaml", "{folder}/secret.yaml", "file://{folder}/secret.yaml", "link.yaml"]
)
def test_references_never_leave_the_folder(tmp_path: Path, reference: str) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("type: string")
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "link.yaml").symlink_to(secret)
    made = document({}, components={"schemas": {"A": {"$ref": reference.format(folder=tmp_path)}}})
    (tmp_path / "api" / "api.json").write_text(json.dumps(made))
    with pytest.raises(SourceError, match=r"#/components/schemas/A.*outside the folder"):
        read_document(tmp_path / "api" / "api.json")


def test_references_to_urls_are_not_fetched_without_being_asked(tmp_path: Path) -> None:
    made = document({}, components={"schemas": {"A": {"$ref": "http://127.0.0.1:9/a.json"}}})
    with pytest.raises(SourceError, match=r"#/components/schemas/A.*follow_urls=True"):
        read_document(made)
    with pytest.raises(SourceError, match=r"#/components/schemas/A.*cannot be fetched"):
        read_document(made, follow_urls=True)


@pytest.mark.parametrize("address", ["https://shop.example/order", "order", "tag:shop.example,2024:order"])
def test_a_schema_is_found_by_its_id_and_counts_references_from_itself(address: str) -> None:
    order = {
        "$id": address,
        "properties": {
            "line": {"$ref": "#/$defs/Line"},
            "next": {"$ref": "#"},
            "size": {"$ref": "#/components/schemas/Size"},
        },
        "$defs": {"Line": {"type": "string"}},
    }
    schemas = {
        "Order": order,
        "Size": {"type": "integer"},
        "One": {"$ref": address},
        "Line": {"$ref": f"{address}#/$defs/Line"},
    }
    made = with_schemas(schemas, openapi="3.1.0")
    assert not made.broken
    assert made.resolve(made.schemas["One"]) == made.schemas["Order"]
    assert made.resolve(made.schemas["Line"]) == {"type": "string"}
    read = made.schemas["Order"]
    assert isinstance(read, dict)
    properties = read["properties"]
    assert made.resolve(properties["line"]) == {"type": "string"}
    assert properties["next"] == {"$ref": "#/$defs/Order"}
    assert made.resolve(properties["size"]) == {"type": "integer"}


def test_a_name_with_half_a_character_can_be_sent(tmp_path: Path) -> None:
    (tmp_path / "api.json").write_text(
        '{"openapi": "3.1.0", "info": {"title": "\\ud83d"}, "paths": {"/\\ud83d": {"get": {}}}}'
    )
    made = read_document(tmp_path / "api.json")
    assert (made.title, made.operations[0].path) == ("\ufffd", "/\ufffd")


def test_an_enumeration_that_is_none_may_be_nullable() -> None:
    assert with_schemas({"A": {"type": "string", "nullable": True, "enum": "x"}}).schemas["A"] is not None


def test_an_anchor_is_found() -> None:
    made = with_schemas({"A": {"$ref": "#money"}, "B": {"$anchor": "money", "type": "number"}}, openapi="3.1.0")
    assert made.closed({"$ref": "#/$defs/A"}) == {"type": "number"}


KEY = {"securitySchemes": {"k": {"type": "apiKey", "in": "header", "name": "X-Key"}}}


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ([], r"an object, not a list"),
        ({"mcpServers": {}}, r"not an OpenAPI 3.0 or 3.1 document.*no key 'openapi'"),
        ({"openapi": "3.2.0"}, r"'3\.2\.0'"),
        (document({"orders": {}}), r"#/paths/orders: a path must begin"),
        (document({"/a": {"get": []}}), r"#/paths/~1a/get: must be an object"),
        (document({"/a": {"get": {"parameters": [{"in": "query"}]}}}), r"#/paths/~1a/get/parameters/0: .*name"),
        (
            document({"/a": {"get": {"parameters": [{"name": "x", "in": "body"}]}}}),
            r"parameters/0: in is 'body'; the choices are path, query, header, cookie",
        ),
        (
            document({"/a": {"get": {"parameters": [{"name": "x", "in": "path"}]}}}),
            r"#/paths/~1a/get: '/a' has no place for the path parameter 'x'",
        ),
        (
            document({"/a": {"get": {"parameters": [{"name": "x", "in": "query", "style": "matrix"}]}}}),
            r"style is 'matrix'; in query the choices are form,",
        ),
        (
            document({"/a": {"get": {"parameters": [{"name": "x", "in": {}}]}}}),
            r"parameters/0: in is \{\}; the choices",
        ),
        (document({"/a": {"get": {"tags": 5}}}), r"#/paths/~1a/get/tags: must be a list of strings, not 5"),
        (
            document({"/a": {"get": {"security": [{"k": True}]}}}, components=KEY),
            r"get/security: must be a list of strings, not True",
        ),
        (document({}, components={"schemas": {"A": {"$ref": 5}}}), r"schemas/A/\$ref: must be a string, not 5"),
        (
            document({}, components={"schemas": {"A": {"$ref": "#/tags/one"}}}, tags=[{"name": "one"}]),
            r"schemas/A: \$ref '#/tags/one' leads nowhere",
        ),
        (document({"/a": {"get": {"requestBody": {"content": {}}}}}), r"requestBody: .*at least one media type"),
        (
            document({}, components={"schemas": {"A": {"$ref": "#/nowhere"}}}),
            r"schemas/A: \$ref '#/nowhere' leads nowhere",
        ),
        (document({}, components={"schemas": {"A": {"type": "date"}}}), r"schemas/A: type is 'date'; the choices"),
        (document({}, components={"schemas": {"A": {"type": {}}}}), r"schemas/A: type is \{\}; the choices"),
        (document({}, components={"schemas": {"A": {"allOf": {}}}}), r"schemas/A/allOf: must be a list"),
        (document({}, components={"schemas": {"A": {"properties": {"x": 1}}}}), r"schemas/A/properties/x: a schema"),
        (document({}, components={"schemas": {"A": {"$ref": "other.yaml"}}}), r"given as a value; give its path"),
        (document({"/a": {"$ref": "#/paths/~1a"}}), r"leads back to itself"),
        (document({}, components={"schemas": {"A": {"$ref": "#/components/schemas/A"}}}), r"'A' refers only to itself"),
        (document({}, servers=[{"address": "https://x"}]), r"#/servers/0: a server must be an object with a url"),
    ],
)
def test_an_error_says_where_in_the_document(broken: Any, complaint: str, tmp_path: Path) -> None:
    if isinstance(broken, Mapping):
        with pytest.raises(SourceError, match=complaint):
            read_document(broken)
    path = tmp_path / "api.json"
    path.write_text(json.dumps(broken))
    complaint = complaint.replace("given as a value; give its path", "there is no file")
    with pytest.raises(SourceError, match=complaint):
        read_document(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\na: 2\n", r"api.yaml is not valid YAML: .*'a' occurs twice; keep one of them at line 2"),
        ("a: [1\n", r"not valid YAML.*line 2"),
        ("a: &x [*x]\n", r"nested too deep|repeats itself"),
        (
            "\n".join(["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]),
            "repeats itself",
        ),
        ("a: !!python/object/apply:os.getcwd []\n", r"could not determine a constructor"),
        ("", "an object, not None"),
    ],
)
def test_text_that_is_no_document_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "api.yaml").write_text(text)
    with pytest.raises(SourceError, match=complaint):
        read_document(tmp_path / "api.yaml")


def test_operations_without_a_name_get_one_and_twins_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    twice = {"operationId": "list", "responses": OK}
    made = read_document(document({"/a": {"get": twice}, "/b": {"get": twice}, "/c/{d-e}/f": {"post": {}}}))
    assert [one.operation_id for one in made.operations] == ["list", "list_2", "post_c_by_d_e_f"]
    assert "operationId 'list' is taken" in caplog.text
    assert "no parameter describes {d-e}" in caplog.text


SCHEMA_NAMES = ["A", "B", "C", "D"]


def _schemas() -> st.SearchStrategy[Any]:
    reference = st.sampled_from(SCHEMA_NAMES).map(lambda name: {"$ref": f"#/components/schemas/{name}"})
    leaf = st.sampled_from([{"type": "string", "nullable": True}, {"type": "integer"}, {}]) | reference
    return st.recursive(
        leaf,
        lambda inner: (
            st.dictionaries(st.sampled_from("xyz"), inner, max_size=3).map(
                lambda properties: {"type": "object", "properties": properties}
            )
            | inner.map(lambda items: {"type": "array", "items": items})
            | st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts})
        ),
        max_leaves=6,
    )


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


@given(schemas=st.fixed_dictionaries({name: _schemas() for name in SCHEMA_NAMES}), value=VALUES)
def test_a_schema_that_stands_alone_judges_as_the_whole_document_does(schemas: dict[str, Any], value: Any) -> None:
    try:
        made = with_schemas(schemas)
    except SourceError:
        # `A: {$ref: A}`, refused with its place above.
        assume(False)
    whole = {"$defs": dict(made.schemas), "$ref": "#/$defs/A"}
    alone = made.closed({"$ref": "#/$defs/A"})
    Draft202012Validator.check_schema(alone)
    try:
        expected = Draft202012Validator(whole).is_valid(value)
    except RecursionError:
        # `A: {anyOf: [A]}` says nothing at all; no validator can judge by it.
        return
    assert Draft202012Validator(alone).is_valid(value) == expected


def test_a_path_behind_a_broken_reference_costs_itself_alone() -> None:
    made = read_document(document({"/a": {"get": {"operationId": "a", "responses": OK}}, "/b": {"$ref": "#/nowhere"}}))
    assert [one.operation_id for one in made.operations] == ["a"]
    assert made.left_out == {"/b": "#/paths/~1b: $ref '#/nowhere' leads nowhere; there is nothing at #/nowhere"}


def test_a_path_without_its_slash_costs_itself_alone() -> None:
    made = read_document(document({name: {"get": {"operationId": name[-1], "responses": OK}} for name in ("/a", "b")}))
    assert [one.operation_id for one in made.operations] == ["a"]
    assert made.left_out == {"b": "#/paths/b: a path must begin with '/'"}


def test_a_security_scheme_that_cannot_be_read_or_is_not_there_is_told_once_and_not_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    securities = {"root": None, "good": [{"key": []}], "bad": [{"old": []}], "gone": [{"nobody": []}]}
    paths = {
        f"/{name}": {"get": {"operationId": name, "responses": OK, **({"security": security} if security else {})}}
        for name, security in securities.items()
    }
    schemes = {"old": {"type": "basic"}, "key": {"type": "apiKey", "in": "header", "name": "X-Key"}}
    made = read_document(document(paths, security=[{"old": []}], components={"securitySchemes": schemes}))
    asked = {one.operation_id: one.security for one in made.operations}
    assert asked == {"root": ({},), "good": ({"key": ()},), "bad": ({},), "gone": ({},)}
    assert [*made.security_schemes] == ["key"]
    assert caplog.text.count("#/components/securitySchemes/old: a security scheme must have a type") == 1
    assert "#/paths/~1gone/get/security: there is no security scheme 'nobody'; there are key" in caplog.text


async def test_a_document_may_be_used_whose_title_or_server_cannot_be_read() -> None:
    given = document({"/a": {"get": {}}}, info="Shop", servers=[{"url": "https://{region}.example.com"}])
    entry = {"openapi": given}
    assert read_document(given).title == ""
    with pytest.raises(SourceError, match=r"says 'https://\{region\}\S+', and has no default for its variables"):
        async with mcp_bridge.connect({"mcpServers": {"shop": entry}}):
            pass
    async with mcp_bridge.connect({"mcpServers": {"shop": {**entry, "base_url": "https://eu.example.com"}}}) as tools:
        assert [tool.name for tool in tools.tools] == ["get_a"]


def test_a_key_that_a_merged_mapping_wrote_anew_is_there_once() -> None:
    text = "first: &first {a: 1}\ndeep: {own: &own {<<: *first, a: 2}}\nlast: {<<: *own, b: 3}\n"
    assert load_text(text, "api.yaml") == {"first": {"a": 1}, "deep": {"own": {"a": 2}}, "last": {"a": 2, "b": 3}}
