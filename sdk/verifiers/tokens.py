"""An answer as a sequence of words and numbers that can be compared."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

Token = str | Decimal
"""A word in lower case, or a number by its value."""

_CURRENCY = "$€£¥₹"
_CODES = "usd|eur|gbp|jpy|chf|inr|dollars?|euros?|pounds?"
# Spaces and apostrophes that some languages put between thousands; ordinary spaces separate numbers.
_THIN = re.compile(r"(?<=\d)[\u00a0\u202f\u2009'’](?=\d{3}(?!\d))")
_CODE_AFTER = re.compile(rf"(?<=\d)\s*(?:{_CODES})\b", re.IGNORECASE)
_CODE_BEFORE = re.compile(rf"\b(?:{_CODES})\s*(?=-?\d)", re.IGNORECASE)
_PIECE = re.compile(
    r"""
    (?P<number> (?<![\w.]) -?                                # a minus, not a hyphen: nothing stands before it
        (?: \d{1,3}(?:,\d{3})+(?:\.\d+)?                     # 1,234.50
          | \d{1,3}(?:\.\d{3})+,\d+                          # 1.234,50
          | \d+\.\d+                                         # 12.5
          | \d+,\d{1,2}(?![\d,])                             # 12,5
          | \d+ )
        (?! [.,]?\d | [-_/:@.]?\w ) )
  | (?P<word> \w+ (?: [-_/:.@'’+&] \w+ )* )                  # A-4417, 2026-11-20, don't, user@example.com
    """,
    re.VERBOSE,
)


def tokenize(text: str) -> list[Token]:
    """Words and numbers of a text. Case, punctuation, spaces, thousands separators and currencies do not count.

    Identifiers, dates and times stay whole, so that `12` is found in neither `A-12`, `2026-12-01` nor `312`.

    Example: `tokenize("It costs $1,234.50.") == ["it", "costs", Decimal("1234.5")]`
    """
    text = _THIN.sub(",", text)
    text = unicodedata.normalize("NFKC", text).casefold()
    text = text.translate({ord(sign): None for sign in _CURRENCY} | {ord("−"): "-", ord("’"): "'"})
    text = _CODE_BEFORE.sub("", _CODE_AFTER.sub("", text))
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
