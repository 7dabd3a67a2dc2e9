"""An MCP server behind a login, and the authorization server that gives its tokens: `app` makes both as one."""

import base64
import json
from typing import Any
from urllib.parse import unquote

import jwt
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse

CLIENT, SECRET = "the-client", "the-secret-of-the-client"


class Guarded:
    """`uses`: a token is refused after so many requests. `is_open`: nobody is asked for one."""

    def __init__(self, *, uses: int, is_open: bool, public_key: str | None) -> None:
        self.uses, self.is_open, self.public_key = uses, is_open, public_key
        self.tokens: dict[str, int] = {}
        self.asked: list[dict[str, str]] = []
        self.inner = self.tools().streamable_http_app()

    def tools(self) -> MCPServer:
        mcp = MCPServer("guarded", log_level="ERROR")

        @mcp.tool()
        def echo(text: str) -> str:
            """Say it again."""
            return text

        @mcp.tool()
        def asked_for() -> str:
            """What tokens were asked for."""
            return json.dumps(
                [{key: one[key] for key in one if key in ("scope", "resource", "how")} for one in self.asked]
            )

        @mcp.tool()
        def newest_token() -> str:
            """A leak."""
            return list(self.tokens)[-1]

        return mcp

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        request = Request(scope, receive)
        origin = f"{request.url.scheme}://{request.url.netloc}"
        path = request.url.path
        if path.startswith("/.well-known/oauth-protected-resource"):
            answer = JSONResponse({"resource": f"{origin}/mcp", "authorization_servers": [origin]})
        elif path.startswith("/.well-known/oauth-authorization-server"):
            answer = JSONResponse(
                {
                    "issuer": origin,
                    "authorization_endpoint": f"{origin}/authorize",
                    "token_endpoint": f"{origin}/token",
                    "response_types_supported": ["code"],
                }
            )
        elif path == "/openapi.json":
            known = request.headers.get("x-tenant") == "north"
            paths = {
                "/greeting": {"get": {"operationId": "greet", "responses": {"200": {"description": "A greeting"}}}}
            }
            document = {"openapi": "3.1.0", "info": {"title": "Greetings", "version": "1"}, "paths": paths}
            answer = JSONResponse(document, 200 if known else 403)
        elif path == "/greeting":
            answer = JSONResponse({"greeting": "hello"})
        elif path == "/token":
            answer = await self.give_token(request, origin)
        elif self.is_open or self.use(request.headers.get("authorization", "").removeprefix("Bearer ")):
            await self.inner(scope, receive, send)
            return
        else:
            metadata = f"{origin}/.well-known/oauth-protected-resource/mcp"
            told = f'Bearer error="invalid_token", resource_metadata="{metadata}"'
            answer = JSONResponse({"error": "invalid_token"}, 401, headers={"WWW-Authenticate": told})
        await answer(scope, receive, send)

    def use(self, token: str) -> bool:
        self.tokens[token] = self.tokens.get(token, 0) - 1 if token in self.tokens else -1
        if self.tokens[token] < 0:
            del self.tokens[token]
            return False
        return True

    async def give_token(self, request: Request, origin: str) -> JSONResponse:
        form = {key: str(value) for key, value in (await request.form()).items()}
        how = who(request, form, origin, self.public_key)
        if how is None or form.get("grant_type") != "client_credentials":
            # What was sent is in the answer, as careless servers have it.
            return JSONResponse({"error": "invalid_client", "sent": form, "headers": dict(request.headers)}, 401)
        self.asked.append({**form, "how": how})
        token = f"token-number-{len(self.asked)}-of-the-server"
        self.tokens[token] = self.uses
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 3600})


def who(request: Request, form: dict[str, str], origin: str, public_key: str | None) -> str | None:
    if "client_assertion" in form:
        claims = jwt.decode(
            form["client_assertion"],
            public_key,
            algorithms=["ES256"],
            audience=[origin, f"{origin}/", f"{origin}/token"],
        )
        return "jwt" if claims["sub"] == CLIENT else None
    if form.get("client_id") == CLIENT and form.get("client_secret") == SECRET:
        return "body"
    given = request.headers.get("authorization", "")
    if given.startswith("Basic "):
        user, _, secret = base64.b64decode(given[6:]).decode().partition(":")
        return "basic" if (unquote(user), unquote(secret)) == (CLIENT, SECRET) else None
    return None


def app(*, uses: int = 10**9, is_open: bool = False, public_key: str | None = None) -> Guarded:
    return Guarded(uses=uses, is_open=is_open, public_key=public_key)
