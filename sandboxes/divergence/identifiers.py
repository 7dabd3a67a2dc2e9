"""Identifiers that a session created: the twin's are other ones, and stand in their place from there on.

A value counts as created where a call that may change something returns it, it never came up before, and either its key
is that of an identifier or a later call of the recording uses it under such a key. What stands at the same path in the
twin's result is its counterpart. Anything else that differs is a difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from sandboxes.recorded.lines import CallLine

from .differences import Step

_ID_NAME = re.compile(
    r"(?:^|[_\-.])(?:id|uuid|guid|ids|uuids)$|(?<=[a-z0-9])(?:Id|ID|Uuid|Guid|Ids|IDs)$", re.IGNORECASE
)
_ID_NAME_CAMEL = re.compile(r"[a-z0-9](?:Id|ID|Uuid|UUID|Guid)s?$")
_SHORTEST_IN_TEXT = 3
"""A shorter identifier would be found inside ordinary words."""

Scalar = str | int


class Identifiers:
    """The recorded identifiers of one session and their counterparts in the twin."""

    def __init__(self, calls: Sequence[CallLine], reading: Set[str]) -> None:
        """`reading`: the tools that only read."""
        self._calls = calls
        self._reading = reading
        self._used_later = [{value for name, value in _named(call.arguments) if is_id_name(name)} for call in calls]
        # From the end: what any later call uses.
        for number in range(len(calls) - 2, -1, -1):
            self._used_later[number] |= self._used_later[number + 1]
        self._used_later.append(set())
        self._seen: set[Scalar] = set()
        self._mapped: dict[Scalar, Scalar] = {}
        self._number = -1

    @property
    def count(self) -> int:
        return len(self._mapped)

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The next recorded call's arguments, for the twin. Numbers are replaced under names of identifiers alone."""
        self._number += 1
        self._seen.update(_scalars(arguments))
        return {key: self._replaced(value, key) for key, value in arguments.items()}

    def learn(self, path: Sequence[Step], recorded: Any, twin: Any) -> bool:
        """Whether two values that differ are one identifier: a known one, or one that this call created."""
        if not _is_scalar(recorded) or type(recorded) is not type(twin):
            return False
        if recorded in self._mapped:
            return bool(self._mapped[recorded] == twin)
        name = next((step for step in reversed(path) if isinstance(step, str)), "")
        is_identifier = recorded in self._used_later[self._number + 1] or is_id_name(name)
        is_created = recorded not in self._seen and self._calls[self._number].tool not in self._reading
        if not (is_identifier and is_created) or twin in self._mapped.values():
            return self._same_text(recorded, twin)
        self._mapped[recorded] = twin
        return True

    def learn_text(self, recorded: str, twin: str) -> bool:
        """The same for two texts of the same words, some of which are identifiers."""
        ours, theirs = (re.split(r"([\w-]+)", text) for text in (recorded, twin))
        if len(ours) != len(theirs):
            return False
        # Each word is looked at, also after one that differs: what is created beside it is needed later.
        same = [one == other or self.learn((), one, other) for one, other in zip(ours, theirs, strict=True)]
        return all(same)

    def answered(self, result: Any) -> None:
        """What a recorded result held is no longer new."""
        self._seen.update(_scalars(result))

    def _same_text(self, recorded: Scalar, twin: Scalar) -> bool:
        """Whether the texts are the same but for known identifiers inside them."""
        return isinstance(recorded, str) and self._in_text(recorded) == twin

    def _replaced(self, value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return {key: self._replaced(one, str(key)) for key, one in value.items()}
        if isinstance(value, list):
            return [self._replaced(one, name) for one in value]
        if isinstance(value, str):
            return self._mapped.get(value, self._in_text(value))
        if _is_scalar(value) and is_id_name(name):
            return self._mapped.get(value, value)
        return value

    def _in_text(self, text: str) -> str:
        known = {
            old: new for old, new in self._mapped.items() if isinstance(old, str) and len(old) >= _SHORTEST_IN_TEXT
        }
        if not known:
            return text
        longest_first = sorted(known, key=len, reverse=True)
        pattern = rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])"
        return re.sub(pattern, lambda match: str(known[match[0]]), text)


def is_id_name(name: str) -> bool:
    """Whether a key names an identifier: `id`, `order_id`, `orderId`, `uuid`."""
    return bool(_ID_NAME.search(name) or _ID_NAME_CAMEL.search(name))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _scalars(value: Any) -> Iterator[Scalar]:
    """Every text and whole number inside a JSON value, and every word of its texts."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _scalars(one)
    elif isinstance(value, list):
        for one in value:
            yield from _scalars(one)
    elif _is_scalar(value):
        yield value
        if isinstance(value, str):
            yield from re.findall(r"[\w-]+", value)


def _named(value: Any, name: str = "") -> Iterator[tuple[str, Scalar]]:
    """Every text and whole number inside a JSON value with the key it stands under."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _named(one, str(key))
    elif isinstance(value, list):
        for one in value:
            yield from _named(one, name)
    elif _is_scalar(value):
        yield name, value
