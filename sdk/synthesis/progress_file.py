"""The progress file beside a file of synthesized tasks: a run that was killed resumes from it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ..errors import ConfigError
from ..records import Task
from ..traces.atomic_files import make_folder, write_bytes
from ..traces.identity import differences
from ..traces.journal import Journal
from ..traces.json_text import dump_json
from ..traces.run_lock import RunLock

_FORMAT = 1


def task_line(task: Task) -> dict[str, Any]:
    """A task as it stands in a file: what is empty is left out."""
    return task.model_dump(mode="json", exclude_defaults=True)


def as_lines(tasks: Sequence[Task]) -> bytes:
    return b"".join(dump_json(task_line(task)) + b"\n" for task in tasks)


class ProgressFile:
    """`NAME.work.jsonl` beside `NAME.jsonl`: one line for each attempt, kept or not, in their order.

    Without a path nothing is kept and nothing can be gone on with.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, Any], first_state: str = "") -> None:
        """`first_state`: the digest of a fresh world's state.

        Raises `ConfigError` for a path that holds something else, `RunFolderError` where it cannot be written."""
        self.path = path
        self.work: Path | None = None
        self.tasks: list[tuple[int, Task, str]] = []
        """Attempt, task and shape of those kept."""
        self.left_out: Counter[str] = Counter()
        self.next_attempt = 0
        self.began_with_other_worlds = False
        """Whether the state of a fresh world was another one when the file was begun."""
        self._first_state = first_state
        self._written: set[str] = set()
        self._journal: Journal | None = None
        self._lock: RunLock | None = None
        if path is not None:
            self._open(path, dict(identity))

    def _open(self, path: Path, identity: dict[str, Any]) -> None:
        if path.suffix != ".jsonl":
            raise ConfigError(f"{path}: tasks are written as JSON lines; give a path that ends in .jsonl")
        make_folder(path.parent)
        work = self.work = path.with_name(f"{path.stem}.work.jsonl")
        if path.exists() and not work.exists():
            raise ConfigError(
                f"{path} exists already, and {work.name} is not beside it; give another path, or remove it"
            )
        self._lock = RunLock(path.with_name(f".{path.name}.lock"), file=path)
        self._journal = Journal(work)
        try:
            self._journal.cut_torn_line()
            try:
                self._read(path, work, identity)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ConfigError(
                    f"{work} is damaged: {type(error).__name__}: {str(error).splitlines()[0]}; move it and {path.name} "
                    "away, or give another path"
                ) from error
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path, work: Path, identity: dict[str, Any]) -> None:
        assert self._journal is not None
        lines = self._journal.read()
        first = next(lines, None)
        if first is None:
            self._journal.append({"format": _FORMAT, "made_with": identity, "first_state": self._first_state})
            return
        if first.get("format") != _FORMAT:
            raise ConfigError(f"{work} is not a progress file of this version; give another path")
        if changed := differences(first["made_with"], identity):
            raise ConfigError(
                f"{work} was begun with other options: {'; '.join(changed[:5])}. Give those again, or another path"
            )
        self.began_with_other_worlds = first.get("first_state", self._first_state) != self._first_state
        for line in lines:
            if "written" in line:
                self._written.add(line["written"])
                continue
            self.next_attempt = line["attempt"] + 1
            if "task" in line:
                self.tasks.append((line["attempt"], Task.model_validate(line["task"]), line["shape"]))
            else:
                self.left_out[line["left_out"]] += 1
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() not in self._written:
            raise ConfigError(
                f"{path} was changed since it was written, and going on would write it anew; move it away, and check "
                "it with `toolbake synthesize TOOLS --check FILE`"
            )

    def require_room(self, n: int) -> None:
        """Raises `ConfigError` where fewer tasks are wanted than there are: none is taken away."""
        if len(self.tasks) > n:
            raise ConfigError(
                f"n is {n}, and {self.work} has {len(self.tasks)} tasks already, of which none is taken away; give n="
                f"{len(self.tasks)} or more, or another path"
            )

    def keep(self, attempt: int, task: Task, shape: str) -> None:
        self.tasks.append((attempt, task, shape))
        self._note({"attempt": attempt, "shape": shape, "task": task_line(task)}, attempt)

    def leave_out(self, attempt: int, reason: str) -> None:
        self.left_out[reason] += 1
        self._note({"attempt": attempt, "left_out": reason}, attempt)

    def _note(self, line: dict[str, Any], attempt: int) -> None:
        self.next_attempt = attempt + 1
        if self._journal is not None:
            self._journal.append(line)

    def write(self, tasks: Sequence[Task]) -> None:
        """Write the file of tasks as a whole."""
        if self.path is None or self._journal is None or not tasks:
            return
        text = as_lines(tasks)
        # Said before it is done: a kill in between must not make the file look like somebody else's.
        self._journal.append({"written": hashlib.sha256(text).hexdigest()})
        self._journal.sync()
        write_bytes(self.path, text)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
