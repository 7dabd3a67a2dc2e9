"""What counts as a verifier."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

from ..records import Rollout, Verdict

Score = float | bool | Verdict
"""What a verifier says. True is 1.0 and False is 0.0; a float is any finite number."""


@runtime_checkable
class Verifier(Protocol):
    """An object that judges rollouts. `verify` may be async."""

    def verify(self, rollout: Rollout, /) -> Score | Awaitable[Score]: ...


VerifierLike = Verifier | Callable[[Rollout], Score] | Callable[[Rollout], Awaitable[Score]]
"""A function of the rollout, sync or async, or a `Verifier`."""


@runtime_checkable
class GroupVerifier(Protocol):
    """An object that judges rollouts of one task beside each other, in training; `sdk.judging.ranked` is one.

    `verify` judges a rollout alone, as soon as it has ended: what it was told apart by without the others. That is all
    that held-out tasks, probes and demonstrations get. `most` is how many rollouts a group may have.
    """

    most: int

    def verify(self, rollout: Rollout, /) -> Score | Awaitable[Score]: ...

    async def verify_group(self, rollouts: Sequence[Rollout], /) -> Mapping[str, Verdict]:
        """Verdicts by id, for the scored rollouts of a group, which have those of `verify`; who is left out keeps it.

        Raises `VerifierError` where there is no verdict: the whole group is unscored then.
        """
        ...

    def again(self, rollouts: Sequence[Rollout], alone: Mapping[str, Verdict], /) -> Mapping[str, Verdict]:
        """What `verify_group` must have given for stored rollouts, which have their verdicts: all that follows from
        them and from `alone`, the verdicts of `verify`. What cannot be computed again, such as what a model said, is
        taken as recorded. Raises `VerifierError` where what was recorded cannot be.
        """
        ...


def judges_groups(verifier: Any) -> TypeGuard[GroupVerifier]:
    """Whether a verifier wants to see the rollouts of a group together."""
    return callable(getattr(verifier, "verify_group", None))
