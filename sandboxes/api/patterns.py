"""Strings that match a regular expression, made along its parts until one is found to match.

What JSON documents write is read here: literals, sets, groups, alternatives, repeats. Anchors and what looks around are
passed over, and hold by chance or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

_MOST_REPEATS = 8
_TRIES = 30
_MOST_LENGTH = 256
_PLAIN = "abcdefghijklmnopqrstuvwxyz0123456789"
_PRINTABLE = "".join(chr(code) for code in range(32, 127))
_CATEGORIES = {"d": "0123456789", "w": _PLAIN, "s": " ", "D": "abcdefghijklmnopqrstuvwxyz", "W": " -", "S": _PLAIN}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_PLACES = "bBAZz"
"""Escapes that match a place, and no character."""
_HEX_DIGITS = {"x": 2, "u": 4}
_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\?(?:P?<\w+>|[aiLmsux-]*:|>)?")
_AROUND = re.compile(r"\?<?[=!]")
_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")
_FLAGS = re.compile(r"\?[aiLmsux]+\)")

Part = Callable[[Random, int], str]
"""A part of a pattern: makes a string that it matches, of unbounded repeats at most so many."""


class _NotRead(Exception):
    """The pattern has a part of another kind."""


def matching(pattern: str, chance: Random, *, low: int = 0, high: int | None = None) -> str | None:
    """A string that `pattern` is found in, of `low` to `high` characters; `None` where none was found."""
    # What JavaScript writes in another way.
    written = _NAMED_GROUP.sub("(?P<", pattern.replace(r"\p{L}", "a-zA-Z").replace(r"\p{N}", "0-9"))
    try:
        compiled = re.compile(written)
        part = _Reader(written).alternatives()
    except (re.error, RecursionError, OverflowError, _NotRead):
        return None
    for _ in range(_TRIES):
        made = part(chance, max(_MOST_REPEATS, low))
        if len(made) >= low and (high is None or len(made) <= high) and compiled.search(made):
            return made
    for most in range(min(low if high is None else high, _MOST_LENGTH) + 1):
        made = part(_Longest(chance.random()), most)
        if len(made) >= low and (high is None or len(made) <= high) and compiled.search(made):
            return made
        if high is not None and len(made) > high:
            break
    return None


class _Longest(Random):
    """Repeats as often as may be: the more repeats are allowed, the longer is what is made."""

    def randint(self, a: int, b: int) -> int:  # noqa: ARG002 - the least does not count
        return b


class _Reader:
    """Reads a pattern that Python has found valid, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._left = pattern

    def _take(self, count: int = 1) -> str:
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def alternatives(self) -> Part:
        """Up to the end of the group, which stays."""
        branches: list[list[Part]] = [[]]
        while self._left and self._left[0] != ")":
            if self._left[0] == "|":
                self._take()
                branches.append([])
            else:
                branches[-1].append(self._repeated(self._one()))
        joined = [_joined(parts) for parts in branches]
        return joined[0] if len(joined) == 1 else lambda chance, most: chance.choice(joined)(chance, most)

    def _one(self) -> Part:
        first = self._take()
        if first == "(":
            return self._group()
        if first == "[":
            return _any_of(self._set())
        if first == ".":
            return _any_of(_PLAIN)
        if first in "^$":
            return _nothing
        if first == "\\":
            if self._left[0] in _PLACES:
                self._take()
                return _nothing
            return _any_of(self._escaped())
        return _any_of(first)

    def _group(self) -> Part:
        if flags := _FLAGS.match(self._left):
            self._take(flags.end())
            return _nothing
        around = _AROUND.match(self._left)
        begun = around or _GROUP.match(self._left)
        self._take(begun.end() if begun else 0)
        if begun and begun[0] == "?":
            raise _NotRead
        inner = self.alternatives()
        self._take()
        return _nothing if around else inner

    def _escaped(self) -> str:
        """What the character after a backslash matches."""
        kind = self._take()
        if kind in _CATEGORIES:
            return _CATEGORIES[kind]
        if kind in _CONTROLS:
            return _CONTROLS[kind]
        if kind in _HEX_DIGITS:
            return chr(int(self._take(_HEX_DIGITS[kind]), 16))
        if kind.isdigit():
            raise _NotRead  # a group once more
        return kind

    def _set(self) -> str:
        """After its bracket."""
        negated = self._left[0] == "^"
        self._take(negated)
        found: list[str] = []
        while not found or self._left[0] != "]":
            if self._left[0] == "\\":
                self._take()
                low = self._escaped() if self._left[0] != "b" else self._take().replace("b", "\b")
            else:
                low = self._take()
            if self._left[0] == "-" and self._left[1] != "]" and len(low) == 1:
                self._take()
                high = self._take()
                high = self._escaped() if high == "\\" else high
                found += [chr(point) for point in range(ord(low), min(ord(high), ord(low) + 200) + 1)]
            else:
                found += low
        self._take()
        if negated:
            return "".join(one for one in _PRINTABLE if one not in found and one not in "<>\"'\\") or " "
        return "".join(sorted(set(found) & set(_PRINTABLE)) or found)

    def _repeated(self, part: Part) -> Part:
        """With the repeats that follow it."""
        written = _REPEAT.match(self._left)
        if self._left[:1] in ("*", "+", "?"):
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._take()]
        elif written and (written[1] or written[3]):
            self._take(written.end())
            low = int(written[1] or 0)
            high = (int(written[3]) if written[3] else None) if written[2] else low
        else:
            return part
        if self._left[:1] in ("?", "+"):
            self._take()  # as few as can be, or as many: the same strings match

        def several(chance: Random, most: int) -> str:
            times = chance.randint(low, low + most if high is None else min(high, low + most))
            return "".join([part(chance, most) for _ in range(times)])

        return several


def _nothing(_chance: Random, _most: int) -> str:
    return ""


def _any_of(characters: str) -> Part:
    return lambda chance, _most: chance.choice(characters) if len(characters) > 1 else characters


def _joined(parts: list[Part]) -> Part:
    return lambda chance, most: "".join([part(chance, most) for part in parts])
