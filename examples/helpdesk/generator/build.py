"""From intents to tasks: every gold solution is played in the world it belongs to."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sandboxes.helpdesk import Helpdesk

from . import more_calls, one_call_acts, one_call_lookups, one_call_reads, three_calls, two_calls
from .intents import Answer, GoldRun, Intent, Slots

INTENTS = (
    *one_call_reads.INTENTS,
    *one_call_lookups.INTENTS,
    *one_call_acts.INTENTS,
    *two_calls.INTENTS,
    *three_calls.INTENTS,
    *more_calls.INTENTS,
)

WORLDS = {"train": ("default", range(1, 49)), "heldout": ("second_branch", range(1001, 1033))}
"""Scenario and seeds on each side of the split. The seed 0, which ordinary clients get, is on neither."""

_TASKS_PER_INTENT = {
    "train": {1: 24, 2: 24, 3: 12, 4: 12, 5: 12},
    "heldout": {1: 12, 2: 12, 3: 6, 4: 6, 5: 6},
}
_PAIR_TASKS = 6
_MOST_EQUAL = 0.35  # of an intent's tasks may have one answer, so that no constant does well
_WORLDS_TRIED = 200

_LOOKED_UP = ("query", "product", "topic")
"""Arguments that the tools look up whatever their case and the spaces around them: a call that finds what was asked for
is right, and counting it as wrong would teach a policy to leave the tool alone. An address is kept without the spaces
around it; the other arguments are taken as they are."""

Task = dict[str, Any]


def build_tasks() -> list[Task]:
    """All tasks, always the same: by tier, then intent, training first."""
    tasks: list[Task] = []
    worlds = _Worlds()
    for intent in sorted(INTENTS, key=lambda intent: intent.tier):
        for split in ("train", "heldout"):
            if intent.phrasings(split):
                tasks += _tasks_of(intent, split, worlds)
    worlds.close()
    return tasks


class _Worlds:
    """Where the requests are made up. Each of a hundred beginnings is read once, of three thousand times."""

    def __init__(self) -> None:
        self._desk = Helpdesk()
        self._beginnings: dict[tuple[int, str], dict[str, Any]] = {}

    def open(self, setup: dict[str, Any]) -> Helpdesk:
        return self._desk.prepare(setup)

    def beginning(self, setup: dict[str, Any]) -> dict[str, Any]:
        """The state in which a world of that setup begins. Not to be changed."""
        name = (setup["seed"], setup["scenario"])
        if name not in self._beginnings:
            world = self.open(setup)
            self._beginnings[name] = world.state()
            world.close()
        return self._beginnings[name]

    def close(self) -> None:
        self._desk.close()


def _tasks_of(intent: Intent, split: str, worlds: _Worlds) -> list[Task]:
    count = _PAIR_TASKS if intent.facet == "pair" else _TASKS_PER_INTENT[split][intent.tier]
    most_equal = int(count * _MOST_EQUAL)
    answers: Counter[tuple[tuple[str, ...], ...]] = Counter()
    asked: set[tuple[int, str]] = set()
    tasks: list[Task] = []
    for setup, slots in _candidates(intent, split, worlds):
        wordings = intent.phrasings(split)
        number = len(tasks) % len(wordings)
        prompt = wordings[number].format(**slots)
        if (setup["seed"], prompt) in asked:
            continue
        task, answer = _solve(intent, split, worlds, setup, slots)
        if answers[answer.parts] == most_equal:
            continue
        answers[answer.parts] += 1
        asked.add((setup["seed"], prompt))
        wording = number + (len(intent.phrasings("train")) if split == "heldout" else 0)
        name = f"{intent.name}-{split}-{len(tasks)}"
        tasks.append({"id": name, "prompt": prompt, "setup": setup, **task, "family": f"{intent.name}/{wording}"})
        if len(tasks) == count:
            return tasks
    raise ValueError(f"only {len(tasks)} of {count} tasks for {intent.name} ({split}); widen what it picks")


def _candidates(intent: Intent, split: str, worlds: _Worlds) -> Iterator[tuple[dict[str, Any], Slots]]:
    """One request from each of many worlds in turn."""
    chance = random.Random(f"{intent.name}/{split}")
    scenario, seeds = WORLDS[split]
    for _ in range(_WORLDS_TRIED):
        setup = {"seed": chance.choice(seeds), "scenario": scenario}
        found = [slots for slots in intent.pick(worlds.beginning(setup), chance) if intent.asks(split, slots)]
        if found:
            yield setup, chance.choice(found)


def _solve(intent: Intent, split: str, worlds: _Worlds, setup: dict[str, Any], slots: Slots) -> tuple[Task, Answer]:
    world = worlds.open(setup)
    run = GoldRun(world)
    answer = intent.solve(run, slots)
    changes = world.diff(worlds.beginning(setup), world.state())
    world.close()
    if len(run.calls) != intent.tier:
        raise ValueError(f"{intent.name} took {len(run.calls)} calls; its tier says {intent.tier}")
    task = {
        "expected": {
            **answer.expected(),
            "calls": [{"name": call["name"], "arguments": _asked(call["arguments"])} for call in run.granted],
            "changes": changes,
        },
        "demonstration": _demonstration(run, answer),
        "tags": {
            "tier": str(intent.tier),
            "intent": intent.name,
            "split": split,
            "combination": f"{intent.name} x {slots[intent.facet]}",
        },
    }
    return task, answer


def _asked(arguments: dict[str, Any]) -> dict[str, Any]:
    """What a right call must give, as `calls_match` of `sdk.verifiers` reads it."""
    return {name: _pattern(name, value) for name, value in arguments.items()}


def _pattern(name: str, value: Any) -> Any:
    if name in _LOOKED_UP:
        return {"$text": value}
    if name == "address":
        plain = re.escape(value).replace("\\ ", " ")
        return {"$pattern": rf"\s*{plain}\s*"}
    return value


def _demonstration(run: GoldRun, answer: Answer) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [{"id": f"call_{number}", **call}]}
        for number, call in enumerate(run.calls, start=1)
    ]
    return [*messages, {"role": "assistant", "content": answer.sentence}]
