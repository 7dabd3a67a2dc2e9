"""Schemas of OpenAPI 3.0 and 3.1 as JSON Schema 2020-12. Every reference becomes `#/$defs/Name`. Callers get the views
that they need: what may be sent, and what comes back.

By the letter, a value must fit exactly one schema of `oneOf`, and schemas that leave other properties open often fit
one another's values: `{"kind": "Dog"}` is a Cat too. OpenAPI means the choice that the discriminating property names
(Discriminator Object, OpenAPI 3.0.3 and 3.1.0). So each choice gets the values that are its own, and in all choices one
that fits is enough.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from ..errors import SourceError
from ..guard import numbered
from ..toolsets.schema_checks import is_readable, satisfiable
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
        if key == "$ref":
            if not isinstance(value, str):
                raise SourceError(f"{where}: must be a string, not {value!r:.80}")
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
    for one in kind if isinstance(kind, list) else [] if kind is None else [kind]:
        if not isinstance(one, str) or one not in _TYPES:
            raise SourceError(f"{place}: type is {one!r}; the choices are {', '.join(sorted(_TYPES))}")


def _nullable(schema: Schema) -> Schema:
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
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


Mark = Literal["readOnly", "writeOnly"]

_NOISE = frozenset({"discriminator", "xml", "externalDocs", "readOnly", "writeOnly"})
_NOT_FLAT = frozenset(
    {"anyOf", "oneOf", "not", "if", "then", "else", "patternProperties", "dependentSchemas", "dependentRequired"}
    | {"propertyNames", "minProperties", "maxProperties", "unevaluatedProperties", "enum", "const", "prefixItems"}
)
_DEEPEST = 8

NOTHING: Schema = {"not": {}}
"""The schema of no value; unlike with `false`, errors of `jsonschema` name its place."""


class View:
    """The `schemas` of a document without the properties that are marked. `None`: with all of them.

    `is_strict`: they stay, as `NOTHING`, so that a value which has one is invalid.
    """

    def __init__(self, schemas: Mapping[str, Schema | bool], mark: Mark | None, *, is_strict: bool = False) -> None:
        self._all = with_heirs(schemas)
        self._mark = mark
        self._is_strict = is_strict

    @functools.cached_property
    def definitions(self) -> dict[str, Schema | bool]:
        """All of the document's, in this view."""
        return {name: self.of(schema) if isinstance(schema, dict) else schema for name, schema in self._all.items()}

    @functools.cached_property
    def _closing(self) -> Closing:
        return Closing(self.definitions)

    def of(self, schema: Schema) -> Schema:
        """`schema` in this view, with references as they were. A choice that fits is enough."""
        hidden = self.hidden(schema)
        if hidden and "allOf" in schema:
            schema = {**schema, "allOf": [self._marked(part, hidden) for part in schema["allOf"]]}
        copy = _with_any_of(self._told_apart(replaced(schema, self.of), schema.get("discriminator")))
        if "properties" in copy:
            copy["properties"] = {
                name: NOTHING if name in hidden else without_echo(name, one)
                for name, one in copy["properties"].items()
                if self._is_strict or name not in hidden
            }
        if hidden:
            _not_required(copy, hidden)
        _readable_patterns(copy)
        return {key: value for key, value in copy.items() if key not in _NOISE and not key.startswith("x-")}

    def told_apart(self, schema: Schema) -> Schema:
        """`schema`, changed only where a `oneOf` has a discriminator: each choice has the values of its own."""
        return self._told_apart(replaced(schema, self.told_apart), schema.get("discriminator"))

    def closed(self, schema: Schema) -> Schema:
        """A schema of this view that stands alone."""
        return self._closing.closed(schema)

    def hidden(self, schema: Schema) -> set[str]:
        """The names of the marked properties of an object's schema, also of what it is put together from."""
        found: set[str] = set()
        pending: list[tuple[Any, int]] = [(schema, 0)]
        while pending:
            one, depth = pending.pop()
            one = self._resolved(one)
            if isinstance(one, dict) and depth < _DEEPEST:
                found |= {name for name, inner in one.get("properties", {}).items() if self._is_marked(inner)}
                pending += [(part, depth + 1) for part in one.get("allOf", ())]
        return found

    def _marked(self, part: Any, names: set[str], depth: int = _DEEPEST) -> Any:
        """A part of `allOf`, in which the properties of these names are marked, for another part says so; itself where
        it has none of them. What was referred to is written in it: elsewhere it stays as it is."""
        whole = self._resolved(part)
        beside = {key: value for key, value in part.items() if key != "$ref"} if whole is not part else {}
        if not isinstance(whole, dict) or depth == 0 or not set(beside) <= ANNOTATIONS:
            return part
        own, parts = whole.get("properties", {}), whole.get("allOf", [])
        names = names - self.hidden(whole)
        found = {name: own.get(name) for name in (*own, *whole.get("required", ())) if name in names}
        inner = [self._marked(one, names, depth - 1) for one in parts]
        if not found and all(new is one for new, one in zip(inner, parts, strict=True)):
            return part
        marked = {
            name: {**one, self._mark: True} if isinstance(one, dict) else {self._mark: True}
            for name, one in found.items()
        }
        return {**whole, **beside, "properties": {**own, **marked}, **({"allOf": inner} if inner else {})}

    def reaches_mark(self, schema: Schema) -> bool:
        """Whether a value of this schema may hold a marked property at any depth."""
        return self._has_mark(schema) or not self._reaching.isdisjoint(referred(schema))

    @functools.cached_property
    def _reaching(self) -> frozenset[str]:
        """The definitions whose values may hold a marked property at any depth."""
        users: dict[str, list[str]] = {}
        found: set[str] = set()
        pending: list[str] = []
        for name, schema in self._all.items():
            if isinstance(schema, dict):
                pending += [name] if self._has_mark(schema) else []
                for used in referred(schema):
                    users.setdefault(used, []).append(name)
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += users.get(name, ())
        return frozenset(found)

    def _has_mark(self, schema: Schema) -> bool:
        """Whether an object of this schema, or of one written inside it, may have a marked property."""
        return bool(self.hidden(schema)) or any(map(self._has_mark, schemas_in(schema)))

    def pruned(self, value: Any, schema: Schema | bool) -> Any:
        """`value` without the marked properties, by the original `schema`."""
        schema = self._resolved(schema)
        if not isinstance(schema, dict):
            return value
        for part in (*schema.get("allOf", ()), *schema.get("anyOf", ()), *schema.get("oneOf", ())):
            value = self.pruned(value, part)
        if isinstance(value, Mapping):
            properties = schema.get("properties", {})
            rest = schema.get("additionalProperties", True)
            return {
                name: self.pruned(inner, properties.get(name, rest))
                for name, inner in value.items()
                if not self._is_marked(properties.get(name))
            }
        if isinstance(value, list) and "items" in schema:
            return [self.pruned(inner, schema["items"]) for inner in value]
        return value

    def _told_apart(self, schema: Schema, discriminator: Any) -> Schema:
        """`schema`, whose `oneOf` has the discriminator, with its values in each choice."""
        choices = schema.get("oneOf")
        name, named = _discriminating(discriminator)
        if not choices or name is None or "anyOf" in schema:
            return schema
        rest = {key: value for key, value in schema.items() if key != "oneOf"}
        return {**rest, "anyOf": [self._with_values(one, name, named) for one in choices]}

    def _with_values(self, choice: Any, name: str, named: Mapping[str, list[str]]) -> Any:
        reference = choice.get("$ref") if isinstance(choice, dict) else None
        # A property that nobody sends gets no values.
        if reference is None or name in self.hidden(choice) or self._says_values(choice, name, _DEEPEST):
            return choice
        target = reference.removeprefix(PREFIX)
        return {"allOf": [choice, {"properties": {name: {"enum": named.get(target, [target])}}, "required": [name]}]}

    def _says_values(self, schema: Any, name: str, depth: int) -> bool:
        """Whether the schema itself limits the property to some values."""
        schema = self._resolved(schema)
        if not isinstance(schema, dict) or depth == 0:
            return False
        own = self._resolved(schema.get("properties", {}).get(name))
        if isinstance(own, dict) and {"const", "enum"} & set(own):
            return True
        return any(self._says_values(part, name, depth - 1) for part in schema.get("allOf", ()))

    def _is_marked(self, schema: Any) -> bool:
        forms = (schema, self._resolved(schema))
        return any(isinstance(one, dict) and one.get(self._mark) is True for one in forms)

    def _resolved(self, schema: Any) -> Any:
        for _ in range(_DEEPEST * 4):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            schema = self._all.get(schema["$ref"].removeprefix(PREFIX), True)
        return schema


def _with_any_of(schema: Schema) -> Schema:
    """A copy with `anyOf` in the place of `oneOf`: an integer fits both an integer and a number, and a day both of two
    formats, which say nothing here. The API takes them all the same."""
    copy = dict(schema)
    choices = copy.pop("oneOf", None)
    if choices is not None and "anyOf" in copy:
        copy["allOf"] = [*copy.get("allOf", ()), {"anyOf": choices}]
    elif choices is not None:
        copy["anyOf"] = choices
    return copy


def _discriminating(discriminator: Any) -> tuple[str | None, dict[str, list[str]]]:
    """The property, and the values of each schema by the last step of its reference: a mapping may name a schema
    without a path."""
    discriminator = discriminator if isinstance(discriminator, Mapping) else {}
    name, mapping = discriminator.get("propertyName"), discriminator.get("mapping")
    named: dict[str, list[str]] = {}
    for value, target in (mapping if isinstance(mapping, Mapping) else {}).items():
        named.setdefault(str(target).rpartition("/")[2], []).append(str(value))
    return name if isinstance(name, str) else None, named


def with_heirs(schemas: Mapping[str, Schema | bool], *, is_named: bool = False) -> Mapping[str, Schema | bool]:
    """`schemas`, where one with a discriminator and no choices is one of itself and what is made from it by `allOf`.

    What it says itself gets a name of its own, which the others are made from. A mapping names those that count.
    `is_named`: it goes by its own name among the others, and is none of them where a mapping leaves it out; else it has
    all values that none of the others has.
    """
    users: dict[str, list[str]] = {}
    for name, schema in schemas.items():
        for part in schema.get("allOf", ()) if isinstance(schema, dict) else ():
            if isinstance(part, dict) and "$ref" in part:
                users.setdefault(part["$ref"].removeprefix(PREFIX), []).append(name)
    made, itself = dict(schemas), dict[str, str]()
    for name, schema in schemas.items():
        key, named = _discriminating(schema.get("discriminator")) if isinstance(schema, dict) else (None, {})
        if not isinstance(schema, dict) or key is None or {"oneOf", "anyOf"} & schema.keys():
            continue
        below = list(users.get(name, ()))
        for one in below:
            below += [other for other in users.get(one, ()) if other not in below]
        heirs = [one for one in below if one != name and (not named or one in named)]
        if heirs:
            own = itself[PREFIX + name] = PREFIX + numbered(f"{name}_itself", made)
            made[own.removeprefix(PREFIX)] = {k: one for k, one in schema.items() if k != "discriminator"}
            others = {"properties": {key: {"not": {"enum": [v for one in heirs for v in named.get(one, [one])]}}}}
            values = named.get(name, [] if named else [name])
            said = {"properties": {key: {"enum": values}}, "required": [key]} if is_named else others
            choices: list[Schema] = [] if is_named and not values else [{"allOf": [{"$ref": own}, said]}]
            choices += [{"$ref": PREFIX + one} for one in heirs]
            made[name] = {"oneOf": choices, "discriminator": schema["discriminator"]}
    for name, schema in made.items():
        if isinstance(schema, dict) and "allOf" in schema:
            references = [part.get("$ref") if isinstance(part, dict) else None for part in schema["allOf"]]
            parts = zip(references, schema["allOf"], strict=True)
            made[name] = {**schema, "allOf": [{**p, "$ref": itself[r]} if r in itself else p for r, p in parts]}
    return made


def without_echo(name: str, schema: Any) -> Any:
    """`schema` without a title that only repeats the name: generators write one for everything, and prompts pay."""
    if not isinstance(schema, dict) or _letters(schema.get("title", "")) != _letters(name):
        return schema
    return {key: value for key, value in schema.items() if key != "title"}


def _letters(text: Any) -> str:
    return re.sub(r"[\W_]+", "", str(text)).lower()


def _readable_patterns(schema: Schema) -> None:
    """Patterns are in JavaScript's dialect. One that Python cannot read moves into the description, unchecked."""
    pattern = schema.get("pattern")
    if pattern is not None and not is_readable(pattern):
        del schema["pattern"]
        before = str(schema.get("description", "")).rstrip()
        schema["description"] = f"{before} Must match {pattern}.".lstrip()
    if "patternProperties" in schema:
        named = schema["patternProperties"]
        schema["patternProperties"] = {name: one for name, one in named.items() if is_readable(name)}
        if len(named) != len(schema["patternProperties"]) and schema.get("additionalProperties") is False:
            # Names that fit what cannot be read must not be refused.
            del schema["additionalProperties"]


def _not_required(schema: Schema, hidden: set[str]) -> None:
    """Take `hidden` out of what `schema`, and what is written inside its `allOf`, requires."""
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name not in hidden]
        if not schema["required"]:
            del schema["required"]
    for part in schema.get("allOf", ()):
        if isinstance(part, dict):
            _not_required(part, hidden)


def flat_object(
    schema: Schema | bool, definitions: Mapping[str, Schema | bool]
) -> tuple[dict[str, Any], list[str]] | None:
    """The properties of an object and which are required, where the schema has nothing else; else `None`."""
    flat = _flat(schema, definitions, 0)
    return flat if flat is not None and flat[0] else None


def _flat(
    schema: Schema | bool, definitions: Mapping[str, Schema | bool], depth: int
) -> tuple[dict[str, Any], list[str]] | None:
    if not isinstance(schema, dict) or depth > _DEEPEST or _NOT_FLAT & set(schema):
        return None
    if schema.get("type", "object") != "object" or schema.get("additionalProperties", False) is not False:
        return None
    properties: dict[str, Any] = {}
    required: list[str] = []
    parts = [_flat(part, definitions, depth + 1) for part in schema.get("allOf", ())]
    if "$ref" in schema:
        parts.append(_flat(definitions[schema["$ref"].removeprefix(PREFIX)], definitions, depth + 1))
    for part in (*parts, (schema.get("properties", {}), schema.get("required", []))):
        if part is None or any(properties[name] != one for name, one in part[0].items() if name in properties):
            return None
        properties |= part[0]
        required += part[1]
    return properties, list(dict.fromkeys(required))
