"""What a rollout saved. Only ever an extra: see `extra_credit`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConfigError
from ..records import Rollout, Verdict


@dataclass(frozen=True, repr=False)
class Thrift:
    """See `thrift`."""

    turns: int | None = None
    calls: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not self._limits():
            raise ConfigError("thrift() measures nothing; give at least one of turns, calls, tokens, seconds")
        for name, most in self._limits().items():
            if isinstance(most, bool) or not math.isfinite(most) or most <= 0:
                raise ConfigError(f"thrift: {name} is {most!r}; give the amount above 0 at which nothing is earned")

    def __repr__(self) -> str:
        return f"thrift({', '.join(f'{name}={most:g}' for name, most in self._limits().items())})"

    def verify(self, rollout: Rollout) -> Verdict:
        """From 0 (at or above every limit) to 1 (nothing used), with a component for each limit."""
        used = {
            "turns": rollout.turns,
            "calls": len(rollout.calls),
            "tokens": rollout.sampled_tokens,
            "seconds": rollout.duration_s,
        }
        limits = self._limits()
        saved = {name: max(0.0, 1 - used[name] / most) for name, most in limits.items()}
        shown = ", ".join(f"{used[name]:g} of {most:g} {name}" for name, most in limits.items())
        return Verdict(score=math.fsum(saved.values()) / len(saved), components=saved, explanation=shown)

    def _limits(self) -> dict[str, float]:
        given = {"turns": self.turns, "calls": self.calls, "tokens": self.tokens, "seconds": self.seconds}
        return {name: most for name, most in given.items() if most is not None}


def thrift(
    *, turns: int | None = None, calls: int | None = None, tokens: int | None = None, seconds: float | None = None
) -> Thrift:
    """A verifier: how little was used, from 0 to 1; the mean over what is given. For `extra_credit` and the later
    places of `lexicographic`: alone it rewards doing nothing.

    Each argument is the amount at which nothing is earned: assistant messages (`turns`), tool calls with mistaken ones
    (`calls`), sampled tokens (`tokens`), wall time of the rollout (`seconds`, which is the machine's as much as the
    policy's).

    Example: `extra_credit(answer_match(), {thrift(turns=8, calls=16): 0.1})`
    """
    return Thrift(turns=turns, calls=calls, tokens=tokens, seconds=seconds)
