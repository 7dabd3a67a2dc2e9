"""Calls as clients get them. Arguments are text, also where the model did not finish them, and are checked against the
client's schemas where those are strict."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors, schema_problem

from ..policies.rendering import ParsedReply
from ..policies.rendering.call_parsing import format_calls, read_arguments, readable_part
from ..records import ToolCall
from .requests import ApiError, bad_request


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
        except RecursionError:
            problem = "the answer is nested too deeply to be read"
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


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrittenCall:
    """A call of an answer. `arguments` is JSON text, or where `problem` is set what the model wrote in its place."""

    id: str
    name: str
    arguments: str
    problem: str | None = None
    """Why the model's call does not parse, or does not hold against the client's strict schema."""


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def written_calls(
    parsed: ParsedReply, schemas: ClientSchemas, begun: Sequence[WrittenCall] = ()
) -> tuple[str, list[WrittenCall]]:
    """The content and the calls of a reply. A call that cannot be told apart from text is part of the content; where no
    call comes out, that is the text as it was written.

    `begun`: what was said of the first calls already, whose ids they keep.
    """
    texts = [parsed.content]
    calls: list[WrittenCall] = []
    ids: set[str] = set()
    for place, call in enumerate(parsed.tool_calls):
        call_id = call.id if call.id and call.id not in ids else new_call_id()
        if len(calls) < len(begun):
            call_id = begun[len(calls)].id
        ids.add(call_id)
        if call.error is None:
            calls.append(_as_written(call_id, call, parsed.written.get(place), schemas))
            continue
        written = parsed.unparsed.get(place) or call.error
        if (part := readable_part(written)) is not None:
            calls.append(WrittenCall(call_id, *part, call.error))
        else:
            texts.append(written)
    if not calls and parsed.verbatim is not None:
        return parsed.verbatim, []
    return "\n".join(text for text in texts if text), calls


def go_on_from(said: Sequence[WrittenCall], calls: Sequence[WrittenCall]) -> bool:
    """Whether the calls begin with what was said of them."""
    return len(said) <= len(calls) and all(
        (call.id, call.name) == (one.id, one.name) and call.arguments.startswith(one.arguments)
        for one, call in zip(said, calls, strict=False)
    )


def _as_written(call_id: str, call: ToolCall, block: str | None, schemas: ClientSchemas) -> WrittenCall:
    """A call that parsed, with its arguments as they stand in its `block` of the reply."""
    part = None if block is None else readable_part(block)
    if part is None:
        return WrittenCall(call_id, call.name, json.dumps(call.arguments, ensure_ascii=False), schemas.problem(call))
    if part[0] != call.name or read_arguments(part[1])[0] != call.arguments:
        # A stream has said the first already.
        return WrittenCall(call_id, *part, "the call has its name or its arguments twice")
    return WrittenCall(call_id, *part, schemas.problem(call))


def calls_as_text(parsed: ParsedReply) -> ParsedReply:
    """A reply to someone who offered no tools: what looks like a call is text like any other."""
    if not parsed.tool_calls:
        return parsed
    if parsed.verbatim is not None:
        return replace(parsed, content=parsed.verbatim, tool_calls=[])
    whole = [call for call in parsed.tool_calls if call.error is None]
    text = "\n".join([format_calls(parsed.content, whole), *parsed.unparsed.values()])
    return replace(parsed, content=text.rstrip(), tool_calls=[])
