"""`toolbake report`: the report of a run again, from what its folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..evaluation_options import Baseline, Prices, prices
from ..failing import clean_errors
from ..options import Debug, finite


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The output_dir of a finished evaluation or training.")],
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", show_default="RUN itself", help="Where report and pictures go."),
    ] = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="Print what went wrong first, with the rollouts that tell most.")
    ] = False,
    baseline: Baseline = None,
    price: Prices = None,
    cluster_by: Annotated[
        str | None,
        typer.Option(
            "--cluster-by",
            metavar="family|TAG",
            show_default="as the run had it",
            help="What makes tasks alike, so that intervals count them as less than one each.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            callback=finite,
            show_default="as the run had it",
            help="A score that reaches this counts as a success.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write the report of a run again, with other prices, another baseline, threshold or clustering.

    Nothing is run: the rollouts in the folder are counted again, and what went wrong in each is found anew by rules.
    Writes report.md, report.json and pictures for slides.

    Examples:
      toolbake report runs/compared --price large=0.4,1.6 --price tuned=0.02,0.02
      toolbake report runs/first --errors
    """
    with clean_errors(debug):
        from ...evaluation.markdown_errors import render_errors
        from ...evaluation.run_reports import report_of
        from ..showing import show_report

        found = report_of(
            run, prices=prices(price), cluster_by=cluster_by, success_threshold=threshold, baseline=baseline
        )
        folder = to or run
        found.draw(folder)
        found.write(folder)
        if errors:
            typer.echo(render_errors(found.errors, most_telling=12) or "Every rollout was a success.")
        else:
            show_report(found)
        typer.echo(f"\nreport    {folder / 'report.md'}")
