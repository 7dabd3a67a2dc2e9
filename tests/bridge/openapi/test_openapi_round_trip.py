"""Documents as web frameworks generate them from Python types: what they mean arrives."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

import mcp_bridge
from mcp_bridge import ToolResult, Toolset

Call = Callable[[str, dict[str, Any]], ToolResult]


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=0, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    owner: str | None = None


class Part(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=20)]
    parts: list[Part] = []


class Item(BaseModel):
    name: str
    size: Size = Size.SMALL
    price: Annotated[float, Field(gt=0, lt=1e9)]
    due: datetime.date | None = None
    tags: set[str] = set()
    counts: dict[str, int] = {}
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    part: Part | None = None
    at: tuple[int, str] = (0, "")


def generated(base: str, version: str = "3.1.0") -> dict[str, Any]:
    """What a framework of this kind writes for two operations with `Item`."""
    _, schemas = models_json_schema([(Item, "validation")], ref_template="#/components/schemas/{model}")
    error = {"description": "Validation Error", "content": {"application/json": {"schema": {"type": "object"}}}}
    item = {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}}
    limit = {
        "name": "limit",
        "in": "query",
        "required": False,
        "schema": {"anyOf": [{"type": "integer", "maximum": 100}, {"type": "null"}], "title": "Limit"},
    }
    item_id = {"name": "item_id", "in": "path", "required": True, "schema": {"type": "integer", "title": "Item Id"}}
    put = {
        "summary": "Update Item",
        "operationId": "update_item_items__item_id__put",
        "parameters": [item_id, limit],
        "requestBody": {"required": True, "content": item},
        "responses": {"200": {"description": "Successful Response", "content": item}, "422": error},
    }
    return {
        "openapi": version,
        "info": {"title": "Items", "version": "0.1.0"},
        "servers": [{"url": base}],
        "paths": {"/items/{item_id}": {"put": put}},
        "components": {"schemas": schemas["$defs"]},
    }


@pytest.fixture(scope="module")
def toolset(echo: str) -> Iterator[tuple[Toolset, Call]]:
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(mcp_bridge.connect(generated(echo), max_result_chars=10**6)) as tools:
            yield tools, lambda name, arguments: portal.call(tools.call, name, arguments)


PARTS = st.recursive(
    st.builds(Part, name=st.text(min_size=1, max_size=20), parts=st.just([])),
    lambda inner: st.builds(Part, name=st.text(min_size=1, max_size=20), parts=st.lists(inner, max_size=2)),
    max_leaves=4,
)
ITEMS = st.builds(
    Item,
    name=st.text(max_size=5),
    size=st.sampled_from(Size),
    price=st.floats(min_value=0.01, max_value=1e8),
    due=st.none() | st.dates(),
    tags=st.sets(st.text(max_size=3), max_size=3),
    counts=st.dictionaries(st.text(max_size=3), st.integers(-5, 5), max_size=3),
    pet=st.builds(Cat, lives=st.integers(0, 9)) | st.builds(Dog, owner=st.none() | st.text(max_size=4)),
    part=st.none() | PARTS,
    at=st.tuples(st.integers(), st.text(max_size=3)),
)


@given(item=ITEMS, item_id=st.integers(), limit=st.none() | st.integers(0, 100))
def test_what_fits_the_types_arrives_as_it_was(
    toolset: tuple[Toolset, Call], item: Item, item_id: int, limit: int | None
) -> None:
    _, call = toolset
    arguments = {"item_id": item_id, "limit": limit, **item.model_dump(mode="json")}
    result = call("update_item", arguments)
    assert not result.is_error, result.text
    received = result.structured
    assert received["path"] == f"/items/{item_id}"
    assert received["query"] == ("" if limit is None else f"limit={limit}")
    assert Item.model_validate_json(received["body"]) == item


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"price": 0}, "price is 0"),
        ({"size": "huge"}, 'one of "small", "large"'),
        ({"pet": {"kind": "cat", "lives": 10}}, "pet is"),
        ({"part": {"name": ""}}, "part is"),
        ({"at": [1]}, "at is [1]"),
        ({"colour": "red"}, "unknown argument"),
        ({"item_id": "x"}, "item_id is"),
        ({"limit": 101}, "limit is 101"),
    ],
)
def test_what_does_not_fit_the_types_is_told_before_anything_is_sent(
    toolset: tuple[Toolset, Call], change: dict[str, Any], complaint: str
) -> None:
    _, call = toolset
    fine = {"item_id": 1, "name": "n", "price": 1, "pet": {"kind": "dog"}}
    result = call("update_item", {**fine, **change})
    assert result.error_kind == "invalid_arguments"
    assert complaint in result.text


def test_titles_that_repeat_a_name_are_not_paid_for(toolset: tuple[Toolset, Call]) -> None:
    (tool,) = toolset[0].tools
    assert '"title": "Item Id"' not in json.dumps(tool.input_schema)
    assert '"title": "Lives"' not in json.dumps(tool.input_schema)
    assert list(tool.input_schema["properties"])[:4] == ["item_id", "limit", "name", "size"]
