"""JSON Schema over what the policy left behind: no network, and no pattern that runs for ever."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from ..errors import VerifierError
from .comparing import shortened

_MOST_BACKTRACKING = 100_000


def first_schema_problem(schema: Any, value: Any, where: str) -> str | None:
    """Why `value` does not fit `schema`, or None. `where` says in errors what the schema belongs to.

    Raises `VerifierError` for what is no JSON Schema, or refers to one that is not in it, and where a pattern takes
    too long.
    """
    import jsonschema_rs

    if not isinstance(schema, dict | bool):
        raise VerifierError(f"{where} is {shortened(schema)}; give a JSON Schema, an object")
    try:
        compiled = _compiled(json.dumps(schema, sort_keys=True))
        problem = next(compiled.iter_errors(value), None)
    except (ValueError, TypeError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise VerifierError(f"{where} is no JSON Schema that can be used: {error}") from error
    if problem is None:
        return None
    if isinstance(problem.kind, jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded):
        raise VerifierError(f"{where}: a pattern takes too long ({problem.message}); write one that backtracks less")
    place = "/".join(str(step) for step in problem.instance_path)
    return f"it does not fit the schema{f' at {place}' if place else ''}: {shortened(problem.message, 200)}"


@lru_cache(maxsize=256)
def _compiled(schema: str) -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for(
        json.loads(schema),
        offline=True,
        pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MOST_BACKTRACKING),
    )
