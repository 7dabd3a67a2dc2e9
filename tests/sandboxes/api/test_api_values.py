"""The values that a twin makes up."""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import pytest

from sandboxes.api import ApiTwin

ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "price": {"type": "number", "minimum": 0, "multipleOf": 0.01},
    },
    "required": ["id", "price"],
}


def answer(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "", "content": {"application/json": {"schema": schema}}}


MIN_PRICE = {"name": "min_price", "in": "query", "schema": {"type": "number"}}
ITEMS = {
    "get": {
        "operationId": "list_items",
        "parameters": [MIN_PRICE],
        "responses": {"200": answer({"type": "array", "items": ITEM})},
    },
    "post": {"operationId": "make_item", "requestBody": answer(ITEM), "responses": {"201": answer(ITEM)}},
}
SHOP = {"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "paths": {"/items": ITEMS}}


def test_a_number_is_a_multiple_of_its_step_as_it_is_written() -> None:
    rows = ApiTwin(SHOP, rows=200).state()["items"].values()
    is_multiple = jsonschema_rs.Draft202012Validator({"multipleOf": 0.01}).is_valid
    assert len(rows) == 200
    assert [row["price"] for row in rows if not is_multiple(row["price"])] == []
    assert any(row["price"] != round(row["price"], 1) for row in rows), "there are steps between"


def test_a_number_of_hundreds_of_digits_is_a_number_like_others() -> None:
    twin = ApiTwin(SHOP)
    assert twin.call_now("list_items", {"min_price": 10**400}).structured == []
    assert len(twin.call_now("list_items", {"min_price": -(10**400)}).structured) == 8
    made = twin.call_now("make_item", {"price": 10**400}).structured
    assert made["price"] == 10**400


@pytest.mark.parametrize(
    ("pattern", "length"), [(r".*[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{23}.*", 37), (r"^\d+$", 200), (r"^[a-z]*-x$", 90)]
)
def test_a_text_has_the_length_and_the_pattern_that_are_asked_for(pattern: str, length: int) -> None:
    code = {"type": "string", "pattern": pattern, "minLength": length, "maxLength": length}
    item = {**ITEM, "properties": {**ITEM["properties"], "code": code}, "required": ["id", "code"]}
    listed = {**ITEMS["get"], "responses": {"200": answer({"type": "array", "items": item})}}
    made = {**ITEMS["post"], "requestBody": answer(item), "responses": {"201": answer(item)}}
    twin = ApiTwin({**SHOP, "paths": {"/items": {"get": listed, "post": made}}}, rows=40)
    codes = [one["code"] for one in twin.call_now("list_items", {}).structured]
    assert len(codes) == 40
    assert all(len(one) == length and re.search(pattern, one) for one in codes)


def test_numbers_however_near_to_a_bound_that_they_may_not_reach_are_kept() -> None:
    price = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    item = {**ITEM, "properties": {**ITEM["properties"], "price": price}}
    listed = {**ITEMS["get"], "responses": {"200": answer({"type": "array", "items": item})}}
    made = {**ITEMS["post"], "requestBody": answer(item), "responses": {"201": answer(item)}}
    twin = ApiTwin({**SHOP, "paths": {"/items": {"get": listed, "post": made}}})
    for number in (5e-7, 1 - 5e-7):
        assert twin.call_now("make_item", {"price": number}).structured["price"] == number
