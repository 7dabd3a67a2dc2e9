"""JSON in pieces: while `json.dumps` writes megabytes, no other thread runs, and nobody is answered."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class WrittenJson:
    """A value that `written` puts where it stands in another one."""

    text: str
    place: str = field(default_factory=lambda: secrets.token_hex(16))
    """Stands for it meanwhile. Nobody can guess it."""

    @classmethod
    def of(cls, items: Iterable[Any]) -> WrittenJson:
        """A list, written item by item."""
        return cls(f"[{','.join(map(json.dumps, items))}]")


def written(value: Any, **options: Any) -> str:
    """`json.dumps` of a value that may have `WrittenJson` in it."""
    parts: dict[str, str] = {}

    def hold(part: Any) -> str:
        if not isinstance(part, WrittenJson):
            raise TypeError(f"{type(part).__name__} is not JSON")
        parts[f'"{part.place}"'] = part.text
        return part.place

    text = json.dumps(value, default=hold, **options)
    return re.sub("|".join(parts), lambda found: parts[found[0]], text) if parts else text
