"""`toolbake export`: a tuned model as what other servers take."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from ..failing import clean_errors
from ..options import CallParser, Debug, Quiet, progress_of


def export(
    model_dir: Annotated[
        str, typer.Argument(metavar="RUN|MODEL_DIR", help="The folder of a run of train, or a model folder.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="KIND",
            help="What shall serve the model: vllm, docker, compose, kubernetes (each with vLLM), gguf (llama.cpp) or "
            "ollama.",
        ),
    ],
    output_dir: Annotated[
        str, typer.Option("--output-dir", metavar="FOLDER", help="A new folder, or one with exports of the same model.")
    ],
    call_parser: CallParser = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a model for another server: vLLM, alone or in containers, llama.cpp or Ollama.

    The folder has the model, what starts the server with the settings with which the model was measured, and a
    README with these settings and with the command that measures the served model.

    Examples:
      toolbake export runs/desk --to vllm --output-dir desk-vllm
      toolbake export runs/desk --to gguf --output-dir desk-gguf
    """
    with clean_errors(debug):
        from ...exporting import export
        from ..process import quiet_libraries

        quiet_libraries()
        progress_of(quiet).say(f"exporting {model_dir}")
        folder = export(model_dir, cast(Any, to), output_dir, call_parser=call_parser)
        typer.echo(f"{folder}: see its README.md")
