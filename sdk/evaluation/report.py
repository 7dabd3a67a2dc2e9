"""The report of a run: what the model could do before and after, with the uncertainty, and why to believe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from ..errors import RunFolderError
from ..records import Rollout
from ..traces.atomic_files import make_folder, read_json, write_bytes, write_json
from ..traces.identity import without_secrets
from .comparisons import PairedComparison, compare_conditions
from .conditions import ConditionSummary, summarise_condition
from .examples import Example, choose_examples
from .training_summary import TrainingSummary


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
    """Each condition with the next, then the first with the last."""
    examples: list[Example] = Field(default_factory=list)
    training: TrainingSummary | None = None

    def markdown(self, *, curve: str | None = None) -> str:
        """The whole report. `curve`: the path of the learning curve's picture, relative to the report."""
        from .markdown import render_report

        return render_report(self, curve=curve)

    def __str__(self) -> str:
        from .plain import render_short

        return render_short(self)

    def write(self, folder: Path, *, curve: str = "learning_curve.png") -> tuple[Path, Path]:
        """Write `report.md` and `report.json`; the picture is shown where the folder has it.

        Returns both paths. Raises `RunFolderError` where they cannot be written.
        """
        folder = Path(folder)
        make_folder(folder)
        shown = curve if (folder / curve).is_file() else None
        markdown, data = folder / "report.md", folder / "report.json"
        write_bytes(markdown, self.markdown(curve=shown).encode())
        write_json(data, self)
        return markdown, data

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
) -> Report:
    """Compare conditions, given in the order they happened, each with its rollouts on the same held-out tasks.

    A rollout succeeds when its score reaches `success_threshold`. Unscored rollouts take part in no average; they
    are counted by what broke.

    Raises `ValueError` without conditions, or where one has a rollout twice.
    """
    if not conditions:
        raise ValueError("there are no conditions to report; give at least one, such as {'untrained': rollouts}")
    return Report(
        run=without_secrets(dict(run or {})),
        success_threshold=success_threshold,
        conditions={n: summarise_condition(rs, threshold=success_threshold) for n, rs in conditions.items()},
        comparisons=compare_conditions(conditions, threshold=success_threshold),
        examples=choose_examples(conditions, threshold=success_threshold),
        training=training,
    )
