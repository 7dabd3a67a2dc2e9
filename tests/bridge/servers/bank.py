"""A server over HTTP that writes down what it does, with the call's key: `app` makes it."""

from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations


def app(*, log: str) -> Any:
    server = MCPServer("bank", log_level="ERROR")

    def done(what: str, context: Context) -> str:
        key = (context.request_context.meta or {})["toolbake/idempotency_key"]
        with open(log, "a") as file:  # one write of less than a page: whole also with several processes
            file.write(f"{key} {what}\n")
        return f"{what}: done"

    @server.tool(structured_output=False)
    async def charge(amount: int, context: Context) -> str:
        """Charge an account."""
        return done(f"charge {amount}", context)

    @server.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=True))
    async def set_limit(amount: int, context: Context) -> str:
        """Set the limit of an account."""
        return done(f"limit {amount}", context)

    @server.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True))
    async def balance(context: Context) -> str:
        """Read the balance of an account."""
        return done("balance", context)

    return server.streamable_http_app()
