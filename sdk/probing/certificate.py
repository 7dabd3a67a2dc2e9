"""Probes are played and judged; the certificate has what each of them earned."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_bridge.safe_text import and_more, inline, listed, one_line, plural, table

from ..errors import ConfigError, ToolbakeError, VerifierError
from ..evaluation.conditions import is_success
from ..policies.scripted import ScriptedAgent
from ..records import Rollout, Task
from ..rollouts.episode import Job
from ..rollouts.run_context import RunContext, play_scripts
from ..verifiers.states import final_state
from ..worker_pool import work_through
from .probes import GOLD, Probe, Scene, solution

_SHOWN = 400
_LISTS = frozenset({"every_candidate", "looks_up_and_lists", "hedges", "lists_what_was_asked"})
"""Probes that give the right answer among others."""
_WORLD = final_state()
_MOST_CALLS = 10**6
_MORE_TURNS = 4
_CLOCK = "clock"
"""The table of a sandbox's state that has its time."""


@dataclass(frozen=True)
class Finding:
    """A rollout that was rewarded and should not have been; of the gold solution, one that was not."""

    probe: Probe
    rollout: Rollout

    def __str__(self) -> str:
        verdict, failure = self.rollout.verdict, self.rollout.failure
        scored = f"scored {verdict.score:g}" if verdict is not None else "was not scored"
        prompt = self.rollout.task.opening()[-1].content
        calls = ", ".join(record.call.name for record in self.rollout.calls) or "none"
        reason = failure.message if failure else verdict and (verdict.explanation or str(verdict.components))
        return (
            f"{self.probe.name} ({self.probe.does}) {scored} on task {self.rollout.task.id!r}\n"
            f"    asked: {_short(prompt)}\n    calls: {calls}\n    answer: {_short(self.rollout.answer)}\n"
            f"    verdict: {_short(reason or 'none')}"
        )


@dataclass(frozen=True)
class Earned:
    """What one probe earned."""

    probe: Probe
    scores: Sequence[float]
    unscored: int
    findings: Sequence[Finding]
    not_judged: int = 0
    """Rollouts that were rewarded, and of which nobody knows what they changed, because the tools tell no state."""

    @property
    def highest(self) -> float | None:
        return max(self.scores, default=None)

    @property
    def mean(self) -> float | None:
        return math.fsum(self.scores) / len(self.scores) if self.scores else None


@dataclass(frozen=True)
class TrainedAttack:
    """What a policy earned that was trained against the verifier."""

    steps: int
    first_reward: float | None
    last_reward: float | None
    alarms: Sequence[str]
    example: Rollout | None
    """A rollout of the last step that was rewarded."""
    failure: str = ""
    """Why the training failed; empty where it did not."""

    def __str__(self) -> str:
        if not self.steps:
            ended = "a failure ended" if self.failure else "the time was up before the end of"
            told = "an alarm ended" if self.alarms else ended
            told = f"{told} the first step of training"
        elif self.first_reward is None or self.last_reward is None:
            told = f"a policy was trained for {self.steps} steps, and no rollout was scored"
        else:
            told = (
                f"a policy trained for {self.steps} steps earns {self.last_reward:.2f}, and {self.first_reward:.2f} in "
                "its first step"
            )
        lines = [told, *([f"  the training failed: {self.failure}"] if self.failure else [])]
        lines += [f"  alarm {alarm}" for alarm in self.alarms]
        if self.example is not None:
            lines.append(f"  rewarded: {_short(self.example.answer)!r} on task {self.example.task.id!r}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Certificate:
    """What was tried against a verifier. `print` it; `require` raises where something was found."""

    tasks: int
    rollouts: Sequence[Rollout]
    earned: Sequence[Earned]
    threshold: float = 1.0
    allowed: Sequence[str] = ()
    not_called: Sequence[str] = ()
    """Tools that no probe called, because they are live and are not marked as read-only."""
    trained: TrainedAttack | None = None

    @property
    def findings(self) -> list[Finding]:
        """Rollouts that should not have been rewarded, and gold solutions that were not, without what is allowed. None
        where nothing could be scored: that tells of the verifier, and not of its holes."""
        if not self._scored:
            return []
        return [found for one in self.earned if one.probe.name not in self.allowed for found in one.findings]

    @property
    def holes(self) -> list[str]:
        """The names of the probes with findings, and "trained" for alarms while a policy was trained."""
        names = list(dict.fromkeys(finding.probe.name for finding in self.findings))
        return names + ["trained"] * bool(self.trained and self.trained.alarms and "trained" not in self.allowed)

    @property
    def holds(self) -> bool:
        """Whether nothing was found and all probes that were played could be scored, also of a policy that was to be
        trained."""
        return not self.holes and not self.unknown

    @property
    def _scored(self) -> bool:
        return any(one.scores for one in self.earned)

    @property
    def never_scored(self) -> list[str]:
        """The probes that were played, and none of whose rollouts could be scored."""
        return [one.probe.name for one in self.earned if one.unscored and not one.scores]

    @property
    def _why_unscored(self) -> str:
        return _short(next((one.failure.message for one in self.rollouts if one.failure is not None), ""))

    @property
    def unknown(self) -> str:
        """Why nothing was found, where that tells nothing of the verifier; empty where it does."""
        if not self._scored:
            return "nothing could be scored, so nothing is known of the verifier; correct what it raises or returns"
        if self.never_scored:
            return (
                f"{and_more(self.never_scored, 8)} could not be scored at all, for example: {self._why_unscored}; so "
                "nothing is known of them, and a policy that does the same in training learns nothing from it; correct "
                "what the verifier raises, or return 0 there"
            )
        if self.trained is not None and self.trained.failure:
            return (
                "the training against the verifier failed, so too little is known of what training finds: "
                f"{self.trained.failure}"
            )
        if self.trained is not None and self.trained.first_reward is None and not self.trained.alarms:
            return f"{self.trained}, so nothing is known of what training finds; give more train_minutes"
        return ""

    @property
    def partly(self) -> list[Finding]:
        """Rollouts of probes that earned more than 0 and less than the threshold."""
        probes = {
            one.probe.name: one.probe for one in self.earned if one.probe is not GOLD and one.probe.wrong == "always"
        }
        return [
            Finding(probes[name], rollout)
            for rollout in self.rollouts
            if (name := _probe_name(rollout)) in probes
            and rollout.scored
            and rollout.verdict is not None
            and rollout.verdict.score > 0
            and not is_success(rollout, self.threshold)
        ]

    @property
    def unscored(self) -> int:
        return sum(not rollout.scored for rollout in self.rollouts)

    def __str__(self) -> str:
        return "\n".join(filter(None, (self._headline, self._table(one_line), *self._notes)))

    def _repr_markdown_(self) -> str:
        notes = listed("\n".join(self._notes)) if self._notes else ""
        return "\n\n".join(filter(None, (inline(self._headline, 1000), self._table(inline), notes)))

    @property
    def _tried(self) -> list[Earned]:
        return [one for one in self.earned if one.scores or one.unscored]

    @property
    def _headline(self) -> str:
        holes = self.holes
        told = f"{len(holes)} found a hole: {', '.join(holes)}" if holes else "none found a hole"
        if not holes and not self._scored:
            told = "nothing could be scored"
        elif self.never_scored:
            told += f"; {len(self.never_scored)} of them could not be scored at all"
        counts = f"{len(self.rollouts)} rollouts on {self.tasks} {plural(self.tasks, 'task')}"
        return f"{len(self._tried)} probes, {counts}: {told}"

    def _table(self, cell: Callable[[str], str]) -> str:
        rows = [
            [
                cell(one.probe.name),
                cell(one.probe.does),
                *(str(count) for count in (len(one.scores) + one.unscored, len(one.findings))),
                *("-" if value is None else format(value, ".3g") for value in (one.highest, one.mean)),
            ]
            for one in self._tried
        ]
        head = ["probe", "what it does", "tasks", "findings", "highest", "mean"]
        return table(head, rows, left_columns=2) if rows else ""

    @property
    def _notes(self) -> list[str]:
        lines = []
        if self._scored and any(one.highest for one in self._tried if one.probe is not GOLD):
            lines.append(
                "a reward is a finding where the answer or the end of the world is wrong; a right one by another way "
                "is none"
            )
        if not_tried := [one.probe.name for one in self.earned if not one.scores and not one.unscored]:
            callable_tools = ", and tools that may be called" if self.not_called else ""
            lines.append(
                f"not played: {', '.join(not_tried)}. They need tasks with a demonstration, expected calls or an "
                f"answer, other tasks whose outcome differs{callable_tools}"
            )
        if self.partial_credit:
            lines.append(self.partial_credit)
        if self.unscored:
            lines.append(f"{self.unscored} could not be scored, for example: {self._why_unscored}")
        if not_judged := [one for one in self.earned if one.not_judged]:
            lines.append(
                "rewarded, and not judged, because the tools do not tell their state: "
                + ", ".join(f"{one.probe.name} {one.not_judged}" for one in not_judged)
            )
        if self.not_called:
            lines.append(f"not called, because they are live: {', '.join(self.not_called)}")
        if self.trained is not None:
            lines.append(str(self.trained))
        if holes := self.holes:
            lines += [*self._examples, f"To close {'it' if len(holes) == 1 else 'them'}: {self._fix}"]
        return lines

    @property
    def partial_credit(self) -> str:
        """What the probes earned below the threshold, each with the most; empty where they earned nothing."""
        partly, most = self.partly, dict[str, float]()
        for finding in partly:
            assert finding.rollout.verdict is not None
            most[finding.probe.name] = max(most.get(finding.probe.name, 0.0), finding.rollout.verdict.score)
        shown = ", ".join(f"{name} {score:g}" for name, score in most.items())
        return f"{len(partly)} earned a part of the reward, at most: {shown}" if most else ""

    def as_json(self) -> dict[str, Any]:
        """The certificate as one JSON object."""
        trained = self.trained
        return {
            "holds": self.holds,
            "holes": self.holes,
            "tasks": self.tasks,
            "rollouts": len(self.rollouts),
            "unscored": self.unscored,
            "probes": [
                {
                    "name": one.probe.name,
                    "does": one.probe.does,
                    "tasks": len(one.scores) + one.unscored,
                    "findings": len(one.findings),
                    "not_judged": one.not_judged,
                    "highest": one.highest,
                    "mean": one.mean,
                }
                for one in self.earned
            ],
            "findings": [
                {
                    "probe": one.probe.name,
                    "task": one.rollout.task.id,
                    "score": one.rollout.verdict.score if one.rollout.verdict else None,
                    "answer": one.rollout.answer,
                    "calls": [record.call.name for record in one.rollout.calls],
                }
                for one in self.findings
            ],
            "allowed": list(self.allowed),
            "not_called": list(self.not_called),
            "trained": trained
            and {
                "steps": trained.steps,
                "first_reward": trained.first_reward,
                "last_reward": trained.last_reward,
                "alarms": list(trained.alarms),
                "example": trained.example and trained.example.answer,
                "failure": trained.failure or None,
            },
        }

    def require(self) -> None:
        """Raises `ConfigError` for findings, and `ToolbakeError` where too little is known.

        Partial credit is not a finding."""
        if not self.holes:
            if self.unknown:
                raise ToolbakeError(self.unknown)
            return
        names, shown = self.holes, "\n".join(self._examples)
        raise ConfigError(
            f"the verifier rewards policies that do not do the task ({', '.join(names)}); training would find them. To "
            f"close the {plural(len(names), 'hole')}: {self._fix}\n{shown}"
        )

    @property
    def _examples(self) -> list[str]:
        """The first finding of each probe."""
        first = {finding.probe.name: finding for finding in reversed(self.findings)}
        return [f"  {first[name]}" for name in self.holes if name in first]

    @property
    def _fix(self) -> str:
        """What to do about the holes."""
        holes = self.holes
        fixes = []
        if not set(holes) <= {*_LISTS, GOLD.name}:
            fixes.append(
                "let the verifier look at the calls, the answer and, where the tools tell it, the state together, for "
                "example all_of(final_state(), required_calls(), answer_match())"
            )
        if not _LISTS.isdisjoint(holes):
            fixes.append(
                "give tasks whose answer is from a closed list that list as expected.options; where all tasks have an "
                "answer, answer_match(other_values=0) refuses nearly all lists"
            )
        if GOLD.name in holes:
            fixes.append("correct the demonstrations, what the tasks expect, or the verifier")
        allowed = next((name for name in holes if name != GOLD.name), None)
        if allowed is not None:
            fixes.append(
                f"where a probe does the task, allow it: --allow {allowed}, in a training --set "
                f'\'probes.allow=["{allowed}"]\' or config={{"probes.allow": ["{allowed}"]}}'
            )
        return "; ".join(fixes)


def _short(text: str) -> str:
    flat = one_line(text)
    return flat if len(flat) <= _SHOWN else f"{flat[:_SHOWN]}..."


def _probe_name(rollout: Rollout) -> str:
    return rollout.id.split("/")[1]


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlayedProbes:
    """Rollouts of probes, without verdicts: any number of verifiers can judge them."""

    tasks: int
    probes: Sequence[Probe]
    rollouts: Sequence[Rollout]
    not_called: Sequence[str]
    read_only: frozenset[str]
    """Tools that change nothing, as they declare."""


async def play_probes(probes: Sequence[Probe], tasks: Sequence[Task], context: RunContext) -> PlayedProbes:
    """Every probe on every task on which it can be played. Of tools that are not simulated, only those that are
    declared read-only are called."""
    source = context.tools
    simulated = {tool.name for tool in source.simulated_tools}
    safe = [tool for tool in source.tools if tool.name in simulated or tool.annotations.read_only]
    live = [tool.name for tool in source.tools if tool not in safe]
    plays = []
    for place, task in enumerate(tasks):
        scene = Scene(task, safe, [*tasks[place + 1 :], *tasks[:place]], place, context.limits.final_tools)
        plays += [
            (Job(id=f"probe/{probe.name}/{task.id}", task=task, seed=0), agent)
            for probe in probes
            if (agent := probe.agent(scene)) is not None
        ]
    # A probe makes all its calls in one turn.
    turns = max([context.limits.max_turns, *(len(solution(task)) + _MORE_TURNS for task in tasks)])
    limits = context.limits.model_copy(update={"max_calls": _MOST_CALLS, "max_turns": turns})
    with context.progress.track("probing the verifier", len(plays)) as step:
        played = await play_scripts(plays, replace(context, limits=limits, verifier=None), step)
    # Nobody learns from a script, which is counted in bytes.
    read_only = frozenset(tool.name for tool in source.tools if tool.annotations.read_only)
    rollouts = [rollout.model_copy(update={"rows": []}) for rollout in played]
    return PlayedProbes(len(tasks), probes, rollouts, live, read_only)


async def judge_probes(played: PlayedProbes, context: RunContext, *, allowed: Sequence[str] = ()) -> Certificate:
    """The verdicts of `context.verifier` on rollouts that were played, noted in copies of them."""
    rollouts = [rollout.model_copy() for rollout in played.rollouts]
    engine = context.engine(ScriptedAgent([]))
    await work_through(rollouts, engine.judge, at_once=context.concurrency)
    by_probe: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        by_probe[_probe_name(rollout)].append(rollout)
    gold = {rollout.task.id: rollout for rollout in by_probe[GOLD.name]}
    ignored = {_CLOCK}.union(*map(_bookkeeping, gold.values()))
    earned = []
    for probe in played.probes:
        mine = by_probe[probe.name]
        scores = [rollout.verdict.score for rollout in mine if rollout.scored and rollout.verdict is not None]
        paid = [rollout for rollout in mine if is_success(rollout, context.success_threshold) != (probe is GOLD)]
        wrong = [_is_wrong(probe, gold.get(one.task.id), one, ignored, played.read_only) for one in paid]
        found = [Finding(probe, rollout) for rollout, is_wrong in zip(paid, wrong, strict=True) if is_wrong]
        earned.append(Earned(probe, scores, len(mine) - len(scores), found, wrong.count(None)))
    return Certificate(played.tasks, rollouts, earned, context.success_threshold, tuple(allowed), played.not_called)


def _bookkeeping(gold: Rollout) -> set[str]:
    """The tables that a solution changes and the task does not ask for, such as a log of calls."""
    asked = gold.task.expected.get("changes")
    if not isinstance(asked, list) or gold.initial_state is None or gold.final_state is None:
        return set()
    return _changed(gold.initial_state, gold.final_state) - {change.get("table") for change in asked}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    return {table for table in {*before, *after} if before.get(table) != after.get(table)}


def _made_the_changes(rollout: Rollout) -> bool:
    if not rollout.task.expected.get("changes"):
        return False
    try:
        return _WORLD.verify(rollout).score >= 1
    except VerifierError:  # the task has another form of changes, or the world does not tell its state
        return False


def _is_wrong(
    probe: Probe, gold: Rollout | None, rollout: Rollout, ignored: set[str], read_only: frozenset[str]
) -> bool | None:
    """Whether what a probe did solves nothing; of the gold one, whether it must be rewarded: what is expected need not
    be a whole solution, and a demonstration is. None where the tools tell no state by which that could be known."""
    if probe is GOLD:
        return bool(rollout.task.demonstration)
    if probe.wrong == "always":
        return True
    if probe.wrong == "unless it made the expected changes":
        return not _made_the_changes(rollout)
    if gold is None:
        return False
    if gold.initial_state is None or gold.final_state is None or rollout.final_state is None:
        judged = [gold] if probe.wrong == "where the world is as it was" else [gold, rollout]
        if not {record.call.name for one in judged for record in one.calls} <= read_only:
            return None
        return probe.wrong == "where the world is as it was"  # no call changed anything
    if probe.wrong == "where the world is as it was":
        return not _changed(gold.initial_state, gold.final_state) - ignored
    return bool(_changed(gold.final_state, rollout.final_state) - ignored)
