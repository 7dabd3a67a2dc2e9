"""Reads a document's parts into records, following references and saying where something is wrong."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urljoin

from ..access.redaction import public_url
from ..access.settings import Access
from ..errors import SourceError
from .document import (
    Document,
    Encoding,
    Location,
    MediaType,
    Method,
    Operation,
    Parameter,
    RequestBody,
    Response,
    Security,
    SecurityScheme,
)
from .loading import load_file, load_url, origin, plain
from .references import NotFollowed, Place, References
from .schemas import Schema, SchemaReader

logger = logging.getLogger(__name__)

_STYLES: dict[Location, tuple[str, ...]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles of each location; the first is the default."""

# By the standard these say nothing here: bodies, answers and security schemes have words of their own for them.
_IGNORED_HEADERS = {"accept", "content-type", "authorization"}


class DocumentReader:
    """Reads one document. `address`: the file or URL it came from."""

    def __init__(
        self, root: Any, address: Path | str | None, *, follow_urls: bool, fetch: Callable[[str], Any]
    ) -> None:
        """`fetch`: brings the value of a URL. Raises `SourceError` where `root` is no OpenAPI 3.0 or 3.1 document."""
        self._address = address
        self._references = References(root, address, follow_urls=follow_urls, fetch=fetch)
        self._place = self._references.root
        self._openapi = _checked_version(root, self._place)
        self._root: Mapping[str, Any] = root
        self._schemas = SchemaReader(self._references, is_30=self._openapi.startswith("3.0"))
        self._security = self._security_of(root, self._place)
        self._ids: dict[str, str] = {}
        self._left_out: dict[str, str] = {}

    def read(self) -> Document:
        components, where = self._object(self._root, "components", self._place)
        named, place = self._object(components, "schemas", where)
        for name, node in named.items():
            self._schemas.name(name, node, place / name)
        schemes, place = self._object(components, "securitySchemes", where)
        security_schemes = {name: self._scheme(name, node, place / name) for name, node in schemes.items()}
        operations = tuple(self._operations())
        self._schemas.finish()
        problems = [*self._left_out.values(), *self._schemas.broken.values()]
        if problems and not operations:
            raise SourceError("; ".join(dict.fromkeys(problems)))
        info, _ = self._object(self._root, "info", self._place)
        order = [*named, *(name for name in self._schemas.definitions if name not in named)]
        return Document(
            title=str(info.get("title", "")),
            version=str(info.get("version", "")),
            description=str(info.get("description") or ""),
            openapi=self._openapi,
            servers=self._servers(self._root, self._place),
            schemas={name: self._schemas.definitions[name] for name in order},
            operations=operations,
            security_schemes=security_schemes,
            address=public_url(self._address) if isinstance(self._address, str) else self._shown_path(),
            left_out=self._left_out,
            broken=self._schemas.broken,
        )

    def _shown_path(self) -> str | None:
        return None if self._address is None else str(self._address)

    def _object(self, node: Mapping[str, Any], key: str, place: Place) -> tuple[Mapping[str, Any], Place]:
        """The object under `key`, behind its reference; an empty one where there is none."""
        value, where = self._references.follow(node.get(key), place / key)
        if value is None:
            return {}, where
        if not isinstance(value, Mapping):
            raise SourceError(f"{where}: must be an object, not {value!r:.80}")
        return value, where

    def _objects(self, node: Mapping[str, Any], key: str, place: Place) -> Iterator[tuple[str, Any, Place]]:
        """The objects in the object under `key`, each behind its reference, with its name."""
        found, where = self._object(node, key, place)
        for name in found:
            if not name.startswith("x-"):
                yield name, *self._object(found, name, where)

    def _servers(self, node: Mapping[str, Any], place: Place) -> tuple[str, ...]:
        servers = node.get("servers") or []
        if not isinstance(servers, list):
            raise SourceError(f"{place / 'servers'}: must be a list of objects with a url")
        return tuple(self._server(one, place / "servers" / number) for number, one in enumerate(servers))

    def _server(self, server: Any, place: Place) -> str:
        if not isinstance(server, Mapping) or not isinstance(server.get("url"), str):
            raise SourceError(f"{place}: a server must be an object with a url")
        variables, _ = self._object(server, "variables", place)
        url: str = server["url"]
        for name in re.findall(r"\{([^{}]+)\}", url):
            variable = variables.get(name)
            if not isinstance(variable, Mapping) or "default" not in variable:
                raise SourceError(f"{place}: url uses {{{name}}}, which has no default under variables")
            url = url.replace(f"{{{name}}}", str(variable["default"]))
        return urljoin(self._address, url) if isinstance(self._address, str) else url

    def _operations(self) -> Iterator[Operation]:
        paths, place = self._object(self._root, "paths", self._place)
        for path in paths:
            if path.startswith("x-"):
                continue
            if not path.startswith("/"):
                raise SourceError(f"{place / path}: a path must begin with '/'")
            item, where = self._object(paths, path, place)
            for method in get_args(Method):
                if method in item:
                    try:
                        yield self._operation(path, method, item, where)
                    except NotFollowed:
                        raise
                    except SourceError as error:
                        self._left_out[_id_of(path, method, item)] = str(error)

    def _operation(self, path: str, method: Method, item: Mapping[str, Any], item_place: Place) -> Operation:
        node, place = self._object(item, method, item_place)
        body, body_place = self._object(node, "requestBody", place)
        name = node.get("operationId")
        is_named = isinstance(name, str) and bool(name)
        return Operation(
            method=method,
            path=path,
            operation_id=self._unique_id(name if is_named else _derived_id(method, path), place),
            summary=str(node.get("summary") or item.get("summary") or ""),
            description=str(node.get("description") or item.get("description") or ""),
            tags=tuple(str(tag) for tag in node.get("tags") or ()),
            parameters=self._parameters(path, node, place, item, item_place),
            body=self._body(body, body_place) if body else None,
            responses={
                status: self._response(answer, where)
                for status, answer, where in self._objects(node, "responses", place)
            },
            security=self._security_of(node, place) if "security" in node else self._security,
            servers=self._servers(node, place) or self._servers(item, item_place),
            deprecated=node.get("deprecated") is True,
            is_named=is_named,
            place=str(place),
        )

    def _unique_id(self, name: Any, place: Place) -> str:
        unique, number = str(name), 1
        while unique in self._ids:
            number += 1
            unique = f"{name}_{number}"
        if number > 1:
            logger.warning("%s: operationId %r is taken by %s; called %r here", place, name, self._ids[name], unique)
        self._ids[unique] = str(place)
        return unique

    def _parameters(
        self, path: str, node: Mapping[str, Any], place: Place, item: Mapping[str, Any], item_place: Place
    ) -> tuple[Parameter, ...]:
        """Those of the path, then those of the operation, which replace them by name and location."""
        found: dict[tuple[str, str], Parameter] = {}
        for holder, where in ((item, item_place), (node, place)):
            listed = holder.get("parameters") or []
            if not isinstance(listed, list):
                raise SourceError(f"{where / 'parameters'}: must be a list")
            for number, one in enumerate(listed):
                target, here = self._references.follow(one, where / "parameters" / number)
                parameter = self._parameter(target, here)
                if parameter.location != "header" or parameter.name.lower() not in _IGNORED_HEADERS:
                    found[parameter.name, parameter.location] = parameter
        in_path = set(re.findall(r"\{([^{}]+)\}", path))
        for name in sorted(in_path - {name for name, location in found if location == "path"}):
            logger.warning("%s: no parameter describes {%s} of the path; it is taken as a string", place, name)
            found[name, "path"] = Parameter(name, "path", True, {"type": "string"}, "simple", False)
        strangers = sorted({name for name, location in found if location == "path"} - in_path)
        if strangers:
            raise SourceError(f"{place}: {path!r} has no place for the path parameter {strangers[0]!r}")
        return tuple(found.values())

    def _parameter(self, node: Any, place: Place) -> Parameter:
        if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
            raise SourceError(f"{place}: a parameter must be an object with a name")
        location = node.get("in")
        if location not in _STYLES:
            raise SourceError(f"{place}: in is {location!r}; the choices are {', '.join(_STYLES)}")
        style = node.get("style", _STYLES[location][0])
        if style not in _STYLES[location]:
            raise SourceError(
                f"{place}: style is {style!r}; in {location} the choices are {', '.join(_STYLES[location])}"
            )
        content_type, schema = self._parameter_schema(node, place)
        return Parameter(
            name=node["name"],
            location=location,
            required=location == "path" or node.get("required") is True,
            schema=schema,
            style=style,
            explode=node["explode"] if isinstance(node.get("explode"), bool) else style in {"form", "deepObject"},
            description=str(node.get("description") or ""),
            deprecated=node.get("deprecated") is True,
            allow_reserved=node.get("allowReserved") is True,
            content_type=content_type,
        )

    def _parameter_schema(self, node: Mapping[str, Any], place: Place) -> tuple[str | None, Schema | bool]:
        content = list(self._objects(node, "content", place))
        if content:
            if len(content) > 1:
                raise SourceError(f"{place / 'content'}: a parameter must have exactly one media type")
            name, media, where = content[0]
            return name, self._media(media, where).schema
        return None, self._schemas.read(node["schema"], place / "schema") if "schema" in node else True

    def _body(self, node: Mapping[str, Any], place: Place) -> RequestBody:
        content = {name: self._media(media, where) for name, media, where in self._objects(node, "content", place)}
        if not content:
            raise SourceError(f"{place}: a requestBody must have at least one media type under content")
        return RequestBody(content, node.get("required") is True, str(node.get("description") or ""))

    def _response(self, node: Mapping[str, Any], place: Place) -> Response:
        return Response(
            description=str(node.get("description") or ""),
            content={name: self._media(media, where) for name, media, where in self._objects(node, "content", place)},
            headers={
                name: self._parameter_schema(header, where)[1]
                for name, header, where in self._objects(node, "headers", place)
            },
        )

    def _media(self, node: Mapping[str, Any], place: Place) -> MediaType:
        encoding = {
            name: Encoding(
                content_type=one.get("contentType"),
                style=one.get("style"),
                explode=one.get("explode"),
                allow_reserved=one.get("allowReserved") is True,
            )
            for name, one, _ in self._objects(node, "encoding", place)
        }
        examples = [node["example"]] if "example" in node else []
        examples += [one["value"] for _, one, _ in self._objects(node, "examples", place) if "value" in one]
        schema = self._schemas.read(node["schema"], place / "schema") if "schema" in node else True
        return MediaType(schema, encoding, tuple(examples))

    def _scheme(self, name: str, node: Any, place: Place) -> SecurityScheme:
        node, place = self._references.follow(node, place)
        kinds = ("apiKey", "http", "oauth2", "openIdConnect", "mutualTLS")
        if not isinstance(node, Mapping) or node.get("type") not in kinds:
            raise SourceError(f"{place}: a security scheme must have a type, one of {', '.join(kinds)}")
        location = node.get("in", "")
        if node["type"] == "apiKey" and (location not in {"header", "query", "cookie"} or not node.get("name")):
            raise SourceError(f"{place}: an apiKey needs a name, and `in` must be header, query or cookie")
        flows, _ = self._object(node, "flows", place)
        return SecurityScheme(
            name=name,
            kind=node["type"],
            location=str(location),
            parameter=str(node.get("name", "")),
            scheme=str(node.get("scheme", "")).lower(),
            flows={flow: dict(value) for flow, value in flows.items() if isinstance(value, Mapping)},
            description=str(node.get("description") or ""),
        )

    def _security_of(self, node: Mapping[str, Any], place: Place) -> tuple[Security, ...]:
        alternatives = node.get("security") or []
        if not isinstance(alternatives, list) or not all(isinstance(one, Mapping) for one in alternatives):
            raise SourceError(f"{place / 'security'}: must be a list of objects")
        known, _ = self._object(self._root, "components", self._place)
        schemes, _ = self._object(known, "securitySchemes", self._place / "components")
        for one in alternatives:
            for name in one:
                if name not in schemes:
                    raise SourceError(
                        f"{place / 'security'}: {name!r} is not under components.securitySchemes; "
                        f"there are {', '.join(schemes) or 'none'}"
                    )
        return tuple({name: tuple(scopes or ()) for name, scopes in one.items()} for one in alternatives)


def _checked_version(root: Any, place: Place) -> str:
    if not isinstance(root, Mapping):
        raise SourceError(f"{place}: an OpenAPI document is an object, not a {type(root).__name__}")
    if "swagger" in root:
        raise SourceError(
            f"{place} is Swagger {root['swagger']!r:.20}, and only OpenAPI 3.0 and 3.1 are read; convert it first, for "
            "example with npm: npx swagger2openapi --patch --outfile openapi.json swagger.json"
        )
    version = str(root.get("openapi", ""))
    if not re.fullmatch(r"3\.[01](\.\d+)?(-\w+)?", version):
        found = f"openapi is {root['openapi']!r}" if "openapi" in root else "it has no key 'openapi'"
        raise SourceError(f"{place} is no OpenAPI document of version 3.0 or 3.1: {found}")
    return version


def _id_of(path: str, method: str, item: Mapping[str, Any]) -> str:
    node = item[method]
    name = node.get("operationId") if isinstance(node, Mapping) else None
    return name if isinstance(name, str) and name else _derived_id(method, path)


def _derived_id(method: str, path: str) -> str:
    """`get /orders/{order_id}/lines` is `get_orders_by_order_id_lines`."""
    words = [f"by_{step[1:-1]}" if step[:1] == "{" and step[-1:] == "}" else step for step in path.split("/") if step]
    return re.sub(r"[^A-Za-z0-9_]+", "_", "_".join([method, *words])).strip("_")


def read_document(
    source: str | Path | Mapping[str, Any],
    *,
    follow_urls: bool = False,
    access: Access | None = None,
    headers: Mapping[str, str] | None = None,
) -> Document:
    """Read an OpenAPI 3.0 or 3.1 document.

    `source`: a path or URL of JSON or YAML, or the document as a dict. References are followed inside the document and
    to files in its folder and below; to URLs only with `follow_urls`. `access` and `headers` are for a document behind
    a URL, and for what it refers to on the same host.

    Raises `SourceError` that says where in the document something is wrong.
    """
    if isinstance(source, Mapping):
        return DocumentReader(plain(source, "the document"), None, follow_urls=follow_urls, fetch=load_url).read()
    if not (isinstance(source, str) and source.lower().startswith(("http://", "https://"))):
        path = Path(source).expanduser()
        return DocumentReader(load_file(path), path, follow_urls=follow_urls, fetch=load_url).read()

    def fetch(url: str) -> Any:
        return load_url(url, access, headers) if origin(url) == origin(source) else load_url(url)

    return DocumentReader(fetch(source), source, follow_urls=follow_urls, fetch=fetch).read()
