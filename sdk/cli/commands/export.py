"""`toolbake export`: a tuned model as what other servers take."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from mcp_bridge.extras import require_extra

from ..options import CallParser, Quiet, arg, opt, progress_of


def export(
    model_dir: Annotated[str, arg("RUN|MODEL_DIR", "The folder of a run of train, or a model folder.")],
    to: Annotated[
        str,
        opt(
            "--to KIND",
            "What shall serve the model: vllm, docker, compose, kubernetes (each with vLLM), gguf (llama.cpp) or "
            "ollama.",
        ),
    ],
    output_dir: Annotated[str, opt("--output-dir FOLDER", "A new folder, or one with exports of the same model.")],
    call_parser: CallParser = None,
    check: Annotated[
        bool,
        opt(
            "--check/--no-check",
            "Serve what was written, and ask it what the run asked its model through the endpoint. This takes the "
            "server's start, and the model's memory.",
        ),
    ] = True,
    quiet: Quiet = False,
) -> None:
    """Write a model for another server: vLLM, alone or in containers, llama.cpp or Ollama.

    The folder has the model, what starts the server with the settings with which the model was measured, and a
    README with these settings and with the command that measures the served model. What was written is then served
    here, by vLLM, llama.cpp or the embedded engine, and asked the run's own held-out questions: answers that differ
    from the measured ones are shown with their task. If most do, the command ends with an error.

    Examples:
      toolbake export runs/desk --to vllm --output-dir desk-vllm
      toolbake export runs/desk --to gguf --output-dir desk-gguf
    """
    from ...errors import ConfigError

    require_extra("serve", "toolbake export", ConfigError)
    from ...exporting import check_export, export

    progress = progress_of(quiet)
    progress.say(f"exporting {model_dir}")
    kind = cast(Any, to)
    folder = export(model_dir, kind, output_dir, call_parser=call_parser)
    typer.echo(f"{folder}: see its README.md")
    if not check:
        return
    try:
        found = check_export(folder, model_dir, kind, call_parser=call_parser, progress=progress)
    except ConfigError as error:
        typer.echo(f"not checked: {error}")
        return
    typer.echo(str(found))
    if not found.like_measured:
        raise typer.Exit(1)
