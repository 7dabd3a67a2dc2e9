"""A small system: its tools, the kinds of requests that people make of it, and the calls that solve them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

HELD_OUT = 2
"""Of the wordings of a kind: they are never trained on."""
EACH = 4
"""Tasks of one wording, each in a world of its own."""


@dataclass(frozen=True)
class Kind:
    """One kind of request.

    `wordings`: texts with the values' names in braces. `calls`: those that solve it, in the same form. `values(world,
    random)`: what a task of the kind is about. `answer`: where in the last result the answer stands, `None` for the
    default of `sdk.solve`. `reply`: the last message of the demonstration.
    """

    name: str
    wordings: tuple[str, ...]
    calls: str
    values: Callable[[Any, random.Random], Mapping[str, Any]]
    answer: str | None = None
    reply: str | None = None


@dataclass(frozen=True)
class System:
    """Tools over a world that each task has for itself, and what is asked of them."""

    name: str
    tools: Callable[[], Any]
    """Makes what `sdk.train` takes as tools."""
    world: Callable[[int], Any]
    kinds: tuple[Kind, ...]

    def rows(self, seed: int = 0) -> list[dict[str, Any]]:
        """Tasks for `sdk.solve`: every wording of every kind, `EACH` times, each wording a family."""
        rows = []
        for kind in self.kinds:
            for place, wording in enumerate(kind.wordings):
                for number in range(EACH):
                    world_seed = random.Random(f"{seed}/{self.name}/{kind.name}/{place}/{number}").randrange(10**6)
                    found = kind.values(self.world(world_seed), random.Random(world_seed))
                    values = {name: json.dumps(value).strip('"') for name, value in found.items()}
                    side = "heldout" if place >= len(kind.wordings) - HELD_OUT else "train"
                    rows.append(
                        {
                            "id": f"{kind.name}-{place}-{number}",
                            "prompt": wording.format(**values),
                            "calls": kind.calls.format(**values),
                            "setup": {"seed": world_seed},
                            "family": f"{kind.name}-{place}",
                            "tags": {"kind": kind.name, "split": side},
                            **({"answer": kind.answer.format(**values)} if kind.answer else {}),
                            **({"reply": kind.reply.format(**values)} if kind.reply else {}),
                        }
                    )
        return rows
