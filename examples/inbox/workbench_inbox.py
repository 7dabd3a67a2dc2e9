"""The 500 e-mails of WorkBench as another inbox, with questions that only these e-mails answer.

They are in `emails.csv` of WorkBench's data (MIT licence, https://github.com/olly-styles/WorkBench). Colleagues write
about their tasks: what holds one up, what one will improve. Nothing is planted, so that the words of the e-mails, the
kinds of facts and the questions are none of those that training has.
"""

from __future__ import annotations

import csv
import re
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from inbox import Inbox
from mails import Mail
from questions import UNKNOWN

NUMBER = 60
"""Of tasks."""
_NOW = datetime(2023, 11, 30, 17)
_About = tuple["WorkKind", str, str, str | None]
"""A kind, a sender, the title of a task, and the value where it is told."""


@dataclass(frozen=True)
class WorkKind:
    """What can be asked about somebody's task. `pattern` finds the task's title and the value in an e-mail."""

    name: str
    pattern: re.Pattern[str]
    questions: tuple[str, ...]


KINDS = (
    WorkKind(
        "snag", re.compile(r"Regarding task '(.+?)', .*? hit a snag with (.+?)\."),
        ("With what did {who} hit a snag in '{title}'?", "What holds {who} up in '{title}'?",
         "{who} is stuck with '{title}': because of what?", "Which problem has {who} with '{title}'?"),
    ),
    WorkKind(
        "improvement", re.compile(r"assigned '(.+?)'\. .*? improve our (.+?)\."),
        ("What will '{title}' improve, says {who}?", "What does {who} expect to improve by '{title}'?",
         "{who} works on '{title}': what gets better?", "For what is '{title}' good, according to {who}?"),
    ),
)  # fmt: skip


def load_mails(folder: str | Path) -> list[Mail]:
    """The e-mails, oldest first. `folder`: a clone of WorkBench, or its data alone.

    Raises `FileNotFoundError` where it has no `emails.csv`.
    """
    places = [Path(folder, place, "emails.csv") for place in ("", "data/processed")]
    if (path := next((place for place in places if place.is_file()), None)) is None:
        raise FileNotFoundError(f"there is neither {' nor '.join(map(str, places))}; give the folder of WorkBench")
    with path.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["sent_datetime"])
    return [
        Mail(
            row["email_id"],
            datetime.fromisoformat(row["sent_datetime"]),
            row["sender/recipient"],
            row["subject"],
            row["body"].replace("\\n", "\n"),
        )
        for row in rows
    ]


class WorkbenchInbox(Inbox):
    """The inbox of WorkBench, the same for every seed."""

    def __init__(self, folder: str | Path) -> None:
        self._mails = load_mails(folder)
        super().__init__()

    def populate(self, database: sqlite3.Connection, chance: Random, scenario: str) -> datetime:  # noqa: ARG002
        """See `SqlSandbox.populate`."""
        self.fill(database, self._mails)
        return _NOW


def make_tasks(folder: str | Path) -> list[dict[str, Any]]:
    """Held-out tasks, one in six without an answer. What somebody wrote last about a task is right."""
    chance, mails = Random("workbench"), load_mails(folder)
    prefix = "Task Update on "
    written = {(mail.sender, mail.subject.removeprefix(prefix)) for mail in mails if mail.subject.startswith(prefix)}
    known: list[_About] = []
    unknown: list[_About] = []
    for kind in KINDS:
        told = {
            (mail.sender, found[1]): found[2] for mail in mails if (found := kind.pattern.search(mail.body)) is not None
        }
        known += [(kind, *about, value) for about, value in told.items()]
        titles = {title for _, title in told}
        unknown += [(kind, *about, None) for about in sorted(written - set(told)) if about[1] in titles]
    few = NUMBER // UNKNOWN
    chosen = [*_sample(known, NUMBER - few, chance), *_sample(unknown, few, chance)]
    return [_task(kind, sender, title, value, chance) for kind, sender, title, value in chosen]


def _sample(some: list[_About], number: int, chance: Random) -> list[_About]:
    return chance.sample(some, min(number, len(some)))


def _task(kind: WorkKind, sender: str, title: str, value: str | None, chance: Random) -> dict[str, Any]:
    who = sender.partition("@")[0].replace(".", " ").title()
    wording = chance.choice(kind.questions)
    return {
        "id": f"workbench/{kind.name}/{who}/{title}",
        "prompt": wording.format(who=who, title=title),
        "expected": {"answer": value},
        "family": f"{kind.name}: {wording}",
        "tags": {"split": "heldout", "kind": kind.name, "in_inbox": "no" if value is None else "yes"},
    }
