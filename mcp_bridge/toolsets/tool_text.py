"""Tools in a line each, as people read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..records import LeftOut, Tool, ToolAnnotations
from ..safe_text import inline, table
from .schema_parts import followed

_BEHAVIOURS = {
    "read_only": ("read-only", "not read-only"),
    "destructive": ("destructive", "not destructive"),
    "idempotent": ("idempotent", "not idempotent"),
    "open_world": ("open world", "closed world"),
}


def signature(tool: Tool) -> str:
    """The tool as a function: `place_order(product: string, quantity?: integer = 1)`; `?` marks what may be left out.

    Example: the schema `{"properties": {"id": {"type": "string"}}, "required": ["id"]}` gives `name(id: string)`.
    """
    required = tool.input_schema.get("required", [])
    arguments = []
    for name, schema in properties(tool).items():
        text = f"{name}{'' if name in required else '?'}: {type_name(schema, tool.input_schema)}"
        if isinstance(schema, Mapping) and "default" in schema:
            text += f" = {json.dumps(schema['default'], ensure_ascii=False)}"
        arguments.append(text)
    return f"{tool.name}({', '.join(arguments)})"


def type_name(schema: Any, root: Mapping[str, Any] | None = None) -> str:
    """A JSON Schema in a few words: `string`, `integer[]`, `"a" | "b"`, `any`. `root`: the document that its references
    lead into; an object that is referred to is shown by its name, as is what `root` does not have."""
    if not isinstance(schema, Mapping):
        return "any"
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " | ".join(dict.fromkeys(type_name(one, root) for one in schema[key]))
    if "$ref" in schema or "allOf" in schema:
        return _referred(schema, root or {})
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(map(str, kind))
    if kind == "array":
        item = type_name(schema.get("items"), root)
        return f"({item})[]" if " | " in item else f"{item}[]"
    return str(kind)


def _referred(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    whole = followed(schema, root)
    plain = {key: value for key, value in whole.items() if key in ("const", "enum", "type")}
    if plain and plain.get("type") not in ("array", "object"):
        return type_name(plain)
    parts = [schema, *(part for part in schema.get("allOf") or () if isinstance(part, Mapping))]
    names = [part["$ref"].rpartition("/")[2] for part in parts if isinstance(part.get("$ref"), str)]
    return " & ".join(names) or type_name(plain)


def behaviour(annotations: ToolAnnotations) -> str:
    """What the server says of a tool's behaviour, in words."""
    said = [
        words[0] if value else words[1]
        for name, words in _BEHAVIOURS.items()
        if (value := getattr(annotations, name)) is not None
    ]
    return ", ".join(said) or "no annotations"


def properties(tool: Tool) -> Mapping[str, Any]:
    properties = tool.input_schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


_LONGEST_DESCRIPTION = 200


def tools_markdown(tools: Sequence[Tool], left_out: Sequence[LeftOut]) -> str:
    """A table for notebooks: each tool as a function, what it does, how it behaves; then what is left out, and why."""
    rows = [
        (
            inline(signature(tool), limit=_LONGEST_DESCRIPTION),
            inline(tool.description, limit=_LONGEST_DESCRIPTION),
            behaviour(tool.annotations),
            inline(tool.source),
        )
        for tool in tools
    ]
    shown = table(("tool", "description", "behaviour", "from"), rows, left_columns=4)
    missing = [
        f"- left out: {inline(one.tool)} of {inline(one.source)}: {inline(one.reason, limit=_LONGEST_DESCRIPTION)}"
        for one in left_out
    ]
    return "\n\n".join([shown, *(["\n".join(missing)] if missing else [])])
