"""`toolbake serve`: a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

import typer

from ..failing import clean_errors
from ..options import ClientsKey, Debug, Host, finite

ShownTools = Annotated[
    str | None,
    typer.Option(
        "--tool-prompt",
        metavar="full|names|none",
        show_default="as the model was trained",
        help="How much of the tools that clients send the model's prompt shows: full schemas, names only, or "
        "nothing. Tools that it was not trained on need full.",
    ),
]


Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0.0,
        max=2.0,
        callback=finite,
        show_default="as the model was measured, else 1.0",
        help="The temperature where a request sets none; 0 takes the most likely token.",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--default-max-tokens",
        min=1,
        show_default="as the model was measured, else 1024",
        help="The most new tokens of an answer where a request sets no limit.",
    ),
]


def serve(
    model_dir: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|MODEL_DIR",
            show_default="the embedded SmolLM2-135M-Instruct",
            help="The folder of a run of train, a model folder, or a name on the hub.",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes any free one.")] = 8000,
    api_key_env: ClientsKey = None,
    tool_prompt: ShownTools = None,
    temperature: Temperature = None,
    default_max_tokens: MaxTokens = None,
    debug: Debug = False,
) -> None:
    """Serve a model over HTTP, for anything that speaks OpenAI's chat API.

    It offers /v1/chat/completions with tools and streaming, /v1/models and /health. Your application keeps calling
    the tools; the model decides which. Ctrl-C lets requests in flight finish, then ends it.

    Examples:
      toolbake serve runs/desk
      DESK_KEY=... toolbake serve runs/desk --host 0.0.0.0 --port 8080 --api-key-env DESK_KEY
    """
    with clean_errors(debug):
        from ...progress import Console
        from ...serving import serve
        from ..process import quiet_libraries
        from ..sources import key_from

        quiet_libraries()
        key = key_from(api_key_env) if api_key_env is not None else None
        progress = Console()
        progress.say(f"loading {model_dir or 'the embedded SmolLM2-135M-Instruct'}")
        server = serve(
            model_dir,
            host=host,
            port=port,
            api_key=key,
            tool_prompt=cast(Any, tool_prompt),
            temperature=temperature,
            default_max_tokens=default_max_tokens,
        )
        with server:
            used = server.defaults
            typer.echo(f"{server.model_name} is served at {server.url}/v1 (Ctrl-C ends it). Try it:\n")
            typer.echo(curl_example(server.url, server.model_name, api_key_env if key else None, used.temperature))
            typer.echo(
                f"\nA request that does not set them gets temperature {used.temperature:g}, top_p {used.top_p:g} and "
                f"at most {used.max_tokens} new tokens."
            )
            server.wait()
        progress.say("stopped")


def curl_example(url: str, model_name: str, key_variable: str | None, temperature: float) -> str:
    """A request to copy, with the temperature that it would get without one. The key stays in its variable."""
    request = {
        "model": model_name,
        "messages": [{"role": "user", "content": "Hello!"}],
        "temperature": temperature,
    }
    body = json.dumps(request).replace("'", "'\\''")
    key = f' \\\n  -H "Authorization: Bearer ${key_variable}"' if key_variable else ""
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\\n  -d '{body}'"
