"""An OpenAPI document as records, and its reader.

    document = mcp_bridge.openapi.document.read_document("openapi.yaml")
    for operation in document.operations:
        print(operation.method, operation.path, operation.operation_id)

Schemas are JSON Schema 2020-12 whichever version the document has; references in them are `#/$defs/Name`, where `Name`
is a key of `Document.schemas`. `Document.closed` makes one self-contained.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urljoin

from ..access.redaction import is_url, public_url
from ..access.settings import Access
from ..errors import SourceError, kind_of
from ..guard import numbered
from .references import NotFollowed, Place, References, load_file, load_url, origin, plain
from .schemas import PREFIX, Closing, Schema, SchemaReader, referred
from .swagger import as_openapi_3, with_words_of_3

logger = logging.getLogger(__name__)

Method = Literal["get", "put", "post", "delete", "options", "head", "patch", "trace"]
Location = Literal["path", "query", "header", "cookie"]


@dataclass(frozen=True)
class Encoding:
    """How one property of a form is written."""

    content_type: str | None = None
    style: str | None = None
    explode: bool | None = None
    allow_reserved: bool = False


@dataclass(frozen=True)
class MediaType:
    """One form of a body. `schema`: `True` where the document has none."""

    schema: Schema | bool
    encoding: Mapping[str, Encoding] = field(default_factory=dict)
    examples: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """A parameter of an operation. `style` and `explode` are filled in by the rules of its location."""

    name: str
    location: Location
    required: bool
    schema: Schema | bool
    style: str
    explode: bool
    description: str = ""
    deprecated: bool = False
    allow_reserved: bool = False
    content_type: str | None = None
    """The media type it is written in, where it has one instead of a style."""


@dataclass(frozen=True)
class RequestBody:
    content: Mapping[str, MediaType]
    required: bool
    description: str = ""


@dataclass(frozen=True)
class Response:
    description: str
    content: Mapping[str, MediaType]
    headers: Mapping[str, Schema | bool] = field(default_factory=dict)


Security = Mapping[str, tuple[str, ...]]
"""Names of schemes that are needed together, each with its scopes. Empty: nothing is needed."""


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    `operation_id`: made of method and path where the document has none, and without them where FastAPI added both.
    `responses`: by status as written (`"200"`, `"4XX"`, `"default"`). `security`: alternatives, any one of which is
    enough. `servers`: base URLs, where the operation or its path has its own.
    `place`: where it stands, for error messages.
    """

    method: Method
    path: str
    operation_id: str
    summary: str
    description: str
    tags: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    body: RequestBody | None
    responses: Mapping[str, Response]
    security: tuple[Security, ...]
    servers: tuple[str, ...]
    deprecated: bool
    place: str


@dataclass(frozen=True)
class SecurityScheme:
    """How an API knows its callers. `kind` is OpenAPI's `type`.

    `location` and `parameter`: where an `apiKey` goes. `scheme`: of `http`, in lower case (`basic`, `bearer`).
    `flows`: of `oauth2`, by name (`clientCredentials`, ...), each with `tokenUrl` and `scopes`.
    """

    name: str
    kind: str
    location: str = ""
    parameter: str = ""
    scheme: str = ""
    flows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True)
class Document:
    """One API. `servers`: base URLs, with the defaults of their variables; may be relative, and is empty where a file
    names none."""

    title: str
    version: str
    description: str
    openapi: str
    servers: tuple[str, ...]
    schemas: Mapping[str, Schema | bool] = field(repr=False)
    operations: tuple[Operation, ...] = field(repr=False)
    security_schemes: Mapping[str, SecurityScheme] = field(repr=False)
    address: str | None = None
    """The file or URL it was read from."""
    left_out: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Operations that cannot be read, by `operationId`, with the reason."""
    broken: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those of `schemas` that cannot be read, with the reason; they are `True` there."""

    def problem(self, operation: Operation) -> str | None:
        """What is wrong with the schemas of a request; None where nothing is."""
        asked = [one.schema for one in operation.parameters]
        asked += [media.schema for media in operation.body.content.values()] if operation.body else []
        names, pending = set[str](), [one for one in asked if isinstance(one, dict)]
        while pending and self.broken:
            for name in referred(pending.pop()):
                if name in self.broken:
                    return self.broken[name]
                target = self.schemas[name]
                if name not in names and isinstance(target, dict):
                    pending.append(target)
                names.add(name)
        return None

    def resolve(self, schema: Schema | bool) -> Schema | bool:
        """What a schema that is only a reference refers to; any other as it is."""
        for _ in range(len(self.schemas) + 1):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            schema = self.schemas[schema["$ref"].removeprefix(PREFIX)]
        raise SourceError(f"schema {schema!r:.80} in {self.address or 'the document'} refers only to itself")

    def closed(self, schema: Schema | bool) -> Schema:
        """A schema that stands alone: what it refers to is written in it, or in its `$defs` where that would repeat."""
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        return self._closing.closed(schema)

    @functools.cached_property
    def _closing(self) -> Closing:
        return Closing(self.schemas)


_STYLES: dict[Location, tuple[str, ...]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles of each location; the first is the default."""

# By the standard the first three say nothing here: bodies, answers and security schemes have words of their own for
# them. The others are said by what carries the request.
_IGNORED_HEADERS = {"accept", "content-type", "authorization", "connection", "content-length", "host",
                    "transfer-encoding"}  # fmt: skip


class DocumentReader:
    """Reads one document. `address`: the file or URL it came from."""

    def __init__(
        self, root: Any, address: Path | str | None, *, follow_urls: bool, fetch: Callable[[str], Any]
    ) -> None:
        """`fetch`: returns the value of a URL. Raises `SourceError` where `root` is not OpenAPI 3.0 or 3.1, or Swagger
        2.0, which is read as what it is in OpenAPI 3.0."""
        self._address = address
        self._references = References(root, address, follow_urls=follow_urls, fetch=fetch)
        if isinstance(root, Mapping) and str(root.get("swagger")) in ("2.0", "2"):
            root = as_openapi_3(root, self._references)
            self._references = self._references.converted(root, with_words_of_3)
        self._place = self._references.root
        self._openapi = _checked_version(root, self._place)
        self._root: Mapping[str, Any] = root
        self._schemas = SchemaReader(self._references, is_30=self._openapi.startswith("3.0"))
        self._security_schemes: dict[str, SecurityScheme] = {}
        self._unread_schemes: dict[str, str] = {}
        self._told_of: set[str] = set()
        self._ids: dict[str, str] = {}
        self._left_out: dict[str, str] = {}

    def read(self) -> Document:
        components, where = self._object(self._root, "components", self._place)
        named, place = self._object(components, "schemas", where)
        for name, node in named.items():
            self._schemas.name(name, node, place / name)
        schemes, place = self._object(components, "securitySchemes", where)
        self._read_security_schemes(schemes, place)
        operations = tuple(self._operations())
        self._schemas.finish()
        problems = [*self._left_out.values(), *self._schemas.broken.values()]
        if problems and not operations:
            raise SourceError("; ".join(dict.fromkeys(problems)))
        info = self._root.get("info")
        info = info if isinstance(info, Mapping) else {}
        shown = None if self._address is None else str(self._address)
        order = [*named, *(name for name in self._schemas.definitions if name not in named)]
        return Document(
            title=str(info.get("title", "")),
            version=str(info.get("version", "")),
            description=str(info.get("description") or ""),
            openapi=self._openapi,
            servers=self._servers(self._root, self._place) or self._own_server(),
            schemas={name: self._schemas.definitions[name] for name in order},
            operations=operations,
            security_schemes=self._security_schemes,
            address=public_url(self._address) if isinstance(self._address, str) else shown,
            left_out=self._left_out,
            broken=self._schemas.broken,
        )

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

    def _own_server(self) -> tuple[str, ...]:
        """By the standard, a document that names no server is that of "/" where it was read from."""
        return (urljoin(self._address, "/"),) if isinstance(self._address, str) else ()

    def _server(self, server: Any, place: Place) -> str:
        if not isinstance(server, Mapping) or not isinstance(server.get("url"), str):
            raise SourceError(f"{place}: a server must be an object with a url")
        variables, _ = self._object(server, "variables", place)
        url: str = server["url"]
        for name in re.findall(r"\{([^{}]+)\}", url):
            variable = variables.get(name)
            if isinstance(variable, Mapping) and "default" in variable:
                url = url.replace(f"{{{name}}}", str(variable["default"]))
        return urljoin(self._address, url) if isinstance(self._address, str) else url

    def _operations(self) -> Iterator[Operation]:
        paths, place = self._object(self._root, "paths", self._place)
        found: list[tuple[str, Method, Mapping[str, Any], Place]] = []
        for path in paths:
            if path.startswith("x-"):
                continue
            if not path.startswith("/"):
                self._left_out[path] = f"{place / path}: a path must begin with '/'"
                continue
            with _kept_in(self._left_out, path):
                item, where = self._object(paths, path, place)
                found += [(path, method, item, where) for method in get_args(Method) if method in item]
        names = _names([(_own_id(item[method]), path, method) for path, method, item, _ in found])
        for name, (path, method, item, where) in zip(names, found, strict=True):
            with _kept_in(self._left_out, name):
                yield self._operation(name, path, method, item, where)

    def _operation(self, name: str, path: str, method: Method, item: Mapping[str, Any], item_place: Place) -> Operation:
        node, place = self._object(item, method, item_place)
        body, body_place = self._object(node, "requestBody", place)
        return Operation(
            method=method,
            path=path,
            operation_id=self._unique_id(name, place),
            summary=str(node.get("summary") or item.get("summary") or ""),
            description=str(node.get("description") or item.get("description") or ""),
            tags=_strings(node.get("tags"), place / "tags"),
            parameters=self._parameters(path, node, place, item, item_place),
            body=self._body(body, body_place) if body else None,
            responses={
                status: self._response(answer, where)
                for status, answer, where in self._objects(node, "responses", place)
            },
            security=self._security_of(*((node, place) if "security" in node else (self._root, self._place))),
            servers=self._servers(node, place) or self._servers(item, item_place),
            deprecated=node.get("deprecated") is True,
            place=str(place),
        )

    def _unique_id(self, name: str, place: Place) -> str:
        unique = numbered(name, self._ids)
        if unique != name:
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
        if not isinstance(location, str) or location not in _STYLES:
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
        content = self._content(node, place)
        if len(content) > 1:
            raise SourceError(f"{place / 'content'}: a parameter must have exactly one media type")
        for name, media in content.items():
            return name, media.schema
        return None, self._schemas.read(node["schema"], place / "schema") if "schema" in node else True

    def _content(self, node: Mapping[str, Any], place: Place) -> dict[str, MediaType]:
        return {name: self._media(media, where) for name, media, where in self._objects(node, "content", place)}

    def _body(self, node: Mapping[str, Any], place: Place) -> RequestBody:
        content = self._content(node, place)
        if not content:
            raise SourceError(f"{place}: a requestBody must have at least one media type under content")
        return RequestBody(content, node.get("required") is True, str(node.get("description") or ""))

    def _response(self, node: Mapping[str, Any], place: Place) -> Response:
        return Response(
            description=str(node.get("description") or ""),
            content=self._content(node, place),
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

    def _read_security_schemes(self, nodes: Mapping[str, Any], place: Place) -> None:
        for name, node in nodes.items():
            with _kept_in(self._unread_schemes, name):
                self._security_schemes[name] = self._scheme(name, node, place / name)

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
        where = place / "security"
        for name in (name for one in alternatives for name in one if name not in self._security_schemes):
            if name not in self._told_of:
                there = ", ".join(self._security_schemes) or "none"
                why = self._unread_schemes.get(
                    name, f"{where}: there is no security scheme {name!r}; there are {there}"
                )
                logger.warning('%s. It is not asked for; give what the API needs in "headers"', why)
            self._told_of.add(name)
        return tuple(
            {name: _strings(scopes, where) for name, scopes in one.items() if name in self._security_schemes}
            for one in alternatives
        )


def _strings(value: Any, place: Place) -> tuple[str, ...]:
    if not isinstance(value or [], list):
        raise SourceError(f"{place}: must be a list of strings, not {value!r:.80}")
    return tuple(str(one) for one in value or ())


def _checked_version(root: Any, place: Place) -> str:
    if not isinstance(root, Mapping):
        raise SourceError(f"{place}: an OpenAPI document is an object, not {kind_of(root)}")
    if "swagger" in root:
        raise SourceError(f"{place} is Swagger {root['swagger']!r:.20}; read are Swagger 2.0 and OpenAPI 3.0 and 3.1")
    version = str(root.get("openapi", ""))
    if not re.fullmatch(r"3\.[01](\.\d+)?(-\w+)?", version):
        found = f"openapi is {root['openapi']!r}" if "openapi" in root else "it has no key 'openapi'"
        raise SourceError(f"{place} is not an OpenAPI 3.0 or 3.1 document: {found}")
    return version


@contextmanager
def _kept_in(problems: dict[str, str], name: str) -> Iterator[None]:
    """What is wrong with one part is kept, and costs that part alone; a reference that is not followed is raised."""
    try:
        yield
    except NotFollowed:
        raise
    except SourceError as error:
        problems[name] = str(error)


def _own_id(node: Any) -> str:
    name = node.get("operationId") if isinstance(node, Mapping) else None
    return name if isinstance(name, str) else ""


def _names(operations: list[tuple[str, str, str]]) -> list[str]:
    """The names of operations, each given by its own id, path and method.

    FastAPI writes `book_room_rooms__room__bookings_post` for its function `book_room`: what repeats path and method is
    left out there, unless two operations would then have one name.
    """
    whole = [own or _derived_id(method, path) for own, path, method in operations]
    ends = [re.sub(r"\W", "_", path) + f"_{method}" for _, path, method in operations]
    short = [name.removesuffix(end) or name for name, end in zip(whole, ends, strict=True)]
    counts = Counter(short)
    return [name if counts[name] == 1 else own for name, own in zip(short, whole, strict=True)]


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
    """Read an OpenAPI 3.0 or 3.1 document, or one of Swagger 2.0.

    `source`: a path or URL of JSON or YAML, or the document as a dict. References are followed inside the document and
    to files in its folder and below; to URLs only with `follow_urls`. `access` and `headers` are for a document behind
    a URL, and for what it refers to on the same host.

    Raises `SourceError` that says where in the document something is wrong.
    """
    if isinstance(source, Mapping):
        return DocumentReader(plain(source, "the document"), None, follow_urls=follow_urls, fetch=load_url).read()
    if not (isinstance(source, str) and is_url(source)):
        path = Path(source).expanduser()
        return DocumentReader(load_file(path), path, follow_urls=follow_urls, fetch=load_url).read()

    def fetch(url: str) -> Any:
        return load_url(url, access, headers) if origin(url) == origin(source) else load_url(url)

    return DocumentReader(fetch(source), source, follow_urls=follow_urls, fetch=fetch).read()
