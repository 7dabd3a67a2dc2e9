"""Answers that a document leaves open, as a service would give them: what can be sent of a row, and its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mcp_bridge.openapi.document import Document, MediaType, Operation
from mcp_bridge.openapi.schemas import PREFIX, View, with_heirs
from mcp_bridge.safe_text import singular_of

from . import paths
from .model import IDENTIFIERS
from .realistic import words_of
from .shapes import Shapes

_CHANGES = ("put", "patch", "post")
_EMPTY = frozenset(["204", "205"])


def with_answers(document: Document) -> Document:
    """The document, in which the rows that can be sent are answered where no schema tells what is.

    The answer of `GET /boards/{id}` is what `POST /boards` or `PUT /boards/{id}` take, with an `id`; `GET /boards`
    lists such rows, and so does `GET /people/{id}/boards`. A document that describes its rows stays as it is.
    """
    shapes = Shapes(document)
    at: dict[paths.Steps, dict[str, Operation]] = {}
    for operation in document.operations:
        if paths.is_plain(operation.path):
            at.setdefault(paths.steps_of(operation.path), {}).setdefault(operation.method, operation)
    schemas, answers, named = dict(document.schemas), dict[int, Any](), dict[str, Any]()
    for steps in (one for one in at if one[-1] == "{}" and one[:-1]):
        row, above = at[steps], at.get(steps[:-1], {})
        if not any(_is_open(shapes, one) for one in (row.get("get"), above.get("get")) if one is not None):
            continue
        known = _known(shapes, row, above)
        is_made = known is None
        known = _made(shapes, row, above) if is_made else known
        if known is None:
            continue
        if is_made:
            name = f"row of {row[next(iter(row))].path}"
            schemas[name], known = known, {"$ref": f"{PREFIX}{name}"}
        named.setdefault(paths.word_of(steps), known)
        single = [row.get("get"), *([above.get("post"), *map(row.get, _CHANGES)] if is_made else [])]
        answers |= {id(one): known for one in single if one is not None}
        answers |= {id(above["get"]): {"type": "array", "items": known}} if "get" in above else {}
    for steps, operations in at.items():
        if len(steps) > 2 and steps[-2] == "{}" and steps[-1] in named and "get" in operations:
            answers.setdefault(id(operations["get"]), {"type": "array", "items": named[steps[-1]]})
    told = tuple(_answering(shapes, one, answers.get(id(one))) for one in document.operations)
    return replace(document, schemas=schemas, operations=told) if answers else document


def with_values_of_choices(document: Document) -> Document:
    """The document, in which the choices of a `oneOf` with a discriminator have the values of their own, and a schema
    that others inherit from is a choice of these."""
    inherited = with_heirs(document.schemas, is_named=True)
    view = View(inherited, None)

    def of(schema: Any) -> Any:
        return view.told_apart(schema) if isinstance(schema, dict) else schema

    def within(content: Mapping[str, MediaType]) -> dict[str, MediaType]:
        return {kind: replace(one, schema=of(one.schema)) for kind, one in content.items()}

    operations = tuple(
        replace(
            operation,
            body=operation.body and replace(operation.body, content=within(operation.body.content)),
            responses={key: replace(one, content=within(one.content)) for key, one in operation.responses.items()},
        )
        for operation in document.operations
    )
    schemas = {name: of(schema) for name, schema in inherited.items()}
    return replace(document, schemas=schemas, operations=operations)


def _is_open(shapes: Shapes, operation: Operation) -> bool:
    """Whether a success may have a body, and the document does not tell which."""
    status = paths.success_of(operation)
    answer = operation.responses.get(status)
    if answer is None or status in _EMPTY:
        return False
    schema = paths.answer_schema(operation, status)
    if schema is None:
        return not answer.content
    shape = shapes.of(schema)
    return not (shape.typed or shape.properties or shape.choices or shape.enum or shape.impossible)


def _known(shapes: Shapes, row: Mapping[str, Operation], above: Mapping[str, Operation]) -> Any:
    """The row, as one of the two reads describes it; `None` where neither does."""
    for operation, is_list in ((row.get("get"), False), (above.get("get"), True)):
        schema = None if operation is None else paths.answer_schema(operation)
        if operation is not None and schema is not None:
            found = paths.envelope_of(shapes, schema, paths.word_of(paths.steps_of(operation.path)), lists=is_list)
            if found is not None and found.is_list == is_list:
                return found.item
    return None


def _made(shapes: Shapes, row: Mapping[str, Operation], above: Mapping[str, Operation]) -> Any:
    """A row of what may be sent, with the key that the path names it by; `None` where nothing is sent."""
    properties: dict[str, Any] = {}
    for sent in _sent([above.get("post"), *(row.get(one) for one in _CHANGES)]):
        if paths.is_object(shapes, sent):
            for name, schema in shapes.of(sent).properties.items():
                properties.setdefault(name, schema)
    if not properties:
        return None
    operation = next(iter(row.values()))
    name = paths.names_of(operation.path)[-1]
    words, own = words_of(name), words_of(singular_of(paths.word_of(paths.steps_of(operation.path))))
    is_id = bool(set(IDENTIFIERS) & set(words)) or words == own
    if not is_id and not {"put", "patch", "delete"} & row.keys():
        return None  # `/lists/{filter}` names some rows, and not one
    key = "id" if is_id else next((one for one in properties if words_of(one) == words), name)
    schema = next(one.schema for one in operation.parameters if (one.location, one.name) == ("path", name))
    return {"type": "object", "properties": {key: schema, **properties}, "required": [key]}


def _sent(operations: Iterable[Operation | None]) -> Iterator[Any]:
    for operation in operations:
        if operation is not None and (schema := paths.body_schema(operation)) is not None:
            yield schema


def _answering(shapes: Shapes, operation: Operation, schema: Any) -> Operation:
    if schema is None or not _is_open(shapes, operation):
        return operation
    status = paths.success_of(operation)
    answer = replace(operation.responses[status], content={"application/json": MediaType(schema)})
    return replace(operation, responses={**operation.responses, status: answer})
