"""Calls as clients get them: arguments as text, also where the model did not finish them, and checked where asked."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace

from ..policies.rendering import ParsedReply
from ..policies.rendering.call_parsing import format_calls, readable_part
from .client_schemas import ClientSchemas


@dataclass(frozen=True)
class WrittenCall:
    """A call of an answer. `arguments` is JSON text, or where `problem` is set what the model wrote in its place."""

    id: str
    name: str
    arguments: str
    problem: str | None = None
    """Why the model's call does not parse, or does not hold against the client's strict schema."""


def written_calls(parsed: ParsedReply, schemas: ClientSchemas) -> tuple[str, list[WrittenCall]]:
    """The content and the calls of a reply. A call that cannot be told apart from text is part of the content."""
    texts = [parsed.content]
    calls: list[WrittenCall] = []
    ids: set[str] = set()
    for place, call in enumerate(parsed.tool_calls):
        call_id = call.id if call.id and call.id not in ids else f"call_{secrets.token_hex(12)}"
        ids.add(call_id)
        if call.error is None:
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            calls.append(WrittenCall(call_id, call.name, arguments, schemas.problem(call)))
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
