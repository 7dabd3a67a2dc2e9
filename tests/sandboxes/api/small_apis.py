"""Small documents for the tests: each has one way in which published APIs are written."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
NONE: Schema = {"description": "There is none."}


def record(required: list[str] | None = None, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def content(schema: Schema, kind: str = "application/json") -> Schema:
    return {"content": {kind: {"schema": schema}}}


def operation(
    name: str,
    *,
    sends: Schema | None = None,
    gives: Schema | None = None,
    status: str = "200",
    names: dict[str, Schema] | None = None,
    query: dict[str, Schema] | None = None,
    **more: Any,
) -> Schema:
    """One operation. `names`: its path parameters."""
    places = [("path", names or {}, True), ("query", query or {}, False)]
    parameters = [
        {"name": one, "in": place, "required": required, "schema": schema}
        for place, schemas, required in places
        for one, schema in schemas.items()
    ]
    answer = {"description": "It.", **(content(gives) if gives is not None else {})}
    found = {"operationId": name, "parameters": parameters, "responses": {status: answer, "404": NONE}, **more}
    return {**found, "requestBody": {"required": True, **content(sends)}} if sends is not None else found


def api(paths: dict[str, Schema], **schemas: Schema) -> Schema:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Small", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def crud(
    path: str,
    name: str,
    row: Schema,
    sends: Schema,
    *,
    parameter: str = "id",
    kind: Schema = TEXT,
    changes: dict[str, Schema] | None = None,
) -> dict[str, Schema]:
    """The usual five operations on the rows called `name`. `changes`: method -> what is sent to change a row."""
    names = {parameter: kind}
    item: dict[str, Schema] = {
        "get": operation(f"get{name}", gives=row, names=names),
        "delete": operation(f"delete{name}", status="204", names=names),
    }
    for method, body in (changes or {}).items():
        item[method] = operation(f"{method}{name}", sends=body, gives=row, names=names)
    return {
        path: {
            "get": operation(f"list{name}s", gives=listed(row)),
            "post": operation(f"create{name}", sends=sends, gives=row, status="201"),
        },
        f"{path}/{{{parameter}}}": item,
    }
