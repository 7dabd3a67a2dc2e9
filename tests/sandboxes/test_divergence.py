"""Recorded sessions replayed against twins that are right, wrong in one place, or have other identifiers."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noting import Notes, record_notes

from mcp_bridge import connect
from mcp_bridge.errors import SourceError, ToolFailure
from mcp_bridge.records import ToolResult
from mcp_bridge.safe_text import strict_json
from mcp_bridge.world import World
from sandboxes.divergence import DivergenceReport, Ignored, compare, differences, is_id_name, leave_one_out
from sandboxes.objects import ObjectTwin
from sandboxes.recorded import RecordedTwin, record

SESSION: list[tuple[str, dict[str, Any]]] = [
    ("add_note", {"text": "milk"}),
    ("add_note", {"text": "bread"}),
    ("get_note", {"note_id": "$1"}),
    ("change_note", {"note_id": "$0", "text": "oat milk"}),
    ("list_notes", {}),
    ("get_note", {"note_id": "n-1"}),
]


@pytest.fixture
async def cassette(tmp_path: Path) -> Path:
    await record_notes(tmp_path / "notes.jsonl", SESSION)
    return tmp_path / "notes.jsonl"


def paths(report: DivergenceReport) -> list[str]:
    return [one.path for call in report.calls for one in call.differences]


async def test_the_real_thing_agrees_with_its_recording(cassette: Path) -> None:
    for twin in (Notes(), RecordedTwin(cassette)):
        report = await compare(cassette, twin)
        assert report.agrees, report.to_markdown()
        assert (report.agreement, report.compared, report.mapped_identifiers) == (1.0, 6, 0)


LOOK: tuple[str, dict[str, Any]] = ("list_notes", {})
MISS: tuple[str, dict[str, Any]] = ("get_note", {"note_id": "n-1"})
MILK: tuple[str, dict[str, Any]] = ("add_note", {"text": "milk"})
BREAD: tuple[str, dict[str, Any]] = ("add_note", {"text": "bread"})


async def test_each_session_is_answered_by_a_twin_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [LOOK, MISS], [LOOK, MILK, LOOK], [MILK, LOOK], [LOOK, BREAD])
    itself = await compare(path, RecordedTwin(path))
    assert itself.agrees
    assert "That says nothing of other sessions." in itself.to_markdown()
    report = await leave_one_out(RecordedTwin(path))
    # The first: nobody else looked for that note. The fourth: nobody else added bread.
    assert [(call.tool, call.arguments) for call in report.calls] == [MISS, BREAD]
    assert all(call.failure is not None and "NotRecorded" in call.failure for call in report.calls)
    assert (report.compared, report.agreement, report.on_itself) == (9, 7 / 9, 1.0)
    assert (report.sessions, report.sessions_agree, report.agrees) == (4, 2, False)
    shown = report.to_markdown()
    assert "each session with a twin of the others: 77.8% of the results agree, and 2 of 4 sessions as a whole" in shown
    assert "The twin of all sessions replays 100.0% of them." in shown


async def test_sessions_that_repeat_each_other_are_answered_by_each_other(tmp_path: Path) -> None:
    await record_notes(tmp_path / "notes.jsonl", *[[LOOK, MILK, LOOK]] * 3)
    report = await leave_one_out(RecordedTwin(tmp_path / "notes.jsonl"))
    assert report.agrees, report.to_markdown()
    assert report.mapped_identifiers == 3


async def test_the_twins_of_the_others_have_the_options_of_the_twin(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [MISS], [("get_note", {"note_id": "n-2"})])
    strict, near = RecordedTwin(path), RecordedTwin(path, unseen="nearest")
    assert {call.failure is None for call in (await leave_one_out(strict)).calls} == {False}
    found = (await leave_one_out(near)).calls
    assert [call.differences[0].path for call in found] == ["text", "text"], "answered, but as for another note"


async def test_a_setup_that_no_other_session_has_is_a_session_that_none_answers(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [LOOK], [LOOK], setup={"notes": {"n-1": "milk"}})
    await record_notes(path, [LOOK], setup={"notes": {"n-1": "bread"}})
    report = await leave_one_out(RecordedTwin(path))
    assert (report.sessions_agree, len(report.calls)) == (2, 1)
    assert "was not recorded; those that were" in str(report.calls[0].failure)


async def test_one_session_alone_cannot_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [LOOK])
    with pytest.raises(SourceError, match="one session, and leaving it out leaves none; record more"):
        await leave_one_out(RecordedTwin(path))
    assert "Record more" in (await compare(path, RecordedTwin(path))).to_markdown()


async def test_identifiers_that_the_session_created_may_be_others_in_the_twin(cassette: Path) -> None:
    report = await compare(cassette, Notes(first_id=7000))
    assert report.agrees, report.to_markdown()
    assert report.mapped_identifiers == 2
    strict = await compare(cassette, Notes(first_id=7000), map_ids=False)
    assert not strict.agrees
    by_tool = {tool.tool: tool for tool in strict.tools}
    assert (by_tool["add_note"].results_agree, by_tool["add_note"].errors_agree) == (0, 2)
    assert by_tool["get_note"].errors_agree == 1, "without the twin's identifiers its notes are not found"


async def test_a_planted_difference_is_found_at_its_path_and_nowhere_else(cassette: Path) -> None:
    report = await compare(cassette, Notes(first_id=7000, spoil={"bread": "cake"}))
    assert paths(report) == ["structured.text", "text.text"]
    assert (report.calls[0].tool, report.calls[0].order) == ("get_note", 2)
    assert report.agreement == pytest.approx(5 / 6)
    page = report.to_markdown()
    assert "| get_note | 2 | 1 of 2 | 2 of 2 | agrees |" in page
    assert "structured.text: 'bread' became 'cake'" in page
    found = json.loads(report.to_json())
    assert found["calls"][0]["differences"][0]["twin"] == "cake"
    assert (found["agrees"], round(found["agreement"], 3)) == (False, 0.833)
    assert (await compare(cassette, Notes(spoil={"bread": "cake"}), ignore=["get_note:**.text"])).agrees
    assert not (await compare(cassette, Notes(spoil={"bread": "cake"}), ignore=["add_note:**.text"])).agrees
    assert (await compare(cassette, Notes(spoil={"bread": "cake"}), ignore_text=["^(bread|cake)$"])).agrees


async def test_a_value_of_another_type_is_a_difference(cassette: Path) -> None:
    report = await compare(cassette, Notes(spoil={"bread": 5}))
    assert {one.kind for call in report.calls for one in call.differences} == {"type"}


@pytest.mark.parametrize(("odd", "shown"), [(math.nan, "NaN"), (-math.inf, "-Infinity"), ("\ud83d", "\ufffd")])
async def test_what_json_cannot_hold_does_not_spoil_the_report(cassette: Path, odd: Any, shown: str) -> None:
    report = await compare(cassette, Notes(spoil={"bread": odd}))
    found = strict_json(report.to_json().encode())
    assert found["calls"][0]["differences"][0]["twin"] == shown
    call = report.calls[0].model_copy(update={"arguments": {"text": "\ud83d"}})
    assert '"\ufffd"' in report.model_copy(update={"calls": [call]}).to_markdown().encode().decode()


class Wrong(Notes):
    """Gives every reading an identifier that was never created: a wrong reference, not another name for it."""

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Any = None) -> AsyncIterator[World]:
        async with super().open_world(world_id, setup) as world:
            plain = world._get_note
            world._get_note = lambda note_id: (
                {**plain(note_id), "note_id": "n-555"} if note_id != "n-1" else plain(note_id)
            )  # type: ignore[method-assign]
            yield world


async def test_a_wrong_reference_in_a_reading_is_no_new_identifier(cassette: Path) -> None:
    report = await compare(cassette, Wrong(first_id=7000))
    assert paths(report) == ["structured.note_id", "text.note_id"]


class Shop:
    """Its tools say nothing of themselves."""

    def __init__(self, customer: str = "C77", order: str = "O1") -> None:
        self._customer, self._order = customer, order

    def get_order(self, number: int) -> dict[str, Any]:
        """Read an order."""
        return {"number": number, "customer_id": self._customer}

    def place_order(self, product: str) -> dict[str, Any]:
        """Place an order."""
        return {"order_id": self._order, "product": product}


async def test_a_wrong_reference_is_one_also_where_only_its_tool_s_name_says_that_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "shop.jsonl"
    calls: list[tuple[str, dict[str, Any]]] = [("get_order", {"number": 1}), ("place_order", {"product": "lamp"})]
    await record_notes(path, calls, backend=ObjectTwin(Shop, state=vars))
    report = await compare(path, ObjectTwin(lambda: Shop("C99", "O7"), name="Shop", state=vars))
    assert [call.tool for call in report.calls] == ["get_order"], "only the new order's identifier is another name"
    assert set(paths(report)) == {"structured.customer_id", "text.customer_id"}


async def test_where_no_recorded_call_has_an_answer_nothing_agrees(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [LOOK])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "call":
            line |= {"result": None, "failure": {"type": "ServerDied", "text": "it died"}}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    report = await compare(path, Notes())
    assert (report.compared, report.agrees) == (0, False)
    assert "Nothing was compared: no recorded call has an answer." in report.to_markdown()


async def test_what_a_changing_call_returns_beside_identifiers_must_be_the_same(cassette: Path) -> None:
    report = await compare(cassette, Notes(first_id=7000, spoil={"saved": "stored"}))
    assert paths(report) == ["structured.state", "text.state"]


@pytest.mark.parametrize(
    ("name", "names_one"),
    [(name, True) for name in ("id", "ids", "order_id", "ORDER-ID", "orderId", "orderIDs", "uuid", "userUuid")]
    + [(name, False) for name in ("paid", "valid", "grid", "void", "identity")],
)
def test_a_key_names_an_identifier_by_a_whole_word(name: str, names_one: bool) -> None:
    assert is_id_name(name) is names_one


class Confusing(Notes):
    """Says of every change that it was made to a note that there never was."""

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Any = None) -> AsyncIterator[World]:
        async with super().open_world(world_id, setup) as world:
            world._change_note = lambda note_id, text: {"note_id": "n-555", "state": "saved"}  # type: ignore[method-assign]
            yield world


@pytest.mark.parametrize("first_id", [100, 7000])
async def test_an_identifier_that_came_up_before_is_not_created_again(cassette: Path, first_id: int) -> None:
    report = await compare(cassette, Confusing(first_id))
    assert "structured.note_id" in paths(report)


class Orders:
    """Numbers its orders; customers and pieces have numbers of their own."""

    def __init__(self, first: int, pieces: int) -> None:
        self.first, self.pieces = first, pieces

    def make(self) -> dict[str, int]:
        """Make an order."""
        return {"order_id": self.first}

    def order(self, orderId: int) -> bool:
        """Whether there is such an order."""
        return orderId == self.first

    def stock(self) -> dict[str, int]:
        """What there is."""
        return {"quantity": self.pieces}

    def customer(self, customer_id: int) -> int:
        """The customer again."""
        return customer_id


async def test_a_number_is_an_identifier_only_of_what_its_key_names(tmp_path: Path) -> None:
    recording = record(ObjectTwin(Orders, 5, 5), tmp_path / "orders.jsonl")
    async with recording.open_world("one") as world:
        for call in (("make", {}), ("order", {"orderId": 5}), ("stock", {}), ("customer", {"customer_id": 5})):
            await world.call(*call)
    same = await compare(tmp_path / "orders.jsonl", ObjectTwin(Orders, 7, 5))
    assert (same.agrees, same.mapped_identifiers) == (True, 1), same.to_markdown()
    other = await compare(tmp_path / "orders.jsonl", ObjectTwin(Orders, 7, 7))
    assert [call.tool for call in other.calls] == ["stock"]


class Desk:
    """Orders and customers, each with numbers of their own, which begin with the same."""

    def __init__(self, first: int = 5) -> None:
        self.orders: dict[int, str] = {}
        self.next = first

    def place_order(self, item: str) -> dict[str, int]:
        """Place an order."""
        number, self.next = self.next, self.next + 1
        self.orders[number] = item
        return {"id": number}

    def get_order(self, order_id: int) -> str:
        """Read an order."""
        return self.orders[order_id]

    def read_order(self, id: int) -> str:
        """Read an order."""
        return self.orders[id]

    def get_customer(self, customer_id: int) -> str:
        """Read a customer."""
        return f"customer {customer_id}"

    def read_customer(self, id: int) -> str:
        """Read a customer."""
        return f"customer {id}"


@pytest.mark.parametrize(
    ("order", "customer"),
    [(("get_order", "order_id"), ("get_customer", "customer_id")), (("read_order", "id"), ("read_customer", "id"))],
)
async def test_a_number_under_a_mere_id_is_of_what_its_tool_made(
    order: tuple[str, str], customer: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "desk.jsonl"
    async with record(ObjectTwin(Desk), path).open_world("w") as world:
        for tool, arguments in (
            ("place_order", {"item": "tea"}),
            (customer[0], {customer[1]: 5}),
            (order[0], {order[1]: 5}),
        ):
            assert not (await world.call(tool, arguments)).is_error
    report = await compare(path, ObjectTwin(Desk, 70))
    assert (report.agrees, report.mapped_identifiers) == (True, 1), report.to_markdown()


class Wordy(Notes):
    """Says everything in words, without structured content."""

    def __init__(self, first_id: int = 100, kept: str = "kept") -> None:
        super().__init__(first_id)
        self._kept = kept
        self.tools = [tool.model_copy(update={"output_schema": None}) for tool in self.tools]

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Any = None) -> AsyncIterator[World]:
        async with super().open_world(world_id, setup) as world:
            add, get = world._add_note, world._get_note

            def add_in_words(text: str) -> ToolResult:
                return ToolResult(text=f"The note is {self._kept} as {add(text)['note_id']}.")

            def get_in_words(note_id: str) -> ToolResult:
                found = get(note_id)
                return found if isinstance(found, ToolResult) else ToolResult(text=f"[{note_id}] {found['text']}")

            world._add_note, world._get_note = add_in_words, get_in_words  # type: ignore[method-assign]
            yield world


async def test_identifiers_are_followed_through_words_too(tmp_path: Path) -> None:
    path = tmp_path / "words.jsonl"
    calls: list[tuple[str, dict[str, Any]]] = [("add_note", {"text": "milk"}), ("get_note", {"note_id": "n-100"})]
    await record_notes(path, calls, backend=Wordy())
    agreeing = await compare(path, Wordy(first_id=7000))
    assert agreeing.agrees, agreeing.to_markdown()
    assert agreeing.mapped_identifiers == 1
    differing = await compare(path, Wordy(first_id=7000, kept="lost"))
    assert paths(differing) == ["text"], "a word that is no identifier is a difference"
    assert [call.tool for call in differing.calls] == ["add_note"]


class Relabelled(Notes):
    """Begins with a note under another identifier than the recorded one."""

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Any = None) -> AsyncIterator[World]:
        async with super().open_world(world_id, {"notes": {"n-9": "old"}}) as world:
            yield world


async def test_an_identifier_that_was_there_before_the_session_must_be_the_same(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [("list_notes", {}), ("get_note", {"note_id": "n-1"})], setup={"notes": {"n-1": "old"}})
    report = await compare(path, Relabelled())
    assert paths(report)[:2] == ["structured.notes.0.note_id", "text.notes.0.note_id"]
    assert report.agreement == 0.0


class Failing(Notes):
    """Breaks whenever notes are listed."""

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Any = None) -> AsyncIterator[World]:
        async with super().open_world(world_id, setup) as world:

            def broken() -> Any:
                raise ToolFailure("the shelf is gone")

            world._list_notes = broken  # type: ignore[method-assign]
            yield world


async def test_a_twin_that_breaks_does_not_agree_and_the_session_goes_on(cassette: Path) -> None:
    report = await compare(cassette, Failing())
    (call,) = report.calls
    assert call.failure == "ToolFailure: the shelf is gone"
    assert {tool.tool: tool.failures for tool in report.tools if tool.failures} == {"list_notes": 1}
    assert "the twin has no result: `ToolFailure: the shelf is gone`" in report.to_markdown()


async def test_schemas_and_missing_and_extra_tools_are_reported(cassette: Path) -> None:
    twin = Notes()
    changed = twin.tools[0].model_copy(update={"input_schema": {"type": "object", "properties": {"body": {}}}})
    twin.tools = [changed, *twin.tools[1:4], twin.tools[4].model_copy(update={"name": "tock"})]
    report = await compare(cassette, twin)
    assert not report.agrees
    assert report.agreement == 1.0, "the results are the same"
    assert report.extra_tools == ["tock"]
    by_tool = {tool.tool: tool for tool in report.tools}
    assert by_tool["tick"].is_missing
    assert "input_schema.properties.text" in {one.path for one in by_tool["add_note"].schema_differences}


class Dotted(Notes):
    """The same under names that MCP takes and model APIs do not: `list.notes`."""

    def __init__(self) -> None:
        super().__init__()
        self.tools = [tool.model_copy(update={"name": tool.name.replace("_", ".")}) for tool in self.tools]

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Any = None) -> AsyncIterator[Any]:
        async with super().open_world(world_id, setup) as world:
            inner = world.call
            world.call = lambda name, *rest, **more: inner(name.replace(".", "_"), *rest, **more)  # type: ignore[method-assign]
            yield world


async def test_tools_that_are_called_otherwise_once_connected_are_compared_with_those_at_their_source(
    tmp_path: Path,
) -> None:
    session = [(name.replace("_", "."), arguments) for name, arguments in SESSION]
    await record_notes(tmp_path / "notes.jsonl", session, backend=Dotted())
    async with connect(Dotted()) as toolset:
        assert "list_notes" in [tool.name for tool in toolset.tools]
        report = await compare(tmp_path / "notes.jsonl", toolset)
    assert report.agrees, report.to_markdown()
    assert (report.compared, report.extra_tools) == (6, [])


async def test_results_against_the_recorded_output_schema_are_counted(cassette: Path) -> None:
    class Unsound(Notes):
        def next_id(self) -> Any:
            super().next_id()
            return 5

    report = await compare(cassette, Unsound())
    assert {tool.tool: tool.invalid_results for tool in report.tools if tool.invalid_results} == {"add_note": 2}


async def test_arguments_against_the_schema_agree_whoever_words_the_error(tmp_path: Path) -> None:
    from mcp_bridge import connect

    path = tmp_path / "notes.jsonl"
    await record_notes(path, [("list_notes", {})])
    wrong = {"kind": "call", "session": json.loads(path.read_text().splitlines()[1])["session"], "order": 1}
    wrong |= {"tool": "add_note", "arguments": {"txt": 1}, "result": {"text": "bad!", "is_error": True}}
    with path.open("a") as file:
        file.write(json.dumps(wrong) + "\n")
    async with connect(Notes()) as toolset:
        assert (await compare(path, toolset)).agrees


async def test_a_pattern_that_is_none_is_refused(cassette: Path) -> None:
    with pytest.raises(SourceError, match="not a valid regular expression"):
        await compare(cassette, Notes(), ignore_text=["("])
    with pytest.raises(SourceError, match=r"is empty; write for example"):
        await compare(cassette, Notes(), ignore=["add_note:"])
    for option in ("ignore", "ignore_text"):
        with pytest.raises(SourceError, match=rf"{option} is '\*\*.at'; it must be a list"):
            await compare(cassette, Notes(), **{option: "**.at"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.", max_size=2), inner, max_size=3),
    max_leaves=6,
)


def test_a_value_that_is_no_number_is_the_same_again() -> None:
    assert list(differences({"a": math.nan}, {"a": math.nan})) == []
    assert len(list(differences({"a": math.nan}, {"a": 1.0}))) == 1


@given(json_values, json_values)
def test_two_values_have_no_differences_exactly_where_they_are_equal(left: Any, right: Any) -> None:
    assert list(differences(left, left)) == []
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert (not list(differences(left, right))) is same
    assert all(str(one) for one in differences(left, right))


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("**.at", ("structured", "a", 0, "at"), True),
        ("**.at", ("at",), True),
        ("**.at", ("structured", "at", "more"), False),
        ("structured.*.id", ("structured", 3, "id"), True),
        ("structured.*.id", ("structured", 3, 4, "id"), False),
        ("structured.items.**", ("structured", "items", 1, "x"), True),
        ("text", ("text",), True),
        ("**.xml:lang", ("structured", "xml:lang"), True),
        ("get_order:**.at", ("structured", "at"), False),
    ],
)
def test_paths_to_ignore(pattern: str, path: tuple[str | int, ...], matches: bool) -> None:
    assert Ignored([pattern]).matches(path) is matches
