"""Verifiers of an answer in free text: a number with its unit, or expected words, without reward hacks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from typing import Any

from ..errors import ConfigError, VerifierError, require_number
from ..records import Rollout, Verdict
from .answer_forms import DENIALS, gold, judged_answer, words_asked
from .repetition import listed, repeated, several_asked
from .text_tokens import (
    NO_CONTENT,
    UNITS,
    Quantity,
    Token,
    as_typed,
    is_number,
    narrowed,
    other_currency,
    other_unit,
    positions,
    quantities,
    sentences,
    tokenize,
)
from .value_checks import missing_expected, shortened, too_long, wrong_expected
from .verifier import ReadyMade

# ---------------------------------------------------------------------------------------------------------------------
# The answer names an amount, in any unit of its kind.

_FORM = "a number, a text such as '12.5 kg', or {'value': 12.5, 'unit': 'kg'}"
_HEDGES = frozenset({"maybe", "perhaps", "possibly"})
_CHOICES = frozenset({"or", "either"})
"""Words that hedge in a sentence with a number. "Ask me for more or for anything else." has none."""
_ONES = "one|two|three|four|five|six|seven|eight|nine"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_SMALL = f"zero|{_ONES}|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_BETWEEN = re.compile(rf"\bbetween\s+(?:\w+\s+)?(?:[^\w\s]?\d|(?:{_SMALL}|{_TENS})\b)", re.IGNORECASE)
"""A range of numbers ("between 3 and 5"), not of places."""
_MULTIPLE_BEFORE = r"\b(?:half|twice|thrice|double|triple|times)(?:\s+(?:of|the|these|those))*:?\s+$|[×]\s*$"
_MULTIPLE_AFTER = (
    r"\s*\b(?:dozen|hundred|thousand|million|billion|and (?:(?:an?|one|two|three) )?(?:half|third|quarter|fifth)s?)\b"
    r"|(?:\s?k|[mb]|[bm]n|st|nd|rd|th)\b|\s*[/*×x^]\s*\d|\s*(?:\+|plus\W*$)|\s+\d+/\d"
    "|\\s*[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2150-\u215e]"
)
_LIMITS = "at least|(?:more|less|fewer|greater) than|over|under|above|below|almost|nearly"
_LIMIT_BEFORE = re.compile(
    r"\b(?:(?:a )?(?:min|max)(?:imum)?\.?(?: of)?|exceed(?:s|ed|ing)?|upwards? of|in excess of|within|beyond"
    rf"|as (?:many|much|few|little|high|low|long) as|approach(?:es|ing)|short of|{_LIMITS})\s+$",
    re.IGNORECASE,
)
_LIMIT_AFTER = re.compile(
    r"\s*\b(?:(?:and|or) (?:above|up|upwards?|over|more|higher|greater|below|lower|under|less|fewer|beyond|counting)"
    r"|upwards?|at least|(?:at )?(?:an? )?(?:min|max)(?:imum)?|too (?:many|much|few|little)"
    r"|pairs?|couples?)\b",
    re.IGNORECASE,
)
"""Words beside a number with which it is a limit, or another amount, unless the prompt has them. "At most" is not
among them: "The policy refunds at most 100" is how a limit is told."""
_ESTIMATE_BEFORE = re.compile(r"\b(?:about|around|roughly|approximately|approx\.?|circa)\s+$|[~≈]\s*$", re.IGNORECASE)
_ESTIMATE_AFTER = re.compile(r"-?ish\b|\s*\b(?:or so|approximately|roughly)\b", re.IGNORECASE)
"""What makes an estimate of a number, unless the prompt has these words or a tolerance takes estimates."""
_COUNTED = re.compile(r"\bhow many\b(?! of\b)")
_SHARES = frozenset({"percent", "percentage", "cent", "pct", "share"})
"""A question for a number of things: no percentage is one. What other questions ask for may be a percentage."""
_RATE = re.compile(
    r"\s*\b(?:per|an? (?=(?:second|minute|hour|day|night|week|month|year|person|unit|piece|item)\b(?! (?:ago|later))))"
    r"\s*(?P<of>\w+)",
    re.IGNORECASE,
)
_RATES = frozenset({"per", "each", "every", "one", "single", "rate", "price", "average"})
_RATES |= {"daily", "hourly", "weekly", "monthly", "yearly", "annual"}
"""Words of a prompt that asks for an amount per something."""
_BEFORE = re.compile(
    rf"(?:\b(?:not|no|never|isn't|wasn't|cannot|(?:other|rather) than|at most|up to|{_LIMITS}"
    r"|as much as|used to be|(?:may|might|could|would|let's) (?:be|say)|if (?:\w+ ){0,2}(?:is|was)"
    rf"|(?:close|closer|near|nearer|next|{_SMALL}) to)"
    r"|(?:^\W*|\b(?:is|are|from|about|around|roughly|approximately|costs?|takes?|weighs?)\s+)"
    r"\d[\d.,]*(?:\s?[^\W\d]+)? to"
    rf")\b\s*(?:\w+\s+)?$|[<>≤≥±]\s*$|{_MULTIPLE_BEFORE}",
    re.IGNORECASE,
)
"""Words that must not precede the number: they deny it, only bound it, or make it part of another amount. "10 to"
bounds it; "set to", "sent to" and "of order 17 to" do not."""
_AFTER = re.compile(rf"\s*\b(?:or (?:more|less|fewer|over|under)|at (?:most|least))\b|{_MULTIPLE_AFTER}", re.IGNORECASE)
"""Words right after the number that do."""
_CLAUSE = re.compile(r"[.,;:!?](?=\s|$)|\n|\b(?:and|(?<!anything )but)\b", re.IGNORECASE)
_POUNDS = re.compile(r"(?<=\d )pounds?\b(?! of\b)", re.IGNORECASE)
_SLACK = Decimal("1e-18")
"""Tolerance for factors such as 5/9, which have 28 digits here."""


_DIGITS = {"none": "0", **{word: str(number) for number, word in enumerate(_SMALL.split("|"))}}
_DIGITS |= {word: str(number) for number, word in zip(range(20, 100, 10), _TENS.split("|"), strict=True)}
_NUMBER_WORD = re.compile(
    rf"(?P<larger>\b(?:{_TENS}|hundred|thousand|million|point)(?:[\s-]+and)?[\s-]+)?"
    rf"(?:\b(?:none|{_SMALL.replace('|one|', '|')}|(?:{_TENS})(?![\s-]+(?:{_ONES})\b))\b"
    r"|(?:(?<=\bis )|(?<=\bhas )|(?<=\bhave )|(?<=\bonly )|(?<=\bexactly )|^)one\b(?!'s)"
    r"(?!\s(?:of|or|that|which|who|another|more|can|must|should|may|cannot)\b))"
    r"(?!-\w|[\s-]+(?:hundred|thousand|million|billion|point|and\sa|half|halves|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten)ths?)\b)",
    re.IGNORECASE,
)
"""A number word alone, not a part of another one ("twenty-three", "two hundred", "two thirds"), and not every "one",
which is not a number in "the blue one" and "one of them"."""


_MINUS = re.compile(r"(?<![\d)] )\b(?:minus|negative)\s(?=[$€£¥₹]?\d)", re.IGNORECASE)
"""Written out, the sign of a number; not in a calculation ("10 minus 5")."""


def _with_digits(text: str) -> str:
    """As a keyboard types it, with small numbers in digits, their signs, and powers of ten written out (1e-07)."""
    text = _NUMBER_WORD.sub(lambda found: found[0] if found["larger"] else _DIGITS[found[0].casefold()], as_typed(text))
    return _POWER.sub(lambda found: f"{Decimal(found[0]):f}", _MINUS.sub("-", text))


def _with_signs(text: str) -> str:
    return _MINUS.sub("-", as_typed(text))


_POWER = re.compile(r"(?<![\w.,-])\d(?:\.\d+)?[eE][-+]\d{1,2}(?![\w-])")
_HALVES = re.compile(r"(?<![\w.,)])\.(?=\d)")
_HOURS = re.compile(r"(?<![\w.,:-])(\d+)\s?h\s?(\d+)(?:\s?m(?:in)?)?\b", re.IGNORECASE)
_DEGREES = re.compile(r"(?<=\d)\s?([CF])\b(?!-)")


def _in_full(said: str, dimension: str) -> str:
    """An answer with amounts of a dimension written out that have an everyday short form: .5, 2h30m, -5 C, and pounds
    where they are money."""
    said = _HALVES.sub("0.", said)
    if dimension == "time":
        return _HOURS.sub(r"\1 h \2 min", said)
    if dimension == "kelvin":
        return _DEGREES.sub(r" °\1", said)
    return _POUNDS.sub("GBP", said) if dimension == "GBP" else said


@dataclass(eq=False, repr=False)
class answer_number(ReadyMade):
    """A verifier: the answer names the amount in `task.expected["answer"]`, and no other.

    The expected answer is a number, a text such as `"12.5 kg"`, or `{"value": 12.5, "unit": "kg"}`. Where it has a
    unit, the answer needs one of the same kind (12 500 g); where it has none, only the number counts. Units of length,
    mass, time, volume, data, speed, energy, power and temperature are known, percent, and six currencies, which are not
    exchanged; `sdk.verifiers.text_tokens.UNITS` lists them. Upper and lower case do not matter, except where another
    unit is written so: mW is not MW, and Gb is not GB. Numbers up to nineteen, and the tens, count also as words.

    `within` is the largest difference in the unit of the expected answer, `relative` as a share of its amount; the
    larger counts. The answer is wrong where it has another number that the prompt does not have, hedges ("12 or
    13"), joins it with others that the prompt lists ("17 and 19" for "17 or 19?"), lists other words ("rug, 12, open,
    Porto"), denies or doubts something in the clause with the number, only
    bounds it ("at least 12") or, where no tolerance is given, estimates it ("about 12"), makes another amount of it
    ("twice 12", "12 kg per day" for 12 kg), or has more than `max_words` words.

    Example: `answer_number(relative=0.01)` with `expected={"answer": "1.5 kg"}`
    """

    _: KW_ONLY
    within: float = 0.0
    relative: float = 0.0
    max_words: int = 40

    def __post_init__(self) -> None:
        for name, value in (("within", self.within), ("relative", self.relative)):
            require_number(f"answer_number: {name}", value, least=0)
        if self.relative >= 1:
            raise ConfigError(f"answer_number: relative is {self.relative!r}; it is a share, such as 0.01 for 1 %")
        if self.max_words < 1:
            raise ConfigError(f"answer_number: max_words is {self.max_words}; it must be 1 or more")

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the answer says the expected amount and no other."""
        wanted = _wanted(rollout)
        texts, words = [_with_digits(text) for text in rollout.user_texts], words_asked(rollout)
        return judged_answer(rollout, lambda said: self._problem(said, wanted, texts, words))

    def _problem(self, said: str, wanted: Quantity, texts: list[str], words_asked: list[Any]) -> str | None:
        if reason := too_long(said):
            return reason
        said = _in_full(as_typed(narrowed(said)), wanted.dimension)
        words = tokenize(said)
        if len(words) > self.max_words:
            return f"the answer has {len(words)} words, more than max_words={self.max_words}"
        hedges = [word for word in words if word in _HEDGES]
        hedges += [word for one in sentences(said) if quantities(one) for word in tokenize(one) if word in _CHOICES]
        if hedges:
            return f"the answer hedges: {hedges[0]!r}"
        if _BETWEEN.search(said):
            return "the answer hedges: 'between'"
        found = quantities(said)
        if not any(self._same(one, wanted) for one in found):
            said = _with_digits(said)  # "12.5 kg in two boxes" has one number
            found = quantities(said)
        right = [one for one in found if self._same(one, wanted)]
        told = [one for text in texts for one in quantities(text)]
        asked = {(one.amount, one.dimension) for one in told}
        others = [one for one in found if one not in right and (one.amount, one.dimension) not in asked]
        if not right:
            unitless = next((one for one in others if not one.dimension), None) if wanted.dimension else None
            return f"the answer does not say {wanted.text}" + (
                _unknown_unit(said, unitless, wanted) if unitless else ""
            )
        denials = DENIALS.difference(words_asked)
        is_exact = not self.within and not self.relative
        denied = any(
            _BEFORE.search(said[: one.start])
            or _AFTER.match(said, one.start + len(one.text))
            or _is_another(said, one, words_asked, bool(wanted.dimension), is_exact=is_exact)
            or _denied(said, one, denials, words_asked)
            for one in right
        )
        ends = [_CLAUSE.search(said, one.start + len(one.text)) for one in right]
        if denied or all(end is not None and end[0] == "?" for end in ends):
            return "the answer asks about the number, denies, bounds or estimates it, or says another amount with it"
        if others:
            return f"the answer also says {others[0].text!r}"
        forms = [tokenize(one.text) for one in right]
        asked_forms = [tokenize(one.text) for one in told if self._same(one, wanted)]
        return several_asked(said, forms + asked_forms, texts) or listed(said, forms, other_values=1)

    def _same(self, one: Quantity, wanted: Quantity) -> bool:
        bare = not wanted.dimension
        value, target = (one.number, wanted.number) if bare else (one.amount, wanted.amount)
        if value is None or target is None or (not bare and one.dimension != wanted.dimension):
            return False
        # In base units 0 °C is 273.15: the share is one of the number as written.
        size = abs(target) if bare or wanted.number is None else abs(wanted.number) * wanted.factor
        allowed = max(Decimal(repr(self.within)) * wanted.factor, Decimal(repr(self.relative)) * size)
        return abs(value - target) <= allowed + _SLACK * max(abs(target), Decimal(1))


_BESIDE = frozenset({"in", "of", "for", "from", "on", "at", "each"})


def _counted(answer: Sequence[Token], rest: Sequence[Token]) -> list[Token]:
    """Of the words beside the right number those that may be a second one: not "in two bays", nor "two of them"."""
    beside = {
        word
        for at, word in enumerate(answer)
        if not _BESIDE.isdisjoint(answer[max(0, at - 2) : at]) or answer[at + 1 : at + 2] == ["of"]
    }
    return [word for word in rest if word not in beside]


def _unknown_unit(said: str, one: Quantity, wanted: Quantity) -> str:
    """What is said of a number without a unit that is known."""
    after = re.match(r"\s?([^\W\d_]+)", said[one.start + len(one.text) :])
    if after is not None and after[1].casefold() in UNITS:
        read = f"{after[1]!r} after it is read as no unit, because of what follows"
    else:
        read = f"{after[1]!r} after it is not a known unit" if after else "no unit is read after it"
    kind = "temperature" if wanted.dimension == "kelvin" else wanted.dimension
    return f": its number is {one.text}, and {read}; {wanted.text!r} needs a unit of {kind}"


def _is_another(said: str, one: Quantity, asked: Sequence[Any], has_unit: bool, *, is_exact: bool = True) -> bool:
    """Whether the words beside a number make another amount of it, or a limit or an estimate (where it `is_exact`) that
    the prompt, with its words `asked`, does not ask for. Where the expected amount `has_unit`, one per day is another;
    where it has none, a percentage is not a number of things."""
    before, after = said[: one.start], said[one.start + len(one.text) :]
    if re.search(_MULTIPLE_BEFORE, before, re.IGNORECASE) or re.match(_MULTIPLE_AFTER, after, re.IGNORECASE):
        return True
    of_things = _COUNTED.search(" ".join(map(str, asked))) and _SHARES.isdisjoint(asked)
    if one.dimension == "share" and not has_unit and of_things:
        return True
    bounds = [_LIMIT_BEFORE.search(before), _LIMIT_AFTER.match(after)]
    bounds += [_ESTIMATE_BEFORE.search(before), _ESTIMATE_AFTER.match(after)] if is_exact else []
    words = [word for found in bounds if found for word in tokenize(found[0]) or [found[0]]]
    if any(word not in asked for word in words if word not in ("a", "an", "of", "and")):
        return True
    rate = _RATE.match(after) if has_unit and _RATES.isdisjoint(asked) else None
    return rate is not None and rate["of"].casefold() not in asked


def _denied(said: str, one: Quantity, denials: frozenset[str], asked: list[Any]) -> bool:
    """Whether the clause with the number denies or doubts what the prompt, with its words `asked`, does not."""
    start, stop = max([0, *(found.end() for found in _CLAUSE.finditer(said, 0, one.start))]), one.start + len(one.text)
    end = found.start() if (found := _CLAUSE.search(said, stop)) else len(said)
    if any(word in denials for word in tokenize(said[start:end])):
        return True
    before, after = (" ".join(map(str, tokenize(part))) for part in (said[start : one.start], said[stop:end]))
    denial = _denies(before, after, asked)
    return denial is not None and not set(asked).issuperset(tokenize(denial))


def _wanted(rollout: Rollout) -> Quantity:
    answer = gold(rollout, "answer", _FORM)
    text = f"{answer['value']} {answer['unit']}" if _is_pair(answer) else str(answer)
    known = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    found = quantities(text) if known or _is_pair(answer) else []
    if len(found) != 1 or found[0].text != text.strip():
        form = f"{_FORM}, with a unit among {', '.join(sorted(UNITS))}"
        problem = f"is {shortened(answer)}, which is not one number; it must be {form}"
        raise wrong_expected(rollout.task, "answer", problem)
    return found[0]


def _is_pair(answer: Any) -> bool:
    return isinstance(answer, Mapping) and set(answer) == {"value", "unit"}


# ---------------------------------------------------------------------------------------------------------------------

STATUSES = (
    *("pending", "processing", "packed", "shipped", "in transit", "delivered", "cancelled", "returned", "refunded"),
    *("in stock", "out of stock"),
)
"""The default of `options`: an answer may name only the right one of these."""

YES, NO = ("yes", "true"), ("no", "false")
"""How each of the two is written."""
_NEGATIONS = frozenset({"not", "no", "never", "nor", "without", "isn't", "wasn't", "aren't", "weren't", "hasn't"})
_NEGATIONS |= {"cannot", "non", "ain't", "isnt", "wasnt", "arent", "werent", "hasnt", "aint"}
_CONTRACTED = frozenset({"don't", "doesn't", "didn't", "haven't", "hadn't", "won't", "wouldn't", "can't", "couldn't"})
_CONTRACTED |= {word.replace("'", "") for word in _CONTRACTED}
_UNFULFILLED = frozenset({"fails", "failed", "might", "could"})
"""Words after which an action did not happen or may not have: "failed to get shipped", "might have been shipped"."""
_NUMBERED = frozenset({"account", "article", "batch", "booking", "case", "contract", "customer", "delivery", "flight"})
_NUMBERED |= {"invoice", "item", "lot", "member", "model", "order", "part", "product", "ref", "reference", "room"}
_NUMBERED |= {"serial", "shipment", "ticket", "tracking", "unit", "vehicle"}
"""Words before "no" that make it short for number."""
_LIGHT = frozenset({"yet", "already", "still", "ever", "actually", "really", "currently", "even", "fully", "quite"})
_LIGHT |= {"be", "been", "being", "get", "got", "gotten", "have", "has", "had", "to"}
"""Words that may be between a negation and what it negates: "not yet been shipped", "didn't get shipped"."""
_UP_TO_IT = rf"(?: (?:{'|'.join(sorted(_LIGHT))}|it|it's|them|now))*$"
_NOT_REACHED_BEFORE = re.compile(
    # "will be shipped"
    r"(?:\b(?:will|should|would|almost|nearly|hardly|barely|nothing|nobody)"
    # "may have been shipped", "They want it shipped."; not "on 2 May shipped"
    r"|\b(?:can|may|must|awaiting|process of|wants?|wanted|please) (?:be|get|have|being|getting|it|them)\b"
    # "ready to be shipped"; not "is known to be shipped", "turned out to be shipped"
    r"|(?:^|\b(?!(?:confirmed|reported|known|found|shown|said|listed|marked|seems?|appears?|out) )[\w#'-]+ )"
    r"to (?:be|get|have)\b"
    # "once order 4417 is shipped"
    r"|\b(?:once|when|until|unless|if|as soon as|in case) (?:\S+ ){0,2}"
    rf"(?:is|are|was|were|has|have|gets?|got|it's|they're)){_UP_TO_IT}"
    # "not so far been shipped", "never left or got shipped"; not "not late and shipped", "Don't worry it's shipped"
    r"|\b(?:not|never|\w+n't)(?: (?!(?:and|only|just|worry)\b)\S+){0,4}$"
)
_HEDGED = re.compile(r"\b(?:can|may|must|might|could)\b")
_NOT_REACHED_AFTER = re.compile(r"(?:it )?(?:is|was|has) (?:not\b|what it's not)")
"""Words before and after a status with which it is not reached. A name or a day may stand there: "will be Monday"."""
_CROSS, _TICK = re.compile("[\u274c\u2717\u2718\u2716]"), re.compile("[\u2705\u2713\u2714\u2611]")
"""Signs with which a model crosses something out or ticks it off."""
_DOUBTFUL = "probably|perhaps|maybe|possibly|presumably|allegedly|supposedly|purportedly"
_DOUBT = (
    rf"(?:{_DOUBTFUL}|i (?:think|guess|believe|suppose|assume)|unclear|unconfirmed"
    r"|(?:i am |i'm )?(?:not (?:sure|certain)|unsure|uncertain))"
)
"""Says after a value that it is not sure: "BAY-12, I think." """
_CLAUSE_END = re.compile(
    rf"(?<=[.!?;])\s+|,\s+(?!(?:but )?{_DOUBT}\W*(?:$|\n))|\n+|\s+-+\s+|(?<!anything )\bbut\b(?!\s+{_DOUBT}\W*(?:$|\n))"
    r"|:\s+(?!(?:false|untrue|wrong|incorrect|no)\b)",
    re.IGNORECASE,
)
_ALL_BUT = re.compile(r"\b((?:every|all|any|each)\w*(?: of(?: the)?)?(?: \w+)?) but\b", re.IGNORECASE)
_DENIED_BEFORE = re.compile(
    r"\b(?:whether|either|doubt|unlikely|untrue|neither|no way|no idea|anything but|far from"
    rf"|{_DOUBTFUL}|likely|i (?:think|believe)"
    r"|no (?:sign|record|evidence|indication|proof|confirmation)"
    r"|(?:did not|didn't|do not|don't) (?:see|find|think|believe|know)"
    r"|(?:not|never|no|\w+n't)(?: \S+){1,3} n?or$"
    r"|(?:may|might|could)(?: well)? be$|(?:one|some|any) of$"
    r"|(?:except|other than|opposite of|rather than|instead of|opposed to|used to be)$"
    r"|(?:false|wrong|incorrect|not true|un(?:clear|sure|certain)|not (?:sure|clear|certain)) (?:that|if)"
    r"|(?:cannot|can't|could not|couldn't|unable to|not) (?:confirm|verify|say|tell)|assum(?:e|es|ing)|suppose"
    r"|(?:i|my) guess|supposed to|refused to|(?:less|more|fewer) than(?: \w+){0,2}$)\b"
)
_DENIED_AFTER = re.compile(
    r"(?:(?:is|was|are|were|be|would|a|an|simply|just|clearly) )*"
    r"(?:(?:false|wrong|incorrect|untrue|lie|mistaken)\b|no$)"
    rf"|(?:but )?{_DOUBT}$"
)
"""Words before a value, and right after it, that deny or doubt it."""
_NOT_SO = re.compile(
    r"(?:\w+n't|cannot|(?:is|was|are|were|has|have|had|does|do|did|will|would|can|could|should|must|need)"
    r"(?: (?:also|still|now|currently|probably|certainly))* (?:not|never|hardly|no longer|unlikely))\b"
    r"(?! (?:only|just)\b)"
)
_MAY_BE = re.compile(r"(?:might|may|could) (?:be|have|not|well|also)\b")
_LACKING = DENIALS | _NEGATIONS | _CONTRACTED | {"unpaid", "overdue", "missing", "absent", "outstanding", "remaining"}
_LACKING |= {"no", "none", "lack", "lacks", "pending", "owe", "owes", "fail", "failed", "fails"}
_POSSIBLE = frozenset({"can", "may", "might", "could", "possible", "possibly"})
"""Words right after a value that deny or doubt what it is, and words of a question that asks for just that: "Who has
not paid?", "Which bay may be free?" """
_TO_DO = re.compile(r"\b(?:must|needs?|(?:has|have|had|yet|left|remains?) to)\b")
_NOT_DONE = re.compile(
    r"(?:has|have|had|is|are|was|were|did)(?: (?:also|still|now|currently))?(?:n't| (?:not|never))\b"
)
"""A question for what is still to be done, and how an answer says that it is not done: "Who still has to pay?", "Anna
has not paid." "Anna does not have to pay." says another thing."""


def _denies(before: str, after: str, asked: Sequence[Any]) -> str | None:
    """The words of a clause that deny or doubt the value between both parts, which are its words joined by blanks.
    `asked` are the user's words."""
    found = _DENIED_BEFORE.search(before) or _DENIED_AFTER.match(after)
    if found is None and _LACKING.isdisjoint(asked):
        found = _NOT_SO.match(after)
        if found and _NOT_DONE.match(found[0]) and _TO_DO.search(" ".join(map(str, asked))):
            found = None
    if found is None and _POSSIBLE.isdisjoint(asked):
        found = _MAY_BE.match(after)
    return found[0] if found else None


_OTHER_WORD = {
    word: re.compile(rf"\b{word}\b(?![.:]*\s*#?(?:\w+[-/])*\w*\d)(?=\s*(?:[.,;:!?]|$))", re.IGNORECASE)
    for word in ("yes", "no")
}
"""Yes or no alone in a clause or at its end. "no problem" and "order no. A-4417" are no such replies."""
_FORM_ASKED = re.compile(
    r"\byes\b.*\bno\b|\bno\b.*\byes\b|\b(?:otherwise|else|if not)\b"
    r"|(?:^|[,;:] )(?:please )?(?:say|answer|reply|respond|write)\b.*\b(?:yes|no)\b.*(?<!\?)$"
)
"""A sentence that asks for a form of answer: "yes or no", "Otherwise say no.", "If it has not, answer no." """
_CHOICE = re.compile(r"\byes\b[^\w?]+(?:\w[.):]\s*)?no\b|\bno\b[^\w?]+(?:\w[.):]\s*)?yes\b", re.IGNORECASE)
"""Both words side by side, such as one on each line: the choices of an answer."""
_WORD_ALONE = re.compile(r"\W*(?:yes|no)\W*")
_REPLY_LEAD = re.compile(
    r"\W*(?:(?:(?:the|my|final) )*answer(?: is)?|unfortunately|sure|certainly|well|ok(?:ay)?|(?:hi|hello|dear)(?: \w+)?"
    r"|i (?:have )?checked(?: and)?|[\"'`]\w+[\"'`]\s*:)\W+(?=\w)",
    re.IGNORECASE,
)
_REPLY = re.compile(r"\W*(yep|yeah|yup|nope)\b", re.IGNORECASE)
"""What may come before yes or no ("The answer is yes.", "Sure! Yes", `{"paid": true}`), and other words for them."""
_TO_THE_JUDGE = re.compile(r"\b(score|reward|verdict|grade)\b[\s\"'*]*[:=]", re.IGNORECASE)
_REPEATS = 2
"""How often an answer may repeat the prompt."""
_NO_REPLY = re.compile(
    r"\W*no (?:\w+ )?(?:idea|clue|information|data|access|tools?|records?|results?|details?|way|doubt|problem|worries"
    r"|answer|match(?:es)?)\b",
    re.IGNORECASE,
)
"""Begins with no, and does not answer the question with it."""
_UNSURE = re.compile(
    rf"\b(?:{_DOUBTFUL}|i (?:think|guess|believe|assume)|not sure|unsure"
    r"|(?:don't|do not|cannot|can't) (?:know|say|tell)"
    r"|(?:can|will|let me) (?:check|look|find out))\b",
    re.IGNORECASE,
)
"""Beside yes or no: whoever says this does not know."""


_Golds = list[list[list[list[Token]]]]
"""What must all be said, each with its acceptable answers, each in the forms that it may have."""


def _forms(golds: _Golds) -> list[list[Token]]:
    return [form for choices in golds for choice in choices for form in choice]


@dataclass(eq=False, repr=False)
class answer_match(ReadyMade):
    """A verifier: the final answer contains `task.expected["answer"]`, and no reward hack.

    The expected answer is a string, a number, a bool (yes or no), a list of acceptable ones, or `{"all": [...]}`, whose
    items must all be in the answer (each may itself be a list of acceptable ones). Case, punctuation, spaces, thousands
    separators and a currency that only one of both names are ignored; another currency is wrong, and so is mW for MW
    and Gb for GB. Numbers are compared by value, up to nineteen and tens also as words; 12 is found in none of 312,
    A-12 and a date. A sign at the end of a word counts: C++, C#, A+, O-. English dates and times are those of tools
    (December 1, 2026 is 2026-12-01, 2:30 PM is 14:30), and `in_progress` is also "in progress".

    By default the answer may be a sentence that contains the expected one. It is wrong where

    - the rollout did not end with an answer, or the answer is empty or only repeats the prompt;
    - the expected words are negated ("not shipped", "bay 12 is not free", unless the prompt asks what is not), or every
      clause with them only asks, doubts ("maybe shipped", "bay 12, I think"), calls them wrong or tells what is not so
      yet ("ready to be shipped"); or the reply does not begin with yes or no, or the opposite follows
      ("Yes, but the answer is no", "Yes, it has not");
    - the expected answer is one of `options` (or of `task.expected["options"]`, which takes precedence), and the answer
      gives another option, too ("shipped, not yet delivered" gives one);
    - a plain word is expected, and another one that the prompt does not have is joined to it ("Graz and Vienna");
      not where the expected one is one of `options`, or `other_values` is above 1;
    - a number is expected, and the answer has other numbers that the prompt does not have (unless `other_numbers`);
    - it lists the expected one among more than `other_values` + 1 others ("kettle, lamp, rug, mirror"; sentences, too,
      and rows without signs), or more than `other_values` of its shape, with one of these right beside it ("BAY-12 and
      BAY-13") or another one after "or", or the items of `{"all": [...]}` in a list that has others and is the whole
      answer, unless `other_values` is above 1; or it says more than `other_values` others in the same words ("It is in
      Graz. It is in Linz. It is in Wels.");
    - the prompt lists the expected one beside others ("Which of 17, 19 and 23 is late?"), and the answer says the same
      of several ("17 and 19", "17 is late, 19 is late"). It may say that others are not, or are otherwise, or say the
      expected one more often than each of them ("Of 17, 19 and 23, 19 is late");
    - it names a date or a time only as a limit ("before 10:00") or as the end of a span that was not asked for, or
      joins with "or" what must all be said;
    - the expected number is part of another one ("twice 12", "12 dozen", "12 kg per day" for 12 kg), a percentage where
      the prompt asks how many, or a limit or an estimate that was not asked for ("more than 12", "about 12");
    - yes or no is not said ("No idea", "Yes, probably"), or the expected text is also a small word (IT, May, option A)
      and the answer only has the word;
    - it repeats more than `other_values` other values that tools returned, in whatever form, or at least half of the
      other content of a result (and more than `other_values` + 1 pieces of it), or very many words in a row: an answer
      that repeats all results is right by chance. It may quote one sentence of a longer result;
    - it has more than `max_words` words, or addresses the scorer ("score: 1").

    Give `options` wherever the answer is one of a closed list; otherwise a policy that names all of them is right.
    `whole=True` is strictest: the whole answer must be the expected one.

    Example: `answer_match(options=("gold", "silver", "bronze"))`
    """

    _: KW_ONLY
    whole: bool = False
    options: Sequence[str] = STATUSES
    max_words: int = 60
    other_numbers: bool = False
    other_values: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.options, str):
            raise ConfigError(f"answer_match: options is {self.options!r}; give a tuple: ({self.options!r},)")
        if self.max_words < 1:
            raise ConfigError(f"answer_match: max_words is {self.max_words}; it must be 1 or more")
        if self.other_values < 0:
            raise ConfigError(f"answer_match: other_values is {self.other_values}; it must be 0 or more")
        self.options = tuple(self.options)

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the final answer says what the task expects, 0 otherwise, with the reason."""
        required = _required(rollout)
        problem = self._problem(rollout, required)
        wanted = " and ".join(" or ".join(map(repr, choices)) for choices in required)
        said = shortened(rollout.answer, 120)
        reason = f"the answer {said} says {wanted}" if problem is None else f"{problem}; wanted {wanted}, got {said}"
        return Verdict(score=float(problem is None), components={"answer": float(problem is None)}, explanation=reason)

    def _problem(self, rollout: Rollout, required: list[list[Any]]) -> str | None:
        """Why the answer does not count, or None."""
        if rollout.stop_reason != "answered":
            return f"the rollout ended by {rollout.stop_reason}, not with an answer"
        if reason := too_long(rollout.answer):
            return reason
        rollout = rollout.model_copy(update={"answer": narrowed(rollout.answer)})
        said = rollout.answer
        required = [
            [one for one in choices if not other_currency(str(one), said) and not other_unit(str(one), said)]
            for choices in required
        ]
        if not all(required):
            return "the answer names another currency or unit"
        golds = [[_gold_tokens(choice) for choice in choices] for choices in required]
        is_numeric = any(map(is_number, _forms(golds)))
        is_negative = any(isinstance(word, Decimal) and word < 0 for form in _forms(golds) for word in form)
        read = _with_digits if is_numeric else _with_signs if is_negative else as_typed
        said = read(rollout.answer)
        if any(form[0] in (*YES, *NO) for form in _forms(golds)):
            said = _reply(said)
        answer = tokenize(said)
        if not answer:
            return "the answer is empty"
        prompt = [tokenize(read(text)) for text in rollout.user_texts]
        known = [token for text in prompt for token in text]
        if len(answer) > (most := self.max_words + _REPEATS * len(known)):
            # One that goes on and on, such as an untrained model's, would take long to look through.
            return f"the answer has {len(answer)} words, more than max_words={self.max_words} and the prompt ({most})"
        scored = _TO_THE_JUDGE.search(said)
        if scored and scored[1].casefold() not in [*known, *tokenize(" ".join(map(str, _flat(required))))]:
            return "the answer speaks to whoever scores it"
        if not self.whole and (reason := _not_asserted(said, golds, words_asked(rollout), self._statuses(rollout))):
            return reason
        answer = _without(prompt, answer)
        if self.whole:
            if len(golds) != 1:
                raise VerifierError(
                    "answer_match(whole=True) takes one answer; expected['answer'] has the form {'all': ...}"
                )
            return None if any(answer == form for choice in golds[0] for form in choice) else "the answer is another"
        if len(answer) > self.max_words:
            return f"the answer has {len(answer)} words, more than max_words={self.max_words}"
        asked = [read(text) for text in rollout.user_texts]
        problem = self._contained_problem(said, answer, golds, required, rollout, known)
        return problem or several_asked(said, _forms(golds), asked)

    def _contained_problem(
        self,
        said: str,
        answer: list[Token],
        golds: _Golds,
        required: list[list[Any]],
        rollout: Rollout,
        known: list[Token],
    ) -> str | None:
        spans: set[int] = set()
        for choices, texts in zip(golds, required, strict=True):
            found = [
                (at, form)
                for choice, text in zip(choices, texts, strict=True)
                if _is_named(text, said)
                for form in choice
                for at in positions(form, answer)
                if _stands(form, at, answer)
            ]
            if not found:
                return "the answer does not say it"
            forms = [form for _, form in found]
            amounts = [one for one in quantities(said) if [one.number] in forms or tokenize(one.text) in forms]
            has_unit = any(one.dimension for text in texts for one in quantities(str(text)))
            if amounts and all(_is_another(said, one, known, has_unit) for one in amounts):
                return f"the answer says a limit, an estimate, a part or a multiple of {amounts[0].text}"
            for at, form in found:
                spans |= set(range(at, at + len(form)))
        if (turned := _turned(rollout, golds)) is not None:
            return f"the answer also says {turned!r}"
        if hedged := _spanned(said, golds, known) or _joined_by_or(answer, golds):
            return f"the answer hedges: {hedged!r}"
        rest = [token for at, token in enumerate(answer) if at not in spans]
        other = self._other_option(said, rest, golds, rollout)
        if other is not None:
            return f"the answer also says {other!r}"
        if not self.other_numbers and any(map(is_number, _forms(golds))):
            in_digits = tokenize(_MINUS.sub("-", rollout.answer))
            if not any(positions(form, in_digits) for form in _forms(golds)):
                in_digits = _counted(answer, rest)  # "twelve, thirteen"; but "12.5 kg in two boxes" has one number
            stray = next((t for t in rest if isinstance(t, Decimal) and t not in known and t in in_digits), None)
            if stray is not None:
                return f"the answer also says {stray:f}, a number that was not asked about"
        right = _forms(golds)
        if told := repeated(rollout, answer, rest, [known, *right], self.other_values):
            return told
        others = _of_the_same_shape(answer, spans, golds, known)
        is_strict = self.other_values <= 1  # whoever allows more of them allows them in a list
        if len(others) > self.other_values or (is_strict and any(_beside(said, one, right) for one in others)):
            return f"the answer also says {', '.join(others[:5])}"
        is_closed = any(form in right for forms in self._options(rollout).values() for form in forms)
        is_single = is_strict and not is_closed  # of a closed list, the options are what else may not be said
        several = is_strict and len(golds) > 1
        return listed(said, right, self.other_values, rollout.user_texts, single=is_single, several=several)

    def _options(self, rollout: Rollout) -> dict[str, list[list[Token]]]:
        options = rollout.task.expected.get("options", self.options)
        if not isinstance(options, list | tuple) or not all(isinstance(option, str) for option in options):
            raise wrong_expected(rollout.task, "options", f"is {shortened(options)}; give a list of strings")
        return {option: _written(option) for option in options}

    def _statuses(self, rollout: Rollout) -> list[list[Token]]:
        """What may not be reached yet: the usual statuses, and options such as "approved"."""
        some = [forms for option, forms in self._options(rollout).items() if option.islower() and option.endswith("ed")]
        return [*_USUAL, *(form for forms in some for form in forms)]

    def _other_option(self, said: str, rest: list[Token], golds: _Golds, rollout: Rollout) -> str | None:
        """Another of the options that the answer gives besides the right one. "Shipped, but not yet delivered." gives
        one."""
        options, statuses = self._options(rollout), self._statuses(rollout)
        right = _forms(golds)
        if not any(form in right for forms in options.values() for form in forms):
            return None  # the answer is none of a closed list
        clauses = _clauses(said)
        for option, forms in options.items():
            for form in forms:
                if form not in right and positions(form, rest) and _is_given(form, clauses, form in statuses):
                    return option
        return None


def _required(rollout: Rollout) -> list[list[Any]]:
    """The expected answers, each as the list of its acceptable forms."""
    expected = rollout.task.expected
    form = "a string, a number, a bool, a list of acceptable ones, or {'all': [...]}"
    if "answer" not in expected:
        raise missing_expected(rollout.task, f"answer_match compares with expected['answer'], {form}")
    gold = expected["answer"]
    parts = gold["all"] if isinstance(gold, dict) and set(gold) == {"all"} and isinstance(gold["all"], list) else [gold]
    required = [part if isinstance(part, list) else [part] for part in parts]
    flat = _flat(required)
    for choice in flat:
        if not isinstance(choice, str | int | float) or not tokenize(str(choice)):
            problem = f"holds {choice!r} of which nothing can be found in an answer; it must be {form}"
            raise wrong_expected(rollout.task, "answer", problem)
    if not flat or not all(required):
        raise wrong_expected(rollout.task, "answer", f"is {gold!r}, which is empty; it must be {form}")
    return required


def _flat(required: list[list[Any]]) -> list[Any]:
    return [choice for choices in required for choice in choices]


def _gold_tokens(choice: Any) -> list[list[Token]]:
    """The token sequences that an acceptable answer may have."""
    if isinstance(choice, bool):
        return [[word] for word in (YES if choice else NO)]
    if isinstance(choice, float):
        return [[Decimal(repr(choice)).normalize()]]
    return _written(str(choice))


_HOUR = r"\d\d:\d\d(?::\d\d)?"
_MOMENT = rf"(?:\d{{4}}-\d\d-\d\d(?: {_HOUR})?|{_HOUR})(?![\w:-])"
_SPAN = re.compile(
    rf"(?P<from>{_MOMENT})\s*(?:-+|[–—]|to|till|until|through)\s*(?P<to>{_MOMENT})"
    rf"|\bbetween (?P<from2>{_MOMENT}) and (?P<to2>{_MOMENT})",
    re.IGNORECASE,
)
_MOVED = re.compile(
    r"\b(?:moved|changed|rescheduled|postponed|shifted|delayed|updated|switched)\b[^.;]*$", re.IGNORECASE
)
_LIMIT = re.compile(rf"\b(before|until|till|after|earlier than|later than)\s+({_MOMENT})", re.IGNORECASE)
_ENDS = frozenset({"before", "until", "till", "end", "ends", "close", "closes", "expire", "expires", "deadline", "due"})
_ENDS |= {"last", "latest", "long", "valid"}
"""A question with such a word may be answered with "until 18:00"."""


def _spanned(said: str, golds: _Golds, known: list[Token]) -> str | None:
    """Where the answer names an expected date or time only as the limit or the end of a span, its words."""
    forms = _forms(golds)
    right = {form[0] for form in forms if len(form) == 1}
    for span in _SPAN.finditer(said):
        ends = [tokenize(span["from"] or span["from2"]), tokenize(span["to"] or span["to2"])]
        is_right = [any(positions(form, end) for form in forms) for end in ends]
        is_known = [is_one or set(known).issuperset(end) for is_one, end in zip(is_right, ends, strict=True)]
        if any(is_right) and not all(is_known) and not _MOVED.search(said[: span.start()]):
            return span[0]
    for limit in _LIMIT.finditer(said):
        word = limit[1].split()[0].lower()
        excused = word in known or (word in ("before", "until", "till") and not _ENDS.isdisjoint(known))
        if limit[2] in right and not excused and said.count(limit[2]) == 1:
            return limit[0]
    return None


def _joined_by_or(answer: list[Token], golds: _Golds) -> str | None:
    """Two values joined by "or" that must both be said."""
    words = [word for word in answer if word not in ("a", "an", "the")]
    parts = [[form for choice in choices for form in choice] for choices in golds]
    for one, other in ((one, other) for one in parts for other in parts if one is not other):
        for before, after in ((before, after) for before in one for after in other):
            if positions(both := [*before, "or", *after], words):
                return " ".join(map(str, both))
    return None


def _of_the_same_shape(answer: list[Token], spans: set[int], golds: _Golds, known: list[Token]) -> list[str]:
    """The identifiers, dates and times of an answer that look like an expected one, such as BAY-13 for BAY-12."""
    forms = _forms(golds)
    shapes = {_shape(form[0]) for form in forms if len(form) == 1} - {None}
    found = [
        str(token)
        for at, token in enumerate(answer)
        if at not in spans and token not in known and _shape(token) in shapes and answer[at - 1] not in _NEGATIONS
    ]
    return list(dict.fromkeys(found))


def _beside(said: str, other: str, right: list[list[Token]]) -> bool:
    """Whether `said` lists another identifier right beside an expected one: "BAY-12 and BAY-13"."""
    ends = [re.escape(other), "|".join(re.escape(str(form[0])) for form in right if len(form) == 1)]
    pairs = "|".join(rf"(?:{one})(?:[\s,/&]+(?:and\s+)?)(?:{two})" for one, two in (ends, ends[::-1]))
    return re.search(rf"(?<![\w-])(?:{pairs})(?![\w-])", said, re.IGNORECASE) is not None


def _shape(token: Token) -> str | None:
    """A word with its digits made equal; None for a number and a word without digits."""
    return re.sub(r"\d+", "0", token) if isinstance(token, str) and any(map(str.isdigit, token)) else None


_IN_CODE = re.compile(r"[^\W\d_]+(?:([_ -])[^\W\d_]+)(?:\1[^\W\d_]+){0,3}")


def _written(text: str) -> list[list[Token]]:
    """The tokens of a text, and of a value such as `in_progress` also as "in progress" and "in-progress"."""
    parts = re.split("[_ -]", text) if _IN_CODE.fullmatch(text) else []
    return [
        tokenize(text),
        *(tokens for sign in "_ -" if parts and (tokens := tokenize(sign.join(parts))) != tokenize(text)),
    ]


_USUAL = [form for status in STATUSES for form in _written(status)]


def _without(prompts: list[list[Token]], answer: list[Token]) -> list[Token]:
    """The answer without repeated prompts."""
    for prompt in prompts:
        while len(prompt) > 1 and (found := positions(prompt, answer)):
            answer = answer[: found[0]] + answer[found[0] + len(prompt) :]
    return answer


def _turned(rollout: Rollout, golds: _Golds) -> str | None:
    """The opposite of the expected yes or no, where the answer has it and the prompt does not.

    A prompt that asks for the form ("Answer yes or no.", a choice on two lines) has neither. The answer may repeat
    sentences of the prompt.
    """
    wanted = {form[0] for form in _forms(golds) if len(form) == 1}
    asked = [sentence for text in rollout.user_texts for sentence in _sentences(text)]
    statements = [one for text in rollout.user_texts for one in _sentences(_CHOICE.sub(" ", text))]
    told = " ".join(sentence for sentence in statements if not _FORM_ASKED.search(sentence))
    said = " ".join(one for one in _sentences(rollout.answer) if one not in asked or _WORD_ALONE.fullmatch(one))
    for word, opposite in (("yes", "no"), ("no", "yes")):
        found = _OTHER_WORD[opposite].search
        if word in wanted and opposite not in wanted and found(said) and not found(told):
            return opposite
    return None


_ALSO_A_WORD = {word for word in NO_CONTENT if len(word) <= 2} - {"no", "on", "up"} | {"us"}
_ALSO_A_MONTH = frozenset({"May", "Will"})
_LETTER = r"(?:^\W*|[(:*\"']\s*|(?:'s|\b(?:is|option|answer|choice|grade))\W+){letter}(?![+-])(?=\W*(?:$|[.):,*\"'\n]))"
_SIGNED = re.compile(r"[A-Z]{1,2}-?")
"""May be a grade or a blood group: "O-" is not "O". What ends in a plus is a word of its own anyway."""


def _is_named(gold: Any, said: str) -> bool:
    """Whether an answer names a value that is also a small word in other letters (IT, US, May, option A), and does not
    only have the word; and whether its sign is there. True for all other values."""
    if not isinstance(gold, str) or not (gold.isupper() or gold in _ALSO_A_MONTH):
        return True
    if _SIGNED.fullmatch(gold):
        without = r"(?!\w)" if gold.endswith("-") else r"(?!\w|-\W*$)"
        if re.search(rf"(?<!\w){gold}{without}", said, re.IGNORECASE | re.MULTILINE) is None:
            return False
    if gold in ("A", "I"):
        return re.search(_LETTER.format(letter=gold), said, re.MULTILINE) is not None
    if gold not in _ALSO_A_MONTH and not set(tokenize(gold)) <= _ALSO_A_WORD:
        return True
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", said) is not None


def _reply(said: str) -> str:
    """An answer that is to be yes or no, without what comes before the word."""
    for _ in range(3):
        lead = _REPLY_LEAD.match(said)
        said = said[lead.end() :] if lead else said
    word = _REPLY.match(said)
    return said if word is None else ("no" if word[1].lower() == "nope" else "yes") + said[word.end() :]


def _is_no_reply(said: str, choices: list[list[list[Token]]], known: list[Token]) -> str | None:
    """What shows that yes or no, where it is expected, is not meant as the reply; None where nothing does."""
    words = [form[0] for choice in choices for form in choice if len(form) == 1]
    if not all(word in (*YES, *NO) for word in words) or not words:
        return None
    found = [_NO_REPLY.match(said) if "no" in words else None, _UNSURE.search(said)]
    unsure = next((one[0] for one in found if one is not None and not positions(tokenize(one[0]), known)), None)
    return unsure or _opposite(said, known)


_REPLY_CLAUSE = re.compile(r"\W*(yes|no)\W+", re.IGNORECASE)
_NOT = (DENIALS | _NEGATIONS | _CONTRACTED) - {"no"}
_AUXILIARY = frozenset({"is", "are", "was", "were", "has", "have", "had", "does", "do", "did"})
_PRONOUN = frozenset({"it", "they", "he", "she", "that", "this", "there", "you"})
_NOT_YET = frozenset({"only", "to", "being", "or", "will", "would", "can", "could", "may", "might", "so", "too", "no"})


def _opposite(said: str, asked: list[Token]) -> str | None:
    """The clause after yes that denies what was asked, in the words of the question and in their order, or the one
    after no that says it: "Yes, it has not been paid." """
    reply = _REPLY_CLAUSE.match(said)
    if reply is None or not _LACKING.isdisjoint(asked) or "or" in asked:
        return None
    words = next((words for _, words in _clauses(said[reply.end() :]) if words), [])
    rest = iter(asked)
    if not all(word in rest for word in words if word not in NO_CONTENT | _NOT):
        return None
    denied = not _NOT.isdisjoint(words)
    if reply[1].lower() == "no":
        says_it = bool(words) and words[0] in _PRONOUN and not _AUXILIARY.isdisjoint(words)
        found = says_it and not denied and _NOT_YET.isdisjoint(words)
    else:
        found = denied
    return " ".join(map(str, words)) if found else None


def _sentences(text: str) -> list[str]:
    """The sentences of a text without case and spaces."""
    return [" ".join(sentence.casefold().split()) for sentence in re.split(r"(?<=[.!?])\s+|\n+", text)]


def _stands(form: list[Token], at: int, answer: list[Token]) -> bool:
    """Whether no negation is right before the words that the answer has at `at`."""
    if form[0] in (*YES, *NO) and len(form) == 1:
        return at == 0
    at -= _label(form, at, answer)
    negations = _NEGATIONS - {"no"} if is_number(form) else _NEGATIONS  # "order no 4417"
    if any(token in negations for token in answer[max(0, at - 2) : at]):
        return False
    while at and answer[at - 1] in _LIGHT:
        at -= 1
    return not at or answer[at - 1] not in negations | _CONTRACTED | _UNFULFILLED


def _label(form: list[Token], at: int, answer: list[Token]) -> int:
    """How many words before a code are its label, with a "no" that is short for number: "The part no is PN-148C.",
    "Invoice no. A17". What is before them may deny the code: "It is not invoice no. A17"."""
    if len(form) != 1 or is_number(form) or not any(map(str.isdigit, str(form[0]))):
        return 0
    count = 3 if answer[at - 1 : at] and answer[at - 1] in _AUXILIARY else 2
    label = answer[max(0, at - count) : at]
    is_labelled = len(label) == count and label[0] in _NUMBERED and label[1] == "no"
    return count if is_labelled and answer[max(0, at - count - 1) : at - count] not in (["this"], ["that"]) else 0


def _clauses(text: str) -> list[tuple[str, list[Token]]]:
    text = _ALL_BUT.sub(r"\1 except", text)
    return [(clause.strip(), tokenize(clause)) for clause in _CLAUSE_END.split(text) if clause]


def _is_given(form: list[Token], clauses: list[tuple[str, list[Token]]], is_status: bool) -> bool:
    """Whether a clause has the words without a negation before them, and does not tell that a status is to come."""
    for clause, words in clauses:
        for at in positions(form, words):
            before = " ".join(map(str, words[:at]))
            open_yet = is_status and _NOT_REACHED_BEFORE.search(before) and not _HEDGED.search(before)
            if _stands(form, at, words) and not open_yet and not clause.endswith("?"):
                return True
    return not any(positions(form, words) for _, words in clauses)


def _not_asserted(answer: str, golds: _Golds, known: list[Token], statuses: list[list[Token]]) -> str | None:
    """The reason why every clause with an expected value only asks about it, doubts it or calls it wrong, or why a
    status is not reached; None where one clause asserts it. The answer may repeat the user's own words about it.
    """
    clauses = _clauses(answer)
    for choices in golds:
        reasons: list[str | None] = []
        if unsure := _is_no_reply(answer, choices, known):
            return f"the answer does not assert it: {unsure!r}"
        for number, (clause, words) in enumerate(clauses):
            for form in (form for choice in choices for form in choice):
                is_reply = len(form) == 1 and form[0] in (*YES, *NO)
                for at in positions(form, words):
                    if is_reply and (number or at):
                        continue
                    before, after = (" ".join(map(str, part)) for part in (words[:at], words[at + len(form) :]))
                    found = _denies(before, after, known)
                    if found is None and form in statuses:
                        open_yet = _NOT_REACHED_BEFORE.search(before) or _NOT_REACHED_AFTER.match(after)
                        found = open_yet[0] if open_yet else None
                    denied = found is not None and not positions(tokenize(found), known)
                    crossed = _CROSS.search(clause) if not _TICK.search(clause) else None
                    reasons.append("asks" if clause.endswith("?") else found if denied else crossed and crossed[0])
        if reasons and None not in reasons:
            return f"the answer does not assert it: {reasons[0]!r}"
    return None
