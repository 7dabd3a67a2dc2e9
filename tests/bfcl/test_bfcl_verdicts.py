"""Our verdict beside the package's own, on gold calls, on mutated and on truncated ones."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("bfcl_eval", reason="install it with: pip install --no-deps -r examples/bfcl/requirements.txt")

from dataset import CATEGORIES, Entry, all_entries, entries, parse_call
from package_checker import as_python, package_says
from verifier import first_problem, gold_turns, play

Turns = list[list[dict[str, Any]]]


def we_say(entry: Entry, turns: Turns) -> bool:
    if len(turns) != len(entry.gold):
        return False
    return first_problem(entry.id, list(play(entry.id, turns)), [bool(turn) for turn in turns]) is None


def gold(entry: Entry) -> Turns:
    return copy.deepcopy([list(turn) for turn in entry.gold])


@pytest.mark.parametrize("category", CATEGORIES)
def test_gold_is_right_for_both(category: str) -> None:
    found = [(we_say(entry, gold(entry)), package_says(entry, gold(entry))) for entry in entries(category)]
    assert found == [(True, True)] * 200


@pytest.mark.parametrize("category", CATEGORIES)
def test_truncated_calls_get_the_same_verdict_from_both(category: str) -> None:
    wrong, refused = [], 0
    for number, entry in enumerate(entries(category)):
        chance = random.Random(f"truncated/{entry.id}")
        turns = gold(entry)
        if number % 3 == 0:
            turns = turns[: chance.randrange(len(turns))]  # the run was cut off
        elif number % 3 == 1:
            at = chance.randrange(len(turns))
            turns[at:] = [[] for _ in turns[at:]]  # it gave up
        else:
            at = chance.choice([place for place, turn in enumerate(turns) if turn])
            turns[at] = turns[at][: chance.randrange(len(turns[at]))]
        ours, theirs = we_say(entry, turns), package_says(entry, turns)
        refused += not theirs
        if ours != theirs:
            wrong.append((entry.id, ours, theirs, turns))
    assert wrong == []
    assert 100 < refused <= 200


def _another(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + chance.choice([1, -1, 10])
    if isinstance(value, str):
        return chance.choice([value + "x", value.upper(), value[:-1], "."])
    if isinstance(value, list):
        return chance.choice([value[:-1], value[::-1], value * 2])
    return {**value, "title": "another"}


def _places(turns: Turns) -> list[tuple[int, int]]:
    return [(one, two) for one, turn in enumerate(turns) for two in range(len(turn))]


def _drop(entry: Entry, turns: Turns, chance: random.Random) -> None:
    turn, place = chance.choice(_places(turns))
    del turns[turn][place]


def _repeat(entry: Entry, turns: Turns, chance: random.Random) -> None:
    turn, place = chance.choice(_places(turns))
    turns[turn].insert(chance.randrange(len(turns[turn]) + 1), copy.deepcopy(turns[turn][place]))


def _swap(entry: Entry, turns: Turns, chance: random.Random) -> None:
    turn, _ = chance.choice(_places(turns))
    chance.shuffle(turns[turn])


def _move(entry: Entry, turns: Turns, chance: random.Random) -> None:
    turn, place = chance.choice(_places(turns))
    call = turns[turn].pop(place)
    turns[chance.randrange(len(turns))].append(call)


def _change(entry: Entry, turns: Turns, chance: random.Random) -> None:
    filled = [(one, two) for one, two in _places(turns) if turns[one][two]["arguments"]]
    turn, place = chance.choice(filled or _places(turns))
    arguments = turns[turn][place]["arguments"]
    if arguments:
        name = chance.choice(list(arguments))
        arguments[name] = _another(arguments[name], chance)


def _look_around(entry: Entry, turns: Turns, chance: random.Random) -> None:
    """Another entry's call with the same APIs; often one that changes nothing, or fails."""
    others = [one for one in entries(entry.category) if set(one.apis) <= set(entry.apis)]
    calls = [call for turn in chance.choice(others).gold for call in turn]
    turns[chance.randrange(len(turns))].insert(0, copy.deepcopy(chance.choice(calls)))


MUTATIONS: dict[str, Callable[[Entry, Turns, random.Random], None]] = {
    "drop": _drop,
    "repeat": _repeat,
    "swap": _swap,
    "move": _move,
    "change": _change,
    "look around": _look_around,
}


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("kind", MUTATIONS)
def test_mutated_calls_get_the_same_verdict_from_both(category: str, kind: str) -> None:
    wrong, right = [], 0
    for entry in entries(category):
        chance = random.Random(f"{kind}/{entry.id}")
        turns = gold(entry)
        for _ in range(chance.choice([1, 1, 2])):
            if _places(turns):
                MUTATIONS[kind](entry, turns, chance)
        ours, theirs = we_say(entry, turns), package_says(entry, turns)
        right += theirs
        if ours != theirs:
            wrong.append((entry.id, ours, theirs, turns))
    assert wrong == []
    assert right < 200


@pytest.mark.parametrize("category", CATEGORIES)
def test_first_turns_get_the_same_verdict_from_both(category: str) -> None:
    right = []
    for number, entry in enumerate(entries(category)):
        if not entry.gold[0]:
            continue
        first = replace(entry, gold=entry.gold[:1], gold_texts=entry.gold_texts[:1])
        turns = gold(first)
        if number % 2:
            chance = random.Random(f"first/{entry.id}")
            chance.choice(list(MUTATIONS.values()))(first, turns, chance)
        ours, theirs = we_say(first, turns), package_says(first, turns)
        assert (entry.id, ours) == (entry.id, theirs)
        right.append(ours)
    assert len(right) / 2 <= sum(right) < len(right)


def test_a_result_that_gold_has_twice_must_be_there_twice() -> None:
    entry = all_entries()["multi_turn_base_133"]
    turns = gold(entry)
    names = [call["name"] for call in turns[0]]
    twice = gold_turns(entry.id)[0].results.index(gold_turns(entry.id)[0].results[1])
    assert (twice, names[1]) == (0, "get_watchlist")
    del turns[0][1]
    assert (we_say(entry, turns), package_says(entry, turns)) == (False, False)


def test_gold_that_was_judged_once_is_still_as_it_was() -> None:
    entry = all_entries()["multi_turn_base_90"]  # its API keeps the list that a call gives it, and appends to it
    for _ in range(3):
        assert we_say(entry, gold(entry))
    assert gold_turns(entry.id)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "cd(folder=__import__('os').getcwd())",
        "cd(**{'folder': 'a'})",
        "cd(folder=[x for x in '..'])",
        "cd('a', 'b')",
        "cd; cd('a')",
        "no_such_function()",
        "cd(folder='a'",
    ],
)
def test_a_gold_text_that_is_more_than_a_call_with_literals_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"call|function|malformed|arguments"):
        parse_call(text, ("GorillaFileSystem",))


def test_parsed_gold_means_what_the_text_says() -> None:
    compared = 0
    for entry in entries("base"):
        for texts, calls in zip(entry.gold_texts, entry.gold, strict=True):
            for text, call in zip(texts, calls, strict=True):
                assert parse_call(as_python(call), entry.apis) == parse_call(text, entry.apis) == call
                compared += 1
    assert compared > 1_000
