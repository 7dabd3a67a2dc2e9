"""Which property of a row a path parameter stands for."""

from __future__ import annotations

from typing import Any, Literal

from ..shapes import Shape, Shapes
from ..values.realistic import words_of
from .model import HIDDEN, Part

Kind = Literal["integer", "string"]

_NUMBERED = ("number", "iid", "index", "no", "id", "code", "version")
_NAMED = (
    "id", "uuid", "guid", "slug", "key", "name", "login", "username", "user_name", "code", "handle", "sku", "sha",
    "path", "ref", "email", "tag_name", "title",
)  # fmt: skip
_PERSON = ("id", "uuid", "login", "username", "user_name", "handle", "email", "name")
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
_METADATA = "metadata"
_PEOPLE = frozenset(("user", "username", "login", "owner", "member", "author", "person", "collaborator"))


def _likely(parameter: str, kind: Kind | None, description: str) -> list[str]:
    """What the key may be called where no property has the parameter's name, likely ones first: "the name of the tag"
    is a name, and otherwise rows with an id of the parameter's type are named by it."""
    words = words_of(parameter)
    if {"id", "uuid", "guid"} & set(words):
        return list(_IDS)
    usual = _NUMBERED if kind == "integer" else _PERSON if _PEOPLE & set(words) else _NAMED
    told = words_of(description)
    return sorted(usual, key=lambda one: told.index(one) if one in told else len(told))


def key_part(
    parameter: str, schema: Any, row: Shape, shapes: Shapes, singular: str, description: str = ""
) -> tuple[Part, bool]:
    """The last part of a row's key, and whether it was guessed: no property goes by the parameter's name.

    `description`: of the parameter.
    """
    wanted = _kind(shapes.of(schema))
    usable = {name: kind for name in row.properties if (kind := _usable(row.properties[name], shapes)) is not None}
    found, guessed = _named(parameter, singular, usable, wanted), False
    if (found is None or words_of(found) != words_of(parameter)) and _METADATA in row.properties:
        for name, inner in shapes.of(row.properties[_METADATA]).properties.items():
            if words_of(name) == words_of(parameter) and (kind := _usable(inner, shapes)) is not None:
                column = HIDDEN + "_".join(words_of(name))
                return Part(parameter, column, kind, schema=inner, shown=(_METADATA, name)), False
    is_itself = words_of(parameter) == words_of(singular)
    has_id = usable.get("id") in ({wanted} if wanted else {"integer", "string"})
    if found is None or (is_itself and has_id and words_of(found) != words_of(parameter)):
        # `{domain}` of a domain with an id is no `domain_name`, and no `original_domain`.
        guessed = True
        names = {"_".join(words_of(name)): name for name in reversed(list(usable))}
        likely = [names[one] for one in _likely(parameter, wanted, description) if one in names]
        # A number may be asked for where rows show their id as text: then it is a text of digits.
        digits = [name for name in likely if wanted == "integer" and words_of(name)[-1] in {"id", "number"}]
        fitting = [name for name in likely if wanted in (None, usable[name])]
        found = next(iter([*fitting, *digits]), None)
    if found is None:
        column = HIDDEN + "_".join(words_of(parameter) or ["key"])
        return Part(parameter, column, wanted or "string", schema=schema), True
    kind = usable[found] if wanted is None or wanted == "string" else wanted
    return Part(parameter, found, kind, schema=row.properties[found]), guessed


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
    shorter += [["login"]] if "".join(words) == "username" else []
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
