"""The scheduler of the engine: which requests continue from which row of the cache, and which tokens are reused.

A row is a sequence of tokens: all requests that have come to the same tokens share it, so that it is decoded once for
all of them, until they sample different ones and it branches. Three more kinds of reuse, from the cheapest: a prompt
that goes on from what a finished row holds takes that row over; a prefix that several conversations share (system
prompt and tools) is stored once, apart from the rows; and what another row happens to hold is copied. Live rows are
always the first rows, so that one view of the cache spans them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from .attention import NextTokens, Segment
from .decoder import Decoder
from .sampling_request import Request, common_length

# How much the rows may store: conversations wait their turn, and those that pause are forgotten, before the machine's
# memory is full.

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


@dataclass(eq=False)
class Prefix:
    """Tokens that conversations begin with, and their keys and values, [Y, 2, K, P, D]."""

    tokens: list[int]
    kv: torch.Tensor
    used: int = 0

    def begins(self, prompt: list[int]) -> bool:
        """Whether `prompt` goes on from it."""
        return len(self.tokens) < len(prompt) and prompt[: len(self.tokens)] == self.tokens


def longest_beginning(prefixes: Iterable[Prefix], prompt: list[int]) -> Prefix | None:
    """The longest of the prefixes that `prompt` goes on from."""
    begun = (prefix for prefix in prefixes if prefix.begins(prompt))
    return max(begun, key=lambda prefix: len(prefix.tokens), default=None)


@dataclass(eq=False)
class Row:
    """A conversation. `tokens`: those whose keys and values are stored, in the prefix and then in the row itself."""

    prefix: Prefix | None = None
    tokens: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """Those that have come to these tokens. Where there is none, the conversation waits for its next turn, and may lose
    its row to another."""
    trail: list[torch.Tensor] = field(default_factory=list)
    """The logits [V] that each token of `requests` was sampled from; fewer than there are tokens where forgotten."""
    used: int = 0

    @property
    def own(self) -> int:
        """How many tokens the row itself stores."""
        return len(self.tokens) - (len(self.prefix.tokens) if self.prefix else 0)

    @property
    def reserved(self) -> int:
        """How many tokens its requests may come to store: each in a row of its own, when they part."""
        return sum(self.own + request.limit - len(request.token_ids) for request in self.requests)

    @property
    def newest(self) -> int:
        """The last token that its requests sampled, which is not stored yet."""
        return self.requests[0].token_ids[-1]


class Way(NamedTuple):
    """Requests that have sampled the same token after the first `length` tokens of a row."""

    length: int
    requests: list[Request]


@dataclass(eq=False)
class Admission:
    """A row that became live, and the tokens of its prompt that are still to compute."""

    row: Row
    missing: list[int]


SHORTEST_PREFIX = 32
"""A shorter common beginning is not worth a prefix of its own."""
LEAST_SHARERS = 2
"""So many other conversations must begin with a prefix to make it shared; those of a group count, which will part."""
MOST_PREFIXES = 4
MOST_REMEMBERED = 8
"""So many tokens may a row be ahead of a request that joins it: the logits [V] of each are kept until then."""


class Rows:
    """All rows and prefixes; belongs to the worker thread."""

    def __init__(self, decoder: Decoder, *, max_rows: int, memory: Memory | None = None) -> None:
        self._decoder = decoder
        self._max_rows = max_rows
        self.memory = memory or Memory()
        self._clock = 0
        self.rows: list[Row] = []
        self.live = 0
        self.prefixes: list[Prefix] = []
        self.computed_tokens = 0
        """Prompt tokens that went through the model, for tests and metrics of reuse."""
        self.decoded_tokens = 0
        """Sampled tokens that did; guesses that were wrong are not counted."""

    @property
    def room(self) -> int:
        """How many more requests can be live: each may come to need a row of its own."""
        return self._max_rows - sum(len(row.requests) for row in self.live_rows())

    def live_rows(self) -> list[Row]:
        """Those with requests."""
        return self.rows[: self.live]

    def forget(self) -> None:
        """Drop everything stored; only without live rows."""
        self.rows, self.prefixes = [], []
        self._decoder.reset()

    def fitting(self, waiting: Sequence[Request]) -> list[Request]:
        """The first of `waiting` for which there is a row and memory."""
        return self.memory.fitting(waiting[: self.room], self.live_rows(), self.prefixes)

    def admit(self, requests: Sequence[Request]) -> list[Admission]:
        """Make `requests` (those `fitting` that joined no row) live, those of one prompt in one row, behind the rows
        that are; their prompts are still to compute."""
        self._clock += 1
        by_prompt: dict[tuple[int, ...], list[Request]] = {}
        for request in requests:
            by_prompt.setdefault(tuple(request.prompt), []).append(request)
        groups = list(by_prompt.values())
        # All of these first: what is placed may take the row of a conversation that waits.
        taken = [self._take_over(same) for same in groups]
        others = [same for same, admission in zip(groups, taken, strict=True) if admission is None]
        prompts = [request.prompt for same in others for request in same]
        admissions = [*(a for a in taken if a is not None), *(self._place(same, prompts) for same in others)]
        self._give_back(sum(len(a.missing) * len(a.row.requests) for a in admissions))
        return admissions

    def go_on(self, row: Row, reached: int, ways: Sequence[Way], trail: list[torch.Tensor]) -> None:
        """Give each of `ways`, in which the row's requests go on from here, a row: the furthest one this row, which
        forgets what comes after it. Where none goes on, the row keeps the tokens that some request `reached`.

        `trail`: the row's as far as some request has come, at most `MOST_REMEMBERED`.
        """
        ways = sorted(ways, key=lambda way: (way.length, len(way.requests)))
        for way in ways[:-1]:
            self.branch(row, way, trail)
        # Only now: a request that no row holds would not hear of a failure.
        if ways:
            row.tokens, row.requests = row.tokens[: ways[-1].length], ways[-1].requests
            row.trail = _kept(trail, row.requests)
        else:
            row.tokens, row.requests = row.tokens[:reached], []
            self._release(row)

    def branch(self, row: Row, way: Way, trail: list[torch.Tensor]) -> None:
        """A live row for requests that go another way than `row`, whose `trail` they have followed until then."""
        tokens, prefix = row.tokens[: way.length], row.prefix
        if prefix is not None and len(prefix.tokens) > way.length:
            prefix = None
        begin = len(prefix.tokens) if prefix else 0
        new = self._make_live(self._free_row(), way.requests)
        new.prefix, new.tokens, new.trail = prefix, tokens[:begin], _kept(trail, way.requests)
        self._write(new, self._read(row, begin, way.length), tokens[begin:])

    def scrub(self, row: Row, length: int) -> None:
        """Forget what a row holds after `length` tokens, and overwrite it, since it is nan or infinite.

        What is masked is multiplied by 0, and 0 times nan is nan: the row's next conversation would get no numbers.
        """
        border = len(row.prefix.tokens) if row.prefix else 0
        self._decoder.cache.row(self.rows.index(row))[:, :, :, max(length - border, 0) : row.own] = 0
        if length < border:
            row.prefix = None
        row.tokens = row.tokens[:length]

    def drop_cancelled(self) -> None:
        """Forget the requests that nobody waits for any more."""
        for row in self.live_rows():
            row.requests = [request for request in row.requests if not request.cancelled]
            if not row.requests:
                self._release(row)

    def _release(self, row: Row) -> None:
        """No request is left: what the row holds stays, for its next turn, until somebody needs the room."""
        row.trail = []
        row.used = self._clock
        self.live -= 1
        self._exchange(self.rows.index(row), self.live)

    # Placing requests

    def _take_over(self, requests: list[Request]) -> Admission | None:
        """Continue the longest waiting conversation that the prompt of all `requests` extends."""
        prompt = requests[0].prompt
        found = [
            r for r in self.rows[self.live :] if len(r.tokens) < len(prompt) and prompt[: len(r.tokens)] == r.tokens
        ]
        best = max(found, key=lambda row: len(row.tokens), default=None)
        if best is None or best.own <= 0:
            return None
        return Admission(self._make_live(best, requests), prompt[len(best.tokens) :])

    def _place(self, requests: list[Request], prompts: Sequence[list[int]]) -> Admission:
        """A row for requests of one prompt: a shared prefix, what another row holds, and the rest to compute."""
        prompt = requests[0].prompt
        prefix = self._prefix_for(prompt, prompts)
        known = len(prefix.tokens) if prefix else 0
        source = max(self.rows, key=lambda row: common_length(row.tokens, prompt), default=None)
        shared = min(common_length(source.tokens, prompt), len(prompt) - 1) if source else 0
        # A copy: the row that holds it may be the one that is given away next.
        copied = self._read(source, known, shared).clone() if source and shared > known else None
        row = self._make_live(self._free_row(), requests)
        row.prefix, row.tokens = prefix, prompt[:known]
        if copied is not None:
            self._write(row, copied, prompt[known:shared])
        return Admission(row, prompt[max(known, shared) :])

    def _free_row(self) -> Row:
        """An unused row, or the one whose conversation has waited longest."""
        idle = self.rows[self.live :]
        unused = next((row for row in idle if not row.tokens), None)
        if unused is None and len(self.rows) < self._max_rows:
            self.rows.append(Row())
            self._make_room(1)
            return self.rows[-1]
        row = unused or min(idle, key=lambda row: row.used)
        row.prefix, row.tokens = None, []
        return row

    def _give_back(self, coming: int) -> None:
        """Where there is not enough for what is `coming` and for rows that part: first what no conversation needs, the
        prefixes that none stands on among it, then conversations that have waited longest."""
        idle = sorted(self.rows[self.live :], key=lambda row: row.used)
        if self._excess(coming) > 0:
            for place, row in enumerate(self.rows):
                self._decoder.cache.release(place, row.own)
        while self._excess(coming) > 0:
            held = {row.prefix for row in self.rows}
            if stale := [prefix for prefix in self.prefixes if prefix not in held]:
                self.prefixes.remove(min(stale, key=lambda p: p.used))
            elif idle:
                row = idle.pop(0)
                row.prefix, row.tokens = None, []
                self._decoder.cache.release(self.rows.index(row), 0)
            else:
                return

    def _excess(self, coming: int = 0) -> float:
        return self.memory.excess(self.rows, self._decoder.cache.touched, self.prefixes, coming)

    def _make_live(self, row: Row, requests: list[Request]) -> Row:
        row.requests = requests
        row.used = self._clock
        if row.prefix is not None:
            row.prefix.used = self._clock
        self._exchange(self.rows.index(row), self.live)
        self.live += 1
        return row

    def _exchange(self, a: int, b: int) -> None:
        if a == b:
            return
        rows = self.rows
        self._decoder.cache.swap(a, b, a_tokens=rows[a].own, b_tokens=rows[b].own)
        rows[a], rows[b] = rows[b], rows[a]
        if self._excess() > 0:  # the shorter one has come to where the longer one was
            self._decoder.cache.release(a, rows[a].own)
            self._decoder.cache.release(b, rows[b].own)

    # Prefixes

    def _prefix_for(self, prompt: list[int], prompts: Sequence[list[int]]) -> Prefix | None:
        """The prefix that saves most: tokens times the conversations that begin with them, made if need be."""
        others = [*(p for p in prompts if p is not prompt), *(row.tokens for row in self.rows)]
        lengths = [min(common_length(prompt, other), len(prompt) - 1) for other in others]
        best = longest_beginning(self.prefixes, prompt)
        have = len(best.tokens) if best else 0

        def saved(length: int) -> int:
            return length * sum(other >= length for other in lengths)

        candidates = {n for n in lengths if n >= SHORTEST_PREFIX and saved(n) >= n * LEAST_SHARERS}
        length = max(candidates, key=saved, default=0)
        if best is not None and (length < have + SHORTEST_PREFIX or saved(length) <= saved(have)):
            best.used = self._clock
            return best
        if length == 0 or not self._room_for_prefix():
            return best
        return self._make_prefix(prompt[:length])

    def _room_for_prefix(self) -> bool:
        """Drop the prefix that was not used for longest, of those that no row stands on."""
        if len(self.prefixes) < MOST_PREFIXES:
            return True
        held = {id(row.prefix) for row in self.rows}
        idle = [p for p in self.prefixes if id(p) not in held and p.used < self._clock]
        if idle:
            self.prefixes.remove(min(idle, key=lambda p: p.used))
        return bool(idle)

    def _make_prefix(self, tokens: list[int]) -> Prefix:
        """Store a prefix: copied as far as some row or prefix holds it, computed from there."""
        holders: list[Row | Prefix] = [*self.rows, *self.prefixes]
        source = max(holders, key=lambda holder: common_length(holder.tokens, tokens), default=None)
        known = common_length(source.tokens, tokens) if source else 0
        prefix = Prefix(tokens, self._decoder.cache.separate(len(tokens)), self._clock)
        if source and known:
            prefix.kv[:, :, :, :known] = self._read(source, 0, known)
        if known < len(tokens):
            self._forward([Segment(tokens[known:], prefix.kv, known)], None)
        self.prefixes.append(prefix)
        for row in self.rows:
            shorter = row.prefix is None or len(row.prefix.tokens) < len(tokens)
            if shorter and row.tokens[: len(tokens)] == tokens:
                self._stand_on(row, prefix)
        return prefix

    def _stand_on(self, row: Row, prefix: Prefix) -> None:
        """Have a row that came before the prefix read it too: attention costs each row as much as the longest."""
        begin, tokens = len(prefix.tokens), row.tokens
        own = self._read(row, begin, len(tokens)).clone()
        row.prefix, row.tokens = prefix, tokens[:begin]
        self._write(row, own, tokens[begin:])

    # Keys and values

    def compute(
        self, admissions: Sequence[Admission], decoding: Sequence[Row], guesses: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """The prompts of `admissions`, and for `decoding`, the first live rows, the last sampled token of each and
        what is guessed to come after it; all of this is then among the rows' tokens.

        Returns the logits after each prompt and then after each of those tokens, [admissions + N, V].
        """
        cache = self._decoder.cache
        most = max((a.row.own + len(a.missing) for a in admissions), default=0)
        most = max([most, *(row.own + 1 + len(guess) for row, guess in zip(decoding, guesses, strict=True))])
        self._make_room(most)
        segments = []
        for admission in admissions:
            row = admission.row
            store = cache.row(self.rows.index(row))
            segments.append(Segment(admission.missing, store, row.own, row.prefix.kv if row.prefix else None))
        logits = self._forward(segments, _next_tokens(decoding, guesses) if decoding else None)
        for row, guess in zip(decoding, guesses, strict=True):
            row.tokens += [row.newest, *guess]
        for admission in admissions:
            admission.row.tokens = admission.row.tokens + admission.missing
        return logits

    def _forward(self, segments: Sequence[Segment], new: NextTokens | None) -> torch.Tensor:
        self.computed_tokens += sum(len(s.token_ids) for s in segments)
        return self._decoder.compute(segments, new)

    def _read(self, holder: Row | Prefix, begin: int, end: int) -> torch.Tensor:
        """The keys and values at positions `begin` to `end` of a row or prefix, [Y, 2, K, end - begin, D]."""
        if isinstance(holder, Prefix):
            return holder.kv[:, :, :, begin:end]
        prefix = holder.prefix.kv if holder.prefix else None
        border = prefix.shape[3] if prefix is not None else 0
        own = self._decoder.cache.row(self.rows.index(holder))[:, :, :, max(begin - border, 0) : max(end - border, 0)]
        if prefix is None or begin >= border:
            return own
        return torch.cat([prefix[:, :, :, begin : min(end, border)], own], dim=3)

    def _make_room(self, tokens: int) -> None:
        self._decoder.cache.ensure(rows=len(self.rows), tokens=tokens, stored=[row.own for row in self.rows])

    def _write(self, row: Row, kv: torch.Tensor, tokens: list[int]) -> None:
        """Append stored tokens to a row."""
        own = row.own
        self._make_room(own + len(tokens))
        store = self._decoder.cache.row(self.rows.index(row))
        store[:, :, :, own : own + len(tokens)] = kv
        row.tokens = row.tokens + tokens


def _kept(trail: list[torch.Tensor], requests: Sequence[Request]) -> list[torch.Tensor]:
    """As much of a trail as `requests` have followed, while it is short enough for others to join them."""
    length = len(requests[0].token_ids) if requests else 0
    return trail[:length] if length <= MOST_REMEMBERED else []


def _next_tokens(rows: Sequence[Row], guesses: Sequence[Sequence[int]]) -> NextTokens:
    """The newest token of each row goes in, and what is guessed to come after it."""
    sharers: dict[int, tuple[torch.Tensor, list[int]]] = {}
    for place, row in enumerate(rows):
        if row.prefix is not None:
            sharers.setdefault(id(row.prefix), (row.prefix.kv, []))[1].append(place)
    return NextTokens(
        [[row.newest, *guess] for row, guess in zip(rows, guesses, strict=True)],
        [len(row.tokens) for row in rows],
        [row.own for row in rows],
        list(sharers.values()),
    )
