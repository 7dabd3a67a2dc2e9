"""A request to a simulated API, its caller, the reply, and refusals in the shape that the document gives them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Any

from mcp_bridge.errors import SourceError
from mcp_bridge.openapi.document import Document, Operation, SecurityScheme
from mcp_bridge.openapi.responses import reason_phrase
from mcp_bridge.openapi.tools import answer_of
from mcp_bridge.safe_text import did_you_mean

from .maker import NOTHING, Maker, kind_fits, scalar_fits
from .model import VALUE, Plan
from .paths import json_schema
from .realistic import words_of
from .shapes import Shape, Shapes


@dataclass(frozen=True)
class Request:
    """One request. `path`: the path's values in order, by the names that the operation gives them."""

    plan: Plan
    path: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = NOTHING

    @property
    def sent(self) -> dict[str, Any]:
        """The row that the body holds, or the query of an operation that changes rows and has no body.

        Raises `Problem` where a list is sent in the place of a row.
        """
        is_row = self.plan.role in {"create", "update", "replace"}
        if self.plan.operation.body is None and is_row:
            return dict(self.query)
        found = self._inside()
        if isinstance(found, list) and is_row:
            raise Problem(INVALID, "body: a list is not valid here; send an object", ("body",))
        found = found if isinstance(found, dict) else {}
        return {self.plan.field: found[VALUE]} if self.plan.field is not None and VALUE in found else found

    def _inside(self) -> Any:
        found = self.body
        for name in self.plan.body_path:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        return found

    def each(self, key: str) -> list[Request]:
        """A request for each row that is sent, which may be given by its `key` alone."""
        if not self.plan.many:
            return [self]
        plan, rows = replace(self.plan, body_path=(), many=False), self._inside()
        rows = rows if isinstance(rows, list) else []
        return [replace(self, plan=plan, body=one if isinstance(one, dict) else {key: one}) for one in rows]


@dataclass(frozen=True)
class Reply:
    """An answer. `body`: JSON, or `NOTHING`. `text`: a body that is not JSON, with its media type `kind`."""

    status: int
    body: Any = NOTHING
    text: str = ""
    kind: str = "application/json"


class Problem(Exception):
    """What the API refuses. `statuses`: the fitting ones, the best first; the document's choice decides. `place`: what
    of the request is refused, such as `("query", "limit")` or `("body", "lines", 0, "price")`."""

    def __init__(self, statuses: tuple[int, ...], message: str, place: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.statuses = statuses
        self.place = place


MISSING = (404, 410)
INVALID = (422, 400)
TAKEN = (409, 422, 400)
IN_USE = (409, 422, 400, 403)


def status_for(operation: Operation, wanted: tuple[int, ...]) -> tuple[int, bool]:
    """The status to refuse with, and whether the document has it for the operation."""
    declared = operation.responses
    for status in wanted:
        if str(status) in declared:
            return status, True
    for status in wanted:
        if f"{status // 100}XX" in declared or f"{status // 100}xx" in declared:
            return status, True
    return wanted[0], "default" in declared


def status_of(written: str) -> int:
    """The status of success that a document writes as `200`, `2XX` or `default`."""
    return int(written) if written.isdigit() else 200


_MESSAGES = frozenset(
    ("message", "detail", "details", "description", "msg", "reason", "error", "errors", "title", "text")
)
_PLACE = "loc"
_MOST_DEPTH = 4


class Refusals:
    """Answers that refuse. Where an operation has no such status, the document's usual error is used."""

    def __init__(self, document: Document, shapes: Shapes) -> None:
        self._shapes = shapes
        self._usual = _usual_error(document)
        shape = shapes.of(self._usual) if self._usual is not None else None
        # FastAPI declares its 422 alone. All else that it refuses has a text there.
        self._only_validates = shape is not None and _has_place(shapes, shape)

    def reply(self, operation: Operation, problem: Problem, now: datetime) -> Reply:
        """The refusal of `operation` for `problem`."""
        status, declared = status_for(operation, problem.statuses)
        answer = answer_of(operation, status) if declared else None
        schema = json_schema(answer.content) if answer is not None else None
        message = str(problem)
        if schema is None and answer is not None and answer.content:
            kind = next((one for one in answer.content if one.startswith("text/")), "text/plain")
            return Reply(status, text=message, kind=kind)
        if schema is None and not self._only_validates:
            schema = self._usual
        if schema is None:
            return Reply(status, {"detail" if self._only_validates else "message": message})
        maker = Maker(self._shapes, Random(message), now, rich=False)
        shape = self._shapes.of(schema)
        body = self._body(shape, "error", status, problem, maker, 0)
        if isinstance(body, dict) and not _tells(body, message):
            told = {**body, "message": message}
            body = told if "message" not in body and self._shapes.validity.holds(schema, told) else body
        return Reply(status, body) if body is not NOTHING else Reply(status)

    def _body(self, shape: Shape, name: str, status: int, problem: Problem, maker: Maker, depth: int) -> Any:
        for group in shape.choices[:1]:
            real = [one for one in group if self._shapes.of(one).kinds != {"null"}]
            branch = next((one for one in real if self._is_of(self._shapes.of(one), status)), real[0] if real else True)
            merged = self._shapes.with_branch(replace(shape, choices=[]), branch)
            return self._body(merged, name, status, problem, maker, depth + 1)
        if shape.kind == "object" and depth < _MOST_DEPTH:
            body = self._object(shape, status, problem, maker, depth)
            if _is_said(name) and not _tells(body, str(problem)):
                body |= self._in_own_words(shape, str(problem))
            return body
        if shape.kind == "array" and name == _PLACE:
            return list(problem.place or ("body",))
        if shape.kind == "array" and depth < _MOST_DEPTH:
            item = self._body(self._shapes.of(shape.items), name, status, problem, maker, depth + 1)
            return [] if item is NOTHING else [item]
        said = _said(name, shape, status, str(problem))
        return maker.make_shape(shape, name) if said is NOTHING else said

    def _is_of(self, shape: Shape, status: int) -> bool:
        """Whether an error may be one with `status`, which it names."""
        named = (self._shapes.of(one) for name, one in shape.properties.items() if _is_code(name))
        return any(one.enum is not None and status in one.enum for one in named)

    def _in_own_words(self, shape: Shape, message: str) -> dict[str, str]:
        """The message in the first property that takes any text, of an error whose own names tell of none."""
        for name, schema in shape.properties.items():
            inner = self._shapes.of(schema)
            free = inner.enum is None and not {"format", "pattern"} & inner.says.keys() and not _is_code(name)
            if free and inner.typed and kind_fits(inner, message) and scalar_fits(inner, message):
                return {name: message}
        takes_it = "message" not in shape.properties and kind_fits(self._shapes.of(shape.open), message)
        return {"message": message} if takes_it and shape.open is not False else {}

    def _object(self, shape: Shape, status: int, problem: Problem, maker: Maker, depth: int) -> Any:
        body: dict[str, Any] = {}
        for key, schema in shape.properties.items():
            inner = self._shapes.of(schema)
            is_said = _is_said(key) or _is_code(key)
            if key not in shape.required and not is_said:
                continue
            made = self._body(inner, key, status, problem, maker, depth + 1)
            if made is not NOTHING:
                body[key] = made
        for key in sorted(shape.required - set(body)):
            body[key] = str(problem)
        if shape.properties or shape.open is False:
            return body
        return {"message": self._body(self._shapes.of(shape.open), "message", status, problem, maker, depth + 1)}


def _tells(body: Any, message: str) -> bool:
    inside = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return body == message or any(_tells(one, message) for one in inside)


def _has_place(shapes: Shapes, shape: Shape) -> bool:
    """Whether an error lists problems with the place of each, as FastAPI's `{"detail": [{"loc", "msg", "type"}]}`."""
    lists = [inner for one in shape.properties.values() if (inner := shapes.of(one)).kind == "array"]
    return any(_PLACE in shapes.of(inner.items).properties for inner in lists)


def _said(name: str, shape: Shape, status: int, message: str) -> Any:
    """What a property of an error says: the message, or the status as a number or a word."""
    phrase = reason_phrase(status) or str(status)
    slug = "_".join(words_of(phrase))
    candidates: list[Any] = [message]
    if _is_code(name):
        candidates = [status, slug, slug.upper(), phrase.replace(" ", ""), str(status)]
    elif words_of(name)[-1:] == ["title"]:
        candidates = [phrase, message]
    if shape.enum is not None:
        likely = [one for one in shape.enum if isinstance(one, str) and words_of(one) == words_of(phrase)]
        return likely[0] if likely else NOTHING
    is_said = _is_code(name) or _is_said(name)
    if shape.says.get("format") not in {None, "int32", "int64"} or not is_said:
        return NOTHING
    fitting = (one for one in candidates if kind_fits(shape, one) and scalar_fits(shape, one))
    return next(fitting, NOTHING)


def _is_said(name: str) -> bool:
    """Whether an error's property by this name holds what there is to say."""
    return bool(_MESSAGES & set(words_of(name)))


def _is_code(name: str) -> bool:
    return words_of(name)[-1:] in (["code"], ["status"]) or words_of(name) in (["status", "code"], ["type"], ["id"])


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


# ---------------------------------------------------------------------------------------------------------------------
# The caller: the security schemes it has credentials for, with their scopes

SIGNED_OUT = "signed_out"
"""The scenario in which the caller has no credential."""

_UNKNOWN_CALLER = (401, 403)
_NOT_ALLOWED = (403, 401)

Held = Mapping[str, frozenset[str] | None]
"""Scheme -> its scopes; all where None."""


def asks_for_credentials(document: Document) -> bool:
    """Whether any operation refuses callers without a credential."""
    return any(operation.security and all(operation.security) for operation in document.operations)


def held_credentials(
    document: Document, given: Mapping[str, Collection[str] | None] | None, *, name: str
) -> dict[str, frozenset[str] | None]:
    """The caller's credentials, as the user gives them; all where None. Raises `SourceError` for another scheme."""
    known = document.security_schemes
    if given is None:
        return dict.fromkeys(known)
    for scheme in given:
        if scheme not in known:
            raise SourceError(
                f"{name}: credentials names {scheme!r}; the security schemes of the document are "
                f"{', '.join(known) or 'none'}.{did_you_mean(scheme, known)}"
            )
    if any(isinstance(scopes, str) for scopes in given.values()):
        raise SourceError(f"{name}: the scopes of a credential must be a list of strings, or None for all of them")
    return {scheme: None if scopes is None else frozenset(scopes) for scheme, scopes in given.items()}


def require_access(operation: Operation, held: Held) -> None:
    """Raises `Problem` where the caller may not do that: 401 without a credential, 403 without its scopes."""
    lacking: list[str] | None = None
    for alternative in operation.security:
        if any(scheme not in held for scheme in alternative):
            continue
        missing = [
            scope
            for scheme, scopes in alternative.items()
            if (own := held[scheme]) is not None
            for scope in scopes
            if scope not in own
        ]
        if not missing:
            return
        lacking = lacking or missing
    if lacking is not None:
        raise Problem(_NOT_ALLOWED, f"The credential lacks the scope {', '.join(lacking)}.")
    if operation.security:
        raise Problem(_UNKNOWN_CALLER, f"This needs a credential: {needs(operation)}.")


def needs(operation: Operation) -> str:
    """The credentials that an operation takes, in words; empty where it takes anybody."""
    if not operation.security or not all(operation.security):
        return ""
    return " or ".join(" with ".join(alternative) for alternative in operation.security)


def brought(
    document: Document, headers: Mapping[str, str], query: Collection[tuple[str, str]]
) -> dict[str, frozenset[str] | None]:
    """The schemes for which a request over HTTP brings something. A twin knows no secrets: any value will do."""
    named = dict(query)
    return {name: None for name, scheme in document.security_schemes.items() if _is_brought(scheme, headers, named)}


def _is_brought(scheme: SecurityScheme, headers: Mapping[str, str], query: Mapping[str, Any]) -> bool:
    word, _, value = headers.get("authorization", "").partition(" ")
    if scheme.kind == "apiKey":
        cookies = dict(one.strip().partition("=")[::2] for one in headers.get("cookie", "").split(";"))
        places = {"header": headers.get(scheme.parameter.lower()), "query": query.get(scheme.parameter)}
        return bool(places.get(scheme.location, cookies.get(scheme.parameter)))
    if scheme.kind == "http":
        return word.lower() == scheme.scheme and bool(value)
    return scheme.kind in ("oauth2", "openIdConnect") and word.lower() == "bearer" and bool(value)
