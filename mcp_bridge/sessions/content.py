"""What a server returned, as text that the policy reads."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from ..records import ToolResult
from ..toolsets.results import EMPTY, EMPTY_ERROR, compact_json, error

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, CallToolResult, ContentBlock, ResourceLink, TextResourceContents

_TEXTUAL = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/javascript")
_MOST_LEAVES = 500
_JSON_BEGINS = frozenset('{["-0123456789tfn \n\r\t')
_WORD = re.compile(r"[\w.+-]+")


def from_mcp(result: CallToolResult, *, reader: str | None = None) -> ToolResult:
    """A server's result as a record. The text is not capped here; see `mcp_bridge.toolsets.results.capped`.

    `reader`: the tool that reads linked resources, where there is one; links then say so. Structured content follows
    the text as JSON, unless the text tells all of its values already.
    """
    content, structured = result.content, result.structured_content
    # Most results are one text: it takes no walk through the parts.
    plain = content[0].text if len(content) == 1 and content[0].type == "text" else None
    text = text_of(content, reader=reader) if plain is None else plain
    if structured is not None and not _tells(_own_text(content) if plain is None else plain, structured):
        text = "\n".join(part for part in (text, compact_json(structured)) if part)
    if result.is_error:
        return error(text or EMPTY_ERROR, "tool_error", structured=structured)
    return ToolResult(text=text or EMPTY, structured=structured)


def text_of(content: Iterable[ContentBlock], *, reader: str | None = None) -> str:
    """Text parts as they are, one under the other; everything else as a short line in brackets.

    The text of an embedded text resource follows its line: for many servers it is the answer.
    """
    return "\n".join(part for part in (_part_text(block, reader) for block in content) if part)


def resource_text(resource: TextResourceContents | BlobResourceContents) -> str:
    """A line in brackets that says what it is, and the text under it, also where a text came as bytes."""
    kind = resource.mime_type or "unknown type"
    text = getattr(resource, "text", None)
    if text is None and (decoded := _decoded(resource)) is not None:
        text = decoded
    if text is None:
        return f"[resource {resource.uri}, {kind}, {_decoded_size(getattr(resource, 'blob', ''))} bytes]"
    return f"[resource {resource.uri}, {kind}, {len(text)} characters]\n{text}"


def _part_text(block: ContentBlock, reader: str | None) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource":
        return resource_text(block.resource)
    if block.type == "resource_link":
        return _link_text(block, reader)
    return f"[{block.type}, {block.mime_type}, {_decoded_size(block.data)} bytes]"


def _link_text(link: ResourceLink, reader: str | None) -> str:
    size = f", {link.size} bytes" if link.size is not None else ""
    about = f": {link.description}" if link.description else ""
    how = f"; read it with {reader}" if reader else ""
    return f"[link {link.uri}, {link.name}{about}, {link.mime_type or 'unknown type'}{size}{how}]"


def _decoded(resource: Any) -> str | None:
    kind = (resource.mime_type or "").partition(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind in _TEXTUAL or kind.endswith(("+json", "+xml"))):
        return None
    try:
        return base64.b64decode(resource.blob, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None


def _decoded_size(data: str) -> int:
    """Bytes behind a base64 string, without decoding it."""
    stripped = data.rstrip("=")
    return len(stripped) * 3 // 4


def _tells(text: str, structured: Any) -> bool:
    """Whether the text is the structured content, or holds every value of it."""
    if not text:
        return False
    # A server that returns a bare value has it under "result" in the structured form.
    bare = structured.get("result") if isinstance(structured, dict) and list(structured) == ["result"] else structured
    if bare is not structured and isinstance(bare, str):
        return bare in text
    if text[0] in _JSON_BEGINS:
        told = _read(text)
        # Python holds 1 and True to be equal; JSON does not.
        if told == structured or (told == bare and isinstance(told, bool) == isinstance(bare, bool)):
            return True
    words = {word.strip(".") for word in _WORD.findall(text)}
    leaves = list(_leaves(bare, _MOST_LEAVES + 1))
    # A short value may be in a text by chance, as a part of another.
    return len(leaves) <= _MOST_LEAVES and all(leaf in words or (len(leaf) > 3 and leaf in text) for leaf in leaves)


def _read(text: str) -> Any:
    """A text as JSON; None where it is none."""
    try:
        return from_json(text)
    except ValueError:
        pass
    # Half as fast, and takes more: half of a surrogate pair, deeper nesting.
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _own_text(content: Iterable[ContentBlock]) -> str:
    """What the server wrote, without the lines in brackets."""
    texts = []
    for block in content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "resource":
            texts.append(getattr(block.resource, "text", ""))
    return "\n".join(texts)


def _leaves(value: Any, most: int) -> Iterator[str]:
    """The values inside, as a text would show them, up to about `most`."""
    waiting = [value]
    while waiting and most > 0:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif one is not None:
            most -= 1
            yield one if isinstance(one, str) else json.dumps(one)
