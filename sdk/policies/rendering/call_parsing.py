"""Tool calls as text: a model's JSON parsed into `ToolCall`s, with errors the model can act on."""

from __future__ import annotations

import json
import re
from typing import Any

from mcp_bridge.safe_text import STRICT, shortened, strict_json

from ...records import ToolCall
from .renderer import CALL_OPEN, ParsedReply

CALL_CLOSE = "</tool_call>"
_FORM = 'a call is written <tool_call>{"name": "...", "arguments": {...}}</tool_call>'
_QUOTED_CHARS = 120
_MOST_LEVELS = 64
_NESTING = (dict, list)
_KEYS = frozenset({"name", "arguments"})
_BEGUN = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"[^"\\]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*+)*")\s*,'
    r'\s*"arguments"\s*:\s*(?=\S)'
)
"""How a call begins, up to its arguments."""
_IN_JSON = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"|[{}\[\]"]', re.DOTALL)
"""Strings, brackets, and the beginning of a string that has no end yet."""


class UnreadCall(ToolCall):
    """A call of an earlier turn whose arguments were no JSON object. Prompts have them as they were `written`, where
    the model's form of calls allows it: a model that reads its mistake can mend it."""

    written: str


def read_arguments(text: str | None) -> tuple[dict[str, Any], str | None]:
    """The arguments of a call given as a JSON string: `(arguments, None)`, or `({}, what is wrong)`.

    An empty string and None count as no arguments.
    """
    if text is None or not text.strip():
        return {}, None
    try:
        value = strict_json(text)
    except ValueError as error:
        return {}, f"the arguments are not valid JSON ({_reason(error)}): {_quote(text)}"
    return check_arguments(value)


def check_arguments(value: Any) -> tuple[dict[str, Any], str | None]:
    """`(value, None)` for an object that can be written as UTF-8 JSON, otherwise `({}, what is wrong)`."""
    if not isinstance(value, dict):
        return {}, f"the arguments must be a JSON object, not {json_kind(value)}"
    if deeper_than(value, _MOST_LEVELS):
        return {}, f"the arguments are nested more than {_MOST_LEVELS} levels deep"
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return {}, "the arguments hold half of a surrogate pair (a lone \\ud8xx escape); write the character itself"
    except ValueError:
        return {}, "the arguments hold a number that JSON does not have (NaN or an infinite one)"
    return value, None


def parse_tagged_reply(text: str, *, reasoning_open: bool = False) -> ParsedReply:
    """Read text with calls in `<tool_call>` tags (the Hermes format) and, before them, `<think>` reasoning.

    Text before the first call is the content; what stands between and after the calls is only in `verbatim`, because
    no template renders it. `reasoning_open`: the prompt already ended in `<think>`.
    """
    reasoning, text = split_reasoning(text, reasoning_open)
    first = text.find(CALL_OPEN)
    if first < 0:
        return ParsedReply(content=text, reasoning=reasoning)
    calls: list[ToolCall] = []
    blocks: tuple[dict[int, str], dict[int, str]] = {}, {}
    position = first
    while position >= 0:
        call, end = _read_block(text, position + len(CALL_OPEN))
        blocks[call.error is None][len(calls)] = text[position:end].strip()
        calls.append(call)
        position = text.find(CALL_OPEN, end)
    unparsed, written = blocks
    return ParsedReply(
        content=text[:first].rstrip(),
        reasoning=reasoning,
        tool_calls=calls,
        unparsed=unparsed,
        written=written,
        verbatim=text,
    )


def readable_part(block: str) -> tuple[str, str] | None:
    """The name and the arguments' text of a call as it is written; None where one of them cannot be found."""
    block = block.removeprefix(CALL_OPEN)
    if (found := begun_call(block)) is None:
        return None
    name, start = found
    arguments = block[start:].rstrip().removesuffix(CALL_CLOSE).rstrip()
    depth, end = count_brackets(arguments)
    if '"' not in arguments[end:]:  # in no string
        arguments = _without_begun_close(arguments)
    return name, arguments[:end] if depth == 0 and arguments[end:].strip() == "}" else arguments


def _without_begun_close(text: str) -> str:
    """`text` without the beginning of a closing tag at its end, where the limit cut that."""
    begun = (size for size in range(len(CALL_CLOSE), 0, -1) if text.endswith(CALL_CLOSE[:size]))
    return text[: len(text) - next(begun, 0)].rstrip()


def count_brackets(text: str, place: int = 0, depth: int = 0) -> tuple[int, int]:
    """How deep JSON is nested at its end, or where it first comes to 0; and the place after the last whole bracket or
    string. Of what follows `place`, which is `depth` deep."""
    for part in _IN_JSON.finditer(text, place):
        if part[0] == '"':
            break
        if depth == 0 and part[0] in ("}", "]"):  # after a number, or a word
            return 0, part.start()
        place = part.end()
        depth += (part[0] in ("{", "[")) - (part[0] in ("}", "]"))
        if depth == 0:
            break
    return depth, place


def begun_call(block: str) -> tuple[str, int] | None:
    """The name of a call that may go on, and where its arguments begin; None as long as one of them is not there."""
    found = _BEGUN.match(block)
    if found is None:
        return None
    name = json.loads(found["name"], strict=False)
    return (name, found.end()) if name and not _has_surrogate(name) else None


def format_calls(content: str, calls: list[ToolCall]) -> str:
    """The text that `parse_tagged_reply` reads back: content, then each call in its tags, a line apart."""
    blocks = [
        f'{CALL_OPEN}{{"name": {json.dumps(c.name, ensure_ascii=False)}, "arguments": '
        f"{c.written if isinstance(c, UnreadCall) else json.dumps(c.arguments, ensure_ascii=False)}}}{CALL_CLOSE}"
        for c in calls
    ]
    return "\n".join([content, *blocks] if content else blocks)


def split_reasoning(text: str, reasoning_open: bool) -> tuple[str | None, str]:
    """The reasoning at the beginning of a text, None without, and the rest: "" where the reasoning does not end."""
    body = text.lstrip()
    if not reasoning_open:
        if not body.startswith("<think>"):
            return None, text
        body = body.removeprefix("<think>")
    reasoning, closed, rest = body.partition("</think>")
    return reasoning.strip("\n"), rest.lstrip("\n") if closed else ""


def _read_block(text: str, start: int) -> tuple[ToolCall, int]:
    """The call whose JSON begins at `start` (after the opening tag), and the place where its block ends."""
    body = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = _strict_decoder.raw_decode(text, body)
    except (ValueError, RecursionError) as error:
        raw, end, closed = _raw_block(text, start)
        if not closed:
            return _failed(f"the call is not closed by {CALL_CLOSE}: {_quote(raw)}; {_FORM}"), end
        return _failed(f"the call is not valid JSON ({_reason(error, body)}): {_quote(raw)}; {_FORM}"), end
    after = end + len(text[end:]) - len(text[end:].lstrip())
    if text.startswith(CALL_CLOSE, after):
        return _call_from_json(value), after + len(CALL_CLOSE)
    raw, block_end, closed = _raw_block(text, end)
    name = value.get("name") if isinstance(value, dict) else None
    if closed:
        message = f"text stands between the call's JSON and {CALL_CLOSE}: {_quote(raw)}; {_FORM}"
    else:
        message = f"the call is not closed by {CALL_CLOSE}: {_quote(text[start:block_end])}; {_FORM}"
    return _failed(message, name if isinstance(name, str) else ""), block_end


def _raw_block(text: str, start: int) -> tuple[str, int, bool]:
    """The text of a block that is not a call, where to read on, and whether its closing tag was there."""
    close = text.find(CALL_CLOSE, start)
    reopened = text.find(CALL_OPEN, start)
    if close >= 0 and (reopened < 0 or close < reopened):
        return text[start:close], close + len(CALL_CLOSE), True
    end = reopened if reopened >= 0 else len(text)
    return text[start:end], end, False


def _call_from_json(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        return _failed(f"the call must be a JSON object, not {json_kind(value)}; {_FORM}")
    name = value.get("name")
    if not isinstance(name, str) or not name or _has_surrogate(name):
        return _failed(f'the call has no "name"; {_FORM}')
    unknown = value.keys() - _KEYS
    if unknown:
        return _failed(f"the call has unknown keys {_quote(json.dumps(sorted(unknown)))}; {_FORM}", name)
    arguments, error = check_arguments(value.get("arguments", {}))
    return ToolCall(id="", name=name, arguments=arguments, error=error)


def _failed(message: str, name: str = "") -> ToolCall:
    return ToolCall(id="", name="" if _has_surrogate(name) else name, error=message)


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _reason(error: ValueError | RecursionError, start: int = 0) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos - start}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


_JSON_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def json_kind(value: object) -> str:
    """What a value of JSON is, in JSON's words."""
    return _JSON_KINDS.get(type(value), "a number")


def deeper_than(value: Any, levels: int) -> bool:
    """Whether arrays and objects nest deeper; whoever writes the value as JSON later must not run out of stack."""
    if not isinstance(value, _NESTING):
        return False
    if levels == 0:
        return True
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, _NESTING) and deeper_than(child, levels - 1):
            return True
    return False


_strict_decoder = json.JSONDecoder(**STRICT)


def _quote(text: str) -> str:
    return shortened(text.strip(), _QUOTED_CHARS)
