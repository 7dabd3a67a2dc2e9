"""The fenced blocks of a Markdown page, each with the comment before it that says how it is run.

Two comments are understood, and each must give its reason:

    <!-- shortened: why -->   trainings in the block run with a few tiny steps
    <!-- not run: why -->     the block is only compiled
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

LANGUAGES = {"python", "bash", "json", "text"}

_FENCE = re.compile(r"^```(.*)$")
_COMMENT = re.compile(r"^<!-- (shortened|not run)(?:: *(.*?))? *-->$")

How = Literal["whole", "shortened", "not run"]


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is that of its first line of code, counted from 1."""

    language: str
    code: str
    line: int
    how: How


def blocks(text: str, where: str = "page") -> list[Block]:
    """The blocks of a page in order. Raises `ValueError` for what a reader or the runner would not understand."""
    found: list[Block] = []
    how: How = "whole"
    language, start = "", 0
    code: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        if start:
            if fence:
                found.append(Block(language, "\n".join(code) + "\n", start, how))
                start, how = 0, "whole"
            else:
                code.append(line)
        elif fence:
            language, start, code = fence[1].strip(), number + 1, []
            if language not in LANGUAGES:
                raise ValueError(f"{where}:{number}: a block in {language!r}; use {', '.join(sorted(LANGUAGES))}")
        elif comment := _COMMENT.match(line):
            if not comment[2]:
                raise ValueError(f"{where}:{number}: {line} gives no reason; write <!-- {comment[1]}: why -->")
            how = comment[1]  # type: ignore[assignment]
        elif line.strip() and how != "whole":
            raise ValueError(f"{where}:{number}: the comment {how!r} must stand right before its block")
    if start:
        raise ValueError(f"{where}:{start - 1}: the block is not closed")
    return found
