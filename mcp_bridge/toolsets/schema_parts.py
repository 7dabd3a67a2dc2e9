"""The parts of JSON Schemas: which keywords hold other schemas, and walks that look at each part once.

The operations of an API may have most of their schemas in common. Written out, they are hundreds of times as long as
the document. In memory, parts that are equal are one object, so that what was found out of one is known for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

ONE = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "then"}
    | {"propertyNames", "unevaluatedItems", "unevaluatedProperties"}
)
"""Keywords whose value is a schema."""
MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
NAMED = frozenset({"dependentSchemas", "patternProperties", "properties"})
"""Keywords whose value is an object of schemas."""

# Those of older drafts, too.
_ALL_MANY = MANY | {"items"}
ALL_NAMED = NAMED | {"$defs", "definitions", "dependencies"}

Found = TypeVar("Found")


def replaced(schema: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """`schema` with `change` made to each schema that stands directly in it, and itself where nothing changes."""

    def one(value: Any) -> Any:
        return change(value) if isinstance(value, dict) else value

    changes: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ALL_NAMED and isinstance(value, dict):
            named = {name: one(inner) for name, inner in value.items()}
            if any(inner is not value[name] for name, inner in named.items()):
                changes[key] = named
        elif key in _ALL_MANY and isinstance(value, list):
            many = [one(inner) for inner in value]
            if any(inner is not before for inner, before in zip(many, value, strict=True)):
                changes[key] = many
        elif key in ONE and (new := one(value)) is not value:
            changes[key] = new
    return {**schema, **changes} if changes else schema


def schemas_in(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas that stand directly in `schema`, those that `replaced` may change."""
    for key, value in schema.items():
        found: Any = ()
        if key in ALL_NAMED and isinstance(value, dict):
            found = value.values()
        elif key in _ALL_MANY and isinstance(value, list):
            found = value
        elif key in ONE:
            found = [value]
        yield from (one for one in found if isinstance(one, dict))


_MOST_FOLLOWED = 100


def followed(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with what its `$ref` into the document `root` and its `allOf` add; what stands in it itself counts
    before that. A reference that leads nowhere, or elsewhere, adds nothing, and so does a second way to the same part.
    """
    found: dict[str, Any] = {}
    waiting, seen = [schema], set[str]()
    for part in waiting:
        if not isinstance(part, Mapping) or len(waiting) > _MOST_FOLLOWED:
            continue
        for key, value in part.items():
            known = found.get(key)
            if key == "$ref" and isinstance(value, str):
                waiting += [] if value in seen else [_target(value, root)]
                seen.add(value)
            elif key == "allOf" and isinstance(value, list):
                waiting += value
            elif key == "properties" and isinstance(known, Mapping) and isinstance(value, Mapping):
                found[key] = {**value, **known}
            elif key == "required" and isinstance(known, list) and isinstance(value, list):
                found[key] = [*known, *value]
            else:
                found.setdefault(key, value)
    return found


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    document, _, pointer = reference.partition("#")
    target: Any = root if not document and pointer[:1] in ("", "/") else None
    for step in unquote(pointer).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, Mapping) else None
    return target


class SharedParts:
    """What was found out of parts of schemas, for a few schemas that share parts. Nobody may change them meanwhile."""

    def __init__(self) -> None:
        self._found: dict[tuple[Hashable, int], tuple[Any, Any]] = {}

    def once(self, what: Hashable, part: Any, find: Callable[[Any], Found]) -> Found:
        """`find(part)`, called once for each part. `what`: tells what is found from all else that is."""
        key = (what, id(part))
        if key not in self._found:
            self._found[key] = (part, find(part))  # the part lives as long, and nothing else gets its id
        found: Found = self._found[key][1]
        return found

    def rewritten(
        self,
        what: Hashable,
        schema: dict[str, Any],
        change: Callable[[dict[str, Any], Callable[[str], None]], dict[str, Any]],
        tell: Callable[[str], None],
    ) -> dict[str, Any]:
        """`schema`, with `change` made to it and all schemas inside it, from the inside; itself where nothing changes.
        `tell`: hears all that `change` tells, also of a part that is known already."""

        def find(part: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
            told: list[str] = []
            inner = replaced(part, lambda one: self.rewritten(what, one, change, told.append))
            return change(inner, told.append), told

        made, told = self.once(what, schema, find)
        for one in told:
            tell(one)
        return made
