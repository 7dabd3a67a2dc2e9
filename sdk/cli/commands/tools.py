"""`toolbake tools`: every tool as the model will see it, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from ..failing import clean_errors
from ..options import Command, Debug, LocalModel, Tools

if TYPE_CHECKING:
    from mcp_bridge.records import Tool


def tools(tools: Tools = None, *, command: Command = None, model: LocalModel = None, debug: Debug = False) -> None:
    """List tools as a model will see them, with what each costs in tokens.

    Each tool is shown with its arguments, its description and what its server says of its behaviour. Tools are part
    of every prompt: the cost is counted with the model's own tokenizer and chat template, so that you see which
    descriptions are worth shortening.

    Examples:
      toolbake tools mcp.json
      toolbake tools --command 'python server.py' --model Qwen/Qwen3-4B
    """
    with clean_errors(debug):
        from ...progress import Console
        from ..quiet import quiet_libraries
        from ..sources import tool_source
        from ..token_costs import count_tokens, open_renderer
        from ..tool_texts import describe_tool

        quiet_libraries()
        found = _listed(tool_source(tools, command))
        Console().say(f"counting tokens for {model or 'the embedded SmolLM2-135M-Instruct'}")
        costs = count_tokens(open_renderer(model), found)
        for tool in found:
            typer.echo(describe_tool(tool, costs.by_tool[tool.name]))
            typer.echo()
        around = f", {costs.around} of them for the words around the tools" if costs.around > 0 else ""
        typer.echo(f"{len(found)} tool{'' if len(found) == 1 else 's'}, {costs.total} tokens of every prompt{around}")


def _listed(source: Any) -> list[Tool]:
    import anyio

    from mcp_bridge import connect

    async def ask() -> list[Tool]:
        async with connect(source) as toolset:
            return toolset.tools

    return anyio.run(ask)
