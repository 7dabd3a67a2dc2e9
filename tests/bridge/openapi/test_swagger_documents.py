"""Swagger 2.0 documents: read as the same API in OpenAPI 3.0, and called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from mcp_bridge import SourceError, connect
from mcp_bridge.openapi.document import read_document

SWAGGER = """
swagger: "2.0"
info: {title: Pets, version: "1"}
host: pets.example
basePath: /v2
schemes: [http, https]
consumes: [application/json]
produces: [application/json]
security: [{key: []}]
securityDefinitions:
  key: {type: apiKey, name: X-Key, in: header}
  user: {type: basic}
  account:
    type: oauth2
    flow: accessCode
    authorizationUrl: https://a.example
    tokenUrl: https://t.example
    scopes: {read: r}
parameters:
  Limit: {name: limit, in: query, type: integer, maximum: 10, exclusiveMaximum: true}
  Pet: {name: pet, in: body, required: true, schema: {$ref: "#/definitions/Pet"}}
responses:
  Missing: {description: not there, schema: {$ref: "#/definitions/Problem"}}
paths:
  /pets/{pet}:
    parameters: [{name: pet, in: path, required: true, type: string}]
    get:
      operationId: getPet
      parameters:
        - {name: fields, in: query, type: array, items: {type: string}}
        - {name: tags, in: query, type: array, items: {type: string}, collectionFormat: multi, default: [a]}
        - {name: ids, in: query, type: array, items: {type: integer}, collectionFormat: pipes}
        - {$ref: "#/parameters/Limit"}
      responses:
        200:
          description: a pet
          schema: {$ref: "#/definitions/Pet"}
          headers: {X-Rate: {type: integer}}
          examples: {application/json: {name: Rex}}
        404: {$ref: "#/responses/Missing"}
    put:
      operationId: putPet
      parameters: [{$ref: "#/parameters/Pet"}]
      responses: {204: {description: done}}
    post:
      operationId: sendForm
      security: [{user: []}, {account: [read]}]
      consumes: [application/x-www-form-urlencoded]
      parameters:
        - {name: title, in: formData, type: string, required: true, description: what it is called}
        - {name: tags, in: formData, type: array, items: {type: string}, collectionFormat: multi}
      responses: {204: {description: done}}
  /photos:
    post:
      operationId: sendPhoto
      consumes: [multipart/form-data]
      parameters: [{name: photo, in: formData, type: file, required: true}]
      responses: {default: {description: an export, schema: {type: file}}}
definitions:
  Pet:
    type: object
    discriminator: kind
    required: [name]
    properties:
      name: {type: string, x-nullable: true}
      example: {$ref: "#/definitions/Problem"}
      kind: {type: string, enum: [dog, cat]}
  Problem: {type: object, properties: {text: {type: string}}}
"""

OPENAPI = """
openapi: 3.0.3
info: {title: Pets, version: "1"}
servers: [{url: https://pets.example/v2}]
security: [{key: []}]
components:
  securitySchemes:
    key: {type: apiKey, name: X-Key, in: header}
    user: {type: http, scheme: basic}
    account:
      type: oauth2
      flows: {authorizationCode: {authorizationUrl: https://a.example, tokenUrl: https://t.example, scopes: {read: r}}}
  parameters:
    Limit: {name: limit, in: query, schema: {type: integer, maximum: 10, exclusiveMaximum: true}}
  responses:
    Missing: {description: not there, content: {application/json: {schema: {$ref: "#/components/schemas/Problem"}}}}
  schemas:
    Pet:
      type: object
      discriminator: {propertyName: kind}
      required: [name]
      properties:
        name: {type: string, nullable: true}
        example: {$ref: "#/components/schemas/Problem"}
        kind: {type: string, enum: [dog, cat]}
    Problem: {type: object, properties: {text: {type: string}}}
paths:
  /pets/{pet}:
    parameters: [{name: pet, in: path, required: true, schema: {type: string}}]
    get:
      operationId: getPet
      parameters:
        - {name: fields, in: query, explode: false, schema: {type: array, items: {type: string}}}
        - {name: tags, in: query, explode: true, schema: {type: array, items: {type: string}, default: [a]}}
        - {name: ids, in: query, style: pipeDelimited, explode: false, schema: {type: array, items: {type: integer}}}
        - {$ref: "#/components/parameters/Limit"}
      responses:
        200:
          description: a pet
          content: {application/json: {schema: {$ref: "#/components/schemas/Pet"}, example: {name: Rex}}}
          headers: {X-Rate: {schema: {type: integer}}}
        404: {$ref: "#/components/responses/Missing"}
    put:
      operationId: putPet
      requestBody: {required: true, content: {application/json: {schema: {$ref: "#/components/schemas/Pet"}}}}
      responses: {204: {description: done}}
    post:
      operationId: sendForm
      security: [{user: []}, {account: [read]}]
      requestBody:
        required: true
        content:
          application/x-www-form-urlencoded:
            schema:
              type: object
              required: [title]
              properties:
                title: {type: string, description: what it is called}
                tags: {type: array, items: {type: string}}
            encoding: {tags: {style: form, explode: true}}
      responses: {204: {description: done}}
  /photos:
    post:
      operationId: sendPhoto
      requestBody:
        required: true
        content:
          multipart/form-data:
            schema: {type: object, required: [photo], properties: {photo: {type: string, format: binary}}}
      responses:
        default: {description: an export, content: {application/json: {schema: {type: string, format: binary}}}}
"""


def test_a_swagger_document_is_the_same_api_in_openapi_3() -> None:
    assert read_document(yaml.safe_load(SWAGGER)) == read_document(yaml.safe_load(OPENAPI))


def test_what_the_document_does_not_name_is_where_it_was_read_from(tmp_path: Path) -> None:
    made = {"swagger": "2.0", "info": {"title": "Old", "version": "1"}, "paths": {}}
    assert read_document({**made, "host": "a.example"}).servers == ("https://a.example",)
    assert read_document({**made, "basePath": "/v1"}).servers == ("/v1",)
    file = tmp_path / "swagger.json"
    file.write_text(json.dumps({**made, "host": "a.example", "schemes": ["http"]}))
    assert read_document(file).servers == ("http://a.example",)


async def test_calls_send_what_the_swagger_document_says(echo: str) -> None:
    made = {**yaml.safe_load(SWAGGER), "host": echo.removeprefix("http://"), "schemes": ["http"]}
    config = {"mcpServers": {"pets": {"openapi": made, "auth": {"key": "the-key-of-pets"}}}}
    async with connect(config) as toolset:
        arguments: dict[str, Any] = {"pet": "7", "fields": ["a", "b"], "tags": ["x", "y"], "ids": [1, 2], "limit": 3}
        got = json.loads((await toolset.call("getPet", arguments)).text)
        assert (got["method"], got["path"]) == ("GET", "/v2/pets/7")
        assert unquote(got["query"]) == "fields=a,b&tags=x&tags=y&ids=1|2&limit=3"
        sent = json.loads((await toolset.call("putPet", {"pet": "7", "name": "Rex"})).text)
        assert json.loads(sent["body"]) == {"name": "Rex"}


FILES: dict[str, Any] = {
    "orders.json": {
        "swagger": "2.0",
        "info": {"title": "Orders", "version": "1"},
        "host": "orders.example",
        "parameters": {"Page": {"$ref": "common/types.json#/parameters/Page"}},
        "paths": {
            "/orders": {"$ref": "paths/orders.json"},
            "/orders/{id}": {
                "parameters": [{"$ref": "common/types.json#/parameters/Id"}],
                "put": {
                    "operationId": "putOrder",
                    "parameters": [{"$ref": "common/types.json#/parameters/Order"}],
                    "responses": {
                        "200": {"description": "it", "schema": {"$ref": "#/definitions/Order"}},
                        "default": {"$ref": "common/types.json#/responses/Failed"},
                    },
                },
            },
        },
        "definitions": {"Order": {"allOf": [{"$ref": "common/types.json#/definitions/Order"}]}},
    },
    "paths/orders.json": {
        "get": {
            "operationId": "listOrders",
            "parameters": [{"$ref": "../orders.json#/parameters/Page"}],
            "responses": {
                "200": {
                    "description": "them",
                    "schema": {"type": "array", "items": {"$ref": "../orders.json#/definitions/Order"}},
                }
            },
        }
    },
    "common/types.json": {
        "parameters": {
            "Id": {"name": "id", "in": "path", "required": True, "type": "string"},
            "Page": {"name": "page", "in": "query", "type": "integer"},
            "Order": {"name": "order", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Order"}},
        },
        "responses": {"Failed": {"description": "why", "schema": {"$ref": "error.json"}}},
        "definitions": {
            "Order": {
                "type": "object",
                "required": ["item"],
                "properties": {"item": {"type": "string"}, "note": {"type": "string", "x-nullable": True}},
            }
        },
    },
    "common/error.json": {"type": "object", "properties": {"message": {"type": "string"}}},
}


async def test_a_swagger_document_in_several_files_is_one_api(tmp_path: Path, echo: str) -> None:
    for name, value in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        host = echo.removeprefix("http://")
        (tmp_path / name).write_text(json.dumps(value).replace('"orders.example"', f'"{host}", "schemes": ["http"]'))
    document = read_document(tmp_path / "orders.json")
    operations = {one.operation_id: one for one in document.operations}
    assert not document.left_out
    assert [one.name for one in operations["putOrder"].parameters] == ["id"]
    assert [one.name for one in operations["listOrders"].parameters] == ["page"]
    failed = document.closed(operations["putOrder"].responses["default"].content["application/json"].schema)
    assert failed["properties"] == {"message": {"type": "string"}}
    listed = document.closed(operations["listOrders"].responses["200"].content["application/json"].schema)
    assert list(listed["items"]["allOf"][0]["properties"]) == ["item", "note"]
    async with connect({"mcpServers": {"orders": {"openapi": str(tmp_path / "orders.json")}}}) as toolset:
        sent = json.loads((await toolset.call("putOrder", {"id": "7", "item": "lamp", "note": None})).text)
    assert (sent["path"], json.loads(sent["body"])) == ("/orders/7", {"item": "lamp", "note": None})


async def test_an_operation_has_the_fields_of_its_path_beside_its_own(echo: str) -> None:
    def field(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "in": "formData", "type": "string", **more}

    operation = {"operationId": "put", "parameters": [field("b", type="integer"), field("c")], "responses": {}}
    item = {"parameters": [field("a"), field("b")], "put": operation}
    made = {"swagger": "2.0", "info": {"title": "Pets", "version": "1"}, "paths": {"/x": item}}
    made |= {"host": echo.removeprefix("http://"), "schemes": ["http"]}
    async with connect({"mcpServers": {"pets": {"openapi": made}}}) as toolset:
        got = await toolset.call("put", {"a": "x", "b": 2, "c": "z"})
    assert got.structured["body"] == "a=x&b=2&c=z"


async def test_a_list_beside_a_file_is_written_as_its_format_says(echo: str) -> None:
    lists = {"tags": "csv", "ids": "multi", "lines": "pipes"}
    fields: list[dict[str, Any]] = [
        {"name": name, "in": "formData", "type": "array", "items": {"type": "string"}, "collectionFormat": form}
        for name, form in lists.items()
    ]
    fields.append({"name": "photo", "in": "formData", "type": "file"})
    operation = {"operationId": "put", "consumes": ["multipart/form-data"], "parameters": fields, "responses": {}}
    made = {"swagger": "2.0", "info": {"title": "Pets", "version": "1"}, "paths": {"/x": {"put": operation}}}
    made |= {"host": echo.removeprefix("http://"), "schemes": ["http"]}
    async with connect({"mcpServers": {"pets": {"openapi": made}}}) as toolset:
        got = await toolset.call("put", {**{name: ["a", "b"] for name in lists}, "photo": "x"})
    form = got.structured["form"]
    assert form[:4] == [["tags", "a,b"], ["ids", "a"], ["ids", "b"], ["lines", "a|b"]]
    assert form[4][0] == "photo"


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"swagger": "1.2"}, r"is Swagger '1\.2'; read are Swagger 2\.0 and OpenAPI 3\.0 and 3\.1"),
        ({"swagger": "2.0", "paths": []}, r"#/paths: must be an object"),
        (
            {
                "swagger": "2.0",
                "paths": {
                    "/a": {
                        "get": {
                            "parameters": [{"name": "x", "in": "query", "type": "array", "collectionFormat": "tsv"}]
                        }
                    }
                },
            },
            r"parameters/0: style is 'tsv'; in query the choices are",
        ),
        ({"swagger": "2.0", "paths": {"/a": {"get": {"parameters": [{"$ref": "#/gone"}]}}}}, "'#/gone' leads nowhere"),
    ],
)
def test_an_error_in_a_swagger_document_says_where(broken: Any, told: str) -> None:
    with pytest.raises(SourceError, match=told):
        read_document(broken)
