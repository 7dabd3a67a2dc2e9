"""The report of a run: what the model could do before and after, with intervals; made, stored and made again."""

from __future__ import annotations

import logging
import math
import os
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from mcp_bridge.extras import missing_modules
from mcp_bridge.records import Tool
from mcp_bridge.sources.specs import HttpSpec, OpenApiSpec, StdioSpec

from ..errors import ConfigError, RunFolderError, require_number, wrong_fields
from ..records import Rollout
from ..traces.atomic_files import make_folder, read_json, write_bytes, write_json
from ..traces.identity import installed_versions, plain_config, seeds_of, without_secrets
from ..traces.run_folder import RunFolder
from .conditions import (
    FAMILY,
    ConditionSummary,
    Example,
    PairedComparison,
    Price,
    best_condition,
    choose_examples,
    compare_conditions,
    in_order,
    read_prices,
    require_cluster,
    score_bounds,
    score_by_task,
    success_by_task,
    summarise_condition,
)
from .faults import ConditionErrors, Fault, find_faults, group_errors
from .measurement import SERVED, OutsideVerdict, ServedSummary, outside_faults, outside_rollouts, summarise_served

if TYPE_CHECKING:
    from mcp_bridge import Toolset
    from mcp_bridge.ledger import LedgerLine


SECONDS = "seconds/"


class TrainingSummary(BaseModel):
    """A training run in figures. What the metrics do not have is `None` or empty, never zero.

    `from_metrics` reads these names from each step's line; all are optional but `step`:
    `reward` (mean over the step's scored rollouts), `groups_with_signal`, `groups_without_signal`, `rollouts`,
    `skipped_rollouts`, `sampler_gap/mean` and `sampler_gap/max` (nats), `sampled_tokens`, `trained_tokens`, and
    `seconds/<phase>`, such as `seconds/rollout` and `seconds/update`.
    """

    steps: int
    first_reward: float | None = None
    last_reward: float | None = None
    """Mean rewards of the first and the last tenth of the steps (at least one step each)."""
    groups_with_signal: int | None = None
    groups_without_signal: int | None = None
    """Groups whose rollouts all scored the same: they teach nothing."""
    rollouts: int | None = None
    skipped_rollouts: int | None = None
    """Rollouts that took no part because something broke; masked out, not scored as bad."""
    sampler_gap_mean: float | None = None
    sampler_gap_max: float | None = None
    """|sampler's - trainer's| log-probability of the sampled tokens, in nats: mean and largest."""
    sampled_tokens: int | None = None
    trained_tokens: int | None = None
    audits: int | None = None
    """Audits that were trained beside the rollouts, and counted apart from them."""
    first_right_calls: float | None = None
    last_right_calls: float | None = None
    """Of the scored audits the share of right calls, in the first and the last tenth of the steps."""
    validation: dict[int, float] = Field(default_factory=dict)
    """Success on validation tasks by step, where it was measured in the midst of training."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time by phase."""
    tokens_per_second: dict[str, float] = Field(default_factory=dict)
    """`rollout`: tokens sampled over the seconds of that phase; `update`: tokens trained over its seconds."""

    @classmethod
    def from_metrics(cls, metrics: Sequence[Mapping[str, Any]], stage: str | None = None) -> TrainingSummary:
        """Add up the lines that have a `step`, of one `stage` where given."""
        lines = [m for m in metrics if "step" in m and (stage is None or m.get("stage") == stage)]
        first_reward, last_reward = _first_and_last(_values(lines, "reward"))
        first_right_calls, last_right_calls = _first_and_last(_values(lines, "audit/right_call"))
        gaps = _values(lines, "sampler_gap/mean")
        seconds: dict[str, float] = defaultdict(float)
        for name, value in ((name, value) for line in lines for name, value in line.items()):
            if name.startswith(SECONDS) and value is not None:
                seconds[name.removeprefix(SECONDS)] += float(value)
        summary = cls(
            steps=len({m["step"] for m in lines}),
            first_reward=first_reward,
            last_reward=last_reward,
            groups_with_signal=_total(lines, "groups_with_signal"),
            groups_without_signal=_total(lines, "groups_without_signal"),
            rollouts=_total(lines, "rollouts"),
            skipped_rollouts=_total(lines, "skipped_rollouts"),
            sampler_gap_mean=math.fsum(gaps) / len(gaps) if gaps else None,
            sampler_gap_max=max(_values(lines, "sampler_gap/max"), default=None),
            sampled_tokens=_total(lines, "sampled_tokens"),
            trained_tokens=_total(lines, "trained_tokens"),
            audits=_total(lines, "audit/rollouts"),
            first_right_calls=first_right_calls,
            last_right_calls=last_right_calls,
            validation={
                int(m["step"]): float(m["success"])
                for m in metrics
                if m.get("stage") == "validation" and m.get("success") is not None
            },
            seconds=dict(seconds),
        )
        for phase, tokens in (("rollout", summary.sampled_tokens), ("update", summary.trained_tokens)):
            overlaps = phase == "rollout" and any(_values(metrics, "staleness/max"))  # the seconds are of waiting alone
            if tokens is not None and seconds.get(phase, 0.0) > 0 and not overlaps:
                summary.tokens_per_second[phase] = tokens / seconds[phase]
        return summary


def _values(lines: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(line[name]) for line in lines if line.get(name) is not None]


def _total(lines: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = _values(lines, name)
    return int(sum(values)) if values else None


def _first_and_last(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The means of the first and of the last tenth."""
    tenth = max(1, len(values) // 10)
    return (math.fsum(values[:tenth]) / tenth, math.fsum(values[-tenth:]) / tenth) if values else (None, None)


log = logging.getLogger(__name__)


class Report(BaseModel):
    """Conditions on the same held-out tasks, compared. `print(report)` shows the short form.

    Example: `report = build_report({"untrained": before, "after GRPO": after}); report.write(folder)`
    """

    format_version: int = 1
    run: dict[str, Any] = Field(default_factory=dict)
    """What was run: model, seed, versions, machine. Secrets are hidden."""
    success_threshold: float = 1.0
    conditions: dict[str, ConditionSummary]
    """By name, in the order they happened."""
    comparisons: list[PairedComparison] = Field(default_factory=list)
    """In training each condition with the next, then the first with the last; in an evaluation of several policies
    each with the baseline, and each shorter tool prompt with the longest of the same policy."""
    cluster_by: str = FAMILY
    """What tasks are of one family by: `Task.family`, or the name of a tag."""
    errors: dict[str, ConditionErrors] = Field(default_factory=dict)
    """What went wrong first, by condition."""
    examples: list[Example] = Field(default_factory=list)
    training: TrainingSummary | None = None
    served: ServedSummary | None = None
    """Of a training: the saved model, asked through the endpoint with a client's defaults."""
    next_steps: list[str] = Field(default_factory=list)
    """What to do after a training, the gravest first, where its figures give a reason."""

    @property
    def best(self) -> str:
        """The condition with the most success, unscored rollouts counted as failed; of equals that with the most
        success of the scored ones, then with the higher mean score, then the first.

        Raises `ValueError` where no condition has a scored rollout.
        """
        return best_condition(self.conditions)

    def markdown(self, *, curve: str | None = None, pictures: Mapping[str, str] | None = None) -> str:
        """The whole report. `curve`: the path of the learning curve's picture, relative to the report; `pictures`:
        further paths, each with what it shows."""
        from .report_text import render_report

        return render_report(self, curve=curve, pictures=pictures)

    def __str__(self) -> str:
        from .report_text import render_short

        return render_short(self)

    def _repr_markdown_(self) -> str:
        from .report_text import render_short_markdown

        return render_short_markdown(self)

    def write(self, folder: Path, *, curve: str = "learning_curve.png") -> tuple[Path, Path]:
        """Write `report.md` and `report.json`; pictures are shown where the folder has them (see `draw`).

        Returns both paths. Raises `RunFolderError` where they cannot be written.
        """
        from .plots import PICTURES

        folder = Path(folder)
        make_folder(folder)
        shown = curve if (folder / curve).is_file() else None
        pictures = {name: said for name, said in PICTURES.items() if (folder / name).is_file()}
        markdown, data = folder / "report.md", folder / "report.json"
        write_bytes(markdown, self.markdown(curve=shown, pictures=pictures).encode())
        write_json(data, self)
        return markdown, data

    def draw(self, folder: Path) -> list[Path]:
        """Draw the pictures for slides that this report has figures for, as PNG; returns their paths.

        None without matplotlib, with a warning in the log. Raises `RunFolderError` where they cannot be written.
        """
        from .plots import draw_comparison

        if missing_modules("plots"):
            log.warning("the report has no pictures: they need toolbake[plots] (pip install 'toolbake[plots]')")
            return []

        make_folder(Path(folder))
        return draw_comparison(self, Path(folder))

    @classmethod
    def read(cls, path: Path) -> Report:
        """A report from its `report.json`. Raises `RunFolderError` for another file."""
        try:
            return cls.model_validate(read_json(Path(path)))
        except ValidationError as error:
            wrong = wrong_fields(error, "report")
            raise RunFolderError(f"{path} is not a report: {wrong}; write it again with Report.write") from error


def build_report(
    conditions: Mapping[str, Sequence[Rollout]],
    *,
    run: Mapping[str, Any] | None = None,
    training: TrainingSummary | None = None,
    success_threshold: float = 1.0,
    cluster_by: str = FAMILY,
    pairs: Sequence[tuple[str, str]] | None = None,
    prices: Mapping[str, Price] | None = None,
    faults: Mapping[str, Mapping[str, Fault]] | None = None,
) -> Report:
    """Compare conditions, given in the order they happened, each with its rollouts on the same held-out tasks.

    A rollout succeeds when its score reaches `success_threshold`. Unscored rollouts take part in no average; they
    are counted by what broke.

    `cluster_by`: `family`, or the name of a tag: intervals count its values, not tasks. `pairs`: names of conditions to
    compare, (first, second); as in training where None. `prices`: by condition. `faults`: by condition and rollout, as
    `sdk.evaluation.faults` finds and judges them; found by rules, without the tools' schemas, where None.

    Raises `ValueError` without conditions, `ConfigError` where one has a rollout twice, for a threshold that is no
    finite number, for a pair with another name, and for a tag that no task has.
    """
    if not conditions:
        raise ValueError("there are no conditions to report; give at least one, such as {'untrained': rollouts}")
    require_number("success_threshold", success_threshold)
    compared = in_order(list(conditions)) if pairs is None else list(pairs)
    if unknown := [name for pair in compared for name in pair if name not in conditions]:
        raise ConfigError(f"pairs names {unknown[0]!r}, which is not a condition; there are {', '.join(conditions)}")
    require_cluster(cluster_by, [rollout.task for rollouts in conditions.values() for rollout in rollouts])
    found = {
        name: find_faults(rollouts, threshold=success_threshold) if faults is None else faults[name]
        for name, rollouts in conditions.items()
    }
    scale = score_bounds(
        score for rollouts in conditions.values() for score in score_by_task(r for r in rollouts if r.scored).values()
    )
    return Report(
        run=without_secrets(dict(run or {})),
        success_threshold=success_threshold,
        cluster_by=cluster_by,
        conditions={
            name: summarise_condition(
                rollouts,
                threshold=success_threshold,
                cluster_by=cluster_by,
                price=(prices or {}).get(name),
                scale=scale,
            )
            for name, rollouts in conditions.items()
        },
        comparisons=compare_conditions(conditions, threshold=success_threshold, cluster_by=cluster_by, pairs=compared),
        errors=_errors(conditions, found, compared, success_threshold),
        examples=choose_examples(_in_examples(conditions, compared), threshold=success_threshold),
        training=training,
    )


def _in_examples(
    conditions: Mapping[str, Sequence[Rollout]], compared: Sequence[tuple[str, str]]
) -> dict[str, Sequence[Rollout]]:
    """The last condition, after the one that the last comparison sets against it, which is no outside baseline where
    there is another."""
    last = list(conditions)[-1]
    first = next((a for a, b in reversed(compared) if b == last), next(iter(conditions)))
    return {name: conditions[name] for name in (first, last)}


def _errors(
    conditions: Mapping[str, Sequence[Rollout]],
    faults: Mapping[str, Mapping[str, Fault]],
    compared: Sequence[tuple[str, str]],
    threshold: float,
) -> dict[str, ConditionErrors]:
    """Each condition against the earliest condition that it is compared with."""
    order = list(conditions)
    before = {name: min((a for a, b in compared if b == name), key=order.index, default=None) for name in conditions}
    return {
        name: group_errors(
            rollouts,
            faults[name],
            baseline=None if (base := before[name]) is None else (base, conditions[base], faults[base]),
            threshold=threshold,
        )
        for name, rollouts in conditions.items()
    }


CONDITIONS = "conditions"
"""The stage that records which stages are conditions, their names, and the tools."""


class _Noted(BaseModel):
    """What `note_conditions` noted."""

    stages: dict[str, str] = Field(min_length=1)
    policies: dict[str, str]
    pairs: list[tuple[str, str]] | None
    verdicts: dict[str, list[OutsideVerdict]]
    tools: list[Tool]

    @model_validator(mode="after")
    def _pairs_are_known(self) -> _Noted:
        known = {*self.stages, *self.verdicts}
        if unknown := [name for pair in self.pairs or [] for name in pair if name not in known]:
            raise ValueError(f"a pair names {unknown[0]!r}, which is not a condition")
        return self


def note_conditions(
    folder: RunFolder,
    stages: Mapping[str, str],
    tools: Sequence[Tool],
    *,
    policies: Mapping[str, str] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    verdicts: Mapping[str, Any] | None = None,
) -> None:
    """Note in a run's folder what `report_of` needs. `stages`: name of a condition -> stage of its rollouts, in order;
    `policies`: name of a condition -> what the user calls its policy; `pairs` as in `build_report`; `verdicts`: name of
    a condition that was judged elsewhere -> its verdicts."""
    folder.finish_stage(
        CONDITIONS,
        {
            "stages": dict(stages),
            "policies": dict(policies or {}),
            "pairs": None if pairs is None else [list(pair) for pair in pairs],
            "verdicts": dict(verdicts or {}),
            "tools": [tool.model_dump(mode="json") for tool in tools],
        },
    )


def report_of(
    path: Path,
    *further: Path,
    prices: Mapping[str, Any] | None = None,
    cluster_by: str | None = None,
    success_threshold: float | None = None,
    baseline: str | None = None,
) -> Report:
    """The report of a finished run, from its rollouts. What is None stays as the run's own report has it, and so do the
    faults that a judge named.

    `further`: runs of the same conditions, such as those of other seeds. Their rollouts are further tries at the same
    tasks, and the report has each run's success beside that of all. `prices`: by policy, or by condition where the run
    is not an evaluation of several. `baseline`: the condition that all others are compared to. Raises `RunFolderError`
    where a folder holds no finished run, `ConfigError` for names that it does not have, and for runs of different
    conditions.
    """
    runs = {str(one): _finished(one) for one in (path, *further)}
    if len({one.resolve() for one in (path, *further)}) <= len(further):
        raise ConfigError("a run is named twice; give each once")
    folder, noted, earlier = next(iter(runs.values()))
    names = list(noted.stages)
    for place, (_, other, _) in runs.items():
        theirs, ours = [*other.stages, *other.verdicts], [*names, *noted.verdicts]
        if theirs != ours:
            raise ConfigError(
                f"{place} has the conditions {', '.join(theirs)}, and {path} has {', '.join(ours)}; "
                "give runs of the same conditions"
            )
        if other.verdicts != noted.verdicts:
            raise ConfigError(f"{place} and {path} have different verdicts from elsewhere; give runs with the same")
    by_run = {}
    for place, (of_place, other, _) in runs.items():
        read = {stage: _rollouts_of(of_place, stage, place if further else "") for stage in set(other.stages.values())}
        by_run[place] = {name: read[other.stages[name]] for name in names}
    for place, of_run in by_run.items():
        _require_whole(place, runs[place][2], of_run)
    _require_same_tasks(by_run)
    measured = {name: [rollout for found in by_run.values() for rollout in found[name]] for name in names}
    tasks = {rollout.task.id: rollout.task for of_condition in measured.values() for rollout in of_condition}
    outside = outside_rollouts(noted.verdicts, list(tasks.values()))
    rollouts = outside | measured
    policies = {name: noted.policies.get(name, name) for name in measured}
    priced = read_prices(prices, list(dict.fromkeys(policies.values())))
    known = {name: cost.price for name, condition in earlier.conditions.items() if (cost := condition.cost)}
    families = cluster_by or earlier.cluster_by
    threshold = earlier.success_threshold if success_threshold is None else success_threshold
    require_number("success_threshold", threshold)
    faults = {
        name: find_faults(of_condition, threshold=threshold, tools=noted.tools)
        for name, of_condition in measured.items()
    }
    faults |= {name: outside_faults(of_condition, threshold) for name, of_condition in outside.items()}
    for place, (_, _, own) in runs.items():
        for name, found in faults.items():
            before = own.errors[name].faults if name in own.errors else {}
            for rollout, fault in before.items():
                if (now := found.get(one := _id_in(place if further else "", rollout))) is None:
                    continue
                failed = {"judge_error": fault.judge_error}  # or nothing, where no judge was asked
                found[one] = fault if fault.by == "judge" else now.model_copy(update=failed)
    report = build_report(
        rollouts,
        success_threshold=threshold,
        cluster_by=families,
        pairs=_pairs(noted.pairs, list(rollouts), baseline),
        prices=known | {name: priced[policy] for name, policy in policies.items() if policy in priced},
        faults=faults,
    )
    if further:
        each = {place: {name: _share(found[name], threshold) for name in names} for place, found in by_run.items()}
        return report.model_copy(update={"run": earlier.run | {"runs": each}})
    served = earlier.served
    if served is not None and served.condition is not None:
        asked = folder.read_rollouts(SERVED)
        served = summarise_served(asked, served.like, measured[served.like], threshold=threshold, cluster_by=families)
    kept = {"run": earlier.run, "training": earlier.training, "next_steps": earlier.next_steps}
    return report.model_copy(update={**kept, "served": served})


def _require_same_tasks(by_run: Mapping[str, Mapping[str, Sequence[Rollout]]]) -> None:
    """Raises `ConfigError` where two runs were not of the same tasks: their tries would be counted as those of one."""
    tasks = {
        place: {one.task.id: one.task.model_dump(exclude={"tags"}) for many in found.values() for one in many}
        for place, found in by_run.items()
    }
    first, *others = tasks
    for place in others:
        differ = [one for one in {**tasks[first], **tasks[place]} if tasks[first].get(one) != tasks[place].get(one)]
        if differ:
            raise ConfigError(
                f"{first} and {place} were not measured on the same tasks: {differ[0]!r} is in one of them alone, or "
                "differs. Trainings with other seeds hold out other tasks, unless tasks have a `split` tag"
            )


def _require_whole(place: str, report: Report, found: Mapping[str, Sequence[Rollout]]) -> None:
    """Raises `RunFolderError` where rollouts were removed or added since the run's report was made of them."""
    for name, rollouts in found.items():
        if name in report.conditions and (known := report.conditions[name].rollouts) != len(rollouts):
            raise RunFolderError(
                f"{place} has {len(rollouts)} rollouts of {name!r}, and its report was made of {known}: run the same "
                "command again if it was cut off; otherwise `toolbake verify` names what is missing"
            )


def _finished(path: Path) -> tuple[RunFolder, _Noted, Report]:
    """The folder of a finished run, what `note_conditions` noted there, and its report."""
    folder = RunFolder.open_to_read(path)
    noted = folder.stage(CONDITIONS)
    if noted is None or not folder.report_json.is_file():
        raise RunFolderError(
            f"{path} holds no finished evaluation or training; run the same command again to finish it"
        )
    try:
        return folder, _Noted.model_validate(noted), Report.read(folder.report_json)
    except ValidationError as error:
        wrong = wrong_fields(error, CONDITIONS)
        raise RunFolderError(
            f"{path}/stages/{CONDITIONS}.json is damaged ({wrong}); take it from a copy of the run"
        ) from error


def _rollouts_of(folder: RunFolder, stage: str, run: str) -> list[Rollout]:
    """Without their token rows, which no figure needs."""
    return [one.model_copy(update={"rows": [], "id": _id_in(run, one.id)}) for one in folder.iter_rollouts(stage)]


def _share(rollouts: Iterable[Rollout], threshold: float) -> str:
    from .report_text import percent

    rates = success_by_task(rollouts, threshold).values()
    return percent(float(sum(rates)) / len(rates) if rates else None)


def _id_in(run: str, rollout: str) -> str:
    """Runs of the same tasks have rollouts of the same ids."""
    return f"{run}: {rollout}" if run else rollout


def _pairs(
    noted: list[tuple[str, str]] | None, names: Sequence[str], baseline: str | None
) -> list[tuple[str, str]] | None:
    if baseline is None:
        return noted
    if baseline not in names:
        raise ConfigError(f"baseline is {baseline!r}, which the run does not have; it has {', '.join(names)}")
    return [(baseline, name) for name in names if name != baseline]


# ---------------------------------------------------------------------------------------------------------------------
# The facts of a run for its report: seed, tasks, tools, versions, machine.


def run_facts(info: Mapping[str, Any] | None, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Seed, task counts, tools, verifier, versions and machine of a run.

    `info`: the content of `run.json`, None without a folder. `identity`: what the folder was opened with, or would
    have been. Secrets are hidden. The versions are those of the start; those of each resume are in `run.json`.
    """
    known = plain_config(identity)
    tools, verifier = known.get("tools", {}), known.get("verifier", {})
    return {
        "seed": next(iter(seeds_of(known).values()), None),
        "tasks": {
            name: part["count"] for name in ("tasks", "train_tasks", "heldout_tasks") if (part := known.get(name))
        },
        "tools": {"source": ", ".join(tools.get("source", [])), "count": tools.get("count")},
        "verifier": verifier.get("name"),
        "versions": dict(info["versions"]) if info is not None else installed_versions(),
        "machine": machine_facts(),
    }


def call_facts(calls: Iterable[LedgerLine | Rollout]) -> dict[str, Any]:
    """How calls ended, from lines of a ledger or from rollouts; `sent_again`: attempts whose answer was lost."""
    lines = (line for one in calls for line in (one.ledger if isinstance(one, Rollout) else [one]))
    told = (line.event for line in lines if line.event not in ("started", "accepted"))
    counts = Counter("sent_again" if event == "lost" else event for event in told)
    return {"calls": dict(sorted(counts.items()))} if counts else {}


def guard_facts(toolset: Toolset) -> dict[str, Any]:
    """What the policy was not shown, what it knew by another name, what it could destroy for real; what its servers'
    entries have that does nothing, and the faults that were put into their answers."""
    servers = [one for one in toolset.specs if isinstance(one, StdioSpec | HttpSpec | OpenApiSpec)]
    renamed = {tool.name: f"{tool.name_at_source} of {tool.source}" for tool in toolset.tools if tool.name_at_source}
    facts = {
        "tools_left_out": [f"{one.tool} of {one.source}: {one.reason}" for one in toolset.left_out],
        "tools_renamed": renamed,
        "live_destructive_tools": [tool.name for tool in toolset.live_destructive],
        "configuration": [note for one in servers for note in one.notes],
        "injected_faults": {one.label: dict(one.options.faults) for one in servers if one.options.faults},
    }
    return {name: value for name, value in facts.items() if value}


def machine_facts() -> dict[str, Any]:
    """The processor, the cores this process may use, and the GPU where torch has found one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts: dict[str, Any] = {"processor": _processor(), "cores": usable, "system": platform.system()}
    torch = sys.modules.get("torch")  # without it nothing ran on a GPU here
    if torch is not None and torch.cuda.is_available():
        facts["gpu"] = str(torch.cuda.get_device_name())
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
