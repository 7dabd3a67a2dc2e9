"""Is the number in the answer the right amount, in whatever unit it is said?"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..errors import ConfigError, VerifierError
from ..records import Rollout, Verdict
from .answer_forms import DENIALS, gold, judged_answer, user_texts, words_asked
from .comparing import shortened
from .quantities import UNITS, Quantity, quantities
from .tokens import tokenize

_FORM = "a number, a text such as '12.5 kg', or {'value': 12.5, 'unit': 'kg'}"
_HEDGES = frozenset({"or", "either", "maybe", "perhaps", "possibly"})
_SMALL = "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_BETWEEN = re.compile(rf"\bbetween\s+(?:\w+\s+)?(?:[^\w\s]?\d|(?:{_SMALL})\b)", re.IGNORECASE)
"""A range. What lies between two places is none."""
_BEFORE = re.compile(
    r"(?:\b(?:not|no|never|isn't|wasn't|cannot|(?:more|less|fewer|greater|other|rather) than|at (?:least|most)|up to"
    rf"|over|under|above|below|(?:close|closer|near|nearer|next|{_SMALL}) to)"
    r"|(?:^\W*|\b(?:is|are|from|about|around|roughly|approximately|costs?|takes?|weighs?)\s+)"
    r"\d[\d.,]*(?:\s?[^\W\d]+)? to"
    r")\b\s*(?:\w+\s+)?$"
    r"|\b(?:half|twice|thrice|double|triple|times)(?:\s+(?:of|the|these|those))*\s+$",
    re.IGNORECASE,
)
"""What may not stand right before the number: it is denied there, only bounded, or a part of another amount. "10 to"
bounds it; "set to", "sent to" and "of order 17 to" do not."""
_CLAUSE = re.compile(r"[.,;:!?](?=\s|$)|\n|\b(?:and|but)\b", re.IGNORECASE)
_SLACK = Decimal("1e-18")
"""Factors such as 5/9 are cut off after 28 digits."""


@dataclass(frozen=True, repr=False)
class AnswerNumber:
    """See `answer_number`."""

    within: float = 0.0
    relative: float = 0.0
    max_words: int = 40

    def __post_init__(self) -> None:
        for name, value in (("within", self.within), ("relative", self.relative)):
            if isinstance(value, bool) or not math.isfinite(value) or value < 0:
                raise ConfigError(f"answer_number: {name} is {value!r}; give a finite number from 0")
        if self.relative >= 1:
            raise ConfigError(f"answer_number: relative is {self.relative!r}; it is a share, such as 0.01 for 1 %")
        if self.max_words < 1:
            raise ConfigError(f"answer_number: max_words is {self.max_words}; it must be 1 or more")

    def __repr__(self) -> str:
        shown = [f"{name}={value:g}" for name, value in (("within", self.within), ("relative", self.relative)) if value]
        return f"answer_number({', '.join(shown + [f'max_words={self.max_words}'] * (self.max_words != 40))})"

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the answer says the expected amount and no other."""
        wanted = _wanted(rollout)
        asked = {(one.amount, one.dimension) for text in user_texts(rollout) for one in quantities(text)}
        denials = DENIALS - words_asked(rollout)
        return judged_answer(rollout, lambda said: self._problem(said, wanted, asked, denials))

    def _problem(
        self, said: str, wanted: Quantity, asked: set[tuple[Decimal, str]], denials: frozenset[str]
    ) -> str | None:
        words = tokenize(said)
        if len(words) > self.max_words:
            return f"the answer has {len(words)} words, more than max_words={self.max_words}"
        if hedge := next((word for word in words if word in _HEDGES), None):
            return f"the answer hedges: {hedge!r}"
        if _BETWEEN.search(said):
            return "the answer hedges: 'between'"
        found = quantities(said)
        right = [one for one in found if self._same(one, wanted)]
        others = [one for one in found if one not in right and (one.amount, one.dimension) not in asked]
        if not right:
            unitless = bool(wanted.dimension) and any(not one.dimension for one in others)
            return f"the answer does not say {wanted.text}" + ", its number has no unit that is known" * unitless
        if any(_BEFORE.search(said[: one.start]) or _denied(said, one, denials) for one in right):
            return "the answer denies the number, only bounds it, or says a part or a multiple of it"
        return f"the answer also says {others[0].text!r}" if others else None

    def _same(self, one: Quantity, wanted: Quantity) -> bool:
        bare = not wanted.dimension
        value, target = (one.number, wanted.number) if bare else (one.amount, wanted.amount)
        if value is None or target is None or (not bare and one.dimension != wanted.dimension):
            return False
        allowed = max(Decimal(repr(self.within)) * wanted.factor, Decimal(repr(self.relative)) * abs(target))
        return abs(value - target) <= allowed + _SLACK * max(abs(target), Decimal(1))


def answer_number(*, within: float = 0.0, relative: float = 0.0, max_words: int = 40) -> AnswerNumber:
    """A verifier: the answer says the amount in `task.expected["answer"]`, and no other.

    The expected answer is a number, a text such as `"12.5 kg"`, or `{"value": 12.5, "unit": "kg"}`. With a unit, the
    answer may use another one of the same kind (12 500 g) but not none; without one, the number counts and its unit is
    not looked at. Units of length, mass, time, volume, data, speed, energy, power and temperature are known, percent,
    and six currencies, which are not exchanged; `sdk.verifiers.quantities.UNITS` lists them.

    `within` is the largest difference in the unit of the expected answer, `relative` as a share of its amount; the
    larger counts. The answer does not count where it has another number that the prompt does not have, hedges ("12 or
    13"), denies something in the clause with the number, only bounds it ("at least 12"), says another amount by it
    ("twice 12"), or has more than `max_words` words.

    Example: `answer_number(relative=0.01)` with `expected={"answer": "1.5 kg"}`
    """
    return AnswerNumber(within=within, relative=relative, max_words=max_words)


def _denied(said: str, one: Quantity, denials: frozenset[str]) -> bool:
    """Whether the clause in which a number stands denies something that the prompt does not."""
    start = max([0, *(found.end() for found in _CLAUSE.finditer(said, 0, one.start))])
    after = _CLAUSE.search(said, one.start + len(one.text))
    return any(word in denials for word in tokenize(said[start : after.start() if after else len(said)]))


def _wanted(rollout: Rollout) -> Quantity:
    answer = gold(rollout, "answer", _FORM)
    text = f"{answer['value']} {answer['unit']}" if _is_pair(answer) else str(answer)
    known = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    found = quantities(text) if known or _is_pair(answer) else []
    if len(found) != 1 or found[0].text != text.strip():
        raise VerifierError(
            f"task {rollout.task.id!r}: expected['answer'] is {shortened(answer)}, which is not one number; it must be "
            f"{_FORM}, with a unit among {', '.join(sorted(UNITS))}"
        )
    return found[0]


def _is_pair(answer: Any) -> bool:
    return isinstance(answer, Mapping) and set(answer) == {"value", "unit"}
