"""The auditor: the policy also learns to judge rollouts, in the same run, or a second policy does; see
`docs/verifiers.md`. Half of what is audited is wrong, so that a policy that always gives the same verdict earns nothing
on average.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from ..alarms import is_canary
from ..judging.verdicts import audit_call, audit_tasks
from ..policies.protocol import Sampling
from ..records import Rollout, Task
from ..rollouts import derive_seed
from ..rollouts.engine import RolloutEngine, RolloutStream, StreamClosed
from ..rollouts.run_context import RunContext
from .batch import Batch, build_batch
from .config import TrainConfig
from .groups import group_jobs

AUDIT = "audit"
"""The stage of the audits' rollouts."""
_CALLS = ("right_call", "false_alarm", "missed_error")


class Audits:
    """Plays the audits of a step, and makes a batch of them."""

    def __init__(self, engine: RolloutEngine, config: TrainConfig, context: RunContext) -> None:
        self._auditor = context.auditor
        self._engine = replace(context, verifier=audit_call(), host=None).engine(context.auditor or engine.agent)
        self._config = config
        self._folder = context.run_folder
        self._stream: RolloutStream | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Audits can be played while this is open."""
        config = self._config
        sampling = Sampling(temperature=config.grpo.temperature, max_tokens=self._engine.limits.max_turn_tokens)
        async with self._engine.stream(sampling=sampling, on_rollout=self._keep) as self._stream:
            yield

    def _keep(self, rollout: Rollout) -> None:
        self._folder.append_rollout(AUDIT, rollout)

    async def play(self, step: int, rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
        """The audits of a step's finished rollouts, in groups. Raises `StreamClosed` where training was stopped."""
        if self._stream is None:
            raise StreamClosed("no audits are played yet, or no more")
        tasks = self.tasks(step, rollouts)
        jobs = group_jobs(AUDIT, step, tasks, config=self._config, group=f"{AUDIT}/{step}")
        played = await self._stream.submit(jobs, priority=step).wait()
        size = self._config.grpo.num_generations
        return [played[start : start + size] for start in range(0, len(played), size)]

    def tasks(self, step: int, rollouts: Sequence[Rollout]) -> list[Task]:
        """Which rollouts are audited: as many wrong ones as right ones, drawn anew in each step.

        Fewer than `audits.per_step` where too few of a kind answered. Canary tasks are left out: every reward of theirs
        is wrong.
        """
        config = self._config
        candidates = [r for r in rollouts if r.scored and r.stop_reason == "answered" and r.answer.strip()]
        candidates = [rollout for rollout in candidates if not is_canary(rollout)]
        if not candidates:
            return []
        found = audit_tasks(candidates, threshold=config.evaluation.success_threshold)
        kinds = [[task for task in found if task.expected["audit_error"] is wrong] for wrong in (True, False)]
        count = min(config.audits.per_step // 2, *map(len, kinds))
        chance = random.Random(derive_seed(config.seed, AUDIT, step))
        return [task for kind in kinds for task in chance.sample(sorted(kind, key=lambda task: task.id), count)]

    def batch(self, groups: Sequence[Sequence[Rollout]]) -> Batch:
        """The rows of audits: none where a second policy sampled them. Audits are compared with each other alone."""
        if self._auditor is not None:
            groups = [[rollout.model_copy(update={"rows": []}) for rollout in group] for group in groups]
        return build_batch(groups, self._config.changed({"grpo.advantages": "rollout", "grpo.domain": None}))

    def charged(self, groups: Sequence[Sequence[Rollout]], rollouts: Sequence[Rollout]) -> list[Rollout]:
        """A step's rollouts as they are compared: each wrong one is worth `audits.cost` less, times the share of
        its scored audits that called out the error.

        Not in a group of equal scores: not all of its rollouts were audited, and there it would be the whole signal
        that they were not.
        """
        scores: dict[str, set[float]] = {}
        for one in rollouts:
            if one.scored and one.verdict is not None:
                scores.setdefault(one.group, set()).add(one.verdict.score)
        lost: dict[str, float] = {}
        for group in groups:
            calls = [r.verdict.components["right_call"] for r in group if r.scored and r.verdict is not None]
            if calls and group[0].task.expected["audit_error"]:
                share = sum(calls) / len(calls)
                lost[group[0].task.id.removeprefix(f"{AUDIT}/")] = self._config.audits.cost * share
        differ = {group for group, found in scores.items() if len(found) > 1}
        return [_cheaper(one, lost.get(one.id, 0.0) if one.group in differ else 0.0) for one in rollouts]

    def figures(self, groups: Sequence[Sequence[Rollout]], batch: Batch) -> dict[str, Any]:
        """For the metrics of the step; the calls are shares of the scored audits."""
        scored = [r.verdict.components for group in groups for r in group if r.scored and r.verdict is not None]
        shares = {name: sum(one[name] for one in scored) / len(scored) for name in _CALLS} if scored else {}
        shares |= {"no_call": 1 - sum(shares.values())} if scored else {}
        stats = batch.stats
        figures = {
            "rollouts": stats.rollouts,
            "unscored": stats.unscored,
            "groups": stats.groups,
            "groups_with_signal": stats.groups_with_signal,
            "groups_left_out": self._config.audits.per_step - stats.groups,
            "trained_tokens": stats.trained_tokens,
            "reward": stats.mean_score,
            **shares,
        }
        return {f"{AUDIT}/{name}": value for name, value in figures.items()}

    @property
    def given_up(self) -> int:
        """Begun or handed in, and cut off because the run was stopped."""
        counts = self._engine.counts
        return counts.given_up + counts.not_begun

    def stop(self) -> None:
        """Begin no more audits. `play` then raises `StreamClosed`."""
        if self._stream is not None:
            self._stream.close()


def _cheaper(rollout: Rollout, cost: float) -> Rollout:
    if not cost or rollout.verdict is None:
        return rollout
    verdict = rollout.verdict.model_copy(update={"score": rollout.verdict.score - cost})
    return rollout.model_copy(update={"verdict": verdict})
