"""What comes first, and what only breaks ties: lexicographic order, extra credit that never outweighs being right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, VerifierError
from ..records import Rollout, Verdict
from .combining import checked_parts, joined, run_parts
from .protocol import VerifierLike
from .running import verifier_name

_MOST_STEPS = 2**48
"""Places that a float tells apart with room to spare; its significand has 53 bits."""
_MOST_EXTRA = 0.5


@dataclass(frozen=True, repr=False)
class Lexicographic:
    """See `lexicographic`."""

    verifiers: tuple[VerifierLike, ...]
    levels: int

    def __repr__(self) -> str:
        return f"lexicographic({', '.join(map(verifier_name, self.verifiers))}, levels={self.levels})"

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts(self.verifiers, rollout)
        for name, verdict in verdicts.items():
            _require_share(name, verdict.score, "lexicographic")
        # Whole numbers to the end, so that no rounding can change the order.
        base = self.levels + 1
        total = 0
        for verdict in verdicts.values():
            total = total * base + _level(verdict.score, self.levels)
        return joined(verdicts, total / (self.levels * base ** (len(verdicts) - 1)))


@dataclass(frozen=True, repr=False)
class ExtraCredit:
    """See `extra_credit`."""

    right: VerifierLike
    extras: tuple[VerifierLike, ...]
    weights: tuple[float, ...]

    def __repr__(self) -> str:
        parts = zip(self.extras, self.weights, strict=True)
        shown = ", ".join(f"{verifier_name(extra)}: {weight:g}" for extra, weight in parts)
        return f"extra_credit({verifier_name(self.right)}, {{{shown}}})"

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts((self.right,), rollout)
        (name, first), *_ = verdicts.items()
        if first.score > 1:
            raise VerifierError(
                f"extra_credit: {name} scored {first.score:g}, more than 1, so that the extra could outweigh a part of "
                "it; give a verifier whose scores are at most 1"
            )
        if first.score < 1:
            return joined(verdicts, first.score)
        verdicts = await run_parts(self.extras, rollout, before=verdicts)
        earned = list(verdicts.items())[1:]
        for extra, verdict in earned:
            _require_share(extra, verdict.score, "extra_credit")
        pairs = zip(self.weights, earned, strict=True)
        return joined(verdicts, 1 + math.fsum(weight * verdict.score for weight, (_, verdict) in pairs))


def lexicographic(*verifiers: VerifierLike, levels: int = 10) -> Lexicographic:
    """A verifier: the first decides; the second breaks the first's ties, the third the second's, and so on.

    Each part must score in [0, 1] and is rounded down to `levels` steps. The score is at least 1 exactly where the
    first part is 1, and below 1 + 1/`levels`, so the first part alone says what counts as a success.

    GRPO divides by the group's spread unless `scale_advantages` is "none": in a group whose first parts are equal, the
    tie-breaker then counts in full.

    Raises `ConfigError` where there are more steps than a float tells apart.

    Example: `lexicographic(answer_match(), thrift(calls=8))`
    """
    parts = checked_parts(verifiers, "lexicographic")
    if isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
        raise ConfigError(f"lexicographic: levels is {levels!r}; give a whole number from 1")
    if (levels + 1) ** len(parts) > _MOST_STEPS:
        raise ConfigError(
            f"lexicographic: {len(parts)} parts of {levels} levels are more steps than one number tells apart; "
            "give fewer levels or parts"
        )
    return Lexicographic(parts, levels)


def extra_credit(right: VerifierLike, extras: Mapping[Any, float]) -> ExtraCredit:
    """A verifier: the score of `right`, and where that is 1, the sum of weight times score of the `extras` on top.

    What is not right gets no extra, so it stays below everything right, whatever it saved. Extras score in [0, 1]; the
    weights are above 0 and E, their sum, is at most 0.5. A policy that answers more tasks wrong to save more loses
    too, as soon as it gives up a share of E/(1 + E) of its right answers: 9 % where E is 0.1.

    Example: `extra_credit(all_of(final_state(), answer_match()), {thrift(turns=8, tokens=2048): 0.1})`
    """
    if not isinstance(extras, Mapping):
        raise ConfigError(f"extra_credit: {extras!r} is no mapping; give {{verifier: weight, ...}}")
    for extra, weight in extras.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= _MOST_EXTRA:
            raise ConfigError(
                f"extra_credit: the weight of {verifier_name(extra)} is {weight!r}; give a number above 0, such as 0.1"
            )
    if math.fsum(extras.values()) > _MOST_EXTRA:
        raise ConfigError(
            f"extra_credit: the weights add up to {math.fsum(extras.values()):g}; extra credit is small, at most "
            f"{_MOST_EXTRA:g} in all"
        )
    return ExtraCredit(
        checked_parts((right,), "extra_credit")[0],
        checked_parts(tuple(extras), "extra_credit"),
        tuple(map(float, extras.values())),
    )


def _level(score: float, levels: int) -> int:
    # A sum that is 1 but for its rounding is 1.
    return math.floor(score * levels + 1e-9)


def _require_share(name: str, score: float, where: str) -> None:
    if not 0 <= score <= 1:
        raise VerifierError(f"{where}: {name} scored {score:g}; a part must score from 0 to 1")
