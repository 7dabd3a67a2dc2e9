"""The benchmark's tasks as tasks of toolbake, split by template and by wording.

- Twelve whole templates are held out (tag `set`: `templates`): two of each system and two of several, by their hash.
- Of each other template at most five tasks are trained on. The tasks in its other wordings are held out (`wordings`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from clone import DIRECTORY, SEVERAL, SYSTEMS, Query, queries
from derive import Derivation
from gold import Replay
from office import NOW, PARTS

import sdk

MOST_TRAINED = 5
HELD_OUT_TEMPLATES = 2
"""Of each system, and of several."""

INSTRUCTIONS = (
    f"Today is {NOW:%A}, {NOW:%Y-%m-%d}, and the time is {NOW:%H:%M:%S}. "
    "Meetings start at 9:00 or later and end by 18:00."
)
"""What the benchmark tells every model, too, in other words."""


def tasks(folder: str | Path, domains: Sequence[str] = (*SYSTEMS, SEVERAL)) -> Iterator[sdk.Task]:
    """The tasks of some domains, template by template. Training tasks have a demonstration where one is found."""
    replay = Replay(folder)
    for domain in domains:
        templates: dict[str, list[Query]] = {}
        for query in queries(folder):
            if query.domain == domain:
                templates.setdefault(query.template, []).append(query)
        held_out = sorted(templates, key=_hash)[:HELD_OUT_TEMPLATES]
        for number, (template, found) in enumerate(templates.items(), start=1):
            sides = {query.text: ("heldout", "templates") for query in found}
            if template not in held_out:
                sides = split(found)
            trained = [query for query in found if sides[query.text][0] == "train"]
            paths = Derivation(folder, scenario_of(trained[0]), trained).paths() if trained else {}
            wordings = list(dict.fromkeys(query.wording for query in found))
            for query in found:
                side, name = sides[query.text]
                yield sdk.Task(
                    id=task_id(domain, query.text),
                    prompt=[
                        sdk.Message(role="system", content=INSTRUCTIONS),
                        sdk.Message(role="user", content=query.text),
                    ],
                    setup={"scenario": scenario_of(query)},
                    expected={"changes": replay.changes(query.gold)},
                    demonstration=paths.get(query.text, []),
                    family=f"{domain}/{number}/{wordings.index(query.wording) + 1}",
                    tags={"split": side, "set": name, "system": domain, "template": f"{domain}/{number}"},
                )


def scenario_of(query: Query) -> str:
    """The task's systems and the directory: what the benchmark calls the tools of its domains."""
    return "+".join(part for part in PARTS if part in query.systems or part == DIRECTORY)


def task_id(domain: str, text: str) -> str:
    """The id of the task with this request."""
    return f"{domain}/{_hash(text)[:8]}"


def split(found: Sequence[Query]) -> dict[str, tuple[str, str]]:
    """Request -> side and set, for the tasks of a template that is not held out."""
    wordings: dict[str, list[Query]] = {}
    for query in sorted(found, key=lambda query: _hash(query.text)):
        wordings.setdefault(query.wording, []).append(query)
    subsets = [some for size in range(1, len(wordings)) for some in combinations(sorted(wordings, key=_hash), size)]
    counts = {some: sum(len(wordings[one]) for one in some) for some in subsets}
    # The wordings with the most tasks that are not more than five; at least one wording stays unseen.
    shown = max((some for some in subsets if counts[some] <= MOST_TRAINED), key=lambda some: counts[some], default=())
    sides = {query.text: ("heldout", "wordings") for query in found}
    return sides | {query.text: ("train", "train") for wording in shown for query in wordings[wording]}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
