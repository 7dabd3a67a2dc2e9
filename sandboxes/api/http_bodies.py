"""What the bodies of HTTP requests say, as the values that the tools of the twin take."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from .shapes import Shapes

if TYPE_CHECKING:
    from mcp_bridge.openapi.document import MediaType
    from mcp_bridge.openapi.tools import OperationTool

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
    return text if shape.choices and not shapes.valid(schema, found) and shapes.valid(schema, text) else found


def _media(tool: OperationTool, kind: str) -> MediaType | None:
    """What the document says of bodies of this kind; of the one that the tool sends where it names no such."""
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
    from python_multipart import parse_form
    from python_multipart.multipart import parse_options_header

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
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")
