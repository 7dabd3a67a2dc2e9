"""Twins of documents whose operations have most of their schemas in common, and the checks of their answers."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator
from small_apis import NUMBER, TEXT, api, crud, listed, operation, record, ref

from mcp_bridge.openapi.document import read_document
from sandboxes.api import ApiTwin
from sandboxes.api.shapes import Validity

FIELDS, SHARED = 20, 10


def shop(resources: int) -> dict[str, Any]:
    """Every row holds what all share: a ring of definitions, of which each has many fields."""
    ring = {
        f"Part{number}": record(
            **{f"field{each}": TEXT for each in range(FIELDS)}, next=ref(f"Part{(number + 1) % SHARED}")
        )
        for number in range(SHARED)
    }
    paths: dict[str, Any] = {}
    for number in range(resources):
        row = record(["id"], id=NUMBER, name=TEXT, part=ref("Part0"))
        item = operation(f"get{number}", gives=row, names={"id": NUMBER})
        paths[f"/things{number}"] = {
            "get": operation(f"list{number}", gives=listed(row)),
            "post": operation(f"make{number}", sends=record(["name"], name=TEXT), gives=row, status="201"),
        }
        paths[f"/things{number}/{{id}}"] = {"get": item}
    return api(paths, **ring)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long each schema is, as JSON, of which a check is compiled."""
    sizes: list[int] = []
    compile_one = jsonschema_rs.Draft202012Validator

    def counting(schema: Any, **options: Any) -> Any:
        sizes.append(len(json.dumps(schema)))
        return compile_one(schema, **options)

    monkeypatch.setattr(jsonschema_rs, "Draft202012Validator", counting)
    return sizes


def test_the_checks_of_answers_hold_what_they_share_once(compiled: list[int]) -> None:
    def total(resources: int) -> int:
        compiled.clear()
        twin = ApiTwin(shop(resources))
        for number in range(resources):
            made = twin.call_now(f"make{number}", {"name": "one"}).structured
            assert twin.call_now(f"get{number}", {"id": made["id"]}).structured == made
            assert made in twin.call_now(f"list{number}", {}).structured
        return sum(compiled)

    ring = len(json.dumps(shop(0)["components"]))
    more = total(12) - total(2)
    # Each resource has three answers; with the ring in each of their checks it would be thirty rings.
    assert more < 3 * ring


SCHEMAS: dict[str, Any] = {
    "Even/Odd ~ 100%": {"type": "integer", "multipleOf": 2},
    "Ahead": {"type": "string", "pattern": "^(?!no)"},
    "Tree": record(["v"], v=ref("Even~1Odd ~0 100%25"), w=ref("Ahead"), t=listed(ref("Tree"))),
    "Any": True,
}
INLINE: list[Any] = [
    ref("Tree"),
    {"anyOf": [ref("Ahead"), ref("Tree")]},
    {"allOf": [ref("Tree"), {"required": ["t"]}]},
    {**record(w=TEXT, q=ref("Any")), "pattern": "^(?=a)"},
    {**ref("Tree"), "unevaluatedProperties": False},
    {"not": ref("Ahead")},
]
VALUES: list[Any] = [
    {"v": 2},
    {"v": 3},
    {"v": 10**400},
    {"v": 2, "w": "yes"},
    {"v": 2, "w": "no"},
    {"v": 2, "t": [{"v": 4}, {"v": 2, "t": []}]},
    {"v": 2, "t": [{"v": 4}, {"v": 2, "t": [{"v": 1}]}]},
    {"v": 2, "other": 1},
    {"w": "yes", "q": None},
    "yes",
    "no",
    "abc",
    None,
    [],
]


@pytest.mark.parametrize("schema", INLINE)
def test_values_are_valid_under_the_schemas_that_refer_to_definitions_by_any_name(schema: Any) -> None:
    responses = {"/a": {"get": operation("a", gives=schema)}, "/b": {"get": operation("b", gives=listed(schema))}}
    document = read_document(api(responses, **SCHEMAS))
    answer, many = (one.responses["200"].content["application/json"].schema for one in document.operations)
    validity = Validity(document)
    expected = [Draft202012Validator(document.closed(answer)).is_valid(value) for value in VALUES]
    assert len(set(expected)) == 2
    assert [validity.holds(answer, value) for value in VALUES] == expected
    assert [validity.holds(many, [value, value]) for value in VALUES] == expected
    # Schemas that the document does not have, as a twin puts them together.
    together = {"allOf": [answer, True]}
    assert [validity.holds(together, value) for value in VALUES] == expected


def test_a_twin_that_is_not_used_any_more_takes_no_memory() -> None:
    twin = ApiTwin(shop(2))
    made = twin.call_now("make0", {"name": "one"})
    assert not made.is_error
    twin.blueprint.shapes.validity.holds({"anyOf": [{"$ref": "#/$defs/Part0"}]}, {})
    kept = weakref.ref(twin.blueprint)
    del twin
    gc.collect()
    assert kept() is None


def test_calls_leave_nothing_behind_where_a_kind_of_rows_limits_what_all_have() -> None:
    base = record(["id", "kind"], id=NUMBER, kind=TEXT)
    kinds = {
        name: {"allOf": [ref("Base"), record(["kind"], kind={"type": "string", "enum": [name.lower()]})]}
        for name in ("Cat", "Dog")
    }
    pet = {"oneOf": [*map(ref, kinds)], "discriminator": {"propertyName": "kind"}}
    twin = ApiTwin(api(crud("/pets", "Pet", pet, pet, kind=NUMBER), Base=base, **kinds))
    shapes = twin.blueprint.shapes
    known = set[int]()
    for _ in range(3):
        for pet in twin.call_now("listPets", {}).structured:
            assert twin.call_now("getPet", {"id": pet["id"]}).structured == pet
        known.add(len(shapes._shapes))
    assert len(known) == 1
