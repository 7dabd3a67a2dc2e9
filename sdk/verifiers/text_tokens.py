"""Words, numbers, quantities and sentences of a text, in forms that can be compared."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

# ---------------------------------------------------------------------------------------------------------------------
# Numbers with units in a text, and when two of them are the same amount.

_TABLE: dict[str, dict[str, str]] = {
    "length": {
        "mm millimetre millimeter": "0.001",
        "cm cms centimetre centimeter": "0.01",
        "m metre meter": "1",
        "km kms kilometre kilometer": "1000",
        "inch inches": "0.0254",
        "ft foot feet": "0.3048",
        "yd yard": "0.9144",
        "mi mile": "1609.344",
    },
    "mass": {
        "mg milligram": "0.000001",
        "g gram": "0.001",
        "kg kgs kilogram kilo": "1",
        "t tonne": "1000",
        "oz ounce": "0.028349523125",
        "lb lbs pound": "0.45359237",
    },
    "time": {
        "ms millisecond": "0.001",
        "s sec second": "1",
        "min minute": "60",
        "h hr hrs hour": "3600",
        "d day": "86400",
        "wk week": "604800",
    },
    "volume": {"ml mls millilitre milliliter": "0.001", "cl": "0.01", "l litre liter": "1"},
    "data": {
        "b byte": "1",
        **{f"{name}b": str(1000**power) for power, name in enumerate("kmgt", 1)},
        **{f"{name}ib": str(1024**power) for power, name in enumerate("kmgt", 1)},
    },
    "speed": {"m/s": "1", "km/h kmh kph": "0.2777777777777777777777777778", "mph": "0.44704"},
    "energy": {"j joule": "1", "kj": "1000", "wh": "3600", "kwh": "3600000"},
    "power": {"milliwatt": "0.001", "w watt": "1", "kw kilowatt": "1000", "mw megawatt": "1000000"},
    "share": {"% percent pct": "1"},
    "kelvin": {"k kelvin": "1", "°c celsius": "1", "°f fahrenheit": "0.5555555555555555555555555556"},
    "EUR": {"€ eur euro": "1"},
    "USD": {"$ usd dollar": "1", "cent": "0.01"},
    "GBP": {"£ gbp": "1"},
    "JPY": {"¥ jpy yen": "1"},
    "CHF": {"chf": "1"},
    "INR": {"₹ inr rupee": "1"},
}
_SHIFT = {"°c": Decimal("273.15"), "celsius": Decimal("273.15"), "°f": Decimal("255.3722222222222222222222222")}
_SHIFT["fahrenheit"] = _SHIFT["°f"]

UNITS = {
    name: (dimension, Decimal(factor))
    for dimension, units in _TABLE.items()
    for names, factor in units.items()
    for name in names.split()
}
"""Unit in lower case -> its dimension and how much of the dimension's base unit it is. Currencies are not exchanged."""

_OTHERS = "k M G T Mg Mm Ms Ml Kb Mb Gb Tb Kib Mib Gib Tib"
_AS_WRITTEN = {"mW": "milliwatt", **dict.fromkeys(_OTHERS.split(), "")}
"""Units that are others in lower case: a thousand, a million, tonnes, bits. "" is not a unit of `UNITS`."""

_SIGNS = "$€£¥₹"
_CODE = "|".join(code for code in _TABLE if code.isupper())
_NUMBER = (
    r"\d{1,3}(?:['’\u00a0\u202f\u2009]\d{3}){1,6},\d{1,2}(?![\d,])|"
    r"\d{1,3}(?:[,'’\u00a0\u202f\u2009]\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d+|\d+\.\d+|\d+,\d{1,2}(?![\d,])|\d+"
)
_DEGREES = r"(?:°|deg(?:ree)?s?)\s?(?:celsius|fahrenheit|[cf])"
_QUANTITY = re.compile(
    rf"(?<![\w.,:/-])(?P<sign>[-−]|\b(?:minus|negative)\s)?(?P<before>(?:US)?\$|[{_SIGNS}]|\b(?:{_CODE})(?![^\W\d]))?\s?"
    rf"(?P<sign2>[-−])?(?P<number>{_NUMBER})(?P<power>[eE][+-]?\d{{1,3}}(?!\w))?"
    rf"(?![.,]?\d|[-_:@]\w|/\d)(?:\s?(?P<after>(?i:{_DEGREES}|per\scent)\b|"
    rf"[%°€$£¥₹]\s?[CFcf]?\b|[%{_SIGNS}]|[A-Za-z]+(?:/[a-z]+)?\b))?"
)


@dataclass(frozen=True)
class Quantity:
    """`amount` is in the base unit of its dimension; `dimension` is "" for a number without a unit that is known.
    `number` is as written, None for one in two parts; `factor` is one of its (smallest) unit in base units; `start` is
    where it begins in its text."""

    amount: Decimal
    dimension: str
    text: str
    number: Decimal | None
    factor: Decimal
    start: int


def quantities(text: str) -> list[Quantity]:
    """The numbers of a text with their units, in order. Dates, times and identifiers do not count.

    Two that follow each other, of one dimension and the second in a smaller unit, are one: "1 h 30 min", "1 hour and 30
    minutes".

    Example: `quantities("1.5 kg in 2 parcels")` -> 1.5 kg and 2
    """
    found: list[tuple[Quantity, int]] = []
    text = as_typed(text)
    for match in _QUANTITY.finditer(text):
        number = _value(match["number"], match["power"])
        if number is None:
            continue
        number = -number if match["sign"] or match["sign2"] else number
        unit, end = _unit(match)
        dimension, factor = UNITS.get(unit, ("", Decimal(1)))
        amount = number * factor + _SHIFT.get(unit, Decimal(0))
        start = match.start()
        if found and dimension and _continues(found[-1][0], dimension, number, factor, text[found[-1][1] : start]):
            before, _ = found.pop()
            one = Quantity(
                before.amount + amount, dimension, text[before.start : end].strip(), None, factor, before.start
            )
        else:
            one = Quantity(amount, dimension, text[start:end].strip(), number, factor, start)
        found.append((one, end))
    return [one for one, _ in found]


def _continues(quantity: Quantity, dimension: str, number: Decimal, factor: Decimal, between: str) -> bool:
    compound = dimension in ("time", "length", "mass") and number >= 0
    joined = between.strip(" ,") in ("", "and")
    return compound and quantity.dimension == dimension and quantity.factor > factor and joined


def _unit(match: re.Match[str]) -> tuple[str, int]:
    """The unit of a number in the form of `UNITS`, or "", and where the quantity ends."""
    unit = ""
    if match["before"]:
        unit = "$" if match["before"] == "US$" else match["before"].casefold()
    elif match["after"] and (after := _folded(match["after"])) in UNITS:
        return after, match.end()
    return unit, match.end("power" if match["power"] else "number")


def _folded(name: str) -> str:
    name = "".join(name.split())
    if re.fullmatch(_DEGREES, name, re.IGNORECASE):
        return "°f" if "f" in name.casefold() else "°c"
    name = _AS_WRITTEN.get(name, name).casefold().removesuffix(".")
    if name not in UNITS and name.endswith("s") and name[:-1] in UNITS and len(name) > 3:
        return name[:-1]
    return name


_CASED = re.compile(r"\d\s?([A-Za-z]{2,3})\b")


def other_unit(wanted: str, said: str) -> bool:
    """Whether `said` writes a unit of `wanted` so that it is another one: mW is not MW, and Gb is not GB."""
    right = {unit for unit in _CASED.findall(wanted) if _folded(unit) in UNITS}
    units = _CASED.findall(said) if right else []
    alike = [{_folded(unit) for unit in units if unit.casefold() == one.casefold()} for one in right]
    return any(found and _folded(one) not in found for one, found in zip(right, alike, strict=True))


def _value(number: str, power: str | None) -> Decimal | None:
    words = tokenize(number)
    if len(words) != 1 or not isinstance(words[0], Decimal):
        return None
    try:
        return words[0].scaleb(int(power[1:])) if power else words[0]
    except InvalidOperation:
        return None


# ---------------------------------------------------------------------------------------------------------------------
# Currencies. Tokens have none: "12", "$12" and "12 USD" are the same number.

_MONEY = {name: code for name, (code, factor) in UNITS.items() if code.isupper() and factor == 1}
_MONEY |= {"pound": "GBP", "franc": "CHF"}  # beside an amount of money; by itself a pound is a mass
_OTHER_CODES = "AED|AUD|BRL|CAD|CNY|CZK|DKK|HKD|HUF|IDR|ILS|KRW|MXN|MYR|NOK|NZD|PHP|PLN|RON|RUB|SAR|SEK|SGD|THB|TRY|ZAR"
_HOME = "(?:US|U\\.S\\.|American|British|Swiss|Japanese|Indian) "
"""Countries whose dollar, pound, franc, yen or rupee is the one in `_MONEY`; "Canadian dollars" are others."""
_MONEY_NAME = (
    rf"(?i:{_CODE})|{_OTHER_CODES}|(?:{_HOME})?(?P<name>(?:[A-Z][a-z]+ )?(?i:dollars?|pounds?|francs?|rupees?))"
    r"|(?i:euros?|yen|yuan|cents?|pence|kron(?:a|or|er|e)|pesos?|zloty)"
)
_AMOUNT = re.compile(
    rf"(?:(?P<before>[{_SIGNS}]\s?|\b(?:(?i:{_CODE})|{_OTHER_CODES})\s?)|(?<![\w.,]))[-−]?(?P<number>{_NUMBER})(?![.,]?\d)"
    rf"(?:\s?(?P<after>[{_SIGNS}]|(?:{_MONEY_NAME})\b))?"
)
_ANY_CURRENCY = re.compile(rf"[{_SIGNS}]|(?<![^\W_])(?:{_CODE}|{_OTHER_CODES})(?![^\W_])", re.IGNORECASE)


def currencies(text: str) -> dict[Decimal, set[str]]:
    """The amounts of a text whose currency it names, each with its currencies.

    Example: `currencies("12 euros, $7 and 3 boxes")` -> 12 with EUR, 7 with USD
    """
    found: dict[Decimal, set[str]] = {}
    for match in _AMOUNT.finditer(as_typed(text)):
        number, name = _value(match["number"], None), match["before"] or match["name"] or match["after"]
        if number is not None and name:
            found.setdefault(number, set()).add(_currency(name))
    return found


def _currency(name: str) -> str:
    name = name.strip().casefold()
    return _MONEY.get(name) or _MONEY.get(name.removesuffix("s")) or name.removesuffix("s")


def other_currency(wanted: str, said: str) -> bool:
    """Whether `said` names another currency with an amount of `wanted` than `wanted` does; none is not another."""
    named = currencies(said) if (money := currencies(wanted)) else {}
    return any(not named.get(amount, set()) <= names for amount, names in money.items())


def named_currencies(text: str) -> set[str]:
    """All signs and codes of currencies in a text, beside an amount or not (`"currency": "EUR"`)."""
    return {_currency(name) for name in _ANY_CURRENCY.findall(text)}


# ---------------------------------------------------------------------------------------------------------------------

Token = str | Decimal
"""A word in lower case, or a number by its value."""

_CODES = "usd|eur|gbp|jpy|chf|inr|dollars?|euros?|pounds?"
# Spaces and apostrophes that some languages put between thousands; ordinary spaces separate numbers.
_THIN = re.compile(r"(?<=\d)[\u00a0\u202f\u2009'’](?=\d{3}(?!\d))")
_FRENCH = re.compile(r"(?<![\d.,])\d{1,3}(?:[\u00a0\u202f\u2009'’]\d{3}){1,6},\d{1,2}(?![\d,])")
"""3 577,92 with such a space: the comma is the decimal one."""
_CODE_AFTER = re.compile(rf"(?<=\d)\s*(?:{_CODES})\b", re.IGNORECASE)
_CODE_BEFORE = re.compile(rf"\b(?:{_CODES})\s*(?=-?\d)", re.IGNORECASE)
_UNIT_NAMES = "|".join(sorted(name for name in UNITS if len(name) > 1 and name.isascii() and name.isalpha()))
_JOINED = re.compile(rf"(?<![\w.,:/@-])(-?\d[\d.,]*)(?=(?:{_UNIT_NAMES})s?(?![\w/-]))")
"""A number with its unit, which has two letters or more: 12kg is 12 kg, but seat 12d is no 12."""
_RAISED = re.compile("(?<=\\d)(?=[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2150-\u215e])")
"""Between a number and a power or a fraction: 5² is not 52."""
_PIECE = re.compile(
    r"""
    (?P<number> (?<![\w.]) -?                                # a minus, not a hyphen: nothing is before it
        (?: \d{1,3}(?:,\d{3})+(?:\.\d+)?                     # 1,234.50
          | \d{1,3}(?:\.\d{3})+,\d+                          # 1.234,50
          | \d+\.\d+                                         # 12.5
          | \d+,\d{1,2}(?![\d,])                             # 12,5
          | \d+ )
        (?! [.,]?\d | [-_/:@.]?\w ) )
  | (?P<word> \w+ (?: [-_/:.@'’+&] \w+ )*                    # A-4417, 2026-11-20, don't, user@example.com
        (?: \+\+ | [+\#] (?![\w+]) )? )                       # C++, C#, A+
    """,
    re.VERBOSE,
)


_SPACES = re.compile(r"\s{2,}")


def narrowed(text: str) -> str:
    """The text as a keyboard types it, with one sign for each run of white space: that which separates most. Patterns
    that look for white space take a time that grows with the square of a run's length, and a policy could write a long
    one."""
    return _SPACES.sub(lambda run: next((sign for sign in "\n\t" if sign in run[0]), " "), text.translate(_TYPED))


_TYPED = str.maketrans("\u2010\u2011\u2019", "--'", "\u00ad\u200b\u200c\u200d\u2060\ufeff")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
DATE = re.compile(
    rf"\b(?P<d>{_DAY})(?:st|nd|rd|th|\.)? (?:of )?(?P<m>{_MONTH})\.?,? (?P<y>\d{{4}})\b"
    rf"|\b(?P<m2>{_MONTH})\.? (?P<d2>{_DAY})(?:st|nd|rd|th)?,? (?P<y2>\d{{4}})\b",
    re.IGNORECASE,
)
CLOCK = re.compile(r"(?<![\w.:])(?P<h>0?[1-9]|1[0-2])(?:[:.](?P<m>[0-5]\d))? ?(?P<half>[ap])\.?m\b", re.IGNORECASE)
_HALF_DAY = re.compile(r"\d ?[apAP]\.?[mM]\b")
_DATE_AND_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d)(?:T|,? at |,? )(\d\d:\d\d)(?::00(?:\.0+)?)?(?![\dZ:+]|[.-]\d)")
_SHORT_HOUR = re.compile(r"(?<![\w.:-])(?=\d:[0-5]\d(?![\d:]))")


def as_typed(text: str) -> str:
    """The text with the hyphens and apostrophes of a keyboard, and without signs that nobody sees. Models write
    typographic ones ("don\u2019t", "A\u201112") as often. Dates and times are as tools give them: "5 January 2026" and
    "January 5th, 2026" become 2026-01-05, "2:30 PM" becomes 14:30, and a date at a time is "2026-01-05 14:30"."""
    text = text.translate(_TYPED)
    # Most texts have none of these; looking for the letters first is several times faster.
    folded = text.casefold()
    if any(month in folded for month in _MONTHS):
        text = DATE.sub(iso_date, text)
    if _HALF_DAY.search(text):
        text = CLOCK.sub(of_24_hours, text)
    return _DATE_AND_TIME.sub(r"\1 \2", _SHORT_HOUR.sub("0", text)) if ":" in text else text


def iso_date(found: re.Match[str]) -> str:
    """What `DATE` found, as 2026-01-05."""
    month = _MONTHS.index((found["m"] or found["m2"])[:3].lower()) + 1
    return f"{found['y'] or found['y2']}-{month:02}-{int(found['d'] or found['d2']):02}"


def of_24_hours(found: re.Match[str]) -> str:
    """What `CLOCK` found, as 14:30."""
    hour = int(found["h"]) % 12 + 12 * (found["half"] in "pP")
    return f"{hour:02}:{found['m'] or '00'}"


def tokenize(text: str) -> list[Token]:
    """Words and numbers of a text. Case, punctuation, spaces, thousands separators and currencies do not count.

    Identifiers, dates and times stay whole, so that `12` is found in neither `A-12`, `2026-12-01` nor `312`.

    Example: `tokenize("It costs $1,234.50.") == ["it", "costs", Decimal("1234.5")]`
    """
    text = _FRENCH.sub(lambda found: _THIN.sub(".", found[0]), as_typed(text))
    text = _RAISED.sub(" ", _THIN.sub(",", text))
    text = unicodedata.normalize("NFKC", text).casefold().replace("us$", "$")
    text = text.translate({ord(sign): None for sign in _SIGNS} | {ord("−"): "-"})
    text = _JOINED.sub(r"\1 ", _CODE_BEFORE.sub("", _CODE_AFTER.sub("", text)))
    return [
        _number(match["number"]) if match["number"] is not None else _plain(match["word"])
        for match in _PIECE.finditer(text)
    ]


def positions(part: Sequence[Token], whole: Sequence[Token]) -> list[int]:
    """Where `part` begins inside `whole`, as whole tokens; nowhere if it is empty."""
    if not part:
        return []
    size = len(part)
    return [at for at in range(len(whole) - size + 1) if list(whole[at : at + size]) == list(part)]


def is_number(tokens: Sequence[Token]) -> bool:
    """Whether the tokens are a single number."""
    return len(tokens) == 1 and isinstance(tokens[0], Decimal)


def _number(text: str) -> Token:
    if re.fullmatch(r"0\d+", text):
        return text  # 007 is a name, not the number 7
    if re.search(r"\.\d{3},", text):
        text = text.replace(".", "").replace(",", ".")
    elif re.fullmatch(r"-?\d+,\d{1,2}", text):
        text = text.replace(",", ".")
    return Decimal(text.replace(",", "")).normalize()


def _plain(word: str) -> str:
    word = word.removesuffix("'s")
    return "cancelled" if word == "canceled" else word


# ---------------------------------------------------------------------------------------------------------------------
# Sentences, and their words with content, for checks that compare words without their meaning.

CAPITALS = "".join(sign for sign in map(chr, range(0x530)) if sign.isupper())
"""Of Latin, Greek and Cyrillic letters."""
_END = re.compile(rf"(?<=[.!?])\s+(?=[{CAPITALS}0-9\"'(\[])|\n+|(?<=;)\s+")
_CAPITAL = re.compile(rf"(?<![.!?]\s)(?<!^)\b(?!I'(?:m|ve|ll|d)\b)[{CAPITALS}][\w'-]+")
_SMALL_WORDS = """
a an the this that these those it its he she they them his her their i you we me my your our is are was were
be been being am do does did done has have had having will would can could may might shall should must of in
on at to from by for with about as into over under and or but if then than so because while where when which
who whom whose what how there here not no yes also just only very too any some each all both more most other
such own same up down out off again further once please thanks now currently according one
"""
NO_CONTENT = frozenset(_SMALL_WORDS.split())


def sentences(text: str) -> list[str]:
    """The sentences of a text; lines, and parts after semicolons, are sentences, too. A citation after the full stop
    belongs to the sentence before it."""
    text = re.sub(r"([.!?])((?:\s*\[[^\[\]\s]+\])+)", r"\2\1", text)
    return [part.strip() for part in _END.split(text) if part and part.strip()]


def content_words(text: str) -> list[Token]:
    """The words with content, each once, in order: no articles, pronouns or forms of to be."""
    return [word for word in dict.fromkeys(tokenize(text)) if word not in NO_CONTENT]


def numbers_and_names(text: str) -> list[Token]:
    """Numbers, words with a digit, and capitalised words inside a sentence: every paraphrase keeps them."""
    names = {word for found in _CAPITAL.findall(as_typed(text)) for word in tokenize(found)} - NO_CONTENT
    return [
        word
        for word in dict.fromkeys(tokenize(text))
        if not isinstance(word, str) or any(sign.isdigit() for sign in word) or word in names
    ]
