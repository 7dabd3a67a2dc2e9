"""MCP servers of FastMCP's that users log in with, each as one with the authorization server that gives its tokens.

Starts one for each line of stdin, a KIND, and answers with its port. KIND is what is wrong with it: `issuer` (the
browser comes back from another issuer), `rejecting` (refresh tokens are refused) or empty. With `http://...` no client
can register itself: there is one, `desktop`, and its browser comes back to that address alone.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from typing import Any

import uvicorn
from fastmcp import FastMCP
from fastmcp.server.auth.auth import ClientRegistrationOptions
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from mcp.server.auth.provider import TokenError
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl


class Authority(InMemoryOAuthProvider):
    """Counts what it was asked."""

    def __init__(self, origin: str, kind: str) -> None:
        is_closed = kind.startswith("http")
        registering = ClientRegistrationOptions(enabled=not is_closed)
        super().__init__(base_url=origin, client_registration_options=registering)
        if is_closed:
            known = OAuthClientInformationFull(
                client_id="desktop", redirect_uris=[AnyUrl(kind)], token_endpoint_auth_method="none", scope=""
            )
            self.clients["desktop"] = known
        self.kind = kind
        self.refreshed = 0

    async def authorize(self, client: Any, params: Any) -> str:
        redirect = await super().authorize(client, params)
        return f"{redirect}&iss=https://other.example" if self.kind == "issuer" else redirect

    async def exchange_refresh_token(self, client: Any, refresh_token: Any, scopes: Any) -> Any:
        if self.kind == "rejecting":
            raise TokenError("invalid_grant", "ended")
        self.refreshed += 1
        return await super().exchange_refresh_token(client, refresh_token, scopes)


def app(origin: str, kind: str) -> Any:
    authority = Authority(origin, kind)
    server = FastMCP("accounts", auth=authority)

    @server.tool
    def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool
    def end_tokens() -> str:
        """From the next request on, no access token is valid."""
        authority.access_tokens.clear()
        return "ended"

    @server.tool
    def asked() -> str:
        """How many clients registered and how many tokens were refreshed."""
        return json.dumps({"clients": len(authority.clients), "refreshed": authority.refreshed})

    @server.tool
    def leak() -> str:
        """The tokens that are valid."""
        return " ".join([*authority.access_tokens, *authority.refresh_tokens])

    return server.http_app()


def start(kind: str) -> int:
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    port: int = listening.getsockname()[1]
    config = uvicorn.Config(app(f"http://127.0.0.1:{port}", kind), log_level="critical", lifespan="on")
    threading.Thread(target=uvicorn.Server(config).run, kwargs={"sockets": [listening]}, daemon=True).start()
    return port


if __name__ == "__main__":
    for line in sys.stdin:
        print(start(line.strip()), flush=True)
