"""`toolbake tools`: every tool as the model will see it, what it costs, and what the model will not see."""

from __future__ import annotations

from typing import Annotated

import typer

from ..failing import clean_errors
from ..options import Command, ConnectTimeout, Debug, HandlersName, LocalModel, Tools

AsJson = Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object, for programs.")]


def tools(
    tools: Tools = None,
    *,
    command: Command = None,
    model: LocalModel = None,
    handlers: HandlersName = None,
    connect_timeout: ConnectTimeout = 20.0,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List tools as a model will see them, with what each costs in tokens.

    Each tool is shown with its arguments, its description and what its server says of its behaviour. Tools are part
    of every prompt: the cost is counted with the model's own tokenizer and chat template, so that you see which
    descriptions are worth shortening. A table at the end says where each tool is from, which ones training refuses,
    and what the options of the servers leave out.

    Examples:
      toolbake tools mcp.json
      toolbake tools mcp.json --json
      toolbake tools --command 'python server.py' --model Qwen/Qwen3-4B
    """
    with clean_errors(debug):
        from mcp_bridge.extras import missing_modules

        from ...progress import Console
        from ..quiet import quiet_libraries
        from ..sources import load_handlers, tool_source
        from ..token_costs import count_tokens, open_renderer
        from ..tool_listing import as_json, as_table, listing_of
        from ..tool_texts import describe_tool

        quiet_libraries()
        listing = listing_of(tool_source(tools, command), load_handlers(handlers), connect_timeout)
        name = model or "the embedded SmolLM2-135M-Instruct"
        if missing_modules("serve"):
            costs = None
            Console().say("tokens are not counted: that needs toolbake[serve] (pip install 'toolbake[serve]')")
        else:
            Console().say(f"counting tokens for {name}")
            costs = count_tokens(open_renderer(model), listing.tools)
        if json:
            typer.echo(as_json(listing, costs, model=name.removeprefix("the embedded ")))
            return
        for tool in listing.tools:
            typer.echo(describe_tool(tool, costs.by_tool[tool.name] if costs else None))
            typer.echo()
        typer.echo(as_table(listing, costs))
        typer.echo()
        count = len(listing.tools)
        counted = f", {costs.total} tokens of every prompt" if costs else ""
        around = f", {costs.around} of them for the words around the tools" if costs and costs.around > 0 else ""
        typer.echo(f"{count} tool{'' if count == 1 else 's'}{counted}{around}")
