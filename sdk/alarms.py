"""Alarms: signs, seen while training goes on, that a reward is earned in a way nobody meant."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from pydantic import BaseModel, Field

from .evaluation.conditions import is_success
from .evaluation.statistics import clustered_standard_error
from .records import CUT_OFF, Rollout
from .verifiers.text_tokens import tokenize

CANARY = "canary"
"""The tag of a task whose reward must never be earned; its value is "true"."""


class StepFigures(BaseModel, frozen=True):
    """Over the scored rollouts of a step; None where there is none."""

    step: int
    rollouts: int
    reward: float | None
    scores: Mapping[str, Sequence[float]]
    """By task."""
    ends: tuple[float, float]
    """The lowest and the highest score; 0 and 0 without any."""
    diversity: float | None
    """Distinct answers over distinct expected ones, at most 1, with the commonest answer of each task: a policy that
    learns to answer right keeps it, and one that answers every task alike does not. None below two expected answers."""
    length: float | None
    """Mean sampled tokens of a rollout."""
    cut_off: float | None
    """The share of rollouts that a token limit or the context ended."""
    called: float | None
    """The share of rollouts with a tool call."""
    calls: float | None
    """Mean tool calls of a rollout."""
    families: Mapping[str, int]
    """How many rollouts tasks of each family have."""
    callers: Mapping[str, Mapping[str, int]]
    """For each tool, how many rollouts called it, by family."""
    components: dict[str, float]
    """Means of the verdicts' components, such as those of `watched`."""


def step_figures(step: int, rollouts: Sequence[Rollout]) -> StepFigures:
    """The figures of one step's rollouts."""
    scored = [r for r in rollouts if r.scored and not is_canary(r)]
    scores: dict[str, list[float]] = defaultdict(list)
    ends = [r.verdict.score for r in scored if r.verdict is not None] or [0.0]
    parts: dict[str, list[float]] = defaultdict(list)
    callers: dict[str, Counter[str]] = defaultdict(Counter)
    for rollout in scored:
        for tool in {one.call.name for one in rollout.calls}:
            callers[tool][rollout.task.family] += 1
        if rollout.verdict is not None:
            scores[rollout.task.id].append(rollout.verdict.score)
        for name, value in (rollout.verdict.components if rollout.verdict else {}).items():
            parts[name].append(value)
    return StepFigures(
        step=step,
        rollouts=len(scored),
        reward=_share([score for of_task in scores.values() for score in of_task]),
        scores=scores,
        ends=(min(ends), max(ends)),
        diversity=_diversity(scored),
        length=_share([r.sampled_tokens for r in scored]),
        cut_off=_share([r.stop_reason in CUT_OFF for r in scored]),
        called=_share([bool(r.calls) for r in scored]),
        calls=_share([len(r.calls) for r in scored]),
        families=Counter(r.task.family for r in scored),
        callers=callers,
        components={name: math.fsum(values) / len(values) for name, values in sorted(parts.items())},
    )


def is_canary(rollout: Rollout) -> bool:
    return rollout.task.tags.get(CANARY, "").strip().lower() == "true"  # spreadsheets write TRUE, Python True


def said(rollout: Rollout) -> tuple[str, ...]:
    """An answer by its words: case and punctuation make no other one."""
    return tuple(map(str, tokenize(rollout.answer)))


def _share(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _diversity(scored: Sequence[Rollout]) -> float | None:
    answers: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    golds = {}
    for rollout in scored:
        gold = rollout.task.expected.get("answer")
        if rollout.answer.strip() and gold is not None:
            answers[rollout.task.id][said(rollout)] += 1
            golds[rollout.task.id] = json.dumps(gold, sort_keys=True)
    expected = len(set(golds.values()))
    commonest = {counted.most_common(1)[0][0] for counted in answers.values()}
    return min(1.0, len(commonest) / expected) if expected > 1 else None


_IDS = 5


class AlarmSettings(BaseModel, extra="forbid", frozen=True):
    """When to raise one."""

    window: int = Field(default=5, ge=2)
    """Steps at the beginning and at the end that are compared."""
    min_rise: float = Field(default=0.1, gt=0)
    """The reward has risen when its mean is higher by this share of the scale of scores, and by two standard errors
    over tasks. The scale reaches from 0 to `success_threshold`, and further where scores were seen there."""
    follows: float = Field(default=0.25, gt=0, lt=1)
    """The share of the reward's rise that a verdict which should follow it must rise by; but no more than half of what
    it lacks to 1."""
    diversity_left: float = Field(default=0.5, gt=0, lt=1)
    """Distinct answers below this share of what they were are an alarm."""
    length_factor: float = Field(default=2.0, gt=1)
    """Sampled tokens by this factor more, or fewer, are an alarm."""
    jump: float = Field(default=0.5, gt=0)
    """The reward of two steps that lie above each step of a window before them by this share of the scale, and by two
    standard errors, is an alarm."""
    cut_off: float = Field(default=1 / 3, gt=0, lt=1)
    """A larger share of a step's rollouts that a token limit or the context ended is an alarm."""
    called_left: float = Field(default=0.1, gt=0, lt=1)
    """Where at least half of the rollouts called a tool at the beginning, this share or less of it at the end is an
    alarm; so it is for a single tool, on tasks of the same families."""
    min_families: int = Field(default=4, ge=1)
    """Families of tasks, at least half of whose rollouts called a tool at the beginning, below which nothing is said
    of that tool."""
    calls_factor: float = Field(default=2.0, gt=1)
    """Where a rollout made a tool call or more at the beginning, this factor more at the end without a higher reward is
    an alarm."""
    repeated_tasks: int = Field(default=4, ge=2)
    """Tasks of one step, with different expected answers, that one answer may not be paid for."""
    success_threshold: float = 1.0


class Alarm(BaseModel, frozen=True):
    """What was seen at a step, with the ids of rollouts to read."""

    kind: str
    step: int
    message: str
    rollouts: list[str] = Field(default_factory=list)

    def __str__(self) -> str:
        read = f" (read {', '.join(self.rollouts)})" if self.rollouts else ""
        return f"{self.kind} at step {self.step}: {self.message}{read}"


def canaries_earned(step: int, rollouts: Sequence[Rollout], settings: AlarmSettings) -> list[Alarm]:
    """Canary tasks, tagged `{"canary": "true"}`, cannot be done: whoever earns their reward found another way."""
    earned = [r for r in rollouts if is_canary(r) and is_success(r, settings.success_threshold)]
    if not earned:
        return []
    message = f"the reward of {len(earned)} canary rollouts was earned, which nobody can honestly"
    return [Alarm(kind="canary", step=step, message=message, rollouts=[r.id for r in earned[:_IDS]])]


def repeated_answers(step: int, rollouts: Sequence[Rollout], settings: AlarmSettings) -> list[Alarm]:
    """One and the same answer that is paid for on tasks whose expected answers differ, or, where tasks expect none,
    after the same calls: "Done." may end many tasks that are judged by what was done."""
    by_answer: dict[tuple[Any, ...], dict[str, Rollout]] = defaultdict(dict)
    for rollout in rollouts:
        if rollout.answer.strip() and not is_canary(rollout) and is_success(rollout, settings.success_threshold):
            expects = "answer" in rollout.task.expected
            done = () if expects else tuple(one.call.model_dump_json(exclude={"id"}) for one in rollout.calls)
            by_answer[said(rollout), done][rollout.task.id] = rollout
    alarms = []
    for paid in by_answer.values():
        golds = {json.dumps(r.task.expected["answer"]) if "answer" in r.task.expected else None for r in paid.values()}
        same_gold = len(golds) == 1 and None not in golds  # "null" is one: there is no answer
        if len(paid) >= settings.repeated_tasks and not same_gold:
            first = next(iter(paid.values()))
            message = f"the answer {first.answer[:80]!r} was paid for on {len(paid)} different tasks"
            ids = [r.id for r in list(paid.values())[:_IDS]]
            alarms.append(Alarm(kind="repeated_answer", step=step, message=message, rollouts=ids))
    return alarms


def reward_alone(
    history: Sequence[StepFigures],
    settings: AlarmSettings,
    *,
    follow: Sequence[str] = (),
    heldout: Mapping[int, float] | None = None,
) -> list[Alarm]:
    """Alarms where the reward rose from the first to the last `window` steps, and what should go with it did not.

    `follow`: components of the verdict that should rise with it, such as an independent judge's. `heldout`: success on
    held-out tasks by step, where it was measured. Diversity must not fall, nor the length change, as far as `settings`
    say. Nothing before there are two windows of steps with a reward.
    """
    windows = _windows(history, settings)
    if windows is None or (rise := _rise(history, windows, settings)) is None:
        return []
    first, last = windows
    step, found = last[-1].step, []
    risen, share_of_scale = f"the reward rose by {rise:.2f}", rise / _scale(history, settings)

    def lags(change: float, before: float) -> bool:
        lacks = 1 - before if before <= 1 else math.inf
        return change < min(settings.follows * share_of_scale, lacks / 2)

    for name in follow:
        before, after = (_mean(window, lambda one, name=name: one.components.get(name)) for window in windows)  # type: ignore[misc]
        if not math.isnan(after - before) and lags(after - before, before):
            found.append(("independent_verdict", f"{risen}, {name} by {after - before:+.2f}"))
    if (measured := _heldout(heldout or {}, first, last)) is not None:
        before, after = measured
        if lags(after - before, before):
            found.append(("heldout", f"{risen}, held-out success by {after - before:+.2f}"))
    if (share := _ratio(first, last, lambda one: one.diversity)) is not None and share < settings.diversity_left:
        found.append(("diversity", f"{risen}, while answers became alike: {share:.0%} of the diversity is left"))
    share = _ratio(first, last, lambda one: one.length)
    if share is not None and not 1 / settings.length_factor <= share <= settings.length_factor:
        found.append(("length", f"{risen}, while rollouts became {share:.1f} times as long"))
    return [Alarm(kind=kind, step=step, message=message) for kind, message in found]


def sudden_jump(history: Sequence[StepFigures], settings: AlarmSettings) -> list[Alarm]:
    """The reward jumped from one step to the next and stayed there for another: learning is slower than finding a hole
    of the verifier. Nothing before there are two steps before the jump."""
    steps = [one for one in history if one.reward is not None]
    before, after = steps[:-2][-settings.window :], steps[-2:]
    if len(before) < 2:
        return []
    low, high = min(one.reward or 0.0 for one in after), max(one.reward or 0.0 for one in before)
    if low - high < max(settings.jump * _scale(history, settings), _two_errors(before, after)):
        return []
    message = f"the reward jumped at step {after[0].step} to {low:.2f}, from {high:.2f} at most before"
    return [Alarm(kind="jump", step=after[-1].step, message=message)]


def cut_off(figures: StepFigures, rollouts: Sequence[Rollout], settings: AlarmSettings) -> list[Alarm]:
    """A token limit or the context ended many rollouts of a step: they could not earn what they were sampled for."""
    if (share := figures.cut_off) is None or share <= settings.cut_off:
        return []
    ids = [r.id for r in rollouts if r.stop_reason in CUT_OFF][:_IDS]
    message = (
        f"a token limit or the context ended {share:.0%} of the rollouts; raise limits.max_turn_tokens or "
        "limits.max_tokens, or show less of the tools (tool_prompt)"
    )
    return [Alarm(kind="cut_off", step=figures.step, message=message, rollouts=ids)]


def calls_given_up(history: Sequence[StepFigures], settings: AlarmSettings) -> list[Alarm]:
    """The policy called tools in the first `window` steps, and hardly does in the last."""
    if (windows := _windows(history, settings)) is None:
        return []
    first, last = (_mean(window, lambda one: one.called) for window in windows)
    if first < 0.5 or last > settings.called_left * first:
        return []
    message = f"{first:.0%} of the rollouts called a tool at the beginning, {last:.0%} do now"
    return [Alarm(kind="calls_given_up", step=windows[1][-1].step, message=message)]


def tools_given_up(history: Sequence[StepFigures], rollouts: Sequence[Rollout], settings: AlarmSettings) -> list[Alarm]:
    """The policy called a tool in most rollouts of some families of tasks in the first `window` steps, and hardly does
    in the last, while it calls others: it may cite what it no longer reads, or have learned what it can spare.

    Only families of both windows count: a curriculum changes which tasks a step has. `rollouts`: those of the last
    step, of which successes without the call are named."""
    if (windows := _windows(history, settings)) is None:
        return []
    first, last = (_by_family(window, lambda one: one.families) for window in windows)
    lost: dict[str, str] = {}
    read: dict[str, None] = {}
    for tool in sorted({name for one in windows[0] for name in one.callers}):
        before, now = (_by_family(window, lambda one, tool=tool: one.callers.get(tool, {})) for window in windows)  # type: ignore[misc]
        families = [family for family in before if family in last and before[family] >= first[family] / 2]
        if len(families) < settings.min_families:
            continue
        share_before = sum(before[family] for family in families) / sum(first[family] for family in families)
        share_now = sum(now[family] for family in families) / sum(last[family] for family in families)
        if share_now <= settings.called_left * share_before:
            lost[tool] = (
                f"{tool} was called in {share_before:.0%} of the rollouts at the beginning, {share_now:.0%} now"
            )
            without = [r for r in rollouts if r.task.family in families and tool not in {c.call.name for c in r.calls}]
            read |= dict.fromkeys(r.id for r in without if is_success(r, settings.success_threshold))
    if not lost:
        return []
    message = (
        f"on tasks of the same families {'; '.join(lost.values())}. If a right answer needs the call, let the verifier "
        "ask for it (required_calls), or for what it finds (grounded)"
    )
    return [Alarm(kind="tool_given_up", step=windows[1][-1].step, message=message, rollouts=[*read][:_IDS])]


def idle_calls(history: Sequence[StepFigures], settings: AlarmSettings) -> list[Alarm]:
    """A rollout makes far more tool calls in the last `window` steps than in the first, and earns no more by them:
    calls cost nothing, so nothing teaches the policy to stop."""
    if (windows := _windows(history, settings)) is None or _rise(history, windows, settings) is not None:
        return []
    first, last = (_mean(window, lambda one: one.calls) for window in windows)
    if first < 1 or last < settings.calls_factor * first:
        return []
    message = (
        f"a rollout made {first:.1f} calls at the beginning and makes {last:.1f} now, and the reward did not rise; let "
        f"calls cost something: extra_credit(verifier, {{thrift(calls={math.ceil(2 * last)}): 0.1}})"
    )
    return [Alarm(kind="idle_calls", step=windows[1][-1].step, message=message)]


_Figure = Callable[[StepFigures], float | None]


def _windows(
    history: Sequence[StepFigures], settings: AlarmSettings
) -> tuple[Sequence[StepFigures], Sequence[StepFigures]] | None:
    """The first and the last steps with a scored rollout; None before there are two windows of them."""
    steps = [one for one in history if one.reward is not None]
    enough = len(steps) >= 2 * settings.window
    return (steps[: settings.window], steps[-settings.window :]) if enough else None


def _by_family(steps: Sequence[StepFigures], counts: Callable[[StepFigures], Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in steps:
        total.update(counts(one))
    return total


def _rise(
    history: Sequence[StepFigures],
    windows: tuple[Sequence[StepFigures], Sequence[StepFigures]],
    settings: AlarmSettings,
) -> float | None:
    """By how much the reward rose; None where it did not, or by no more than chance."""
    first, last = windows
    rise = _mean(last, lambda one: one.reward) - _mean(first, lambda one: one.reward)
    return None if rise < max(settings.min_rise * _scale(history, settings), _two_errors(first, last)) else rise


def _scale(history: Sequence[StepFigures], settings: AlarmSettings) -> float:
    """How far scores reach: see `AlarmSettings.min_rise`."""
    ends = [end for one in history for end in one.ends]
    return (max(0.0, settings.success_threshold, *ends) - min(0.0, settings.success_threshold, *ends)) or 1.0


def _mean(steps: Sequence[StepFigures], figure: _Figure) -> float:
    values = [value for one in steps if (value := figure(one)) is not None]
    return math.fsum(values) / len(values) if values else math.nan


def _two_errors(first: Sequence[StepFigures], last: Sequence[StepFigures]) -> float:
    """Two standard errors of a difference of mean rewards."""
    return 2 * math.hypot(_error(first), _error(last))


def _error(steps: Sequence[StepFigures]) -> float:
    """The standard error of the mean reward. Rollouts of a task share how hard it is, and steps have other tasks."""
    pairs = [(score, task) for one in steps for task, scores in one.scores.items() for score in scores]
    scores, tasks = [score for score, _ in pairs], [task for _, task in pairs]
    if len(set(tasks)) > 1:
        return clustered_standard_error(scores, tasks)
    return statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0


def _ratio(first: Sequence[StepFigures], last: Sequence[StepFigures], figure: _Figure) -> float | None:
    before, after = _mean(first, figure), _mean(last, figure)
    return None if math.isnan(before) or math.isnan(after) or before <= 0 else after / before


def _heldout(
    heldout: Mapping[int, float], first: Sequence[StepFigures], last: Sequence[StepFigures]
) -> tuple[float, float] | None:
    """The last measurement before the first window's end, and the newest one."""
    before = [step for step in heldout if step <= first[-1].step]
    after = [step for step in heldout if step >= last[0].step]
    return (heldout[max(before)], heldout[max(after)]) if before and after else None


class Watch:
    """Remembers a figure or two of each step, and says what is suspicious once per kind and window.

    `follow`: the components that should rise with the reward.

    Example: `Watch(follow=("final_state",)).observe(3, rollouts)`
    """

    def __init__(self, settings: AlarmSettings | None = None, *, follow: Sequence[str] = ()) -> None:
        self._settings = settings or AlarmSettings()
        self._follow = tuple(follow)
        self._history: list[StepFigures] = []
        self._raised: dict[str, int] = {}

    def recall(self, rollouts: Iterable[Rollout], heldout: Mapping[int, float] | None = None) -> None:
        """What steps before had, in their order; raises no alarm again. `heldout` as in `observe`, of all steps."""
        for step, members in groupby(sorted(rollouts, key=lambda r: r.step), key=lambda r: r.step):
            known = {at: success for at, success in (heldout or {}).items() if at <= step}
            self.observe(step, list(members), known)

    def observe(
        self, step: int, rollouts: Sequence[Rollout], heldout: Mapping[int, float] | None = None
    ) -> list[Alarm]:
        """The new alarms of a step. `heldout`: success on tasks that are not trained on, by step, where measured."""
        self._history.append(step_figures(step, rollouts))
        found = [
            *canaries_earned(step, rollouts, self._settings),
            *repeated_answers(step, rollouts, self._settings),
            *cut_off(self._history[-1], rollouts, self._settings),
            *sudden_jump(self._history, self._settings),
            *(calls_given_up(self._history, self._settings) or tools_given_up(self._history, rollouts, self._settings)),
            *idle_calls(self._history, self._settings),
            *reward_alone(self._history, self._settings, follow=self._follow, heldout=heldout),
            *self._missing_components(step),
        ]
        window, never = self._settings.window, -(10**9)
        fresh = [a for a in found if a.kind == "canary" or step - self._raised.get(a.kind, never) >= window]
        self._raised |= {alarm.kind: step for alarm in fresh}
        return fresh

    def _missing_components(self, step: int) -> list[Alarm]:
        """What is to be followed and is in no verdict so far: a name mistyped, or behind a gate that never opens."""
        seen = {name for one in self._history for name in one.components}
        missing = [name for name in self._follow if name not in seen]
        if not missing or not any(one.rollouts for one in self._history):
            return []
        message = f"no verdict has the component {missing[0]!r}; they have {', '.join(sorted(seen)) or 'none'}"
        return [Alarm(kind="missing_component", step=step, message=message)]
