"""What the worker thread does in one step: admit what waits, and one more token for every live row."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .decoder import Decoder
from .joining import join, remember
from .requests import Request
from .rows import Row, Rows
from .sampling import choose


@dataclass(eq=False)
class NewWeights:
    """Weights that wait to be taken in."""

    state: Mapping[str, Any]
    version: int
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class Batch:
    """All requests that are being computed or wait for a row; belongs to the worker thread."""

    def __init__(self, decoder: Decoder, *, max_rows: int, version: int) -> None:
        self._decoder = decoder
        self.rows = Rows(decoder, max_rows=max_rows)
        self.waiting: list[Request] = []
        self.version = version

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
        self.version = new.version

    def step(self) -> None:
        """Admit what fits, and decode one token for each row that was live before, all in one forward pass."""
        with torch.inference_mode():
            self.rows.drop_cancelled()
            self.waiting = [request for request in self.waiting if not request.cancelled]
            fitting = self.waiting[: self.rows.room]
            others = [request for request in fitting if not join(self.rows, request, self.version)]
            decoding = self.rows.live_rows()
            admissions = self.rows.admit(others) if others else []
            # Only now: each request stays in `requests` all the time, or nobody would tell its caller of a failure.
            self.waiting = self.waiting[len(fitting) :]
            if admissions or decoding:
                logits_RV = self.rows.compute(admissions, decoding)
                self._sample([*(admission.row for admission in admissions), *decoding], logits_RV)

    def _sample(self, rows: Sequence[Row], logits_RV: torch.Tensor) -> None:
        """A token for each request of each row."""
        drawing = [(place, request) for place, row in enumerate(rows) for request in row.requests]
        drawn = choose(
            logits_RV,
            [request.sampling for _, request in drawing],
            [request.random for _, request in drawing],
            [place for place, _ in drawing],
        )
        for row, logits_V in zip(rows, logits_RV, strict=True):
            remember(row, logits_V)
        tokens = zip(*drawn, strict=True)
        for row in rows:
            going_on: dict[int, list[Request]] = {}
            for request in row.requests:
                token, logprob = next(tokens)
                if request.take(token, logprob):
                    request.finish(self.version)
                else:
                    going_on.setdefault(token, []).append(request)
            self.rows.go_on(row, going_on)
