"""What the worker thread does in one step: admit what waits, and the next tokens of every live row."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .conversations import Admission, Row
from .decoder import Decoder
from .guesses import CONTEXT, Guesses
from .memory import Memory
from .requests import Request
from .rows import Rows
from .walking import Walk, join, walk


@dataclass(eq=False)
class NewWeights:
    """Weights that wait to be taken in."""

    state: Mapping[str, Any]
    version: int
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class Batch:
    """All requests that are being computed or wait for a row; belongs to the worker thread."""

    def __init__(self, decoder: Decoder, *, max_rows: int, version: int, memory: Memory | None = None) -> None:
        self._decoder = decoder
        self.rows = Rows(decoder, max_rows=max_rows, memory=memory)
        self.waiting: list[Request] = []
        self.version = version
        self._guesses = Guesses()

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.waiting or self.rows.live)

    def requests(self) -> Iterator[Request]:
        """Every request that has not been answered."""
        yield from self.waiting
        yield from (request for row in self.rows.rows for request in row.requests)

    def load(self, new: NewWeights) -> None:
        """Take new weights; only while not busy."""
        with torch.inference_mode():
            self._decoder.weights.load(new.state)
            self.rows.forget()
        # Other weights say other things; and what is sampled from the same ones does not depend on what was before.
        self._guesses = Guesses()
        self.version = new.version

    def step(self) -> None:
        """Admit what fits, and decode for each row that was live before, all in one forward pass."""
        with torch.inference_mode():
            self.rows.drop_cancelled()
            self.waiting = [request for request in self.waiting if not request.cancelled]
            fitting = self.rows.fitting(self.waiting)
            others = [request for request in fitting if not join(self.rows, request, self.version)]
            decoding = self.rows.live_rows()
            admissions = self.rows.admit(others) if fitting else []
            # Only now: each request stays in `requests` all the time, or nobody would tell its caller of a failure.
            self.waiting = self.waiting[len(fitting) :]
            if admissions or decoding:
                self._sample(admissions, decoding)

    def _sample(self, admissions: Sequence[Admission], decoding: Sequence[Row]) -> None:
        """One forward pass, and what can be sampled from it."""
        guessed = self._guesses.shorten([self._guess(row) for row in decoding])
        logits_NV = self.rows.compute(admissions, decoding, guessed)
        walks = [Walk(admission.row, number, ()) for number, admission in enumerate(admissions)]
        first = len(admissions)
        for row, guess in zip(decoding, guessed, strict=True):
            walks.append(Walk(row, first, guess))
            first += 1 + len(guess)
        walk(self.rows, walks, logits_NV, self._guesses, self.version)
        self.rows.decoded_tokens += sum(one.steps for one in walks[len(admissions) :])

    def _guess(self, row: Row) -> list[int]:
        """What may come after the row's newest token: no further than some request goes at most."""
        most = max(request.limit - len(request.token_ids) for request in row.requests) - 1
        stop_ids = frozenset.union(*(request.stop_ids for request in row.requests))
        return self._guesses.guess([*row.tokens[-CONTEXT:], row.newest], most=most, stop_ids=stop_ids)
