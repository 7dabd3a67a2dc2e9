"""Running a chat template on text it may place but not look at without our knowing.

A template that only places a message's text somewhere does the same with every other text. To know that it only places
it, the text is sealed: where the template asks something of it (is it empty, does it begin with a marker), the answer
is noted as a condition; whatever else it tries raises `Examined`. This is concolic execution (Godefroid, Klarlund and
Sen, DART, PLDI 2005) of a Jinja template.
"""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import BuiltinMethodType
from typing import Any, NamedTuple


class Examined(Exception):
    """The template did something with sealed text whose outcome cannot be foreseen for other texts."""


class Slot(NamedTuple):
    """A place for the text of the `number`-th sealed message, changed by `change` (a key of `CHANGES`)."""

    number: int
    change: str


class Condition(NamedTuple):
    """What the template asked of a slot's text, and the answer."""

    slot: Slot
    question: str
    argument: str
    answer: bool


CHANGES: dict[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "strip": lambda text: text.strip(),
    "lstrip": lambda text: text.lstrip(),
    "rstrip": lambda text: text.rstrip(),
    "json": lambda text: json.dumps(text, ensure_ascii=False),
}
QUESTIONS: dict[str, Callable[[str, str], bool]] = {
    "is not empty": lambda text, _: bool(text),
    "begins with": lambda text, part: text.startswith(part),
    "ends with": lambda text, part: text.endswith(part),
    "contains": lambda text, part: part in text,
    "equals": lambda text, other: text == other,
}


@dataclass
class Record:
    """What one run of a template did with the sealed texts."""

    conditions: dict[Condition, None] = field(default_factory=dict)
    reads_clock: bool = False
    nonce: str = field(default_factory=lambda: "SEAL" + secrets.token_hex(8).upper())

    def mark(self, slot: Slot) -> str:
        """What stands for the slot's text in rendered text."""
        return f"{self.nonce}N{slot.number}C{slot.change}E"

    def slot(self, mark: str) -> Slot:
        """The slot of what stands between `nonce` and the end of a mark."""
        number, change = mark[1:].split("C")
        return Slot(int(number), change)


class SealedText(str):
    """As a string, a mark in place of the text. Every method of strings that is not below raises `Examined`."""

    _text: str
    _slot: Slot | None
    _record: Record

    @classmethod
    def of(cls, number: int, text: str, record: Record, change: str = "none") -> SealedText:
        """`text`, sealed, as the `number`-th."""
        slot = Slot(number, change)
        made = cls(record.mark(slot))
        made._text, made._slot, made._record = text, slot, record
        return made

    @classmethod
    def joined(cls, parts: Iterable[str]) -> str:
        """The parts one after the other: sealed where one of them is, and then only to be placed."""
        kept = [part for part in parts if isinstance(part, SealedText) or part]
        if not any(isinstance(part, SealedText) for part in kept):
            return "".join(kept)
        if len(kept) == 1:
            return kept[0]
        made = cls("".join(kept))
        made._text, made._slot = "", None
        return made

    def _changed(self, change: str) -> SealedText:
        if self._slot is None or self._slot.change != "none":
            raise Examined(f"{change} of a text made of several")
        return SealedText.of(self._slot.number, CHANGES[change](self._text), self._record, change)

    def _ask(self, question: str, argument: Any = "") -> bool:
        if self._slot is None or isinstance(argument, SealedText) or not isinstance(argument, str):
            raise Examined(question)
        answer = QUESTIONS[question](self._text, argument)
        self._record.conditions[Condition(self._slot, question, argument, answer)] = None
        return answer

    def as_json(self) -> SealedText:
        return self._changed("json")

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return self._ask("is not empty")

    def __contains__(self, part: object) -> bool:
        return self._ask("contains", part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self._ask("equals", other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        raise Examined("hash")

    def __add__(self, other: str) -> str:
        return SealedText.joined([self, other])

    def __radd__(self, other: str) -> str:
        return SealedText.joined([other, self])

    def __rmod__(self, other: object) -> str:
        raise Examined("%")

    def startswith(self, part: Any, *bounds: Any) -> bool:
        return self._ask("begins with", None if bounds else part)

    def endswith(self, part: Any, *bounds: Any) -> bool:
        return self._ask("ends with", None if bounds else part)

    def strip(self, characters: str | None = None) -> SealedText:
        return self._trimmed("strip", characters)

    def lstrip(self, characters: str | None = None) -> SealedText:
        return self._trimmed("lstrip", characters)

    def rstrip(self, characters: str | None = None) -> SealedText:
        return self._trimmed("rstrip", characters)

    def _trimmed(self, change: str, characters: str | None) -> SealedText:
        if characters is not None:
            raise Examined(change)
        return self._changed(change)


def _refuse(name: str) -> Callable[..., Any]:
    def examine(*_: Any, **__: Any) -> Any:
        raise Examined(name)

    return examine


_HARMLESS = {"__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__dir__"}
_HARMLESS |= {"__init_subclass__", "__subclasshook__", "__doc__", "__sizeof__"}
for _name in set(dir(str)) - set(vars(SealedText)) - _HARMLESS:
    setattr(SealedText, _name, _refuse(_name))


def holds_sealed(value: Any) -> bool:
    """Whether a sealed text is in plain data."""
    if isinstance(value, str):
        return isinstance(value, SealedText)
    if isinstance(value, dict):
        return any(map(holds_sealed, value)) or any(map(holds_sealed, value.values()))
    return isinstance(value, list | tuple) and any(map(holds_sealed, value))


def contained(item: Any, container: Any) -> bool:
    """`item in container`, which Python does not tell a sealed item about."""
    if isinstance(item, SealedText) and isinstance(container, str | dict):
        raise Examined("in")
    return item in container


_ONLY_PASSED_ON = {
    *("length", "count", "first", "last", "list", "reverse", "select", "reject", "selectattr", "rejectattr", "map"),
    *("items", "default", "d", "string", "trim"),
}
"""Filters that hand sealed text on as it is, or ask it by its own methods."""


def guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, which raises `Examined` where it would read sealed text."""
    if name in _ONLY_PASSED_ON:
        return function

    @functools.wraps(function)
    def guarded(*args: Any, **options: Any) -> Any:
        if name == "tojson" and not options and len(args) == 1 and isinstance(args[0], SealedText):
            return args[0].as_json()
        if holds_sealed(args) or holds_sealed(options):
            raise Examined(f"the filter {name}")
        return function(*args, **options)

    return guarded


def refuse_reading(function: Any, args: Sequence[Any]) -> None:
    """Raises `Examined` for a method of an ordinary string that would read sealed text."""
    if isinstance(function, BuiltinMethodType) and isinstance(function.__self__, str) and holds_sealed(args):
        raise Examined(f"str.{function.__name__}")
