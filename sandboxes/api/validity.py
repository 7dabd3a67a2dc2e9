"""Whether values are valid under the schemas of a document."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema_rs
from jsonschema.exceptions import best_match

from mcp_bridge.openapi.document import Document
from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors
from mcp_bridge.toolsets.schema_parts import replaced, schemas_in

Schema = dict[str, Any]

_PREFIX = "#/$defs/"
_DEFINITION = "definition"
"""A keyword of our own: its value is the name of a definition that the value must be valid under."""
_SEEING_INTO_OTHERS = frozenset({"unevaluatedItems", "unevaluatedProperties"})


class Validity:
    """Checks of values against schemas, formats of time, e-mail and the like left aside.

    A compiled check holds all that its schema refers to, which may be most of the document. So the definitions and the
    answers are compiled together, once, and what any other schema refers to is looked up among them.
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
                    raise ValueError(f"it is no {self._name}")

        self._keywords: dict[str, type[jsonschema_rs.KeywordValidator]] = {_DEFINITION: DefinitionKeyword}

    def holds(self, schema: Any, value: Any) -> bool:
        """Whether `value` is valid under `schema`, which must belong to the document or live as long as it."""
        if isinstance(schema, dict) and schema.keys() == {"$ref"}:
            return self.holds(self._definitions[schema["$ref"].removeprefix(_PREFIX)], value)
        compiled, places = self._together
        if id(schema) in places:
            return compiled.is_valid({places[id(schema)]: value})
        known = self._alone.get(id(schema))
        if known is None:
            known = self._alone[id(schema)] = (schema, self._compiled(schema))
        return known[1](value)

    def problem(self, schema: Any, value: Any) -> str | None:
        """What is wrong with `value` under `schema`, in a few words, or `None`."""
        return _problem(compiled_schema(self._document.closed(schema), is_known_valid=True), value)

    @functools.cached_property
    def _together(self) -> tuple[jsonschema_rs.Validator, dict[int, str]]:
        """The check of the definitions and the answers, each as the property of an object, and their names there."""
        numbers = {name: str(number) for number, name in enumerate(self._definitions)}
        definitions: dict[str, Any] = {}
        places: dict[int, str] = {}

        def refer(name: str) -> Schema:
            return {"$ref": _PREFIX + numbers[name]}

        for name, schema in self._definitions.items():
            place = numbers[name]
            if self._quick(schema) is None:
                definitions[place] = {_DEFINITION: name}
            else:
                definitions[place] = _referring(schema, refer)
                places[id(schema)] = place
        properties = {place: {"$ref": _PREFIX + place} for place in places.values()}
        for schema in self._answers():
            if id(schema) not in places and self._quick(schema) is not None:
                place = places[id(schema)] = f"answer {len(places)}"
                properties[place] = _referring(schema, refer)
        return self._validator({"$defs": definitions, "properties": properties}), places

    def _answers(self) -> Iterator[Schema]:
        for operation in self._document.operations:
            for answer in operation.responses.values():
                yield from (media.schema for media in answer.content.values() if isinstance(media.schema, dict))

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
            return self._validator(_referring(schema, lambda name: {_DEFINITION: name}))
        except (ValueError, jsonschema_rs.ReferencingError):
            return None

    def _validator(self, schema: Any) -> jsonschema_rs.Validator:
        # An engine for patterns that takes no more steps than the text has letters.
        linear = jsonschema_rs.RegexOptions()
        return jsonschema_rs.Draft202012Validator(schema, pattern_options=linear, keywords=self._keywords)


def _referring(schema: Any, refer: Callable[[str], Schema]) -> Any:
    """`schema` with other references. `refer`: from the name of a definition to what leads to it."""
    if not isinstance(schema, dict):
        return schema
    made = replaced(schema, lambda one: _referring(one, refer))
    if "$ref" not in made:
        return made
    return {key: one for key, one in made.items() if key != "$ref"} | refer(made["$ref"].removeprefix(_PREFIX))


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
