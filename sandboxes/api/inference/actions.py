"""Actions: what an operation such as `POST /orders/{id}/cancel` sets, by its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..realistic import words_of
from ..shapes import Shape, Shapes
from .model import STATES
from .paths import singular_of

_OUTCOMES = {
    "enable": ("active",), "pay": ("paid",), "send": ("sent",), "freeze": ("frozen",), "withdraw": ("withdrawn",),
    "activate": ("active",),
    "deactivate": ("inactive",), "begin": ("begun", "running", "active"), "hold": ("held", "on hold"),
    "start": ("running", "active", "on", "online", "in progress", "up"), "stop": ("off", "inactive", "offline", "down"),
    "power on": ("on", "running", "active"), "power off": ("off", "inactive"), "boot": ("running", "on", "active"),
    "shutdown": ("off", "stopped", "offline"), "finish": ("completed", "done"), "complete": ("done", "finished"),
    "resume": ("active", "running"), "reopen": ("open",), "terminate": ("completed", "stopped"),
}  # fmt: skip
"""Statuses after an action whose names do not begin as the action's does, likely ones first."""
_FOLDERS = frozenset(("action", "actions", "command", "commands"))
_BEFORE = frozenset(("previous", "prior", "last", "old", "initial", "desired", "target", "next", "default"))
_SWITCHES = {"enable": True, "disable": False}


def moves_of(shapes: Shapes, steps: Sequence[str], row: Shape, method: str) -> dict[str, Any]:
    """The columns that an action sets: `cancel` sets a status that may be `cancelled`, and `lock` a flag `locked`.

    `steps`: of its path, after the row's. What an action does to a part of the row sets no status of the row:
    `enable_backup` is about its backups. A status that only leads to another (`cancelling`) is passed over, since
    nothing goes on in a twin.
    """
    beside = [word for step in steps[:-1] if step not in _FOLDERS for word in words_of(step)]
    words = words_of(steps[-1]) if steps else []
    if not words:
        return {}
    verb, about = words[0], [*words[1:], *beside]
    undo = method == "delete" or (verb.startswith("un") and len(verb) > 4)
    stem = _stem(verb.removeprefix("un") if undo and method != "delete" else verb)
    if len(stem) < 3:
        return {}
    if not undo and not beside and not _is_part(about, stem, row):
        for name, values in _states(shapes, row):
            known = {" ".join(words_of(value)): value for value in values}
            named = [value for said, value in known.items() if said == " ".join(words)]
            alike = [value for said, value in known.items() if _stem(said) == stem and not said.endswith("ing")]
            ends = (known[one] for one in _after(words) if one in known)
            if (found := next(iter([*named, *alike, *ends]), None)) is not None:
                return {name: found}
    for name, schema in row.properties.items():
        shape = shapes.of(schema)
        if shape.typed and shape.kinds - {"null"} == {"boolean"}:
            value = _switched(name, [stem, *(_stem(word) for word in about)], undo)
            if value is not None:
                return {name: value}
    return {}


def _states(shapes: Shapes, row: Shape) -> Iterator[tuple[str, list[str]]]:
    """Columns with a choice of texts, first those that tell how far a row has come."""
    found = []
    for name, schema in row.properties.items():
        words, enum = words_of(name), shapes.of(schema).enum
        if enum and words and words[0] not in _BEFORE:
            rank = 0 if words[-1:] == words and words[-1] in STATES else 1 if words[-1] in STATES else 2
            found.append((rank, name, [one for one in enum if isinstance(one, str) and words_of(one)]))
    yield from ((name, values) for _, name, values in sorted(found, key=lambda one: one[0]))


def _is_part(about: list[str], stem: str, row: Shape) -> bool:
    """Whether what an action is about is a part of the row, by the row's properties."""
    names = [set(map(singular_of, words_of(name))) for name in row.properties]
    return any({singular_of(word)} & own and stem not in map(_stem, own) for word in about for own in names)


def _after(words: list[str]) -> tuple[str, ...]:
    asked = "".join(words)
    return next((ends for action, ends in _OUTCOMES.items() if action.replace(" ", "") == asked), ())


def _switched(name: str, stems: list[str], undo: bool) -> bool | None:
    """What an action makes of a flag: its name is the action's, or that of what is enabled or disabled."""
    own = sorted(_stem(word) for word in words_of(name) if word not in {"is", "has"})
    switch = next((value for verb, value in _SWITCHES.items() if stems[0] == _stem(verb)), None)
    if switch is not None:
        wanted = ([*stems[1:], _stem("enabled")], stems[1:])
        return (switch is not undo) if own in map(sorted, wanted) else None
    return not undo if own == sorted(stems) else None


def _stem(word: str) -> str:
    """`cancel`, `canceled` and `cancelled` have one stem, and so do `close` and `closed`, `deny` and `denied`."""
    for ending in ("ing", "ed", "es", "e", "d"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word[-1] == word[-2]:
        return word[:-1]
    return word[:-1] + "i" if word.endswith("y") else word
