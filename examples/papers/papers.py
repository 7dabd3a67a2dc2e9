"""A library of papers as an MCP server, and tasks about it.

FOLDER is PubMedQA's `data`. The default is the value of PUBMEDQA; where that is not set either, a small set is made.

python examples/papers/papers.py serve [FOLDER]
python examples/papers/papers.py tasks [FOLDER] --to tasks.jsonl [--by-heart]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import anyio
from library import load_papers

from mcp_bridge import Tool, ToolAnnotations
from sandboxes import Refused, SqlSandbox
from sandboxes.sql import SqlTool

MOST_FOUND = 6
BY_HEART = "by_heart"
"""The scenario without a library: what does the model know by itself?"""


def search(database: sqlite3.Connection, query: str) -> list[dict[str, Any]]:
    """The papers with all words of the query, those that fit best first."""
    words = re.findall(r"\w+", query)
    if not words:
        raise Refused("query has no word; give words of the paper, such as a topic")
    phrase = " ".join(f'"{word}"' for word in words)  # each a string of FTS5, none an operator
    found = database.execute(
        "SELECT papers.id, papers.year, papers.question FROM words JOIN papers ON papers.rowid = words.rowid "
        "WHERE words MATCH ? ORDER BY bm25(words), papers.id LIMIT ?",
        (phrase, MOST_FOUND),
    )
    return [dict(zip(("paper_id", "year", "asks"), row, strict=True)) for row in found]


def open_paper(database: sqlite3.Connection, paper_id: str) -> dict[str, Any]:
    """A whole paper."""
    row = database.execute("SELECT id, year, topics, abstract FROM papers WHERE id = ?", (paper_id,)).fetchone()
    if row is None:
        raise Refused(f"There is no paper {paper_id!r}; paper_id is one that search found.")
    return dict(zip(("paper_id", "year", "topics", "abstract"), row, strict=True))


def cite(database: sqlite3.Connection, paper_id: str) -> str:
    """Note a paper as a source of the answer."""
    if database.execute("SELECT 1 FROM papers WHERE id = ?", (paper_id,)).fetchone() is None:
        raise Refused(f"There is no paper {paper_id!r}; paper_id is one that search found.")
    database.execute("INSERT OR IGNORE INTO citations VALUES (?)", (paper_id,))
    return "cited"


def finish(database: sqlite3.Connection, answer: str) -> str:  # noqa: ARG001
    """Ends the conversation where `limits.final_tools` names it."""
    return "noted"


_TEXT = {"type": "string"}


def _tool(run: Any, name: str, says: str, *, reads: bool = True, **arguments: Mapping[str, Any]) -> SqlTool:
    schema = {"type": "object", "properties": arguments, "required": list(arguments), "additionalProperties": False}
    annotations = ToolAnnotations(read_only=reads, destructive=False)
    return SqlTool(Tool(name=name, description=says, input_schema=schema, annotations=annotations), run)


class Papers(SqlSandbox):
    """The library. Only the citations change."""

    name = "papers"
    scenarios = ("default", BY_HEART)
    schema = """
        CREATE TABLE papers (id TEXT PRIMARY KEY, year INTEGER, question TEXT NOT NULL, topics TEXT NOT NULL,
                             abstract TEXT NOT NULL);
        CREATE TABLE citations (id TEXT PRIMARY KEY);
        CREATE VIRTUAL TABLE words USING fts5(year, question, topics, abstract, content='papers');
    """
    reads: ClassVar[Mapping[str, str]] = {
        "papers": "SELECT 'all' AS key, count(*) AS number FROM papers",
        "citations": "SELECT id AS key FROM citations",
        **dict.fromkeys(
            ("words", "words_config", "words_data", "words_docsize", "words_idx"), "SELECT 1 AS key LIMIT 0"
        ),
    }
    sql_tools = (
        _tool(search, "search", f"At most {MOST_FOUND} papers with all words of query: topics, a year.", query=_TEXT),
        _tool(open_paper, "open", "Read a paper.", paper_id=_TEXT),
        _tool(cite, "cite", "Note a paper as a source.", reads=False, paper_id=_TEXT),
        _tool(finish, "finish", 'Give the answer: "yes", "no" or "maybe", or "done" when papers are asked for.',
              answer=_TEXT),
    )  # fmt: skip
    page_bytes = 4096

    def __init__(self, folder: str | Path | None = None, seed: int = 0, scenario: str = "default") -> None:
        self._folder = "" if folder is None else str(folder)
        super().__init__(seed, scenario)

    @property
    def tools(self) -> Sequence[Tool]:
        """All, or `finish` alone where there are no papers."""
        if hasattr(self, "database") and not self.database.execute("SELECT count(*) FROM papers").fetchone()[0]:
            return [tool for tool in self._tools if tool.name == "finish"]
        return self._tools

    def populate(self, database: sqlite3.Connection, chance: Random, scenario: str) -> datetime:  # noqa: ARG002
        """See `SqlSandbox.populate`."""
        papers = [] if scenario == BY_HEART else load_papers(self._folder or None)
        rows = [(p.id, p.year, p.question, "; ".join(p.topics), p.abstract) for p in papers]
        database.executemany("INSERT INTO papers VALUES (?, ?, ?, ?, ?)", rows)
        database.execute("INSERT INTO words (words) VALUES ('rebuild')")
        return datetime(2020, 1, 1, tzinfo=UTC)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, says in (("serve", "one MCP server over stdio"), ("tasks", "a file of tasks")):
        command = commands.add_parser(name, help=says)
        # `tasks` and the server that mcp.json starts must have the same papers.
        command.add_argument("folder", nargs="?", metavar="FOLDER", default=os.environ.get("PUBMEDQA", ""),
                             help="with PubMedQA's ori_pqal.json; the default is the value of PUBMEDQA")  # fmt: skip
        if name == "tasks":
            command.add_argument("--to", type=Path, required=True, metavar="FILE")
            command.add_argument("--by-heart", action="store_true", help="the questions alone, without any papers")
    chosen = parser.parse_args()
    try:
        papers = load_papers(chosen.folder or None)
    except (OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")
    if chosen.command == "serve":
        anyio.run(Papers(chosen.folder or None).serve)
        return 0
    from paper_tasks import make_tasks

    print(f"{len(papers)} papers: {chosen.folder or 'made from a seed; set PUBMEDQA for the real ones'}")
    tasks = make_tasks(chosen.folder or None, by_heart=chosen.by_heart)
    chosen.to.parent.mkdir(parents=True, exist_ok=True)
    chosen.to.write_text("".join(json.dumps(task, ensure_ascii=False) + "\n" for task in tasks), encoding="utf-8")
    for split in ("train", "heldout"):
        of_split = [task for task in tasks if task["tags"]["split"] == split]
        sets = sum(task["tags"]["kind"] == "set" for task in of_split)
        print(f"{split}: {len(of_split)} tasks, {sets} of them ask for a set of papers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
