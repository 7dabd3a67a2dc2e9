"""Choices between schemas that a discriminator tells apart.

By the letter, a value must fit exactly one schema of `oneOf`, and schemas that leave other properties open often fit
one another's values: `{"kind": "Dog"}` is a Cat too. OpenAPI means the choice that the discriminating property names
(Discriminator Object, OpenAPI 3.0.3 and 3.1.0). So each choice is told which values are its own, and one that fits is
enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .schemas import PREFIX, Schema

_DEEPEST = 8


def told_apart(
    schema: Schema, discriminator: Any, resolved: Callable[[Any], Any], hidden: Callable[[Any], set[str]]
) -> Schema:
    """`schema`, whose `oneOf` has the discriminator, with its values in each choice.

    `resolved` follows `$ref`. `hidden` names the properties of a choice that nobody sends: it gets no values then.
    """
    choices = schema.get("oneOf")
    name = discriminator.get("propertyName") if isinstance(discriminator, Mapping) else None
    if not choices or not isinstance(name, str) or "anyOf" in schema:
        return schema
    mapping = discriminator.get("mapping")
    named = _by_target(mapping if isinstance(mapping, Mapping) else {})
    rest = {key: value for key, value in schema.items() if key != "oneOf"}
    return {
        **rest,
        "anyOf": [one if name in hidden(one) else _with_values(one, name, named, resolved) for one in choices],
    }


def _by_target(mapping: Mapping[Any, Any]) -> dict[str, list[str]]:
    """The values of each schema, by the last step of its reference. A mapping may name a schema without a path."""
    found: dict[str, list[str]] = {}
    for value, target in mapping.items():
        found.setdefault(str(target).rpartition("/")[2], []).append(str(value))
    return found


def _with_values(choice: Any, name: str, named: Mapping[str, list[str]], resolved: Callable[[Any], Any]) -> Any:
    reference = choice.get("$ref") if isinstance(choice, dict) else None
    if reference is None or _says_values(choice, name, resolved, _DEEPEST):
        return choice
    target = reference.removeprefix(PREFIX)
    values = named.get(target, [target])
    return {"allOf": [choice, {"properties": {name: {"enum": values}}, "required": [name]}]}


def _says_values(schema: Any, name: str, resolved: Callable[[Any], Any], depth: int) -> bool:
    """Whether the schema itself limits the property to some values."""
    schema = resolved(schema)
    if not isinstance(schema, dict) or depth == 0:
        return False
    own = resolved(schema.get("properties", {}).get(name))
    if isinstance(own, dict) and {"const", "enum"} & set(own):
        return True
    return any(_says_values(part, name, resolved, depth - 1) for part in schema.get("allOf", ()))
