"""The scheduler of the engine: which requests continue from which row of the cache, and which tokens are reused.

A row is a sequence of tokens: all requests that have come to the same tokens share it, so that it is decoded once for
all of them, until they sample different ones and it branches. Three more kinds of reuse, from the cheapest: a prompt
that goes on from what a finished row holds takes that row over; a prefix that several conversations share (system
prompt and tools) is stored once, apart from the rows; and what another row happens to hold is copied. Live rows, whose
prompts are computed, are always the first rows, so that one view of the cache spans them.
"""

from __future__ import annotations

import itertools
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
"""Of the memory that is free when the engine begins. The rest is for activations and whoever trains beside it, and on
systems that take no pages back, what is stored is there twice while the cache's room grows."""
GPU_SHARE = 0.3
"""The same of a GPU, where what is there twice is the whole room."""

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

    def __init__(self, most_tokens: float = math.inf, *, dense: bool = False) -> None:
        self.most_tokens = most_tokens
        self.dense = dense
        """Whether each row takes as much as the longest (see `RowCache.dense`)."""
        self.pressure = 0.0
        """The share that the requests under way may come to need; 1 where others wait for them to end."""

    @classmethod
    def of(cls, cache_bytes: int | None, *, token_bytes: int, device: torch.device) -> Memory:
        """`cache_bytes`: the most that may be stored; None: a share of what is free on the device, and anything on a
        device that does not tell."""
        if cache_bytes is None and device.type not in ("cpu", "cuda"):
            return cls()
        if cache_bytes is None and device.type == "cuda":
            cache_bytes = int(GPU_SHARE * torch.cuda.mem_get_info(device)[0])
        most = (SHARE * free_bytes() if cache_bytes is None else cache_bytes) // token_bytes
        return cls(max(1, most), dense=device.type != "cpu")

    def fitting(self, waiting: Sequence[Request], busy: Sequence[Row], prefixes: Sequence[Prefix]) -> list[Request]:
        """The first of `waiting` for which there is enough beside those that are `busy`, however long all of them get;
        one at least where none is. Prefixes that none of these stands on do not count: they can be forgotten."""
        held = {row.prefix for row in busy if row.prefix is not None}
        lengths = [length for row in busy for length in row.reserved]
        count, longest, total = len(lengths), max(lengths, default=0), sum(lengths)
        fitting: list[Request] = []
        for request in waiting:
            prefix = longest_beginning(prefixes, request.prompt)
            more = len(request.prompt) + request.limit - (len(prefix.tokens) if prefix and prefix in held else 0)
            rows = (count + 1) * max(longest, more) if self.dense else total + more
            if rows + _stored(held) > self.most_tokens and (fitting or busy):
                break
            count, longest, total = count + 1, max(longest, more), total + more
            fitting.append(request)
            if prefix is not None:
                held.add(prefix)
        needed = (count * longest if self.dense else total) + _stored(held)
        self.pressure = 1.0 if len(fitting) < len(waiting) else needed / self.most_tokens
        return fitting

    def excess(
        self, rows: Sequence[Row], touched: Sequence[int], prefixes: Sequence[Prefix], coming: Sequence[Request] = ()
    ) -> float:
        """How much more than there may be `rows` would take, of which so many tokens were `touched`, once the requests
        under way and those that are `coming` have come to their limits."""
        if self.dense:
            lengths = [len(request.prompt) + request.limit for request in coming]
            lengths += [length for row in rows for length in row.reserved or [row.own]]
            taken = len(lengths) * max(lengths, default=0)
        else:
            taken = sum(max(length, row.own, sum(row.reserved)) for row, length in zip(rows, touched, strict=True))
        return taken + _stored(prefixes) - self.most_tokens


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
    missing: list[int] = field(default_factory=list)
    """Those of its requests' prompt that are still to compute. Where there are some, the row is not live yet."""
    requests: list[Request] = field(default_factory=list)
    """Those that have come to these tokens. Where there is none, the conversation waits for its next turn, and may lose
    its row to another."""
    used: int = 0

    @property
    def own(self) -> int:
        """How many tokens the row itself stores."""
        return len(self.tokens) - (len(self.prefix.tokens) if self.prefix else 0)

    @property
    def reserved(self) -> list[int]:
        """How many tokens each of its requests may come to store: in a row of its own, when they part."""
        stored = self.own + len(self.missing)
        return [stored + request.limit - len(request.token_ids) for request in self.requests]

    @property
    def newest(self) -> int:
        """The last token that its requests sampled, which is not stored yet."""
        return self.requests[0].token_ids[-1]


class Way(NamedTuple):
    """Requests that have sampled the same token after the first `length` tokens of a row."""

    length: int
    requests: list[Request]


SHORTEST_PREFIX = 32
"""A shorter common beginning is not worth a prefix of its own."""
LEAST_SHARERS = 2
"""So many other conversations must begin with a prefix to make it shared; those of a group count, which will part."""
MOST_PREFIXES = 4


PIECE = 256
"""Tokens of prompts that are computed in one step at most where somebody reads answers as they come: about a second for
the embedded model on two cores, in which no other answer goes on."""


class Rows:
    """All rows and prefixes; belongs to the worker thread."""

    def __init__(self, decoder: Decoder, *, max_rows: int, memory: Memory | None = None) -> None:
        self._decoder = decoder
        self._max_rows = max_rows
        self.memory = memory or Memory()
        self._clock = 0
        self.rows: list[Row] = []
        self.live = 0
        self.begun: list[Row] = []
        """Those with requests whose prompt is not computed to its end, the oldest first; behind the live rows."""
        self.piece: float = math.inf
        """The most tokens of prompts to compute in one step."""
        self.prefixes: list[Prefix] = []
        self.computed_tokens = 0
        """Prompt tokens that went through the model, for tests and metrics of reuse."""
        self.decoded_tokens = 0
        """Sampled tokens that did; guesses that were wrong are not counted."""

    @property
    def room(self) -> int:
        """How many more requests can be live: each may come to need a row of its own."""
        return self._max_rows - sum(len(row.requests) for row in self._busy_rows())

    def live_rows(self) -> list[Row]:
        """Those with requests whose prompt is computed."""
        return self.rows[: self.live]

    def _busy_rows(self) -> list[Row]:
        return [*self.live_rows(), *self.begun]

    def _idle_rows(self) -> list[Row]:
        """Those without requests."""
        return [row for row in self.rows[self.live :] if not row.requests]

    def forget(self) -> None:
        """Drop everything stored; only without requests."""
        self.rows, self.prefixes = [], []
        self._decoder.reset()

    def fitting(self, waiting: Sequence[Request]) -> list[Request]:
        """The first of `waiting` for which there is a row and memory. One that has more than a piece in common with a
        prompt that is being computed waits for that."""
        long = [row.requests[0].prompt for row in self.begun if len(row.requests[0].prompt) > self.piece]
        ready: list[Request] = []
        for request in itertools.islice(waiting, self._max_rows):
            if len(ready) == self.room:
                break
            if len(request.prompt) > self.piece:
                known = self._known(request.prompt) if long else 0
                if any(self._awaits(request.prompt, other, known) for other in long):
                    continue
                long.append(request.prompt)
            ready.append(request)
        return self.memory.fitting(ready, self._busy_rows(), self.prefixes)

    def _known(self, prompt: list[int]) -> int:
        """How many tokens of its beginning are computed somewhere."""
        stored = [*(row.tokens for row in self.rows), *(prefix.tokens for prefix in self.prefixes)]
        return max((common_length(tokens, prompt) for tokens in stored), default=0)

    def _awaits(self, prompt: list[int], other: list[int], known: int) -> bool:
        """Whether something of the long beginning that both have in common is not computed."""
        if known >= len(prompt) - 1 or prompt == other:
            return False
        shared = common_length(prompt, other)
        return shared > self.piece and known < shared

    def make_way(self, coming: Sequence[Request]) -> None:
        """Where each row takes as much as the longest, conversations that pause go before others get rows."""
        if self.memory.dense and coming:
            self._give_back(coming)

    def admit(self, requests: Sequence[Request]) -> None:
        """Begin with `requests` (those `fitting`), those of one prompt in one row."""
        self._clock += 1
        by_prompt: dict[tuple[int, ...], list[Request]] = {}
        for request in requests:
            by_prompt.setdefault(tuple(request.prompt), []).append(request)
        for row in self.begun:
            if (same := by_prompt.pop(tuple(row.requests[0].prompt), None)) is not None:
                row.requests += same
                _note_cached(same, 0)
        # All of these first: what is placed may take the row of a conversation that waits.
        others = [same for same in by_prompt.values() if not self._take_over(same)]
        prompts = [request.prompt for same in others for request in same]
        for same in others:
            self._place(same, prompts)
        self._give_back()

    def next_pieces(self) -> list[tuple[Row, int]]:
        """How many tokens of which prompts to compute now: the oldest half of what there is room for, then those with
        the least missing."""
        shares = dict.fromkeys(self.begun, 0)
        left = self.piece
        by_missing = sorted(self.begun, key=lambda row: len(row.missing))
        for row, most in [*((row, self.piece / 2) for row in self.begun[:1]), *((row, left) for row in by_missing)]:
            more = int(min(len(row.missing) - shares[row], most, left))
            shares[row] += more
            left -= more
        return [(row, share) for row, share in shares.items() if share]

    def go_on(self, row: Row, reached: int, ways: Sequence[Way]) -> None:
        """Give each of `ways`, in which the row's requests go on from here, a row: the furthest one this row, which
        forgets what comes after it. Where none goes on, the row keeps the tokens that some request `reached`.
        """
        ways = sorted(ways, key=lambda way: (way.length, len(way.requests)))
        for way in ways[:-1]:
            self.branch(row, way)
        # Only now: a request that no row holds would not hear of a failure.
        if ways:
            row.tokens, row.requests = row.tokens[: ways[-1].length], ways[-1].requests
        else:
            row.tokens, row.requests = row.tokens[:reached], []
            self._release(row)

    def branch(self, row: Row, way: Way) -> None:
        """A live row for requests that go another way than `row`."""
        tokens, prefix = row.tokens[: way.length], row.prefix
        if prefix is not None and len(prefix.tokens) > way.length:
            prefix = None
        begin = len(prefix.tokens) if prefix else 0
        new = self._make_live(self._free_row(), way.requests)
        new.prefix, new.tokens = prefix, tokens[:begin]
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
        for row in self._busy_rows():
            row.requests = [request for request in row.requests if not request.cancelled]
            if not row.requests and row.missing:
                row.missing, row.used = [], self._clock
                self.begun.remove(row)
            elif not row.requests:
                self._release(row)

    def _release(self, row: Row) -> None:
        """No request is left: what the row holds stays, for its next turn, until somebody needs the room."""
        row.used = self._clock
        self.live -= 1
        self._exchange(self.rows.index(row), self.live)

    # Placing requests

    def _take_over(self, requests: list[Request]) -> bool:
        """Continue the longest waiting conversation that the prompt of all `requests` extends, if there is one."""
        prompt = requests[0].prompt
        found = [r for r in self._idle_rows() if len(r.tokens) < len(prompt) and prompt[: len(r.tokens)] == r.tokens]
        best = max(found, key=lambda row: len(row.tokens), default=None)
        if best is None or best.own <= 0:
            return False
        self._begin(best, requests, computed=0)
        return True

    def _place(self, requests: list[Request], prompts: Sequence[list[int]]) -> None:
        """A row for requests of one prompt: a shared prefix, what another row holds, and the rest to compute."""
        prompt, before = requests[0].prompt, self.computed_tokens
        prefix = self._prefix_for(prompt, prompts)
        known = len(prefix.tokens) if prefix else 0
        source = max(self.rows, key=lambda row: common_length(row.tokens, prompt), default=None)
        shared = min(common_length(source.tokens, prompt), len(prompt) - 1) if source else 0
        # A copy: the row that holds it may be the one that is given away next.
        copied = self._read(source, known, shared).clone() if source and shared > known else None
        row = self._free_row()
        row.prefix, row.tokens = prefix, prompt[:known]
        if copied is not None:
            self._write(row, copied, prompt[known:shared])
        self._begin(row, requests, computed=self.computed_tokens - before)

    def _begin(self, row: Row, requests: list[Request], *, computed: int) -> None:
        """Note that the rest of the prompt of `requests` is to be `computed` in a row, and so many tokens were."""
        row.requests = requests
        row.missing = requests[0].prompt[len(row.tokens) :]
        self.begun.append(row)
        _note_cached(requests, len(row.missing) + computed)

    def _free_row(self) -> Row:
        """An unused row, or the one whose conversation has waited longest."""
        idle = self._idle_rows()
        unused = next((row for row in idle if not row.tokens), None)
        if unused is None and len(self.rows) < self._max_rows:
            self.rows.append(Row())
            self._make_room(1)
            return self.rows[-1]
        row = unused or min(idle, key=lambda row: row.used)
        row.prefix, row.tokens = None, []
        self._decoder.cache.release(self.rows.index(row), 0)
        return row

    def _give_back(self, coming: Sequence[Request] = ()) -> None:
        """Where there is not enough for what is `coming` and for rows that part: first what no conversation needs, the
        prefixes that none stands on among it, then conversations that have waited longest."""
        idle = sorted(self._idle_rows(), key=lambda row: row.used)
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
                if self.memory.dense:
                    self._exchange(self.rows.index(row), len(self.rows) - 1)
                    self.rows.pop()
            else:
                return

    def _excess(self, coming: Sequence[Request] = ()) -> float:
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
        known = max((common_length(row.tokens, prompt) for row in self.rows), default=0)
        # What takes long is computed for the first row, in pieces, and copied for the next one.
        if length == 0 or length - max(have, known) > self.piece or not self._room_for_prefix():
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
        self, pieces: Sequence[tuple[Row, int]], decoding: Sequence[Row], guesses: Sequence[Sequence[int]]
    ) -> tuple[list[tuple[Row, int]], torch.Tensor]:
        """So many tokens of the prompts of some rows, and for `decoding`, the first live rows, the last sampled token
        of each and what is guessed to come after it; all of this is then among the rows' tokens.

        Returns the rows whose prompts are complete, which are live now, and the places of their logits; and the logits
        after each piece and then after each of those tokens, [pieces + N, V].
        """
        cache = self._decoder.cache
        most = max((row.own + len(row.missing) for row, _ in pieces), default=0)
        most = max([most, *(row.own + 1 + len(guess) for row, guess in zip(decoding, guesses, strict=True))])
        self._make_room(most)
        segments = []
        for row, count in pieces:
            store = cache.row(self.rows.index(row))
            prefix = row.prefix.kv if row.prefix else None
            segments.append(Segment(row.missing[:count], store, row.own, prefix))
        logits = self._forward(segments, _next_tokens(decoding, guesses) if decoding else None)
        for row, guess in zip(decoding, guesses, strict=True):
            row.tokens += [row.newest, *guess]
        for row, count in pieces:
            row.tokens, row.missing = row.tokens + row.missing[:count], row.missing[count:]
        # Only now: rows that change places keep as many tokens as they have.
        complete = [(row, place) for place, (row, _) in enumerate(pieces) if not row.missing]
        for row, _ in complete:
            self.begun.remove(row)
            self._make_live(row, row.requests)
        return complete, logits

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


def _note_cached(requests: Sequence[Request], computed: int) -> None:
    """The first of them needs so many tokens `computed`, those of a prefix that others begin with among them; the
    others nothing."""
    first, *others = requests
    first.cached = max(len(first.prompt) - computed, 0)
    for request in others:
        request.cached = len(request.prompt)


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
