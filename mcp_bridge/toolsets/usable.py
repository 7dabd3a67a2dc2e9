"""Whether the schema of a tool's arguments can be used: found out before the tool is offered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema.exceptions import SchemaError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ..records import LeftOut, Tool
from .patterns import with_readable_patterns
from .schema_checks import compiled_schema


def split_usable(tools: list[Tool], label: str) -> tuple[list[Tool], list[LeftOut]]:
    """The tools whose arguments can be checked, and the others with the reason."""
    problems = {id(tool): problem for tool in tools if (problem := schema_problem(tool.input_schema)) is not None}
    left_out = [
        LeftOut(tool=tool.name_at_source or tool.name, source=tool.source or label, reason=problems[id(tool)])
        for tool in tools
        if id(tool) in problems
    ]
    return [tool for tool in tools if id(tool) not in problems], left_out


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Why the schema of a tool's arguments cannot be used; None where it can."""
    try:
        compiled_schema(schema)
        missing = _leads_nowhere(with_readable_patterns(schema, lambda _: None))
    except SchemaError as error:
        return f"its input schema is no valid JSON Schema: {error.message} at {error.json_path}"
    except RecursionError:
        return "its input schema is nested too deeply"
    return None if missing is None else f"its input schema has a reference that leads nowhere: {missing!r}"


def _leads_nowhere(schema: Mapping[str, Any]) -> str | None:
    """The first reference that cannot be followed inside the schema; nothing is ever fetched."""
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    uri = root.id() or ""
    pending = [(root, Registry().with_resource(uri, root).resolver(uri))]
    while pending:
        one, resolver = pending.pop()
        reference = one.contents.get("$ref") if isinstance(one.contents, Mapping) else None
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except Unresolvable:
                return reference
        pending += [(inner, resolver.in_subresource(inner)) for inner in one.subresources()]
    return None
