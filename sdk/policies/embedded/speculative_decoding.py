"""Speculative decoding: a request samples from the logits of drafted tokens for as long as it agrees with the draft.

The logits are those of a row's next token and of the tokens drafted after it. A request that samples another token than
the drafted one leaves the row.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from .sampling_request import Request, choose
from .scheduler import Row, Rows, Way

# What a conversation may say next, guessed from what was said before: a guess costs little, a step of its own much.
#
# A decode step reads all weights for however few tokens, so the tokens that are likely to come are computed in the step
# before (speculative decoding: Leviathan et al., arXiv 2211.17192). They are looked up in what the same weights have
# sampled, as in prompt lookup and SuffixDecoding (arXiv 2411.04975): rollouts of a policy that learns to use tools
# repeat each other. A guess changes no result. Each token is sampled from the model's own logits by the request's own
# random numbers, and a guess only decides whether these logits are there already.

MOST_GUESSED = 4
"""So many tokens ahead. Of a quickstart step's guesses five in six are right."""
CONTEXT = 3
"""So many tokens decide what is guessed."""
_MOST_KNOWN = 200_000

# Measured with the embedded model on two cores, in what one more token costs; on a GPU steps cost more of these.
_STEP_COSTS = 32.0
"""A step, whatever it computes."""
_PADDING_COSTS = 1 / 6
"""A place in attention, of which each row has as many as the longest."""
_PRIOR_MADE, _PRIOR_RIGHT = 10.0, 8.0
"""How many guesses count as made before the first, and how many of these as right."""
_MEMORY = 0.97
"""What the guesses of a step weigh in the next one."""


class Guesses:
    """Which token came last after each sequence of three."""

    def __init__(self) -> None:
        self._next: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._made, self._right = 0.0, 0.0

    def learn(self, tokens: Sequence[int], token: int) -> None:
        """`token` was sampled after `tokens`."""
        context = tuple(tokens[-CONTEXT:])
        self._next[context] = token
        self._next.move_to_end(context)
        if len(self._next) > _MOST_KNOWN:
            self._next.popitem(last=False)

    def guess(self, tokens: Sequence[int], *, most: int, stop_ids: Collection[int]) -> list[int]:
        """At most `most` tokens that may come after `tokens`; none of `stop_ids`, after which nothing is computed."""
        context = list(tokens[-CONTEXT:])
        guessed: list[int] = []
        while len(guessed) < min(most, MOST_GUESSED):
            token = self._next.get(tuple(context[-CONTEXT:]))
            if token is None or token in stop_ids:
                break
            guessed.append(token)
            context.append(token)
        return guessed

    def shorten(self, guesses: Sequence[list[int]]) -> list[list[int]]:
        """The guesses of all rows of a step, cut to the length at which they save most.

        Which depends on how many were right lately. What was wrong is forgotten in time, also while nothing is guessed.
        """
        self._made, self._right = _MEMORY * self._made, _MEMORY * self._right
        share = (_PRIOR_RIGHT + self._right) / (_PRIOR_MADE + self._made)
        rows = max(len(guesses), 1)

        def saved(most: int) -> float:
            tokens = sum(min(len(guess), most) for guess in guesses)
            return tokens * share * (_STEP_COSTS / rows + 1) - tokens - rows * most * _PADDING_COSTS

        best = max(range(1 + max(map(len, guesses), default=0)), key=saved)
        return [guess[:best] for guess in guesses]

    def note(self, made: int, right: int) -> None:
        """So many tokens were guessed, and so many of them sampled."""
        self._made, self._right = self._made + made, self._right + right


@dataclass(eq=False)
class Walk:
    """A row and how far its requests get."""

    row: Row
    first: int
    """Which of the logits is the row's first; those of the guesses come after it."""
    guess: Sequence[int]
    """The row's last tokens, which no request has sampled yet."""
    ways: list[Way] = field(default_factory=list)
    steps: int = 0
    """How many of its logits some request has sampled from."""
    spoilt: bool = False
    """Whether some of its logits were nan or infinite."""

    def __post_init__(self) -> None:
        self.begin = len(self.row.tokens) - len(self.guess)
        """How many tokens of the row come before its first logits."""


def walk(rows: Rows, walks: Sequence[Walk], logits_NV: torch.Tensor, guesses: Guesses, version: int) -> None:
    """Sample for all requests of the rows as many tokens as there are logits for. What was sampled is learnt.

    A request that ends is answered, with this `version` of the weights.
    """
    going = [(one, one.row.requests) for one in walks]
    for place in range(1 + max(len(one.guess) for one in walks)):
        drawing = [(one.first + place, request) for one, requests in going for request in requests]
        if not drawing:
            break
        drawn = zip(*choose(logits_NV, [r for _, r in drawing], [row for row, _ in drawing]), strict=True)
        further = []
        for one, requests in going:
            one.steps, end = place + 1, one.begin + place
            before = one.row.tokens[max(end - CONTEXT, 0) : end]
            by_token: dict[int, list[Request]] = {}
            for request in requests:
                token, logprob = next(drawn)
                guesses.learn(before, token)
                one.spoilt |= not math.isfinite(logprob)
                if not request.take(token, logprob, version, logits_NV[one.first + place]):
                    by_token.setdefault(token, []).append(request)
            if place < len(one.guess) and (same := by_token.pop(one.guess[place], None)):
                further.append((one, same))
            one.ways += [Way(end, requests) for requests in by_token.values()]
        going = further
    for one in walks:  # before any row changes its place
        if one.spoilt:
            rows.scrub(one.row, max((way.length for way in one.ways), default=0))
    for one in walks:
        guesses.note(len(one.guess), one.steps - 1)
        rows.go_on(one.row, one.begin + one.steps - 1, one.ways)
