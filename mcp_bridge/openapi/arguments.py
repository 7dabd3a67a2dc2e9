"""The arguments that a model gives for an operation, and their places in the request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .document import Encoding, MediaType, Operation, Parameter
from .schemas import PREFIX, Schema
from .views import View, flat_object, without_echo

BodyKind = Literal["json", "form", "multipart", "raw"]

# What model APIs take as the name of an argument.
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_.-]+")
_LONGEST = 64
_BYTES = 'Text, or bytes as "data:<media type>;base64,<bytes>".'
# The changed properties are easy to write, a list of operations on them is not.
_PATCHES = {"application/merge-patch+json": 1, "application/json-patch+json": 4}
_FLAT_KINDS = ("json", "form", "multipart")


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
    schema: Schema = {"type": "object", "properties": {one.name: one.schema for one in wanted}}
    required = [one.name for one in wanted if one.required]
    if required:
        schema["required"] = required
    if together:
        # The body as a whole may be left out, but one that is given must be complete.
        needs = {name: [other for other in together if other != name] for name in in_body}
        needs = {name: others for name, others in needs.items() if others}
        if needs:
            schema["dependentRequired"] = needs
    schema["additionalProperties"] = False
    return schema


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
    media_type, kind, media = chosen_media(operation.body.content)
    required = operation.body.required
    schema = request.of(media.schema) if isinstance(media.schema, dict) else {}
    flat = flat_object(schema, request.definitions) if kind in _FLAT_KINDS else None
    if flat is None:
        if kind == "raw":
            schema = _text_schema(schema, media_type)
        words = {"description": operation.body.description} if operation.body.description else {}
        wanted = _Wanted(
            "body", "body", {**words, **schema} if "description" in schema else {**schema, **words}, required
        )
        return BodyPlan(media_type, kind, required, whole="body", encoding=media.encoding), [wanted], []
    properties, needed = flat
    types = {name: _file_type(one, request.definitions) for name, one in properties.items() if kind == "multipart"}
    files = {name: one for name, one in types.items() if one is not None}
    plan = BodyPlan(media_type, kind, required, encoding=media.encoding, files=files)
    wanted_all = [
        _Wanted(
            name,
            "body",
            _with_words(one, _BYTES) if name in files else one if isinstance(one, dict) else {},
            required and name in needed,
        )
        for name, one in properties.items()
    ]
    return plan, wanted_all, [] if required else [name for name in needed if name in properties]


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
    """Give each argument a name that no other has. Two of one name get their places in them: `id_in_path`."""
    legal = [_ILLEGAL.sub("_", one.original).strip("_.")[:_LONGEST] or "argument" for one in wanted]
    counts = Counter(legal)
    taken: set[str] = set()
    for one, first in zip(wanted, legal, strict=True):
        base = first if counts[first] == 1 else f"{first[: _LONGEST - 10]}_in_{one.location}"
        name, number = base, 1
        while name in taken or (name != first and name in counts):
            number += 1
            name = f"{base[: _LONGEST - 3]}_{number}"
        taken.add(name)
        one.name = name
        if name != one.original:
            where = "property of the body" if one.location == "body" else f"{one.location} parameter"
            one.schema = _with_words(one.schema, f"Sent as the {where} {one.original!r}.")


def _with_words(schema: Any, words: str) -> Schema:
    schema = schema if isinstance(schema, dict) else {}
    before = str(schema.get("description", "")).rstrip()
    return {**schema, "description": f"{before} {words}" if before else words}


def chosen_media(content: Mapping[str, MediaType]) -> tuple[str, BodyKind, MediaType]:
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
