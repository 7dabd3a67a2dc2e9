"""The report of a run: what the model could do before and after, with the uncertainty, and why to believe it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from mcp_bridge.extras import missing_modules
from mcp_bridge.records import Tool

from ..errors import RunFolderError
from ..records import Rollout
from ..traces.atomic_files import make_folder, read_json, write_bytes, write_json
from ..traces.identity import without_secrets
from .comparisons import PairedComparison, compare_conditions, in_order
from .conditions import FAMILY, ConditionSummary, best_condition, summarise_condition
from .costs import Price
from .errors import ConditionErrors, Embedder, Fault, find_faults, group_errors
from .example_rollouts import Example, choose_examples
from .training_summary import TrainingSummary

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

    @property
    def best(self) -> str:
        """The condition with the most success; of equals that with the higher mean score, then the first.

        Raises `ValueError` where no condition has a scored rollout.
        """
        return best_condition(self.conditions)

    def markdown(self, *, curve: str | None = None, pictures: Mapping[str, str] | None = None) -> str:
        """The whole report. `curve`: the path of the learning curve's picture, relative to the report; `pictures`:
        further paths, each with what it shows."""
        from .markdown import render_report

        return render_report(self, curve=curve, pictures=pictures)

    def __str__(self) -> str:
        from .plain import render_short

        return render_short(self)

    def write(self, folder: Path, *, curve: str = "learning_curve.png") -> tuple[Path, Path]:
        """Write `report.md` and `report.json`; pictures are shown where the folder has them (see `draw`).

        Returns both paths. Raises `RunFolderError` where they cannot be written.
        """
        from .comparison_plots import PICTURES

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
        from .comparison_plots import draw_comparison

        if missing_modules("plots"):
            log.warning("the report has no pictures: they need toolbake[plots] (pip install 'toolbake[plots]')")
            return []

        make_folder(Path(folder))
        return draw_comparison(self, Path(folder))

    @classmethod
    def read(cls, path: Path) -> Report:
        """A report from its `report.json`. Raises `RunFolderError` where it is none."""
        try:
            return cls.model_validate(read_json(Path(path)))
        except ValidationError as error:
            raise RunFolderError(f"{path} is no report: {error}; write it again with Report.write") from error


def build_report(
    conditions: Mapping[str, Sequence[Rollout]],
    *,
    run: Mapping[str, Any] | None = None,
    training: TrainingSummary | None = None,
    success_threshold: float = 1.0,
    cluster_by: str = FAMILY,
    pairs: Sequence[tuple[str, str]] | None = None,
    prices: Mapping[str, Price] | None = None,
    tools: Sequence[Tool] = (),
    faults: Mapping[str, Mapping[str, Fault]] | None = None,
    embed: Embedder | None = None,
) -> Report:
    """Compare conditions, given in the order they happened, each with its rollouts on the same held-out tasks.

    A rollout succeeds when its score reaches `success_threshold`. Unscored rollouts take part in no average; they
    are counted by what broke.

    `cluster_by`: `family`, or the name of a tag: intervals count its values, not tasks. `pairs`: names of conditions to
    compare, (first, second); as in training where None. `prices`: by condition. `faults`: by condition and rollout, as
    `sdk.evaluation.errors` finds and judges them; found by rules where None, better so with the `tools`. `embed`:
    groups faults that read alike.

    Raises `ValueError` without conditions, or where one has a rollout twice.
    """
    if not conditions:
        raise ValueError("there are no conditions to report; give at least one, such as {'untrained': rollouts}")
    compared = in_order(list(conditions)) if pairs is None else list(pairs)
    found = {
        name: find_faults(rollouts, threshold=success_threshold, tools=tools) if faults is None else faults[name]
        for name, rollouts in conditions.items()
    }
    return Report(
        run=without_secrets(dict(run or {})),
        success_threshold=success_threshold,
        cluster_by=cluster_by,
        conditions={
            name: summarise_condition(
                rollouts, threshold=success_threshold, cluster_by=cluster_by, price=(prices or {}).get(name)
            )
            for name, rollouts in conditions.items()
        },
        comparisons=compare_conditions(conditions, threshold=success_threshold, cluster_by=cluster_by, pairs=compared),
        errors=_errors(conditions, found, compared, success_threshold, embed),
        examples=choose_examples(conditions, threshold=success_threshold),
        training=training,
    )


def _errors(
    conditions: Mapping[str, Sequence[Rollout]],
    faults: Mapping[str, Mapping[str, Fault]],
    compared: Sequence[tuple[str, str]],
    threshold: float,
    embed: Embedder | None,
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
            embed=embed,
        )
        for name, rollouts in conditions.items()
    }
