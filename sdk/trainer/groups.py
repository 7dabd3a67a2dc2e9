"""The rollouts that a step asks for: a group for each task. Groups may be judged whole: finished rollouts then wait for
the others of their group, and all are judged and kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import fmean

import anyio
import anyio.abc

from ..errors import ConfigError, plain_errors
from ..policies.tool_prompt import TOOL_PROMPTS
from ..records import Rollout, Task, ToolPrompt
from ..rollouts import derive_seed
from ..rollouts.engine import StreamClosed
from ..rollouts.episode import Job
from ..verifiers.verifier import GroupVerifier, VerifierLike, judge_group, judges_groups, verifier_name
from .config import TrainConfig

STAGE = "grpo"
"""The stage of the rollouts that are trained with GRPO."""


def group_jobs(stage: str, step: int, tasks: Sequence[Task], *, config: TrainConfig, group: str) -> list[Job]:
    """`num_generations` jobs for each task, one task after the other; those of a task share their tool prompt.

    `group`: what the names of the groups begin with.
    """
    return [
        Job(
            id=f"{stage}/{step}/{task.id}/{member}",
            task=task,
            seed=derive_seed(config.seed, stage, step, task.id, member),
            group=f"{group}/{task.id}",
            step=step,
            tool_prompt=drawn_tool_prompt(config, stage, step, task.id),
        )
        for task in tasks
        for member in range(config.grpo.num_generations)
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Which of the tool prompts that a model is trained with a demonstration or a group of rollouts is shown.


def drawn_tool_prompt(config: TrainConfig, *names: object) -> ToolPrompt:
    """One of `config.tool_prompt`, by the shares there: the same for the same seed and `names`, so that the rollouts of
    a group share their prompt, and a run that goes on draws the same."""
    shares = config.tool_prompt
    if not isinstance(shares, Mapping):
        return shares
    place = derive_seed(config.seed, "tool prompt", *names) / 2**63
    reached = 0.0
    given = [length for length in TOOL_PROMPTS if length in shares]
    for length in given:
        reached += shares[length]
        if place < reached:
            return length
    return given[-1]  # shares that add up to a little less than 1


def rewards_by_prompt(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """For the metrics of a step: the mean score of the scored rollouts of each tool prompt, `reward/names` and such."""
    scores: dict[ToolPrompt, list[float]] = {}
    for rollout in rollouts:
        if rollout.scored and rollout.verdict is not None:
            scores.setdefault(rollout.tool_prompt, []).append(rollout.verdict.score)
    return {f"reward/{length}": fmean(scores[length]) for length in TOOL_PROMPTS if length in scores}


# ---------------------------------------------------------------------------------------------------------------------

_STOPPED = "training was stopped before the group was judged"


def check_groups(verifier: VerifierLike, config: TrainConfig) -> None:
    """Raises `ConfigError` for groups that are larger than the verifier can judge, before anything is loaded."""
    largest = config.grpo.num_generations * (1 + config.rollouts.branches * config.rollouts.branch_points)
    if judges_groups(verifier) and config.grpo.max_steps and largest > verifier.most:
        with_branches = " with its branches" if config.rollouts.branches else ""
        raise ConfigError(
            f"a group has up to {largest} rollouts{with_branches}, and {verifier_name(verifier)} judges at most "
            f"{verifier.most} together; lower grpo.num_generations"
            + (", rollouts.branches or rollouts.branch_points" if config.rollouts.branches else "")
        )


@dataclass
class _Group:
    members: list[Rollout]
    done: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = field(default_factory=lambda: StreamClosed(_STOPPED))


class GroupJudging:
    """Holds finished rollouts until their group is judged, then passes them to `hand_on`. Groups are judged
    concurrently.

    `size`: a group is judged as soon as so many of its rollouts have ended; None where the size is not known before.
    """

    def __init__(
        self, verifier: GroupVerifier, *, size: int | None, timeout_s: float | None, hand_on: Callable[[Rollout], None]
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
        """How many rollouts have ended whose groups are not judged yet."""
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
        """Judge no more groups. `judged` then raises `StreamClosed`."""
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
            group.error = error  # `judged` raises it; the other groups go on
        finally:
            group.done.set()
