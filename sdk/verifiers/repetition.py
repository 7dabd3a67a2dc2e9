"""The limit on how much an answer may repeat of what tools returned, in structured results and in prose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from ..records import Rollout
from .text_tokens import NO_CONTENT, Token, positions, tokenize
from .value_checks import plain_values

_SPACES = re.compile(r"\s*")
_SHORT = 8
"""A text of at most so many words on one line is one value, even with several names in it."""
_JOINING = frozenset({"and", "or"})
_ARTICLES = frozenset({"a", "an", "the"})
"""Words without content that lists have, as well as sentences."""
_QUOTED = 30
"""An answer may quote one sentence of a result; sentences have about so many words at most."""
_MORE_PIECES = 1
"""How many more pieces than values an answer may have of a result of which it repeats half: "it is in the hall, on the
second shelf, behind the ladder"."""

_WORD = re.compile(r"(?:(?<![\w.])[-−+]?[$€£¥₹]?(?=\d))?\w+(?:[-_/:.@'’+&]\w+|(?<=\d),\d+)*")
_NUMBERED = re.compile(r"^[ \t]*\d+[.)][ \t]+", re.MULTILINE)
_NAMES = re.compile(r"[\s'\"*`]*[:=]")
"""The separator between a label and its value begins so."""
_LABEL = 3
"""The most words of a label."""
_JOINED = re.compile(r"[/+&:]")
"""Signs that join several words to one token: "red/green"."""


def repeated(
    rollout: Rollout,
    answer: Sequence[Token],
    rest: Sequence[Token],
    known: Sequence[Sequence[Token]],
    other_values: int,
) -> str | None:
    """The reason why `answer` repeats too much of what tools returned, or None.

    `rest` is the answer without what was asked for. `known` are the user's own words, followed by what was asked for;
    neither counts. Too much is

    - more than `other_values` other values: those of structured content and JSON, and in any other text its numbers,
      names and identifiers, and what follows a label ("city: Dublin") or is in a cell;
    - half of the pieces of one result, or of all results, where these are more than `other_values` + 1. A piece is a
      run of words joined by single spaces: every other sign, every line end and every word without content separates
      pieces, so it does not matter how values are joined. In a run with what was asked for, every word is a piece,
      except in a sentence: "delivered 33 days ago";
    - very many words in a row.
    """
    values: dict[tuple[Token, ...], str] = {}
    at_hand = set(rest)
    asked = {token for words in known[1:] for token in words} - NO_CONTENT
    familiar = {token for words in known for token in words}
    most_copied = _QUOTED + max(map(len, known[1:]), default=0)
    results: list[dict[tuple[Token, ...], None]] = []

    def says(words: list[Token]) -> bool:
        found = at_hand.issuperset(words) and positions(words, rest)
        return bool(found) and not any(positions(words, one) for one in known)

    for record in rollout.calls:
        results.append({})
        for leaf in _leaves(record.result.structured, record.result.text):
            if not isinstance(leaf, _Text):
                words = tokenize(str(leaf))
                values |= {tuple(words): str(leaf)} if says(words) else {}
                results[-1] |= dict.fromkeys(_pieces([words], at_hand, familiar, asked))
                continue
            if _is_copied(answer, tokenize(leaf), most_copied):
                return f"the answer repeats more than {most_copied} words in a row of what a tool returned"
            runs: list[list[Token]] = [[]]
            for unit in _units(leaf):
                if not unit.goes_on:
                    runs.append([])
                runs[-1] += tokenize(unit.text)
                said = [(tuple(words), value) for value in unit.values() if says(words := tokenize(value))]
                values |= dict(said[:1] if unit.is_field else said)
            is_sentence = any(word in NO_CONTENT and word not in _JOINING for words in runs for word in words)
            results[-1] |= dict.fromkeys(_pieces(runs, at_hand, familiar, set() if is_sentence else asked))
    others = [
        value for words, value in values.items() if not any(len(w) > len(words) and positions(words, w) for w in values)
    ]
    if len(others) > other_values:
        return f"the answer also says what tools returned besides: {', '.join(others[:5])}"
    for pieces in [*results, {piece: None for one in results for piece in one}]:
        told = [piece for piece in pieces if not at_hand.isdisjoint(piece)]
        if len(told) > other_values + _MORE_PIECES and 2 * len(told) >= len(pieces):
            shown = "; ".join(" ".join(map(str, piece)) for piece in told[:5])
            return f"the answer repeats most of what a tool returned: {shown}"
    return None


_NO_ITEM = NO_CONTENT - {"done"}
"""In a list of candidates `done` is one: the answer of tasks that only change something."""
_SEPARATOR = re.compile(
    r"\s*(?:[,;/|\n\t•·&]|(?<!\S)\d{1,2}\.(?=\s+[^\W\d])|\s[-–—+*]\s|[.!?](?=\s|$)|\b(?:and|or)\b)\s*", re.IGNORECASE
)
_JOINT = re.compile(r"\bor\b|\b(?:and|plus)\b(?! (?:it|they)\b)|(?<=\s)[&/+](?=\s)", re.IGNORECASE)
"""Joins two values. After "and it" stands another sentence."""
_OF_BOTH = re.compile(r"\b(?:are|were|have|do)\b", re.IGNORECASE)
"""What is said of both: "Anna and Ben have to pay." """
_PLACES: frozenset[Token] = frozenset({"in", "on", "at", "to", "from", "by", "with", "for", "under", "over"})
_IT: frozenset[Token] = frozenset({"it", "they"})
_HEADS: frozenset[Token] = frozenset({"is", "are", "was", "were"})
"""Beginnings of an item: "It is red. It is blue." """
_ROW = 4
"""More words in a row than this, none of which the user or the right value has, are a list without signs."""
_ITEM = 3
"""The most words of an item of a list."""
_MORE_ITEMS = 1
"""How many more than `other_values` items may stand in a list with the right one: "Graz, Austria, Europe"."""


def listed(
    said: str,
    right: Sequence[Sequence[Token]],
    other_values: int,
    asked: Sequence[str] = (),
    *,
    single: bool = False,
    several: bool = False,
) -> str | None:
    """The reason why an answer only lists what is right among other values, or None: the right value is an item of its
    own, and more than `other_values` + 1 other items are in the list, or one is after "or"; or a line of words without
    any sign has it; or the other of two that the user `asked` about ("A or B?") is an item beside it. Where `several`
    are wanted, an answer that is nothing but a list has no other items. Where a plain word is wanted and no other
    (`single`), none that the user does not have is joined to it ("Graz and Vienna").

    An item is a run of at most three words, all with content, between separators. Where the right one begins with a
    preposition ("in the truck"), others may, too.
    """
    wanted = [[word for word in form if word not in _NO_ITEM] for form in right]
    light = _ARTICLES | ({form[0] for form in right if form} & _NO_ITEM and _PLACES)
    heads = _HEADS if light == _ARTICLES else frozenset[Token]()

    def items(text: str) -> list[tuple[list[Token], bool]]:
        """Of each piece its words with content, and whether it has no others but articles."""
        pieces = [tokenize(piece) for piece in _SEPARATOR.split(text)]
        pieces = [words[2:] if len(words) > 2 and words[0] in _IT and words[1] in heads else words for words in pieces]
        return [
            ([word for word in words if word not in _NO_ITEM], not set(words) & _NO_ITEM - light)
            for words in pieces
            if words
        ]

    def is_other(item: tuple[list[Token], bool]) -> bool:
        return item[1] and 0 < len(item[0]) <= _ITEM and item[0] not in wanted

    pieces = items(said)
    familiar = {word for text in asked for word in tokenize(text)} | {word for form in right for word in form}
    for words, is_bare in pieces:
        if is_bare and len(words) > _ROW and any(positions(form, words) for form in wanted):
            strange = [str(word) for word in words if word not in familiar]
            if len(strange) > _ROW:
                return f"the answer lists other values, too: {', '.join(strange[:5])}"
    for found in _JOINT.finditer(said):
        before, after = items(said[: found.start()])[-1:], items(_OF_BOTH.split(said[found.end() :])[0])[:1]
        if before and after and {before[0][0] in wanted, after[0][0] in wanted} == {True, False}:
            one, other = (before[0], after[0]) if before[0][0] in wanted else (after[0], before[0])
            shown = " ".join(map(str, other[0]))
            if is_other(other) and found[0].lower() == "or":
                return f"the answer hedges: it also says {shown!r}"
            if single and is_other(other) and _is_second(other[0], one[0]) and not familiar.issuperset(other[0]):
                return f"the answer also says {shown!r}"
    if not any(words in wanted for words, _ in pieces):
        return None
    others = [" ".join(map(str, one[0])) for one in pieces if is_other(one)]
    is_list = several and sum(words in wanted for words, _ in pieces) > 1 and all(is_bare for _, is_bare in pieces)
    if len(others) > (0 if is_list else other_values + _MORE_ITEMS):
        return f"the answer lists other values, too: {', '.join(others[:5])}"
    rivals = [other for one, other in _two_asked(asked) if one in wanted and other not in wanted]
    if rival := next((one for one in pieces if is_other(one) and one[0] in rivals), None):
        return f"the answer also says {' '.join(map(str, rival[0]))!r}, the other one that was asked about"
    return None


def _is_second(other: Sequence[Token], right: Sequence[Token]) -> bool:
    """Whether words beside the right value are a second one of its kind: plain, and no longer ("Graz and Vienna", but
    not "Graz and arrives tomorrow"). "Done" is no value: whatever stands beside it was done."""
    is_plain = not any(sign.isdigit() for word in (*other, *right) for sign in str(word))
    return is_plain and len(other) <= len(right) and not NO_CONTENT.issuperset(right)


def _two_asked(asked: Sequence[str]) -> Iterator[tuple[list[Token], list[Token]]]:
    """Both ways round, each two words of a message that "or" joins."""
    for text in asked:
        words = [word for word in tokenize(text) if word not in _ARTICLES]
        for before, word, after in zip(words, words[1:], words[2:], strict=False):
            if word == "or":
                yield from (([before], [after]), ([after], [before]))


def _pieces(
    runs: Iterable[Sequence[Token]], at_hand: set[Token], familiar: set[Token], asked: set[Token]
) -> Iterator[tuple[Token, ...]]:
    """The runs of words with content, without familiar words. In a run with what was asked for, each word is one."""
    for words in runs:
        parts = [part for word in words for part in _parts(word, at_hand)]
        for is_content, group in groupby(parts, lambda word: word not in NO_CONTENT):
            run = list(group) if is_content else []
            new = tuple(word for word in run if word not in familiar)
            if new and not asked.isdisjoint(run):
                yield from ((word,) for word in new)
            elif new:
                yield new


def _parts(word: Token, at_hand: set[Token]) -> list[Token]:
    return [word] if word in at_hand or not isinstance(word, str) else [*filter(None, _JOINED.split(word))]


class _Text(str):
    """A text that has to be split into units."""


class _Unit(NamedTuple):
    """Words joined by single spaces."""

    text: str
    is_field: bool
    """It follows a label or is in a cell: all its values count as one."""
    is_label: bool
    goes_on: bool
    """It directly follows a label, or the unit that does."""

    def values(self) -> list[str]:
        if self.is_label:
            return []
        return [self.text] * (self.is_field and len(self.text.split()) <= _SHORT) + _exact(self.text)


def _units(text: str) -> Iterator[_Unit]:
    """A text, split at everything that is neither a word nor a single space between two words."""
    lines = text.split("\n")
    kept = (line for line, below in zip(lines, [*lines[1:], ""], strict=True) if not _is_rule(below))  # no table's head
    text = _NUMBERED.sub("", "\n".join(kept))
    words = [*_WORD.finditer(text)]
    begin, is_field, goes_on = 0, False, False
    for at, word in enumerate(words):
        following = words[at + 1].start() if at + 1 < len(words) else len(text)
        gap = text[word.end() : following]
        if len(gap) == 1 and gap.isspace() and gap not in "\n\t" and at + 1 < len(words):
            continue
        is_label = bool(_NAMES.match(gap))
        last = at if is_label and "=" in gap else begin  # of "city=Graz carrier=DHL" only one word is the label
        if last > begin:
            yield _Unit(text[words[begin].start() : words[last - 1].end()], is_field, False, goes_on)
            goes_on = True
        is_label = is_label and at - last < _LABEL
        yield _Unit(text[words[last].start() : word.end()], is_field, is_label, goes_on)
        is_field = is_label or "|" in gap or (is_field and gap.strip() == ",")
        begin, goes_on = at + 1, is_label


def _is_rule(line: str) -> bool:
    return "--" in line and set(line) <= set("|:-+= \t\r")


def _exact(piece: str) -> list[str]:
    """The numbers, names and identifiers in a part; neighbouring words are one."""
    words = piece.split()
    exact = [any(sign.isdigit() or sign.isupper() or sign in "@_" for sign in word) for word in words]
    if words and words[0][:1].isupper() and words[0][1:].islower() and not all(exact):
        exact[0] = False  # the capital of a sentence's first word is no name's
    runs = [
        " ".join(word for _, word in run)
        for is_exact, run in groupby(zip(exact, words, strict=True), itemgetter(0))
        if is_exact
    ]
    return [run for run in runs if set(tokenize(run)) - NO_CONTENT]


def _is_copied(answer: Sequence[Token], stream: list[Token], most: int) -> bool:
    """Whether a text has more than `most` words in a row of the answer."""
    sign = "\0"
    text = sign + sign.join(map(str, stream)) + sign
    windows = (answer[start : start + most + 1] for start in range(len(answer) - most))
    return any(sign + sign.join(map(str, words)) + sign in text for words in windows)


def _leaves(structured: Any, text: str) -> Iterator[str | int | float]:
    """The values of a result: those of its structured content; without that, those of the JSON documents at the start
    of its text (a list may be one document for each item), and the rest of the text."""
    if structured is not None:
        yield from _values(structured)
        return
    decoder, text, at = json.JSONDecoder(), text.strip(), 0
    while text[at : at + 1] in ("{", "["):
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        yield from _values(document)
        at = _SPACES.match(text, at).end()  # type: ignore[union-attr]
    yield _Text(text[at:])


def _values(value: Any) -> Iterator[str | int | float]:
    for one in plain_values(value):
        is_text = isinstance(one, str) and ("\n" in one.strip() or len(one.split()) > _SHORT)
        yield _Text(one) if is_text else one
