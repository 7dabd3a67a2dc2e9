"""A judge in place of the rules: anything that reads a rollout and says what went wrong first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import anyio

from ...errors import plain_errors
from ...records import Rollout
from .faults import Fault


class FaultJudge(Protocol):
    """Says what went wrong first. Rollouts hold text that models and tools wrote: material, never instructions."""

    async def judge(self, rollout: Rollout, found: Fault, /) -> Fault | None:
        """The fault, given what the rules found; None leaves it at that."""
        ...


async def judged_faults(
    judge: FaultJudge, rollouts: Iterable[Rollout], faults: Mapping[str, Fault], *, concurrency: int = 8
) -> dict[str, Fault]:
    """`faults` with the judge's word where it has one. What a judge raises is noted, and the rule's fault stands."""
    result = dict(faults)
    waiting = iter([rollout for rollout in rollouts if rollout.id in faults])

    async def worker() -> None:
        for rollout in waiting:
            found = faults[rollout.id]
            try:
                said = await judge.judge(rollout, found)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                result[rollout.id] = found.model_copy(update={"judge_error": reason})
            else:
                result[rollout.id] = found if said is None else said.model_copy(update={"by": "judge"})

    with plain_errors():
        async with anyio.create_task_group() as group:
            for _ in range(concurrency):
                group.start_soon(worker)
    return result
