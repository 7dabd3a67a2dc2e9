"""Classes as sandboxes."""

from __future__ import annotations

import copy
import datetime as dt
import functools
import itertools
import json
import random
import threading
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from object_classes import Item, Shop, Till, fill, raise_prices
from sandbox_conformance import Call, SandboxConformance

import mcp_bridge
from mcp_bridge import SourceError, Tool, ToolFailure, publish
from sandboxes import Sandbox, SetupError
from sandboxes.objects import NoForm, ObjectTwin, as_json


class TestShop(SandboxConformance):
    def make(self) -> Sandbox:
        return ObjectTwin(Shop, load=fill, scenarios=("default", "sale"), time_passes=raise_prices, reads=("find",))

    def change(self) -> Call:
        return "sell", {"number": 1}

    def calls(self) -> list[Call]:
        return [
            ("rename", {"number": 2, "name": ""}),
            ("rename", {"number": 0, "name": "lamp", "tag": "old"}),
            ("rename", {"number": 0, "name": "lamp", "tag": "older"}),
            ("find", {"name": "lamp"}),
            ("everything", {}),
            ("stock", {"numbers": [1, 2]}),
            ("motto", {}),
        ]


class TestSeveralObjects(SandboxConformance):
    seeds_differ: ClassVar[bool] = False

    def make(self) -> Sandbox:
        return ObjectTwin({"shop": Shop, "till": lambda: Till(Shop("Wells"))})

    def change(self) -> Call:
        return "take", {"cents": 250}

    def calls(self) -> list[Call]:
        return [("sell", {"number": 5}), ("count", {})]


class TestCarefulClass(SandboxConformance):
    """One that raises before it changes anything needs no copy for each call."""

    seeds_differ: ClassVar[bool] = False

    def make(self) -> Sandbox:
        return ObjectTwin(Shop, undo=False, methods=("sell", "find", "count"))

    def change(self) -> Call:
        return "sell", {"number": 1}


def _value(twin: ObjectTwin, attribute: str, of: str = "Shop") -> Any:
    return twin.state()[of][attribute]["value"]


class Shelf:
    """Of a shop."""

    def __init__(self) -> None:
        self.orders = ORDERS

    def get(self, order: str) -> str:
        """The status of an order."""
        return self.orders[order]


ORDERS = {"1": "new"}


def put_one(shelf: Shelf, seed: int, scenario: str) -> None:
    shelf.orders[f"s{seed}"] = scenario


def test_what_load_puts_into_an_object_of_the_module_is_in_its_world_alone() -> None:
    first = ObjectTwin(Shelf, load=put_one).prepare({"seed": 1})
    before = first.state()
    second = ObjectTwin(Shelf, load=put_one).prepare({"seed": 2})
    assert set(second.state()["Shelf"]) == {"orders"}
    assert first.state() == before
    assert ORDERS == {"1": "new"}


def test_tools_come_from_hints_and_docstrings() -> None:
    twin = ObjectTwin(Shop, reads=("count",))
    tools = {tool.name: tool for tool in twin.tools}
    assert list(tools) == ["rename", "sell", "stock", "find", "count", "everything", "price", "motto"]
    assert tools["rename"].description == "Give an item a name and a tag."
    assert tools["rename"].input_schema["required"] == ["number", "name"]
    assert tools["rename"].input_schema["properties"]["tag"]["enum"] == ["new", "old"]
    assert (tools["count"].annotations.read_only, tools["sell"].annotations.read_only) == (True, None)


def test_the_arguments_of_the_class_a_factory_or_an_object_make_the_world() -> None:
    own = Shop("York", 1)
    for twin in (ObjectTwin(Shop, "York", 1), ObjectTwin(lambda: Shop("York", 1)), ObjectTwin(own)):
        assert (twin.name, _value(twin, "city"), list(_value(twin, "items"))) == ("Shop", "York", ["0"])
        twin.call_now("sell", {"number": 0})
        assert _value(twin, "items") == {}
    assert list(own.items) == [0]


def test_the_state_is_the_public_attributes_and_nothing_private() -> None:
    twin = ObjectTwin(Shop, "Bath", 1)
    twin.call_now("rename", {"number": 0, "name": "lamp"})
    assert twin.state()["Shop"] == {
        "city": {"value": "Bath"},
        "items": {"value": {"0": {"name": "lamp", "price": "0", "tags": ["new", "was item 0"]}}},
        "sold": {"value": []},
        "open": {"value": True},
        "home": {"value": _whole_shop()},
    }
    assert "s3cret" not in json.dumps(twin.state())
    shown = ObjectTwin(Shop, state=lambda shop: {"count": len(shop.items)}).state()["Shop"]
    assert shown == {"count": {"value": 3}}


def _whole_shop() -> Any:
    items = {"0": {"name": "lamp", "price": "0", "tags": ["new", "was item 0"]}}
    return {"city": "Bath", "items": items, "sold": [], "open": True, "home": {"same_as": "$"}}


def test_what_the_class_raises_itself_is_read_by_the_caller_and_undone() -> None:
    twin = ObjectTwin(Shop)
    before = twin.state()
    refused = twin.call_now("sell", {"number": 17})
    assert (refused.error_kind, refused.text) == ("tool_error", "NoSuchItem: there is no item 17")
    late = twin.call_now("rename", {"number": 1, "name": ""})
    assert (late.error_kind, late.text) == ("tool_error", "ValueError: a name cannot be empty")
    assert twin.state() == before


def test_what_goes_wrong_in_the_class_is_read_by_the_caller_and_undone() -> None:
    twin = ObjectTwin(Shop)
    before = twin.state()
    wrong = twin.call_now("price", {"number": 17})
    assert (wrong.error_kind, wrong.text) == ("tool_error", "KeyError: 17")
    assert twin.state() == before


def test_where_exceptions_are_named_any_other_is_a_broken_tool_and_undone() -> None:
    twin = ObjectTwin(Shop, refusals=(LookupError,))
    before = twin.state()
    assert twin.call_now("price", {"number": 17}).text == "KeyError: 17"
    assert _value(twin, "open") is True
    with pytest.raises(ToolFailure, match=r"Shop\.sell broke: NoSuchItem: there is no item 17"):
        twin.call_now("sell", {"number": 17})
    assert twin.state() == before
    careless = ObjectTwin(Shop, refusals=(LookupError,), undo=False)
    fork = careless.fork()
    assert careless.call_now("price", {"number": 17}).is_error
    assert (_value(careless, "open"), _value(fork, "open")) == (False, True)


class Asserting:
    def check(self, n: int) -> int:
        """Check."""
        assert n > 0, "positive only"
        if n == 5:
            raise NotImplementedError("five")
        if n == 6:
            json.loads("{")
        if n == 7:
            raise mcp_bridge.ServerDied("gone")
        return n


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "AssertionError: positive only"),
        (5, "NotImplementedError: five"),
        (6, "JSONDecodeError: Expecting"),
    ],
)
def test_every_exception_is_read_but_that_of_a_tool_which_could_not_be_asked(n: int, text: str) -> None:
    twin = ObjectTwin(Asserting)
    assert twin.call_now("check", {"n": n}).text.startswith(text)
    with pytest.raises(ToolFailure, match="gone"):
        twin.call_now("check", {"n": 7})


def test_arguments_are_converted_to_the_hinted_types() -> None:
    class Diary:
        def __init__(self) -> None:
            self.days: list[dt.date] = []

        def write(self, day: dt.date) -> str:
            """Write."""
            self.days.append(day + dt.timedelta(days=1))
            return "written"

    twin = ObjectTwin(Diary)
    result = twin.call_now("write", {"day": "2026-02-28"})
    assert (result.text, result.structured) == ("written", "written")
    assert _value(twin, "days", "Diary") == ["2026-03-01"]
    wrong = twin.call_now("write", {"day": "some day"})
    assert (wrong.error_kind, "day" in wrong.text) == ("invalid_arguments", True)


def test_objects_that_know_each_other_still_do_in_a_fork() -> None:
    def joined(objects: Mapping[str, Any], seed: int, scenario: str) -> None:
        objects["till"].shop = objects["shop"]

    twin = ObjectTwin({"shop": Shop, "till": lambda: Till(Shop("Wells"))}, load=joined)
    fork = twin.fork()
    fork.call_now("sell", {"number": 0})
    assert _value(fork, "shop", "till")["items"] == _value(fork, "items", "shop") != _value(twin, "items", "shop")
    again = twin.fork()
    again.restore(fork.snapshot())
    again.call_now("sell", {"number": 1})
    assert list(_value(again, "shop", "till")["items"]) == ["2"]


class Counted:
    """Counts its copies; its catalogue is large, and nobody changes it."""

    copies = 0

    def __init__(self) -> None:
        self.value = 0
        self.catalogue = {"a": [1, 2, 3]}

    def __deepcopy__(self, memo: dict[int, Any]) -> Counted:
        type(self).copies += 1
        twin = copy.copy(self)
        twin.catalogue = copy.deepcopy(self.catalogue, memo)
        return twin

    def add(self) -> int:
        """Add one."""
        self.value += 1
        return self.value

    def look(self) -> int:
        """Look."""
        return self.value


def test_objects_are_copied_when_they_change_and_by_their_own_rules() -> None:
    twin = ObjectTwin(Counted, undo=False, reads=("look",), shared=("catalogue",))
    Counted.copies = 0
    forks = [twin.fork() for _ in range(100)]
    assert [fork.call_now("look", {}).structured for fork in forks] == [0] * 100
    assert Counted.copies == 0
    for _ in range(5):
        forks[0].call_now("add", {})
    assert (Counted.copies, forks[0].call_now("look", {}).structured) == (1, 5)
    assert forks[0].objects["Counted"].catalogue is twin.objects["Counted"].catalogue
    assert forks[1].call_now("look", {}).structured == 0


def test_a_default_that_a_method_changes_is_as_written_in_every_call() -> None:
    twin = ObjectTwin(Shop)
    assert [twin.call_now("stock", {"numbers": [1]}).structured for _ in range(3)] == [1, 1, 1]
    assert _value(twin, "notes") == ["ordered"]
    assert _value(ObjectTwin(Shop).fork(), "open") is True


class Leaking:
    """Keeps its notes where all objects of the class share them."""

    notes: ClassVar[list[str]] = ["first"]

    def note(self, text: str) -> int:
        """Note."""
        self.notes.append(text)
        if text == "raise":
            raise ValueError(text)
        return len(self.notes)


@pytest.mark.parametrize("text", ["second", "raise"])
def test_a_class_attribute_that_a_method_changes_is_a_broken_tool_and_put_back(text: str) -> None:
    twin = ObjectTwin(Leaking)
    with pytest.raises(ToolFailure, match=r"Leaking changed Leaking\.notes, which all worlds share"):
        twin.call_now("note", {"text": text})
    assert Leaking.notes == ["first"]


LETTERS: dict[str, list[str]] = {"a": ["first"]}
OPENED: list[str] = []


def _post(text: str) -> None:
    [LETTERS[name].append(text) for name in "a"]


class Posting:
    """Keeps its letters where all objects of the module's classes share them."""

    def __init__(self) -> None:
        OPENED.append("one more")

    def send(self, text: str) -> int:
        """Send."""
        _post(text)
        return len(LETTERS["a"]) + len(OPENED)

    def read(self) -> list[str]:
        """Read."""
        return LETTERS["a"]


def test_a_variable_of_the_module_that_a_method_changes_in_place_is_a_broken_tool_and_put_back() -> None:
    twin = ObjectTwin(Posting)
    for _ in range(2):
        twin.reset(1)
        with pytest.raises(
            ToolFailure, match=r"Posting changed LETTERS of its module, which all worlds share.*shared="
        ):
            twin.call_now("send", {"text": "second"})
        assert twin.call_now("read", {}).structured == ["first"]
    shared = ObjectTwin(Posting, shared=("LETTERS",))
    assert not shared.call_now("send", {"text": "second"}).is_error
    assert LETTERS.pop("a") == ["first", "second"]


DEFAULTS = ["first"]


class Beginning:
    """Begins with a list of its module, and not with a copy of it."""

    def __init__(self) -> None:
        self.notes = DEFAULTS

    def note(self, text: str) -> int:
        """Note."""
        self.notes.append(text)
        return len(self.notes)


@pytest.mark.parametrize("undo", [True, False])
def test_what_an_object_begins_with_stays_as_it_is_in_its_module(undo: bool) -> None:
    twin = ObjectTwin(Beginning, undo=undo)
    for _ in range(2):
        twin.reset(1)
        assert [twin.call_now("note", {"text": text}).structured for text in "ab"] == [2, 3]
    assert DEFAULTS == ["first"]


class Numbering:
    """Counts for all objects of the class, in all the ways there are."""

    next_id = 1000
    recent: ClassVar[deque[int]] = deque(maxlen=3)
    chance = random.Random(0)
    lock = threading.Lock()  # which nothing can copy

    def count(self, where: str) -> int:
        """Count."""
        if where == "next_id":
            type(self).next_id += 1
        if where == "recent":
            self.recent.append(1)
        if where == "chance":
            self.chance.random()
        if where == "latest":
            type(self).latest = 1  # type: ignore[attr-defined]
        return self.next_id


def test_worlds_share_no_counter_of_their_class() -> None:
    twin = ObjectTwin(Numbering)
    for where in ("next_id", "recent", "chance", "latest") * 2:
        with pytest.raises(ToolFailure, match=rf"Numbering changed Numbering\.{where}, which all worlds share"):
            twin.call_now("count", {"where": where})
        assert twin.fork().call_now("count", {"where": "nowhere"}).structured == 1000


class Account:
    """Equal to every other of its owner, as a row of a database is."""

    def __init__(self) -> None:
        self.owner, self.balance = "ann", 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and other.owner == self.owner

    def __hash__(self) -> int:
        return hash(self.owner)

    def pay(self, amount: int) -> int:
        """Pay in."""
        self.balance += amount
        return self.balance

    @functools.lru_cache  # noqa: B019
    def report(self) -> str:
        """The account in words."""
        return f"{self.owner} has {self.balance}"


def test_a_cached_method_tells_no_world_what_it_told_another() -> None:
    rich = ObjectTwin(Account)
    poor = rich.fork()
    rich.call_now("pay", {"amount": 5})
    assert rich.call_now("report", {}).text == "ann has 5"
    assert poor.call_now("report", {}).text == "ann has 0"


_NUMBERS = itertools.count(1)
_LATEST = 0


class Ticket:
    def new(self) -> int:
        """A number."""
        return next(_NUMBERS)


class Latest:
    def new(self) -> int:
        """A number."""
        global _LATEST
        _LATEST += 1
        return _LATEST


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Ticket, r"Ticket\.new takes from a count of its module, '_NUMBERS', which all worlds share"),
        (Latest, r"Latest\.new sets a variable of its module, '_LATEST', which all worlds share"),
    ],
)
def test_a_method_that_counts_in_its_module_is_refused_unless_that_is_named_as_shared(kind: type, told: str) -> None:
    with pytest.raises(SourceError, match=told):
        ObjectTwin(kind)
    assert ObjectTwin(kind, shared=("_NUMBERS", "_LATEST")).call_now("new", {}).structured == 1


def test_an_iterator_of_a_class_is_refused_unless_it_is_named_as_shared() -> None:
    class Endless(Numbering):
        ids = itertools.count(1)

    with pytest.raises(SourceError, match=r"Endless\.ids is a count.*make it in `__init__`"):
        ObjectTwin(Endless)
    assert ObjectTwin(Endless, shared=("ids",)).call_now("count", {"where": "nowhere"}).structured == 1000


def test_a_copy_of_ones_own_is_used() -> None:
    made: list[int] = []

    def own(objects: dict[str, Any]) -> dict[str, Any]:
        made.append(1)
        return copy.deepcopy(objects)

    ObjectTwin(Shop, copy=own).call_now("sell", {"number": 0})
    assert made == [1]


def test_the_loader_fills_the_world_and_sets_its_clock() -> None:
    twin = ObjectTwin(Shop, load=fill, scenarios=("default", "sale"))
    twin.reset(seed=4, scenario="sale")
    assert _value(twin, "items")["0"]["name"].startswith("sale ")
    assert twin.now == dt.datetime(2026, 3, 5)
    assert ObjectTwin(Shop, start=dt.datetime(2020, 1, 1)).now == dt.datetime(2020, 1, 1)


def test_time_brings_what_the_class_is_told() -> None:
    twin = ObjectTwin(Shop, time_passes=raise_prices)
    fork = twin.fork()
    fork.advance(dt.timedelta(days=2))
    assert (_value(twin, "items")["1"]["price"], _value(fork, "items")["1"]["price"]) == ("0.25", "2.25")


class Untyped:
    def act(self, thing):  # type: ignore[no-untyped-def]
        """Act."""
        return [thing]

    def keep(self, things):  # type: ignore[no-untyped-def]
        """Keep."""
        self.kept = things

    async def wait(self) -> None:
        """Wait."""


def test_methods_that_cannot_be_tools_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SourceError, match=r"'act' of Untyped .*no type hint.*methods=.*schemas="):
        ObjectTwin(Untyped)
    with pytest.raises(SourceError, match=r"'wait' of Untyped .*async"):
        ObjectTwin(Untyped, methods=("wait",))
    with pytest.raises(SourceError, match="'no_such'"):
        ObjectTwin(Shop, reads=("no_such",))
    with pytest.raises(SourceError, match="no public methods"):
        ObjectTwin(Item, "x", Decimal(1))
    with pytest.raises(SourceError, match="both have a method 'rename'"):
        ObjectTwin({"one": Shop, "two": Shop})
    with pytest.raises(SourceError, match="clock"):
        ObjectTwin({"clock": Shop})
    with pytest.raises(SourceError, match=r"Untyped\.act cannot be called with \(\) .*'self'.*give a class"):
        ObjectTwin(Untyped.act)


def test_a_schema_of_ones_own_replaces_the_hints() -> None:
    schema = {"type": "object", "properties": {"thing": {"type": "integer"}}, "required": ["thing"]}
    twin = ObjectTwin(Untyped, methods=("act",), schemas={"act": Tool(name="act", input_schema=schema)})
    assert twin.call_now("act", {"thing": 3}).structured == [3]
    assert twin.call_now("act", {"thing": "3"}).error_kind == "invalid_arguments"
    plain = Tool(name="keep", input_schema={"type": "object", "properties": {"things": {"type": "array"}}})
    keeping = ObjectTwin(Untyped, methods=("keep",), schemas={"keep": plain})
    given = {"things": [1]}
    keeping.call_now("keep", given)
    given["things"].append(2)
    assert _value(keeping, "kept", "Untyped") == [1]


def test_objects_that_cannot_be_copied_or_pickled_say_so() -> None:
    class Locked:
        def __init__(self) -> None:
            self._lock = threading.Lock()

        def act(self) -> int:
            """Act."""
            return 1

    twin = ObjectTwin(Locked)
    with pytest.raises(ToolFailure, match="lock"):
        twin.call_now("act", {})
    with pytest.raises(SetupError, match="__getstate__"):
        twin.snapshot()


def test_a_snapshot_of_another_class_is_refused() -> None:
    with pytest.raises(SetupError, match="a snapshot of Asserting, not of Shop"):
        ObjectTwin(Shop).restore(ObjectTwin(Asserting).snapshot())


class Half(ObjectTwin):
    """Has the till only in the scenario `rich`, and tells of selling later."""

    def present(self, scenario: str) -> tuple[str, ...]:
        return ("shop", "till") if scenario == "rich" else ("shop",)

    def hidden(self, scenario: str) -> tuple[str, ...]:
        return ("sell",)


def test_a_scenario_may_have_fewer_objects_and_tools_that_are_not_shown() -> None:
    twin = Half({"shop": Shop, "till": lambda: Till(Shop())}, scenarios=("poor", "rich"))
    assert {"sell", "take"} & {tool.name for tool in twin.tools} == set()
    assert not twin.call_now("sell", {"number": 0}).is_error
    missing = twin.call_now("take", {"cents": 1})
    assert missing.error_kind == "unknown_tool"
    assert "sell" not in missing.text
    fork = twin.fork()
    fork.reset(scenario="rich")
    assert fork.call_now("take", {"cents": 1}).structured == 1
    assert set(fork.state()) == {"clock", "shop", "till"}
    twin.restore(fork.snapshot())
    assert "take" in {tool.name for tool in twin.tools}


async def test_the_first_scenario_is_the_default_where_none_is_called_so() -> None:
    twin = Half({"shop": Shop, "till": lambda: Till(Shop())}, scenarios=("rich", "poor"))
    twin.reset(scenario="poor")
    twin.reset()
    assert "take" in {tool.name for tool in twin.tools}
    async with mcp_bridge.connect(twin) as toolset, toolset.open_world("w", {"seed": 3}) as world:
        assert "take" in {tool.name for tool in world.tools}


async def test_a_twin_is_served_as_an_mcp_server_with_a_world_for_each_rollout() -> None:
    server = publish(ObjectTwin(Shop, load=fill), control=True)
    async with mcp_bridge.connect(server) as toolset:
        async with toolset.open_world("a", {"seed": 1}) as one, toolset.open_world("b", {"seed": 2}) as two:
            assert (await one.call("sell", {"number": 1})).structured["name"].startswith("default ")
            assert (await one.call("count", {})).text == "2"
            assert (await two.call("count", {})).text == "3"
            state = await one.state()
            assert state is not None
            assert len(state["Shop"]["sold"]["value"]) == 1
            assert (await two.call("sell", {"number": 9})).text == "NoSuchItem: there is no item 9"


@pytest.mark.parametrize("is_served", [False, True])
async def test_a_world_shows_the_tools_of_its_scenario_and_takes_the_hidden_ones(is_served: bool) -> None:
    twin = Half({"shop": Shop, "till": lambda: Till(Shop())}, scenarios=("rich", "poor"))
    async with mcp_bridge.connect(publish(twin, control=True) if is_served else twin) as toolset:
        async with toolset.open_world("p", {"scenario": "poor"}) as poor, toolset.open_world("r") as rich:
            assert "take" in {tool.name for tool in toolset.tools} & {tool.name for tool in rich.tools}
            assert {"sell", "take"} & {tool.name for tool in poor.tools} == set()
            assert not (await rich.call("take", {"cents": 1})).is_error
            assert "no tool" in (await poor.call("take", {"cents": 1})).text


# -- forms ------------------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    _y: float = 0.0


class Slotted:
    __slots__ = ("_b", "a")

    def __init__(self) -> None:
        self.a, self._b = (1, 2), 3


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (Point(1.5), {"x": 1.5}),
        (Slotted(), {"a": [1, 2]}),
        ({1: "a", None: "b", Colour.RED: "c", (1, "x"): "d"}, {"1": "a", "null": "b", "red": "c", '["1", "x"]': "d"}),
        ({frozenset({"Zoe", "Ann"}): 1}, {'["Ann", "Zoe"]': 1}),
        ({3, 1, 20}, [1, 20, 3]),
        ({"b": Point(1.5)}.values(), [{"x": 1.5}]),
        ([{"b": 1, "a": 2}.keys(), {"b": 1, "a": 2}.items(), range(2)], [["b", "a"], [["b", 1], ["a", 2]], [0, 1]]),
        (range(10**12), "range(0, 1000000000000)"),
        ([float("nan"), -float("inf"), 1e300], ["nan", "-inf", 1e300]),
        (dt.datetime(2026, 1, 2, 3), "2026-01-02T03:00:00"),
        (dt.timedelta(minutes=1), 60.0),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (b"\xff", "/w=="),
        (Point, "test_object_twin.Point"),
        (True, True),
    ],
)
def test_values_have_one_json_form(value: Any, form: Any) -> None:
    assert as_json(value) == form
    json.dumps(as_json(value), allow_nan=False)


def test_values_without_a_form_are_an_error() -> None:
    with pytest.raises(NoForm, match="Plain"):
        as_json([type("Plain", (), {})()])
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(NoForm, match="levels deep"):
        as_json({"a": deep})
    with pytest.raises(NoForm, match="two keys"):
        as_json({1: "a", "1": "b"})


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_json)
def test_json_is_its_own_form_and_a_new_object(value: Any) -> None:
    form = as_json(value)
    assert json.dumps(form) == json.dumps(value)
    assert form is not value or not isinstance(value, list | dict)


class Hooked:
    """Attributes whose texts have addresses."""

    def __init__(self) -> None:
        self.hook = lambda: 1
        self.bound = self.inc
        self.part = functools.partial(int, "1")
        self.n = 0

    def inc(self) -> int:
        """Count."""
        self.n += 1
        return self.n


def test_equal_worlds_have_equal_states_also_with_functions_in_them() -> None:
    twin = ObjectTwin(Hooked)
    first = twin.state()
    assert "0x" not in str(first)
    twin.reset()
    assert twin.state() == first


class Duties:
    """Who is on duty with whom."""

    def __init__(self) -> None:
        self.pairs = {frozenset({"Ann", "Ben", "Cleo", "Dan", "Eva", "Finn"}): 1}
        self.n = 0

    def inc(self) -> int:
        """Count."""
        self.n += 1
        return self.n


def test_a_dict_whose_keys_are_sets_does_not_change_with_another_attribute() -> None:
    twin = ObjectTwin(Duties)
    for _ in range(20):  # each call copies the sets, of which each may have an order of its own
        before = twin.state()
        twin.call_now("inc", {})
        assert {change["key"] for change in twin.diff(before, twin.state())} == {"n"}


class Secretive:
    def __init__(self) -> None:
        self._seats = {"A1": ""}

    def reserve(self, seat: str, name: str) -> str:
        """Reserve a seat."""
        self._seats[seat] = name
        return "reserved"


class Shown(ObjectTwin):
    def state(self) -> Any:
        return {"seats": {}}


def test_a_state_that_is_empty_for_its_underscores_is_a_warning_with_the_fix(caplog: pytest.LogCaptureFixture) -> None:
    assert ObjectTwin(Secretive).state()["Secretive"] == {}
    assert "the state of Secretive is empty, because all its variables (_seats)" in caplog.text
    caplog.clear()
    Shown(Secretive)
    ObjectTwin(Secretive, reads=("reserve",))
    assert caplog.text == ""
    assert ObjectTwin(Secretive, state=vars).state()["Secretive"] == {"_seats": {"value": {"A1": ""}}}
    assert caplog.text == ""


def test_a_method_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(SourceError, match="no public method 'nope' in Hooked; there are inc"):
        ObjectTwin(Hooked, methods=("nope",))
