"""An API twin over HTTP, for clients of the API itself.

    app = http_app(twin)              # any ASGI server runs it; `serve` does so on the loopback address

All requests meet in one world: a fork of the twin as it is now.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from http.cookies import SimpleCookie
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from python_multipart import parse_form
from python_multipart.multipart import parse_options_header
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_bridge.openapi.document import MediaType, Parameter
from mcp_bridge.openapi.references import strict_json
from mcp_bridge.openapi.tools import OperationTool

from .access import brought
from .backend.requests import Problem, Reply
from .inference.paths import names_of
from .maker import NOTHING
from .shapes import Shapes

if TYPE_CHECKING:
    from .api_twin import ApiTwin

_BAD_REQUEST = (400, 422)
_UNPROCESSABLE = (422, 400)


class HttpFace:
    """Requests over HTTP as calls of one twin's operations."""

    def __init__(self, twin: ApiTwin) -> None:
        self._twin = twin
        self._shapes: Shapes = twin.blueprint.shapes
        servers = twin.blueprint.document.servers
        self._base = urlsplit(servers[0]).path.rstrip("/") if servers else ""
        routes = [(re.split(r"\{[^{}]+\}", tool.operation.path), tool) for tool in twin.blueprint.tools.values()]
        # `/books/latest` before `/books/{id}`.
        routes.sort(key=lambda one: -sum(map(len, one[0])))
        self._routes = [(re.compile("([^/]+)".join(map(re.escape, parts))), tool) for parts, tool in routes]

    def answer(self, method: str, path: str, query: str, headers: Mapping[str, str], content: bytes) -> Reply:
        """The reply to one request. `path` is percent-encoded, as sent."""
        path = path[len(self._base) :] if self._base and path.startswith(f"{self._base}/") else path
        found = [(tool, match) for pattern, tool in self._routes if (match := pattern.fullmatch(path))]
        for tool, match in found:
            if tool.operation.method == method.lower():
                return self._call(tool, [unquote(value) for value in match.groups()], query, headers, content)
        if found:
            methods = ", ".join(tool.operation.method.upper() for tool, _ in found)
            return Reply(405, {"message": f"{method} is not among {methods}"})
        return Reply(404, {"message": f"{self._twin.name} has no path {path}"})

    def _call(
        self, tool: OperationTool, path: list[str], query: str, headers: Mapping[str, str], content: bytes
    ) -> Reply:
        pairs = parse_qsl(query, keep_blank_values=True)
        credentials = brought(self._twin.blueprint.document, headers, pairs)
        in_path = dict(zip(names_of(tool.operation.path), path, strict=True))
        arguments: dict[str, Any] = {}
        for argument, parameter in tool.plan.parameters.items():
            value = self._value(parameter, in_path, pairs, headers)
            if value is not NOTHING:
                arguments[argument] = value
        try:
            arguments |= self._body(tool, headers, content)
        except ValueError as problem:
            return self._twin.refuse(tool.operation, Problem(_BAD_REQUEST, f"The body cannot be read: {problem}"))
        invalid = _UNPROCESSABLE if content else _BAD_REQUEST
        return self._twin.perform_tool(tool, arguments, invalid, credentials)

    def _value(
        self, parameter: Parameter, path: Mapping[str, str], query: list[tuple[str, str]], headers: Mapping[str, str]
    ) -> Any:
        shape = self._shapes.of(parameter.schema)
        if parameter.location == "path":
            return typed(self._shapes, parameter.schema, path[parameter.name])
        if parameter.location == "header":
            given = headers.get(parameter.name.lower())
            return NOTHING if given is None else typed(self._shapes, parameter.schema, given)
        if parameter.location == "cookie":
            kept = SimpleCookie(headers.get("cookie", "")).get(parameter.name)
            return NOTHING if kept is None else typed(self._shapes, parameter.schema, kept.value)
        if shape.kind == "object" and parameter.content_type is None:
            fields = {key: value for key, value in query if key.startswith(f"{parameter.name}[")}
            found = {key[len(parameter.name) + 1 : -1]: value for key, value in fields.items()}
            if not found and parameter.explode:  # `color=red&size=3`
                found = {key: value for key, value in query if key in shape.properties}
            elif not found:  # `filter=color,red,size,3`
                parts = next((value.split(",") for key, value in query if key == parameter.name), [])
                found = dict(zip(parts[::2], parts[1::2], strict=False))
            return {
                key: typed(self._shapes, shape.properties.get(key, True), value) for key, value in found.items()
            } or NOTHING
        values = [value for key, value in query if key in (parameter.name, f"{parameter.name}[]")]
        if not values:
            return NOTHING
        if shape.kind != "array":
            return typed(self._shapes, parameter.schema, values[-1])
        if not parameter.explode:
            separator = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(parameter.style, ",")
            values = [one for value in values for one in value.split(separator)]
        return [typed(self._shapes, shape.items, value) for value in values]

    def _body(self, tool: OperationTool, headers: Mapping[str, str], content: bytes) -> dict[str, Any]:
        """The arguments that the body holds. Raises `ValueError`."""
        plan = tool.plan.body
        if plan is None or not content:
            return {}
        if plan.kind == "raw":
            return {str(plan.whole): content.decode()}
        value = body_value(self._shapes, tool, headers.get("content-type", "application/json"), content)
        if plan.whole is not None:
            return {plan.whole: value}
        if not isinstance(value, dict):
            raise ValueError("it must be a JSON object")
        names: dict[str, str] = {name: argument for argument, name in plan.properties.items()}
        # What the body does not know would take the place of an argument of that name: the row that the path names.
        taken = tool.plan.parameters.keys() | plan.properties.keys()
        arguments = {**{name: f"{name} in the body" for name in value if name in taken}, **names}
        return {arguments.get(name, str(name)): one for name, one in value.items()}


def http_app(twin: ApiTwin) -> Starlette:
    """An ASGI application over a fork of `twin`."""
    face = HttpFace(twin.fork())

    async def answer(request: Request) -> Response:
        content = await request.body()
        path = request.scope.get("raw_path", request.url.path.encode()).decode().partition("?")[0]
        reply = face.answer(request.method, path, request.url.query, dict(request.headers), content)
        if reply.body is not NOTHING:
            text = json.dumps(reply.body, ensure_ascii=False, separators=(",", ":"))
            return Response(text, reply.status, media_type="application/json")
        return Response(reply.text or None, reply.status, media_type=reply.kind if reply.text else None)

    methods = ["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS"]
    return Starlette(routes=[Route("/{path:path}", answer, methods=methods)])


async def serve(twin: ApiTwin, *, port: int, host: str = "127.0.0.1") -> None:
    """Serve the API itself at `http://HOST:PORT` until cancelled. Raises `SourceError` where the port is taken."""
    from mcp_bridge.publishing.listener import serve_app

    await serve_app(http_app(twin), port=port, host=host)


FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"

Field = tuple[str, str]
"""Name and text, as it was sent."""


def body_value(shapes: Shapes, tool: OperationTool, content_type: str, content: bytes) -> Any:
    """The value of a body: JSON, or an object of the fields of a form. Raises `ValueError`."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORM:
        pairs = parse_qsl(content.decode(), keep_blank_values=True)
        return _object(shapes, _media(tool, kind), pairs)
    if kind == _MULTIPART:
        return _object(shapes, _media(tool, kind), _parts(content_type, content))
    return _loaded(content)


def typed(shapes: Shapes, schema: Any, text: str) -> Any:
    """A text as the type that a schema wants; as it is where it is none of it."""
    shape = shapes.of(schema)
    if "string" in shape.kinds and shape.typed:
        return text
    if shape.kind == "array":
        return [typed(shapes, shape.items, one) for one in text.split(",")]
    try:
        found = _loaded(text)
    except ValueError:
        return text
    return (
        text
        if shape.choices and not shapes.validity.holds(schema, found) and shapes.validity.holds(schema, text)
        else found
    )


def _media(tool: OperationTool, kind: str) -> MediaType | None:
    """The document's media type for bodies of this kind, or else the one that the tool sends."""
    plan, body = tool.plan.body, tool.operation.body
    if body is None or plan is None:
        return None
    named = {name.partition(";")[0].strip().lower(): media for name, media in body.content.items()}
    return named.get(kind) or body.content.get(plan.media_type)


def _object(shapes: Shapes, media: MediaType | None, fields: Sequence[Field]) -> dict[str, Any]:
    properties = shapes.of(media.schema).properties if media is not None else {}
    found: dict[str, Any] = {}
    for name, text in fields:
        schema = properties.get(name, properties.get(name.removesuffix("[]"), True))
        shape = shapes.of(schema)
        if shape.kind == "array":
            # A part of its own for each item, or one with all of them as JSON.
            whole = _as_json(text)
            items = whole if isinstance(whole, list) else [typed(shapes, shape.items, text)]
            found.setdefault(name.removesuffix("[]"), []).extend(items)
        else:
            found[name] = _unquoted(shapes, schema, text, media, name)
    return found


def _unquoted(shapes: Shapes, schema: Any, text: str, media: MediaType | None, name: str) -> Any:
    encoding = media.encoding.get(name) if media is not None else None
    if encoding is not None and "json" in (encoding.content_type or ""):
        return _loaded(text)
    return typed(shapes, schema, text)


def _parts(content_type: str, content: bytes) -> list[Field]:
    """The parts of a multipart body. Files are texts: as they are where they are UTF-8, as `data:` URLs otherwise."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not boundary or not content.rstrip(b"\r\n").endswith(b"--" + boundary + b"--"):
        raise ValueError("the multipart body does not end with its boundary")
    found: list[Field] = []

    def on_field(field: Any) -> None:
        found.append((_name(field.field_name), (field.value or b"").decode()))

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        found.append((_name(file.field_name), _file_text(file.file_object.read())))
        file.close()

    parse_form({"Content-Type": content_type.encode()}, BytesIO(content), on_field, on_file)
    return found


def _name(name: bytes | None) -> str:
    if not name:
        raise ValueError("a part of the multipart body has no name")
    return name.decode()


def _file_text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"data:application/octet-stream;base64,{base64.b64encode(content).decode()}"


def _as_json(text: str) -> Any:
    try:
        return _loaded(text)
    except ValueError:
        return None


def _loaded(text: str | bytes) -> Any:
    """JSON. Raises `ValueError`."""
    try:
        return strict_json(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
