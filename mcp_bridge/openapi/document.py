"""What an OpenAPI document says, as records.

    document = mcp_bridge.openapi.operations.read_document("openapi.yaml")
    for operation in document.operations:
        print(operation.method, operation.path, operation.operation_id)

Schemas are JSON Schema 2020-12 whichever version the document has; references in them are `#/$defs/Name`, where `Name`
is a key of `Document.schemas`. `Document.closed` makes one stand alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import SourceError
from .schemas import PREFIX, Schema, closed, referred

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
    """One form of a body. `schema`: `True` where the document says nothing."""

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

    `operation_id`: made of method and path where the document has none (`is_named` is false then). `responses`: by
    status as written (`"200"`, `"4XX"`, `"default"`). `security`: alternatives, any one of which is enough.
    `servers`: base URLs, where the operation or its path has its own. `place`: where it stands, for error messages.
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
    is_named: bool
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
    """One API. `servers`: base URLs, with the defaults of their variables; may be relative, and may be empty."""

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

    def schema_name(self, schema: Schema | bool) -> str | None:
        """The name of the definition that a schema refers to, `None` where it is written out."""
        if isinstance(schema, dict) and "$ref" in schema:
            return str(schema["$ref"]).removeprefix(PREFIX)
        return None

    def closed(self, schema: Schema | bool) -> Schema:
        """A schema that stands alone: what it refers to is written in it, or in its `$defs` where that would repeat."""
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        return closed(schema, self.schemas)
