"""`toolbake replay`: a cassette as an MCP server."""

from __future__ import annotations

import typer

from ..failing import clean_errors
from ..options import Debug, Endpoint, EndpointKey
from ..recording_options import (
    ErrorsChange,
    NearestAtLeast,
    Reads,
    Recording,
    ReplayPort,
    SimulatingModel,
    Unseen,
    Writes,
)


def replay(
    cassette: Recording,
    *,
    http: ReplayPort = None,
    unseen: Unseen = "error",
    nearest_at_least: NearestAtLeast = 0.6,
    reads: Reads = None,
    writes: Writes = None,
    errors_change: ErrorsChange = False,
    endpoint: Endpoint = None,
    model: SimulatingModel = None,
    api_key_env: EndpointKey = None,
    debug: Debug = False,
) -> None:
    """Serve a recording as an MCP server, for any MCP client, without the real one.

    Calls are matched by tool, arguments and what was changed before. Each session of a client begins where the
    recording began, and toolbake itself opens a world for each rollout. What was never recorded is an error, the answer
    to the nearest recorded call, or made up by a model. At the end stderr tells how many calls were answered how.

    Examples:
      toolbake replay orders.jsonl
      toolbake replay orders.jsonl --http 8765 --unseen nearest --reads 'get_*'
      toolbake replay orders.jsonl --unseen model --endpoint http://127.0.0.1:8000/v1 --model Qwen/Qwen3-4B
    """
    with clean_errors(debug):
        import anyio

        from sandboxes.recorded import RecordedTwin, serve_replay

        from ..recording_options import unseen_policy

        def say(text: str) -> None:
            typer.echo(text, err=True)  # stdout is the protocol's

        twin = RecordedTwin(
            cassette,
            unseen=unseen_policy(unseen, model, endpoint, api_key_env, say=say),
            reads=tuple(reads or ()),
            writes=tuple(writes or ()),
            errors_change=errors_change,
            nearest_at_least=nearest_at_least,
        )

        async def serve() -> None:
            await serve_replay(twin, port=http, say=say)

        anyio.run(serve)
