"""Results as people read them: on stdout, in plain text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from ..evaluation.report import Report
    from ..records import Rollout
    from ..trainer.pipeline import TrainResult


def show_report(report: Report) -> None:
    """The short form of a report."""
    typer.echo(str(report))


def show_result(result: TrainResult) -> None:
    """The report, where everything is, and what to do next."""
    show_report(result.report)
    typer.echo()
    typer.echo(f"model     {result.model_dir}")
    for label, name in (("report", "report.md"), ("curve", "learning_curve.png"), ("rollouts", "rollouts")):
        if (result.run_dir / name).exists():
            typer.echo(f"{label:<9} {result.run_dir / name}")
    typer.echo()
    typer.echo(f"Serve it: {serve_command(result.model_dir)}")


def serve_command(model_dir: Path) -> str:
    """The command that serves a model folder."""
    return shlex.join(["toolbake", "serve", str(model_dir)])


def show_rollout(rollout: Rollout) -> None:
    """The conversation, how it ended, and the verdict."""
    from ..evaluation.transcript import transcript

    typer.echo(transcript(rollout))
    typer.echo()
    turns = f"{rollout.turns} turn{'' if rollout.turns == 1 else 's'}"
    calls = f"{len(rollout.calls)} call{'' if len(rollout.calls) == 1 else 's'}"
    typer.echo(f"ended: {rollout.stop_reason} after {turns} and {calls}, {rollout.duration_s:.1f} s")
    if rollout.verdict is not None:
        typer.echo(verdict_line(rollout))


def verdict_line(rollout: Rollout) -> str:
    """The verdict in one line: score, components, reasons."""
    from ..evaluation.safe_text import one_line

    verdict = rollout.verdict
    assert verdict is not None
    components = ", ".join(f"{one_line(name)} {value:g}" for name, value in verdict.components.items())
    line = f"verdict: {verdict.score:g}"
    line += f" ({components})" if components else ""
    return line + (f": {one_line(verdict.explanation)}" if verdict.explanation else "")
