"""How full a server's cache of keys and values is, from what it tells at `/metrics`.

The names are those of vLLM 0.32 (`vllm/v1/metrics/loggers.py`), in Prometheus' text format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

USAGE = "vllm:kv_cache_usage_perc"
WAITING = "vllm:num_requests_waiting"
PREEMPTED = "vllm:num_preemptions_total"

_SAMPLE = re.compile(
    r"^(?P<name>vllm:[a-z_]+)(?:\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*\})? (?P<value>[^ ]+)(?: -?\d+)?$", re.MULTILINE
)
_MUCH = 0.75
"""Of the cache: above it requests are taken to wait for room in it, below for the end of the largest batch."""


@dataclass(frozen=True)
class CacheFigures:
    """What a server tells. With several engines in one server: of the fullest, and the sums."""

    usage: float
    """0 to 1: the blocks that requests under way hold. What is only kept to be found again is free."""
    waiting: int
    """Requests that wait for their first token, or for room after they were pre-empted."""
    preempted: int
    """Since the server's start: how often a request was thrown out for another, to be computed again."""


def read_figures(text: str) -> CacheFigures | None:
    """From the body of `/metrics`; None where it has not all three, as where the server keeps no statistics."""
    found: dict[str, list[float]] = {USAGE: [], WAITING: [], PREEMPTED: []}
    for sample in _SAMPLE.finditer(text):
        if sample["name"] in found:
            try:
                found[sample["name"]].append(float(sample["value"]))
            except ValueError:
                return None
    if not all(found.values()) or not all(0 <= value < 1e15 for values in found.values() for value in values):
        return None
    return CacheFigures(max(found[USAGE]), int(sum(found[WAITING])), int(sum(found[PREEMPTED])))


def pressure_of(now: CacheFigures, before: CacheFigures | None) -> float:
    """The share of the cache in use; 1 and above where it is too small for what is under way.

    That is where requests were pre-empted since the look before, or wait while more than three quarters are in use.
    A server that has fewer pre-emptions than before was started again.
    """
    lost = now.preempted - before.preempted if before is not None and now.preempted >= before.preempted else 0
    crowded = now.usage >= _MUCH and now.waiting > 0
    return max(now.usage, 1.0) + lost if lost or crowded else now.usage
