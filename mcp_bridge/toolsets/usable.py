"""Whether the schema of a tool's arguments can be used: found out before the tool is offered."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ..records import LeftOut, Tool
from .multiples import with_exact_multiples
from .patterns import with_readable_patterns
from .subschemas import NAMED

_DESCRIBING = frozenset(
    {"$comment", "$recursiveAnchor", "default", "deprecated", "description", "examples", "readOnly", "title"}
    | {"writeOnly"}
)
"""Keywords that say nothing of which values are valid; what stands under them may be anything."""
_NAMED = NAMED | {"$defs", "definitions", "dependencies"}


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
    validator_class = with_exact_multiples(validator_for(schema, default=Draft202012Validator))
    try:
        readable = with_readable_patterns(schema, lambda _: None)
        check_schema(validator_class, readable)
        missing = _leads_nowhere(readable)
    except SchemaError as error:
        return f"its input schema is no valid JSON Schema: {error.message} at {error.json_path}"
    except RecursionError:
        return "its input schema is nested too deeply"
    return None if missing is None else f"its input schema has a reference that leads nowhere: {missing!r}"


def check_schema(validator_class: Any, schema: Mapping[str, Any]) -> None:
    """Raises `SchemaError`. Takes milliseconds, so it is done once for each text: the same tools come again with every
    session and every sandbox."""
    try:
        text = json.dumps(schema)
        is_json = json.loads(text) == schema
    except (TypeError, ValueError):
        is_json = False
    if is_json:
        _check_text(validator_class, text)
    else:
        _check(validator_class, schema)


@functools.lru_cache(maxsize=2048)
def _check_text(validator_class: Any, text: str) -> None:
    _check(validator_class, json.loads(text))


def _check(validator_class: Any, schema: Any) -> None:
    """As `check_schema` of jsonschema, but for keywords that only describe."""
    checker = validator_for(validator_class.META_SCHEMA, default=Draft202012Validator)(validator_class.META_SCHEMA)
    problems = [one for one in checker.iter_errors(schema) if not _only_describes(one)]
    if problems:
        raise SchemaError.create_from(best_match(problems))


def _only_describes(problem: ValidationError) -> bool:
    steps = list(problem.absolute_path)
    return bool(steps) and steps[-1] in _DESCRIBING and not (len(steps) > 1 and steps[-2] in _NAMED)


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
