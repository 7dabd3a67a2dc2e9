"""Request bodies: JSON, forms, multipart and whatever a model writes as text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .arguments import BodyPlan, bare_type, is_json
from .document import Encoding, Parameter
from .styles import Unwritable, as_text, json_text, query_parts

_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?;base64,(?P<data>[A-Za-z0-9+/=\s]*)")

Part = tuple[str, tuple[str | None, bytes, str | None]]
"""A part of a multipart body: its name, then file name, content and media type."""


@dataclass(frozen=True)
class Body:
    """What is sent: `content` with its `content_type`, or `parts`, from which the HTTP client makes both."""

    content: bytes | None = None
    content_type: str | None = None
    parts: list[Part] = field(default_factory=list)


def body_of(plan: BodyPlan, arguments: Mapping[str, Any]) -> tuple[Body, Any] | None:
    """The body made of `arguments`, and its value before it was written; `None` where none is to be sent.

    Raises `Unwritable`.
    """
    if plan.whole is not None:
        if plan.whole not in arguments:
            return None
        value = arguments[plan.whole]
    else:
        value = {name: arguments[argument] for argument, name in plan.properties.items() if argument in arguments}
        if not value and not plan.required:
            return None
    return _written(plan, value), value


def _written(plan: BodyPlan, value: Any) -> Body:
    if plan.kind == "json":
        media_type = plan.media_type if "*" not in plan.media_type else "application/json"
        return Body(json_text(value, "the body").encode(), media_type)
    if plan.kind == "raw":
        content, found = _content(as_text(value, "body"))
        media_type = plan.media_type if "*" not in plan.media_type else found or "application/octet-stream"
        return Body(content, media_type)
    if not isinstance(value, Mapping):
        raise Unwritable("the body must be an object")
    if plan.kind == "form":
        pairs = [pair for name, one in value.items() for pair in _form_pairs(name, one, plan.encoding.get(name))]
        return Body("&".join(pairs).encode("ascii"), "application/x-www-form-urlencoded")
    parts = [
        part
        for name, one in value.items()
        for part in _multipart(name, one, plan.encoding.get(name), is_file=name in plan.binary)
    ]
    return Body(parts=parts)


def _form_pairs(name: str, value: Any, encoding: Encoding | None) -> list[str]:
    has_style = encoding is not None and (encoding.style is not None or encoding.explode is not None)
    if isinstance(value, Mapping) and not has_style:
        value = json_text(value, name)
    style = (encoding.style if encoding is not None else None) or "form"
    explode = (
        encoding.explode if encoding is not None and encoding.explode is not None else style in {"form", "deepObject"}
    )
    reserved = encoding is not None and encoding.allow_reserved
    return query_parts(
        Parameter(name, "query", required=False, schema=True, style=style, explode=explode, allow_reserved=reserved),
        value,
    )


def _multipart(name: str, value: Any, encoding: Encoding | None, *, is_file: bool) -> list[Part]:
    if value is None:
        return []
    wanted = encoding.content_type if encoding is not None else None
    # Several may be allowed, with commas between: the first will do.
    wanted = wanted.partition(",")[0].strip() if wanted and "*" not in wanted else None
    if isinstance(value, list):
        return [part for one in value for part in _multipart(name, one, encoding, is_file=is_file)]
    if isinstance(value, Mapping) or (wanted is not None and is_json(bare_type(wanted)) and not is_file):
        return [(name, (None, json_text(value, name).encode(), wanted or "application/json"))]
    text = as_text(value, name)
    if not is_file and wanted is None:
        return [(name, (None, text.encode(), None))]
    content, found = _content(text)
    return [(name, (name, content, wanted or found or "application/octet-stream"))]


def _content(text: str) -> tuple[bytes, str | None]:
    """The bytes behind text that a model wrote, and their media type where it said one."""
    match = _DATA_URL.fullmatch(text)
    if match is None:
        return text.encode(), None
    try:
        return base64.b64decode("".join(match["data"].split()), validate=True), match["type"]
    except binascii.Error as error:
        raise Unwritable(f"what follows 'base64,' is no base64: {error}") from None
