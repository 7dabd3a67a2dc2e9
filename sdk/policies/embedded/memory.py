"""How much the rows may store: conversations wait their turn, and those that pause are forgotten, before the machine's
memory is full."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil
import torch

from .conversations import Prefix, Row, longest_beginning
from .requests import Request

SHARE = 0.5
"""Of the memory that is free when the engine begins. The rest is for activations and whoever trains beside it, and
while the cache's room grows, what is stored is there twice."""

CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def free_bytes() -> int:
    """What this process may still take: of the machine, or of its control groups where one has less."""
    return min([int(psutil.virtual_memory().available), *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """What is left to the control group of this process, and to each that this one is part of: a job of a cluster has
    its limit some levels up. Of version 2 or, on older systems, 1."""
    lines = OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if not controllers:
            root, names = CGROUP, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = CGROUP / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = root / path.lstrip("/")  # within a container often not there, where the root is its own group
        for group in (group for group in (own, *own.parents) if group.is_relative_to(root)):
            try:
                most, used = (int((group / name).read_text()) for name in names[:2])  # "max" where there is no limit
                figures = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):
                continue
            yield most - used + int(figures.get(names[2], 0))


class Memory:
    """What rows and prefixes take and may yet take, in tokens whose keys and values are stored."""

    def __init__(self, most_tokens: float = math.inf) -> None:
        self.most_tokens = most_tokens
        self.pressure = 0.0
        """The share that the requests under way may come to need; 1 where others wait for them to end."""

    @classmethod
    def of(cls, cache_bytes: int | None, *, token_bytes: int, device: torch.device) -> Memory:
        """`cache_bytes`: the most that may be stored; None: `SHARE` of what is free on a CPU, anything elsewhere, where
        the cache takes its whole room at once."""
        if cache_bytes is None and device.type != "cpu":
            return cls()
        return cls(max(1, (SHARE * free_bytes() if cache_bytes is None else cache_bytes) // token_bytes))

    def fitting(self, waiting: Sequence[Request], live: Sequence[Row], prefixes: Sequence[Prefix]) -> list[Request]:
        """The first of `waiting` for which there is enough beside those that are `live`, however long all of them get;
        one at least where none is. Prefixes that none of these stands on do not count: they can be forgotten."""
        held = {row.prefix for row in live if row.prefix is not None}
        needed = sum(row.reserved for row in live) + _stored(held)
        fitting: list[Request] = []
        for request in waiting:
            prefix = longest_beginning(prefixes, request.prompt)
            more = len(request.prompt) + request.limit - (len(prefix.tokens) if prefix and prefix in held else 0)
            if needed + more > self.most_tokens and (fitting or live):
                break
            needed += more
            fitting.append(request)
            if prefix is not None:
                held.add(prefix)
        self.pressure = 1.0 if len(fitting) < len(waiting) else needed / self.most_tokens
        return fitting

    def excess(self, rows: Sequence[Row], touched: Sequence[int], prefixes: Sequence[Prefix], coming: int) -> float:
        """How much more than there may be `rows` would take, of which so many tokens were `touched`, once the requests
        under way have come to their limits, and those just admitted have stored `coming` tokens of their prompts."""
        taken = sum(max(length, row.own, row.reserved) for row, length in zip(rows, touched, strict=True))
        return taken + coming + _stored(prefixes) - self.most_tokens


def _stored(prefixes: Iterable[Prefix]) -> int:
    return sum(len(prefix.tokens) for prefix in prefixes)
