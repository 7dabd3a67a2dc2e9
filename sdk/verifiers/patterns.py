"""Regular expressions over what the policy wrote, with a time limit."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..errors import VerifierError
from .comparing import shortened

_MOST_CHARS = 100_000


def matches(pattern: str, text: str, *, where: str, whole: bool = True, ignore_case: bool = False) -> bool:
    """Whether `pattern` matches `text`, all of it unless `whole` is False. The syntax is that of Python's `re`.

    `where` says in errors where the pattern stands. Raises `VerifierError` for what is no pattern, for one that matches
    the empty text (so every text that need not match whole), and for one that takes more than half a second: Python's
    own `re` would hold the whole process for as long as it takes, which a policy could bring about.
    """
    compiled = _compiled(pattern, where, ignore_case)
    match = compiled.fullmatch if whole else compiled.search
    try:
        if match("", timeout=_SECONDS) is not None:
            raise VerifierError(
                f"{where} is {pattern!r}, which matches an empty text; write one that asks for something"
            )
        if len(text) > _MOST_CHARS:
            return False
        return match(text, timeout=_SECONDS, concurrent=True) is not None
    except TimeoutError:
        raise VerifierError(
            f"{where} is {pattern!r}, which took more than {_SECONDS} s on {shortened(text, 60)}; write a pattern "
            "that backtracks less, without a repeat inside a repeat"
        ) from None


_SECONDS = 0.5


@lru_cache(maxsize=256)
def _compiled(pattern: str, where: str, ignore_case: bool) -> Any:
    import regex

    if not isinstance(pattern, str):
        raise VerifierError(f"{where} is {shortened(pattern)}; give a regular expression as a text")
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except regex.error as error:
        raise VerifierError(f"{where} is {pattern!r}, which is no regular expression: {error}") from error
