"""Which replica gets a prompt: the one that has its beginning in the cache already."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

R = TypeVar("R")

_KEPT = 20_000


class PrefixRouter(Generic[R]):
    """Remembers where whole prompts and answered conversations went.

    The members of a group have the same prompt, and a rollout's next turn begins with the last one and its answer: both
    are found again exactly. What only begins alike, as all prompts with the same tools do, goes where least is under
    way; otherwise everything would pile up on the replica that came first.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[int, bytes], R] = OrderedDict()
        self._lengths: dict[int, int] = {}

    def choose(self, tokens: Sequence[int], candidates: Iterable[R], load: Callable[[R], int]) -> R:
        """One of the candidates, of which there is at least one."""
        able = list(candidates)
        for length, digest in reversed(_digests(tokens, [n for n in self._lengths if n <= len(tokens)])):
            place = self._places.get((length, digest))
            if place is not None and place in able:
                return place
        return min(able, key=load)

    def note(self, tokens: Sequence[int], place: R) -> None:
        """A prompt, or a prompt with its answer, is in the cache of `place`."""
        ((length, digest),) = _digests(tokens, [len(tokens)])
        if (length, digest) not in self._places:
            self._lengths[length] = self._lengths.get(length, 0) + 1
        self._places[length, digest] = place
        self._places.move_to_end((length, digest))
        if len(self._places) > _KEPT:
            (oldest, _), _ = self._places.popitem(last=False)
            self._lengths[oldest] -= 1
            if not self._lengths[oldest]:
                del self._lengths[oldest]

    def forget(self, place: R) -> None:
        """The cache of `place` is gone."""
        for key in [key for key, held in self._places.items() if held == place]:
            del self._places[key]
            self._lengths[key[0]] -= 1
            if not self._lengths[key[0]]:
                del self._lengths[key[0]]


def _digests(tokens: Sequence[int], lengths: Iterable[int]) -> list[tuple[int, bytes]]:
    """The digests of the first so many tokens, shortest first."""
    data = array("q", tokens).tobytes()
    running, done, found = hashlib.blake2b(digest_size=16), 0, []
    for length in sorted(lengths):
        running.update(data[done * 8 : length * 8])
        done = length
        found.append((length, running.digest()))
    return found
