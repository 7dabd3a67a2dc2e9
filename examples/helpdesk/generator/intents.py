"""What a kind of task is: what is asked, in which worlds it can be asked, and how it is done."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from mcp_bridge.records import ToolResult
from sandboxes.changes import State
from sandboxes.helpdesk import Helpdesk

Slots = dict[str, Any]
"""What a request names: `{"order": "4417", "product": "lamp", ...}`."""


class GoldRun:
    """Plays the right calls in a real world and writes them down."""

    def __init__(self, world: Helpdesk) -> None:
        self._world = world
        self.calls: list[dict[str, Any]] = []
        self.granted: list[dict[str, Any]] = []
        """The calls that succeeded. A refusal may also be foreseen without asking for it, so it is not required."""

    def call(self, name: str, **arguments: Any) -> Any:
        """Call a tool that must succeed; returns its result."""
        result = self._record(name, arguments)
        if result.is_error:
            raise ValueError(f"the gold call {name}({arguments}) was refused: {result.text}")
        self.granted.append({"name": name, "arguments": arguments})
        return result.structured

    def refused(self, name: str, **arguments: Any) -> str:
        """Call a tool that must refuse; returns what it says."""
        result = self._record(name, arguments)
        if not result.is_error:
            raise ValueError(f"the gold call {name}({arguments}) should have been refused: {result.text}")
        return result.text

    def _record(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        self.calls.append({"name": name, "arguments": arguments})
        return self._world.call_now(name, arguments)


@dataclass(frozen=True)
class Answer:
    """What a right answer says, in one or several parts, and the demonstration's sentence.

    `parts`: each must be said, in one of its acceptable forms. `options`: the closed list that the answer is from, of
    which it may say no other; the verifier's own list where empty.
    """

    parts: tuple[tuple[str, ...], ...]
    sentence: str
    options: tuple[str, ...] = ()

    def expected(self) -> dict[str, Any]:
        """The keys of `Task.expected` that the verifiers of answers read."""
        parts = [[form.lower() for form in forms] for forms in self.parts]
        found: dict[str, Any] = {"answer": parts[0] if len(parts) == 1 else {"all": parts}}
        if self.options:
            found["options"] = list(self.options)
        return found


def says(value: object, sentence: str) -> Answer:
    """A right answer says this one value."""
    return Answer(((str(value),),), sentence)


Pick = Callable[[State, random.Random], Iterable[Slots]]
"""All that can be asked in a world."""

Solve = Callable[[GoldRun, Slots], Answer]
"""The right calls and the answer, which rests on the request and on tool results alone."""


@dataclass(frozen=True)
class Intent:
    """One kind of request. `tier` is the number of calls of the right solution. `train` and `heldout`: the wordings on
    each side of the split, one on each line.

    The slot `facet` is what is combined with the intent: no value of it is on both sides of the split. Where
    `held_facets` is given, those values are the held-out side's; elsewhere the two branches' names differ anyway.
    """

    name: str
    tier: int
    pick: Pick
    solve: Solve
    train: str
    heldout: str
    facet: str = "product"
    held_facets: tuple[str, ...] = ()

    def phrasings(self, split: str) -> tuple[str, ...]:
        """The request's wordings on one side of the split."""
        return _lines(self.train if split == "train" else self.heldout)

    def asks(self, split: str, slots: Slots) -> bool:
        """Whether this combination of intent and facet belongs to that side."""
        return not self.held_facets or (slots[self.facet] in self.held_facets) == (split == "heldout")


def asking(wordings: str, *questions: str) -> str:
    """The wordings of an act, each with a question in turn: what an answer must say has to be asked for."""
    turns = enumerate(_lines(wordings))
    return "\n".join(f"{wording} {questions[turn % len(questions)]}" for turn, wording in turns)


AMOUNT, HELD_AMOUNT = ("How much was it?", "Tell me the amount."), ("What sum was that?",)
NUMBER = ("What is its number?", "Tell me the number of the new order.")
HELD_NUMBER = ("Under which number does the new order run?",)
"""What is asked of several acts, and in held-out wordings: how much was refunded, and which order was placed."""


def by_email(intent: Intent, name: str, solve: Solve, *, held_facets: tuple[str, ...] = ()) -> Intent:
    """The same request about a customer who is named by the e-mail: it takes one more call, to find the id."""
    train, heldout = (re.sub(r"[Cc]ustomer \{customer\}", "{email}", text) for text in (intent.train, intent.heldout))
    tier = intent.tier + 1
    return replace(intent, name=name, tier=tier, solve=solve, train=train, heldout=heldout, held_facets=held_facets)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())
