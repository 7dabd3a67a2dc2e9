"""Requests sample their way along logits that are there: of a row's next token, of what was guessed to come after it,
or of a row that began with the same prompt a little earlier.

Where a request samples the token that is followed in the row, it goes on to the next logits; where not, it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .conversations import Row, Way
from .guesses import CONTEXT, Guesses
from .requests import Request
from .rows import MOST_REMEMBERED, Rows
from .sampling import choose


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
        self.was_open = is_open(self.row)


def walk(rows: Rows, walks: Sequence[Walk], logits_NV: torch.Tensor, guesses: Guesses, version: int) -> None:
    """Sample for all requests of the rows as many tokens as there are logits for. What was sampled is learnt.

    A request that ends is answered, with this `version` of the weights.
    """
    going = [(one, one.row.requests) for one in walks]
    for place in range(1 + max(len(one.guess) for one in walks)):
        drawing = [(one.first + place, request) for one, requests in going for request in requests]
        if not drawing:
            break
        samplings, generators = [r.sampling for _, r in drawing], [r.random for _, r in drawing]
        drawn = zip(*choose(logits_NV, samplings, generators, [row for row, _ in drawing]), strict=True)
        further = []
        for one, requests in going:
            one.steps, end = place + 1, one.begin + place
            before = one.row.tokens[max(end - CONTEXT, 0) : end]
            by_token: dict[int, list[Request]] = {}
            for request in requests:
                token, logprob = next(drawn)
                guesses.learn(before, token)
                one.spoilt |= not math.isfinite(logprob)
                if not request.take(token, logprob, version):
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
        trail = list(one.row.trail)
        if one.was_open:
            # A copy: else one row that others may join would keep the logits of all rows.
            more = min(one.steps, MOST_REMEMBERED - len(trail))
            trail += logits_NV[one.first : one.first + more].clone()
        rows.go_on(one.row, one.begin + one.steps - 1, one.ways, trail)


def join(rows: Rows, request: Request, version: int) -> bool:
    """Sample what the request would have sampled with the rows that began with its prompt; False where none did.

    Rollouts of a group start together and get the same answers from their tools, but not to the millisecond: a request
    one token behind its group would stay behind, and be computed apart from it, until both end.
    """
    ways = [row for row in rows.live_rows() if is_open(row) and row.requests[0].prompt == request.prompt]
    if not ways:
        return False
    for place in range(MOST_REMEMBERED):
        left = ways[0]
        [token], [logprob] = choose(left.trail[place][None], [request.sampling], [request.random])
        if request.take(token, logprob, version):
            break
        ways = [row for row in ways if row.requests[0].token_ids[place] == token]
        if not ways:
            rows.branch(left, Way(len(request.prompt) + place, [request]), left.trail)
            break
        further = [row for row in ways if len(row.trail) > place + 1]
        if not further:
            ways[0].requests.append(request)
            break
        ways = further
    return True


def is_open(row: Row) -> bool:
    """Whether others may still join the row's requests: what they sampled from is all remembered."""
    return len(row.trail) == len(row.requests[0].token_ids)
