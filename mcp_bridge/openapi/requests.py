"""The request of an operation, made of the arguments that a model gives. Path, query, headers and cookies have the
style of each parameter; the body comes last.

Lists and objects inside lists and objects, for which OpenAPI has no form, are written as JSON, except under
`deepObject`. An empty list or object, and `null`, are not sent.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote, unquote

from ..guard import numbered
from .document import Encoding, MediaType, Operation, Parameter
from .schemas import ANNOTATIONS, PREFIX, Schema, View, flat_object, without_echo

BodyKind = Literal["json", "form", "multipart", "raw"]

# What model APIs take as the name of an argument.
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_.-]+")
_LONGEST = 64
_BYTES = 'Text, or bytes as "data:<media type>;base64,<bytes>".'
# The changed properties are easy to write, a list of operations on them is not.
_PATCHES = {"application/merge-patch+json": 1, "application/json-patch+json": 4}
_NOTHING_IN_IT = ANNOTATIONS | {"type", "properties", "additionalProperties"}
"""Beside these, an object without properties and without others may hold something."""
_FLAT_KINDS = ("json", "form", "multipart")

_RESERVED = ":/?@!$'()*,;"
"""What `allowReserved` leaves as it is; `&`, `=`, `+`, `#`, `[` and `]` would change the query around the value."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")
_DELIMITERS = {"spaceDelimited": (" ", "%20"), "pipeDelimited": ("|", "%7C")}


@dataclass(frozen=True)
class BodyPlan:
    """How a body is made of arguments.

    `properties`: argument to property of an object; empty where one argument, `whole`, is the body. `files`: the
    properties that are files, with their media types. `required`: a body is sent also where no argument for it was
    given.
    """

    media_type: str
    kind: BodyKind
    required: bool
    properties: Mapping[str, str] = field(default_factory=dict)
    whole: str | None = None
    encoding: Mapping[str, Encoding] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What a model is asked for. `parameters`: argument to parameter.

    `strict_schema`: refuses what only the server sets, at any depth; `None` where the input schema does so by itself.
    """

    input_schema: Schema
    parameters: Mapping[str, Parameter]
    body: BodyPlan | None
    strict_schema: Schema | None = None


@dataclass
class _Wanted:
    """One argument on its way to a name."""

    original: str
    location: str
    schema: Schema
    required: bool
    parameter: Parameter | None = None
    name: str = ""


def plan_of(operation: Operation, request: View, strict: View, *, fixed: Collection[tuple[str, str]] = ()) -> Plan:
    """`request` and `strict`: the views without read-only properties. `fixed`: (location, name in lower case) of
    parameters that the configuration gives, which no model is asked for."""
    wanted = [
        _Wanted(one.name, one.location, _described(one, request), one.required, one)
        for one in operation.parameters
        if (one.location, one.name.lower()) not in fixed
    ]
    body, from_body, required_together = _body(operation, request)
    wanted += from_body
    _name(wanted)
    by_property = {one.original: one.name for one in from_body}
    schema = _object(wanted, [by_property[name] for name in required_together], [*by_property.values()])
    return Plan(
        input_schema=request.closed(schema),
        parameters={one.name: one.parameter for one in wanted if one.parameter is not None},
        body=_bound(body, from_body),
        strict_schema=_strict_schema(operation, body, strict),
    )


def _object(wanted: Sequence[_Wanted], together: Sequence[str], in_body: Sequence[str]) -> Schema:
    required = [one.name for one in wanted if one.required]
    # The body as a whole may be left out, but one that is given must be complete.
    needs = {name: [other for other in together if other != name] for name in in_body}
    needs = {name: others for name, others in needs.items() if others}
    return {
        "type": "object",
        "properties": {one.name: one.schema for one in wanted},
        **({"required": required} if required else {}),
        **({"dependentRequired": needs} if needs else {}),
        "additionalProperties": False,
    }


def _described(parameter: Parameter, request: View) -> Schema:
    schema = request.of(parameter.schema) if isinstance(parameter.schema, dict) else {}
    schema = without_echo(parameter.name, schema)
    extra: Schema = {}
    if parameter.description:
        extra["description"] = parameter.description
    if parameter.deprecated:
        extra["deprecated"] = True
    return {**schema, **extra}


def _body(operation: Operation, request: View) -> tuple[BodyPlan | None, list[_Wanted], list[str]]:
    """The plan, the arguments it takes, and the properties that an optional body needs all of."""
    if operation.body is None:
        return None, [], []
    media_type, kind, media = _chosen_media(operation.body.content)
    required = operation.body.required
    schema = request.of(media.schema) if isinstance(media.schema, dict) else {}
    flat = flat_object(schema, request.definitions) if kind in _FLAT_KINDS else None
    if not required and schema.get("additionalProperties") is False and not {*schema} - _NOTHING_IN_IT and flat is None:
        return None, [], []
    if flat is None:
        if kind == "raw":
            schema = _text_schema(schema, media_type)
        if operation.body.description:
            schema = {**schema, "description": schema.get("description", operation.body.description)}
        wanted = _Wanted("body", "body", schema, required)
        return BodyPlan(media_type, kind, required, whole="body", encoding=media.encoding), [wanted], []
    properties, needed = flat
    types = {name: _file_type(one, request.definitions) for name, one in properties.items() if kind == "multipart"}
    files = {name: one for name, one in types.items() if one is not None}
    plan = BodyPlan(media_type, kind, required, encoding=media.encoding, files=files)
    schemas = {name: _with_words(one, _BYTES) if name in files else one for name, one in properties.items()}
    asked = [
        _Wanted(name, "body", one if isinstance(one, dict) else {}, required and name in needed)
        for name, one in schemas.items()
    ]
    return plan, asked, [] if required else [name for name in needed if name in properties]


def _bound(body: BodyPlan | None, from_body: Sequence[_Wanted]) -> BodyPlan | None:
    """The plan with the names that its arguments got."""
    if body is None:
        return None
    whole = from_body[0].name if body.whole is not None else None
    properties = {} if body.whole is not None else {one.name: one.original for one in from_body}
    return replace(body, properties=properties, whole=whole)


def _strict_schema(operation: Operation, body: BodyPlan | None, strict: View) -> Schema | None:
    if body is None or operation.body is None or body.kind == "raw":
        return None
    original = operation.body.content[body.media_type].schema
    if not isinstance(original, dict) or not strict.reaches_mark(original):
        return None
    return strict.closed(strict.of(original))


def _name(wanted: Sequence[_Wanted]) -> None:
    """Give each argument a name that no other has. Two of one name get their places in them: `id_in_path`. Where names
    are alike only in what is legal of them, a number: `DateSent` and, for `DateSent<`, `DateSent_2`."""
    legal = [_ILLEGAL.sub("_", one.original).strip("_.")[:_LONGEST] or "argument" for one in wanted]
    counts = Counter(one.original for one in wanted)
    own = {name for name in legal if counts[name] == 1}
    taken = set(own)
    for one, first in zip(wanted, legal, strict=True):
        base = first if counts[one.original] == 1 else f"{first[: _LONGEST - 10]}_in_{one.location}"
        name = base if one.original in own else numbered(base, taken, _LONGEST - 3)
        taken.add(name)
        one.name = name
        if name != one.original:
            where = "property of the body" if one.location == "body" else f"{one.location} parameter"
            one.schema = _with_words(one.schema, f"Sent as the {where} {one.original!r}.")


def _with_words(schema: Any, words: str) -> Schema:
    schema = schema if isinstance(schema, dict) else {}
    before = str(schema.get("description", "")).rstrip()
    before += "." if before[-1:].isalnum() else ""
    return {**schema, "description": f"{before} {words}" if before else words}


def _chosen_media(content: Mapping[str, MediaType]) -> tuple[str, BodyKind, MediaType]:
    """The media type that is easiest to write, of those that a body may have."""
    kinds = {name: _kind_of(name, media) for name, media in content.items()}
    name = min(kinds, key=lambda one: (("json", "form", "multipart", "raw").index(kinds[one]), _plainness(one)))
    return name, kinds[name], content[name]


def _kind_of(media_type: str, media: MediaType) -> BodyKind:
    bare = bare_type(media_type)
    if is_json(bare):
        return "json"
    if bare == "application/x-www-form-urlencoded":
        return "form"
    if bare == "multipart/form-data":
        return "multipart"
    if bare in {"*/*", "application/*"} and isinstance(media.schema, dict) and media.schema.get("type") != "string":
        return "json"
    return "raw"


def _plainness(media_type: str) -> int:
    bare = bare_type(media_type)
    if bare == "application/json" or bare.startswith("text/plain"):
        return 0
    if bare in _PATCHES:
        return _PATCHES[bare]
    return 2 if bare.startswith("text/") or bare.endswith("+json") else 3


def bare_type(media_type: str) -> str:
    """A media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def is_json(bare: str) -> bool:
    return bare in {"application/json", "text/json"} or bare.endswith("+json")


def _text_schema(schema: Schema, media_type: str) -> Schema:
    """Bodies that are neither JSON nor a form are written by the model itself."""
    bare = bare_type(media_type)
    words = f"The whole body, as {bare}." if bare.startswith("text/") else f"The whole body, as {bare}. {_BYTES}"
    kept = {key: value for key, value in schema.items() if key == "description"}
    return _with_words({"type": "string", **kept}, words)


def _file_type(schema: Any, definitions: Mapping[str, Schema | bool]) -> str | None:
    """The media type of a property of a form that is a file, or a list of files; `None` of any other."""
    for _ in range(8):
        if isinstance(schema, dict) and "$ref" in schema:
            schema = definitions.get(schema["$ref"].removeprefix(PREFIX), True)
        elif isinstance(schema, dict) and schema.get("type") == "array":
            schema = schema.get("items", True)
        else:
            break
    if not isinstance(schema, dict) or ("contentEncoding" in schema and schema.get("format") != "binary"):
        return None
    return schema.get("contentMediaType", "application/octet-stream" if schema.get("format") == "binary" else None)


class Unwritable(ValueError):
    """A value that cannot be sent in its place. The message is for the model."""


def as_text(value: Any, name: str) -> str:
    """A value as text: strings as they are, everything else as JSON. Raises `Unwritable`."""
    if isinstance(value, str):
        text = value
    elif value is None:
        raise Unwritable(f"{name}: null cannot be written here; leave it out")
    elif isinstance(value, float) and not math.isfinite(value):
        raise Unwritable(f"{name}: {value} is not a number that can be sent")
    else:
        # `3.0` fits `integer`, and few servers read it as one in a text.
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        text = json.dumps(int(value) if is_whole else value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unwritable(f"{name}: holds half of a surrogate pair, which is not valid text") from None
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
    return lead + _not_empty(_joined(value, atom, explode, between), name)


def _matrix(label: str, value: Any, atom: Any, explode: bool) -> str:
    if isinstance(value, Mapping) and explode:
        return ";" + _not_empty(_joined(value, atom, explode, ";"), label)
    if isinstance(value, list) and explode:
        return ";" + _not_empty(";".join(f"{label}={atom(one)}" for one in value), label)
    return f";{label}={_not_empty(_joined(value, atom, False), label)}"


def _joined(value: Any, atom: Any, explode: bool, between: str = ",") -> str:
    """A list, an object or a single value as one text."""
    if isinstance(value, Mapping):
        return between.join(_flattened(value, atom, explode))
    return between.join(atom(one) for one in value) if isinstance(value, list) else str(atom(value))


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
        return _deep(label, value, atom)
    if not isinstance(value, list | Mapping):
        return [f"{label}={atom(value)}"]
    if parameter.explode:
        if isinstance(value, list):
            return [f"{label}={atom(one)}" for one in value]
        return _flattened(value, atom, True)
    plain, written = _DELIMITERS.get(parameter.style, ("", ","))

    def part(one: Any) -> str:
        text = as_text(one, name)
        if plain and plain in text:
            raise Unwritable(f"{name}: {text!r:.80} must not contain {plain!r}, which separates the values")
        return quote(text, safe=safe.replace(",", ""))

    is_empty = isinstance(value, Mapping) and all(one is None for one in value.values())
    return [] if is_empty else [f"{label}={_joined(value, part, False, written)}"]


def _deep(label: str, value: Any, atom: Any) -> list[str]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        return [part for key, one in value.items() for part in _deep(f"{label}%5B{atom(key)}%5D", one, atom)]
    return [] if value is None else [f"{label}={atom(value)}"]


def header_text(parameter: Parameter, value: Any) -> str:
    """The value of a header. Raises `Unwritable`."""
    name = parameter.name

    def atom(one: Any) -> str:
        text = as_text(one, name)
        if re.search(r"[,=]" if isinstance(value, Mapping) else ",", text):
            raise Unwritable(f"{name}: {text!r:.80} must not contain ',', which separates the values of a header")
        return text

    if parameter.content_type is not None:
        text = json.dumps(value, ensure_ascii=True)
    else:
        text = _joined(value, atom, parameter.explode) if isinstance(value, list | Mapping) else as_text(value, name)
    if text and not _HEADER.fullmatch(text):
        raise Unwritable(
            f"{name}: a header holds plain ASCII on one line, without spaces around it, and not {text!r:.80}"
        )
    return text


def cookie_text(parameter: Parameter, value: Any) -> str:
    """The percent-encoded value of a cookie. Lists and objects have commas between, since cookies of one name replace
    each other. Raises `Unwritable`."""

    def atom(one: Any) -> str:
        return quote(as_text(one, parameter.name), safe="")

    if parameter.content_type is not None:
        return atom(json_text(value, parameter.name))
    return _joined(value, atom, False)


def json_text(value: Any, name: str) -> str:
    """`value` as JSON. Raises `Unwritable` for what has no JSON form."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (ValueError, TypeError) as error:
        raise Unwritable(f"{name}: has no JSON form ({error})") from None
    return text


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
        for part in _multipart(name, one, plan.encoding.get(name), plan.files.get(name))
    ]
    return Body(parts=parts) if parts else Body(b"--empty--\r\n", "multipart/form-data; boundary=empty")


def has_style(encoding: Encoding | None) -> bool:
    """Whether a property of a form is written like a parameter, also where it is an object."""
    return encoding is not None and (encoding.style is not None or encoding.explode is not None)


def form_parameter(name: str, encoding: Encoding | None, schema: Schema | bool = True) -> Parameter:
    """The parameter that a property of a form is written like."""
    encoding = encoding or Encoding()
    style = encoding.style or "form"
    explode = encoding.explode if encoding.explode is not None else style in {"form", "deepObject"}
    return Parameter(name, "query", False, schema, style, explode, allow_reserved=encoding.allow_reserved)


def _media_types(encoding: Encoding | None) -> list[str]:
    """The media types that a document allows for a property of a form."""
    allowed = encoding.content_type if encoding is not None else None
    return [one.strip() for one in allowed.split(",")] if allowed and "*" not in allowed else []


def _media_type(encoding: Encoding | None) -> str | None:
    """The first of them, which will do."""
    return next(iter(_media_types(encoding)), None)


def _form_pairs(name: str, value: Any, encoding: Encoding | None) -> list[str]:
    is_json_list = isinstance(value, list) and is_json(bare_type(_media_type(encoding) or ""))
    if (isinstance(value, Mapping) or is_json_list) and not has_style(encoding):
        value = json_text(value, name)
    return query_parts(form_parameter(name, encoding), value)


def _multipart(name: str, value: Any, encoding: Encoding | None, file_type: str | None) -> list[Part]:
    """`file_type`: the media type of files, which have a file name, and are bytes."""
    if value is None:
        return []
    if file_type is None and has_style(encoding):
        pairs = [map(unquote, pair.partition("=")[::2]) for pair in _form_pairs(name, value, encoding)]
        return [(key, (None, text.encode(), None)) for key, text in pairs]
    wanted = _media_type(encoding)
    if isinstance(value, list):
        return [part for one in value for part in _multipart(name, one, encoding, file_type)]
    if isinstance(value, Mapping) or (wanted is not None and is_json(bare_type(wanted)) and not file_type):
        return [(name, (None, json_text(value, name).encode(), wanted or "application/json"))]
    text = as_text(value, name)
    if file_type is None and (wanted is None or wanted.startswith("text/")):
        return [(name, (None, text.encode(), wanted))]
    content, found = _content(text)
    return [(name, (name, content, found if found in _media_types(encoding) else wanted or found or file_type))]


def _content(text: str) -> tuple[bytes, str | None]:
    """The bytes behind text that a model wrote, and their media type where it said one."""
    match = _DATA_URL.fullmatch(text)
    if match is None:
        return text.encode(), None
    try:
        return base64.b64decode("".join(match["data"].split()), validate=True), match["type"]
    except binascii.Error as error:
        raise Unwritable(f"what follows 'base64,' is not valid base64: {error}") from None


@dataclass(frozen=True)
class Prepared:
    """A request before credentials. `path` and `query` are percent-encoded. `value`: the body before it was written."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    cookies: dict[str, str]
    body: Body | None
    value: Any = None


def prepare(
    operation: Operation,
    plan: Plan,
    arguments: Mapping[str, Any],
    *,
    reserved: Collection[str] = (),
    slashes: bool = False,
) -> Prepared:
    """`reserved`: names of query parameters that only the configuration may set. `slashes`: see `path_text`.

    Raises `Unwritable` for arguments that have no form in their place.
    """
    # Some write a query into their paths, and a fragment, by which paths differ that are one to the server.
    path = operation.path.partition("#")[0]
    query: list[str] = []
    headers: dict[str, str] = {}
    cookies: dict[str, str] = {}
    names = {one.name for one in plan.parameters.values() if one.location == "query"} | set(reserved)
    for argument, parameter in plan.parameters.items():
        if argument in arguments:
            value = arguments[argument]
        elif parameter.location == "path" and isinstance(parameter.schema, dict) and "default" in parameter.schema:
            value = parameter.schema["default"]  # it must be written: there is no path without it
        else:
            continue
        if parameter.location == "path":
            path = path.replace(f"{{{parameter.name}}}", path_text(parameter, value, slashes=slashes))
        elif parameter.location == "query":
            _refuse_taken(parameter, value, names)
            query += query_parts(parameter, value)
        elif value is None or value == [] or value == {}:
            continue
        elif parameter.location == "header":
            headers[parameter.name] = header_text(parameter, value)
        else:
            cookies[parameter.name] = cookie_text(parameter, value)
    missing = [one.name for one in plan.parameters.values() if one.location == "path" and f"{{{one.name}}}" in path]
    if missing:
        raise Unwritable(f"{missing[0]}: is part of the path and must be given")
    path, _, fixed = path.partition("?")
    given = {one.name for argument, one in plan.parameters.items() if argument in arguments and one.location == "query"}
    pairs = [one for one in fixed.split("&") if one and unquote(one.partition("=")[0]) not in {*given, *reserved}]
    query[:0] = [quote(one, safe="=%:@!$'()*+,;/?") for one in pairs]
    made = None if plan.body is None else body_of(plan.body, arguments)
    body, value = made if made is not None else (None, None)
    # The document's own part of a path may hold letters that a URL does not.
    encoded = quote(checked_path(path), safe="/%:@!$&'()*+,;=~")
    return Prepared(operation.method.upper(), encoded, "&".join(query), headers, cookies, body, value)


def _refuse_taken(parameter: Parameter, value: Any, names: Collection[str]) -> None:
    """The keys of an object may become query parameters: none of them may pass for another one."""
    spreads = parameter.style == "form" and parameter.explode and parameter.content_type is None
    if spreads and isinstance(value, Mapping):
        for key in value:
            if key in names and key != parameter.name:
                raise Unwritable(f"{parameter.name}: must not have the key {key!r}, which is a parameter of its own")
