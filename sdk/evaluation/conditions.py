"""Conditions (untrained, after warm start, after GRPO) on the held-out tasks: the figures of one, what it cost, and two
compared."""

from __future__ import annotations

import logging
import math
import re
import statistics as plain_statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from ..errors import ConfigError, require_number
from ..records import Rollout, Task, reaches
from .statistics import (
    Interval,
    PassRate,
    clustered_wilson,
    holm,
    mcnemar_exact,
    mean_interval,
    paired_rate_difference,
    pass_rates,
    sign_flip_exact,
)

log = logging.getLogger(__name__)

_MILLION = 1_000_000


class Price(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Prices of a model per million tokens. Example: `Price(input=0.4, output=1.6)`

    A model of your own has a price, too: what its machine costs in an hour over what it does in an hour.
    """

    input: float = Field(ge=0)
    """Of tokens in prompts. Every turn sends the conversation again; a cache's discount is not known here."""
    output: float = Field(ge=0)
    """Of sampled tokens."""

    def of(self, rollout: Rollout) -> float:
        """What a rollout cost."""
        return (self.input * rollout.prompt_tokens + self.output * rollout.sampled_tokens) / _MILLION


class Cost(BaseModel, frozen=True):
    """What a condition cost, in the currency of its price."""

    price: Price
    per_rollout: float
    """The mean over all rollouts, unscored ones included: they are paid for, too."""
    per_success: float | None
    """All that was spent over the number of successes; None without one."""
    total: float


def cost_of(rollouts: Sequence[Rollout], successes: int, price: Price | None) -> Cost | None:
    """The cost of a condition; None without a price or rollouts, and where tokens with a price were not counted."""
    if price is None or not rollouts:
        return None
    counted = ("prompt_tokens", price.input), ("sampled_tokens", price.output)
    uncounted = [r.id for r in rollouts if r.turns and any(one and not getattr(r, name) for name, one in counted)]
    if uncounted:
        log.warning(
            "the cost is not known: the tokens of %d rollouts, such as %r, were not counted; have the endpoint report "
            "usage, or give a price of 0",
            len(uncounted),
            uncounted[0],
        )
        return None
    total = math.fsum(price.of(rollout) for rollout in rollouts)
    return Cost(
        price=price,
        per_rollout=total / len(rollouts),
        per_success=total / successes if successes else None,
        total=total,
    )


def read_prices(prices: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Price]:
    """Prices by the policy's name: `Price`s, `(input, output)` or mappings, per million tokens.

    Raises `ConfigError` for a name that is not evaluated, and for what is not a price.
    """
    found = {}
    for name, given in (prices or {}).items():
        if name not in names:
            raise ConfigError(
                f"there is a price for {name!r}, which is not evaluated; the names are {', '.join(names)}"
            )
        found[name] = _price(name, given)
    return found


def _price(name: str, given: Any) -> Price:
    if isinstance(given, Price):
        return given
    try:
        if isinstance(given, tuple | list):
            input_price, output_price = given
            return Price(input=input_price, output=output_price)
        return Price.model_validate(given)
    except (ValueError, TypeError, ValidationError):
        raise ConfigError(
            f"the price of {name!r} is {given!r}; give (input, output) per million tokens, each 0 or more, "
            "such as (0.4, 1.6)"
        ) from None


FAMILY = "family"
"""Cluster by `Task.family`; every other value of `cluster_by` is the name of a tag."""


class Spread(BaseModel, frozen=True):
    """How a quantity spreads over rollouts."""

    mean: float
    median: float
    max: float
    p95: float | None = None
    """The smallest value that 95 % of the rollouts do not exceed."""


class SuccessRate(BaseModel, frozen=True):
    """Success over `tasks`; where a task was tried several times, its tries are averaged first.

    The interval is Wilson's; where several tasks are of one family, for the effective number of tasks.
    """

    tasks: int
    rollouts: int
    families: int | None = None
    """None in reports of before families were counted."""
    interval: Interval
    worst_case: float | None = None
    """The share where every unscored rollout counts as failed. None in reports of before it was counted."""


class ComponentMean(BaseModel, frozen=True):
    """The mean of a named part of the verdict, over the `rollouts` whose verdict has it."""

    mean: float
    rollouts: int


class Count(BaseModel, frozen=True):
    """How often something happened, in how many rollouts."""

    times: int
    rollouts: int


class FailureCount(BaseModel, frozen=True):
    """Rollouts that one kind of failure left unscored, and the first one's message."""

    rollouts: int
    example: str


class ConditionSummary(BaseModel):
    """One condition. Averages are over scored rollouts; `None` where there is none."""

    rollouts: int
    scored: int
    unscored: int
    failures: dict[str, FailureCount]
    """Why rollouts are unscored, by `boundary/kind`."""
    shared_failure: str | None = None
    """What all unscored rollouts say, where several say the same but for numbers."""
    success: SuccessRate | None
    score: Interval | None
    """Mean score over tasks."""
    components: dict[str, ComponentMean]
    by_tag: dict[str, dict[str, SuccessRate]]
    """Success by tag and value, for example `by_tag["tier"]["2"]`."""
    turns: Spread | None
    calls: Spread | None
    sampled_tokens: Spread | None
    prompt_tokens: Spread | None = None
    seconds: Spread | None
    """Wall-clock time of a rollout, among all that ran at once."""
    pass_at_k: list[PassRate] = Field(default_factory=list)
    """Solved by at least one of k tries; empty where each task was tried once."""
    pass_hat_k: list[PassRate] = Field(default_factory=list)
    """Solved by all of k tries."""
    cost: Cost | None = None
    """`None` where no price was given."""
    errors: dict[str, Count]
    """The policy's own mistakes in scored rollouts, by kind; `unreadable_call` where a call did not parse."""
    stop_reasons: dict[str, int]
    """Over all rollouts, scored or not."""


def is_success(rollout: Rollout, threshold: float) -> bool:
    """Whether a scored rollout reaches the threshold. Scores that are sums may miss it by rounding."""
    return rollout.scored and rollout.verdict is not None and reaches(rollout.verdict.score, threshold)


def by_task(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    """Scored rollouts by task id, in the order of ids."""
    tasks: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.scored:
            tasks[rollout.task.id].append(rollout)
    return {task: sorted(tasks[task], key=lambda r: r.id) for task in sorted(tasks)}


def success_by_task(rollouts: Iterable[Rollout], threshold: float) -> dict[str, Fraction]:
    """The share of successes among each task's scored rollouts, exact."""
    return {
        task: Fraction(sum(is_success(r, threshold) for r in tries), len(tries))
        for task, tries in by_task(rollouts).items()
    }


def score_by_task(rollouts: Iterable[Rollout]) -> dict[str, float]:
    """The mean score of each task's scored rollouts."""
    return {
        task: math.fsum(r.verdict.score for r in tries if r.verdict is not None) / len(tries)
        for task, tries in by_task(rollouts).items()
    }


def score_bounds(scores: Iterable[float]) -> tuple[float, float]:
    """[0, 1] where all scores lie in it, the usual case; otherwise widened to the scores seen."""
    scores = list(scores)
    return min(0.0, 1.0, *scores), max(0.0, 1.0, *scores)


def score_interval(
    values: Sequence[float], scale: tuple[float, float], clusters: Sequence[str], *, paired: bool = False
) -> Interval:
    """The mean of scores in `scale` (see `score_bounds`), or of their `paired` differences, with its interval. It is
    cut at 0 and 1 alone: of an end beyond these, which was only seen, nobody knows whether scores go further."""
    low, high = scale
    ends = (low if low == 0 else -math.inf, high if high == 1 else math.inf)
    if paired:
        low, high, ends = low - high, high - low, (-1.0, 1.0) if scale == (0, 1) else (-math.inf, math.inf)
    return mean_interval(values, (low, high), clusters, cut=ends)


def family_of(task: Task, cluster_by: str) -> str:
    """What intervals are clustered by: `Task.family`, or the value of a tag; the task's id where it has no such tag."""
    return task.family if cluster_by == FAMILY else task.tags.get(cluster_by, task.id)


def require_cluster(cluster_by: str, tasks: Iterable[Task]) -> None:
    """Raises `ConfigError` for a tag that no task has."""
    tags = {tag for task in tasks for tag in task.tags}
    if cluster_by != FAMILY and cluster_by not in tags:
        raise ConfigError(
            f"cluster_by is {cluster_by!r}, which no task has as a tag; give {FAMILY!r} or one of "
            f"{', '.join(sorted(tags)) or 'the tags, of which there are none'}"
        )


def families_by_task(rollouts: Iterable[Rollout], cluster_by: str) -> dict[str, str]:
    """Task id -> family."""
    return {rollout.task.id: family_of(rollout.task, cluster_by) for rollout in rollouts}


def summarise_condition(
    rollouts: Sequence[Rollout],
    *,
    threshold: float,
    cluster_by: str = FAMILY,
    price: Price | None = None,
    scale: tuple[float, float] | None = None,
) -> ConditionSummary:
    """The figures of one condition. `scale`: the bounds of scores, as seen in all conditions; in this one where None.
    Raises `ConfigError` where a rollout is given twice."""
    double = [rollout_id for rollout_id, count in Counter(r.id for r in rollouts).items() if count > 1]
    if double:
        raise ConfigError(f"rollout {double[0]!r} is given twice in one condition; each counts once")
    scored = [r for r in rollouts if r.scored]
    # Of a verdict made elsewhere nobody knows what its rollout took.
    made = [r for r in scored if r.turns or r.messages]
    scores = score_by_task(scored)
    families = families_by_task(scored, cluster_by)
    tries = {
        task: (sum(is_success(r, threshold) for r in of_task), len(of_task))
        for task, of_task in by_task(scored).items()
    }
    at_k, hat_k = pass_rates(tries, families, Counter(r.task.id for r in rollouts if not r.scored))
    score = None
    if scores:
        clusters = [families[task] for task in scores]
        score = score_interval(list(scores.values()), scale or score_bounds(scores.values()), clusters)
    return ConditionSummary(
        rollouts=len(rollouts),
        scored=len(scored),
        unscored=len(rollouts) - len(scored),
        failures=_failures(rollouts),
        shared_failure=_shared_failure(rollouts),
        success=_success(rollouts, threshold, cluster_by),
        score=score,
        components=_components(scored),
        by_tag=_by_tag(rollouts, threshold, cluster_by),
        turns=_spread([r.turns for r in made]),
        calls=_spread([len(r.calls) for r in made]),
        sampled_tokens=_spread([r.sampled_tokens for r in made]),
        prompt_tokens=_spread([r.prompt_tokens for r in made]),
        pass_at_k=at_k,
        pass_hat_k=hat_k,
        cost=cost_of(rollouts, sum(c for c, _ in tries.values()), price),
        seconds=_spread([r.duration_s for r in made]),
        errors=_errors(scored),
        stop_reasons=dict(sorted(Counter(r.stop_reason for r in rollouts).items())),
    )


def best_condition(conditions: Mapping[str, ConditionSummary], *, by_score: bool = False) -> str:
    """The name of the condition with the most success, unscored rollouts counted as failed; of equals that with the
    most success of the scored ones, then with the higher mean score, then the first. `by_score`: the mean score counts
    before success.

    Raises `ValueError` where no condition has a scored rollout.
    """
    rated: dict[str, tuple[float, ...]] = {}
    for name, one in conditions.items():
        if one.success and one.score:
            rate, worst, score = one.success.interval.estimate, one.success.worst_case, one.score.estimate
            rates = (rate if worst is None else worst, rate)
            rated[name] = (score, *rates) if by_score else (*rates, score)
    if not rated:
        raise ValueError("no condition has a scored rollout, so none is the best")
    return max(rated, key=lambda name: rated[name])


def _success(rollouts: Sequence[Rollout], threshold: float, cluster_by: str) -> SuccessRate | None:
    scored = [r for r in rollouts if r.scored]
    rates = success_by_task(scored, threshold)
    if not rates:
        return None
    tries = Counter(r.task.id for r in rollouts)
    right = Counter(r.task.id for r in scored if is_success(r, threshold))
    families = families_by_task(scored, cluster_by)
    clusters = [families[task] for task in rates]
    return SuccessRate(
        tasks=len(rates),
        rollouts=len(scored),
        families=len(set(clusters)),
        interval=clustered_wilson([float(rate) for rate in rates.values()], clusters),
        worst_case=math.fsum(right[task] / tries[task] for task in tries) / len(tries),
    )


def _failures(rollouts: Sequence[Rollout]) -> dict[str, FailureCount]:
    messages: dict[str, list[str]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.failure is not None:
            messages[f"{rollout.failure.boundary}/{rollout.failure.kind}"].append(rollout.failure.message)
        elif not rollout.scored:
            messages["no verdict"].append("the rollout ended without a failure and was given no verdict")
    return {kind: FailureCount(rollouts=len(messages[kind]), example=messages[kind][0]) for kind in sorted(messages)}


def _shared_failure(rollouts: Sequence[Rollout]) -> str | None:
    messages = ["" if r.failure is None else r.failure.message for r in rollouts if not r.scored]
    # Ids of worlds and of calls have digits.
    alike = {re.sub(r"\w*\d\w*", "", message) for message in messages}
    return messages[0] or None if len(messages) > 1 and len(alike) == 1 else None


def _components(scored: Sequence[Rollout]) -> dict[str, ComponentMean]:
    values: dict[str, list[float]] = defaultdict(list)
    for rollout in scored:
        for name, value in (rollout.verdict.components if rollout.verdict else {}).items():
            values[name].append(value)
    return {
        n: ComponentMean(mean=math.fsum(values[n]) / len(values[n]), rollouts=len(values[n])) for n in sorted(values)
    }


def _by_tag(rollouts: Sequence[Rollout], threshold: float, cluster_by: str) -> dict[str, dict[str, SuccessRate]]:
    groups: dict[str, dict[str, list[Rollout]]] = defaultdict(lambda: defaultdict(list))
    for rollout in rollouts:
        for tag, value in rollout.task.tags.items():
            groups[tag][value].append(rollout)
    found: dict[str, dict[str, SuccessRate]] = defaultdict(dict)
    for tag in sorted(groups):
        # Numbers in their order, before words; what has hundreds of digits is none, and `int` refuses thousands.
        for value in sorted(groups[tag], key=lambda v: (0, int(v), v) if v.isdecimal() and len(v) < 20 else (1, 0, v)):
            rate = _success(groups[tag][value], threshold, cluster_by)
            if rate is not None:
                found[tag][value] = rate
    return dict(found)


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(
        mean=math.fsum(values) / len(values),
        median=float(plain_statistics.median(values)),
        max=float(max(values)),
        p95=float(sorted(values)[math.ceil(0.95 * len(values)) - 1]),
    )


def errors_of(rollout: Rollout) -> dict[str, int]:
    """The policy's own mistakes in one rollout, by kind."""
    kinds = dict(rollout.error_kinds)
    # Calls that did not parse never reach the world, unless the engine recorded its answer to them.
    recorded = Counter(record.call.id for record in rollout.calls if record.result.error_kind)
    for message in rollout.messages:
        for call in message.tool_calls:
            if call.error is None:
                continue
            if recorded[call.id]:
                recorded[call.id] -= 1
            else:
                kinds["unreadable_call"] = kinds.get("unreadable_call", 0) + 1
    return kinds


def _errors(scored: Sequence[Rollout]) -> dict[str, Count]:
    times: Counter[str] = Counter()
    rollouts: Counter[str] = Counter()
    for rollout in scored:
        kinds = errors_of(rollout)
        times.update(kinds)
        rollouts.update(kinds.keys())
    return {kind: Count(times=times[kind], rollouts=rollouts[kind]) for kind in sorted(times)}


# ---------------------------------------------------------------------------------------------------------------------
# A comparison of two conditions on the same tasks, which cancels how hard the tasks are.


class PairedComparison(BaseModel):
    """Second minus first, on the tasks that were scored in both."""

    first: str
    second: str
    tasks: int
    families: int | None = None
    left_out: list[str]
    """Ids of tasks scored in one of the two only, or in neither."""
    gained: int
    """Tasks with more success in the second."""
    lost: int
    """Tasks with less success in the second."""
    success: Interval | None
    """Difference of success; `None` where no task was scored in both."""
    score: Interval | None
    """Difference of mean scores."""
    p_value: float | None
    """Exact McNemar test of gained against lost; where tasks were tried several times or share families, the exact
    test that flips the signs of whole families. `None` where no task was scored in both."""
    p_holm: float | None = None
    """The p-value adjusted for all comparisons of the report (Holm); `None` where there is one only."""
    method: Literal["tango", "student_t", "clustered", "none"]


def compare_paired(
    first: Sequence[Rollout],
    second: Sequence[Rollout],
    *,
    names: tuple[str, str],
    threshold: float = 1.0,
    cluster_by: str = FAMILY,
) -> PairedComparison:
    """Compare two conditions on the tasks scored in both. Tries at the same task are averaged first. Raises
    `ConfigError` for a threshold that is not a finite number."""
    require_number("threshold", threshold)
    before, after = success_by_task(first, threshold), success_by_task(second, threshold)
    both = sorted(before.keys() & after.keys())
    families = families_by_task([*first, *second], cluster_by)
    clusters = [families[task] for task in both]
    differences = [after[task] - before[task] for task in both]
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    # One try at each task: success is yes or no, and the exact methods for pairs apply.
    single = all(rates[task] in (0, 1) for rates in (before, after) for task in both)
    alone = len(set(clusters)) == len(both)
    success, p_value = None, None
    if both and single and alone:
        success, p_value = paired_rate_difference(gained, lost, len(both)), mcnemar_exact(gained, lost)
    elif both:
        success = mean_interval([float(d) for d in differences], (-1.0, 1.0), clusters)
        p_value = sign_flip_exact(differences, clusters)
    return PairedComparison(
        first=names[0],
        second=names[1],
        tasks=len(both),
        families=len(set(clusters)),
        left_out=sorted({r.task.id for r in [*first, *second]} - set(both)),
        gained=gained,
        lost=lost,
        success=success,
        score=_score_difference(first, second, both, clusters),
        p_value=p_value,
        method="none" if not both else "clustered" if not alone else "tango" if single else "student_t",
    )


def _score_difference(
    first: Sequence[Rollout], second: Sequence[Rollout], both: Sequence[str], clusters: Sequence[str]
) -> Interval | None:
    if not both:
        return None
    before, after = score_by_task(first), score_by_task(second)
    differences = [after[task] - before[task] for task in both]
    return score_interval(differences, score_bounds([*before.values(), *after.values()]), clusters, paired=True)


def in_order(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each condition with the next, then the first with the last."""
    pairs = list(pairwise(names))
    return [*pairs, (names[0], names[-1])] if len(names) > 2 else pairs


def compare_conditions(
    conditions: Mapping[str, Sequence[Rollout]],
    *,
    threshold: float,
    cluster_by: str = FAMILY,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> list[PairedComparison]:
    """The comparisons of `pairs` of names, those `in_order` where None, with p-values adjusted for being several."""
    wanted = in_order(list(conditions)) if pairs is None else pairs
    found = [
        compare_paired(conditions[a], conditions[b], names=(a, b), threshold=threshold, cluster_by=cluster_by)
        for a, b in wanted
    ]
    # The weights that are handed over may have been measured under another name: one comparison counts once.
    keys = [frozenset(tuple(map(id, conditions[name])) for name in pair) for pair in wanted]
    asked = {key: c.p_value for key, c in zip(keys, found, strict=True) if len(key) == 2 and c.p_value is not None}
    adjusted = holm(asked)
    if len(adjusted) < 2:
        return found
    return [c.model_copy(update={"p_holm": adjusted.get(key)}) for key, c in zip(keys, found, strict=True)]


# ---------------------------------------------------------------------------------------------------------------------
# Which rollouts a report shows in full, by rule.

Kind = Literal["newly solved", "still failing", "newly failing", "still solved", "solved", "failed"]

RULE = (
    "By rule, not by taste: one newly solved, one still failing and one newly failing task, the first of each in the "
    "order of task ids; where a kind has none, the next of another kind."
)
_SHOWN = 3
_ORDER: tuple[Kind, ...] = ("newly solved", "still failing", "newly failing", "solved", "failed", "still solved")


class Example(BaseModel):
    """One rollout to read, without its tokens and states."""

    kind: Kind
    condition: str
    rollout: Rollout
    earlier_score: float | None = None
    """The score of the same task in the first condition."""


def choose_examples(conditions: Mapping[str, Sequence[Rollout]], *, threshold: float) -> list[Example]:
    """Rollouts of the last condition, set against the first where there are two. See `RULE`."""
    names = list(conditions)
    last = by_task(conditions[names[-1]])
    first = by_task(conditions[names[0]]) if len(names) > 1 else {}
    by_kind: dict[Kind, list[Example]] = defaultdict(list)
    for task, tries in last.items():
        if first and task not in first:
            continue
        now, earlier = tries[0], first[task][0] if first else None
        kind = _kind(now, earlier, threshold)
        earlier_score = earlier.verdict.score if earlier is not None and earlier.verdict is not None else None
        shown = now.model_copy(update={"rows": [], "initial_state": None, "final_state": None})
        by_kind[kind].append(Example(kind=kind, condition=names[-1], rollout=shown, earlier_score=earlier_score))
    # Round by round over the kinds: the first of each, then the second of each.
    rounds = max((len(examples) for examples in by_kind.values()), default=0)
    in_order = [by_kind[kind][i] for i in range(rounds) for kind in _ORDER if i < len(by_kind[kind])]
    return in_order[:_SHOWN]


def _kind(now: Rollout, earlier: Rollout | None, threshold: float) -> Kind:
    solved = is_success(now, threshold)
    if earlier is None:
        return "solved" if solved else "failed"
    if is_success(earlier, threshold):
        return "still solved" if solved else "newly failing"
    return "newly solved" if solved else "still failing"
