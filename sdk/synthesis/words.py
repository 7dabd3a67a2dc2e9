"""Words: the names of tools, arguments, tables and columns as words, and the values that a prompt names.

Values are its numbers, identifiers, quoted texts, names, dates and other runs of its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_bridge.safe_text import singular_of

from ..verifiers.text_tokens import CAPITALS, CLOCK, DATE, iso_date, of_24_hours

IDENTIFYING = frozenset({"id", "ids", "key", "uuid", "code", "number", "name", "title", "slug", "handle", "login"})
"""Last words of columns that name a row by themselves, as in "order 4417"."""
WRAPPERS = frozenset({"data", "items", "results", "result", "list", "records", "entries", "values", "content"})
"""Keys of results that say nothing of what is in them."""
_PLAIN_IDS = frozenset({"id", "ids", "key", "uuid"})
_SMALL = rf"[^\W\d_{CAPITALS}]"
_PIECES = re.compile(rf"[{CAPITALS}]+(?=[{CAPITALS}]{_SMALL})|[{CAPITALS}]?{_SMALL}+|[{CAPITALS}]+|\d+")
_READING = frozenset(
    {
        *("get", "read", "find", "search", "list", "show", "lookup", "look", "fetch", "describe", "query", "check"),
        *("retrieve", "view", "is", "has", "count", "load"),
    }
)
_ACTING = frozenset(
    {
        *("create", "add", "place", "make", "cancel", "update", "change", "set", "delete", "remove", "refund", "put"),
        *("replace", "rename", "sell", "transfer", "send", "move", "close", "open", "book", "assign", "pay", "buy"),
        *("archive", "approve", "reject", "star", "mark", "merge", "return", "order", "start", "stop", "enable"),
        *("disable", "edit", "post", "patch", "save", "register", "insert"),
    }
)
VERBS = _READING | _ACTING
SETTING = frozenset({"update", "change", "set", "put", "replace", "edit", "patch"})
"""Verbs after which it is said what becomes of something."""
MAKING = frozenset({"create", "add", "place", "open", "post", "make", "book", "start", "save", "register", "insert"})
"""Verbs after which something is there that was not."""


def words(name: str) -> list[str]:
    """Example: `words("getOrder_lines") == ["get", "order", "lines"]`"""
    return [piece.lower() for piece in _PIECES.findall(name)]


_IRREGULAR = {"people": "person", "children": "child", "shelves": "shelf", "indices": "index"}


def singular(word: str) -> str:
    """Of a plain English plural. Example: `singular("policies") == "policy"`"""
    return _IRREGULAR.get(word) or singular_of(word)


def noun_of(name: str) -> str:
    """What a table holds, or a list of results: its words with the last one singular."""
    found = words(name)
    return " ".join([*found[:-1], singular(found[-1])]) if found else name


def shares_noun(one: str, other: str) -> bool:
    """Whether one noun is the other's last words. Example: "order" and "customer order"."""
    return bool(one and other) and (one == other or one.endswith(f" {other}") or other.endswith(f" {one}"))


_THINGS = frozenset({"order", "book", "post", "return", "star", "mark", "place", "check", "count", "view", "query"})
"""Verbs that, at the end of a name, are what it is about: `ship_order`."""


def verb_and_object(tool: str, arguments: Iterable[str] = ()) -> tuple[str, str]:
    """What a tool does and with what; the object is empty where its name does not say it, the verb where it only reads
    or none is known. The names of its `arguments` may be in its own: those say which one. Example:
    `verb_and_object("cancel_order") == ("cancel", "order")`"""
    found = words(tool)
    for name in sorted(arguments, key=len, reverse=True):  # `get_orders_by_order_id_lines`, made of a path
        by = ["by", *words(name)]
        at = next((at for at in range(1, len(found)) if found[at : at + len(by)] == by), None)
        if at is not None:
            del found[at : at + len(by)]
    for place in ("by", "for", "with", "of"):
        if place in found[1:]:
            found = found[: found.index(place, 1)]
    if found and found[0] in _READING:
        return "", " ".join(found[1:]) or ""
    if found and found[0] in _ACTING:
        return found[0], " ".join(found[1:])
    if len(found) > 1 and found[-1] in VERBS - _THINGS:
        return ("" if found[-1] in _READING else found[-1]), " ".join(found[:-1])
    return "", " ".join(found)


def listed(parts: Sequence[str]) -> str:
    """Example: `listed(["a", "b", "c"]) == "a, b and c"`"""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def last_name(path: Sequence[str | int]) -> str:
    """Of the keys and places that lead to a value the last key; empty where there is none."""
    return next((part for part in reversed(path) if isinstance(part, str)), "")


def without_id(name: str) -> str:
    """What an identifier is of. Example: `without_id("customer_id") == "customer"`; empty for `id` alone."""
    found = words(name)
    while found and found[-1] in _PLAIN_IDS:
        found.pop()
    return " ".join(found)


def without_identifying(name: str) -> str:
    """What an identifier of any kind is of. Example: `without_identifying("order_number") == "order"`"""
    return " ".join(word for word in words(name) if word not in IDENTIFYING)


def likeness(argument: str, tool: str, table: str, column: str, *, is_key: bool) -> float:
    """How well an argument's name fits a column's, from 0 (only by its type) to 1."""
    wanted, noun, said = words(argument), noun_of(table), words(column)
    about = noun in " ".join(singular(word) for word in words(tool))
    if wanted == said:
        # A bare `id` is the one of what the tool is about.
        return (1.0 if about else 0.1) if set(wanted) <= _PLAIN_IDS else (1.0 if about else 0.9)
    if is_key and without_id(argument) == noun:
        return 1.0
    if is_key and set(wanted) <= _PLAIN_IDS and about:
        return 1.0
    if " ".join(wanted) == f"{noun} {' '.join(said)}":
        return 1.0
    if without_id(argument) and without_id(argument) == without_id(column):
        return 0.9
    return 0.1


_SIGNS = r"[^\s,;!?()\[\]{}\"“”]"
_TOKEN = re.compile(rf"[-+]?[$€£¥#]?\d{{1,2}}(?:,\d{{3}})+(?!,?\d){_SIGNS}*|{_SIGNS}+")
"""`1,200.50` is one token. `101,102` are two, as they may be a list."""
_MAYBE_ONE = re.compile(r"(?<![\w.,])[-+]?[$€£¥#]?(\d{3}(?:,\d{3})+(?:\.\d+)?)(?!\w|,\d)")
"""The one number that such a list may be, too."""
_QUOTED = re.compile(r"[\"“]([^\"“”\n]{1,200})[\"”]|(?<!\w)['‘]([^'‘’\n]{1,200})['’](?!\w)")
_NUMBER = re.compile(r"[-+]?[$€£¥#]?(\d[\d,]*(?:\.\d+)?)%?")
_DATE = re.compile(r"\b(\d{4})-(\d{1,2})-(\d{1,2})\b")
_CLOCK = re.compile(r"\b([01]?\d|2[0-3]):([0-5]\d)\b(?! ?[ap]\.?m\b)", re.IGNORECASE)
_NUMBER_WORDS = words("zero one two three four five six seven eight nine ten eleven twelve")
STOPWORDS = frozenset(
    words(
        "a an and any are as at be been by can could do does did for from get give go had has have he her him his how "
        "i if in into is it its just me my need now of on or our out please shall she should so some tell than that "
        "the their them then there these they this to us want was we were what when where which who whom whose why "
        "will with would you your"
    )
)
"""Words that no value begins or ends with."""
_LEADING = frozenset(words("to for of in at on from with by called named titled about saying is as reads"))
"""After one of these words, the rest of the clause may be one value."""
_MOST_WORDS = 5
"""Of a run of words, unless it is the rest of a clause."""
_LONGEST_REST = 24


def stem(word: str) -> str:
    """A word in a form that is the same for most of its inflections. Example: `stem("ordered") == stem("orders")`"""
    found = singular(word.lower())
    for ending in ("ing", "ed"):
        if found.endswith(ending) and len(found) - len(ending) >= 3:
            found = found[: -len(ending)]
            if len(found) > 3 and found[-1] == found[-2]:
                found = found[:-1]
    return found[:-1] if found.endswith("e") and len(found) > 3 else found


def stems(text: str) -> list[str]:
    """The stems of all words of a text, numbers included, `snake_case` and `camelCase` taken apart."""
    return [stem(piece) for piece in _PIECES.findall(text)]


@dataclass(frozen=True)
class PromptValue:
    """A value of a prompt. `begin`, `end`: the places of its words. `weight`: how likely it is a value by its form."""

    value: Any
    begin: int
    end: int
    weight: float
    is_telling: bool = False
    """A number, an identifier, a quoted text or a name: something that a solution probably uses."""


def _number(found: re.Match[str]) -> int | float:
    digits = found[1].replace(",", "")
    number = float(digits) if "." in digits else int(digits)
    return -number if found[0].startswith("-") else number


class PromptValues:
    """All values of a prompt. Example: those of "Refund 10 for order 9857." have the `numbers` 10 and 9857."""

    def __init__(self, prompt: str) -> None:
        self.text = prompt
        self._tokens: list[str] = []
        self._starts: list[int] = []
        self._breaks: set[int] = set()
        """Places of words before which a clause begins."""
        self._sentences: set[int] = {0}
        end = 0
        for found in _TOKEN.finditer(prompt):
            raw = found.group()
            word = raw.strip("'‘’.:").removesuffix("'s").removesuffix("’s")
            if not word:
                continue
            gap = prompt[end : found.start()]
            if gap.strip() or "\n" in gap or (self._tokens and prompt[end - 1] in ".:"):
                self._breaks.add(len(self._tokens))
                if set(gap) & set("!?\n") or (self._tokens and prompt[end - 1] == "."):
                    self._sentences.add(len(self._tokens))
            self._tokens.append(word)
            self._starts.append(found.start() + raw.index(word))
            end = found.end()
        self.words = [stem(token) for token in self._tokens]
        """The stems of the prompt's words, by their places."""
        self.vocabulary = frozenset(piece for token in self._tokens for piece in (*stems(token), stem(token)))
        self.numbers = list(self._numbers())
        self.texts = self._distinct([*self._quoted(), *self._dates(), *self._runs(), *self._rests()])
        self.telling = frozenset(str(one.value).casefold() for one in [*self.numbers, *self.texts] if one.is_telling)
        """What a solution probably uses, in lower case."""

    def _numbers(self) -> Iterator[PromptValue]:
        for place, token in enumerate(self._tokens):
            if (found := _NUMBER.fullmatch(token)) is not None:
                yield PromptValue(_number(found), place, place + 1, 2.0, is_telling=True)
            elif token.lower() in _NUMBER_WORDS:
                yield PromptValue(_NUMBER_WORDS.index(token.lower()), place, place + 1, 1.2)
        for found in _MAYBE_ONE.finditer(self.text):
            yield PromptValue(_number(found), *self._places(found.start(), found.end()), 2.0)

    def _quoted(self) -> Iterator[PromptValue]:
        for found in _QUOTED.finditer(self.text):
            begin, end = self._places(found.start(), found.end())
            yield PromptValue((found[1] or found[2]).strip(), begin, end, 3.0, is_telling=True)

    def _dates(self) -> Iterator[PromptValue]:
        """Dates and times as ISO 8601 writes them."""
        for found in _DATE.finditer(self.text):
            yield self._dated(found, f"{found[1]}-{int(found[2]):02}-{int(found[3]):02}")
        for pattern, written in ((DATE, iso_date), (CLOCK, of_24_hours)):
            for found in pattern.finditer(self.text):
                yield self._dated(found, written(found))
        for found in _CLOCK.finditer(self.text):
            yield self._dated(found, f"{int(found[1]):02}:{found[2]}")

    def _dated(self, found: re.Match[str], value: str) -> PromptValue:
        begin, end = self._places(found.start(), found.end())
        return PromptValue(value, begin, end, 2.2, is_telling=True)

    def _places(self, start: int, end: int) -> tuple[int, int]:
        inside = [place for place, at in enumerate(self._starts) if start <= at < end]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def _runs(self) -> Iterator[PromptValue]:
        """Runs of words within a clause, the ones that look like values with more weight."""
        for begin in range(len(self._tokens)):
            for end in range(begin + 1, min(begin + _MOST_WORDS, len(self._tokens)) + 1):
                if end - 1 > begin and end - 1 in self._breaks:
                    break
                tokens = self._tokens[begin:end]
                if tokens[0].lower() in STOPWORDS or tokens[-1].lower() in STOPWORDS:
                    continue
                weight, is_telling = self._looks(begin, tokens)
                text = self._written(begin, end)
                yield PromptValue(text, begin, end, weight, is_telling)
                if len(tokens) == 1 and (plain := singular(text.lower())) != text and text.isalpha():
                    yield PromptValue(plain, begin, end, weight - 0.3)
                    yield PromptValue(text.lower(), begin, end, weight - 0.3)
                elif text[:1] == "#":
                    yield PromptValue(text[1:], begin, end, weight + 0.1, is_telling)

    def _looks(self, begin: int, tokens: list[str]) -> tuple[float, bool]:
        if len(tokens) == 1:
            if any(sign.isdigit() for sign in tokens[0]) or "@" in tokens[0] or "_" in tokens[0] or "/" in tokens[0]:
                return 2.5, True
            named = (
                begin + 1 < len(self._tokens) and begin + 1 not in self._breaks and self._tokens[begin + 1][0].isupper()
            )
            if tokens[0][0].isupper() and (begin not in self._sentences or named):
                return 2.0, True
            return 1.0, False
        if all(token[0].isupper() or token[0].isdigit() for token in tokens):
            if begin in self._sentences and not tokens[0][0].isdigit():
                return 1.0, False
            return 2.3 + 0.1 * len(tokens), False
        return 0.8 - 0.1 * len(tokens), False

    def _rests(self) -> Iterator[PromptValue]:
        """What follows a preposition or a colon, to the end of the clause and to that of the sentence."""
        last = len(self._tokens)
        for place in range(1, last):
            after_colon = self.text[self._starts[place - 1] :][len(self._tokens[place - 1]) :][:1] == ":"
            if self._tokens[place - 1].lower() not in _LEADING and not after_colon:
                continue
            clause = next((one for one in range(place + 1, last) if one in self._breaks), last)
            sentence = next((one for one in range(place + 1, last) if one in self._sentences), last)
            for end in {clause, sentence}:
                if 1 < end - place <= _LONGEST_REST:
                    yield PromptValue(self._written(place, end), place, end, 2.0 if after_colon else 1.3)

    def _written(self, begin: int, end: int) -> str:
        return self.text[self._starts[begin] : self._starts[end - 1] + len(self._tokens[end - 1])]

    def _distinct(self, values: list[PromptValue]) -> list[PromptValue]:
        best: dict[str, PromptValue] = {}
        for one in values:
            if one.value and (one.value not in best or best[one.value].weight < one.weight):
                best[one.value] = one
        return list(best.values())

    def near(self, value: PromptValue, wanted: frozenset[str]) -> float:
        """How near one of the `wanted` stems is: 1 right before, less after it and further away, 0 where none is."""
        before = self.words[max(0, value.begin - 3) : value.begin]
        for distance, word in enumerate(reversed(before)):
            if word in wanted:
                return 1.0 - 0.25 * distance
        for distance, word in enumerate(self.words[value.end : value.end + 2]):
            if word in wanted:
                return 0.7 - 0.3 * distance
        return 0.0

    def covered(self, arguments: str) -> int:
        """How many of the telling values stand in `arguments`, their text in lower case."""
        return sum(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", arguments) is not None for one in self.telling)

    def names(self, value: str) -> bool:
        """Whether a value, in lower case, is one of the prompt's, or is made of its words: "open" of "opened"."""
        if any(str(one.value).casefold() == value for one in [*self.numbers, *self.texts]):
            return True
        found = stems(value)
        return bool(found) and all(word.isalpha() and word in self.vocabulary for word in found)
