"""The limit on how much an answer may repeat of what tools returned, in structured results and in prose."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from decimal import Decimal
from itertools import groupby, pairwise, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

from ..records import Rollout
from .text_tokens import NO_CONTENT, Token, narrowed, positions, tokenize
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
    any sign has it; or more than `other_values` others stand in the same words ("It is red. It is blue."). Where
    `several` are wanted, an answer that is nothing but a list has no other items. Where a plain word is wanted and no
    other (`single`), none that the user does not have is joined to it ("Graz and Vienna").

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
    if framed := _framed(said, wanted, other_values):
        return f"the answer says other values in the same words, too: {', '.join(framed[:5])}"
    if not any(words in wanted for words, _ in pieces):
        return None
    others = [" ".join(map(str, one[0])) for one in pieces if is_other(one)]
    is_list = several and sum(words in wanted for words, _ in pieces) > 1 and all(is_bare for _, is_bare in pieces)
    if len(others) > (0 if is_list else other_values + _MORE_ITEMS):
        return f"the answer lists other values, too: {', '.join(others[:5])}"
    return None


def _framed(said: str, wanted: Sequence[Sequence[Token]], other_values: int) -> list[str]:
    """Other values that stand in the same words as a right one, where they are too many: "It is in Graz. It is in
    Linz." Prepositions and articles make no other words. What has no words beside it may be a part of the right value
    ("in Graz, in Austria"), so one more may be said."""
    whole = [tokenize(one) for one in _SEPARATOR.split(said)]
    every = [([w for w in one if w not in _PLACES | _ARTICLES], _PLACES.isdisjoint(one)) for one in whole]
    for form in wanted:
        for right, bare, at in ((one, bare, at) for one, bare in every for at in positions(form, one)):
            before, after = right[:at], right[at + len(form) :]
            pieces = [one for one, is_bare in every if is_bare == bare or not (before or after)]
            inner = [
                one[at : len(one) - len(after)]
                for one in pieces
                if one[:at] == before and one[max(at, len(one) - len(after)) :] == after
            ]
            values = (one for one in inner if 0 < len(one) <= _ITEM and NO_CONTENT.isdisjoint(one))
            others = {tuple(one) for one in values if one not in wanted}
            if len(others) > other_values + (0 if before or after else _MORE_ITEMS):
                return [" ".join(map(str, one)) for one in others]
    return []


def _is_second(other: Sequence[Token], right: Sequence[Token]) -> bool:
    """Whether words beside the right value are a second one of its kind: plain, and no longer ("Graz and Vienna", but
    not "Graz and arrives tomorrow"). "Done" is not a value: whatever stands beside it was done."""
    is_plain = not any(sign.isdigit() for word in (*other, *right) for sign in str(word))
    return is_plain and len(other) <= len(right) and not NO_CONTENT.issuperset(right)


# ---------------------------------------------------------------------------------------------------------------------
# Candidates that the user names. The words of the prompt are excused elsewhere; here they are not.

_CUT = re.compile(
    r"\s*(?:,(?!\d)|[;/|\n\t•·&()]|\s[-–—+*]\s|[.!?](?=\s|$)"
    r"|\b(?:and|or|nor|plus|vs\.?|versus|as well as|(?:along|together) with|while|whereas|so|then|now)\b)\s*",
    re.IGNORECASE,
)
_ENDING = re.compile(r"[.!?;\n()–—-]|\b(?:while|whereas|so|then|now)\b", re.IGNORECASE)
"""After one of these signs begins another sentence."""
_QUESTION = frozenset({"which", "who", "whom", "whose", "what", "where", "when", "how"})
_NUMBERING = re.compile(r"(?<!\S)(?:\d{1,2}[.)]|[A-Za-z]\))\s")
_NEGATIONS = frozenset({"not", "no", "never", "neither", "nor", "cannot", "without", "except", "instead", "rather"})
_TELLING = frozenset({"but", "than", "only", "just", "to", "into", "as", "before", "after", "because", "since"})
_LIGHT = NO_CONTENT - _NEGATIONS - _TELLING
"""Words that tell nothing of a candidate."""
_RANKED = re.compile(r"\s>\s|,?\s(?:and\s)?then\b|\bfollowed by\b", re.IGNORECASE)
"""What comes after it in a rank is not said to be right: "A-17 arrived first, then A-19"."""


class _Part(NamedTuple):
    """Words between two separators."""

    mark: str
    """What separates it from the part before."""
    words: list[Token]


def _cut(text: str) -> list[_Part]:
    parts: list[_Part] = []
    begin, mark = 0, "\n"
    for found in [*_CUT.finditer(text), None]:
        words = tokenize(text[begin : found.start() if found else len(text)])
        if words:
            parts.append(_Part(mark, words))
            mark = ""
        begin, mark = (found.end(), mark + found[0]) if found else (0, "")
    return parts


def _all_rivals(asked: str, forms: Iterable[tuple[Token, ...]]) -> set[tuple[Token, ...]]:
    """What a message lists beside each of some values."""
    lines = "\n".join(_NUMBERING.sub("", line, count=1) for line in re.sub(r":(?=\s)", ".", asked).splitlines())
    parts, capitals = _cut(lines), {word for name in _CAPITAL.findall(asked) for word in tokenize(name)}
    return {item for form in forms for item in _rivals(parts, capitals, form)}


def _rivals(parts: Sequence[_Part], capitals: Set[Token], form: Sequence[Token]) -> Iterator[tuple[Token, ...]]:
    """What the parts of a message list beside a value: 17 and 23 for 19 in "Which of the orders 17, 19 and 23 is late?"

    An item ends the first part of a list, is each of those between, and begins the last one. Words that both have
    ("order 17 or order 19") and units do not count. An item has the shape of the value: its digits, or its capital.
    """
    units = {word for word in form if isinstance(word, str)} if isinstance(form[0], Decimal) else set[Token]()

    def shape(word: Token) -> object:
        if not isinstance(word, str):
            return Decimal
        return re.sub(r"\d+", "0", word) if any(map(str.isdigit, word)) else word in capitals

    def is_apart(words: Sequence[Token], item: Token, own: Sequence[Token], value: Token) -> bool:
        """Whether what stands before a comma is not an item: "In 2024, 17 or 19?", "Which is larger, red or blue?" """
        theirs, mine = (some.index(one) for some, one in ((words, item), (own, value)))
        is_placed = [some[max(0, at - 1)] in _PLACES for some, at in ((words, theirs), (own, mine))]
        if is_placed[0] and theirs > 1:  # "Is it in Graz, Linz or Wels?": the preposition is that of all
            is_placed[1] = True
        return is_placed[0] != is_placed[1] or ("of" not in words and not _QUESTION.isdisjoint(words))

    for at, step in ((at, step) for at in range(len(parts)) for step in (-1, 1)):
        own, place = parts[at].words, at + step
        while 0 <= place < len(parts) and not re.search(r"[.!?;()]", mark := parts[max(place, place - step)].mark):
            other = parts[place].words
            same = _ARTICLES | units | {word for word in {*own} & {*other} if isinstance(word, str)}
            value, mine, theirs = ([w for w in ws if w not in same | NO_CONTENT][::step] for ws in (form, own, other))
            # Both are read towards each other: `value` ends `mine`, and the item begins `theirs`.
            if not value or mine[-len(value) :] != value:
                break
            item = [*takewhile(lambda word, like=value[0]: shape(word) == shape(like), theirs[: len(value)])]  # type: ignore[misc]
            if not item or item == value:
                break
            is_longer = sum(word not in same for word in other) > len(item)
            if is_longer and ("\n" in mark or (step < 0 and "," in mark and is_apart(other, item[0], own, value[0]))):
                break
            yield tuple(item[::step])
            if is_longer:
                break
            place += step


_CAPITAL = re.compile(r"\b[^\W\d_a-z][\w'-]*")


class _Named(NamedTuple):
    """A candidate in an answer, with the words that tell something of it."""

    value: tuple[Token, ...]
    place: int
    begins: bool
    has_verb: bool
    before: list[Token]
    after: list[Token]


def several_asked(said: str, right: Sequence[Sequence[Token]], asked: Sequence[str]) -> str | None:
    """The reason why an answer does not choose among the candidates that the user named, the `right` one being one of
    them, or None: it joins the right one with others, and says it no more often than each of them. So no answer is
    right for two of them.

    Two candidates are joined where the same is said of both ("17 and 19 are late", "It is 17. It is 19."), and not
    where one is denied or other words follow it ("17 is on time, 19 is late", "19 is later than 17").
    """
    forms = {tuple(word for word in form if word not in NO_CONTENT) for form in right} - {()}
    rivals = {item for text in asked for item in _all_rivals(narrowed(text), {*map(tuple, right)})} - forms
    if not rivals:
        return None
    denials = _NEGATIONS - {word for text in asked for word in tokenize(text)}
    first = _RANKED.split(said, maxsplit=1)[0]
    if any(positions(form, [word for word in tokenize(first) if word not in NO_CONTENT]) for form in forms):
        said = first
    named = [
        one
        for one in _candidates(said, forms | rivals)
        if one.value in forms
        or not any(word in denials or str(word).endswith("n't") for word in (*one.before, *one.after))
    ]
    often = Counter(one.value for one in named)
    runs: list[list[_Named]] = []
    for one in named:
        if runs and _are_joined(runs[-1][-1], one):
            runs[-1].append(one)
        else:
            runs.append([one])
    most = max((often[form] for form in forms), default=0)
    for run in runs:
        others = [one.value for one in run if one.value in rivals and often[one.value] >= most]
        if others and any(one.value in forms for one in run):
            return f"the answer also says {' '.join(map(str, others[0]))!r}, another one that was asked about"
    return None


def _are_joined(one: _Named, other: _Named) -> bool:
    if one.place == other.place:
        return other.before in ([], one.before, other.after)
    if other.begins:
        return (one.before, one.after) == (other.before, other.after)
    if one.has_verb and other.has_verb and not one.after and other.after:
        return False  # "It is 19, and 17 is on time"
    return (not one.after or not other.after or one.after == other.after) and other.before in ([], one.before)


def _candidates(said: str, values: Iterable[tuple[Token, ...]]) -> list[_Named]:
    """The candidates in an answer in their order. In "not 17 or 19" and "17 and 19 are late" each has the same words
    beside it."""
    light = _LIGHT | {word for value in values if len(value) > 1 for word in value[1:] if isinstance(value[0], Decimal)}
    found: list[_Named] = []
    if not any(isinstance(word, Decimal) for value in values for word in value):
        said = _NUMBERING.sub(", ", said)
    for place, part in enumerate(_cut(said)):
        words = [word for word in part.words if word not in light or any(word in value for value in values)]
        spots = sorted((at, -len(value), value) for value in values for at in positions(value, words))
        ends = 0
        begins = bool(_ENDING.search(part.mark))
        for number, (at, _, value) in enumerate(spots):
            if at < ends:
                continue
            stop = next((spot[0] for spot in spots[number + 1 :] if spot[0] >= at + len(value)), len(words))
            before, after = (
                [w for w in some if w not in light] for some in (words[ends:at], words[at + len(value) : stop])
            )
            has_verb = not _HEADS.isdisjoint(part.words)
            if not before and found and not begins and found[-1].place != place and not found[-1].after:
                before = found[-1].before
            found.append(_Named(value, place, begins, has_verb, before, after))
            ends, begins = at + len(value), False
        if not spots and found and not begins:
            found[-1].after.extend(word for word in words if word not in light)
    for one, other in reversed([*pairwise(found)]):
        if not one.after and not one.has_verb and not other.begins and one.place != other.place:
            one.after.extend(other.after)
    return found


# ---------------------------------------------------------------------------------------------------------------------


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
        exact[0] = False  # the capital of a sentence's first word is not a name's
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
