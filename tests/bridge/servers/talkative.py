"""A server that asks back, reports progress, notes what is cancelled, and changes its tools. On the installed SDK.

Over stdio: `python talkative.py [--notes FILE]`. Over HTTP: `app` makes it.
"""

import argparse
import os
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, Elicit, ListRoots, MCPServer, Resolve, Sample
from mcp_types import CreateMessageResult, ListRootsResult, SamplingMessage, TextContent
from pydantic import BaseModel


class Colour(BaseModel):
    colour: str


def ask_colour(thing: str) -> Elicit[Colour]:
    return Elicit(f"Which colour shall the {thing} have?", Colour)


def ask_model() -> Sample:
    words = SamplingMessage(role="user", content=TextContent(text="Say a word."))
    return Sample([words], max_tokens=5, system_prompt="Be short.")


def ask_roots() -> ListRoots:
    return ListRoots()


def make(*, notes: str | None = None, more: str | None = None) -> MCPServer:
    """`more`: the name of one more tool. `notes`: a FIFO to which it writes a line when a call of `wait` begins and
    when it is cancelled."""
    server = MCPServer("talkative", version="7", log_level="ERROR")
    add_asking_tools(server)
    add_lasting_tools(server, notes)
    add_changing_tools(server)
    if more:
        server.add_tool(lambda: "new", name=more)
    return server


def add_asking_tools(server: MCPServer) -> None:
    @server.tool()
    async def paint(thing: str, answer: Annotated[Colour, Resolve(ask_colour)]) -> str:
        """Paint a thing, in a colour that the user is asked for."""
        return f"The {thing} is {answer.colour}."

    @server.tool()
    async def think(answer: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
        """Ask the client's model."""
        return f"It said {answer.content.text}."

    @server.tool()
    async def folders(answer: Annotated[ListRootsResult, Resolve(ask_roots)]) -> str:
        """The client's folders."""
        return " ".join(str(root.uri) for root in answer.roots) or "none"

    @server.tool()
    async def count(ctx: Context, to: int) -> str:
        """Count, and report each step."""
        for number in range(1, to + 1):
            await ctx.report_progress(number, to, f"at {number}")
        return "done"

    @server.tool()
    async def tell(ctx: Context, text: str) -> str:
        """Write a line to the log."""
        await ctx.warning(text)
        return "told"


def add_lasting_tools(server: MCPServer, notes: str | None) -> None:
    def note(line: str) -> None:
        if notes:
            fifo = os.open(notes, os.O_WRONLY)
            os.write(fifo, f"{line}\n".encode())
            os.close(fifo)

    @server.tool()
    async def wait() -> str:
        """Never ends by itself."""
        note("waiting")
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            note("cancelled")
            raise
        return "never"


def add_changing_tools(server: MCPServer) -> None:
    @server.tool()
    async def add_tool(ctx: Context, name: str) -> str:
        """Offer one more tool."""
        server.add_tool(lambda: "new", name=name, description="Another one.")
        await say_changed(ctx)
        return "added"

    @server.tool()
    async def remove_tool(ctx: Context, name: str, silently: bool = False) -> str:
        """Offer one tool less."""
        server.remove_tool(name)
        if not silently:
            await say_changed(ctx)
        return "removed"


async def say_changed(ctx: Context) -> None:
    await ctx.notify_tools_changed()
    if ctx.request_context.protocol_version < "2026":
        await ctx.request_context.session.send_tool_list_changed()


def app(**options: Any) -> Any:
    return make(**options).streamable_http_app()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes")
    make(notes=parser.parse_args().notes).run()
