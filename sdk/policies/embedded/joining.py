"""Requests that come a little later than others of the same prompt: they go the same way, and nothing is computed
again.

Rollouts of a group start together and get the same answers from their tools, but not to the millisecond. Without this,
a request one token behind its group would stay behind, and be computed apart from it, until both end.
"""

from __future__ import annotations

import torch

from .requests import Request
from .rows import Row, Rows
from .sampling import choose

MOST_REMEMBERED = 8
"""So many tokens may a row be ahead of a request that joins it: the logits [V] of each are kept until then."""


def remember(row: Row, logits_V: torch.Tensor) -> None:
    """Keep what the row's requests sample their next token from, while others may still join them."""
    if _is_open(row):
        row.trail = [*row.trail, logits_V] if len(row.trail) < MOST_REMEMBERED else []


def join(rows: Rows, request: Request, version: int) -> bool:
    """Sample what the request would have sampled with the rows that began with its prompt; False where none did.

    It shares a row where it comes to all that the row has sampled, and has one of its own where it leaves it.
    """
    ways = [row for row in rows.live_rows() if _is_open(row) and row.requests[0].prompt == request.prompt]
    if not ways:
        return False
    for place in range(MOST_REMEMBERED):
        left = ways[0]
        [token], [logprob] = choose(left.trail[place][None], [request.sampling], [request.random])
        if request.take(token, logprob):
            request.finish(version)
            break
        ways = [row for row in ways if row.requests[0].token_ids[place] == token]
        if not ways:
            rows.branch(left, len(request.prompt) + place, [request])
            break
        further = [row for row in ways if len(row.trail) > place + 1]
        if not further:
            ways[0].requests.append(request)
            break
        ways = further
    return True


def _is_open(row: Row) -> bool:
    return len(row.trail) == len(row.requests[0].token_ids)
