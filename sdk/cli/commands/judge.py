"""`toolbake judge check`: how far a judge agrees with people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..failing import clean_errors
from ..options import Debug, Threshold, VerifierName, finite

Examples = Annotated[
    Path,
    typer.Argument(
        metavar="EXAMPLES",
        help="A JSONL file of labelled examples: a rollout and a label, or prompt, answer, expected and a label.",
        show_default=False,
    ),
]


def check(
    examples: Examples,
    *,
    verifier: VerifierName,
    min_kappa: Annotated[
        float,
        typer.Option("--min-kappa", min=-1.0, max=1.0, callback=finite, help="End with an error below this agreement."),
    ] = 0.6,
    threshold: Threshold = 1.0,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Examples judged at once.")] = 8,
    debug: Debug = False,
) -> None:
    """Measure how far a judge, or any other verifier, agrees with labelled examples.

    Prints accuracy and Cohen's kappa with their intervals, the confusion and every disagreement. A judge with a cache
    keeps what was measured, and one with min_kappa scores nothing before. Of ranked(...) it says first how far its
    gates agree, then how often the ranking puts a right example above a wrong one of the same task.

    Examples:
      toolbake judge check labels.jsonl --verifier judges.py:polite
    """
    with clean_errors(debug):
        import anyio

        from ...errors import ToolbakeError
        from ...judging import Judge, Ranked, labelled_examples, measure_agreement, measure_ranking
        from ..process import printing_to_stderr, quiet_libraries
        from ..sources import load_verifier

        quiet_libraries()
        judge, labelled = load_verifier(verifier), labelled_examples(examples)

        async def measure() -> list[float | None]:
            try:
                with printing_to_stderr():
                    found = await measure_agreement(judge, labelled, threshold=threshold, concurrency=concurrency)
                typer.echo(str(found))
                if not isinstance(judge, Ranked):
                    return [found.kappa]
                with printing_to_stderr():
                    ranking = await measure_ranking(judge, labelled, concurrency=concurrency)
                typer.echo(f"\nthe ranking among them\n{ranking}")
                return [found.kappa, ranking.kappa]
            finally:
                if isinstance(judge, Judge | Ranked):
                    await judge.close()

        for kappa in anyio.run(measure):
            if kappa is None or kappa < min_kappa:
                shown = "not defined" if kappa is None else f"{kappa:.2f}"
                raise ToolbakeError(f"the agreement (kappa {shown}) is below --min-kappa {min_kappa:g}")
