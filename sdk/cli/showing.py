"""Results as people read them: on stdout, in plain text."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from ..evaluation.report import Report
    from ..records import Rollout, Verdict
    from ..trainer.pipeline import TrainResult


def show_report(report: Report) -> None:
    """The short form of a report."""
    typer.echo(str(report))


def show_result(result: TrainResult) -> None:
    """The report, where everything is, and what to do next."""
    show_report(result.report)
    typer.echo()
    typer.echo(f"model     {_from_here(result.model_dir)}")
    for label, name in (("report", "report.md"), ("curve", "learning_curve.png"), ("rollouts", "rollouts")):
        if (result.run_dir / name).exists():
            typer.echo(f"{label:<9} {_from_here(result.run_dir / name)}")
    typer.echo()
    typer.echo(f"Serve it: {shlex.join(['toolbake', 'serve', str(_from_here(result.model_dir))])}")


def result_as_json(result: TrainResult) -> str:
    """For programs: where the model and the run are, and the report."""
    return json.dumps(
        {
            "model_dir": str(result.model_dir),
            "run_dir": str(result.run_dir),
            "report": result.report.model_dump(mode="json"),
        },
        indent=2,
        ensure_ascii=False,
    )


def _from_here(path: Path) -> Path:
    """The path as one would type it in the current folder."""
    here = path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def show_rollout(rollout: Rollout) -> None:
    """The conversation, how it ended, and the verdict."""
    from ..evaluation.transcript import transcript
    from ..policies.tool_prompt import PROMPT_NAMES

    typer.echo(transcript(rollout))
    typer.echo()
    turns = f"{rollout.turns} turn{'' if rollout.turns == 1 else 's'}"
    calls = f"{len(rollout.calls)} call{'' if len(rollout.calls) == 1 else 's'}"
    if rollout.tool_prompt != "full":
        typer.echo(f"tools in the prompt: {PROMPT_NAMES[rollout.tool_prompt]}")
    typer.echo(f"ended: {rollout.stop_reason} after {turns} and {calls}, {rollout.duration_s:.1f} s")
    if rollout.verdict is not None:
        typer.echo(verdict_text(rollout.verdict))


def verdict_text(verdict: Verdict) -> str:
    """Score and components in one line, the reasons under it."""
    from ..evaluation.safe_text import one_line, visible

    components = ", ".join(f"{one_line(name)} {value:g}" for name, value in verdict.components.items())
    lines = [f"verdict: {verdict.score:g}" + (f" ({components})" if components else "")]
    lines += [f"         {line}" for line in visible(verdict.explanation).splitlines()]
    return "\n".join(lines)
