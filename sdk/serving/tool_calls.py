"""Calls as clients get them: arguments as text, also where the model did not finish them, and checked where asked."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors, schema_problem

from ..policies.rendering import ParsedReply
from ..policies.rendering.call_parsing import format_calls, readable_part
from ..records import ToolCall
from .api_errors import bad_request


@dataclass(frozen=True)
class WrittenCall:
    """A call of an answer. `arguments` is JSON text, or where `problem` is set what the model wrote in its place."""

    id: str
    name: str
    arguments: str
    problem: str | None = None
    """Why the model's call does not parse, or does not hold against the client's strict schema."""


class StrictSchemas:
    """The schemas of the tools that a client sent with `strict: true`. Nothing is fetched for them."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """`schemas`: by the tools' names. Raises `ApiError` for one that is not valid JSON Schema."""
        self._validators = {}
        for name, schema in schemas.items():
            problem = schema_problem(schema)
            if problem is not None:
                raise bad_request(f"tool {name!r} is strict, but its input schema {problem[:200]}", "tools")
            self._validators[name] = compiled_schema(dict(schema))

    def problem(self, call: ToolCall) -> str | None:
        """Why the arguments of a call do not hold against its tool's schema, if they do not. Takes a limited time."""
        validator = self._validators.get(call.name)
        if validator is None:
            return None
        try:
            found = next(iter(schema_errors(validator, call.arguments, most=1)), None)
        except SchemaTimeout as timeout:
            return f"the arguments could not be checked against the schema of {call.name}, which is strict: {timeout}"
        if found is None:
            return None
        place = "".join(f".{part}" for part in found.absolute_path)
        return f"arguments{place} do not hold against the schema of {call.name}, which is strict: {found.message[:200]}"


def written_calls(parsed: ParsedReply, strict: StrictSchemas) -> tuple[str, list[WrittenCall]]:
    """The content and the calls of a reply. A call that cannot be told apart from text is part of the content."""
    texts = [parsed.content]
    calls: list[WrittenCall] = []
    ids: set[str] = set()
    for place, call in enumerate(parsed.tool_calls):
        call_id = call.id if call.id and call.id not in ids else f"call_{secrets.token_hex(12)}"
        ids.add(call_id)
        if call.error is None:
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            calls.append(WrittenCall(call_id, call.name, arguments, strict.problem(call)))
            continue
        written = parsed.unparsed.get(place) or call.error
        if (part := readable_part(written)) is not None:
            calls.append(WrittenCall(call_id, *part, call.error))
        else:
            texts.append(written)
    return "\n".join(text for text in texts if text), calls


def calls_as_text(parsed: ParsedReply) -> ParsedReply:
    """A reply to someone who offered no tools: what looks like a call is text like any other."""
    if not parsed.tool_calls:
        return parsed
    if parsed.verbatim is not None:
        return replace(parsed, content=parsed.verbatim, tool_calls=[])
    whole = [call for call in parsed.tool_calls if call.error is None]
    text = "\n".join([format_calls(parsed.content, whole), *parsed.unparsed.values()])
    return replace(parsed, content=text.rstrip(), tool_calls=[])
