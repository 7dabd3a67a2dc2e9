"""The auditor, trained in the same run: the policy also judges rollouts of the step, in groups of their own.

Each step some of its finished rollouts become audit tasks, as many wrong ones as right ones, so that a policy that
always says the same earns nothing on average. What an audit earns is what the outcome verifier had said of the audited
rollout; its advantage is that among the audits of the same rollout. One policy plays both roles: no reward of one role
reaches the tokens of the other.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..alarms.step_metrics import is_canary
from ..judging.audit_examples import AuditCall, audit_call, audit_tasks
from ..policies.protocol import Sampling
from ..records import Rollout, Task
from ..rollouts.engine import RolloutEngine
from ..rollouts.seeds import derive_seed
from ..rollouts.stream import RolloutStream, StreamClosed
from ..traces.run_folder import RunFolder
from .batch import Batch, build_batch
from .config import TrainConfig
from .group_jobs import group_jobs
from .validation import engine_beside

AUDIT = "audit"
"""The stage of their rollouts."""
_CALLS = ("right_call", "false_alarm", "missed_error")


def audit_verifier(config: TrainConfig) -> AuditCall:
    """What judges the audits of a run."""
    right, false_alarm, missed = config.audit_scores
    return audit_call(right=right, false_alarm=false_alarm, missed=missed)


class Audits:
    """Plays the audits of a step, and makes a batch of them."""

    def __init__(self, engine: RolloutEngine, *, config: TrainConfig, folder: RunFolder) -> None:
        self._engine = engine_beside(engine, audit_verifier(config))
        self._config = config
        self._folder = folder
        self._stream: RolloutStream | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Audits can be played while this is open."""
        config = self._config
        sampling = Sampling(temperature=config.temperature, max_tokens=self._engine.limits.max_turn_tokens)
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
        size = self._config.group_size
        return [played[start : start + size] for start in range(0, len(played), size)]

    def tasks(self, step: int, rollouts: Sequence[Rollout]) -> list[Task]:
        """Which rollouts are audited: as many wrong ones as right ones, drawn anew in each step.

        Fewer than `audits_per_step` where too few of a kind answered. Canary tasks are left out: all that is told of
        them is wrong.
        """
        config = self._config
        candidates = [r for r in rollouts if r.scored and r.stop_reason == "answered" and r.answer.strip()]
        candidates = [rollout for rollout in candidates if not is_canary(rollout)]
        if not candidates:
            return []
        found = audit_tasks(candidates, peers=config.audit_peers, threshold=config.success_threshold)
        kinds = [[task for task in found if task.expected["audit_error"] is wrong] for wrong in (True, False)]
        count = min(config.audits_per_step // 2, *map(len, kinds))
        chance = random.Random(derive_seed(config.seed, AUDIT, step))
        return [task for kind in kinds for task in chance.sample(sorted(kind, key=lambda task: task.id), count)]

    def batch(self, groups: Sequence[Sequence[Rollout]]) -> Batch:
        """Their rows, with the advantages that they have among themselves."""
        config = self._config
        return build_batch(
            groups,
            scale=config.scale_advantages,
            baseline=config.baseline,
            negative_weight=config.negative_weight,
            mask_cut_off=config.mask_cut_off,
            average_over_signal=config.resample_rounds > 0,
            without_signal=config.trains_without_signal,
        )

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
            "groups_left_out": self._config.audits_per_step - stats.groups,
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
        """Begin no more; whoever waits hears of it."""
        if self._stream is not None:
            self._stream.close()
