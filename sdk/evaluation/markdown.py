"""The report in Markdown: for GitHub, and as pleasant in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import figures
from .conditions import FAMILY, ConditionSummary
from .example_rollouts import RULE, Example
from .markdown_errors import render_errors
from .markdown_policies import cost_rows, render_pictures, render_tries
from .plain import compared, prompt_note, unscored_notes, weights_note
from .safe_text import cut, fence, inline, table
from .training_summary import TrainingSummary
from .transcript import transcript

if TYPE_CHECKING:
    from .report import Report

MOST_TAG_VALUES = 20
"""Tags with more values than this are names, not groups; they stay in `report.json`."""


def render_report(report: Report, *, curve: str | None = None, pictures: Mapping[str, str] | None = None) -> str:
    """The whole report. Text from models, tools and tasks is fenced or escaped."""
    sections = [
        "# Report",
        _headline(report),
        *(f"**{inline(note, limit=600)}**" for note in unscored_notes(report)),
        f"![Learning curve: reward by training step, and success on held-out tasks]({curve})" if curve else "",
        render_pictures(pictures or {}),
        _success(report),
        _comparisons(report),
        render_tries(report),
        _tags(report),
        _components(report),
        _cost(report),
        _mistakes(report),
        _failures(report),
        render_errors(report.errors),
        _training(report.training) if report.training else "",
        _examples(report.examples),
        _run(report.run),
        _methods(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _headline(report: Report) -> str:
    if report.comparisons:
        headline = f"**{inline(compared(report.comparisons[-1]), limit=400)}.**"
        return "\n\n".join([headline, *(inline(note, limit=400) for note in weights_note(report))])
    name, only = next(iter(report.conditions.items()))
    if only.success is None:
        return f"**{inline(name)}: no rollout was scored.**"
    return f"**{inline(name)}: {figures.success(only.success)} on {only.success.tasks} tasks.**"


def _success(report: Report) -> str:
    rates = ["condition", "success", "95 % interval", "worst case", "mean score", "95 % interval"]
    head = [*rates, "tasks", "scored", "unscored"]
    rows = []
    for name, c in report.conditions.items():
        rate, score = c.success, c.score
        rows.append(
            (
                inline(name),
                figures.percent(rate.interval.estimate) if rate else figures.NONE,
                figures.percent_range(rate.interval) if rate else figures.NONE,
                figures.percent(rate.worst_case) if rate and rate.worst_case is not None else figures.NONE,
                figures.decimal(score.estimate if score else None),
                f"{score.low:.3f} to {score.high:.3f}" if score else figures.NONE,
                figures.count(rate.tasks if rate else 0),
                figures.count(c.scored),
                figures.count(c.unscored),
            )
        )
    threshold = (
        f"A rollout succeeds with a score of {report.success_threshold:g} or more. Unscored rollouts take part in no "
        "figure but the worst case, which counts them as failed."
    )
    threshold = " ".join([threshold, *map(inline, prompt_note(report))])
    return f"## Success on held-out tasks\n\n{table(head, rows)}\n\n{threshold}"


def _comparisons(report: Report) -> str:
    if not report.comparisons:
        return ""
    several = any(c.p_holm is not None for c in report.comparisons)
    head = ["from → to", "tasks", "points", "95 % interval", "gained", "lost", "p", "score (95 % interval)", "left out"]
    rows = [
        [
            f"{inline(c.first)} → {inline(c.second)}",
            figures.count(c.tasks),
            figures.points(c.success.estimate) if c.success else figures.NONE,
            figures.points_range(c.success) if c.success else figures.NONE,
            figures.count(c.gained),
            figures.count(c.lost),
            figures.p_value(c.p_value),
            figures.signed_range(c.score) if c.score else figures.NONE,
            figures.count(len(c.left_out)),
        ]
        for c in report.comparisons
    ]
    note = "Only tasks scored in both conditions take part; *left out* counts the others."
    if several:
        place = head.index("p") + 1
        for row, comparison in zip([head, *rows], [None, *report.comparisons], strict=True):
            row.insert(place, "p (Holm)" if comparison is None else figures.p_value(comparison.p_holm))
        note += " *p (Holm)* allows for there being several comparisons."
    return f"## The same tasks, compared\n\n{table(head, rows)}\n\n{note}"


def _tags(report: Report) -> str:
    tags = sorted({tag for c in report.conditions.values() for tag in c.by_tag})
    sections = [_one_tag(report, tag) for tag in tags]
    return "\n\n".join(sections)


def _one_tag(report: Report, tag: str) -> str:
    values = list(dict.fromkeys(value for c in report.conditions.values() for value in c.by_tag.get(tag, {})))
    title = f"## Success by {inline(tag)}"
    if len(values) > MOST_TAG_VALUES:
        return f"{title}\n\n{len(values)} values: too many for a table; see `by_tag` in report.json."
    rows = []
    for value in values:
        rates = [c.by_tag.get(tag, {}).get(value) for c in report.conditions.values()]
        tasks = max((rate.tasks for rate in rates if rate), default=0)
        rows.append((inline(value), figures.count(tasks), *(figures.success(rate) for rate in rates)))
    head = (inline(tag), "tasks", *(inline(name) for name in report.conditions))
    return f"{title}\n\n{table(head, rows)}"


def _by_condition(report: Report, title: str, what: str, cells: Mapping[str, list[str]]) -> str:
    """A table with a row for each entry of `cells` and a column for each condition."""
    if not cells:
        return ""
    head = (what, *(inline(name) for name in report.conditions))
    return f"## {title}\n\n{table(head, [(inline(name), *row) for name, row in cells.items()])}"


def _components(report: Report) -> str:
    conditions = report.conditions.values()
    names = sorted({name for c in conditions for name in c.components})
    cells = {n: [_component(c, n) for c in conditions] for n in names}
    return _by_condition(report, "Parts of the verdict (means)", "part", cells)


def _component(condition: ConditionSummary, name: str) -> str:
    part = condition.components.get(name)
    if part is None:
        return figures.NONE
    few = f" (of {part.rollouts})" if part.rollouts != condition.scored else ""
    return figures.decimal(part.mean) + few


def _cost(report: Report) -> str:
    conditions = list(report.conditions.values())
    cells = cost_rows(conditions)
    note = (
        "Mean / median / largest, over scored rollouts. Seconds are those of a rollout among all that ran at once. "
        "Every turn sends the whole conversation; prompts are priced as if nothing of them were cached."
    )
    return _by_condition(report, "What a rollout costs", "per rollout", cells) + f"\n\n{note}"


def _mistakes(report: Report) -> str:
    conditions = list(report.conditions.values())
    kinds = sorted({kind for c in conditions for kind in c.errors})
    errors = {
        kind: [f"{c.errors[kind].times} in {c.errors[kind].rollouts}" if kind in c.errors else "0" for c in conditions]
        for kind in kinds
    }
    reasons = sorted({reason for c in conditions for reason in c.stop_reasons})
    ended = {reason: [figures.count(c.stop_reasons.get(reason, 0)) for c in conditions] for reason in reasons}
    mistakes = _by_condition(report, "The policy's mistakes (times in rollouts)", "kind", errors)
    return "\n\n".join(
        part for part in (mistakes, _by_condition(report, "How rollouts ended", "ended by", ended)) if part
    )


def _failures(report: Report) -> str:
    lines = [
        f"- {inline(name)}: {failure.rollouts} × {inline(kind)}, first: {inline(failure.example, limit=300)}"
        for name, c in report.conditions.items()
        for kind, failure in c.failures.items()
    ]
    if not lines:
        return ""
    note = "Something other than the policy failed here. These rollouts count neither as good nor as bad."
    return f"## Unscored rollouts\n\n{note}\n\n" + "\n".join(lines)


def _training(training: TrainingSummary) -> str:
    rows: list[tuple[str, str]] = [("steps", figures.count(training.steps))]
    if training.first_reward is not None:
        reward = f"{figures.decimal(training.first_reward)} → {figures.decimal(training.last_reward)}"
        rows.append(("mean reward, first → last tenth of steps", reward))
    rows += [
        ("groups with signal", figures.count(training.groups_with_signal)),
        ("groups without signal (all rollouts scored the same)", figures.count(training.groups_without_signal)),
        ("rollouts", figures.count(training.rollouts)),
        ("rollouts skipped because something broke", figures.count(training.skipped_rollouts)),
        ("sampler and trainer differ, mean (nats a token)", _nats(training.sampler_gap_mean)),
        ("sampler and trainer differ, largest (nats)", _nats(training.sampler_gap_max)),
        ("tokens sampled", figures.count(training.sampled_tokens)),
        ("tokens trained", figures.count(training.trained_tokens)),
    ]
    if training.audits is not None:
        rows.append(("audits, beside the rollouts", figures.count(training.audits)))
    if training.first_right_calls is not None and training.last_right_calls is not None:
        shares = f"{figures.percent(training.first_right_calls)} → {figures.percent(training.last_right_calls)}"
        rows.append(("right calls among the audits, first → last tenth of steps", shares))
    if training.validation:
        measured = ", ".join(f"{step}: {figures.percent(rate)}" for step, rate in training.validation.items())
        rows.append(("success on validation tasks, by step", measured))
    rows += [(f"time: {inline(phase)}", figures.duration(s)) for phase, s in training.seconds.items()]
    rows += [
        (f"tokens a second: {inline(phase)}", f"{rate:,.0f}") for phase, rate in training.tokens_per_second.items()
    ]
    return f"## Training\n\n{table(('', 'value'), rows)}"


def _nats(value: float | None) -> str:
    return figures.NONE if value is None else f"{value:.2e}"


def _examples(examples: list[Example]) -> str:
    if not examples:
        return ""
    shown = [_example(number, example) for number, example in enumerate(examples, start=1)]
    return "\n\n".join(["## Rollouts to read", RULE, *shown])


def _example(number: int, example: Example) -> str:
    rollout = example.rollout
    tags = ", ".join(f"{inline(tag)} {inline(value)}" for tag, value in rollout.task.tags.items())
    title = f"### {number}. {example.kind.capitalize()}: task {inline(rollout.task.id)}" + (
        f" ({tags})" if tags else ""
    )
    parts = [title]
    verdict = rollout.verdict
    if verdict is not None:
        earlier = "" if example.earlier_score is None else f", {example.earlier_score:g} in the first condition"
        components = "; ".join(f"{inline(name)} {value:g}" for name, value in verdict.components.items())
        parts.append(
            f"{inline(example.condition)}: score {verdict.score:g}{earlier}; turns {rollout.turns}, "
            f"calls {len(rollout.calls)}; ended by: {rollout.stop_reason}."
            + (f" Parts: {components}." if components else "")
        )
        if verdict.explanation:
            parts += ["The verifier's reasons:", fence(cut(verdict.explanation, 1500))]
    return "\n\n".join([*parts, fence(transcript(rollout))])


def _run(run: Mapping[str, Any]) -> str:
    if not run:
        return ""
    rows = [(inline(name), inline(value, limit=300)) for name, value in _flat(run)]
    return f"## The run\n\n{table(('', 'value'), rows, left_columns=2)}"


def _flat(value: Mapping[str, Any], at: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, item in value.items():
        path = f"{at}.{name}" if at else str(name)
        rows += _flat(item, path) if isinstance(item, Mapping) and item else [(path, item)]
    return rows


def _methods(report: Report) -> str:
    clustered = any(
        c.success is not None and c.success.families not in (None, c.success.tasks) for c in report.conditions.values()
    )
    lines = [
        "- Success: share of held-out tasks, with Wilson's score interval (1927). Several tries at a task are averaged "
        "first, and the interval counts tasks.",
        "- Mean score: Student's t interval over tasks.",
    ]
    if clustered:
        by = "family" if report.cluster_by == FAMILY else f"tag {inline(report.cluster_by)}"
        lines.append(
            f"- Tasks of one {by} fail together, so they count for less: standard errors are robust to clusters "
            "(Miller, 2024, arXiv 2411.00640), with Student's t over families; Wilson's interval is that of the "
            "effective number of tasks."
        )
    methods = {c.method for c in report.comparisons}
    if "tango" in methods:
        lines.append(
            "- Comparison: difference on the same tasks with Tango's score interval for paired proportions (1998); "
            "p from the exact McNemar test."
        )
    if "student_t" in methods:
        lines.append("- Comparison with several tries at a task: Student's t interval of the differences by task.")
    if "clustered" in methods:
        lines.append("- Comparison where tasks share families: clustered interval of the differences by task.")
    if methods & {"student_t", "clustered"}:
        lines.append(
            "- Their p: the exact test that flips the signs of whole families; McNemar's where each is one task."
        )
    if any(c.pass_at_k for c in report.conditions.values()):
        lines.append(
            "- pass@k: 1 - C(n-c, k) / C(n, k) (Chen et al., 2021, arXiv 2107.03374); pass^k: C(c, k) / C(n, k) (Yao "
            "et al., 2024, arXiv 2406.12045), from c successes in n tries at each task."
        )
    lines.append(
        "- Intervals tell the uncertainty from the choice of tasks, not from training again with another seed."
    )
    return "## How the figures are made\n\n" + "\n".join(lines)
