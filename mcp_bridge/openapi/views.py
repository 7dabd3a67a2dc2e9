"""The schemas of an API as its callers need them: what may be sent, and what comes back.

By the letter, a value must fit exactly one schema of `oneOf`, and schemas that leave other properties open often fit
one another's values: `{"kind": "Dog"}` is a Cat too. OpenAPI means the choice that the discriminating property names
(Discriminator Object, OpenAPI 3.0.3 and 3.1.0). So each choice gets the values that are its own, and one that fits is
enough.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Literal

from ..guard import numbered
from ..toolsets.schema_checks import is_readable
from ..toolsets.schema_parts import replaced, schemas_in
from .document import Document
from .schemas import ANNOTATIONS, PREFIX, Closing, Schema, referred

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
    """The schemas of a document without the properties that are marked. `None`: with all of them.

    `is_strict`: they stay, as `NOTHING`, so that a value which has one is invalid.
    """

    def __init__(self, document: Document, mark: Mark | None, *, is_strict: bool = False) -> None:
        self._all = _with_heirs(document.schemas)
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
        """`schema` in this view, with references as they were."""
        copy = dict(self._told_apart(replaced(schema, self.of), schema.get("discriminator")))
        if "properties" in copy:
            copy["properties"] = {name: without_echo(name, one) for name, one in copy["properties"].items()}
        hidden = self.hidden(schema)
        if hidden and "properties" in copy:
            properties = copy["properties"]
            copy["properties"] = {name: one for name, one in properties.items() if name not in hidden}
            if self._is_strict:
                copy["properties"] |= {name: NOTHING for name in properties if name in hidden}
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
        if isinstance(schema, dict) and schema.get(self._mark) is True:
            return True
        resolved = self._resolved(schema)
        return isinstance(resolved, dict) and resolved.get(self._mark) is True

    def _resolved(self, schema: Any) -> Any:
        for _ in range(_DEEPEST * 4):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            schema = self._all.get(schema["$ref"].removeprefix(PREFIX), True)
        return schema


def _discriminating(discriminator: Any) -> tuple[str | None, dict[str, list[str]]]:
    """The property, and the values of each schema by the last step of its reference: a mapping may name a schema
    without a path."""
    discriminator = discriminator if isinstance(discriminator, Mapping) else {}
    name, mapping = discriminator.get("propertyName"), discriminator.get("mapping")
    named: dict[str, list[str]] = {}
    for value, target in (mapping if isinstance(mapping, Mapping) else {}).items():
        named.setdefault(str(target).rpartition("/")[2], []).append(str(value))
    return name if isinstance(name, str) else None, named


def _with_heirs(schemas: Mapping[str, Schema | bool]) -> Mapping[str, Schema | bool]:
    """`schemas`, where one with a discriminator and no choices is one of itself and what is made from it by `allOf`.

    What it says itself gets a name of its own, which the others are made from. A mapping names those that count.
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
            made[own.removeprefix(PREFIX)] = schema
            others = {"properties": {key: {"not": {"enum": [v for one in heirs for v in named.get(one, [one])]}}}}
            choices = [{"allOf": [{"$ref": own}, others]}, *({"$ref": PREFIX + one} for one in heirs)]
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
    schema: Schema | bool, definitions: Mapping[str, Schema | bool], depth: int = 0
) -> tuple[dict[str, Any], list[str]] | None:
    """The properties of an object and which are required, where the schema has nothing else; else `None`."""
    if not isinstance(schema, dict) or depth > _DEEPEST or _NOT_FLAT & set(schema):
        return None
    if schema.get("type", "object") != "object" or schema.get("additionalProperties", False) is not False:
        return None
    properties: dict[str, Any] = {}
    required: list[str] = []
    parts = list(schema.get("allOf", ()))
    if "$ref" in schema:
        parts.append(definitions[schema["$ref"].removeprefix(PREFIX)])
    for part in parts:
        flat = flat_object(part, definitions, depth + 1)
        if flat is None and not (isinstance(part, dict) and set(part) <= ANNOTATIONS | {"type", "required"}):
            return None
        inner, needed = flat if flat is not None else ({}, list(part.get("required", ())))
        if any(properties[name] != one for name, one in inner.items() if name in properties):
            return None
        properties |= inner
        required += needed
    own = schema.get("properties", {})
    if any(properties[name] != one for name, one in own.items() if name in properties):
        return None
    properties |= own
    required += schema.get("required", [])
    return (properties, list(dict.fromkeys(required))) if properties else None
