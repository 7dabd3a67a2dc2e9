"""JSON Schema over what the policy left behind: no network, and no check that runs for ever."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from ..errors import VerifierError
from .comparing import shortened


def first_schema_problem(schema: Any, value: Any, where: str) -> str | None:
    """Why `value` does not fit `schema`, or None. `where` says in errors what the schema belongs to.

    Raises `VerifierError` for what is no JSON Schema, or refers to one that is not in it, and where the check takes
    too long.
    """
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    from mcp_bridge.toolsets.schema_checks import SchemaTimeout, schema_errors

    if not isinstance(schema, dict | bool):
        raise VerifierError(f"{where} is {shortened(schema)}; give a JSON Schema, an object")
    try:
        problem = next(iter(schema_errors(_compiled(json.dumps(schema, sort_keys=True)), value, most=1)), None)
    except SchemaTimeout as error:
        raise VerifierError(f"{where} takes too long to check ({error}); write one that backtracks less") from error
    except SchemaError as error:
        raise VerifierError(f"{where} is no JSON Schema that can be used: {error.message}") from error
    except (ValueError, TypeError, OverflowError, RecursionError, Unresolvable) as error:
        raise VerifierError(f"{where} is no JSON Schema that can be used: {error}") from error
    if problem is None:
        return None
    place = "/".join(str(step) for step in problem.absolute_path)
    return f"it does not fit the schema{f' at {place}' if place else ''}: {shortened(problem.message, 200)}"


@lru_cache(maxsize=256)
def _compiled(schema: str) -> Any:
    from mcp_bridge.toolsets.schema_checks import compiled_schema

    return compiled_schema(json.loads(schema), _refuse)


def _refuse(part: str) -> None:
    raise ValueError(f"it has {part!r}, which cannot be checked here")
