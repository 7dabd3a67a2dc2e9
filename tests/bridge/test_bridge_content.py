"""Results of servers as text: what is in them is in it."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from mcp_bridge.sessions.listing import from_mcp

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def shown(*content: ContentBlock, reader: str | None = None, **result: Any) -> str:
    return from_mcp(CallToolResult(content=list(content), **result), reader=reader).text


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values()) or value
    if value and isinstance(value, list):
        for one in value:
            yield from leaves(one)
    else:
        yield value


@given(st.text(max_size=30), st.dictionaries(st.text(max_size=4), values, max_size=4))
@example("3 letters", {"a": 3, "b": True})
@example("1.5", {"a": 1.5})
@example("1", {"result": True})
@example("[1", {"a": [1]})
def test_every_value_of_structured_content_is_in_the_text(text: str, structured: dict[str, Any]) -> None:
    told = shown(TextContent(text=text), structured_content=structured)
    assert text in told
    for leaf in leaves(structured) if structured not in ({}, {"result": None}) else ():
        # In the text that the server wrote, or in the JSON below it.
        assert (leaf if isinstance(leaf, str) else json.dumps(leaf)) in told or json.dumps(
            leaf, ensure_ascii=False
        ) in told


@pytest.mark.parametrize(
    ("text", "structured"),
    [
        ('{"count": 3, "of": "lamps"}', {"of": "lamps", "count": 3}),
        ('{\n  "count": 3\n}', {"count": 3}),
        ("3", {"result": 3}),
        ("a red lamp", {"result": "a red lamp"}),
        ("There are 3 lamps.", {"count": 3, "of": "lamps"}),
        ("It is empty.", {}),
        ("", {"result": "words"}),
        ("", {"a": ""}),
    ],
)
def test_structured_content_that_the_text_tells_already_is_not_repeated(text: str, structured: dict[str, Any]) -> None:
    told = shown(*([TextContent(text=text)] if text else []), structured_content=structured)
    assert told == (text or json.dumps(structured, separators=(",", ":")))


@pytest.mark.parametrize("bare", ["", None])
def test_a_result_without_any_value_is_empty(bare: str | None) -> None:
    assert shown(structured_content={"result": bare}) == "(empty result)"
    assert shown(TextContent(text=""), structured_content={"result": bare}) == "(empty result)"


@pytest.mark.parametrize(
    ("text", "structured", "rest"),
    [
        ("Entities deleted", {"success": True, "message": "Entities deleted"}, {"success": True}),
        (
            "Entities deleted",
            {"result": {"success": True, "message": "Entities deleted"}},
            {"result": {"success": True}},
        ),
        ("Found 3.", {"count": 3, "ids": [1, 2, 3]}, {"ids": [1, 2, 3]}),
        ("It is empty.", {"items": [], "more": False}, {"items": [], "more": False}),
        ("Searched the orders of 4256.", {"of": 4256, "orders": []}, {"orders": []}),
        ("Searched.", {"found": {}, "next": None}, {"found": {}, "next": None}),
        ("Booked: true", {"booked": True, "error": ""}, {"error": ""}),
        # A part of another number or word is not the value.
        ("Order 14256-7, 2345.67 in all.", {"id": "4256", "sum": 2345, "all": 2345.67}, {"id": "4256", "sum": 2345}),
        ("It was uncancelled -4256.5", {"status": "cancelled", "sum": 4256.5}, {"status": "cancelled", "sum": 4256.5}),
        ("id 4256123", {"result": "4256"}, {"result": "4256"}),
    ],
)
def test_no_value_stands_twice(text: str, structured: dict[str, Any], rest: dict[str, Any]) -> None:
    result = from_mcp(CallToolResult(content=[TextContent(text=text)], structured_content=structured))
    assert result.text == f"{text}\n{json.dumps(rest, separators=(',', ':'))}"
    assert result.structured == structured


def test_lists_that_come_as_a_text_for_each_item_are_not_repeated() -> None:
    items = [TextContent(text="red"), TextContent(text="blue")]
    assert shown(*items, structured_content={"result": ["red", "blue"]}) == "red\nblue"


def test_structured_content_that_the_text_leaves_out_follows_it() -> None:
    assert shown(TextContent(text="Found 3."), structured_content={"ids": [1, 2, 3]}) == 'Found 3.\n{"ids":[1,2,3]}'
    # Part of another word is not the value.
    assert shown(TextContent(text="A13"), structured_content={"stock": 3}) == 'A13\n{"stock":3}'


@given(st.text(max_size=50))
def test_a_text_resource_reads_the_same_whether_it_came_as_text_or_as_bytes(text: str) -> None:
    uri, kind = "file:///a", "text/plain; charset=utf-8"
    blob = base64.b64encode(text.encode()).decode()
    as_text = EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=kind, text=text))
    as_bytes = EmbeddedResource(resource=BlobResourceContents(uri=uri, mime_type=kind, blob=blob))
    assert shown(as_bytes) == shown(as_text) == f"[resource file:///a, {kind}, {len(text)} characters]\n{text}"


@pytest.mark.parametrize(
    ("kind", "blob"), [("text/plain", "/w=="), ("text/plain", "not base64"), ("image/png", "aGk=")]
)
def test_bytes_that_are_no_text_are_told_by_their_size(kind: str, blob: str) -> None:
    told = shown(EmbeddedResource(resource=BlobResourceContents(uri="file:///a", mime_type=kind, blob=blob)))
    assert told.startswith(f"[resource file:///a, {kind}, ")
    assert told.endswith(" bytes]")


def test_a_link_says_what_it_leads_to_and_how_to_read_it() -> None:
    link = ResourceLink(uri="file:///a", name="a", description="The first.", mime_type="text/plain", size=3)
    assert shown(link) == "[link file:///a, a: The first., text/plain, 3 bytes]"
    assert shown(link, reader="look") == "[link file:///a, a: The first., text/plain, 3 bytes; read it with look]"
