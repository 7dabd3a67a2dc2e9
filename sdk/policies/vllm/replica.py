"""One server as the policy sees it: which weights it samples from, what is under way there, whether it can be asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import anyio

from .pressure import CacheFigures
from .process import VllmProcess
from .weights import Weights

Condition = Literal["up", "suspect", "down", "gone"]
"""`suspect`: a request failed and nobody knows yet why; `down`: it is being brought back; `gone`: given up."""


@dataclass(eq=False)
class Ticket:
    """One request under way: where, and with which weights."""

    replica: Replica
    model: str
    version: int
    loop: asyncio.AbstractEventLoop
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    lost: str | None = None
    """Why the server cannot answer any more."""

    def lose(self, why: str) -> None:
        """The server broke: stop waiting for it. Called by any thread."""
        self.lost = why
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.scope.cancel)


@dataclass(eq=False)
class Replica:
    """Changed only with the fleet's lock held."""

    url: str
    base: str
    """The name of the model without an adapter."""
    process: VllmProcess | None = None
    condition: Condition = "up"
    problem: str = ""
    model: str = ""
    version: int = 0
    holds: Weights | None = None
    """What it samples from; None while that is not known."""
    tickets: set[Ticket] = field(default_factory=set)
    figures: CacheFigures | None = None
    """Of its cache, when it was last looked at; None while it tells nothing."""
    pressure: float = 0.0
    """How full its cache is, see `pressure_of`."""
    retired: list[str] = field(default_factory=list)
    """Adapters of earlier versions that requests under way may still use."""

    def __post_init__(self) -> None:
        self.model = self.model or self.base

    def unused(self) -> list[str]:
        """The retired adapters that no request uses any more; they are taken off the list."""
        used = Counter(ticket.model for ticket in self.tickets)
        free = [name for name in self.retired if not used[name]]
        self.retired = [name for name in self.retired if used[name]]
        return free

    def lose(self, why: str, condition: Condition) -> None:
        """It broke, its weights with it: whoever waits for an answer hears of it now."""
        self.condition, self.problem, self.holds = condition, why, None
        self.figures, self.pressure = None, 0.0
        for ticket in self.tickets:
            ticket.lose(why)


def needs_certificates(replicas: Iterable[Replica]) -> bool:
    """Whether one is reached by TLS. Reading all certificates of a machine takes a second or so."""
    return any(replica.url.startswith("https://") for replica in replicas)
