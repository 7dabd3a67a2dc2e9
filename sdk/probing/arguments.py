"""Arguments that fit a tool's schema, made of what the user's message holds. Nothing is understood."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_IDENTIFIER = re.compile(r"[A-Za-z]*[-_]?\d[\w-]*")
_QUOTED = re.compile(r"[\"']([^\"']{1,80})[\"']")
_CAPITALS = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z]\w+(?: [A-Z]\w+)*")
_DEEPEST = 4


def values_in(text: str) -> list[str]:
    """What may be an argument: quoted text, words with a digit, capitalised words inside a sentence."""
    found = [*_QUOTED.findall(text), *_IDENTIFIER.findall(text), *_CAPITALS.findall(text)]
    return list(dict.fromkeys(found))


def fitting(schema: Any, values: Sequence[str], depth: int = 0) -> Any:
    """A value for `schema`: its first example, choice or default, or of its type, from `values` where it is a text or
    a number. A schema that is no object (`true` fits everything) says nothing."""
    if not isinstance(schema, Mapping):
        schema = {}
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key) and depth < _DEEPEST:
            return fitting(schema[key][0], values, depth + 1)
    kind = schema.get("type", "string")
    kind = next(iter(kind), "string") if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        wanted = schema.get("required", []) if depth < _DEEPEST else []
        return {name: fitting(properties.get(name, {}), values, depth + 1) for name in wanted}
    if kind == "array":
        return [fitting(schema.get("items", {}), values, depth + 1)] if depth < _DEEPEST else []
    if kind in {"integer", "number"}:
        numbers = [int(value) for value in values if value.isdecimal()]
        return numbers[-1] if numbers else schema.get("minimum", 1)
    if kind == "boolean":
        return True
    return None if kind == "null" else (values[0] if values else "x")
