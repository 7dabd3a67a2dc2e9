"""Which property of a row a path parameter stands for."""

from __future__ import annotations

from typing import Any, Literal

from ..shapes import Shape, Shapes
from ..values.realistic import words_of
from .model import HIDDEN, Part

Kind = Literal["integer", "string"]

_NUMBERED = ("number", "iid", "index", "no", "id", "code", "version")
_NAMED = (
    "slug", "key", "name", "login", "username", "user_name", "code", "handle", "sku", "sha", "path", "ref", "email",
    "tag_name", "title", "id", "uuid", "guid",
)  # fmt: skip
_PERSON = ("login", "username", "user_name", "handle", "email", "name", "id", "uuid")
_IDS = (
    "id",
    "uuid",
    "guid",
    "sha",
    "key",
    "code",
    "slug",
    "number",
    "name",
    "login",
    "username",
)
_PEOPLE = frozenset(("user", "username", "login", "owner", "member", "author", "person", "collaborator"))


def _likely(parameter: str, kind: Kind | None) -> tuple[str, ...]:
    """What the key may be called where no property has the parameter's name, likely ones first."""
    words = words_of(parameter)
    if {"id", "uuid", "guid"} & set(words):
        return _IDS
    if kind == "integer":
        return _NUMBERED
    return _PERSON if _PEOPLE & set(words) else _NAMED


def key_part(parameter: str, schema: Any, row: Shape, shapes: Shapes, singular: str) -> tuple[Part, bool]:
    """The last part of a row's key, and whether it was guessed: no property goes by the parameter's name."""
    wanted = _kind(shapes.of(schema))
    usable = {name: kind for name in row.properties if (kind := _usable(row.properties[name], shapes)) is not None}
    found, guessed = _named(parameter, singular, usable, wanted), False
    if found is None:
        guessed = True
        names = {"_".join(words_of(name)): name for name in reversed(list(usable))}
        fitting = [
            names[one] for one in _likely(parameter, wanted) if one in names and wanted in (None, usable[names[one]])
        ]
        found = fitting[0] if fitting else None
    if found is None:
        column = HIDDEN + "_".join(words_of(parameter) or ["key"])
        return Part(parameter, column, wanted or "string", schema=schema), True
    return Part(parameter, found, usable[found], schema=row.properties[found]), guessed


def scope_part(parameter: str, schema: Any, row: Shape, shapes: Shapes) -> Part:
    """A part of the key before the last: a property of the parameter's name, whatever its type, or a hidden column."""
    kind = _kind(shapes.of(schema)) or "string"
    for name in row.properties:
        if words_of(name) == words_of(parameter):
            return Part(parameter, name, kind, schema=row.properties[name])
    return Part(parameter, HIDDEN + "_".join(words_of(parameter)), kind, schema=schema)


def _named(parameter: str, singular: str, usable: dict[str, Kind], wanted: Kind | None) -> str | None:
    """A property of the parameter's name, with or without the row's own word before it."""
    words, own = words_of(parameter), words_of(singular)
    shorter = [words[len(own) :]] if words[: len(own)] == own and len(words) > len(own) else []
    tail = [words[-1:]] if words[-1] in {"id", "number", "slug", "key", "code", "name", "uuid"} else []
    for candidate in [words, *shorter, [*own, *words], *tail, [*words, "name"]]:
        for name, kind in usable.items():
            if words_of(name) == candidate and wanted in (None, kind, "string"):
                return name
    for name, kind in usable.items():
        ends_alike = words_of(name)[-len(words) :] == words or (len(name) > 3 and parameter.lower().endswith(name))
        if ends_alike and words != ["id"] and wanted in (None, kind, "string"):
            return name
    return None


def _usable(schema: Any, shapes: Shapes) -> Kind | None:
    shape = shapes.of(schema)
    if shape.write_only or (shape.enum is not None and len(shape.enum) < 8) or shape.says.get("format") == "date-time":
        return None
    return _kind(shape)


def _kind(shape: Shape) -> Kind | None:
    if not shape.typed:
        return None
    kinds = shape.kinds - {"null"}
    if kinds <= {"integer", "number"}:
        return "integer" if "integer" in kinds else None
    return "string" if "string" in kinds else None
