"""A simulated inbox as an MCP server, and tasks about what its mails tell.

python examples/inbox/inbox.py serve [--seed 7 | --workbench FOLDER]
python examples/inbox/inbox.py tasks [--workbench FOLDER] --to tasks.jsonl
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import anyio
from mails import NOW, Mail, make_contents

from mcp_bridge import Tool, ToolAnnotations
from sandboxes import Refused, SqlSandbox
from sandboxes.sql import SqlTool

MOST_FOUND = 5
DONT_KNOW = "I don't know"


def search_inbox(database: sqlite3.Connection, query: str) -> list[dict[str, str]]:
    """The newest mails that have all words of the query."""
    words = re.findall(r"\w+", query)
    if not words:
        raise Refused("query has no word; give words of the mail, such as a name")
    phrase = " ".join(f'"{word}"' for word in words)  # each a string of FTS5, none an operator
    found = database.execute(
        "SELECT id, date, mails.sender, mails.subject FROM words JOIN mails ON mails.rowid = words.rowid "
        "WHERE words MATCH ? ORDER BY date DESC LIMIT ?",
        (phrase, MOST_FOUND),
    )
    return [dict(zip(("message_id", "date", "from", "subject"), row, strict=True)) for row in found]


def read_email(database: sqlite3.Connection, message_id: str) -> dict[str, str]:
    """A whole mail."""
    row = database.execute("SELECT id, date, sender, subject, body FROM mails WHERE id = ?", (message_id,)).fetchone()
    if row is None:
        raise Refused(f"There is no mail {message_id!r}; message_id is one that search_inbox found, such as m0017.")
    return dict(zip(("message_id", "date", "from", "subject", "body"), row, strict=True))


def return_final_answer(database: sqlite3.Connection, answer: str, sources: list[str]) -> str:  # noqa: ARG001
    """Ends the conversation where `limits.final_tools` names it."""
    return "noted"


def _tool(run: Any, says: str, **arguments: Mapping[str, Any]) -> SqlTool:
    schema = {
        "type": "object",
        "properties": arguments,
        "required": list(arguments),
        "additionalProperties": False,
    }
    reads = ToolAnnotations(read_only=True)
    return SqlTool(Tool(name=run.__name__, description=says, input_schema=schema, annotations=reads), run)


_TEXT = {"type": "string"}


class Inbox(SqlSandbox):
    """The inbox of a seed. Nothing changes it, and no tool reads the planted facts."""

    name = "inbox"
    schema = """
        CREATE TABLE mails (id TEXT PRIMARY KEY, date TEXT NOT NULL, sender TEXT NOT NULL, subject TEXT NOT NULL,
                            body TEXT NOT NULL);
        CREATE TABLE facts (kind TEXT, who TEXT, value TEXT, PRIMARY KEY (kind, who));
        CREATE VIRTUAL TABLE words USING fts5(sender, subject, body, content='mails');
    """
    # Nothing is written, so that the state of a rollout is the number of mails alone.
    reads: ClassVar[Mapping[str, str]] = {
        "mails": "SELECT 'all' AS key, count(*) AS number FROM mails",
        **dict.fromkeys(
            ("facts", "words", "words_config", "words_data", "words_docsize", "words_idx"), "SELECT 1 AS key LIMIT 0"
        ),
    }
    sql_tools = (
        _tool(search_inbox, f"The {MOST_FOUND} newest e-mails with all words of query.", query=_TEXT),
        _tool(read_email, "Read an e-mail.", message_id=_TEXT),
        _tool(
            return_final_answer,
            f'Give the answer with the message_ids that say it. "{DONT_KNOW}" where no e-mail does.',
            answer=_TEXT,
            sources={"type": "array", "items": _TEXT},
        ),
    )
    page_bytes = 4096

    def populate(self, database: sqlite3.Connection, chance: Random, scenario: str) -> datetime:  # noqa: ARG002
        """See `SqlSandbox.populate`."""
        made = make_contents(chance)
        facts = [(fact.kind.name, fact.who, fact.value) for fact in made.facts]
        database.executemany("INSERT INTO facts VALUES (?, ?, ?)", facts)
        self.fill(database, made.mails)
        return NOW

    @staticmethod
    def fill(database: sqlite3.Connection, mails: Iterable[Mail]) -> None:
        """Put `mails` into the inbox and make them searchable."""
        rows = [(m.id, m.date.isoformat(" ", "minutes"), m.sender, m.subject, m.body) for m in mails]
        database.executemany("INSERT INTO mails VALUES (?, ?, ?, ?, ?)", rows)
        database.execute("INSERT INTO words (words) VALUES ('rebuild')")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="one MCP server over stdio")
    serve.add_argument("--seed", type=int, default=0, help="which inbox")
    make = commands.add_parser("tasks", help="a file of tasks")
    make.add_argument("--to", type=Path, required=True, metavar="FILE")
    for command in (serve, make):
        command.add_argument("--workbench", type=Path, metavar="FOLDER", help="the e-mails of WorkBench's data instead")
    chosen = parser.parse_args()
    import workbench_inbox  # it imports this file
    from questions import make_tasks

    try:
        if chosen.command == "serve":
            made = workbench_inbox.WorkbenchInbox(chosen.workbench) if chosen.workbench else Inbox(chosen.seed)
            anyio.run(made.serve)
            return 0
        tasks = workbench_inbox.make_tasks(chosen.workbench) if chosen.workbench else make_tasks()
    except FileNotFoundError as error:
        parser.error(str(error))
    lines = [json.dumps(task, ensure_ascii=False) + "\n" for task in tasks]
    chosen.to.parent.mkdir(parents=True, exist_ok=True)
    chosen.to.write_text("".join(lines), encoding="utf-8")
    for split in ("train", "heldout"):
        if not (of_split := [task for task in tasks if task["tags"]["split"] == split]):
            continue
        unknown = sum(task["expected"]["answer"] is None for task in of_split)
        print(f"{split}: {len(of_split)} tasks, {unknown} without an answer in the inbox")
    return 0


if __name__ == "__main__":
    sys.exit(main())
