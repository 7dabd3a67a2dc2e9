"""The real service as worlds: each rollout gets a process of its own, over a database of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import mcp_bridge
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.world import Setup
from sandboxes.api import ApiTwin

HERE = Path(__file__).parent
DOCUMENT = HERE / "openapi.json"
PYTHON = os.environ.get("SERVICE_PYTHON", sys.executable)
"""The Python of the service, which needs FastAPI: `python -m pip install -r examples/enterprise/requirements.txt`."""


class Desk:
    """One process of the service, as one rollout sees it."""

    def __init__(self, toolset: mcp_bridge.Toolset, database: Path) -> None:
        self.tools = toolset.tools
        self._toolset = toolset
        self._database = database

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        return await self._toolset.call(name, arguments, call_id=call_id, timeout_s=timeout_s)

    async def state(self) -> dict[str, Any]:
        """The tables, in the form of a twin's state."""
        with closing(sqlite3.connect(self._database)) as db:
            db.row_factory = sqlite3.Row
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {
                table: {str(row["id"]): _as_json(dict(row)) for row in db.execute(f'SELECT * FROM "{table}"')}
                for table in tables
            }


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    return {column: bool(value) if column == "on_shift" else value for column, value in row.items()}


class ServiceWorlds:
    """A source of worlds: `sdk.evaluate(ServiceWorlds(rows=12), tasks, verifier)`.

    A world begins with the rows of the twin of the same seed, so that the tasks that were made on the twin make sense.
    """

    simulated = True  # a database of its own for each process: what a call destroys is nobody's
    has_state = True
    can_setup = True

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._twin = ApiTwin(DOCUMENT, rows=rows)

    @property
    def tools(self) -> Sequence[Tool]:
        return self._twin.tools

    @asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[Desk]:
        with tempfile.TemporaryDirectory(prefix=f"desk-{world_id[:8].replace('/', '-')}-") as folder:
            rows = Path(folder) / "rows.json"
            rows.write_text(json.dumps(self._seeded(dict(setup or {}))))
            database = rows.with_name("desk.db")
            words = (str(HERE / "service.py"), "--db", str(database), "--load", str(rows), "--port", "0")
            process = await asyncio.create_subprocess_exec(PYTHON, *words, stdout=asyncio.subprocess.PIPE)
            try:
                assert process.stdout is not None
                url = (await process.stdout.readline()).decode().strip()
                if not url:
                    raise mcp_bridge.ToolFailure(f"the service did not start: {PYTHON} {' '.join(words)}")
                async with mcp_bridge.connect({"openapi": str(DOCUMENT), "base_url": url}) as toolset:
                    yield Desk(toolset, database)
            finally:
                if process.returncode is None:
                    process.terminate()
                await process.wait()

    def _seeded(self, setup: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        state = ApiTwin(DOCUMENT, rows=self._rows, seed=setup.get("seed", 0)).state()
        return {table: list(rows.values()) for table, rows in state.items() if not table.startswith("@")}
