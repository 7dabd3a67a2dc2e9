"""Values as text in a path, a query, a header or a cookie, by the style of their parameter.

Lists and objects inside lists and objects, for which OpenAPI has no form, are written as JSON, except under
`deepObject`. An empty list or object, and `null`, are not sent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from .document import Parameter

_RESERVED = ":/?@!$'()*,;"
"""What `allowReserved` leaves as it is; `&`, `=`, `+`, `#`, `[` and `]` would change the query around the value."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")
_DELIMITERS = {"spaceDelimited": (" ", "%20"), "pipeDelimited": ("|", "%7C")}


class Unwritable(ValueError):
    """A value that cannot be sent in its place. The message is for the model."""


def as_text(value: Any, name: str) -> str:
    """A value as text: strings as they are, everything else as JSON. Raises `Unwritable`."""
    if isinstance(value, str):
        text = value
    elif value is None:
        raise Unwritable(f"{name}: null cannot be written here; leave it out")
    elif isinstance(value, float) and not math.isfinite(value):
        raise Unwritable(f"{name}: {value} is no number that can be sent")
    else:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unwritable(f"{name}: holds half of a surrogate pair, which is no text") from None
    return text


def path_text(parameter: Parameter, value: Any, *, slashes: bool = False) -> str:
    """What stands in the path for `value`. Raises `Unwritable` for whatever could change the path around it."""
    name = parameter.name

    def atom(one: Any) -> str:
        text = as_text(one, name)
        if _CONTROL.search(text):
            raise Unwritable(f"{name}: must not contain line breaks or other control characters")
        parts = re.split(r"[/\\]", text)
        if len(parts) > 1 and (not slashes or set(parts) & {"", ".", ".."}):
            raise Unwritable(f"{name}: {text!r:.80} must not contain '/' or '\\', it is one step of a path")
        return quote(text, safe="")

    if parameter.content_type is not None:
        return _not_empty(atom(json_text(value, name)), name)
    explode, label = parameter.explode, quote(name, safe="")
    if parameter.style == "matrix":
        return _matrix(label, value, atom, explode)
    lead, between = (".", "." if explode else ",") if parameter.style == "label" else ("", ",")
    if isinstance(value, list):
        return lead + _not_empty(between.join(atom(one) for one in value), name)
    if isinstance(value, Mapping):
        return lead + _not_empty(between.join(_flattened(value, atom, explode)), name)
    return lead + _not_empty(atom(value), name)


def _matrix(label: str, value: Any, atom: Any, explode: bool) -> str:
    if isinstance(value, Mapping):
        parts = _flattened(value, atom, explode)
        joined = ";".join(parts) if explode else f"{label}={','.join(parts)}"
        return ";" + _not_empty(joined if parts else "", label)
    if isinstance(value, list) and explode:
        return ";" + _not_empty(";".join(f"{label}={atom(one)}" for one in value), label)
    values = [atom(one) for one in value] if isinstance(value, list) else [atom(value)]
    return f";{label}={_not_empty(','.join(values), label)}"


def _flattened(value: Mapping[str, Any], atom: Any, explode: bool) -> list[str]:
    pairs = [(atom(key), atom(one)) for key, one in value.items() if one is not None]
    return [f"{key}={one}" for key, one in pairs] if explode else [text for pair in pairs for text in pair]


def _not_empty(text: str, name: str) -> str:
    if not text:
        raise Unwritable(f"{name}: must not be empty, it is a step of the path")
    return text


def checked_path(path: str) -> str:
    """`path` as it is. Raises `Unwritable` where a step would be read as 'here' or 'one up'."""
    for step in path.split("/"):
        if unquote(step) in {".", ".."}:
            raise Unwritable("no step of the path may be '.' or '..'")
    return path


def query_parts(parameter: Parameter, value: Any) -> list[str]:
    """`name=value` pairs, percent-encoded. Raises `Unwritable`."""
    name, label = parameter.name, quote(parameter.name, safe="")
    safe = _RESERVED if parameter.allow_reserved else ""

    def atom(one: Any) -> str:
        return quote(as_text(one, name), safe=safe)

    if value is None or value == [] or value == {}:
        return []
    if parameter.content_type is not None:
        return [f"{label}={atom(json_text(value, name))}"]
    if parameter.style == "deepObject":
        if not isinstance(value, Mapping):
            raise Unwritable(f"{name}: must be an object")
        return _deep(label, value, atom)
    if not isinstance(value, list | Mapping):
        return [f"{label}={atom(value)}"]
    if parameter.explode:
        if isinstance(value, list):
            return [f"{label}={atom(one)}" for one in value]
        return _flattened(value, atom, True)
    return _joined(parameter, label, value, safe)


def _joined(parameter: Parameter, label: str, value: Any, safe: str) -> list[str]:
    """A list or an object as one value with delimiters in it."""
    plain, written = _DELIMITERS.get(parameter.style, ("", ","))
    safe = safe.replace(",", "")

    def atom(one: Any) -> str:
        text = as_text(one, parameter.name)
        if plain and plain in text:
            raise Unwritable(f"{parameter.name}: {text!r:.80} must not contain {plain!r}, which separates the values")
        return quote(text, safe=safe)

    parts = _flattened(value, atom, False) if isinstance(value, Mapping) else [atom(one) for one in value]
    return [f"{label}={written.join(parts)}"] if parts else []


def _deep(label: str, value: Any, atom: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [part for key, one in value.items() for part in _deep(f"{label}%5B{atom(key)}%5D", one, atom)]
    if isinstance(value, list):
        return [f"{label}={atom(one)}" for one in value]
    return [] if value is None else [f"{label}={atom(value)}"]


def header_text(parameter: Parameter, value: Any) -> str | None:
    """The value of a header, `None` where there is nothing to send. Raises `Unwritable`."""
    name = parameter.name
    if value is None or value == [] or value == {}:
        return None

    def atom(one: Any) -> str:
        text = as_text(one, name)
        if re.search(r"[,=]" if isinstance(value, Mapping) else ",", text):
            raise Unwritable(f"{name}: {text!r:.80} must not contain ',', which separates the values of a header")
        return text

    if parameter.content_type is not None:
        text = json.dumps(value, ensure_ascii=True)
    elif isinstance(value, list):
        text = ",".join(atom(one) for one in value)
    elif isinstance(value, Mapping):
        text = ",".join(_flattened(value, atom, parameter.explode))
    else:
        text = as_text(value, name)
    if text and not _HEADER.fullmatch(text):
        raise Unwritable(
            f"{name}: a header holds plain ASCII on one line, without spaces around it, and not {text!r:.80}"
        )
    return text


def cookie_text(parameter: Parameter, value: Any) -> str | None:
    """The percent-encoded value of a cookie, `None` where there is nothing to send. Lists and objects have commas
    between, since cookies of one name replace each other. Raises `Unwritable`."""
    if value is None or value == [] or value == {}:
        return None

    def atom(one: Any) -> str:
        return quote(as_text(one, parameter.name), safe="")

    if parameter.content_type is not None:
        return atom(json_text(value, parameter.name))
    if isinstance(value, list):
        return ",".join(atom(one) for one in value)
    if isinstance(value, Mapping):
        return ",".join(_flattened(value, atom, False))
    return atom(value)


def json_text(value: Any, name: str) -> str:
    """`value` as JSON. Raises `Unwritable` for what has no JSON form."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (ValueError, TypeError) as error:
        raise Unwritable(f"{name}: has no JSON form ({error})") from None
    return text
