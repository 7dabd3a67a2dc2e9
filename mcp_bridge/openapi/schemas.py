"""Schemas of OpenAPI 3.0 and 3.1 as JSON Schema 2020-12, with every reference made `#/$defs/Name`."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..errors import SourceError
from ..guard import numbered
from ..toolsets.schema_checks import satisfiable
from ..toolsets.schema_parts import MANY, NAMED, ONE, replaced, schemas_in
from .references import NotFollowed, Place, References

logger = logging.getLogger(__name__)

Schema = dict[str, Any]

PREFIX = "#/$defs/"

# Their targets become definitions of their own, so what they would hold here is no longer needed.
_DROPPED = frozenset({"$defs", "definitions", "$id", "$anchor", "$dynamicAnchor", "$schema", "$comment", "nullable"})
_KEPT_BESIDE_REF_30 = frozenset({"description", "title", "default", "deprecated", "readOnly", "writeOnly", "nullable"})
ANNOTATIONS = frozenset({"description", "title", "default", "deprecated", "readOnly", "writeOnly", "examples"})
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


class SchemaReader:
    """Reads schemas of one API. What they refer to is read once each, and collected in `definitions`."""

    def __init__(self, references: References, *, is_30: bool) -> None:
        self._references = references
        self._is_30 = is_30
        self._names: dict[Place, str] = {}
        self._unread: list[tuple[str, Any, Place]] = []
        self.definitions: dict[str, Schema | bool] = {}
        self.broken: dict[str, str] = {}
        """What is wrong with a definition that cannot be used; anything is valid by it in `definitions`."""

    def name(self, name: str, node: Any, place: Place) -> None:
        """Give the schema at `place` its name, before anything refers to it."""
        self._names[place] = name
        self._unread.append((name, node, place))

    def finish(self) -> None:
        """Read what was referred to and not read yet, until nothing is left. Raises `NotFollowed`."""
        while self._unread:
            name, node, place = self._unread.pop()
            try:
                self.definitions[name] = self.read(node, place)
            except NotFollowed:
                raise
            except SourceError as error:
                self._give_up(name, str(error))
        for place, name in self._names.items():
            seen, here = [name], self.definitions[name]
            while isinstance(here, dict) and "$ref" in here:
                inner = here["$ref"].removeprefix(PREFIX)
                if inner in seen:
                    self._give_up(name, f"{place}: {name!r} refers only to itself")
                    break
                seen.append(inner)
                here = self.definitions[inner]

    def _give_up(self, name: str, why: str) -> None:
        logger.warning("the schema %r cannot be used, and is taken to allow anything in answers: %s", name, why)
        self.definitions[name], self.broken[name] = True, why

    def read(self, node: Any, place: Place) -> Schema | bool:
        """The schema at `place` in normal form. Raises `SourceError` where it is not a schema."""
        if isinstance(node, bool):
            return node
        if not isinstance(node, Mapping):
            raise SourceError(f"{place}: a schema must be an object, not {node!r:.80}")
        if isinstance(node.get("$dynamicRef"), str):
            raise SourceError(f"{place}: $dynamicRef is not supported; write a $ref")
        if self._is_30 and isinstance(node.get("$ref"), str):
            node = {key: value for key, value in node.items() if key == "$ref" or key in _KEPT_BESIDE_REF_30}
        schema: Schema = {}
        for key, value in node.items():
            if key not in _DROPPED:
                self._keyword(schema, key, value, place)
        _examples(schema, node)
        _exclusive(schema, place)
        _type(schema, place)
        if "allOf" in schema and schema.get("additionalProperties") is False:
            # By the letter, no property of a part may be there; every author who writes it here means all others.
            del schema["additionalProperties"]
            schema["unevaluatedProperties"] = False
        schema = satisfiable(
            schema, lambda one: logger.warning("%s: nothing satisfies %s; it is not enforced", place, one)
        )
        return _nullable(schema) if node.get("nullable") is True else schema

    def _keyword(self, schema: Schema, key: str, value: Any, place: Place) -> None:
        where = place / key
        if key == "$ref" and isinstance(value, str):
            schema[key] = PREFIX + self._named(value, place)
        elif key == "items" and isinstance(value, list):
            schema["prefixItems"] = self._list(value, where)
        elif key in ONE:
            schema[key] = self.read(value, where)
        elif key in MANY:
            schema[key] = self._list(value, where)
        elif key in NAMED or key == "dependencies":
            if not isinstance(value, Mapping):
                raise SourceError(f"{where}: must be an object of schemas, not {value!r:.80}")
            # The `dependencies` of older drafts may hold lists of names, too.
            schema[key] = {
                name: inner if key == "dependencies" and isinstance(inner, list) else self.read(inner, where / name)
                for name, inner in value.items()
            }
        elif key == "required":
            # Some write `required: true` inside a property, where it means nothing.
            if isinstance(value, list) and value:
                schema[key] = list(dict.fromkeys(str(one) for one in value))
        elif key not in {"example", "examples"}:
            schema[key] = value

    def _list(self, value: Any, where: Place) -> list[Schema | bool]:
        if not isinstance(value, list) or not value:
            raise SourceError(f"{where}: must be a list of schemas, not {value!r:.80}")
        return [self.read(inner, where / number) for number, inner in enumerate(value)]

    def _named(self, reference: str, place: Place) -> str:
        where = self._references.locate(reference, place)
        if where not in self._names:
            node, _ = self._references.target(reference, place)
            self.name(self._free_name(where), node, where)
        return self._names[where]

    def _free_name(self, where: Place) -> str:
        steps = [step for step in where.steps if step not in {"components", "schemas", "definitions", "$defs"}]
        stem = where.document.rpartition("/")[2].partition(".")[0] or "schema"
        base = re.sub(r"[^A-Za-z0-9._-]+", "_", "_".join(steps[-3:]) or stem).strip("_") or "schema"
        return numbered(base, set(self._names.values()))


def _examples(schema: Schema, node: Mapping[str, Any]) -> None:
    examples = node.get("examples", [])
    if isinstance(examples, Mapping):
        # OpenAPI's own `examples`, which stands beside schemas, is often written inside them.
        examples = [one["value"] if isinstance(one, Mapping) and "value" in one else one for one in examples.values()]
    examples = list(examples) if isinstance(examples, list) else [examples]
    if "example" in node and node["example"] not in examples:
        examples.insert(0, node["example"])
    if examples:
        schema["examples"] = examples


def _exclusive(schema: Schema, place: Place) -> None:
    """`exclusiveMinimum: true` beside `minimum` is one number in JSON Schema."""
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            del schema[exclusive]
            if flag and plain not in schema:
                raise SourceError(f"{place}: {exclusive} is true, but there is no {plain}")
            if flag:
                schema[exclusive] = schema.pop(plain)


def _type(schema: Schema, place: Place) -> None:
    kind = schema.get("type")
    if kind == "file":
        # Version 2's way to say it, which lives on in documents that were converted.
        schema |= {"type": "string", "format": "binary"}
        return
    kinds = kind if isinstance(kind, list) else [] if kind is None else [kind]
    for one in kinds:
        if not isinstance(one, str) or one not in _TYPES:
            raise SourceError(f"{place}: type is {one!r}; the choices are {', '.join(sorted(_TYPES))}")


def _nullable(schema: Schema) -> Schema:
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = [kind, "null"] if kind != "null" else kind
        return schema
    if isinstance(kind, list):
        schema["type"] = list(dict.fromkeys([*kind, "null"]))
        return schema
    if not {"$ref", "allOf", "anyOf", "oneOf", "not"} & set(schema):
        return schema
    # By the letter, `nullable` does nothing without a type; every author who writes it here means this.
    outside = {key: value for key, value in schema.items() if key in ANNOTATIONS}
    inside = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
    return {"anyOf": [inside, {"type": "null"}], **outside}


def referred(schema: Schema) -> Iterator[str]:
    """The names of the definitions that `schema` itself refers to, once for each reference."""
    pending = [schema]
    while pending:
        one = pending.pop()
        if isinstance(one.get("$ref"), str):
            yield one["$ref"].removeprefix(PREFIX)
        pending += schemas_in(one)


class Closing:
    """Makes schemas stand alone, with the definitions that they need.

    What is used once is written where it is used; what is used more often, or holds itself, stays in `$defs`. Parts of
    several schemas that come out equal are one object in all of them, for the operations of an API may have most of
    its definitions in common: never write to them.
    """

    def __init__(self, definitions: Mapping[str, Schema | bool]) -> None:
        self._definitions: Mapping[str, Any] = definitions
        self._referred: dict[str, list[str]] = {}
        self._variants: dict[tuple[str, tuple[int, ...]], Any] = {}

    def closed(self, schema: Schema) -> Schema:
        """`schema`, so that it stands alone."""
        needed: dict[str, None] = {}
        uses: Counter[str] = Counter()
        pending = [list(referred(schema))]
        while pending:
            for name in pending.pop():
                uses[name] += 1
                if name not in needed:
                    needed[name] = None
                    pending.append(self._names_in(name))
        # Every loop has a definition that is used twice: by the loop and by what leads into it.
        once = {name for name in needed if uses[name] == 1 and isinstance(self._definitions[name], dict)}
        made: dict[str, Any] = {}
        written = self._written(schema, once, made)
        defs = {name: self._whole(name, once, made) for name in needed if name not in once}
        return {**written, "$defs": defs} if defs else written

    def _names_in(self, name: str) -> list[str]:
        if name not in self._referred:
            target = self._definitions[name]
            self._referred[name] = list(referred(target)) if isinstance(target, dict) else []
        return self._referred[name]

    def _whole(self, name: str, once: Collection[str], made: dict[str, Any]) -> Any:
        """A definition, in which those that are used `once` are written. `made`: those of this schema so far."""
        if name not in made:
            inner = [self._whole(one, once, made) for one in self._names_in(name) if one in once]
            key = (name, tuple(map(id, inner)))
            if key not in self._variants:
                target = self._definitions[name]
                self._variants[key] = self._written(target, once, made) if inner else target
            made[name] = self._variants[key]
        return made[name]

    def _written(self, one: Schema, once: Collection[str], made: dict[str, Any]) -> Schema:
        name = str(one.get("$ref", "")).removeprefix(PREFIX)
        if "$ref" not in one or name not in once:
            return replaced(one, lambda inner: self._written(inner, once, made))
        target = self._whole(name, once, made)
        beside = {key: value for key, value in one.items() if key != "$ref"}
        if set(beside) <= ANNOTATIONS:
            return {**target, **beside} if beside else target
        beside = replaced(beside, lambda inner: self._written(inner, once, made))
        return {**beside, "allOf": [target, *beside.get("allOf", [])]}
