"""A FastMCP server whose tools convert what they are given, and ask the user as its documentation shows.

python converting.py
"""

from fastmcp import Context, FastMCP

server: FastMCP = FastMCP("converting")


@server.tool
def think(number: int, is_last: bool = False, tags: list[str] | None = None) -> str:
    """What came, in the types that it was converted to."""
    return repr((number, is_last, tags))


@server.tool
async def ask(ctx: Context) -> str:
    """Ask the user for a colour, in the middle of the call."""
    answer = await ctx.elicit("Which colour?", response_type=str)
    return f"{answer.action} {getattr(answer, 'data', None)}"


server.run(show_banner=False)
