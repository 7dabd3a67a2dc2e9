"""The schemas that a client holds an answer against: of its strict tools, and of its response format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors, schema_problem

from ..records import ToolCall
from .api_errors import ApiError, bad_request


class ClientSchemas:
    """What complete answers are held against, as a grammar cannot express all of JSON Schema. Nothing is fetched."""

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        content: Mapping[str, Any] | None = None,
        form: str = "response_format",
    ) -> None:
        """`tools`: by the names of those with `strict: true`; `content`: of a strict response format; `form`: what the
        client calls that parameter.

        Raises `ApiError` for a schema that is not valid JSON Schema.
        """
        for schema, of, param in (
            *((schema, f"tool {name!r} is strict, but its input schema", "tools") for name, schema in tools.items()),
            *([(content, f"the schema of {form}", form)] if content is not None else []),
        ):
            if (problem := schema_problem(schema)) is not None:
                raise bad_request(f"{of} {problem[:200]}", param)
        self._form = form
        self._of_tools = {name: compiled_schema(dict(schema)) for name, schema in tools.items()}
        self._of_content = None if content is None else compiled_schema(dict(content))

    def problem(self, call: ToolCall) -> str | None:
        """Why the arguments of a call do not hold against its tool's schema, if they do not. Takes a limited time."""
        validator = self._of_tools.get(call.name)
        if validator is None:
            return None
        return _problem(validator, call.arguments, "arguments", f"the schema of {call.name}, which is strict")

    def check_content(self, content: str) -> None:
        """Raises `ApiError` (422) for content that does not hold against the schema of a strict response format."""
        if self._of_content is None:
            return
        try:
            problem = _problem(self._of_content, json.loads(content), "the answer", f"the schema of {self._form}")
        except ValueError as error:
            problem = f"the answer is not valid JSON: {error}"
        if problem is not None:
            raise ApiError(422, problem, param=self._form, code="response_format_not_met", kind="model_error")


def _problem(validator: Any, value: Any, what: str, schema: str) -> str | None:
    try:
        found = next(iter(schema_errors(validator, value, most=1)), None)
    except SchemaTimeout as timeout:
        return f"{what} could not be checked against {schema}: {timeout}"
    except RecursionError:
        return f"{what} could not be checked against {schema}: it is nested too deeply, or its references lead too far"
    if found is None:
        return None
    place = "".join(f".{part}" for part in found.absolute_path)
    return f"{what}{place} do not hold against {schema}: {found.message[:200]}"
