"""Shapes: schemas with references followed and `allOf` merged, one record for each, and what is valid under them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jsonschema_rs
from jsonschema.exceptions import best_match

from mcp_bridge.openapi.document import Document
from mcp_bridge.openapi.schemas import PREFIX
from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, pattern_found, schema_errors
from mcp_bridge.toolsets.schema_parts import replaced, schemas_in

Schema = dict[str, Any]

_DEFINITION = "definition"
"""A keyword of our own: its value is the name of a definition that the value must be valid under."""
_SEEING_INTO_OTHERS = frozenset({"unevaluatedItems", "unevaluatedProperties"})


class Validity:
    """Checks of values against schemas, formats of time, e-mail and the like left aside.

    A compiled check holds all that its schema refers to, which may be most of the document. So each schema is compiled
    alone, when it is first asked for, and the definitions that it refers to are looked up.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._definitions: Mapping[str, Any] = document.schemas
        self._alone: dict[int, tuple[Any, Callable[[Any], bool]]] = {}
        us = weakref.ref(self)  # the compiled checks know the keyword, and must not keep us alive

        class DefinitionKeyword:
            def __init__(self, _: Any, name: str, __: Any) -> None:
                self._name = name

            def validate(self, value: Any) -> None:
                one = us()
                if one is None or not one.holds(one._definitions[self._name], value):
                    raise ValueError(f"it is not a valid {self._name}")

        self._keywords: dict[str, type[jsonschema_rs.KeywordValidator]] = {_DEFINITION: DefinitionKeyword}

    def holds(self, schema: Any, value: Any) -> bool:
        """Whether `value` is valid under `schema`, which must belong to the document or live as long as it."""
        if isinstance(schema, dict) and schema.keys() == {"$ref"}:
            return self.holds(self._definitions[schema["$ref"].removeprefix(PREFIX)], value)
        known = self._alone.get(id(schema))
        if known is None:
            known = self._alone[id(schema)] = (schema, self._compiled(schema))
        return known[1](value)

    def problem(self, schema: Any, value: Any) -> str | None:
        """What is wrong with `value` under `schema`, in a few words, or `None`."""
        return _problem(compiled_schema(self._document.closed(schema), is_known_valid=True), value)

    def _compiled(self, schema: Any) -> Callable[[Any], bool]:
        quick = self._quick(schema)
        if quick is not None:
            return quick.is_valid
        slow = compiled_schema(self._document.closed(schema), is_known_valid=True)
        return lambda value: _problem(slow, value) is None

    def _quick(self, schema: Any) -> jsonschema_rs.Validator | None:
        """The check of a schema alone; None where it knows some pattern not, such as one that looks ahead."""
        try:
            if _sees_into_others(schema):
                return self._validator(self._document.closed(schema))
            return self._validator(_referring(schema))
        except (ValueError, jsonschema_rs.ReferencingError):
            return None

    def _validator(self, schema: Any) -> jsonschema_rs.Validator:
        # An engine for patterns that takes no more steps than the text has letters.
        linear = jsonschema_rs.RegexOptions()
        return jsonschema_rs.Draft202012Validator(schema, pattern_options=linear, keywords=self._keywords)


def _referring(schema: Any) -> Any:
    """`schema` with our keyword in the place of each reference."""
    if not isinstance(schema, dict):
        return schema
    made = replaced(schema, _referring)
    if "$ref" not in made:
        return made
    name = made["$ref"].removeprefix(PREFIX)
    return {key: one for key, one in made.items() if key != "$ref"} | {_DEFINITION: name}


def _sees_into_others(schema: Any) -> bool:
    """Whether something in it hangs on which properties or items were checked by a definition."""
    if not isinstance(schema, dict):
        return False
    return bool(schema.keys() & _SEEING_INTO_OTHERS) or any(map(_sees_into_others, schemas_in(schema)))


def _problem(validator: Any, value: Any) -> str | None:
    try:
        error = best_match(schema_errors(validator, value))
    except SchemaTimeout as timeout:
        return f"it could not be checked in time: {timeout}"
    if error is None:
        return None
    where = error.json_path.removeprefix("$").removeprefix(".")
    return f"{where}: {error.message[:200]}" if where else error.message[:200]


_MOST_REFERENCES = 50
_TIGHTEST_LOW = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_TIGHTEST_HIGH = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_STRUCTURE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "properties", "required", "type", "enum"})
_RULES = frozenset({"not", "contains", "propertyNames", "patternProperties"})
_IMPLIED = {
    "object": (
        "properties",
        "additionalProperties",
        "required",
        "minProperties",
        "maxProperties",
        "propertyNames",
        "patternProperties",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_ALL_KINDS = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})


@dataclass
class Shape:
    """A schema, flat. `kinds`: the JSON types it allows. `choices`: groups of which one branch each must hold.

    `name`: of the definition that the schema is, also where it is one beside null or in an `allOf` of one. `says`: the
    remaining keywords. `rules`: the schemas that have one of `_RULES`, which all must hold.
    `teller`: of choices between kinds of objects, the property whose values tell them apart; `united`: the properties
    that only the kinds have.
    """

    name: str | None = None
    kinds: frozenset[str] = _ALL_KINDS
    typed: bool = False
    properties: dict[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    enum: tuple[Any, ...] | None = None
    choices: list[list[Any]] = field(default_factory=list)
    says: dict[str, Any] = field(default_factory=dict)
    rules: tuple[Mapping[str, Any], ...] = ()
    impossible: bool = False
    teller: str | None = None
    united: frozenset[str] = frozenset()

    @property
    def nullable(self) -> bool:
        """Whether the schema names null as a type."""
        return self.typed and "null" in self.kinds and (self.enum is None or None in self.enum)

    @property
    def kind(self) -> str:
        """The type to make: the first one that is not null, in the order of what a schema usually means."""
        for kind in ("object", "array", "string", "integer", "number", "boolean"):
            if kind in self.kinds and (self.typed or any(word in self._words for word in _IMPLIED.get(kind, ()))):
                return kind
        return "null" if self.kinds == {"null"} else "object" if self.properties else "string"

    @property
    def _words(self) -> set[str]:
        return {*self.says, *(["properties"] if self.properties else []), *(["required"] if self.required else [])}

    @property
    def items(self) -> Any:
        """The schema of an array's items."""
        return self.says.get("items", True)

    @property
    def open(self) -> Any:
        """The schema of properties that are not named: `False` where there may be none."""
        if self.says.get("unevaluatedProperties") is False:
            return False
        return self.says.get("additionalProperties", True)

    @property
    def read_only(self) -> bool:
        return self.says.get("readOnly") is True

    @property
    def write_only(self) -> bool:
        return self.says.get("writeOnly") is True


class Shapes:
    """The schemas of one document. Shapes are made once for each schema and shared: they are never written to."""

    def __init__(self, document: Document) -> None:
        self._definitions: Mapping[str, Any] = document.schemas
        self._shapes: dict[int, tuple[Any, Shape]] = {}
        self._together: dict[tuple[str | int, ...], Schema] = {}
        self.validity = Validity(document)

    def of(self, schema: Any) -> Shape:
        """The shape of `schema`, which must belong to the document or live as long as it."""
        known = self._shapes.get(id(schema))
        if known is None:
            known = self._shapes[id(schema)] = (schema, self._flat(schema, 0))
        return known[1]

    def with_branch(self, shape: Shape, branch: Any) -> Shape:
        """`shape`, in which `branch` must hold as well."""
        if shape.united:
            own = {name: schema for name, schema in shape.properties.items() if name not in shape.united}
            required = shape.required - shape.united
            shape = replace(shape, properties=own, required=required, united=frozenset(), teller=None)
        return self._merged(shape, self._flat(branch, 1))

    def kinds(self, shape: Shape) -> list[Shape]:
        """The shapes of the kinds of objects that a shape chooses from; itself where it chooses from none."""
        if shape.teller is None:
            return [shape]
        base = replace(shape, choices=[])
        return [kind for branch in shape.choices[0] for kind in self.kinds(self.with_branch(base, branch))]

    def kind_of(self, shape: Shape, value: Mapping[str, Any]) -> Shape:
        """The shape of the kind that an object is of, the first one where it does not say; `shape` where it is of
        none."""
        if shape.teller is None:
            return shape
        teller, kinds = shape.teller, self.kinds(shape)
        own = (one for one in kinds if value.get(teller) in (self._values(one.properties.get(teller)) or ()))
        return next(own, shape) if teller in value else kinds[0]

    def keeps_rules(self, shape: Shape, value: Any) -> bool:
        """Whether what the shape's `rules` say of a value as a whole holds: `not`, `contains`, `propertyNames`."""
        holds = self.validity.holds
        for rule in shape.rules:
            if "not" in rule and holds(rule["not"], value):
                return False
            if isinstance(value, list) and "contains" in rule:
                count = sum(holds(rule["contains"], one) for one in value)
                if not rule.get("minContains", 1) <= count <= rule.get("maxContains", count):
                    return False
            if isinstance(value, dict) and not all(self.takes_name(shape, one) for one in value):
                return False
        return True

    def takes_name(self, shape: Shape, name: str) -> bool:
        """Whether an object of the shape may have a property of that name, as far as `propertyNames` say."""
        return all(self.validity.holds(rule["propertyNames"], name) for rule in shape.rules if "propertyNames" in rule)

    def schema_at(self, shape: Shape, name: str) -> Any:
        """The schema of a property of that name: `False` where there may be none."""
        if name in shape.properties:
            return shape.properties[name]
        found = self.patterned(shape, name)
        if len(found) < 2:
            return found[0] if found else shape.open
        return self._all_of(found)

    def patterned(self, shape: Shape, name: str) -> list[Any]:
        """The schemas that `patternProperties` have for a property of that name."""
        patterns = [one for rule in shape.rules for one in rule.get("patternProperties", {}).items()]
        return [schema for pattern, schema in patterns if pattern_found(pattern, name)]

    def _flat(self, schema: Any, depth: int) -> Shape:
        if schema is False:
            return Shape(impossible=True)
        if not isinstance(schema, Mapping) or depth > _MOST_REFERENCES:
            return Shape()
        shape = _own(schema)
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(PREFIX)
            target = self._flat(self._definitions[name], depth + 1)
            shape = self._merged(target, shape)
            shape.name = name
        for part in schema.get("allOf", ()):
            merged = self._merged(shape, self._flat(part, depth + 1))
            only = len(schema["allOf"]) == 1 and not schema.get("properties")
            merged.name = self._flat(part, depth + 1).name if only and shape.name is None else shape.name
            shape = merged
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                shape = self._chosen(shape, schema[keyword], depth)
        return shape

    def _chosen(self, shape: Shape, branches: list[Any], depth: int) -> Shape:
        """A group of branches; one that leaves no choice apart from null is merged at once."""
        flats = [self._flat(branch, depth + 1) for branch in branches]
        real = [
            (branch, flat)
            for branch, flat in zip(branches, flats, strict=True)
            if flat.kinds != {"null"} and not flat.impossible
        ]
        has_null = len(real) < len(branches) and any(flat.kinds == {"null"} for flat in flats)
        if len(real) != 1:
            is_only = not shape.choices
            shape.choices = [*shape.choices, list(branches)]
            return self._united(shape, [flat for _, flat in real]) if is_only and not has_null else shape
        only = real[0][1]
        merged = self._merged(shape, only)
        merged.name = shape.name or only.name
        if has_null and (not shape.typed or "null" in shape.kinds):
            merged.kinds, merged.typed = merged.kinds | {"null"}, True
            merged.enum = (*merged.enum, None) if merged.enum is not None and None not in merged.enum else merged.enum
        return merged

    def _united(self, shape: Shape, kinds: list[Shape]) -> Shape:
        """With the properties of all choices, where these are kinds of objects that a property's values tell apart."""
        teller = self._teller(kinds)
        if teller is None:
            return shape
        names = dict.fromkeys(name for kind in kinds for name in kind.properties if name not in shape.properties)
        for name in names:
            found = [kind.properties[name] for kind in kinds if name in kind.properties]
            several = [one for number, one in enumerate(found) if one not in found[:number]]
            if len(several) > 1:
                values = [value for one in several for value in self._values(one) or ()]
                is_enum = all(self._values(one) for one in several)
                made = {"enum": list(dict.fromkeys(values))} if is_enum else {"anyOf": several}
                several = [self._together.setdefault(("anyOf", *map(id, several)), made)]
            shape.properties[name] = several[0]
        shape.required |= frozenset.intersection(*(kind.required for kind in kinds))
        shape.teller, shape.united = teller, frozenset(names)
        return shape

    def _teller(self, kinds: list[Shape]) -> str | None:
        """The property that all kinds of objects require, each with texts of its own."""
        if len(kinds) < 2 or any(kind.kind != "object" for kind in kinds):
            return None
        for name in kinds[0].properties:
            values = [self._values(kind.properties.get(name)) for kind in kinds]
            texts = [one for several in values for one in several or () if isinstance(one, str)]
            is_told = all(values) and all(name in kind.required for kind in kinds)
            if is_told and len(set(texts)) == sum(len(one or ()) for one in values):
                return name
        return None

    def _values(self, schema: Any, depth: int = 0) -> list[Any] | None:
        """The values that a schema itself is limited to; `None` where it is not."""
        if not isinstance(schema, Mapping) or depth > _MOST_REFERENCES:
            return None
        if "const" in schema:
            return [schema["const"]]
        if isinstance(schema.get("enum"), list):
            return list(schema["enum"])
        parts = [*schema.get("allOf", ())]
        parts += [self._definitions[schema["$ref"].removeprefix(PREFIX)]] if "$ref" in schema else []
        found = [values for part in parts if (values := self._values(part, depth + 1)) is not None]
        return min(found, key=len, default=None)

    def _all_of(self, schemas: list[Any]) -> Schema:
        """A schema under which all of them hold: the same object each time."""
        return self._together.setdefault(("allOf", *map(id, schemas)), {"allOf": schemas})

    def _merged(self, one: Shape, other: Shape) -> Shape:
        """A shape under which both hold."""
        kinds = one.kinds & other.kinds
        properties = dict(one.properties)
        for name, schema in other.properties.items():
            mine = properties.get(name)
            properties[name] = schema if mine is None or mine == schema else self._all_of([mine, schema])
        enum = one.enum if other.enum is None else other.enum
        if one.enum is not None and other.enum is not None:
            enum = tuple(value for value in one.enum if value in other.enum)
        says = {**one.says, **other.says}
        for keyword in _TIGHTEST_LOW:
            if keyword in one.says and keyword in other.says:
                says[keyword] = max(one.says[keyword], other.says[keyword])
        for keyword in _TIGHTEST_HIGH:
            if keyword in one.says and keyword in other.says:
                says[keyword] = min(one.says[keyword], other.says[keyword])
        if one.says.get("additionalProperties") is False:
            says["additionalProperties"] = False
        return Shape(
            name=one.name or None,
            kinds=kinds,
            typed=one.typed or other.typed,
            properties=properties,
            required=one.required | other.required,
            enum=enum,
            choices=[*one.choices, *other.choices],
            says=says,
            rules=(*one.rules, *other.rules),
            impossible=one.impossible or other.impossible or not kinds,
            teller=None if one.choices and other.choices else one.teller or other.teller,
            united=(one.united - (other.properties.keys() - other.united))
            | (other.united - (one.properties.keys() - one.united)),
        )


def _own(schema: Mapping[str, Any]) -> Shape:
    """What stands in `schema` itself."""
    shape = Shape()
    shape.properties = dict(schema.get("properties", {}))
    shape.required = frozenset(schema.get("required", ()))
    kind = schema.get("type")
    if kind is not None:
        shape.kinds = frozenset([kind] if isinstance(kind, str) else kind)
        if "number" in shape.kinds:
            shape.kinds |= {"integer"}
        shape.typed = True
    if "const" in schema:
        shape.enum = (schema["const"],)
    elif isinstance(schema.get("enum"), list):
        shape.enum = tuple(schema["enum"])
    shape.says = {key: value for key, value in schema.items() if key not in _STRUCTURE}
    shape.rules = (schema,) if _RULES & schema.keys() else ()
    return shape
