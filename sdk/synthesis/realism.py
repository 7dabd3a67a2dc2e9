"""How natural a request is, as far as that can be counted.

The score says whether arguments come from where their names say, whether the request is short, and whether the values
in it are such as people say. It does not know what people ask for: a task may score 1 that nobody would ever set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .learning import LIKE, Feed, Lessons
from .random_walk import Told, Walk
from .requesting import Request

_SHORT, _LONG = 25, 60
"""Words: up to the first a request is short, from the second on it is not."""
_TRIED, _DRAWN = 0.7, 0.5
_OPAQUE = re.compile(r"(?=\S*\d)(?=\S*[a-zA-Z])[\w-]{16,}|\d{9,}|\d{4}-\d{2}-\d{2}T\S+")


def realism(walked: Walk, asked: Request, lessons: Lessons) -> float:
    """From 0 to 1: the mean of three shares.

    - Arguments: 1 for one from an earlier result or from a column of its name, 0.7 for one that was found to fit by
      trying, 0.5 for a number that was drawn.
    - Length: 1 up to 25 words, 0 from 60 on, in a straight line between.
    - Values: the share of those named that are short words, names or numbers, and no codes of 16 characters and more.
    """
    sources = [(step.tool.name, name, source) for step in walked.steps for name, source in step.sources.items()]
    arguments = [_argument(source, lessons.feeds.get((tool, name), [])) for tool, name, source in sources]
    count = len(asked.prompt.split())
    length = min(1.0, max(0.0, (_LONG - count) / (_LONG - _SHORT)))
    values = [0.0 if _OPAQUE.search(str(value)) or len(str(value).split()) > 6 else 1.0 for value in asked.said]
    return round((_mean(arguments) + length + _mean(values)) / 3, 3)


def _argument(source: Any, feeds: Sequence[Feed]) -> float:
    if not isinstance(source, Told):
        return 1.0
    if source.cell is None:
        return _DRAWN if isinstance(source.value, int) and not isinstance(source.value, bool) else 1.0
    like = max((feed.likeness for feed in feeds if feed.column == source.cell.column), default=0.0)
    return 1.0 if like >= LIKE else _TRIED


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 1.0
