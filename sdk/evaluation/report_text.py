"""The report as text: a short form for the terminal, and the whole in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mcp_bridge.safe_text import aligned, cut, fence, inline, one_line, short_line, table

from ..records import PROMPT_NAMES
from ..tasks import tasks_of_families
from ..traces.identity import flat
from ..transcript import transcript
from .conditions import FAMILY, RULE, ConditionSummary, Example, PairedComparison, Spread, SuccessRate
from .faults import FAULTS, TELLING_RULE, ConditionErrors, TellingRollout
from .statistics import Interval, PassRate

if TYPE_CHECKING:
    from .report import Report, TrainingSummary


_OnOneLine = Callable[..., str]
"""`inline`, or `short_line`."""
_MANY = 0.1
"""From this share of unscored rollouts on, the report begins with them."""
_LONGEST_REASON = 300

_HEAD = ("condition", "success (95 % interval)", "score", "turns", "calls", "unscored")


def render_short(report: Report) -> str:
    """A table of the conditions and one line for each comparison, after what is to be known of unscored rollouts."""
    lines = ["  ".join(cells) for cells in aligned([_HEAD, *_short_rows(report)])]
    lines += [compared(comparison) for comparison in report.comparisons]
    return "\n".join([*unscored_notes(report), *lines, *_notes(report)])


def render_short_markdown(report: Report) -> str:
    """The same for notebooks: a table and a list."""
    rows = [(inline(name), *cells) for name, *cells in _short_rows(report)]
    notes = [*(compared(comparison) for comparison in report.comparisons), *_notes(report)]
    return "\n\n".join(
        [
            *(f"**{inline(note, limit=600)}**" for note in unscored_notes(report)),
            table(_HEAD, rows),
            *(["\n".join(f"- {inline(note, limit=600)}" for note in notes)] if notes else []),
        ]
    )


def _short_rows(report: Report) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, c in _with_served(report):
        score = decimal(c.score.estimate if c.score else None)
        turns = decimal(c.turns.mean if c.turns else None, 1)
        calls = decimal(c.calls.mean if c.calls else None, 1)
        rows.append((one_line(name), success(c.success), score, turns, calls, f"{c.unscored} of {c.rollouts}"))
    return rows


def _with_served(report: Report) -> list[tuple[str, ConditionSummary]]:
    """The conditions by name, and what the saved model did through the endpoint."""
    served = report.served.condition if report.served is not None else None
    asked = [] if served is None else [(f"through the endpoint ({_scored(served)})", served)]
    return [*report.conditions.items(), *asked]


def _scored(served: ConditionSummary) -> str:
    return tasks_of_families(served.scored, served.success.families if served.success else None)


def served_note(report: Report) -> list[str]:
    """A sentence of a training's report: whether the endpoint does what was measured."""
    served = report.served
    if served is None:
        return []
    if served.condition is None:
        return [f"The saved model was not asked through the endpoint: {one_line(served.problem or 'no reason known')}"]
    scored, like = _scored(served.condition), one_line(served.like)
    said = f"Through the endpoint with a client's defaults, {scored} came out as in the measurement {like!r}"
    if served.compared is not None and served.compared < served.condition.scored:
        said = (
            f"Through the endpoint with a client's defaults, {served.compared} of {scored} could be compared with the "
            f"measurement {like!r}, in which the others have no score; these came out as there"
        )
    if not served.differ:
        return [f"{said}."]
    named = ", ".join(map(one_line, served.differ))
    return [f"{said}, but for {len(served.differ)}: {named}."]


def _notes(report: Report) -> list[str]:
    rates = [] if report.comparisons else [c.success for c in report.conditions.values() if c.success]
    return [
        *(
            f"Success on {tasks_of_families(rate.tasks, rate.families)}." for rate in rates[:1]
        ),  # as comparisons have it
        *prompt_note(report),
        *served_note(report),
        *weights_note(report),
        *(f"Next: {one_line(step)}" for step in report.next_steps),
    ]


def unscored_notes(report: Report) -> list[str]:
    """A sentence for each condition with so many unscored rollouts, or such alike ones, that its rate misleads."""
    return [
        f"{one_line(name)}: {c.unscored} of {c.rollouts} rollouts are unscored"
        + (f", all for one reason: {one_line(c.shared_failure)[:_LONGEST_REASON]}" if c.shared_failure else "")
        + f". {_at_worst(c)}"
        for name, c in report.conditions.items()
        if c.shared_failure or c.unscored > _MANY * c.rollouts
    ]


def _at_worst(condition: ConditionSummary) -> str:
    rate = condition.success
    if rate is None or rate.worst_case is None:
        return "There is no success rate."
    worst, shown = percent(rate.worst_case), percent(rate.interval.estimate)
    return f"If they count as failed, success is {worst}{', too' if worst == shown else f', not {shown}'}."


def weights_note(report: Report) -> list[str]:
    """Sentences of a training's report: whether it ended early, and which weights it ends with, and why."""
    reasons = [report.run.get(name) for name in ("ended_early", "handed_over")]
    return [f"{one_line(one[:1].upper() + one[1:])}." for one in reasons if isinstance(one, str) and one]


def prompt_note(report: Report) -> list[str]:
    """A sentence where a training showed less of the tools than their full schemas, and one for each condition of an
    evaluation that did so without saying it in its name: a model behind an endpoint that shows less than it is sent.
    And one where calls were held to their schemas."""
    shown = report.run.get("tool_prompt")
    held = report.run.get("strict_tools")
    whose = f"Calls of {', '.join(map(one_line, held))}" if isinstance(held, list) else "Calls"
    notes = [f"{whose} were held to the tools and their schemas (strict_tools)."] if held else []
    if isinstance(shown, Mapping):
        for name, said in shown.items():
            # The tool prompt in a condition's name; full schemas where there is none.
            named = next((one for one in PROMPT_NAMES.values() if name.endswith(f", {one}")), PROMPT_NAMES["full"])
            if said and said != named:
                notes.append(f"Tools in the prompts of {one_line(name)}: {one_line(said)}.")
        return notes
    if isinstance(shown, str) and shown != PROMPT_NAMES["full"]:
        notes.append(f"Tools in the prompts: {one_line(shown)}.")
    return notes


def compared(comparison: PairedComparison) -> str:
    """One comparison as a sentence without markup."""
    names = f"{one_line(comparison.first)} → {one_line(comparison.second)}"
    if comparison.success is None:
        return f"{names}: no task was scored in both"
    tasks = tasks_of_families(comparison.tasks, comparison.families)
    text = (
        f"{names}: {points(comparison.success.estimate)} points "
        f"(95 % interval {points_range(comparison.success)}) on {tasks}"
    )
    if comparison.p_value is not None:
        p = p_value(comparison.p_value)
        text += f", p {p}" if p.startswith("<") else f", p = {p}"
        if comparison.p_holm is not None and (adjusted := p_value(comparison.p_holm)) != p:
            text += f" ({adjusted} adjusted for all comparisons)"
    return text + (f", {tasks_of_families(len(comparison.left_out), None)} left out" if comparison.left_out else "")


MOST_TAG_VALUES = 20
"""Tags with more values than this are names, not groups; they stay in `report.json`."""


def render_report(report: Report, *, curve: str | None = None, pictures: Mapping[str, str] | None = None) -> str:
    """The whole report. Text from models, tools and tasks is fenced or escaped."""
    sections = [
        "# Report",
        _headline(report),
        *(f"**{inline(note, limit=600)}**" for note in unscored_notes(report)),
        f"![Learning curve: reward by training step, and success on held-out tasks]({curve})" if curve else "",
        *(f"![{shown}]({name})" for name, shown in (pictures or {}).items()),
        _success(report),
        _comparisons(report),
        _next_steps(report),
        _tries(report),
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
    tasks = tasks_of_families(only.success.tasks, only.success.families)
    return f"**{inline(name)}: {success(only.success)} on {tasks}.**"


def _success(report: Report) -> str:
    measured = ["success", "95 % interval", "worst case", "mean score", "95 % interval"]
    head = ["condition", *measured, "tasks", "families", "scored", "unscored"]
    rows = []
    for name, c in _with_served(report):
        rates, scores, tasks, families = [NONE] * 3, [NONE] * 2, 0, None
        if c.success:
            rate, tasks, families = c.success.interval, c.success.tasks, c.success.families
            rates = [percent(rate.estimate), percent_range(rate), percent(c.success.worst_case)]
        if c.score:
            scores = [decimal(c.score.estimate), f"{c.score.low:.3f} to {c.score.high:.3f}"]
        rows.append([inline(name), *rates, *scores, *map(count, (tasks, families, c.scored, c.unscored))])
    threshold = (
        f"A rollout succeeds with a score of {report.success_threshold:g} or more. Unscored rollouts take part in no "
        "figure but the worst case, which counts them as failed."
    )
    served = (inline(note, limit=600) for note in served_note(report))
    threshold = " ".join([threshold, *map(inline, prompt_note(report)), *served])
    return f"## Success on the measured tasks\n\n{table(head, rows)}\n\n{threshold}"


def _comparisons(report: Report) -> str:
    if not report.comparisons:
        return ""
    several = any(c.p_holm is not None for c in report.comparisons)
    head = ["from → to", "tasks", "families", "points", "95 % interval", "gained", "lost", "p"]
    head += ["score (95 % interval)", "left out"]
    rows = [
        [
            f"{inline(c.first)} → {inline(c.second)}",
            count(c.tasks),
            count(c.families),
            points(c.success.estimate) if c.success else NONE,
            points_range(c.success) if c.success else NONE,
            count(c.gained),
            count(c.lost),
            p_value(c.p_value),
            signed_range(c.score) if c.score else NONE,
            count(len(c.left_out)),
        ]
        for c in report.comparisons
    ]
    note = "Only tasks scored in both conditions take part; *left out* counts the others."
    if several:
        place = head.index("p") + 1
        for row, comparison in zip([head, *rows], [None, *report.comparisons], strict=True):
            row.insert(place, "p (Holm)" if comparison is None else p_value(comparison.p_holm))
        note += " *p (Holm)* allows for there being several comparisons."
    return f"## The same tasks, compared\n\n{table(head, rows)}\n\n{note}"


def _next_steps(report: Report) -> str:
    steps = [f"- {inline(step, limit=600)}" for step in report.next_steps]
    return "\n".join(["## What to do next", "", *steps]) if steps else ""


def _tags(report: Report) -> str:
    return "\n\n".join(
        _one_tag(report, tag) for tag in sorted({t for c in report.conditions.values() for t in c.by_tag})
    )


def _one_tag(report: Report, tag: str) -> str:
    values = list(dict.fromkeys(value for c in report.conditions.values() for value in c.by_tag.get(tag, {})))
    title = f"## Success by {inline(tag)}"
    if len(values) > MOST_TAG_VALUES:
        return f"{title}\n\n{len(values)} values: too many for a table; see `by_tag` in report.json."
    rows = []
    for value in values:
        rates = [c.by_tag.get(tag, {}).get(value) for c in report.conditions.values()]
        most = max((rate for rate in rates if rate), key=lambda rate: rate.tasks, default=None)
        tasks, families = (most.tasks, most.families) if most else (0, None)
        rows.append((inline(value), count(tasks), count(families), *(success(rate) for rate in rates)))
    return f"{title}\n\n{table((inline(tag), 'tasks', 'families', *map(inline, report.conditions)), rows)}"


def _by_condition(report: Report, title: str, what: str, cells: Mapping[str, list[str]]) -> str:
    """A table with a row for each entry of `cells` and a column for each condition."""
    if not cells:
        return ""
    rows = [(inline(name), *row) for name, row in cells.items()]
    return f"## {title}\n\n{table((what, *map(inline, report.conditions)), rows)}"


def _components(report: Report) -> str:
    conditions = report.conditions.values()
    cells = {n: [_component(c, n) for c in conditions] for n in sorted({n for c in conditions for n in c.components})}
    return _by_condition(report, "Parts of the verdict (means)", "part", cells)


def _component(condition: ConditionSummary, name: str) -> str:
    part = condition.components.get(name)
    if part is None:
        return NONE
    few = f" (of {part.rollouts})" if part.rollouts != condition.scored else ""
    return decimal(part.mean) + few


def _cost(report: Report) -> str:
    note = (
        "Mean / median / largest, over scored rollouts. Seconds are those of a rollout among all that ran at once. "
        "Every turn sends the whole conversation; prompts are priced as if nothing of them were cached."
    )
    cells = _cost_rows(list(report.conditions.values()))
    return _by_condition(report, "What a rollout costs", "per rollout", cells) + f"\n\n{note}"


def _mistakes(report: Report) -> str:
    conditions = list(report.conditions.values())
    kinds = sorted({kind for c in conditions for kind in c.errors})
    errors = {
        kind: [f"{c.errors[kind].times} in {c.errors[kind].rollouts}" if kind in c.errors else "0" for c in conditions]
        for kind in kinds
    }
    reasons = sorted({reason for c in conditions for reason in c.stop_reasons})
    ended = {reason: [count(c.stop_reasons.get(reason, 0)) for c in conditions] for reason in reasons}
    mistakes = _by_condition(report, "The policy's mistakes (times in rollouts)", "kind", errors)
    return "\n\n".join(filter(None, [mistakes, _by_condition(report, "How rollouts ended", "ended by", ended)]))


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
    rows: list[tuple[str, str]] = [("steps", count(training.steps))]
    if training.first_reward is not None:
        reward = f"{decimal(training.first_reward)} → {decimal(training.last_reward)}"
        rows.append(("mean reward, first → last tenth of steps", reward))
    rows += [
        ("groups with signal", count(training.groups_with_signal)),
        ("groups without signal (all rollouts scored the same)", count(training.groups_without_signal)),
        ("rollouts", count(training.rollouts)),
        ("rollouts skipped because something broke", count(training.skipped_rollouts)),
        ("sampler and trainer differ, mean (nats a token)", _nats(training.sampler_gap_mean)),
        ("sampler and trainer differ, largest (nats)", _nats(training.sampler_gap_max)),
        ("tokens sampled", count(training.sampled_tokens)),
        ("tokens trained", count(training.trained_tokens)),
    ]
    if training.audits is not None:
        rows.append(("audits, beside the rollouts", count(training.audits)))
    if training.first_right_calls is not None and training.last_right_calls is not None:
        shares = f"{percent(training.first_right_calls)} → {percent(training.last_right_calls)}"
        rows.append(("right calls among the audits, first → last tenth of steps", shares))
    if training.validation:
        measured = ", ".join(f"{step}: {percent(rate)}" for step, rate in training.validation.items())
        rows.append(("success on validation tasks, by step", measured))
    rows += [(f"time: {inline(phase)}", duration(s)) for phase, s in training.seconds.items()]
    rows += [
        (f"tokens a second: {inline(phase)}", f"{rate:,.0f}") for phase, rate in training.tokens_per_second.items()
    ]
    return f"## Training\n\n{table(('', 'value'), rows)}"


def _nats(value: float | None) -> str:
    return NONE if value is None else f"{value:.2e}"


def _examples(examples: list[Example]) -> str:
    shown = [_example(number, example) for number, example in enumerate(examples, start=1)]
    return "\n\n".join(["## Rollouts to read", RULE, *shown]) if shown else ""


def _example(number: int, example: Example) -> str:
    rollout = example.rollout
    tags = ", ".join(f"{inline(tag)} {inline(value)}" for tag, value in rollout.task.tags.items())
    tagged = f" ({tags})" if tags else ""
    parts = [f"### {number}. {example.kind.capitalize()}: task {inline(rollout.task.id)}{tagged}"]
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
    rows = [(inline(name), inline(value, limit=300)) for name, value in flat(run).items()]
    return f"## The run\n\n{table(('', 'value'), rows, left_columns=2)}" if rows else ""


def _methods(report: Report) -> str:
    conditions, methods = report.conditions.values(), {c.method for c in report.comparisons}
    by = "family" if report.cluster_by == FAMILY else f"tag {inline(report.cluster_by)}"
    lines = {
        "Success: share of the measured tasks, with Wilson's score interval (1927). Several tries at a task are "
        "averaged first, and the interval counts tasks.": True,
        "Mean score: Student's t interval over tasks.": True,
        f"Tasks of one {by} fail together, so they count for less: standard errors are robust to clusters "
        "(Miller, 2024, arXiv 2411.00640), with Student's t over families; Wilson's interval is that of the "
        "effective number of tasks.": any(
            c.success and c.success.families not in (None, c.success.tasks) for c in conditions
        ),
        "Comparison: difference on the same tasks with Tango's score interval for paired proportions (1998); "
        "p from the exact McNemar test.": "tango" in methods,
        "Comparison with several tries at a task: Student's t interval of the differences by task.": "student_t"
        in methods,
        "Comparison where tasks share families: clustered interval of the differences by task.": "clustered" in methods,
        "Their p: the exact test that flips the signs of whole families; McNemar's where each is one task.": bool(
            methods & {"student_t", "clustered"}
        ),
        "pass@k: 1 - C(n-c, k) / C(n, k) (Chen et al., 2021, arXiv 2107.03374); pass^k: C(c, k) / C(n, k) (Yao "
        "et al., 2024, arXiv 2406.12045), from c successes in n tries at each task.": any(
            c.pass_at_k for c in conditions
        ),
        "Intervals tell the uncertainty from the choice of tasks, not from training again with another seed.": True,
    }
    return "## How the figures are made\n\n" + "\n".join(f"- {line}" for line, applies in lines.items() if applies)


def _tries(report: Report) -> str:
    """pass@k and pass^k; empty where each task was tried once."""
    ks = sorted({rate.k for c in report.conditions.values() for rate in c.pass_at_k})
    if not ks:
        return ""
    rows = []
    for name, condition in report.conditions.items():
        for label, rates in (("pass@k", condition.pass_at_k), ("pass^k", condition.pass_hat_k)):
            by_k = {rate.k: rate for rate in rates}
            rows.append((inline(name), label, *(success(by_k.get(k)) for k in ks)))
    head = ("condition", "", *(f"k = {k}" for k in ks))
    note = "pass@k: at least one of k tries succeeds; pass^k: all of them do. With 95 % intervals over tasks."
    few = sorted({(rate.k, rate.left_out) for c in report.conditions.values() for rate in c.pass_at_k if rate.left_out})
    if few:
        left = ", ".join(f"k = {k}: {count}" for k, count in few)
        note += f" Tasks with fewer scored tries than k are left out: {left}."
    return f"## Several tries\n\n{table(head, rows, left_columns=2)}\n\n{note}"


def _cost_rows(conditions: list[ConditionSummary]) -> dict[str, list[str]]:
    """Rows for the table of what a rollout costs."""
    rows = {
        "turns": [spread(c.turns) for c in conditions],
        "calls": [spread(c.calls) for c in conditions],
        "tokens sampled": [spread(c.sampled_tokens, 0) for c in conditions],
        "tokens in prompts": [spread(c.prompt_tokens, 0) for c in conditions],
        "seconds": [spread(c.seconds) for c in conditions],
        "seconds, 95 % of rollouts within": [decimal(c.seconds.p95 if c.seconds else None, 1) for c in conditions],
    }
    if any(c.cost for c in conditions):
        rows["price of a million tokens, in / out"] = [
            f"{c.cost.price.input:g} / {c.cost.price.output:g}" if c.cost else NONE for c in conditions
        ]
        rows["cost of 1 000 rollouts"] = [_money(c.cost.per_rollout * 1000 if c.cost else None) for c in conditions]
        rows["cost of 1 000 successes"] = [
            _money(c.cost.per_success * 1000 if c.cost and c.cost.per_success is not None else None) for c in conditions
        ]
    return rows


def _money(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


MOST_TELLING = 5
"""Rollouts shown in full; the others are in report.json."""


def render_errors(
    errors: Mapping[str, ConditionErrors], *, most_telling: int = MOST_TELLING, for_terminal: bool = False
) -> str:
    """Groups by condition, what changed against the baseline, and the most telling rollouts, in Markdown; empty without
    faults. `for_terminal`: without the escapes that Markdown needs."""
    said = short_line if for_terminal else inline
    if not any(condition.failed for condition in errors.values()):
        return ""
    groups = [(name, group) for name, condition in errors.items() for group in condition.groups]
    kinds = [kind for kind in FAULTS if any(group.kind == kind for _, group in groups)]
    counts = []
    for kind in kinds:
        of_kind = {name: f"{group.rollouts} ({group.share:.0%})" for name, group in groups if group.kind == kind}
        counts.append((_title(kind), *(of_kind.get(name, "0") for name in errors)))
    counts.append(("failed of all", *(f"{c.failed} of {c.rollouts}" for c in errors.values())))
    judged = any(telling.fault.by == "judge" for _, group in groups for telling in group.telling)
    by = ", and by a judge where it had a word" if judged else ""
    meanings = [f"- *{_title(kind)}*: {FAULTS[kind]}" for kind in kinds]
    parts = [
        "## What went wrong first",
        table(("rollouts (share of failures)", *map(said, errors)), counts),
        "\n".join([f"The earliest fault that was not made good later, by rules{by}:", "", *meanings]),
    ]
    places = [
        (said(name), _title(group.kind), ", ".join(f"{said(s)} {n}×" for s, n in group.signatures.items()))
        for name, group in groups
        if group.signatures
    ]
    if places:
        parts.append(table(("condition", "fault", "tools and arguments"), places, left_columns=3))
    parts.append(_changes(errors, said))
    if judge_errors := sum(condition.judge_errors for condition in errors.values()):
        parts.append(f"The judge failed for {judge_errors} rollouts; these keep the fault that the rules found.")
    parts.append(_telling(errors, most_telling, said))
    return "\n\n".join(part for part in parts if part)


def _title(kind: str) -> str:
    return kind.replace("_", " ")


def _changes(errors: Mapping[str, ConditionErrors], said: _OnOneLine) -> str:
    rows = [
        (
            f"{said(condition.baseline or '')} → {said(name)}",
            _title(kind),
            *(count(n) for n in (c.before, c.fixed, c.stayed, c.moved, c.new)),
        )
        for name, condition in errors.items()
        for kind, c in condition.changes.items()
    ]
    if not rows:
        return ""
    head = ("from → to", "tasks that failed by", "before", "fixed", "stayed", "moved here", "new")
    note = (
        "Of the tasks in both: *fixed* are solved now, *moved here* failed otherwise before, *new* were solved before."
    )
    return f"{table(head, rows, left_columns=2)}\n\n{note}"


def _telling(errors: Mapping[str, ConditionErrors], most: int, said: _OnOneLine) -> str:
    """The most telling rollout of each group, group after group by its size, over all conditions but a baseline."""
    later = {name: c for name, c in errors.items() if c.baseline is not None} or dict(errors)
    groups = sorted(
        ((name, group) for name, condition in later.items() for group in condition.groups),
        key=lambda pair: -pair[1].rollouts,
    )
    shown = [_one(name, group.telling[0], said) for name, group in groups[:most] if group.telling]
    left = len(groups) - len(shown)
    more = f" The first of {left} smaller groups, and more of each, are in report.json." if left > 0 else ""
    return "\n\n".join(["### The most telling of each group", f"{TELLING_RULE}{more}", *shown]) if shown else ""


def _one(name: str, telling: TellingRollout, said: _OnOneLine) -> str:
    fault, rollout = telling.fault, telling.rollout
    newly = ", solved by the baseline" if telling.newly_failing else ""
    where = f" ({said(fault.signature)})" if fault.signature else ""
    title = f"#### {_title(fault.kind).capitalize()}{where}: task {said(rollout.task.id)}{newly}"
    turn = f"turn {fault.turn}" if fault.turn else "before the first turn"
    told = f"{said(name)}, {turn}: {said(fault.detail, limit=300)}" if fault.detail else f"{said(name)}, {turn}."
    return "\n\n".join([title, told, fence(cut(transcript(rollout, piece_limit=20), 4000))])


# ---------------------------------------------------------------------------------------------------------------------
# Figures as text: numbers, intervals and durations as people read them.

NONE = "–"


def percent(share: float | None) -> str:
    """`0.125` as `12.5 %`."""
    return NONE if share is None else f"{share * 100:.1f} %"


def percent_range(interval: Interval) -> str:
    """The ends of an interval of a share: `73.1 to 90.2 %`."""
    return f"{interval.low * 100:.1f} to {interval.high * 100:.1f} %"


def points(difference: float) -> str:
    """A difference of two shares in percentage points, with its sign: `+12.5`."""
    return f"{_no_minus_zero(difference * 100, 1):+.1f}"


def points_range(interval: Interval) -> str:
    """The ends of an interval of a difference, in percentage points: `+3.1 to +20.2`."""
    return f"{points(interval.low)} to {points(interval.high)}"


def success(rate: SuccessRate | PassRate | None) -> str:
    """`82.5 % (73.1 to 90.2 %)`, and `, at worst 60.0 %` where unscored rollouts could make it less."""
    if rate is None:
        return NONE
    shown = percent(rate.interval.estimate)
    # Of pass@k the worst case is over more tasks: those with enough tries of which some have no score.
    worst = shown if rate.worst_case is None else percent(min(rate.worst_case, rate.interval.estimate))
    return f"{shown} ({percent_range(rate.interval)})" + (f", at worst {worst}" if worst != shown else "")


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals, a dash for none."""
    return NONE if value is None else f"{_no_minus_zero(value, digits):,.{digits}f}"


def signed_range(interval: Interval) -> str:
    """A difference and its interval: `+0.120 (+0.040 to +0.200)`."""
    low, middle, high = (_no_minus_zero(v, 3) for v in (interval.low, interval.estimate, interval.high))
    return f"{middle:+.3f} ({low:+.3f} to {high:+.3f})"


def spread(value: Spread | None, digits: int = 1) -> str:
    """Mean, median and largest: `3.2 / 3 / 8`."""
    if value is None:
        return NONE
    return f"{value.mean:,.{digits}f} / {value.median:,.{digits}f} / {value.max:,.{digits}f}"


def p_value(value: float | None) -> str:
    """A p-value to three digits; tiny ones by their size only."""
    if value is None:
        return NONE
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def count(number: int | None) -> str:
    """A count with separators for thousands."""
    return NONE if number is None else f"{number:,}"


def duration(seconds: float) -> str:
    """`75` as `1 min 15 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _no_minus_zero(value: float, digits: int) -> float:
    return round(value, digits) + 0.0
