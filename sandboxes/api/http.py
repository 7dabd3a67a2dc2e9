"""An API twin over HTTP, for clients that speak to the API itself.

    app = http_app(twin)              # any ASGI server runs it; `serve` does so on the loopback address

All requests meet in one world: a fork of the twin as it stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from .access import brought
from .answering.requests import Problem, Reply
from .http_bodies import body_value, typed
from .inference.paths import names_of
from .shapes import Shapes
from .values.making import NOTHING

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

    from mcp_bridge.openapi.document import Parameter
    from mcp_bridge.openapi.tools import OperationTool

    from .api_twin import ApiTwin

_BAD_REQUEST = (400, 422)
_UNPROCESSABLE = (422, 400)


@dataclass(frozen=True)
class _Route:
    pattern: re.Pattern[str]
    method: str
    tool: OperationTool
    literals: int


class HttpFace:
    """Requests over HTTP as calls of one twin's operations."""

    def __init__(self, twin: ApiTwin) -> None:
        self._twin = twin
        self._shapes: Shapes = twin.blueprint.shapes
        servers = twin.blueprint.document.servers
        self._base = urlsplit(servers[0]).path.rstrip("/") if servers else ""
        routes = [_route(tool) for tool in twin.blueprint.tools.values()]
        # `/books/latest` before `/books/{id}`.
        self._routes = sorted(routes, key=lambda one: -one.literals)

    def answer(self, method: str, path: str, query: str, headers: Mapping[str, str], content: bytes) -> Reply:
        """The reply to one request. `path` is percent-encoded, as sent."""
        path = path[len(self._base) :] if self._base and path.startswith(f"{self._base}/") else path
        found = [(route, match) for route in self._routes if (match := route.pattern.fullmatch(path))]
        for route, match in found:
            if route.method == method.lower():
                values = [unquote(value) for value in match.groups()]
                return self._call(route.tool, values, query, headers, content)
        if found:
            return Reply(405, {"message": f"{method} is not among {', '.join(r.method.upper() for r, _ in found)}"})
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
            return self._twin.refuse(tool, Problem(_BAD_REQUEST, f"The body cannot be read: {problem}"))
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
            return NOTHING
        if shape.kind == "object":
            fields = {key: value for key, value in query if key.startswith(f"{parameter.name}[")}
            found = {key[len(parameter.name) + 1 : -1]: value for key, value in fields.items()}
            return found or NOTHING
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
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

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
    """Serve the API itself at `http://HOST:PORT` until cancelled. Raises `SetupError`, as `serving.serve_http` does."""
    from ..serving import serve_app

    await serve_app(http_app(twin), port=port, host=host)


def _route(tool: OperationTool) -> _Route:
    parts = re.split(r"\{[^{}]+\}", tool.operation.path)
    pattern = re.compile("([^/]+)".join(re.escape(part) for part in parts))
    return _Route(pattern, tool.operation.method, tool, sum(len(part) for part in parts))
