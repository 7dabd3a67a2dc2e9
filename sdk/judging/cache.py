"""What judges answered, on disk: the same question is asked once, also by the next run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import ConfigError

_TABLE = "CREATE TABLE IF NOT EXISTS kept (kind TEXT, key TEXT, value TEXT, PRIMARY KEY (kind, key)) WITHOUT ROWID"


class JudgeCache:
    """A SQLite file that several processes may use at once."""

    def __init__(self, path: Path | str) -> None:
        """Raises `ConfigError` for a path that cannot hold it."""
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as connection:
                connection.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the judge's cache {str(path)!r} cannot be used: {error}; give another path") from error

    def get(self, kind: str, key: str) -> Any:
        """What was kept, or None."""
        with self._open() as connection:
            row = connection.execute("SELECT value FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, kind: str, key: str, value: Any) -> None:
        with self._open() as connection:
            connection.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (kind, key, json.dumps(value)))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=30)
        try:
            with connection:
                yield connection
        finally:
            connection.close()
