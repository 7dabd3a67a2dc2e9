"""Demonstrations that are found: calls from a prompt's own words, kept where the verifier pays and no shorter one."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from banks import bank
from harbours import harbour
from hypothesis import given, settings
from hypothesis import strategies as st

import sdk
from mcp_bridge import Tool, connect
from mcp_bridge.errors import ToolFailure
from sandboxes.helpdesk import Helpdesk, tasks
from sandboxes.objects import ObjectTwin
from sdk.policies.scripted import replay_demonstration
from sdk.records import Rollout, Task
from sdk.rollouts.limits import Limits
from sdk.rollouts.run_context import RunContext
from sdk.synthesis.call_candidates import CallCandidates, values_of
from sdk.synthesis.found_demonstrations import DemonstrationSearch, SearchBounds, SearchReport
from sdk.synthesis.shared_state import may_change, searchable_tools, shared_state_line
from sdk.synthesis.words import PromptValues
from sdk.traces.journal import Journal
from sdk.verifiers import all_of, answer_match, calls_match, final_state

GOLD = all_of(final_state(), calls_match(), answer_match())
PRICES = {"lamp": 12, "desk": 80, "rug": 31}
SOLD: list[str] = []
COUNTED: list[str] = []
"""What a tool that is known only at run time keeps of its calls."""


def price(item: str) -> int:
    """The price of an item."""
    return PRICES[item]


def total(amounts: list[int]) -> int:
    """Add amounts."""
    return sum(amounts)


def sell(item: str) -> str:
    """Sell an item."""
    SOLD.append(item)
    return f"sold {item}"


def search(
    tools: Any, given: list[Task], verifier: Any, bounds: SearchBounds | None = None, **options: Any
) -> SearchReport:
    async def run() -> SearchReport:
        async with connect(tools) as source:
            context = RunContext(tools=source, verifier=verifier, limits=Limits(), concurrency=16)
            options.setdefault("wanted", len(given))
            return await DemonstrationSearch(context, searchable_tools(source), bounds).run(given, **options)

    return anyio.run(run)


def stripped(each: int, tier: str) -> list[Task]:
    """The first training tasks of each kind of a tier, without their demonstrations."""
    rows: dict[str, list[Task]] = {}
    for row in tasks(tiers=(tier,)):
        if row["tags"]["split"] == "train":
            task = Task.model_validate({key: value for key, value in row.items() if key != "demonstration"})
            rows.setdefault(row["tags"]["intent"], []).append(task)
    return [task for some in rows.values() for task in some[:each]]


def made_calls(rollout: Rollout) -> list[tuple[str, dict[str, Any]]]:
    return [(record.call.name, record.call.arguments) for record in rollout.calls]


@pytest.mark.parametrize(("tier", "share"), [("1", 0.95), ("2", 0.75)])
def test_most_tasks_of_the_helpdesk_are_solved_by_their_prompts_and_the_verifier_alone(tier: str, share: float) -> None:
    given = stripped(2, tier)
    report = search(Helpdesk(), given, GOLD)
    assert len(report.found) >= share * len(given)
    for found in list(report.found.values())[::7]:  # each was confirmed in a world of its own, and is again
        shown = found.demonstrated
        again = sdk.rollout(Helpdesk(), shown, model=replay_demonstration(shown), verifier=GOLD)
        assert again.verdict is not None
        assert again.verdict.score == 1
        assert made_calls(again) == made_calls(found.rollout)


def test_a_verifier_of_the_answer_alone_seldom_leads_to_other_calls_than_the_gold_ones() -> None:
    given = [task for task in stripped(2, "1") if task.tags["intent"] != "cancel"]
    report = search(Helpdesk(), given, answer_match())
    found = [sdk.Rollout.model_validate(one.rollout.model_dump()) for one in report.found.values()]
    assert len(found) >= 0.9 * len(given)

    async def scores() -> list[float]:
        from sdk.verifiers import run_verifier

        return [(await run_verifier(GOLD, rollout)).score for rollout in found]

    assert sum(score < 1 for score in anyio.run(scores)) <= 0.05 * len(found)


def test_a_search_is_the_same_again_and_goes_on_from_what_was_found() -> None:
    given, kept = stripped(1, "1")[:12], []
    first = search(Helpdesk(), given, GOLD, on_found=kept.append)
    again = search(Helpdesk(), given, GOLD)
    assert [made_calls(one.rollout) for one in first.found.values()] == [
        made_calls(one.rollout) for one in again.found.values()
    ]
    resumed = search(Helpdesk(), given, GOLD, known=kept[:-2], on_found=kept.append)
    assert list(resumed.found) == list(first.found)
    assert resumed.candidates < first.candidates
    assert [one.id for one in kept[len(first.found) :]] == [
        one.id for one in kept[len(first.found) - 2 : len(first.found)]
    ]


def test_a_search_that_goes_on_has_the_counts_and_the_time_of_one_that_was_never_cut_off(tmp_path: Path) -> None:
    given, kept, journal = stripped(1, "1")[:12], [], Journal(tmp_path / "work.jsonl")
    given.append(Task(prompt="Sing a song.", expected={"answer": "la"}, id="never"))
    whole = search(Helpdesk(), given, GOLD)
    search(Helpdesk(), given, GOLD, wanted=1, on_found=kept.append, journal=journal)
    resumed = search(Helpdesk(), given, GOLD, known=kept, journal=journal)
    assert (resumed.candidates, str(resumed)) == (whole.candidates, str(whole))
    assert [task.id for task in resumed.not_found] == [task.id for task in whole.not_found]
    first = json.loads(journal.path.read_text().splitlines()[0])
    first["counts"]["seconds"] = 300.0
    spent = Journal(tmp_path / "spent.jsonl")
    spent.append(first)
    over = search(Helpdesk(), given, GOLD, known=kept, journal=spent)
    assert len(over.out_of_time) == len(given) - len(over.searched) > 0


def test_two_calls_are_found_where_one_is_not_paid_and_none_where_one_is() -> None:
    def paid(rollout: Rollout) -> bool:
        return "14" in rollout.answer or "Bath" in rollout.answer

    longer = Task(prompt="What is the balance of the account of Bob?", id="longer")
    shorter = Task(prompt="In which city is the account A-101?", id="shorter")
    report = search(bank(), [longer, shorter], lambda r: paid(r) and (r.task.id != "longer" or len(r.calls) == 2))
    assert made_calls(report.found["longer"].rollout) == [
        ("find_accounts", {"owner": "Bob"}),
        ("get_account", {"account": "A-202"}),
    ]
    assert made_calls(report.found["shorter"].rollout) == [("get_account", {"account": "A-101"})]
    assert report.found["shorter"].rollout.answer == "Bath"


def test_of_calls_that_are_paid_the_one_that_uses_more_of_the_prompt_is_kept() -> None:
    def numbers() -> list[int]:
        """List numbers."""
        return [*range(40)]

    def add(first: int, second: int) -> int:
        """Add two numbers."""
        return first + second

    task = Task(prompt="List numbers: what is 9 and 4 together?")
    report = search([numbers, add], [task], lambda rollout: "13" in rollout.answer)
    [(tool, arguments)] = made_calls(report.found[task.id].rollout)
    assert (tool, sorted(arguments.values())) == ("add", [4, 9])
    assert report.found[task.id].rollout.answer == "13"


def by_answer(prompt: str, answer: str, bounds: SearchBounds | None = None) -> tuple[list[Any], str]:
    """Calls and answer that are found in the harbour for a question; none and "" where nothing is found."""
    task = Task(prompt=prompt, expected={"changes": [], "answer": answer})
    found = search(harbour(), [task], all_of(final_state(), answer_match()), bounds).found.get(task.id)
    return ([], "") if found is None else (made_calls(found.rollout), found.rollout.answer)


@pytest.mark.parametrize(("ship", "captain", "town"), [("SH-41", 3, "Bergen"), ("SH-57", 4, "Kiel")])
def test_the_right_answer_of_a_call_that_has_nothing_to_do_with_the_prompt_is_not_taken(
    ship: str, captain: int, town: str
) -> None:
    calls, answer = by_answer(f"In which town does the captain of {ship} live?", town)
    assert calls == [("get_ship", {"ship": ship}), ("get_captain", {"captain_id": captain})]
    assert answer == town
    assert by_answer("In which town does the captain of SH-99 live?", town) == ([], "")
    assert by_answer("Where does our captain live?", "Bergen")[0] == [("list_captains", {})]


@pytest.mark.parametrize(("ship", "answer"), [("SH-41", "Yes"), ("SH-57", "No")])
def test_yes_and_no_are_read_where_they_are_stored_as_numbers(ship: str, answer: str) -> None:
    assert by_answer(f"Is {ship} insured?", answer.lower()) == ([("get_ship", {"ship": ship})], answer)


def test_that_an_act_was_done_answers_no_question() -> None:
    assert by_answer("Is SH-41 seaworthy?", "yes") == ([], "")
    assert by_answer("Does the ship SH-57 stay at the berth West?", "yes") == ([], "")


def test_a_tool_that_needs_no_argument_is_tried_before_those_that_are_given_any_words() -> None:
    calls, answer = by_answer("In which town does Ada Holm live?", "Bergen", SearchBounds(candidates=(12,)))
    assert (calls, answer) == ([("list_captains", {})], "Bergen")


def test_what_is_asked_to_be_done_ends_with_done() -> None:
    moving = ("move_ship", {"ship": "SH-41", "berth": "West"})
    task = sdk.solve(harbour(), "Bring SH-41 to the West berth.", [moving])
    rollout = search(harbour(), [task], final_state()).found[task.id].rollout
    assert (made_calls(rollout), rollout.answer) == ([moving], "Done.")


def test_a_verifier_that_pays_for_nothing_gives_no_demonstration() -> None:
    report = search([price], [Task(prompt="What is the price of the lamp?")], lambda _: True)
    assert (report.found, len(report.paid_for_nothing)) == ({}, 1)
    assert "pays for an answer without a call" in str(report)


# ---------------------------------------------------------------------------------------------------------------------
# Tools that break, hang, or change what all share.


def broken(item: str) -> int:
    """The price of an item, by a server that is gone."""
    raise ToolFailure("the server is gone", delivery="unknown")


async def silent(item: str) -> int:
    """The price of an item, which never comes."""
    await anyio.Event().wait()
    raise AssertionError


def test_tools_that_break_or_hang_are_given_up_and_the_others_go_on() -> None:
    given = [Task(prompt=f"What is the price of the {item}?") for item in PRICES]
    report = search(
        [broken, silent, price],
        given,
        lambda rollout: any(str(PRICES[w]) in rollout.answer for w in PRICES if w in str(rollout.task.prompt)),
        SearchBounds(candidates=(24,), call_timeout_s=6.0),
    )
    assert {one.tools for one in report.found.values()} == {("price",)}
    assert len(report.found) == 3
    assert set(report.faulty_tools) <= {"broken", "silent"}


def test_what_was_found_is_kept_when_the_time_is_over() -> None:
    given = [Task(prompt=f"What is the price of the {item}?") for item in PRICES]
    report = search([price], given, lambda _: False, SearchBounds(seconds=0.0))
    assert (report.searched, len(report.out_of_time)) == ([], 3)
    assert "not searched: 3 tasks of 3 families, because the time was over" in str(report)


def test_functions_that_change_what_all_share_are_not_tried_unless_they_are_allowed() -> None:
    async def looked() -> tuple[list[str], list[str], str | None]:
        async with connect([price, total, sell]) as source:
            free, allowed = searchable_tools(source), searchable_tools(source, ["sell"])
            return [one.name for one in free], [one.name for one in allowed], shared_state_line(source)

    free, allowed, line = anyio.run(looked)
    assert free == ["price", "total"]
    assert allowed == ["price", "total", "sell"]
    assert line is not None
    assert "sell (it calls SOLD.append)" in line
    assert "ObjectTwin" in line
    report = search([price, sell], [Task(prompt="Sell the lamp.")], lambda rollout: "sold" in rollout.answer)
    assert (report.found, SOLD) == ({}, [])


@pytest.mark.parametrize(
    ("function", "changes"),
    [(price, None), (total, None), (sell, "it calls SOLD.append"), (COUNTED.append, "cannot be read")],
)
def test_what_a_function_may_change_is_read_from_its_code(function: Callable[..., Any], changes: str | None) -> None:
    found = may_change(function)
    assert found == changes or (changes is not None and changes in str(found))


class Client:
    """Of a live system, as far as code that is read can tell."""

    def index(self, what: str) -> str:
        return what

    def get(self) -> str:
        return ""


@dataclasses.dataclass
class Mail:
    to: str

    def send(self) -> None: ...


ORDERS = {"1": {"status": "open"}}
CLIENT, READER, NUMBERS = Client(), functools.partial(str), itertools.count()


def find_order(number: str) -> dict[str, str]:
    return ORDERS[number]


def order_status(number: str) -> str:
    order = find_order(number)
    return order["status"]


def close_order(number: str) -> str:
    order = find_order(number)
    order["status"] = "closed"
    return "closed"


def send_mail(to: str) -> str:
    mail = Mail(to)
    mail.send()
    return "sent"


def connected() -> Client:
    return CLIENT


def ask_connection() -> str:
    client = connected()
    return client.get()


def index_text(text: str) -> str:
    return CLIENT.index(text)


def take_next() -> str:
    return CLIENT.get()


def call_partial(number: str) -> str:
    return READER(number)


def remember(item: str, kept: list[str] = []) -> int:  # noqa: B006
    kept.append(item)
    return len(kept)


def number_next() -> int:
    return next(NUMBERS)


def drop_all(numbers: list[str]) -> list[dict[str, str]]:
    return list(map(ORDERS.pop, numbers))


@pytest.mark.parametrize(
    "function",
    [close_order, send_mail, ask_connection, index_text, take_next, call_partial, remember, number_next, drop_all],
    ids=lambda function: function.__name__,
)
def test_a_function_that_may_change_something_by_way_of_another_value_is_not_taken_for_reading(
    function: Callable[..., Any],
) -> None:
    assert may_change(function) is not None
    assert may_change(order_status) is None


# ---------------------------------------------------------------------------------------------------------------------
# Candidates of any prompt and schema.

_kinds = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "enum": ["red", "green blue", "10"]},
        {"type": "string", "format": "date"},
        {"type": "string", "pattern": "^[A-Z]-[0-9]+$"},
        {"type": "string", "minLength": 2, "maxLength": 6},
        {"type": "integer", "minimum": 2, "maximum": 50},
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "boolean"},
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"$ref": "#/$defs/line"}},
        {"$ref": "#/$defs/line"},
        {"allOf": [{"$ref": "#/$defs/line"}], "description": "The line of the order."},
    ]
)
_LINE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["name"],
}
_names = st.sampled_from(["order_id", "amount", "colour", "day", "lines", "note"])
_words = st.sampled_from(
    [
        "order",
        "A-12",
        "for",
        "red",
        "12",
        "on 2026-03-04",
        "to",
        '"a b"',
        "green blue",
        "Ann Lee",
        "is",
        "€3.50",
        ".",
        ",",
    ]
)
_prompts = st.one_of(st.text(max_size=60), st.lists(_words, min_size=1, max_size=14).map(" ".join))


@settings(max_examples=60, deadline=None)
@given(properties=st.dictionaries(_names, _kinds, max_size=4), optional=st.sets(_names), prompt=_prompts)
def test_candidates_of_any_prompt_fit_their_schemas_and_are_the_same_again(
    properties: dict[str, Any], optional: set[str], prompt: str
) -> None:
    schema = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "$defs": {"line": _LINE},
    }
    tools = [Tool(name="change_order", description="Change an order.", input_schema=schema), Tool(name="get_order")]
    first = list(CallCandidates(tools).first(PromptValues(prompt)))
    checker = jsonschema.Draft202012Validator(schema)
    for candidate in first:
        if candidate.tool == "change_order":
            checker.validate(candidate.arguments)
    assert any(candidate.tool == "get_order" for candidate in first)
    assert len({candidate.key for candidate in first}) == len(first)
    assert first == list(CallCandidates(tools).first(PromptValues(prompt)))


class Depots:
    """Depots of a company, found by their names."""

    def __init__(self) -> None:
        names = ("Northern Tide", "Quiet Delta", "Brisk River", "Green Anchor")
        self.depots = {
            f"dep{n}{n + 3}x": {
                "name": name,
                "region": "east" if n == 2 else "west",
                "city": city,
                "capacity": 40.5 * n,
            }
            for n, (name, city) in enumerate(zip(names, ("Graz", "Linz", "Wels", "Enns"), strict=True), 1)
        }

    def list_depots(self, region: str = "", query: str = "") -> dict[str, Any]:
        """Depots of a region, or whose names have a text: the first two, and how many there are."""
        found = [
            {"depot_id": key, **row}
            for key, row in self.depots.items()
            if region in ("", row["region"]) and query.casefold() in row["name"].casefold()
        ]
        return {"items": found[:2], "total": len(found), "page": 1}

    def update_depot(
        self,
        depot_id: str,
        name: str | None = None,
        region: str | None = None,
        city: str | None = None,
        capacity: float | None = None,
    ) -> str:
        """Change a depot."""
        given = {"name": name, "region": region, "city": city, "capacity": capacity}
        self.depots[depot_id] |= {column: value for column, value in given.items() if value is not None}
        return "updated"

    def set_capacity(self, depot_id: str, capacity: float) -> str:
        """Set the capacity of a depot."""
        self.depots[depot_id]["capacity"] = capacity
        return "set"

    def delete_depot(self, depot_id: str) -> str:
        """Delete a depot."""
        del self.depots[depot_id]
        return "deleted"


def found_for(prompt: str, calls: str, verifier: Any, **answer: Any) -> list[tuple[str, dict[str, Any]]]:
    """The calls that are found for a task of the depots, whose end is that of `calls`."""
    source = ObjectTwin(Depots, reads=("list_depots",))
    task = sdk.solve(source, prompt, calls, **answer).model_copy(update={"demonstration": []})
    report = search(source, [task], verifier)
    assert report.found, str(report)
    return made_calls(report.found[task.id].rollout)


def test_an_act_on_a_row_that_was_just_read_is_found_beside_a_tool_with_many_optional_arguments() -> None:
    calls = "list_depots(query='Northern Tide'); delete_depot(depot_id=$1.items[0].depot_id)"
    found = found_for("Delete the depot Northern Tide.", calls, final_state())
    assert [name for name, _ in found] == ["list_depots", "delete_depot"]


def test_a_number_with_commas_is_one_number() -> None:
    calls = "set_capacity(depot_id='dep14x', capacity=1200.5)"
    found = found_for("Set the capacity of depot dep14x to 1,200.50.", calls, final_state())
    assert found == [("set_capacity", {"depot_id": "dep14x", "capacity": 1200.5})]
    assert {101, 102, 101102} <= {one.value for one in PromptValues("Rooms 101,102").numbers}  # may be a list


def test_a_page_of_a_list_tells_how_many_there_are() -> None:
    asked = "How many depots are in the west?"
    found = found_for(asked, "list_depots(region='west')", all_of(final_state(), answer_match()), answer="$.total")
    assert found == [("list_depots", {"region": "west"})]


def test_the_name_of_a_row_is_given_first_for_the_argument_that_is_called_like_the_row() -> None:
    tool = Tool(
        name="get_balance",
        input_schema={"type": "object", "properties": {"customer": {"type": "string"}}, "required": ["customer"]},
    )
    prompt = PromptValues("What is the balance of the customer who has a phone?")
    row = {"customer_since": "2019", "city": "Graz", "name": "Ann Moser", "tier": "gold"}
    best = next(CallCandidates([tool]).first(prompt, values_of("find_customer", row, prompt)))
    assert best.arguments == {"customer": "Ann Moser"}
