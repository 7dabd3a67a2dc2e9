"""What the worker thread does in one step: admit what waits, and one more token for every live row."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .decoder import Decoder
from .requests import Request
from .rows import Admission, Row, Rows
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
        """Admit what fits, and decode one token for each row that was live before, all in one forward pass."""
        with torch.inference_mode():
            self._drop_cancelled()
            decoding = self._live()
            admitted = self.waiting[: self.rows.room]
            admissions = self.rows.admit(admitted) if admitted else []
            # Only now: each request stays in `requests` all the time, or nobody would tell its caller of a failure.
            self.waiting = self.waiting[len(admitted) :]
            if admissions or decoding:
                self._sample(admissions, decoding, *self.rows.compute(admissions, decoding))

    def _drop_cancelled(self) -> None:
        for row in self._live():
            if row.request is not None and row.request.cancelled:
                self.rows.release(row)
        self.waiting = [request for request in self.waiting if not request.cancelled]

    def _live(self) -> list[Row]:
        return self.rows.rows[: self.rows.live]

    def _sample(
        self,
        admissions: Sequence[Admission],
        decoding: Sequence[Row],
        prompts_AV: torch.Tensor,
        decoded_RV: torch.Tensor,
    ) -> None:
        """Give each row a token: those of an admission from the same logits."""
        rows, logits = list(decoding), [decoded_RV]
        for admission, logits_V in zip(admissions, prompts_AV, strict=True):
            rows += admission.rows
            logits.append(logits_V.expand(len(admission.rows), -1))
        requests = [_request(row) for row in rows]
        tokens, logprobs = choose(torch.cat(logits), [r.sampling for r in requests], [r.random for r in requests])
        for row, request, token, logprob in zip(rows, requests, tokens, logprobs, strict=True):
            if request.take(token, logprob):
                request.finish(self.version)
                self.rows.release(row)


def _request(row: Row) -> Request:
    if row.request is None:
        raise RuntimeError("a live row has no request")
    return row.request
