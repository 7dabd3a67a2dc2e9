"""A FastMCP server whose tools convert what they are given.

python converting.py
"""

from fastmcp import FastMCP

server: FastMCP = FastMCP("converting")


@server.tool
def think(number: int, is_last: bool = False, tags: list[str] | None = None) -> str:
    """What came, in the types that it was converted to."""
    return repr((number, is_last, tags))


server.run(show_banner=False)
