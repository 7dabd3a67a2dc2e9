"""The result of a training, for people and for programs."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from ..trainer.pipeline import TrainResult


def show_result(result: TrainResult) -> None:
    """The report, where everything is, and what to do next."""
    typer.echo(str(result.report))
    typer.echo()
    for label, path in result.files.items():
        typer.echo(f"{label:<9} {_from_here(path)}")
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
