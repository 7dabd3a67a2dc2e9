"""An API twin over HTTP, for clients of the API itself.

    app = http_app(twin)              # any ASGI server runs it; `serve` does so on the loopback address

All requests meet in one world: a fork of the twin as it is now.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from python_multipart import parse_form
from python_multipart.multipart import parse_options_header
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_bridge.openapi.document import MediaType, Parameter
from mcp_bridge.openapi.requests import form_parameter, has_style
from mcp_bridge.openapi.tools import OperationTool
from mcp_bridge.safe_text import strict_json

from .maker import NOTHING
from .paths import names_of
from .requests import Problem, Reply, brought
from .shapes import Shapes

if TYPE_CHECKING:
    from .api_twin import ApiTwin

_IN_PATHS = "/:@!$&'()*+,;=%"
_BAD_REQUEST = (400, 422)
_UNPROCESSABLE = (422, 400)


class HttpFace:
    """Requests over HTTP as calls of one twin's operations."""

    def __init__(self, twin: ApiTwin) -> None:
        self._twin = twin
        self._shapes: Shapes = twin.blueprint.shapes
        servers = twin.blueprint.document.servers
        self._base = quote(urlsplit(servers[0]).path.rstrip("/"), safe=_IN_PATHS) if servers else ""
        routes = [(re.split(r"\{[^{}]+\}", tool.operation.path), tool) for tool in twin.blueprint.tools.values()]
        # `/books/latest` before `/books/{id}`.
        routes.sort(key=lambda one: -sum(map(len, one[0])))
        # Clients encode what may not stand in a path.
        self._routes = [
            (re.compile("([^/]+)".join(re.escape(quote(part, safe=_IN_PATHS)) for part in parts)), tool)
            for parts, tool in routes
        ]

    def answer(self, method: str, path: str, query: str, headers: Mapping[str, str], content: bytes) -> Reply:
        """The reply to one request. `path` is percent-encoded, as sent."""
        path = path[len(self._base) :] if self._base and path.startswith(f"{self._base}/") else path
        found = [(tool, match) for pattern, tool in self._routes if (match := pattern.fullmatch(path))]
        for tool, match in found:
            if tool.operation.method == method.lower():
                return self._call(tool, list(match.groups()), query, headers, content)
        if found:
            methods = ", ".join(tool.operation.method.upper() for tool, _ in found)
            return Reply(405, {"message": f"{method} is not among {methods}"})
        return Reply(404, {"message": f"{self._twin.name} has no path {path}"})

    def _call(
        self, tool: OperationTool, path: list[str], query: str, headers: Mapping[str, str], content: bytes
    ) -> Reply:
        pairs = _fields(query)
        credentials = brought(self._twin.blueprint.document, headers, pairs)
        in_path = dict(zip(names_of(tool.operation.path), path, strict=True))
        arguments: dict[str, Any] = {}
        try:
            for argument, parameter in tool.plan.parameters.items():
                value = self._value(parameter, in_path, pairs, headers)
                if value is not NOTHING:
                    arguments[argument] = value
            arguments |= self._body(tool, headers, content)
        except ValueError as problem:
            return self._twin.refuse(tool.operation, Problem(_BAD_REQUEST, f"The request cannot be read: {problem}"))
        invalid = _UNPROCESSABLE if content else _BAD_REQUEST
        return self._twin.perform_tool(tool, arguments, invalid, credentials)

    def _value(
        self, parameter: Parameter, path: Mapping[str, str], query: list[Field], headers: Mapping[str, str]
    ) -> Any:
        """The value of a parameter, read as `mcp_bridge.openapi.requests` writes it."""
        name, schema, exploded, between = parameter.name, parameter.schema, parameter.explode, ","
        read: Read = unquote
        if parameter.location == "query":
            return value_among(self._shapes, parameter, query, unquote_plus)
        if parameter.location == "path":
            text: str | None = path[name]
        elif parameter.location == "header":
            text, read = headers.get(name.lower()), str.strip
        else:
            text, exploded = dict(_fields(headers.get("cookie", "").replace("; ", ";"), ";")).get(name), False
        if text is None:
            return NOTHING
        if parameter.content_type is not None:
            return typed(self._shapes, schema, read(text))
        if parameter.style == "matrix":  # `;a=1;b=2`
            return value_among(self._shapes, parameter, _fields(text, ";"), unquote)
        if parameter.style == "label":
            text, between = text.removeprefix("."), "." if exploded else ","
        return _split(self._shapes, schema, text, between, read, exploded=exploded)

    def _body(self, tool: OperationTool, headers: Mapping[str, str], content: bytes) -> dict[str, Any]:
        """The arguments that the body holds. Raises `ValueError`."""
        plan = tool.plan.body
        if plan is None or not content:
            return {}
        if plan.kind == "raw":
            return {str(plan.whole): _file_text(content)}
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
        # Some clients send letters as they stand, in any encoding.
        raw = request.scope.get("raw_path") or request.scope["path"].encode()
        path = quote(raw.partition(b"?")[0], safe=_IN_PATHS)
        query = quote(request.scope["query_string"], safe=f"{_IN_PATHS}?[]|")
        reply = face.answer(request.method, path, query, dict(request.headers), content)
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

Read = Callable[[str], str]
"""Decodes a text."""

_STEP = re.compile(r"\[([^\[\]]*)\]")
_DEEPEST = 50


def body_value(shapes: Shapes, tool: OperationTool, content_type: str, content: bytes) -> Any:
    """The value of a body: JSON, or an object of the fields of a form. Raises `ValueError`."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORM:
        return _object(shapes, _media(tool, kind), _fields(content.decode()), unquote_plus)
    if kind == _MULTIPART:
        return _object(shapes, _media(tool, kind), _parts(content_type, content), str)
    return strict_json(content)


def _fields(text: str, between: str = "&") -> list[Field]:
    """The pairs of a query, a form or a cookie; only the names are decoded."""
    pairs = [one.partition("=") for one in text.split(between) if one]
    return [(unquote_plus(name), value) for name, _, value in pairs]


def value_among(shapes: Shapes, parameter: Parameter, fields: Sequence[Field], read: Read) -> Any:
    """The value of a parameter that has fields of its own; `NOTHING` where it has none. Raises `ValueError`."""
    name, shape = parameter.name, shapes.of(parameter.schema)
    inside = [(_STEP.findall(key[len(name) :]), read(text)) for key, text in fields if key.startswith(f"{name}[")]
    if inside:
        return _deep(shapes, parameter.schema, inside)
    texts = [text for key, text in fields if key == name]
    if not texts:
        spread = parameter.explode and parameter.content_type is None and shape.kind == "object"
        found = {key: text for key, text in fields if spread and key in shape.properties}  # `color=red&size=3`
        return {key: typed(shapes, shape.properties[key], read(text)) for key, text in found.items()} or NOTHING
    if parameter.content_type is not None:
        return typed(shapes, parameter.schema, read(texts[-1]))
    if not parameter.explode:
        between = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(parameter.style, ",")
        return _split(shapes, parameter.schema, texts[-1], between, read)
    if shape.kind == "array" or (len(texts) > 1 and "array" in shape.kinds):
        return [typed(shapes, shape.items, read(text)) for text in texts]
    return typed(shapes, parameter.schema, read(texts[-1]))


def _deep(shapes: Shapes, schema: Any, fields: Sequence[tuple[list[str], str]]) -> Any:
    """The value of `[lines][0][price]=5` and the like: the steps to each text below it."""
    shape = shapes.of(schema)
    texts = [text for steps, text in fields if not "".join(steps)]
    groups: dict[str, list[tuple[list[str], str]]] = {}
    for steps, text in fields:
        if len(steps) > _DEEPEST:
            raise ValueError("it is nested too deeply")
        if "".join(steps):
            groups.setdefault(steps[0], []).append((steps[1:], text))
    if shape.kind == "array":
        inner = [_deep(shapes, shape.items, group) for group in groups.values()]
        return [*(typed(shapes, shape.items, text) for text in texts), *inner]
    if groups:
        return {step: _deep(shapes, shape.properties.get(step, shape.open), group) for step, group in groups.items()}
    return typed(shapes, schema, texts[-1])


def _split(shapes: Shapes, schema: Any, text: str, between: str, read: Read, *, exploded: bool = False) -> Any:
    """The value of `a,b` as a list and of `x,1,y,2` or, `exploded`, of `x=1,y=2` as an object."""
    shape = shapes.of(schema)
    # Many clients encode the commas, too.
    parts = [read(one) for one in text.split(between)] if between in text else read(text).split(between)
    if shape.kind == "array":
        return [typed(shapes, shape.items, one) for one in parts]
    if shape.kind != "object":
        return typed(shapes, schema, read(text))
    pairs = [one.partition("=")[::2] for one in parts] if exploded else zip(parts[::2], parts[1::2], strict=False)
    return {key: typed(shapes, shape.properties.get(key, True), one) for key, one in pairs}


def typed(shapes: Shapes, schema: Any, text: str) -> Any:
    """A text as the type that a schema wants; as it is where it is none of it."""
    shape = shapes.of(schema)
    if "string" in shape.kinds and shape.typed:
        return text
    try:
        found = strict_json(text)
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


def _object(shapes: Shapes, media: MediaType | None, fields: Sequence[Field], read: Read) -> dict[str, Any]:
    """The fields of a form as an object. `read`: `str` for the parts of a multipart body."""
    properties = shapes.of(media.schema).properties if media is not None else {}
    found: dict[str, Any] = {}
    left = list(fields)
    for name, schema in properties.items():
        encoding = media.encoding.get(name) if media is not None else None
        own = [one for one in fields if one[0] == name or one[0].startswith(f"{name}[")]
        left = [one for one in left if one not in own]
        is_json = read is str and encoding is not None and "json" in (encoding.content_type or "")
        is_list = shapes.of(schema).kind == "array"
        # A part of its own for each item, or one with all of them as JSON.
        whole = _as_json(read(own[0][1])) if is_list and len(own) == 1 else None
        values = [strict_json(text) for _, text in own] if is_json else []
        parameter = form_parameter(name, encoding, schema)
        if isinstance(whole, list):
            value = whole
        elif values:
            value = values if is_list else values[-1]
        else:
            value = value_among(shapes, parameter, fields if has_style(encoding) else own, read)
        found |= {} if value is NOTHING else {name: value}
    return {name: typed(shapes, True, read(text)) for name, text in left} | found


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
        return strict_json(text)
    except ValueError:
        return None
