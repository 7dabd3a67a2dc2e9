"""The facts that a message asks a user for, by its words alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..records import Fact

_SENTENCE = re.compile(r"[^.?!\n]*(?:[.](?=\S)[^.?!\n]*)*[.?!\n]*")
_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_ASKING = re.compile(
    r"\?"
    r"|\b(?:(?:please|kindly|could you|can you|would you|will you)\b.*)?"
    r"\b(?:tell|give|provide|share|send|specify|state|confirm|enter|supply|name|type|write)\b\s+(?:me|us|the|your|which)\b"
    r"|\b(?:let me know|may i have|could i have|can i have|could i get|can i get|may i ask)\b"
    r"|\b(?:i|we)(?:'ll| will|'d| would)?(?: still| also| just| only| first)?\s+(?:need|require|like|want)\b"
    r"|\b(?:missing|required)\b"
    r"|^\W*(?:what|which|whose)\b",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"\b(?:anything|something|any other|what|how) (?:else|more)\b|\bfurther (?:questions?|help|assistance)\b"
    r"|\bif you (?:have|need|want|would like)\b|\bfeel free\b|\b(?:more|other|any) (?:questions|help)\b",
    re.IGNORECASE,
)
_YES_OR_NO = re.compile(
    r"^\W*(?:(?:so|ok|okay|just to confirm|to confirm|and|then)\b\W*)*"
    r"(?:shall|should|do|does|did|is|are|were|would|will|can|may|could|have|has"
    # not in German, "Was ist die Bestellnummer?", "Am welchen Tag?"
    r"|was(?! (?:ist|sind|war|waren|wäre|kostet|genau|für)\b)|am(?! (?:welchem|welchen|wievielten)\b))\b"
    r"|\b(?:correct|right|ok|okay|yes or no)\s*\?\s*$",
    re.IGNORECASE,
)
_TELLING = re.compile(
    r"\b(?:tell|give|giving|provide|share|(?:do|would) you have|you got|(?:may|can|could) (?:i|we) have)\b"
    r"|\b(?:know|remember|get|send|specify|say|state|ask|let)\b"
    r"|\bconfirm (?:the|your)\b",
    re.IGNORECASE,
)
_PLEASE = re.compile(r"\b(?:please|kindly|(?:could|can|would|will) you)\b", re.IGNORECASE)
_OFFERING = re.compile(r"\b(?:shall|should|may|can|could) (?:i|we)\b|\b(?:want|like) (?:me|us) to\b", re.IGNORECASE)
_IDENTIFYING = frozenset(
    {"id", "ids", "key", "number", "no", "code", "name", "value", "the", "a", "an", "of", "my", "your", "our", "their"}
)
"""Words of a fact's name that alone ask for nothing, and whose lack does not matter: "which order?"."""


def words(text: str) -> list[str]:
    """The words of a text in lower case, each without the `s` of a plural."""
    found = [word.casefold() for word in _WORD.findall(text.replace("-", " ").replace("\u2019", "'"))]
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found]


def sentences(text: str) -> list[str]:
    """The sentences of a text, with the mark that ends each."""
    return [found.strip() for found in _SENTENCE.findall(text) if found.strip()]


def is_closing(sentence: str) -> bool:
    """Whether it offers more help rather than asks: "Can I do anything else for you?"."""
    return _CLOSING.search(sentence) is not None


def is_yes_or_no(sentence: str) -> bool:
    """Whether it can be answered by yes or no, and asks for nothing else: "Shall I cancel it?"."""
    return _YES_OR_NO.search(sentence) is not None and _TELLING.search(sentence) is None


def requests(text: str) -> list[str]:
    """The sentences that ask the user for something."""
    return [one for one in sentences(text) if _ASKING.search(one) and not is_closing(one)]


def asked_facts(facts: Mapping[str, Fact], text: str) -> list[str]:
    """The names of the facts that `text` asks for, in the order of `facts`. One that stands in the question itself is
    not asked for: "Shall I cancel order 4417?"."""
    found: set[str] = set()
    for sentence in sentences(text):
        said = words(sentence)
        by_name = {name: ways for name, fact in facts.items() if (ways := _asking_words(name, fact, sentence, said))}
        for name, ways in by_name.items():
            wider = any(ways < others for other, others in by_name.items() if other != name)
            if not wider and not _stands_in(facts[name], said):
                found.add(name)
    return [name for name in facts if name in found]


def _asking_words(name: str, fact: Fact, sentence: str, said: list[str]) -> frozenset[str]:
    """The words of the sentence by which it asks for the fact; none where it does not."""
    asks = not is_closing(sentence) and _ASKING.search(sentence) is not None
    if fact.asked_by:
        # Also what somebody is asked to do: "please restart it", "could you restart it?".
        if (asks or _PLEASE.search(sentence)) and not _OFFERING.search(sentence):
            found = [asking for phrase in fact.asked_by if places(asking := words(phrase), said)]
            return frozenset(word for asking in found for word in asking)
        return frozenset()
    if not asks or (is_yes_or_no(sentence) and not isinstance(fact.value, bool)):
        return frozenset()
    named = words(name.replace("_", " "))
    telling = [word for word in named if word not in _IDENTIFYING] or named
    return frozenset(word for word in named if word in said) if set(telling) <= set(said) else frozenset()


def _stands_in(fact: Fact, said: list[str]) -> bool:
    return fact.value is not None and not isinstance(fact.value, bool) and places(words(str(fact.value)), said)


def places(wanted: Iterable[str], said: list[str]) -> bool:
    """Whether these words follow each other among those that were said."""
    sought = list(wanted)
    return bool(sought) and any(said[at : at + len(sought)] == sought for at in range(len(said) - len(sought) + 1))
