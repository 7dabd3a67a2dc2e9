"""The loader of tasks: whatever the user has as prompts becomes a checked list."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mcp_bridge.errors import kind_of

from ..errors import ConfigError
from ..records import Task
from .files import SUFFIXES, read_file
from .task_rows import from_arrow_row, task_from_mapping

Origin = str
"""Where a task comes from, for messages: `tasks.jsonl, line 3`."""


def load_tasks(prompts: Any) -> list[Task]:
    """Read tasks from any of these:

    - strings (each a prompt), dicts with the fields of `Task`, `Task` records;
    - a path (`str` or `Path`) to a .jsonl, .json, .csv or .parquet file;
    - a `datasets.Dataset` (one split of it);
    - a file that `distill` wrote, or labelled rollouts that the viewer exported: tasks with what was done as their
      demonstrations;
    - an iterable of any mix of strings, dicts, `Task` records and `Path` objects.

    In a CSV file, `prompt` is text, other cells are JSON or plain text, and a column may name one entry of
    a mapping: `expected.answer`, `setup.seed`, `tags.tier`. Empty cells and rows are absent; semicolons or tabs may
    stand between cells. In Parquet files and
    datasets, null fields are absent, and structured fields may be stored as JSON text.

    Raises `ConfigError` with file, line and field: for unknown fields, empty prompts, an empty list, and two
    tasks of one id, the same or different ones.

    Example: `load_tasks(["Where is order 4417?", {"prompt": "Cancel it.", "expected": {"changes": []}}])`
    """
    tasks: list[Task] = []
    seen: dict[str, tuple[Task, Origin]] = {}
    for task, origin in _read(prompts):
        refuse_repeat(task, origin, seen)
        seen[task.id] = (task, origin)
        tasks.append(task)
    if not tasks:
        shown = repr(str(prompts)) if isinstance(prompts, str | Path) else f"the {type(prompts).__name__}"
        raise ConfigError(f"prompts: {shown} holds no task; give at least one prompt")
    return tasks


def _read(prompts: Any) -> Iterator[tuple[Task, Origin]]:
    """The tasks, each with where it comes from."""
    if isinstance(prompts, Path) or (isinstance(prompts, str) and _is_path(prompts)):
        yield from _from_file(Path(prompts))
    elif any(cls.__module__.split(".")[0] == "datasets" for cls in type(prompts).__mro__):  # not imported for this
        yield from _from_dataset(prompts)
    elif isinstance(prompts, str | Mapping | Task):
        yield _from_item(prompts, "the prompt"), "the prompt"
    elif isinstance(prompts, Iterable) and not isinstance(prompts, bytes | bytearray):
        for index, item in enumerate(prompts):
            if isinstance(item, Path):
                yield from _from_file(item)
            else:
                origin = f"prompts[{index}]"
                yield _from_item(item, origin), origin
    else:
        raise ConfigError(
            f"prompts is {prompts!r} ({type(prompts).__name__}); give strings, dicts, Task records, a path to a "
            f"{', '.join(SUFFIXES)} file, a datasets.Dataset, or a list of them"
        )


def _from_file(path: Path) -> Iterator[tuple[Task, Origin]]:
    for item, origin in read_file(path):
        yield _from_item(item, origin), origin


def _from_item(item: Any, origin: Origin) -> Task:
    if isinstance(item, Task):
        return item
    if isinstance(item, Mapping):
        return task_from_mapping(item, origin)
    if isinstance(item, str):
        _refuse_path_as_prompt(item, origin)
        return task_from_mapping({"prompt": item}, origin)
    raise ConfigError(f"{origin} is {item!r} ({type(item).__name__}); a task is a string, a dict or a Task record")


def _is_path(text: str) -> bool:
    """Whether a lone string names a file. What might be either is refused rather than guessed."""
    one_word = bool(text.strip()) and not any(c.isspace() for c in text)
    known = Path(text).suffix.lower() in SUFFIXES and "\n" not in text
    if known and (one_word or os.path.isfile(text)):
        return True
    if known or (one_word and ("/" in text or Path(text).suffix)):
        what = "tasks are not read from such a file" if os.path.isfile(text) else "there is no such file to read"
        raise ConfigError(
            f"prompts: {text!r} looks like a path, but {what}; give the path of a "
            f"{', '.join(SUFFIXES)} file, or put a prompt that only looks like a path into a list: [prompt]"
        )
    return False


def _refuse_path_as_prompt(text: str, origin: Origin) -> None:
    """A file's name among prompts is almost surely meant as the file."""
    one_word = text.strip() and not any(c.isspace() for c in text)
    if one_word and Path(text).suffix.lower() in SUFFIXES and os.path.isfile(text):
        raise ConfigError(
            f"{origin} is {text!r}, the name of a file, and strings in a list are prompts; "
            f"to read the file, give pathlib.Path({text!r})"
        )


def _from_dataset(dataset: Any) -> Iterator[tuple[Task, Origin]]:
    if isinstance(dataset, Mapping):
        raise ConfigError(
            f"prompts is {kind_of(dataset)} with the splits {sorted(map(str, dataset))}; "
            f"give one of them, for example prompts[{next(iter(dataset), 'train')!r}]"
        )
    for index, row in enumerate(dataset):
        origin = f"the dataset's row {index}"
        yield task_from_mapping(from_arrow_row(row, origin), origin), origin


def refuse_repeat(task: Task, origin: Origin, seen: Mapping[str, tuple[Task, Origin]]) -> None:
    """Raises `ConfigError` where the id of a task is that of one before. `seen`: those by their ids."""
    if task.id not in seen:
        return
    other, other_origin = seen[task.id]
    if other == task:
        raise ConfigError(
            f"{origin} repeats {other_origin} (id {task.id!r}): remove one of them; "
            "to weigh a task more, give its copies ids of their own and one family"
        )
    differing = [name for name in Task.model_fields if getattr(other, name) != getattr(task, name)]
    raise ConfigError(
        f"{origin} and {other_origin} have the same id {task.id!r} but differ in {', '.join(differing)}; "
        "give each task an id of its own (an id that is not given is derived from prompt, later_turns, user and setup)"
    )
