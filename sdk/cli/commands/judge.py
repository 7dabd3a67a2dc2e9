"""`toolbake judge`: how far a judge agrees with people, and a model's answers to the rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import ConfigError, ToolbakeError
from ..options import Endpoint, EndpointKey, Model, Quiet, Threshold, VerifierName, arg, model_opt, opt

if TYPE_CHECKING:
    from ...judging import LabelledRows

Examples = Annotated[
    Path,
    arg(
        "EXAMPLES",
        "A JSONL file of labelled examples: a rollout and a label, or prompt, answer, expected and a label.",
        default=False,
    ),
]


def check(
    examples: Examples,
    *,
    verifier: VerifierName,
    min_kappa: Annotated[float, opt("--min-kappa", "End with an error below this agreement.", min=-1.0, max=1.0)] = 0.6,
    threshold: Threshold = 1.0,
    concurrency: Annotated[int, opt("--concurrency", "Examples judged at once.", min=1)] = 8,
) -> None:
    """Measure how far a judge, or any other verifier, agrees with labelled examples.

    Prints accuracy and Cohen's kappa with their intervals, the confusion and every disagreement. A judge with a cache
    keeps what was measured, and one with min_kappa scores nothing before. Of ranked(...) it says first how far its
    gates agree, then how often the ranking puts a right example above a wrong one of the same task.

    Examples:
      toolbake judge check labels.jsonl --verifier judges.py:polite
    """
    import anyio

    from ...judging import (
        Agreement,
        Judge,
        Ranked,
        RankingAgreement,
        labelled_examples,
        measure_agreement,
        measure_ranking,
    )
    from ...process import printing_to_stderr
    from ..sources import load_verifier

    judge, labelled = load_verifier(verifier), labelled_examples(examples)

    async def measure() -> tuple[Agreement, RankingAgreement | None]:
        try:
            with printing_to_stderr():
                found = await measure_agreement(judge, labelled, threshold=threshold, concurrency=concurrency)
            typer.echo(str(found))
            if not found.examples:
                why = next(iter(found.unscored.values()))
                raise ToolbakeError(f"the verifier gave no verdict on any of the {len(labelled)} examples: {why}")
            if not isinstance(judge, Ranked):
                return found, None
            with printing_to_stderr():
                ranking = await measure_ranking(judge, labelled, concurrency=concurrency)
            typer.echo(f"\nthe ranking among them\n{ranking}")
            return found, ranking
        finally:
            if isinstance(judge, Judge | Ranked):
                await judge.close()

    found, ranking = anyio.run(measure)
    found.require(min_kappa, option="--min-kappa")
    if ranking is not None:
        ranking.require(min_kappa, option="--min-kappa")


Rows = Annotated[Path, arg("ROWS", "A .jsonl file of objects.", default=False)]
Schema = Annotated[
    str,
    opt("--schema FILE|JSON", 'The JSON Schema of an answer, as a file or as it is: \'{"enum": ["good", "bad"]}\'.'),
]


def label(
    rows: Rows,
    *,
    instructions: Annotated[str, opt("--instructions TEXT", "What is asked about each row.")],
    schema: Schema,
    to: Annotated[Path, opt("--to FILE", "The new file: each row with its answer.")],
    name: Annotated[str, opt("--name FIELD", "The field of the answer.")] = "label",
    model: Model = None,
    endpoint: Endpoint = None,
    api_key_env: EndpointKey = None,
    max_calls: Annotated[
        int | None, opt("--max-calls", "The most questions to the model.", default="no limit", min=1)
    ] = None,
    concurrency: Annotated[int, model_opt("--concurrency", "Questions asked at once.", min=1)] = 16,
    quiet: Quiet = False,
) -> None:
    """Ask a model about each row of a file, and write the rows with its answers.

    Every answer is checked by the schema, and kept as it comes: after Ctrl-C the same command goes on where it was.
    Rows without an answer that fits are named and left out, with exit code 1; the same command asks for them again.

    Examples:
      toolbake judge label answers.jsonl --instructions "Is the answer polite?" --schema '{"enum": ["good", "bad"]}' \\
        --to labelled.jsonl --endpoint https://host/v1 --model large-1
    """
    import anyio

    from ...judging import Budget, label_rows
    from ...process import printing_to_stderr
    from ..options import progress_of
    from ..sources import model_source

    progress = progress_of(quiet)
    source = model_source(model, endpoint, api_key_env, say=progress.say)
    form = _schema(schema)

    async def ask() -> LabelledRows:
        return await label_rows(
            rows,
            to,
            instructions=instructions,
            schema=form,
            model=source,
            name=name,
            budget=Budget(calls=max_calls),
            concurrency=concurrency,
            progress=progress,
        )

    with printing_to_stderr():
        found = anyio.run(ask)
    typer.echo(str(found))
    if found.failed:
        raise ToolbakeError(
            f"rows without an answer: {len(found.failed)}; they are left out, and the same command asks again"
        )


def _schema(given: str) -> Any:
    from ...tasks.task_files import strict_json

    if given.lstrip().startswith(("{", "true", "false")):
        return strict_json(given, "--schema")
    try:
        return strict_json(Path(given).read_text(encoding="utf-8"), given)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--schema: {given} cannot be read: {error}") from error
