"""The embedded engine: one batch over every request in flight, in a worker thread of its own.

In each step the worker admits what waits (computing only what no row holds yet) and decodes the next token of every row
that was live before, with those that are guessed to follow, in one forward pass. Callers on any event loop await
futures. New weights are taken in between requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from ...errors import PolicyFailure
from ...process import give_freed_memory_back, let_idle_threads_go
from ..grammar import Grammar
from ..protocol import Completion, Sampling, require_room
from .decoder import Decoder
from .sampling_request import Request, generator
from .scheduler import PIECE, Memory, Row, Rows
from .speculative_decoding import CONTEXT, Guesses, Walk, walk

logger = logging.getLogger(__name__)

# What the worker thread does in one step: admit what waits, and the next tokens of every live row.


@dataclass(eq=False)
class NewWeights:
    """Weights that wait to be taken in; None: none yet, and the memory of the present ones is given back, unless `keep`
    says that they stay."""

    state: Mapping[str, Any] | None
    version: int
    keep: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class Batch:
    """All requests that are being computed or wait for a row; belongs to the worker thread."""

    def __init__(
        self, decoder: Decoder, *, max_rows: int, version: int, memory: Memory | None = None, piece: int = PIECE
    ) -> None:
        self._decoder = decoder
        self._piece = piece
        self.rows = Rows(decoder, max_rows=max_rows, memory=memory)
        self.waiting: list[Request] = []
        self.version = version
        self.rests = False
        """Whether there are no weights until others come."""
        self._guesses = Guesses()

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.waiting or self.rows.live or self.rows.begun)

    def requests(self) -> Iterator[Request]:
        """Every request that has not been answered."""
        yield from self.waiting
        yield from (request for row in self.rows.rows for request in row.requests)

    def load(self, new: NewWeights) -> None:
        """Take new weights, or give those up that there are; only while not busy."""
        with torch.inference_mode():
            if new.state is not None:
                self._decoder.weights.load(new.state)
            elif not new.keep:
                self._decoder.weights.drop()
            self.rows.forget()
        self.rests = new.state is None and not new.keep
        # Other weights say other things; and what is sampled from the same ones does not depend on what was before.
        self._guesses = Guesses()
        self.version = new.version

    def step(self) -> None:
        """Admit what fits, and decode for each row that was live before, all in one forward pass."""
        with torch.inference_mode():
            self.rows.drop_cancelled()
            self.waiting = [request for request in self.waiting if not request.cancelled]
            # Whoever waits for whole answers waits least where prompts are computed at once.
            read_along = any(request.on_token is not None for request in self.requests())
            self.rows.piece = self._piece if read_along else math.inf
            fitting = self.rows.fitting(self.waiting)
            self.rows.make_way(fitting)
            decoding = self.rows.live_rows()
            if fitting:
                self.rows.admit(fitting)
            # Only now: each request stays in `requests` all the time, or nobody would tell its caller of a failure.
            placed = set(map(id, fitting))
            self.waiting = [request for request in self.waiting if id(request) not in placed]
            if self.rows.begun or decoding:
                self._sample(decoding)

    def _sample(self, decoding: Sequence[Row]) -> None:
        """One forward pass, and what can be sampled from it."""
        guessed = self._guesses.shorten([self._guess(row) for row in decoding])
        pieces = self.rows.next_pieces()
        complete, logits_NV = self.rows.compute(pieces, decoding, guessed)
        walks = [Walk(row, place, ()) for row, place in complete]
        first = len(pieces)
        for row, guess in zip(decoding, guessed, strict=True):
            walks.append(Walk(row, first, guess))
            first += 1 + len(guess)
        if walks:
            walk(self.rows, walks, logits_NV, self._guesses, self.version)
        self.rows.decoded_tokens += sum(one.steps for one in walks[len(complete) :])

    def _guess(self, row: Row) -> list[int]:
        """What may come after the row's newest token: no further than some request goes at most."""
        most = max(request.limit - len(request.token_ids) for request in row.requests) - 1
        stop_ids = frozenset.union(*(request.stop_ids for request in row.requests))
        if (derivation := row.requests[0].derivation) is not None and (forced := derivation.forced()):
            return list(itertools.takewhile(lambda token: token not in stop_ids, forced[:most]))
        return self._guesses.guess([*row.tokens[-CONTEXT:], row.newest], most=most, stop_ids=stop_ids)


_GATHER_S = 0.002
"""How long an idle engine waits for more requests before it computes the first."""


class EmbeddedEngine:
    """A `StreamingPolicy` and a `WeightPublisher` in this process.

    Example::

        loaded = load_model()
        with EmbeddedEngine(loaded.model) as engine:
            completion = await engine.sample([1, 520, 9531], sampling=Sampling(max_tokens=16), seed=7)
    """

    takes_grammars = True

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int = 64,
        context_tokens: int | None = None,
        cache_bytes: int | None = None,
        version: int = 0,
        max_restarts: int = 0,
    ) -> None:
        """Copy `model` and start the worker.

        `max_rows`: the most requests decoded at once; more wait their turn. `context_tokens`: the most tokens of
        prompt and completion together, the model's own limit where not given. `cache_bytes`: the most memory of keys
        and values; requests wait where theirs might not fit, and one alone is always computed. Where not given half of
        what is free on a CPU, and 0.3 of it on a GPU, where each row takes the room of the longest. `version`: of the
        weights as they are.
        `max_restarts`: how often, in all, it goes on with an empty cache after a failure; the requests that were being
        computed have failed then, and those that came later have not.
        Raises `ModelError` for a model the engine cannot express, `ValueError` for limits that cannot be.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}; it must be 1 or more")
        if cache_bytes is not None and cache_bytes < 1:
            raise ValueError(f"cache_bytes is {cache_bytes}; it must be 1 or more, or None for a share of what is free")
        decoder = Decoder(model)
        self._memory = Memory.of(cache_bytes, token_bytes=decoder.cache.token_bytes, device=decoder.device)
        if context_tokens is not None and not 2 <= context_tokens <= decoder.max_positions:
            raise ValueError(f"context_tokens is {context_tokens}; the model takes 2 to {decoder.max_positions}")
        self.context_tokens = context_tokens or decoder.max_positions
        """The most tokens of prompt and completion together."""
        self.vocabulary: int = decoder.vocabulary
        """How many token ids it takes and samples from."""
        self._decoder = decoder
        self._max_rows, self._max_restarts = max_rows, max_restarts
        self.restarts = 0
        """How often it went on after a failure."""
        self._batch = Batch(decoder, max_rows=max_rows, version=version, memory=self._memory)
        let_idle_threads_go()
        give_freed_memory_back()  # the copy as it was before it was packed
        self._loading = False
        self._changed = threading.Condition()
        self._waiting: list[Request] = []
        self._new_weights: NewWeights | None = None
        self._closing = False
        self._ended: PolicyFailure | None = None
        self._worker = threading.Thread(target=self._run, name="embedded-engine", daemon=True)
        self._worker.start()

    @property
    def version(self) -> int:
        """The version of the weights that sample now."""
        return self._batch.version

    @property
    def alive(self) -> bool:
        """False after `close()` or after the worker failed; `sample` then raises `PolicyFailure`."""
        return self._ended is None

    def pressure(self) -> float:
        """The share of the memory for keys and values that the requests under way may come to need; 1 where others
        wait for them to end. See `AdaptiveConcurrency`."""
        return self._memory.pressure if self._batch.busy else 0.0

    @property
    def computed_prompt_tokens(self) -> int:
        """How many prompt tokens went through the model since it began or last went on after a failure; the others were
        reused."""
        return self._batch.rows.computed_tokens

    @property
    def decoded_tokens(self) -> int:
        """How many sampled tokens did: one for all requests that came to it the same way."""
        return self._batch.rows.decoded_tokens

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop_token_ids: Sequence[int] = (),
        on_token: Callable[[int], bool | None] | None = None,
        grammar: Grammar | None = None,
    ) -> Completion:
        """Continue `prompt_ids`; see `StreamingPolicy.sample`. Cancelling the task frees the row.

        Raises `ValueError` for a prompt that is empty, leaves no room in the context or holds ids outside the
        vocabulary, and for a grammar that becomes too complex; `PolicyFailure` when the engine has failed or is closed,
        or the model says nan.
        """
        prompt = [int(token) for token in prompt_ids]
        require_room(prompt, self.context_tokens)
        if min(prompt) < 0 or max(prompt) >= self.vocabulary:
            wrong = next(token for token in prompt if not 0 <= token < self.vocabulary)
            raise ValueError(f"the prompt holds token id {wrong}; the vocabulary ends at {self.vocabulary - 1}")
        loop = asyncio.get_running_loop()
        request = Request(
            prompt=prompt,
            sampling=sampling,
            limit=min(sampling.max_tokens, self.context_tokens - len(prompt)),
            stop_ids=self._decoder.eos_ids | frozenset(stop_token_ids),
            random=generator(seed),
            loop=loop,
            future=loop.create_future(),
            on_token=on_token,
            derivation=None if grammar is None else grammar.begin(),
        )
        with self._changed:
            if self._ended is not None:
                raise PolicyFailure(str(self._ended))
            self._waiting.append(request)
            self._changed.notify_all()
        try:
            return await request.future
        except (asyncio.CancelledError, GeneratorExit):  # the latter where a loop ends without cancelling its tasks
            request.cancelled = True
            raise

    def publish(self, state: Mapping[str, Any], *, version: int) -> None:
        """Copy new weights in (the `state_dict()` of the same model) and forget all stored keys and values.

        Requests in flight end with the weights they began with, later ones carry `version`; returns when the
        weights are in, so that the caller may change its tensors. Blocks until then.
        Raises `ModelError` for weights that do not fit, `PolicyFailure` when the engine has failed or is closed.
        """
        self._decoder.weights.check(state)
        # Who publishes has computed, and waits for what is sampled next.
        let_idle_threads_go()
        self._hand_over(NewWeights(state, version))
        give_freed_memory_back()

    def rest(self) -> None:
        """Give back the memory of weights, keys and values, for who trains in this process. Blocks until then.

        Requests in flight end first; those that come later wait until weights are published.
        Raises `PolicyFailure` when the engine has failed or is closed.
        """
        self._hand_over(NewWeights(None, self.version))
        give_freed_memory_back()

    def forget(self) -> None:
        """Forget all stored keys and values, as if the weights had just been published: what is sampled next does not
        depend, to the last bit, on what was sampled before. Their memory goes back to the system. Blocks until requests
        in flight have ended.

        Raises `PolicyFailure` when the engine has failed or is closed.
        """
        self._hand_over(NewWeights(None, self.version, keep=True))
        give_freed_memory_back()

    def _hand_over(self, ticket: NewWeights) -> None:
        with self._changed:
            while self._new_weights is not None and self._ended is None:
                self._changed.wait()
            if self._ended is not None:
                raise PolicyFailure(str(self._ended))
            self._new_weights = ticket
            self._changed.notify_all()
        ticket.done.wait()
        if ticket.error is not None:
            raise PolicyFailure(str(ticket.error)) from ticket.error

    def close(self) -> None:
        """Stop the worker. Requests in flight raise `PolicyFailure`. Closing twice is fine."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._worker.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The worker thread

    def _run(self) -> None:
        failure: PolicyFailure | None = None
        while failure is None:
            try:
                while self._next():
                    self._batch.step()
                failure = PolicyFailure("the engine was closed; make a new one")
            except BaseException as error:  # SystemExit, too: whoever waits would wait for ever
                _let_go_of_memory(error)
                if not self._went_on_after(error):
                    failure = _failed(error, "is dead", "; make a new one")
        self._end(failure)

    def _went_on_after(self, error: BaseException) -> bool:
        """Whether another batch over the same weights could take the place of the one that broke.

        Not where new weights were being read: part of them may be in.
        """
        if self._loading or self.restarts >= self._max_restarts:
            return False
        broken = self._batch
        try:
            self._decoder.reset()
            batch = Batch(self._decoder, max_rows=self._max_rows, version=broken.version, memory=self._memory)
        except Exception:
            logger.exception("the embedded engine could not continue after a failure")
            return False
        self.restarts += 1
        logger.warning(
            "the embedded engine failed and continues with an empty cache (%d of %d times): %s: %s",
            self.restarts,
            self._max_restarts,
            type(error).__name__,
            error,
        )
        with self._changed:
            self._batch = batch
        for request in broken.requests():
            request.fail(_failed(error, "lost what it was computing", " (it continues)"))
        return True

    def _next(self) -> bool:
        """Wait for work and hand what waits to the batch; False when the engine is to close."""
        with self._changed:
            idle = not self._batch.busy
            if idle and not (self._waiting or self._closing):
                let_idle_threads_go()
            while not (self._has_requests or self._batch.busy or self._new_weights or self._closing):
                self._changed.wait()
            if idle and self._waiting and not self._new_weights and not self._closing:
                # Rollouts start together: a moment's patience puts them into one batch.
                self._changed.wait_for(lambda: self._closing, timeout=_GATHER_S)
            if self._closing:
                return False
            if self._new_weights is None:
                self._batch.waiting += self._waiting
                self._waiting = []
                return True
            ticket = self._new_weights
        if not self._batch.busy:
            self._take_weights(ticket)
        return True

    @property
    def _has_requests(self) -> bool:
        """Whether requests wait that could be computed."""
        return bool(self._waiting) and not self._batch.rests

    def _take_weights(self, ticket: NewWeights) -> None:
        self._loading = True
        self._batch.load(ticket)
        self._loading = False
        with self._changed:
            self._new_weights = None
            self._changed.notify_all()
        ticket.done.set()

    def _end(self, failure: PolicyFailure) -> None:
        """Nobody is left waiting: every request and every publisher hears of it."""
        with self._changed:
            self._ended = failure
            requests = [*self._batch.requests(), *self._waiting]
            self._waiting = []
            ticket, self._new_weights = self._new_weights, None
            self._changed.notify_all()
        for request in requests:
            error = PolicyFailure(str(failure))
            error.__cause__ = failure.__cause__
            request.fail(error)
        if ticket is not None:
            ticket.error = failure
            ticket.done.set()


def _let_go_of_memory(error: BaseException) -> None:
    """Empty the frames that an error and its causes came through: whoever keeps the error would keep the broken cache
    and all activations with it, when an engine that ran out of memory goes on."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _failed(error: BaseException, how: str, then: str) -> PolicyFailure:
    failure = PolicyFailure(f"the embedded engine failed and {how}: {type(error).__name__}: {error}{then}")
    failure.__cause__ = error
    return failure
