"""Groups that are judged whole: finished rollouts wait for the others of their group, then all are judged and kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.abc

from ..errors import ConfigError, plain_errors
from ..records import Rollout
from ..rollouts.stream import StreamClosed
from ..verifiers.verification import judge_group, verifier_name
from ..verifiers.verifier import GroupVerifier, VerifierLike, judges_groups
from .config import TrainConfig

_STOPPED = "training was stopped before the group was judged"


def check_groups(verifier: VerifierLike, config: TrainConfig) -> None:
    """Raises `ConfigError` for groups that are larger than the verifier can judge, before anything is loaded."""
    largest = config.group_size * (1 + config.branches * config.branch_points)
    if judges_groups(verifier) and config.grpo_steps and largest > verifier.most:
        with_branches = " with its branches" if config.branches else ""
        raise ConfigError(
            f"a group has up to {largest} rollouts{with_branches}, and {verifier_name(verifier)} judges at most "
            f"{verifier.most} together; lower group_size" + (", branches or branch_points" if config.branches else "")
        )


@dataclass
class _Group:
    members: list[Rollout]
    done: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = field(default_factory=lambda: StreamClosed(_STOPPED))


class GroupJudging:
    """Takes rollouts as they end, and hands them on once their group has its verdicts; groups are judged side by side.

    `size`: of a group, which is judged as soon as so many have ended; None where it is not known before all have.
    """

    def __init__(
        self,
        verifier: GroupVerifier,
        *,
        size: int | None,
        timeout_s: float | None,
        hand_on: Callable[[Rollout], None],
    ) -> None:
        self._verifier = verifier
        self._size = size
        self._timeout_s = timeout_s
        self._hand_on = hand_on
        self._waiting: dict[str, list[Rollout]] = {}
        self._begun: dict[str, _Group] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Groups are judged while this is open."""
        with plain_errors():
            async with anyio.create_task_group() as self._tasks:
                try:
                    yield
                finally:
                    self._tasks.cancel_scope.cancel()

    @property
    def held(self) -> int:
        """Rollouts that have ended and were not handed on: their groups are not judged."""
        begun = sum(len(group.members) for group in self._begun.values() if group.error is not None)
        return begun + sum(map(len, self._waiting.values()))

    def ended(self, rollout: Rollout) -> None:
        """A rollout of some group has ended."""
        members = self._waiting.setdefault(rollout.group, [])
        members.append(rollout)
        if len(members) == self._size:
            self._begin(rollout.group)

    async def judged(self, rollouts: Sequence[Rollout]) -> None:
        """Wait for the verdicts of these groups, all of whose rollouts have ended.

        Raises what handing them on raised, and `StreamClosed` where training was stopped first.
        """
        names = list(dict.fromkeys(rollout.group for rollout in rollouts))
        for name in names:
            if name in self._waiting:
                self._begin(name)
        for name in names:
            group = self._begun[name]
            await group.done.wait()
            if group.error is not None:
                raise group.error
            del self._begun[name]

    def stop(self) -> None:
        """Judge nothing more; whoever waits hears of it."""
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        for group in self._begun.values():
            group.done.set()

    def _begin(self, name: str) -> None:
        assert self._tasks is not None
        group = self._begun[name] = _Group(self._waiting.pop(name))
        self._tasks.start_soon(self._judge, group)

    async def _judge(self, group: _Group) -> None:
        try:
            await judge_group(self._verifier, group.members, self._timeout_s)
            for rollout in group.members:
                self._hand_on(rollout)
            group.error = None
        except Exception as error:
            group.error = error  # whoever waits for the group raises it; the others go on
        finally:
            group.done.set()
