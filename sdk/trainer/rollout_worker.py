"""The collector: it samples the rollouts of a step when the trainer asks for them.

The trainer is synchronous and runs in a worker thread; rollouts run in the event loop that opened the tools. Only
`Collector` calls from one into the other.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, TypeVar

import anyio
import anyio.abc
import anyio.from_thread

from mcp_bridge.records import Tool, ToolResult

from ..agents import history_breaks
from ..alarms import Alarm, AlarmSettings, Watch
from ..errors import StoppedByAlarm
from ..evaluation.measurement import require_scores
from ..policies.protocol import Sampling
from ..progress import Step
from ..records import CUT_OFF, Rollout, Task, TokenRow
from ..rollouts.branching import Branching, grow_trees, parent_and_turn, sampled_turns
from ..rollouts.engine import RolloutEngine, RolloutStream, StreamClosed, Ticket
from ..rollouts.episode import Job
from ..rollouts.run_context import RunContext
from ..verifiers.verifier import judges_groups
from .auditor import Audits
from .batch import Batch, BatchStats, build_batch, with_audits
from .config import TrainConfig
from .curriculum import Curriculum
from .groups import STAGE, GroupJudging, group_jobs, rewards_by_prompt
from .validation import Validating

# ---------------------------------------------------------------------------------------------------------------------
# Sampling for later steps while the trainer works, and how old the weights may be that sampled.
#
# The trainer of step s has published version s of the weights. Rollouts of step s + k may begin then, if k is no more
# than the bound, so no token of step s + k is older than k versions. What is off-policy by so little is corrected for
# by GRPO's clipped ratio against the sampler's own log-probabilities (PipelineRL, arXiv 2509.19128; AReaL, 2505.24298).

FIGURES = "rollouts"
"""The stage under which `metrics.jsonl` has, for each step, how its rollouts came about."""
BROKEN = "grpo_broken"
"""The stage under which the run folder keeps attempts that broke and were made again."""


def staleness(rollouts: Iterable[Rollout], step: int) -> dict[str, Any]:
    """For the metrics: how many versions of the weights the sampled tokens were behind their step, on average and at
    most."""
    ages = [step - v for rollout in rollouts for row in rollout.rows for v in row.versions if v >= 0]
    return {"staleness/mean": sum(ages) / max(1, len(ages)), "staleness/max": max(ages, default=0)}


def conversation_figures(rollouts: Iterable[Rollout], tools: Sequence[Tool]) -> dict[str, float]:
    """For the metrics: turns and calls of a rollout, also by tool and of names that no tool has, the share of calls
    that were answered with an error, and the share of rollouts that a token limit or the context ended. Rollouts that
    broke are left out.
    """
    played = [rollout for rollout in rollouts if rollout.failure is None]
    size = max(1, len(played))
    calls = [record for rollout in played for record in rollout.calls]
    called = Counter(record.call.name for record in calls)
    by_tool = {f"calls/{tool.name}": called.pop(tool.name, 0) / size for tool in tools}
    return {
        "turns": sum(rollout.turns for rollout in played) / size,
        "calls": len(calls) / size,
        **by_tool,
        "unknown_tools": called.total() / size,
        "tool_errors": sum(record.result.is_error for record in calls) / max(1, len(calls)),
        "cut_off": sum(rollout.stop_reason in CUT_OFF for rollout in played) / size,
    }


def recalled(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """Without what only training needs: tokens, messages, results and states would fill the memory."""
    nothing: dict[str, Any] = {"messages": [], "ledger": [], "initial_state": None, "final_state": None}
    no_result = {"result": ToolResult(text="")}
    return [
        rollout.model_copy(
            update={
                **nothing,
                "calls": [one.model_copy(update=no_result) for one in rollout.calls],
                "rows": [_a_token_a_turn(rollout)],
            }
        )
        for rollout in rollouts
    ]


def _a_token_a_turn(rollout: Rollout) -> TokenRow:
    """A row with as many sampled turns as the rollout has: signals depend on the number of turns, not on their text."""
    turns = len(sampled_turns(rollout))
    return TokenRow(
        prompt_ids=[],
        completion_ids=[0, 0] * turns,
        sampled=[True, False] * turns,
        logprobs=[0.0, 0.0] * turns,
        versions=[-1, -1] * turns,
    )


# ---------------------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class TrainingStopped(Exception):
    """Training was cancelled; what the last checkpoint does not have is done again by the next run."""


Play = Callable[[int, int, Sequence[Task]], list[Rollout]]
"""From a step, a round of it and its tasks to their rollouts, in the order of the jobs."""


class Collector:
    """Answers the trainer's `CollectBatch`: runs a group for each task, keeps every rollout in the folder.

    With `max_off_policy_steps`, the rollouts of later steps are begun as soon as weights are there that are young
    enough for them, and go on while the trainer works.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        curriculum: Curriculum,
        config: TrainConfig,
        context: RunContext,
        *,
        step: Step,
        validation: Sequence[Task] = (),
        after_measuring: Callable[[], None] = lambda: None,
    ) -> None:
        self._after_measuring = after_measuring
        self._engine = engine
        self._curriculum = curriculum
        self._config = config
        self._folder = context.run_folder
        self._progress = step
        self._planned: dict[int, list[Task]] = {}
        """Steps after the present one whose tasks are chosen."""
        self._tickets: dict[int, Ticket] = {}
        self._stream: RolloutStream | None = None
        self._broken = self._broken_before = self._replayed_before = self._broken_tokens = 0
        self._further: dict[str, float] = {}
        """Of the latest step: what the further rounds cost that replace groups without signal."""
        self._groups = self._judging_of_groups()
        self._audits = Audits(engine, config, context) if config.audits.per_step else None
        self.audit_figures: dict[str, Any] = {}
        """Of the latest step; empty where there are no audits."""
        self.validating = Validating(engine, validation, config, context)
        settings = AlarmSettings(success_threshold=config.evaluation.success_threshold)
        self._watch = Watch(settings, follow=config.alarms.components) if config.alarms.action != "off" else None
        self.stats = BatchStats()
        """Of the latest step."""
        self.rollout_seconds = 0.0
        """How long the trainer waited for rollouts in the latest step."""

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Rollouts run while this is open. What is in flight at its end is given up, and counted in the metrics."""
        config = self._config
        branching = None
        if config.rollouts.branches:
            branching = Branching(config.rollouts.branches, points=config.rollouts.branch_points)
        sampling = Sampling(
            temperature=config.grpo.temperature,
            max_tokens=self._engine.limits.max_turn_tokens,
            strict_tools=config.rollouts.strict_tools,
        )
        groups = self._groups
        try:
            async with (
                groups.open() if groups is not None else nullcontext(),
                self._audits.open() if self._audits is not None else nullcontext(),
                self._engine.stream(
                    sampling=sampling,
                    on_rollout=groups.ended if groups is not None else self._keep,
                    on_broken=self._keep_broken,
                    branching=branching,
                    retries=config.rollouts.retries,
                ) as self._stream,
            ):
                yield
        finally:
            counts = self._engine.counts
            given_up = {"given_up": counts.given_up, "not_begun": counts.not_begun}
            given_up |= {"not_judged": groups.held} if groups is not None else {}
            given_up |= {"audits_given_up": self._audits.given_up} if self._audits is not None else {}
            if any(given_up.values()):
                self._folder.append_metrics({"stage": FIGURES, **given_up})

    def _keep(self, rollout: Rollout) -> None:
        self._folder.append_rollout(STAGE, rollout)

    def _judging_of_groups(self) -> GroupJudging | None:
        """Where the verifier wants to see the rollouts of a group together."""
        verifier, config = self._engine.verifier, self._config
        if not judges_groups(verifier):
            return None
        size = (
            None if config.rollouts.branches else config.grpo.num_generations
        )  # how many branches there are is known at the end
        return GroupJudging(verifier, size=size, timeout_s=self._engine.verifier_timeout_s, hand_on=self._keep)

    def recall(self, done: int) -> None:
        """Before a run goes on after step `done`: what the curriculum and the alarms saw, in the order they saw it."""
        if not done or (self._watch is None and not self._curriculum.adapts):
            return
        known = recalled(rollout for rollout in self._folder.iter_rollouts(STAGE) if rollout.step < done)
        if self._watch is not None:
            self._watch.recall(known, self._measured())
        if not self._curriculum.adapts:
            return
        # With their branches: whether a group has a signal, and so how many more a step takes, may rest on these.
        trees = {tree.root.id: tree.leaves for tree in grow_trees(known)}

        def from_folder(step: int, _round: int, tasks: Sequence[Task]) -> list[Rollout]:
            return [rollout for job in self._jobs(step, tasks) for rollout in trees.get(job.id, [])]

        for step in range(done):
            self._collect(step, from_folder)

    def __call__(self, step: int) -> Batch:
        """The batch of a step. Raises `TrainingStopped`, and `ToolbakeError` where nothing could be scored."""
        self.rollout_seconds = 0.0
        self._in_loop(step, self.validating.measure, step)
        if self.validating.seconds and not self._config.off_policy.max_off_policy_steps:
            self._after_measuring()  # a run that is killed here does not measure again when it goes on
        batch, rollouts = self._collect(step, self._play)
        if self._audits is not None:
            batch = self._with_audits(self._audits, step, batch, rollouts)
        self.stats = batch.stats
        alarms = self._watch.observe(step, rollouts, self._measured()) if self._watch is not None else []
        self._note_figures(step, rollouts, alarms)
        self._raise_alarms(alarms)
        return batch

    def _with_audits(self, audits: Audits, step: int, batch: Batch, rollouts: Sequence[Rollout]) -> Batch:
        started = time.monotonic()
        groups = self._in_loop(step, audits.play, step, rollouts)
        self.rollout_seconds += time.monotonic() - started
        own = audits.batch(groups)
        self.audit_figures = audits.figures(groups, own)
        if self._config.audits.cost:
            charged = audits.charged(groups, rollouts)
            lost = [one.verdict.score - two.verdict.score for one, two in zip(rollouts, charged, strict=True)
                    if one.verdict is not None and two.verdict is not None]  # fmt: skip
            self.audit_figures |= {"audit/cost": sum(lost) / len(lost) if lost else 0.0}
            # The rewards that are shown stay those of the verifier.
            charged_batch = self._batch(charged)
            charged_batch.stats.mean_score = batch.stats.mean_score
            batch = charged_batch
        return with_audits(batch, own)

    def _collect(self, step: int, play: Play) -> tuple[Batch, list[Rollout]]:
        tasks = self._tasks(step)
        rollouts = play(step, 0, tasks)
        self._observe(rollouts)
        batch = self._batch(rollouts)
        first, waited = len(rollouts), self.rollout_seconds
        for round_number in range(1, self._config.curriculum.dynamic_sampling_rounds + 1):
            missing = self._config.grpo.prompts_per_step - batch.stats.groups_with_signal
            taken = [rollout.task.id for rollout in rollouts]
            tasks = self._curriculum.choose_more(step, round_number, missing, taken)
            if not tasks:
                break
            more = play(step, round_number, tasks)
            self._observe(more)
            rollouts += more
            batch = self._batch(rollouts)
        if self._config.curriculum.dynamic_sampling_rounds:
            self._further = {
                "further_rollouts": len(rollouts) - first,
                "further_tokens": sum(rollout.sampled_tokens for rollout in rollouts[first:]),
                "further_seconds": self.rollout_seconds - waited,
            }
        return batch, rollouts

    def _tasks(self, step: int) -> list[Task]:
        """The tasks of the present step; those of the steps that may begin now are then planned.

        The choice for a step rests on what was observed before the first step that may overlap with it, also after a
        resume.
        """
        last = min(step + self._config.off_policy.max_off_policy_steps, self._config.grpo.max_steps - 1)
        for later in range(step, last + 1):
            if later not in self._planned:
                self._planned[later] = self._curriculum.choose(later)
        return self._planned.pop(step) if step in self._planned else self._curriculum.choose(step)

    def _observe(self, rollouts: Sequence[Rollout]) -> None:
        self._curriculum.observe(rollout for rollout in rollouts if parent_and_turn(rollout.id) is None)

    def _play(self, step: int, round_number: int, tasks: Sequence[Task]) -> list[Rollout]:
        started = time.monotonic()
        rollouts = self._in_loop(step, self._rollouts, step, round_number, tasks)
        if not round_number:  # a further round may be one group: what breaks there is counted, as in any group
            require_scores(rollouts, what=f"GRPO step {step}")
        self.rollout_seconds += time.monotonic() - started
        return rollouts

    def _in_loop(self, step: int, work: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Have the event loop do it, and wait."""
        try:
            return anyio.from_thread.run(work, *arguments)
        except StreamClosed as error:
            raise TrainingStopped(f"stopped while the rollouts of step {step} were being sampled") from error

    async def _rollouts(self, step: int, round_number: int, tasks: Sequence[Task]) -> list[Rollout]:
        """In the event loop: the rollouts of a round, once the later steps have been begun that may be."""
        if self._stream is None:
            raise RuntimeError("the collector is not sampling; open Collector.sampling first")
        if round_number:
            ticket = self._stream.submit(self._jobs(step, tasks), priority=step)
        else:
            for later, chosen in {step: tasks, **self._planned}.items():
                if later not in self._tickets:
                    self._tickets[later] = self._stream.submit(self._jobs(later, chosen), priority=later)
            ticket = self._tickets.pop(step)
        rollouts = await ticket.wait()
        if self._groups is not None:
            await self._groups.judged(rollouts)
        return rollouts

    def _jobs(self, step: int, tasks: Sequence[Task]) -> list[Job]:
        return group_jobs(STAGE, step, tasks, config=self._config, group=f"{step}")

    def _batch(self, rollouts: Sequence[Rollout]) -> Batch:
        groups: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            groups.setdefault(rollout.group, []).append(rollout)
        return build_batch(list(groups.values()), self._config)

    def _keep_broken(self, rollout: Rollout) -> None:
        """Keep an attempt that is made again, beside the rollouts of the step."""
        self._broken += 1
        self._broken_tokens += rollout.sampled_tokens
        self._folder.append_rollout(BROKEN, rollout.model_copy(update={"id": f"{rollout.id}!{self._broken}"}))

    def _raise_alarms(self, alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            log.warning("%s: %s", self._folder.path, alarm)
        stops = self._config.alarms.action == "stop"
        # Limits that cut off are not a fault of the verifier, and a tool that is given up may have been of no use.
        notes = ("cut_off", "tool_given_up")
        ending = [alarm for alarm in alarms if alarm.kind == "canary" or (stops and alarm.kind not in notes)]
        if ending:
            raise StoppedByAlarm(
                f"training was stopped by an alarm: {ending[0]}. The rollouts are in {self._folder.path}; read them, "
                "and correct the verifier"
            )

    def _note_figures(self, step: int, rollouts: Sequence[Rollout], alarms: Sequence[Alarm]) -> None:
        assert self._stream is not None
        line = {
            "stage": FIGURES,
            "step": step,
            **staleness(rollouts, step),
            **conversation_figures(rollouts, self._engine.source.tools),
            "branches": sum(parent_and_turn(rollout.id) is not None for rollout in rollouts),
            "branches_replayed": self._stream.counts.branches_replayed - self._replayed_before,
            "broken_attempts": self._broken - self._broken_before,
            "broken_tokens": self._broken_tokens,
            **self._further,
            **({"history_breaks": history_breaks(rollouts)} if self._engine.host is not None else {}),
            "in_flight": self._stream.in_flight,
            "concurrency": self._stream.concurrency.limit,
            "concurrency_lowest": self._stream.concurrency.lowest,
            "seconds_waited": self.rollout_seconds,
            **({"alarms": [str(alarm) for alarm in alarms]} if alarms else {}),
            **(rewards_by_prompt(rollouts) if isinstance(self._config.tool_prompt, Mapping) else {}),
        }
        self._broken_before, self._broken_tokens = self._broken, 0
        self._replayed_before = self._stream.counts.branches_replayed
        self._folder.append_metrics(line)

    def _measured(self) -> dict[int, float]:
        """What the alarms see of the validation tasks: nothing, unless they were asked to be measured so often."""
        return self.validating.success if self._config.evaluation.eval_steps is not None else {}

    def stop(self) -> None:
        """Give up the rollouts in flight; the waiting trainer then raises `TrainingStopped`."""
        if self._stream is not None:
            self._stream.close()
        if self._groups is not None:
            self._groups.stop()
        if self._audits is not None:
            self._audits.stop()
        self.validating.stop()

    def finished_step(self) -> None:
        """Called by the trainer after the optimiser's step."""
        score = self.stats.mean_score
        note = f"reward {score:.2f}" if score is not None else "nothing scored"
        self._progress.advance(note=f"{note}, {self.stats.groups_with_signal}/{self.stats.groups} groups with signal")
