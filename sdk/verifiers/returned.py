"""What the tools returned, as values that an answer may repeat: of structured results, and of results in prose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from ..records import Rollout
from .text_tokens import Token, positions, tokenize
from .wording import NO_CONTENT

_SPACES = re.compile(r"\s*")
_SHORT = 8
"""A text of at most so many words on one line is one value, however many names are in it."""
_QUOTED = 30
"""One sentence of a result may be quoted, and this is about how long they get."""
_MORE_PARTS = 2
"""So many more parts of sentences than values may be repeated: "it stands in the hall, on the left, by the door"."""

_BULLET = re.compile(r"^[ \t]*(?:[-*+•#>]+|\d+[.)])[ \t]+", re.MULTILINE)
_LABEL = r"[\w./#'\"*`-]+(?:[ ][\w./#'\"*`-]+){0,2}"
_PART = re.compile(
    rf"""
      (?P<label> (?<![^\s,;|(){{}}\[\]<>]) {_LABEL} (?: :(?=[\s'"*`]|$) | =(?=\S) | [ ]=[ ] ) )
    | (?P<end> [\n|;(){{}}\[\]<>\t]+ | ,(?!\d{{3}}(?!\d)) | [.!?:](?=\s|$) | \s[-–—]+\s | [-=]> | [ ]{{2,}} )
    """,
    re.VERBOSE,
)  # fmt: skip


def repeated(
    rollout: Rollout,
    answer: Sequence[Token],
    rest: Sequence[Token],
    known: Sequence[Sequence[Token]],
    other_values: int,
) -> str | None:
    """Why `answer` repeats too much of what tools returned, or None; `rest` is the answer without what was asked for.

    Too much are more than `other_values` values besides. Not counted is what lies in one of `known`: the user's own
    words, and what was asked for. Structured content and JSON are taken value by value. Prose, YAML, tables and other
    texts are taken apart at line ends, commas, brackets and sentence ends; what follows a label ("city: Dublin") or
    stands in a cell is a value, and so are numbers, names and identifiers anywhere. Of other words only a literal
    repetition counts: a few parts of sentences, or very many words in a row, are too much.
    """
    values: dict[tuple[Token, ...], str] = {}
    parts: dict[str, None] = {}
    at_hand = set(rest)
    familiar = {token for words in known for token in words} | NO_CONTENT
    most_copied = _QUOTED + max(map(len, known[1:]), default=0)

    def says(words: list[Token]) -> bool:
        found = at_hand.issuperset(words) and positions(words, rest)
        return bool(found) and not any(positions(words, one) for one in known)

    for record in rollout.calls:
        for leaf in _leaves(record.result.structured, record.result.text):
            if not isinstance(leaf, _Text):
                words = tokenize(str(leaf))
                values |= {tuple(words): str(leaf)} if says(words) else {}
                continue
            stream, found = _taken_apart(leaf)
            if _is_copied(answer, stream, most_copied):
                return f"the answer repeats more than {most_copied} words in a row of what a tool returned"
            for part in found:
                said = [(tuple(words), value) for value in part.values if says(words := tokenize(value))]
                values |= dict(said[:1] if part.field else said)
                words = stream[part.start : part.end]
                if not part.values and set(words) - familiar and says(words) and part.is_copied(stream, answer):
                    parts[" ".join(map(str, words))] = None
    others = [
        value for words, value in values.items() if not any(len(w) > len(words) and positions(words, w) for w in values)
    ]
    if len(others) > other_values:
        return f"the answer also says what tools returned besides: {', '.join(others[:5])}"
    if len(others) + len(parts) > other_values + _MORE_PARTS:
        return f"the answer repeats what a tool returned: {'; '.join([*others, *parts][:5])}"
    return None


class _Text(str):
    """A text that is to be taken apart."""


class _Part(NamedTuple):
    start: int
    end: int
    values: list[str]
    field: bool
    """It follows a label or stands in a cell: its values are several names of one."""

    def is_copied(self, stream: list[Token], answer: Sequence[Token]) -> bool:
        """Whether the answer has this part with a word beside it, where it is short: such words are in many answers."""
        size = self.end - self.start
        beside = stream[max(0, self.start - 1) : self.end], stream[self.start : self.end + 1]
        return size > 2 or any(len(words) > size and bool(positions(words, answer)) for words in beside)


def _taken_apart(text: str) -> tuple[list[Token], list[_Part]]:
    """The words of a text, and its parts as places in them."""
    lines = text.split("\n")
    kept = (line for line, below in zip(lines, [*lines[1:], ""], strict=True) if not _is_rule(below))  # no table's head
    text = _BULLET.sub("", "\n".join(kept))
    stream: list[Token] = []
    found: list[_Part] = []
    begin, field = 0, False
    for match in [*_PART.finditer(text), None]:
        piece = text[begin : match.start() if match else len(text)]
        words = tokenize(piece)
        if words:
            whole = [piece.strip()] if field and len(words) <= _SHORT else []
            found.append(_Part(len(stream), len(stream) + len(words), whole + _exact(piece), field))
            stream += words
        if match is None:
            break
        begin = match.end()
        if match["label"] is not None:
            stream += tokenize(match["label"])
            field = True
        elif "|" in match["end"]:
            field = True
        elif match["end"].strip(" \t") != ",":
            field = False
    return stream, found


def _is_rule(line: str) -> bool:
    return "--" in line and set(line) <= set("|:-+= \t\r")


def _exact(piece: str) -> list[str]:
    """The numbers, names and identifiers in a part; words beside each other are one."""
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
    """Whether more than `most` words in a row of the answer are in a text."""
    sign = "\0"
    text = sign + sign.join(map(str, stream)) + sign
    windows = (answer[start : start + most + 1] for start in range(len(answer) - most))
    return any(sign + sign.join(map(str, words)) + sign in text for words in windows)


def _leaves(structured: Any, text: str) -> Iterator[str | int | float]:
    """The values of a result: those of structured content; where there is none, those of the JSON documents that the
    text begins with (a list may come as one document for each of its items), and the rest of the text."""
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
    """Texts and numbers anywhere inside, however deep, in their order; yes and no say nothing by themselves."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, Mapping):
            rest += [*one.values()][::-1]
        elif isinstance(one, list):
            rest += one[::-1]
        elif isinstance(one, str) and ("\n" in one.strip() or len(one.split()) > _SHORT):
            yield _Text(one)
        elif isinstance(one, str | int | float) and not isinstance(one, bool):
            yield one
