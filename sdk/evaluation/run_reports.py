"""The report of a run, made again from its folder: with other prices, families or threshold, and no rollout run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_bridge.records import Tool

from ..errors import ConfigError, RunFolderError
from ..records import Rollout
from ..traces.run_folder import RunFolder
from .conditions import require_cluster, require_threshold
from .costs import read_prices
from .errors import find_faults
from .planning import Plan
from .report import Report, build_report

CONDITIONS = "conditions"
"""The stage that says which stages are conditions, what they are called, and what tools there were."""


def keep_conditions(folder: RunFolder, plan: Plan, names: Sequence[str], tools: Sequence[Tool]) -> None:
    """Note in an evaluation's folder what `report_of` needs. `names`: of the plan's conditions, in its order."""
    policies = {name: condition.policy for name, condition in zip(names, plan.conditions, strict=True)}
    stages = {name: condition.stage for name, condition in zip(names, plan.conditions, strict=True)}
    note_conditions(folder, stages, tools, policies=policies, pairs=plan.pairs)


def note_conditions(
    folder: RunFolder,
    stages: Mapping[str, str],
    tools: Sequence[Tool],
    *,
    policies: Mapping[str, str] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> None:
    """`stages`: name of a condition -> stage of its rollouts, in order; the other arguments as in `build_report`."""
    folder.finish_stage(
        CONDITIONS,
        {
            "stages": dict(stages),
            "policies": dict(policies or {}),
            "pairs": None if pairs is None else [list(pair) for pair in pairs],
            "tools": [tool.model_dump(mode="json") for tool in tools],
        },
    )


def report_of(
    path: Path,
    *,
    prices: Mapping[str, Any] | None = None,
    cluster_by: str | None = None,
    success_threshold: float | None = None,
    baseline: str | None = None,
) -> Report:
    """The report of a finished run, from its rollouts. What is None stays as the run's own report has it, and so does
    what a judge said of faults.

    `prices`: by policy, or by condition where the run is no evaluation of several. `baseline`: the condition that all
    others are compared with. Raises `RunFolderError` where the folder holds no finished run, `ConfigError` for names
    that it does not have.
    """
    folder = RunFolder.open_to_read(path)
    noted = folder.stage(CONDITIONS)
    if noted is None or not folder.report_json.is_file():
        raise RunFolderError(
            f"{path} holds no finished evaluation or training; run the same command again to finish it"
        )
    earlier = Report.read(folder.report_json)
    rollouts = {name: _of_stage(folder, stage) for name, stage in noted["stages"].items()}
    policies = {name: noted["policies"].get(name, name) for name in rollouts}
    priced = read_prices(prices, list(dict.fromkeys(policies.values())))
    known = {name: cost.price for name, condition in earlier.conditions.items() if (cost := condition.cost)}
    families = cluster_by or earlier.cluster_by
    require_cluster(families, [rollout.task for of_condition in rollouts.values() for rollout in of_condition])
    threshold = earlier.success_threshold if success_threshold is None else success_threshold
    require_threshold(threshold)
    tools = [Tool.model_validate(tool) for tool in noted["tools"]]
    faults = {
        name: find_faults(of_condition, threshold=threshold, tools=tools) for name, of_condition in rollouts.items()
    }
    for name, found in faults.items():
        before = earlier.errors[name].faults if name in earlier.errors else {}
        found |= {rollout: fault for rollout, fault in before.items() if fault.by == "judge" and rollout in found}
    report = build_report(
        rollouts,
        success_threshold=threshold,
        cluster_by=families,
        pairs=_pairs(noted["pairs"], list(rollouts), baseline),
        prices=known | {name: priced[policy] for name, policy in policies.items() if policy in priced},
        faults=faults,
    )
    return report.model_copy(update={"run": earlier.run, "training": earlier.training})


def _pairs(
    noted: Sequence[Sequence[str]] | None, names: Sequence[str], baseline: str | None
) -> list[tuple[str, str]] | None:
    if baseline is None:
        return None if noted is None else [(first, second) for first, second in noted]
    if baseline not in names:
        raise ConfigError(f"baseline is {baseline!r}, which the run does not have; it has {', '.join(names)}")
    return [(baseline, name) for name in names if name != baseline]


def _of_stage(folder: RunFolder, stage: str) -> list[Rollout]:
    return [rollout.model_copy(update={"rows": []}) for rollout in folder.iter_rollouts(stage)]
