"""Checks a result's structured content against the output schema of its tool."""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import SchemaError, best_match
from referencing.exceptions import Unresolvable

from .acceptance import compile_acceptance
from .schema_checks import SchemaTimeout, compiled_schema, schema_errors

logger = logging.getLogger(__name__)


class ResultCheck:
    """The compiled output schema of one tool."""

    def __init__(self, tool: str, schema: dict[str, Any]) -> None:
        """Raises `ValueError` where the schema is not a valid one."""

        def left_out(part: str) -> None:
            logger.warning("results of %r are not checked against %r, which cannot be checked here", tool, part)

        try:
            self._validator = compiled_schema(schema, left_out)
        except SchemaError as error:
            raise ValueError(f"Invalid schema for tool {tool}: {error}") from error
        self._tool = tool
        self.accepts = compile_acceptance(schema)
        """Says quickly that a value is right; None where that takes `problem`."""

    def problem(self, structured: Any) -> str | None:
        """What is wrong with a result, in the words of the SDK's client, or None."""
        if self.accepts is not None and self.accepts(structured):
            return None
        try:
            error = best_match(schema_errors(self._validator, structured))
        except SchemaTimeout as timeout:
            return f"Structured content returned by tool {self._tool} could not be checked in time: {timeout}"
        except Unresolvable as error:
            return f"Invalid schema for tool {self._tool}: {error}"
        return None if error is None else f"Invalid structured content returned by tool {self._tool}: {error}"


@lru_cache(maxsize=1024)
def result_check(tool: str, schema: str) -> ResultCheck:
    """The check of a schema, given as JSON: the sessions with a server share it. Raises `ValueError`."""
    return ResultCheck(tool, json.loads(schema))
