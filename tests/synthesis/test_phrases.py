"""Phrases of the user's own, short requests, and kinds of tasks that one answer fits."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from banks import bank

import sdk
from sandboxes.helpdesk import Helpdesk
from sandboxes.objects import ObjectTwin

PHRASES = {
    "transfer": "Move {amount} from account {source} to {target}.",
    "get_account": "the account {account}",
    "find_accounts": "the accounts of {owner}",
}


class Rooms:
    """Rooms that are all free at eight."""

    def __init__(self) -> None:
        names = ("Oak", "Elm", "Maple", "Ash", "Yew", "Fir")
        self.rooms = {name: {"name": name, "seats": 4 + 2 * place} for place, name in enumerate(names)}

    def first_free(self, room: str) -> dict[str, int]:
        """The first free hour of a room."""
        if room not in self.rooms:
            raise ValueError("no such room")
        return {"hour": 8}

    def list_rooms(self) -> list[dict[str, Any]]:
        """All rooms."""
        return list(self.rooms.values())


def rooms() -> ObjectTwin:
    return ObjectTwin(Rooms, reads=("first_free", "list_rooms"))


def test_requests_are_put_in_the_phrases_of_the_user() -> None:
    made = sdk.synthesize(bank(), 12, setups=[{}], phrases=PHRASES)
    deeds = [task for task in made.tasks if task.expected["calls"][-1]["name"] == "transfer"]
    assert deeds
    for task in deeds:
        given, prompt = task.expected["calls"][-1]["arguments"], str(task.prompt)
        assert f"ove {given['amount']} from " in prompt
        if task.tags["tier"] == "1":
            assert f"ove {given['amount']} from account {given['source']} to {given['target']}" in prompt
        # What is only described does not repeat the noun of the phrase.
        assert "account the account" not in prompt
    assert any("of the account A-" in str(task.prompt) for task in made.tasks), made.tasks


def test_without_phrases_the_templates_word_the_same_tasks() -> None:
    with_them = sdk.synthesize(bank(), 8, setups=[{}], max_calls=1, phrases=PHRASES).tasks
    without = sdk.synthesize(bank(), 8, setups=[{}], max_calls=1).tasks
    assert [task.expected for task in with_them] == [task.expected for task in without]
    assert {task.prompt for task in with_them} != {task.prompt for task in without}


@pytest.mark.parametrize(
    ("phrases", "message"),
    [
        ({"transfr": "Move {amount}"}, "there is no tool 'transfr'; the tools are get_account, "),
        ({"transfer": "Move {amont}"}, r"has \{amont\}, which is none of its arguments: source, target, amount"),
        ({"transfer": "Move {amount"}, "cannot be read .*write for example"),
        ({"transfer": " "}, 'write for example "Transfer ... {source}"'),
        ({"get_account": "Show {account}"}, 'only reads, so its phrase names what it returns.*"the get account"'),
    ],
)
def test_phrases_that_cannot_be_used_are_refused(phrases: dict[str, str], message: str) -> None:
    with pytest.raises(sdk.ConfigError, match=message):
        sdk.synthesize(bank(), 2, setups=[{}], phrases=phrases)


def test_by_default_a_task_takes_two_calls_at_most_and_one_of_its_values_is_only_described() -> None:
    made = sdk.synthesize(Helpdesk(), 16)
    assert {task.tags["tier"] for task in made.tasks} == {"1", "2"}
    for task in made.tasks:
        last = task.expected["calls"][-1]["arguments"]
        found = [value for value in last.values() if str(value) not in str(task.prompt)]
        assert len(found) <= 1, task.prompt


def test_a_kind_of_tasks_that_one_answer_fits_is_named() -> None:
    made = sdk.synthesize(rooms(), 40, setups=[{}], max_calls=1)
    asked = [task for task in made.tasks if task.expected["calls"][-1]["name"] == "first_free"]
    eights = sum(task.expected["answer"] == 8 for task in asked)
    assert len(asked) >= 4
    assert f"guessable: {eights} of {len(asked)} tasks that ask first_free for the hour have the answer '8'" in str(
        made
    )
    assert "ask list_rooms" not in str(made)


class Desk:
    """Books rooms, with one code for all of them."""

    def __init__(self) -> None:
        self.rooms = {f"R-{number}": {"size": number} for number in range(101, 113)}

    def get_room(self, room: str) -> dict[str, int]:
        """Read a room."""
        return self.rooms[room]

    def close_room(self, room: str) -> str:
        """Close a room."""
        del self.rooms[room]
        return "closed"

    def book_room(self, room: str) -> dict[str, str]:
        """Book a room."""
        self.rooms[room]["booked"] = 1
        return {"code": "A74"}


def test_an_answer_that_fits_each_change_of_a_kind_is_named_where_one_is_asked_for() -> None:
    made = sdk.synthesize(ObjectTwin(Desk, reads=("get_room",)), 60, setups=[{}], max_calls=1)
    booked = [task for task in made.tasks if task.expected["calls"][-1]["name"] == "book_room"]
    assert len(booked) >= 4
    said = f"guessable: {len(booked)} of {len(booked)} tasks that ask book_room for the code have the answer 'A74'"
    assert [line for line in str(made).splitlines() if "guessable" in line] == [
        f"  {said}; give worlds in which it differs, or drop some of them"
    ]
    assert any(task.expected["answer"] == "done" for task in made.tasks)


def test_answers_that_differ_are_not_called_guessable() -> None:
    made = sdk.synthesize(bank(), 12, setups=[{}])
    assert made.tasks
    assert "guessable" not in str(made)


class Gate:
    """Cars, and how long each has stood."""

    def __init__(self) -> None:
        self.cars = {f"K-{number}": {"hours": number % 9} for number in range(101, 120)}

    def let_out(self, plate: str) -> int:
        """Let a car leave; returns its hours."""
        return int(self.cars.pop(plate)["hours"])


class Calendar:
    """Tools named after what they act on: the argument of that name is the thing, and no value for it."""

    def __init__(self) -> None:
        self.rooms = {name: {"floor": place + 2} for place, name in enumerate(("Ash", "Elm", "Oak"))}
        self.bookings = {
            f"B-{10 + place}": {"room": room, "day": day, "person": person}
            for place, (room, day, person) in enumerate(
                [("Ash", "Monday", "Ann"), ("Elm", "Friday", "Ben"), ("Oak", "Tuesday", "Cleo")]
            )
        }

    def get_booking(self, booking: str) -> dict[str, str]:
        """A booking."""
        return self.bookings[booking]

    def move_booking(self, booking: str, day: Literal["Monday", "Tuesday", "Friday"]) -> str:
        """Move a booking to another day."""
        self.bookings[booking]["day"] = day
        return "moved"

    def book_room(self, room: str, day: Literal["Monday", "Tuesday", "Friday"], person: str) -> str:
        """Book a room."""
        if room not in self.rooms:
            raise ValueError("no such room")
        key = f"B-{10 + len(self.bookings)}"
        self.bookings[key] = {"room": room, "day": day, "person": person}
        return key


def test_a_request_names_what_is_acted_on_as_that() -> None:
    made = sdk.synthesize(ObjectTwin(Calendar, reads=("get_booking",)), 30, setups=[{}])
    deeds = [(str(task.prompt), task.expected["calls"][-1]) for task in made.tasks if task.tags["end"] == "change"]
    moved = [(prompt, call["arguments"]) for prompt, call in deeds if call["name"] == "move_booking"]
    booked = [(prompt, call["arguments"]) for prompt, call in deeds if call["name"] == "book_room"]
    assert moved
    assert booked
    for prompt, given in moved:
        assert f"ove booking {given['booking']}: set the day to" in prompt or "ove the booking " in prompt
        assert "of the booking with the day" not in prompt
    for prompt, given in booked:
        assert f"ook room {given['room']} with" in prompt or "ook the room of " in prompt
        assert "new" not in prompt


def test_of_a_description_only_what_comes_before_a_semicolon_is_asked_for() -> None:
    prompts = [str(task.prompt) for task in sdk.synthesize(ObjectTwin(Gate), 3, setups=[{}]).tasks]
    assert prompts
    for prompt in prompts:
        assert "et a car leave, where the plate is K-" in prompt
        assert "returns" not in prompt


class Undescribed(Gate):
    def let_out(self, plate: str) -> int:
        """PUT /cars/{plate}/exit"""
        return super().let_out(plate)


def test_an_operation_without_a_summary_is_asked_for_by_its_name() -> None:
    prompts = [str(task.prompt) for task in sdk.synthesize(ObjectTwin(Undescribed), 3, setups=[{}]).tasks]
    assert prompts
    for prompt in prompts:
        assert "use let out, where the plate is K-" in prompt


def test_phrases_belong_to_what_a_file_was_made_with(tmp_path: Any) -> None:
    path = tmp_path / "tasks.jsonl"
    sdk.synthesize(bank(), 2, setups=[{}], to=path, max_calls=1)
    with pytest.raises(sdk.ConfigError, match=r"begun with other options: .*phrases"):
        sdk.synthesize(bank(), 2, setups=[{}], to=path, max_calls=1, phrases=PHRASES)


class Schools:
    """Schools and who is in them."""

    def __init__(self) -> None:
        self.schools = {f"S-{number}": {"children": 20 + 3 * number, "people": 90 + number} for number in range(6)}

    def get_school(self, school: str) -> dict[str, int]:
        """A school."""
        if school not in self.schools:
            raise ValueError("no such school")
        return self.schools[school]


def test_what_is_many_without_an_s_is_asked_for_as_many() -> None:
    made = sdk.synthesize(ObjectTwin(Schools, reads=("get_school",)), 12, setups=[{}], max_calls=1)
    about_people = [str(task.prompt) for task in made.tasks if "people" in str(task.prompt)]
    assert about_people
    assert not any("is the people" in prompt or "is people" in prompt for prompt in about_people)


class Hives:
    """Beekeepers, and the hives that they keep."""

    def __init__(self) -> None:
        self.keepers = {f"K-{number}": {"town": town} for number, town in ((31, "Bern"), (52, "Genf"), (73, "Chur"))}
        self.hives = {
            f"H{place}": {"keeper_id": keeper, "strong": place % 2 == 0}
            for place, keeper in enumerate(("K-31", "K-52", "K-52", "K-73", "K-73", "K-73"))
        }

    def count_hives(self, keeper_id: str) -> int:
        """How many hives a keeper has."""
        return sum(hive["keeper_id"] == self._known(keeper_id) for hive in self.hives.values())

    def count_colonies(self, keeper_id: str, strong: bool) -> int:
        """How many colonies of a keeper are strong, or weak."""
        return sum(hive["strong"] == strong for hive in self.hives.values() if hive["keeper_id"] == keeper_id)

    def count_keepers(self) -> int:
        """How many keepers there are."""
        return len(self.keepers)

    def _known(self, keeper_id: str) -> str:
        if keeper_id not in self.keepers:
            raise ValueError(f"no keeper {keeper_id!r}")
        return keeper_id


def test_of_a_tool_that_counts_it_is_asked_how_many_things_there_are() -> None:
    made = sdk.synthesize(ObjectTwin(Hives), 12, setups=[{}], max_calls=1)
    asked = {task.tags["tools"]: task for task in made.tasks}
    assert set(asked) == {"count_hives", "count_colonies", "count_keepers"}, str(made)
    for task in made.tasks:
        assert f"number of {task.tags['tools'].removeprefix('count_')}" in str(task.prompt)
        assert '"' not in str(task.prompt)
        assert " are " not in f"{task.prompt} {task.demonstration[-1].content}"
    keeper = asked["count_hives"].expected["calls"][0]["arguments"]["keeper_id"]
    assert f"the number of hives of keeper {keeper}" in str(asked["count_hives"].prompt)
    assert "the number of keepers" in str(asked["count_keepers"].prompt)
    assert asked["count_keepers"].demonstration[-1].content == "The number of keepers is 3."


def test_a_phrase_that_says_already_that_it_is_a_number_is_taken_as_it_is() -> None:
    phrases = {"count_hives": "the number of hives that {keeper_id} keeps"}
    made = sdk.synthesize(ObjectTwin(Hives), 12, setups=[{}], max_calls=1, phrases=phrases)
    prompts = [str(task.prompt) for task in made.tasks if task.tags["tools"] == "count_hives"]
    assert prompts
    assert all(prompt.count("number of hives") == prompt.count(" keeps") == 1 for prompt in prompts)
