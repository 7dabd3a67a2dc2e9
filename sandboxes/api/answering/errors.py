"""The bodies of refusals, in the shape that the document gives them."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING, Any

from ..inference.paths import json_schema
from ..shapes import Shape, Shapes
from ..values.making import NOTHING, Maker, kind_fits, scalar_fits
from ..values.realistic import Realistic, words_of
from .requests import Problem, Reply, status_for

if TYPE_CHECKING:
    from mcp_bridge.openapi.document import Document, Operation
_MESSAGES = frozenset(
    ("message", "detail", "details", "description", "msg", "reason", "error", "errors", "title", "text")
)
_MOST_DEPTH = 4

_STATUSES = frozenset(HTTPStatus)


class Refusals:
    """Answers that refuse. Where an operation says nothing of a status, the document's usual error is used."""

    def __init__(self, document: Document, shapes: Shapes) -> None:
        self._shapes = shapes
        self._usual = _usual_error(document)

    def reply(self, operation: Operation, problem: Problem, now: datetime) -> Reply:
        """The refusal of `operation` for `problem`."""
        from mcp_bridge.openapi.tools import answer_of

        status, declared = status_for(operation, problem.statuses)
        answer = answer_of(operation, status) if declared else None
        schema = json_schema(answer.content) if answer is not None else self._usual
        message = str(problem)
        if answer is not None and schema is None:
            kind = next(iter(answer.content), "")
            return Reply(
                status,
                text=message if kind.startswith("text/") else "",
                kind=kind or "text/plain",
            )
        if schema is None:
            return Reply(status, {"message": message})
        maker = Maker(self._shapes, Realistic(Random(message), now), rich=False)
        body = self._body(self._shapes.of(schema), "error", status, message, maker, 0)
        return Reply(status, body) if body is not NOTHING else Reply(status)

    def _body(
        self,
        shape: Shape,
        name: str,
        status: int,
        message: str,
        maker: Maker,
        depth: int,
    ) -> Any:
        for group in shape.choices[:1]:
            branch = next((one for one in group if self._shapes.of(one).kinds != {"null"}), True)
            flat = Shape(
                shape.name,
                shape.kinds,
                shape.typed,
                shape.properties,
                shape.required,
                shape.enum,
                [],
                shape.says,
            )
            return self._body(
                self._shapes.with_branch(flat, branch),
                name,
                status,
                message,
                maker,
                depth + 1,
            )
        if shape.kind == "object" and depth < _MOST_DEPTH:
            return self._object(shape, status, message, maker, depth)
        if shape.kind == "array" and depth < _MOST_DEPTH:
            item = self._body(self._shapes.of(shape.items), name, status, message, maker, depth + 1)
            return [] if item is NOTHING else [item]
        said = _said(name, shape, status, message)
        return maker.make_shape(shape, name) if said is NOTHING else said

    def _object(self, shape: Shape, status: int, message: str, maker: Maker, depth: int) -> Any:
        body: dict[str, Any] = {}
        for key, schema in shape.properties.items():
            inner = self._shapes.of(schema)
            is_said = bool(_MESSAGES & set(words_of(key))) or _is_code(key)
            if key not in shape.required and not is_said:
                continue
            made = self._body(inner, key, status, message, maker, depth + 1)
            if made is not NOTHING:
                body[key] = made
        for key in sorted(shape.required - set(body)):
            body[key] = message
        if not shape.properties:
            body = {"message": message}
        return body


def _said(name: str, shape: Shape, status: int, message: str) -> Any:
    """What a property of an error says: the message, or the status as a number or a word."""
    phrase = HTTPStatus(status).phrase if status in _STATUSES else str(status)
    slug = "_".join(words_of(phrase))
    candidates: list[Any] = [message]
    if _is_code(name):
        candidates = [status, slug, slug.upper(), phrase.replace(" ", ""), str(status)]
    elif words_of(name)[-1:] == ["title"]:
        candidates = [phrase, message]
    if shape.enum is not None:
        likely = [one for one in shape.enum if isinstance(one, str) and words_of(one) == words_of(phrase)]
        return likely[0] if likely else NOTHING
    is_said = _is_code(name) or bool(_MESSAGES & set(words_of(name)))
    if shape.says.get("format") not in {None, "int32", "int64"} or not is_said:
        return NOTHING
    fitting = (one for one in candidates if kind_fits(shape, one) and scalar_fits(shape, one))
    return next(fitting, NOTHING)


def _is_code(name: str) -> bool:
    return words_of(name)[-1:] in (["code"], ["status"]) or words_of(name) in (
        ["status", "code"],
        ["type"],
        ["id"],
    )


def _usual_error(document: Document) -> Any:
    """The schema that most refusals of the document have."""
    found: Counter[str] = Counter()
    schemas: dict[str, Any] = {}
    for operation in document.operations:
        for status, answer in operation.responses.items():
            schema = json_schema(answer.content) if status[:1] == "4" or status == "default" else None
            if isinstance(schema, dict) and schema:
                text = json.dumps(schema, sort_keys=True, default=str)
                found[text] += 1
                schemas.setdefault(text, schema)
    return schemas[found.most_common(1)[0][0]] if found else None
