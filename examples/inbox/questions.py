"""Tasks about an inbox, from the facts that were planted in it, with demonstrations for the training tasks."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from inbox import DONT_KNOW, Inbox
from mails import KINDS, Kind

TRAINING_INBOXES, HELD_OUT_INBOXES = range(8), range(100, 104)
TASKS_PER_INBOX = {"train": 36, "heldout": 30}
UNKNOWN = 6
"""One task in so many has no answer in the inbox."""
SHOWN = 2
"""So many of the training wordings of a kind have demonstrations. The others have the question and its answer alone, as
most questions that people keep."""

Call = tuple[str, dict[str, Any]]


def make_tasks() -> list[dict[str, Any]]:
    """Training and held-out tasks. Held-out tasks ask in other words, about inboxes and two kinds of facts that no
    training task has."""
    tasks = []
    for split, inboxes in (("train", TRAINING_INBOXES), ("heldout", HELD_OUT_INBOXES)):
        for seed in inboxes:
            tasks += _of_inbox(seed, split, TASKS_PER_INBOX[split])
    return tasks


def _of_inbox(seed: int, split: str, number: int) -> list[dict[str, Any]]:
    chance, inbox = Random(f"questions {seed}"), Inbox(seed)
    kinds = {kind.name: kind for kind in KINDS if split == "heldout" or not kind.is_held_out}
    facts = [fact for fact in inbox.database.execute("SELECT kind, who, value FROM facts") if fact[0] in kinds]
    chance.shuffle(facts)
    told = [fact for fact in facts if fact[2] is not None]
    unknown = [fact for fact in facts if fact[2] is None]
    few = number // UNKNOWN
    chosen = [*told[: number - few], *unknown[:few]]
    return [_task(inbox, seed, split, kinds[kind], who, value, chance) for kind, who, value in chosen]


def _task(
    inbox: Inbox, seed: int, split: str, kind: Kind, who: str, value: str | None, chance: Random
) -> dict[str, Any]:
    wordings = kind.questions if split == "train" else kind.new_questions
    wording = chance.choice(wordings)
    task: dict[str, Any] = {
        "id": f"{seed}/{kind.name}/{who}",
        "prompt": wording.format(who=who),
        "setup": {"seed": seed},
        "expected": {"answer": value},
        "family": f"{kind.name}: {wording}",
        "tags": {"split": split, "kind": kind.name, "in_inbox": "no" if value is None else "yes"},
    }
    if wording in kind.questions[:SHOWN] and (calls := solve(inbox, kind, who, value)):
        task["demonstration"] = [
            {"role": "assistant", "tool_calls": [{"id": f"c{place}", "name": name, "arguments": arguments}]}
            for place, (name, arguments) in enumerate(calls)
        ]
    return task


def solve(inbox: Inbox, kind: Kind, who: str, value: str | None) -> list[Call]:
    """Search for the name and a word of the kind, then another word; read the newest mails whose subject fits, at most
    two; answer.

    Empty where no mail that tells the value is found in this way.
    """
    subjects = {subject.format(who=who) for subject in kind.subjects}
    calls: list[Call] = []
    for word in kind.words:
        calls.append(("search_inbox", {"query": f"{who} {word}"}))
        found = json.loads(inbox.call_now(*calls[-1]).text)
        fitting = [hit for hit in found if hit["subject"].removeprefix("Re: ").removeprefix("Fwd: ") in subjects]
        for hit in fitting[:2]:
            calls.append(("read_email", {"message_id": hit["message_id"]}))
            if value is not None and value in inbox.call_now(*calls[-1]).text:
                return [*calls, ("return_final_answer", {"answer": value, "sources": [hit["message_id"]]})]
    unknown: Call = ("return_final_answer", {"answer": DONT_KNOW, "sources": []})
    return [*calls, unknown] if value is None else []
