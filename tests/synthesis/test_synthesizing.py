"""Tasks made from tools are right: each is solved by its own calls, says what it needs, and trains as it stands."""

from __future__ import annotations

import io
import json
import random
import re
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from banks import bank
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

import mcp_bridge
import sdk
from mcp_bridge import connect
from sandboxes import diff
from sandboxes.api import ApiTwin
from sandboxes.helpdesk import Helpdesk
from sandboxes.objects import ObjectTwin
from sdk.policies.scripted import ScriptedAgent
from sdk.progress import Console, Silent
from sdk.synthesis.synthesis_run import synthesize_async
from sdk.synthesis.words import verb_and_object
from sdk.synthesis.worlds import new_key
from sdk.tasks import load_tasks, split_tasks
from sdk.verifiers import all_of, answer_match, as_expected, final_state, required_calls

SHOP = Path(__file__).parents[1] / "sandboxes" / "api" / "shop.yaml"


@pytest.fixture(scope="module")
def desk_tasks() -> Sequence[sdk.Task]:
    return sdk.synthesize(Helpdesk(), 16, max_calls=4).tasks


def test_tools_that_give_few_kinds_of_tasks_are_not_tried_to_the_end() -> None:
    class Shelf:
        def __init__(self, seed: int = 0) -> None:
            self.books = {f"B{number}": {"title": f"Title {number}"} for number in range(4)}

        def get_book(self, book_id: str) -> dict[str, str]:
            return self.books[book_id]

    made = sdk.synthesize(ObjectTwin(Shelf), 12, max_calls=1)
    assert 0 < len(made.tasks) < 12
    assert made.attempts < 60 * 12


def test_no_task_asks_for_what_is_cut_from_a_result_or_differs_in_each_play() -> None:
    class Shelf:
        def __init__(self, seed: int = 0) -> None:
            self.books = {f"B{number}": {"title": f"Title {number}"} for number in range(4)}

        def get_book(self, book_id: str) -> dict[str, str]:
            return {"text": "so on, " * 2000, **self.books[book_id]}

        def get_receipt(self, book_id: str) -> dict[str, str]:
            return {"title": self.books[book_id]["title"], "receipt": secrets.token_hex(4)}

    made = sdk.synthesize(ObjectTwin(Shelf, reads=("get_book", "get_receipt")), 6, max_calls=1)
    asked = [task.tags["tools"] for task in made.tasks if task.expected["answer"].startswith("Title ")]
    assert asked == ["get_receipt"] * len(made.tasks) != []
    assert "they were cut, or differ in each play" in str(made.left_out)


def test_a_tool_that_changes_nothing_without_its_optional_argument_is_not_asked_what_it_knows() -> None:
    class Rota:
        def __init__(self) -> None:
            self.shifts = {f"S{n}": {"ward": f"Ward {n}", "note": "", "skills": []} for n in (12, 35, 47, 68)}

        def get_shift(self, shift_id: str) -> dict[str, Any]:
            return self.shifts[shift_id]

        def set_note(self, shift_id: str, note: str = "") -> str:
            self.shifts[shift_id]["note"] = note
            return "noted"

        def set_skills(self, shift_id: str, skills: list[str] | None = None) -> str:
            self.shifts[shift_id]["skills"] = skills or []
            return "set"

    made = sdk.synthesize(ObjectTwin(Rota), 4, max_calls=1)
    assert {task.tags["tools"] for task in made.tasks} == {"get_shift"}


def test_requests_have_the_names_of_other_alphabets_whole() -> None:
    class Karte:
        def __init__(self, seed: int = 0) -> None:
            self.städte = {f"S{seed}{n}": {"größe": n * 3, "река": name} for n, name in enumerate(("Волга", "Дон"))}

        def get_stadt(self, stadt_id: str) -> dict[str, Any]:
            return {"id": stadt_id, **self.städte[stadt_id]}

    made = sdk.synthesize(ObjectTwin(Karte), 4, max_calls=1)
    assert len(made.tasks) == 4
    assert all("größe of" in str(task.prompt) or "река of" in str(task.prompt) for task in made.tasks)


def solved_by_hand(source: Any, task: sdk.Task) -> tuple[list[Any], list[Any]]:
    """What the gold calls return in a fresh world, and what they change: without anything of synthesis."""

    async def play() -> tuple[list[Any], list[Any]]:
        async with connect(source) as toolset, toolset.open_world("by-hand", task.setup) as world:
            before = await world.state()
            results = [await world.call(call["name"], call["arguments"]) for call in task.expected["calls"]]
            return results, diff(before or {}, await world.state() or {})

    return anyio.run(play)


@pytest.mark.parametrize("source", [Helpdesk, lambda: ApiTwin(SHOP), bank], ids=["sql twin", "api twin", "object twin"])
def test_the_gold_calls_of_every_task_lead_to_the_end_it_expects(source: Any) -> None:
    made = sdk.synthesize(source(), 8, max_calls=2)
    assert len(made.tasks) == 8, str(made)
    for task in made.tasks:
        results, changes = solved_by_hand(source(), task)
        assert not any(result.is_error for result in results)
        assert changes == task.expected["changes"]
        if task.expected["answer"] != "done":
            assert str(task.expected["answer"]) in results[-1].text


def test_a_question_may_be_answered_with_another_tool_and_a_guess_earns_nothing() -> None:
    tasks = sdk.synthesize(bank(), 8, setups=[{}], max_calls=1).tasks
    by_key = next(task for task in tasks if task.tags["tools"] == "get_account")
    owner = {f"A-{n}": name for n, name in zip((101, 202, 303, 404), ("Ann", "Bob", "Cid", "Dora"), strict=True)}
    account = by_key.expected["calls"][0]["arguments"]["account"]
    another = next(one for one in owner if one != account)
    said = by_key.demonstration[-1]

    def score(*calls: tuple[str, dict[str, Any]]) -> float:
        made = [sdk.ToolCall(id=f"c{n}", name=name, arguments=given) for n, (name, given) in enumerate(calls)]
        script = [*(sdk.Message(role="assistant", tool_calls=[call]) for call in made), said]
        played = sdk.rollout(bank(), by_key, model=ScriptedAgent(script), verifier=as_expected())
        assert played.verdict is not None
        return played.verdict.score

    assert score(("get_account", {"account": account})) == 1
    assert score(("find_accounts", {"owner": owner[account]})) == 1
    assert score() == 0
    assert score(("find_accounts", {"owner": owner[another]})) == 0
    assert score(("get_account", {"account": another})) == 0
    assert score(("get_account", {"account": "A-909"})) == 0


def test_a_field_that_may_be_left_out_or_null_is_set_by_the_tasks_of_its_tool() -> None:
    """So FastAPI writes each field of a PATCH."""
    thing = {"type": "object", "required": ["id", "size"], "properties": {"id": {"type": "integer"}}}
    thing["properties"]["size"] = {"type": "string", "enum": ["small", "large"]}
    change = {"type": "object", "properties": {"size": {"anyOf": [thing["properties"]["size"], {"type": "null"}]}}}
    shows = {"200": {"description": "It.", "content": {"application/json": {"schema": thing}}}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Things", "version": "1"},
        "paths": {
            "/things/{id}": {
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                "get": {"operationId": "get_thing", "responses": shows},
                "patch": {
                    "operationId": "update_thing",
                    "requestBody": {"content": {"application/json": {"schema": change}}},
                    "responses": shows,
                },
            },
        },
    }
    made = sdk.synthesize(ApiTwin(document), 12, max_calls=1)
    changes = [task.expected["changes"] for task in made.tasks if task.tags["tools"] == "update_thing"]
    assert changes
    assert {change["column"] for some in changes for change in some} == {"size"}


def _stock_api() -> dict[str, Any]:
    """Items with a key of people's own choice, which a PUT has in its path and in its body."""
    text = {"type": "string"}
    properties = {"sku": text, "name": text, "quantity": {"type": "integer"}, "shelf": text}
    item = {"type": "object", "required": list(properties), "properties": properties}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}}
    shows = {"200": {"description": "It.", "content": content}}
    given = {"requestBody": {"required": True, "content": content}, "responses": shows}
    key = {"name": "sku", "in": "path", "required": True, "schema": text}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stock", "version": "1"},
        "paths": {
            "/items": {"post": {"operationId": "create_item", **given}},
            "/items/{sku}": {
                "parameters": [key],
                "get": {"operationId": "get_item", "responses": shows},
                "put": {"operationId": "replace_item", **given},
            },
        },
        "components": {"schemas": {"Item": item}},
    }


def test_a_key_in_the_path_and_in_the_body_is_one_thing_in_a_request() -> None:
    made = sdk.synthesize(ApiTwin(_stock_api()), 12, max_calls=1)
    replaced = [task for task in made.tasks if task.tags["tools"] == "replace_item"]
    assert replaced, str(made)
    for task in replaced:
        (call,) = task.expected["calls"]
        key = call["arguments"]["sku_in_path"]
        assert call["arguments"]["sku_in_body"] == key
        assert f"the item with the sku {key}: set the " in task.prompt
        assert {change["key"] for change in task.expected["changes"]} == {key}


def test_what_is_created_has_a_key_that_nothing_in_the_world_has() -> None:
    made = sdk.synthesize(ApiTwin(_stock_api()), 12, max_calls=1)
    created = [task for task in made.tasks if task.tags["tools"] == "create_item"]
    assert created, str(made)
    for task in created:
        key = task.expected["calls"][0]["arguments"]["sku"]
        assert key in task.prompt
        assert key not in ApiTwin(_stock_api(), seed=task.setup["seed"]).state()["items"]


class Shop:
    """Products under keys that their rows do not repeat, and orders of them."""

    def __init__(self) -> None:
        names = ("lamp", "desk", "chair", "rug", "shelf", "stool")
        self.products = {f"P-{n}": {"name": name, "price": 10 + n, "stock": 40 + n} for n, name in enumerate(names)}
        self.orders = {f"O{n}": {"sku": f"P-{n}", "status": "paid", "total": 70 + n} for n in range(6)}

    def get_product(self, sku: str) -> dict[str, Any]:
        """Read a product."""
        return {"sku": sku, **self.products[sku]}

    def add_product(self, sku: str, name: str) -> dict[str, Any]:
        """Add a product."""
        if sku in self.products:
            raise ValueError(f"{sku} is taken")
        self.products[sku] = {"name": name, "price": 5, "stock": 0}
        return self.get_product(sku)

    def update_product(self, sku: str, name: str | None = None, stock: int | None = None) -> dict[str, Any]:
        """Change what is given."""
        self.products[sku] |= {key: value for key, value in (("name", name), ("stock", stock)) if value is not None}
        return self.get_product(sku)

    def set_stock(self, sku: str, stock: int) -> dict[str, Any]:
        """Set the stock."""
        self.products[sku]["stock"] = stock
        return self.get_product(sku)

    def ship_order(self, order_id: str) -> dict[str, Any]:
        """Ship an order."""
        self.orders[order_id]["status"] = "shipped"
        return self.orders[order_id]


@pytest.fixture(scope="module")
def shop_tasks() -> dict[str, list[sdk.Task]]:
    """By their last tool."""
    made = sdk.synthesize(ObjectTwin(Shop), 60)
    assert not made.unused_tools, str(made)
    found: dict[str, list[sdk.Task]] = {}
    for task in made.tasks:
        found.setdefault(task.expected["calls"][-1]["name"], []).append(task)
    return found


def test_a_key_says_what_is_changed_and_nothing_is_set_to_it(shop_tasks: dict[str, list[sdk.Task]]) -> None:
    for tool in ("set_stock", "update_product"):
        for task in shop_tasks[tool]:
            assert "set the sku to" not in task.prompt
            assert task.expected["calls"][-1]["arguments"]["sku"] in task.prompt or "with the name" in task.prompt


def test_a_tool_whose_arguments_may_be_left_out_is_one_that_changes(shop_tasks: dict[str, list[sdk.Task]]) -> None:
    assert all(task.expected["changes"] for task in shop_tasks["update_product"])


def test_what_an_object_creates_has_a_new_key_of_the_kind_that_other_tools_take(
    shop_tasks: dict[str, list[sdk.Task]],
) -> None:
    made = [task.expected["calls"][-1]["arguments"]["sku"] for task in shop_tasks["add_product"]]
    assert not set(made) & set(Shop().products)
    assert all(re.fullmatch(r"P-\d+", key) for key in made)


class Practice:
    """A vet's visits, whose ids count from 1 as those of the owners and the pets do."""

    owners: dict[str, Any]
    pets: dict[str, Any]
    visits: dict[str, Any]

    def get_owner(self, id: int) -> dict[str, Any]:
        """An owner."""
        return self.owners[str(id)]

    def get_pet(self, id: int) -> dict[str, Any]:
        """A pet."""
        return self.pets[str(id)]

    def get_visit(self, id: int) -> dict[str, Any]:
        """A visit."""
        visit = self.visits[str(id)]
        return {"id": id, "owner": {"id": visit["owner_id"]}, "pet_id": visit["pet_id"], "room": visit["room"]}

    def close_visit(self, visit_id: int) -> dict[str, Any]:
        """Close a visit."""
        self.visits[str(visit_id)]["closed"] = True
        return {"bill": f"B{visit_id}7"}


def open_practice(practice: Practice, seed: int, scenario: str) -> None:
    chance = random.Random(seed)
    places = range(1, 6)
    practice.owners = {str(n): {"id": n, "name": f"Owner {seed}{n}", "visits": chance.randint(1, 5)} for n in places}
    practice.pets = {str(n): {"id": n, "name": f"Pet {seed}{n}", "age": chance.randint(1, 5)} for n in places}
    practice.visits = {
        str(n): {"id": n, "owner_id": chance.randint(1, 5), "pet_id": chance.randint(1, 5), "room": n % 3 + 1}
        for n in places
    }


def test_a_number_is_an_id_only_under_a_name_like_an_id_and_is_described_by_what_it_is_of() -> None:
    made = sdk.synthesize(ObjectTwin(Practice, load=open_practice), 16)
    asked = Counter[str]()
    for task in made.tasks:
        first, *more = task.expected["calls"]
        for last in more:
            assert (first["name"], last["name"]) in {("get_visit", "get_owner"), ("get_visit", "get_pet")}, task.prompt
            practice, number, thing = Practice(), first["arguments"]["id"], last["name"].removeprefix("get_")
            open_practice(practice, task.setup["seed"], "")
            assert last["arguments"] == {"id": practice.visits[str(number)][f"{thing}_id"]}
            assert f" of the {thing} of visit {number}" in task.prompt
            asked[thing] += 1
    assert set(asked) == {"owner", "pet"}


class Nursery:
    """Plants under tags of people's own choice, which stand in beds."""

    beds: dict[str, Any]
    plants: dict[str, Any]
    buyers: dict[str, Any]
    sales: dict[str, Any]

    def get_plant(self, tag: str) -> dict[str, Any]:
        """A plant."""
        return {"tag": tag, **self.plants[tag]}

    def list_plants(self, bed: str) -> list[dict[str, Any]]:
        """The plants of a bed."""
        return [self.get_plant(tag) for tag, plant in self.plants.items() if plant["bed"] == bed]

    def list_sales(self, buyer: str) -> list[dict[str, Any]]:
        """What a buyer bought."""
        return [{"sale_id": key, **sale} for key, sale in self.sales.items() if sale["buyer"] == buyer]


def stock(nursery: Nursery, seed: int, scenario: str) -> None:
    chance = random.Random(seed)
    nursery.beds = {bed: {"soil": chance.choice(("sand", "clay"))} for bed in ("east", "west")}
    nursery.plants = {
        f"T{chance.randint(100, 999)}{mark}": {"bed": chance.choice(("east", "west")), "height": chance.randint(5, 90)}
        for mark in "ABCDEF"
    }
    nursery.buyers = {name: {"city": chance.choice(("Bern", "Genf"))} for name in ("Ida", "Max")}
    nursery.sales = {
        f"S-{place}{chance.randint(100, 999)}": {
            "tag": tag,
            "buyer": chance.choice(("Ida", "Max")),
            "day": f"May {place}",
        }
        for place, tag in enumerate(nursery.plants, 1)
    }


def test_an_element_of_a_list_is_not_told_by_its_key_with_which_it_could_be_read_without_the_list() -> None:
    made = sdk.synthesize(ObjectTwin(Nursery, load=stock), 24, max_calls=1)
    told = {(task.tags["tools"], "with the tag T" in str(task.prompt)) for task in made.tasks}
    assert ("list_plants", False) in told
    assert ("list_plants", True) not in told
    assert ("list_sales", True) in told, "the tag is the key of its plant, and no sale can be read by it"


def test_a_world_without_rows_gives_a_creating_tool_no_key_to_go_by() -> None:
    class Empty(Shop):
        pass

    def load(shop: Empty, seed: int, scenario: str) -> None:
        if seed > 1:
            shop.products.clear()
            shop.orders.clear()

    made = sdk.synthesize(ObjectTwin(Empty, load=load), 12, max_calls=1)
    assert made.tasks, str(made)


def test_the_last_word_of_a_tool_is_what_it_acts_on(shop_tasks: dict[str, list[sdk.Task]]) -> None:
    assert all("order the ship" not in task.prompt for task in shop_tasks["ship_order"])


def test_a_path_in_a_tools_name_tells_which_one_and_not_what_it_acts_on() -> None:
    """As `mcp_bridge` names operations without an id."""
    arguments = ["article_slug", "id"]
    named = {
        "delete_articles_by_article_slug_comments_by_id": ("delete", "articles comments"),
        "get_articles_by_article_slug_comments": ("", "articles comments"),
        "delete_articles_by_article_slug": ("delete", "articles"),
        "list_orders_by_customer": ("", "orders"),
    }
    assert {tool: verb_and_object(tool, arguments) for tool in named} == named


def test_a_put_is_asked_for_all_that_it_would_put_back_to_its_default() -> None:
    document = _stock_api()
    document["components"]["schemas"]["Item"]["required"].remove("shelf")
    document["components"]["schemas"]["Item"]["properties"]["shelf"] = {"type": "string", "default": "north"}
    made = sdk.synthesize(ApiTwin(document), 16, max_calls=1)
    replaced = [task for task in made.tasks if task.tags["tools"] == "replace_item"]
    assert replaced, str(made)
    assert all("shelf" in task.expected["calls"][0]["arguments"] for task in replaced)


def test_a_nested_row_is_reached_by_its_own_key() -> None:
    text = {"type": "string"}
    book = {"type": "object", "required": ["name", "title"], "properties": {"name": text, "title": text}}
    house = {"type": "object", "required": ["name", "city"], "properties": {"name": text, "city": text}}

    def shows(schema: dict[str, Any]) -> dict[str, Any]:
        return {"200": {"description": "It.", "content": {"application/json": {"schema": schema}}}}

    names = [{"name": one, "in": "path", "required": True, "schema": text} for one in ("publisher", "book")]
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Books", "version": "1"},
        "paths": {
            "/publishers": {
                "get": {"operationId": "ListPublishers", "responses": shows({"type": "array", "items": house})}
            },
            "/publishers/{publisher}/books": {
                "parameters": names[:1],
                "get": {"operationId": "ListBooks", "responses": shows({"type": "array", "items": book})},
            },
            "/publishers/{publisher}/books/{book}": {
                "parameters": names,
                "get": {"operationId": "GetBook", "responses": shows(book)},
            },
        },
    }
    made = sdk.synthesize(ApiTwin(document), 20)
    assert "GetBook" not in made.unused_tools, str(made)


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=12, unique=True), st.integers(0, 9))
def test_a_new_key_is_none_of_those_there_are(keys: list[str], seed: int) -> None:
    assert new_key(keys, random.Random(seed)) not in keys


@pytest.mark.parametrize(
    ("keys", "form"),
    [
        (["2026-01-31", "2026-02-28"], r"2026-0[345]-\d\d"),
        (["2026-01-31T10:00:00Z"], r"2026-02-0\d|2026-01-31"),
        (["0b0cf1a4-2c54-4d0c-9d3b-6a5f8f0e7c11"], r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"),
        (["ann@x.org", "bob@y.com"], r"(ann|bob)@[xy]\.(org|com)"),
        ([4, 17], r"(1[89]|2\d|3[0-7])"),
    ],
)
def test_a_new_key_has_the_form_of_the_others(keys: list[Any], form: str) -> None:
    assert re.match(form, str(new_key(keys, random.Random(3))))


def test_a_tool_that_no_task_came_of_is_named() -> None:
    made = sdk.synthesize(ApiTwin(_stock_api()), 1, max_calls=1)
    (used,) = {task.tags["tools"] for task in made.tasks}
    assert set(made.unused_tools) == {"create_item", "get_item", "replace_item"} - {used}
    assert "attempts made a task with it" in next(iter(made.unused_tools.values()))


def test_an_argument_whose_schema_is_a_reference_is_a_plain_value_all_the_same() -> None:
    """So a definition that an operation uses twice stays, and is no copy in each place."""
    thing = {"type": "object", "required": ["name"], "properties": {"name": {"$ref": "#/components/schemas/Name"}}}
    change = {"type": "object", "properties": {"label": {"$ref": "#/components/schemas/Name"}}}
    shows = {"200": {"description": "It.", "content": {"application/json": {"schema": {"allOf": [thing, change]}}}}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"$ref": "#/components/schemas/Name"}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Things", "version": "1"},
        "paths": {
            "/things/{name}": {
                "parameters": [name],
                "get": {"operationId": "get_thing", "responses": shows},
                "patch": {
                    "operationId": "update_thing",
                    "requestBody": {"content": {"application/json": {"schema": change}}},
                    "responses": shows,
                },
            },
        },
        "components": {"schemas": {"Name": {"type": "string", "pattern": "^[a-z]{4}$"}}},
    }
    made = sdk.synthesize(ApiTwin(document), 6, max_calls=1)
    assert not made.unused_tools
    assert {task.tags["tools"] for task in made.tasks} == {"get_thing", "update_thing"}


def test_where_a_list_goes_on_is_no_thing_that_a_request_speaks_of() -> None:
    """The cursor of many APIs is the key of a row."""
    key: dict[str, Any] = {"type": "string", "format": "uuid"}
    thing = {"type": "object", "required": ["id"], "properties": {"id": key, "size": {"type": "integer"}}}
    listed = {"type": "array", "items": {"type": "object", "properties": {"id": key}}}
    page = {"type": "object", "properties": {"items": listed, "next_cursor": {"type": ["string", "null"]}}}
    pages = {"cursor": {"type": "string"}, "limit": {"type": "integer", "default": 3}}

    def shows(schema: dict[str, Any]) -> dict[str, Any]:
        return {"200": {"description": "It.", "content": {"application/json": {"schema": schema}}}}

    asked = [{"name": name, "in": "query", "schema": schema} for name, schema in pages.items()]
    one = {"name": "thing_id", "in": "path", "required": True, "schema": key}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Things", "version": "1"},
        "paths": {
            "/things": {"get": {"operationId": "list_things", "parameters": asked, "responses": shows(page)}},
            "/things/{thing_id}": {
                "get": {"operationId": "get_thing", "parameters": [one], "responses": shows(thing)},
            },
        },
    }
    twin = ApiTwin(document)
    assert twin.call_now("list_things", {}).structured["next_cursor"]
    made = sdk.synthesize(twin, 8)
    assert made.tasks
    assert not [task.prompt for task in made.tasks if "cursor" in task.prompt]


def test_every_solution_takes_as_many_calls_as_its_tier_says_and_none_can_be_left_out(
    desk_tasks: Sequence[sdk.Task],
) -> None:
    assert Counter(task.tags["tier"] for task in desk_tasks) == {"1": 4, "2": 4, "3": 4, "4": 4}
    for task in desk_tasks:
        calls, said = task.expected["calls"], str(task.prompt)
        assert len(calls) == int(task.tags["tier"])
        for place in range(len(calls) - 1):
            # Something that a later call needs is not in the request: what comes before it has to be called.
            later = {str(value) for call in calls[place + 1 :] for value in call["arguments"].values()}
            assert any(value not in said for value in later), said


def test_the_same_seed_makes_the_same_tasks_and_another_makes_others(desk_tasks: Sequence[sdk.Task]) -> None:
    again = sdk.synthesize(Helpdesk(), 16, max_calls=4, concurrency=3).tasks
    assert list(again) == list(desk_tasks)
    other = sdk.synthesize(Helpdesk(), 4, seed=1, max_calls=1).tasks
    assert {task.prompt for task in other}.isdisjoint(task.prompt for task in desk_tasks[:4])


def test_a_request_does_not_say_its_answer_and_no_two_are_the_same(desk_tasks: Sequence[sdk.Task]) -> None:
    assert len({(str(task.prompt), json.dumps(task.setup)) for task in desk_tasks}) == len(desk_tasks)
    for task in desk_tasks:
        if task.tags["end"] == "fact":
            assert f" {task.expected['answer']} " not in f" {task.prompt} "


def test_degenerate_policies_earn_nothing_on_made_tasks(desk_tasks: Sequence[sdk.Task]) -> None:
    report = sdk.certify(Helpdesk(), list(desk_tasks), all_of(final_state(), answer_match()), most_tasks=16)
    echoes = {finding.probe.name for finding in report.findings}
    assert not echoes, str(report)


def test_made_tasks_split_by_family_and_are_judged_by_the_existing_verifiers(
    desk_tasks: Sequence[sdk.Task], tmp_path: Path
) -> None:
    made = sdk.synthesize(Helpdesk(), 16, max_calls=4, to=tmp_path / "tasks.jsonl")
    tasks = load_tasks(made.path)
    assert tasks == list(desk_tasks)
    train, heldout = split_tasks(tasks, heldout=4)
    assert not {task.family for task in train} & {task.family for task in heldout}

    from sdk.policies.scripted import ScriptedAgent

    idle = ScriptedAgent(["done"])
    report = sdk.evaluate(Helpdesk(), tasks, all_of(final_state(), required_calls(), answer_match()), model=idle)
    assert "0.0 %" in str(report)


def test_made_tasks_train_a_model_as_they_stand(tiny_model_folder: Path, tmp_path: Path) -> None:
    made = sdk.synthesize(Helpdesk(), 6, max_calls=2, to=tmp_path / "tasks.jsonl")
    short = {
        "warm_start.max_steps": 1,
        "warm_start.batch_size": 2,
        "grpo.max_steps": 1,
        "grpo.prompts_per_step": 1,
        "grpo.num_generations": 2,
        "probes.tasks": 0,
        "evaluation.max_served": 0,
    }
    result = sdk.train(
        Helpdesk(),
        made.path,
        all_of(final_state(), answer_match()),
        model=tiny_model_folder,
        output_dir=tmp_path / "run",
        config={**short, "evaluation.heldout": 2, "limits": {"max_turns": 4, "max_turn_tokens": 8}},
    )
    assert (result.model_dir / "config.json").is_file()


class Careless:
    """Worlds whose beginning is another each time."""

    def __init__(self) -> None:
        self._desk, self._opened = Helpdesk(), 0
        self.tools, self.simulated = self._desk.tools, True

    def open_world(self, world_id: str, setup: Any = None) -> Any:
        self._opened += 1
        return self._desk.open_world(world_id, {"seed": self._opened})


def lookup(word: str) -> str:
    """Look a word up."""
    return word


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ([lookup], {}, "lookup is not simulated: calls would be real; give a sandbox or a twin"),
        (Careless(), {}, "differ in .*orders.*: they cannot be reset"),
        (Helpdesk(), {"setups": [{"sed": 1}]}, "unknown setup 'sed'.*Give `setups` that fit"),
        (Helpdesk(), {"setups": []}, "setups is empty"),
        (Helpdesk(), {"difficulty": (0.1, 0.9)}, "give `policy`, or leave `difficulty` out"),
        (Helpdesk(), {"difficulty": (0.9, 0.1), "policy": "embedded"}, "two shares that rise"),
        (Helpdesk(), {"max_calls": 0}, "max_calls is 0"),
        (Helpdesk(), {"to": "tasks.csv"}, "ends in .jsonl"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(
    source: Any, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sdk.ConfigError, match=message):
        sdk.synthesize(source, 2, **options)


def test_too_few_worlds_give_fewer_tasks_and_the_result_says_so() -> None:
    made = sdk.synthesize(bank(), 20, setups=[{}], max_calls=1)
    assert 0 < len(made.tasks) < 20
    assert "20 were wanted" in str(made)
    assert sum(made.left_out.values()) + len(made.tasks) == made.attempts


def test_worlds_that_are_equal_give_no_task_twice() -> None:
    made = sdk.synthesize(bank(), 150, max_calls=1)  # a class whose setup changes nothing: 24 seeds, one world
    solved = [(str(task.demonstration), str(task.expected)) for task in made.tasks]
    assert 20 < len(solved) < 100
    assert len(set(solved)) == len(solved)
    assert "it repeats another task" in str(made)


def test_more_calls_than_the_tools_have_a_use_for_leave_no_task_out() -> None:
    made = sdk.synthesize(bank(), 6, max_calls=40)
    assert len(made.tasks) == 6


@pytest.mark.parametrize(("how", "kind"), [("hang", "acts"), ("crash", "reads")])
def test_a_tool_that_breaks_again_and_again_is_named_and_no_more_time_is_lost_on_it(
    how: str, kind: str, tmp_path: Path
) -> None:
    """One that only reads is called first when tasks are made, side by side with others that its crash takes down."""
    heard = io.StringIO()
    command = [sys.executable, str(Path(__file__).with_name("breaking_server.py")), how, kind]
    (tmp_path / "mcp.json").write_text(
        json.dumps({"mcpServers": {"shop": {"command": command[0], "args": command[1:]}}})
    )
    made = sdk.synthesize(tmp_path / "mcp.json", 8, max_calls=1, limits={"call_timeout_s": 1}, progress=Console(heard))
    assert made.tasks
    assert list(made.unused_tools) == ["track_order"], str(made)
    assert "the tool track_order is not used: 3 calls in a row broke: " in str(made)
    assert "a call of track_order broke: " in heard.getvalue()


@dataclass
class Ride:
    bike: str
    rider: str
    code: str
    minutes: int


class Rental:
    """Keeps its rows in lists."""

    rides: list[Ride]
    stations: list[dict[str, Any]]

    def get_ride(self, code: str) -> Ride:
        """A ride."""
        return next(ride for ride in self.rides if ride.code == code)

    def rides_of(self, rider: str) -> list[Ride]:
        """The rides of a rider."""
        return [ride for ride in self.rides if ride.rider == rider]

    def end_ride(self, code: str) -> str:
        """End a ride."""
        self.rides.remove(self.get_ride(code))
        return "ended"

    def get_station(self, street: str) -> dict[str, Any]:
        """A station."""
        return next(station for station in self.stations if station["street"] == street)


def open_rental(rental: Rental, seed: int, scenario: str) -> None:
    chance = random.Random(seed)
    bikes = chance.sample(range(10, 99), 5)
    rental.rides = [
        Ride(f"bike {bike}", chance.choice(("Ann", "Bob", "Cid")), f"R{seed}-{bike}", 10 * place)
        for place, bike in enumerate(bikes, 1)
    ]
    rental.stations = [{"street": f"{name} street", "free": chance.randint(2, 20)} for name in ("Elm", "Oak")]


def test_the_rows_of_a_list_are_read_as_those_of_a_table_and_named_by_a_key_of_their_own() -> None:
    made = sdk.synthesize(ObjectTwin(Rental, load=open_rental), 24, max_calls=1)
    assert not made.unused_tools, str(made)
    for task in made.tasks:
        rental, (call,) = Rental(), task.expected["calls"]
        open_rental(rental, task.setup["seed"], "")
        if code := call["arguments"].get("code"):
            assert code in {ride.code for ride in rental.rides}
            assert f"ride {code}" in task.prompt or f"the code is {code}" in task.prompt


def test_the_rows_of_a_list_that_have_no_key_are_not_named_by_their_places() -> None:
    class Log:
        def __init__(self) -> None:
            self.entries = [{"level": level, "lines": lines} for level, lines in (("low", 3), ("high", 3), ("low", 5))]

        def get_entry(self, entry_id: int) -> dict[str, Any]:
            """An entry, counted from 0."""
            return self.entries[entry_id]

        def count_entries(self, level: str) -> int:
            """How many entries a level has."""
            return sum(entry["level"] == level for entry in self.entries)

    made = sdk.synthesize(ObjectTwin(Log), 8, setups=[{}], max_calls=1)
    assert {task.tags["tools"] for task in made.tasks} >= {"count_entries"}, str(made)
    assert not [task.prompt for task in made.tasks if re.search(r"of entry \d", str(task.prompt))]


class Parcels:
    def __init__(self, seed: int = 0) -> None:
        numbers = range(100 + 20 * seed, 108 + 20 * seed)
        self.parcels = {
            str(n): {"status": f"S{n % 3}", "city": f"C{n % 5}", "carrier": f"D{n % 4}", "weight": 3 * n}
            for n in numbers
        }

    def tables(self) -> dict[str, Any]:
        return {"parcels": self.parcels}


def test_where_every_attempt_fails_for_one_reason_it_stops_and_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, said = list[str](), list[str]()

    class Told(Silent):
        def say(self, text: str) -> None:
            said.append(text)

        def advance(self, amount: int = 1, note: str = "") -> None:
            notes.append(note)

    agent = ScriptedAgent(["I cannot."])
    monkeypatch.setattr("sdk.synthesis.synthesis_run._MOST_IN_VAIN", 24)
    made = sdk.synthesize(Helpdesk(), 50, policy=agent, attempts=2, difficulty=(0.5, 1.0), progress=Told())
    assert made.tasks == []
    assert made.attempts < 100, made
    reason = "the policy's success is outside of 0.5 to 1"
    assert any(note.startswith("8 attempts; ") and note.endswith(f" left out: {reason}") for note in notes)
    assert any("none gave a task, " in line and line.endswith(f" for one reason: {reason}") for line in said), said


def test_a_list_that_an_mcp_server_sends_item_by_item_is_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLBAKE_CONTROL", "1")
    server = MCPServer("parcels", log_level="ERROR")
    parcels = mcp_bridge.worlds(server, make=Parcels, state=Parcels.tables)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    def list_parcels(parcel_id: str) -> list[dict[str, Any]]:
        """The parcels that have the status of one."""
        every = parcels().parcels
        return [{"parcel": key, **one} for key, one in every.items() if one["status"] == every[parcel_id]["status"]]

    made = sdk.synthesize(server, 6, max_calls=1)
    assert made.tasks, str(made)
    assert all(re.search(r"the parcel with the \w+ \w+ of parcel", str(task.prompt)) for task in made.tasks), made.tasks


@pytest.mark.virtual_clock
@pytest.mark.parametrize("reads", [True, False])
async def test_a_tool_that_hangs_costs_little_more_than_one_call_of_it(
    reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLBAKE_CONTROL", "1")
    server = MCPServer("parcels", log_level="ERROR")
    parcels = mcp_bridge.worlds(server, make=Parcels, state=Parcels.tables)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def get_parcel(parcel_id: str) -> dict[str, str | int]:  # in no thread, for which no clock that jumps waits
        """Read a parcel."""
        return parcels().parcels[parcel_id]

    @server.tool(annotations=ToolAnnotations(read_only_hint=True) if reads else None)
    async def track_parcel(parcel_id: str) -> str:
        """Track a parcel."""
        await anyio.sleep_forever()
        return parcel_id

    began = anyio.current_time()
    made = await synthesize_async(server, 6, max_calls=1, limits={"call_timeout_s": 30})
    assert made.tasks
    told = made.unused_tools["track_parcel"]
    assert told.startswith("3 calls in a row broke: ")
    assert "'track_parcel' did not answer within 30 s" in told
    assert anyio.current_time() - began < 40


def _settings_api() -> dict[str, Any]:
    """Settings that a PUT replaces and a PATCH changes."""
    text = {"type": "string"}
    properties = {"theme": {"enum": ["light", "dark"]}, "nick": text, "email": text}
    properties |= {name: {"type": "boolean"} for name in ("hints", "sounds", "alerts")}
    schema = {"type": "object", "properties": properties, "required": ["theme"]}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Settings"}}}
    answers = {"200": {"description": "They.", "content": content}}
    change = {"responses": answers, "requestBody": {"required": True, "content": content}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Settings", "version": "1"},
        "paths": {
            "/settings": {
                "get": {"operationId": "getSettings", "responses": answers},
                "put": {"operationId": "putSettings", **change},
                "patch": {"operationId": "patchSettings", **change},
            }
        },
        "components": {"schemas": {"Settings": schema}},
    }


def test_no_task_clears_or_changes_what_its_request_does_not_name() -> None:
    made = sdk.synthesize(ApiTwin(_settings_api()), 12)
    cleared = [change for task in made.tasks for change in task.expected["changes"] if change["after"] is None]
    assert cleared == []
    switched = [task for task in made.tasks if any(one["column"] == "hints" for one in task.expected["changes"])]
    assert switched
    assert all("hints to" in task.prompt for task in switched)
    assert not made.unused_tools, "a PUT is given all that it takes"
