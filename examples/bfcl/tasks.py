"""The entries of BFCL's multi-turn sets as tasks.

    python examples/bfcl/tasks.py base miss_func > tasks.jsonl
    python examples/bfcl/tasks.py --train-on base --first-turn > first-turns.jsonl

Tasks of one number in the four sets tell the same story, so they are one family: never on both sides of a split.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Sequence

from dataset import CATEGORIES, Entry, entries
from worlds import tool_schemas

import sdk

MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
"""What the user says in the data set when functions that were held out are shown."""

_SEED_OF_THE_HALVES = 42


def tasks(categories: Sequence[str] = ("base",), *, first_turn: bool = False) -> list[sdk.Task]:
    """All tasks of some categories, with a demonstration that plays the gold calls. The tag `split` halves the 200
    numbers by chance with seed 42: `train` and `heldout`.

    With `first_turn` a task ends with the answer to the first turn. Those whose first turn asks for no call are left
    out: there is nothing to judge.
    """
    numbers = sorted({_number(entry) for entry in entries("base")}, key=int)
    random.Random(_SEED_OF_THE_HALVES).shuffle(numbers)
    train = set(numbers[: len(numbers) // 2])
    return [
        _task(entry, "train" if _number(entry) in train else "heldout", 1 if first_turn else len(entry.questions))
        for category in categories
        for entry in entries(category)
        if entry.gold[0] or not first_turn
    ]


def _task(entry: Entry, split: str, turns: int) -> sdk.Task:
    says = [_says(entry, turn) for turn in range(turns)]
    return sdk.Task(
        id=entry.id,
        prompt=says[0],
        later_turns=says[1:],
        setup={"scenario": entry.id},
        expected={"turns": [list(turn) for turn in entry.gold[:turns]]},
        demonstration=list(_demonstration(entry, turns)),
        tags={"category": entry.category, "turns": str(len(says)), "split": split},
        family=_number(entry),
    )


def _number(entry: Entry) -> str:
    return entry.id.rsplit("_", 1)[1]


def _says(entry: Entry, turn: int) -> str:
    """The user's words. New functions come with them, as the package gives them to models without a tool list."""
    if turn not in entry.held_out:
        return entry.questions[turn]
    schemas = tool_schemas()
    shown = json.dumps([schemas[name].as_openai() for name in entry.held_out[turn]], ensure_ascii=False)
    return f"{shown}\n{MORE_FUNCTIONS}"


def _demonstration(entry: Entry, turns: int) -> Iterable[sdk.Message]:
    # One call a message: the calls of a turn rest on each other.
    for turn, calls in enumerate(entry.gold[:turns]):
        for place, call in enumerate(calls):
            made = sdk.ToolCall(id=f"gold_{turn}_{place}", **call)
            yield sdk.Message(role="assistant", tool_calls=[made])
        yield sdk.Message(role="assistant", content="Done." if calls else "I cannot do that with what I have.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", nargs="*", metavar="CATEGORY", help=f"of {', '.join(CATEGORIES)}; default: all")
    parser.add_argument("--first-turn", action="store_true", help="end each task with the answer to its first turn")
    parser.add_argument("--train-on", choices=CATEGORIES, help="leave out the training tasks of the other categories")
    options = parser.parse_args()
    if unknown := [name for name in options.categories if name not in CATEGORIES]:
        parser.error(f"there is no category {unknown[0]!r}; choose from {', '.join(CATEGORIES)}")
    for task in tasks(options.categories or CATEGORIES, first_turn=options.first_turn):
        if options.train_on and task.tags["split"] == "train" and task.tags["category"] != options.train_on:
            continue
        print(task.model_dump_json())


if __name__ == "__main__":
    main()
