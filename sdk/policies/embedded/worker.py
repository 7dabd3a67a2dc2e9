"""What the worker thread does in one step: admit what waits, then one token for every live row."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .decoder import Decoder
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
        yield from (row.request for row in self.rows.rows if row.request is not None)

    def load(self, new: NewWeights) -> None:
        """Take new weights; only while not busy."""
        with torch.inference_mode():
            self._decoder.weights.load(new.state)
            self.rows.forget()
        self.version = new.version

    def step(self) -> None:
        """Admit what fits, and decode one token for each live row."""
        with torch.inference_mode():
            self._drop_cancelled()
            self._admit()
            self._decode()

    def _drop_cancelled(self) -> None:
        for row in self._live():
            if row.request is not None and row.request.cancelled:
                self.rows.release(row)
        self.waiting = [request for request in self.waiting if not request.cancelled]

    def _live(self) -> list[Row]:
        return self.rows.rows[: self.rows.live]

    def _admit(self) -> None:
        admitted, self.waiting = self.waiting[: self.rows.room], self.waiting[self.rows.room :]
        if not admitted:
            return
        groups = self.rows.admit(admitted)
        logits_RV = torch.cat([logits_V.expand(len(rows), -1) for rows, logits_V in groups])
        self._sample([row for rows, _ in groups for row in rows], logits_RV)

    def _decode(self) -> None:
        rows = self._live()
        if not rows:
            return
        # The last sampled token of each row is not stored yet: it is this step's input.
        inputs = [_request(row).token_ids[-1] for row in rows]
        sharers: dict[int, tuple[torch.Tensor, list[int]]] = {}
        for i, row in enumerate(rows):
            if row.prefix is not None:
                sharers.setdefault(id(row.prefix), (row.prefix.kv, []))[1].append(i)
        positions, own_lengths = [len(row.tokens) for row in rows], [row.own for row in rows]
        logits_RV = self._decoder.decode(inputs, positions, own_lengths, list(sharers.values()))
        for row, token in zip(rows, inputs, strict=True):
            row.tokens.append(token)
        self._sample(rows, logits_RV)

    def _sample(self, rows: Sequence[Row], logits_RV: torch.Tensor) -> None:
        requests = [_request(row) for row in rows]
        tokens, logprobs = choose(logits_RV, [r.sampling for r in requests], [r.random for r in requests])
        for row, request, token, logprob in zip(rows, requests, tokens, logprobs, strict=True):
            if request.take(token, logprob):
                request.finish(self.version)
                self.rows.release(row)


def _request(row: Row) -> Request:
    if row.request is None:
        raise RuntimeError("a live row has no request")
    return row.request
