"""An MCP server behind a login, and the authorization server that gives its tokens, in one process.

Prints its port. `--uses N`: a token is refused after N requests. `--cert`, `--key`, `--client-ca`: TLS.
"""

import argparse
import base64
import json
import socket
from typing import Any
from urllib.parse import unquote

import jwt
import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse

CLIENT, SECRET = "the-client", "the-secret-of-the-client"

parser = argparse.ArgumentParser()
parser.add_argument("--uses", type=int, default=10**9)
parser.add_argument("--open", action="store_true")
parser.add_argument("--public-key")
for name in ("--cert", "--key", "--client-ca"):
    parser.add_argument(name)
options = parser.parse_args()

tokens: dict[str, int] = {}
asked: list[dict[str, str]] = []
mcp = MCPServer("guarded")


@mcp.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@mcp.tool()
def asked_for() -> str:
    """What tokens were asked for."""
    return json.dumps([{key: one[key] for key in one if key in ("scope", "resource", "how")} for one in asked])


@mcp.tool()
def newest_token() -> str:
    """A leak."""
    return list(tokens)[-1]


inner = mcp.streamable_http_app()


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        await inner(scope, receive, send)
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
    elif path == "/greeting":
        answer = JSONResponse({"greeting": "hello"})
    elif path == "/token":
        answer = await give_token(request, origin)
    elif options.open or use(request.headers.get("authorization", "").removeprefix("Bearer ")):
        await inner(scope, receive, send)
        return
    else:
        metadata = f"{origin}/.well-known/oauth-protected-resource/mcp"
        told = f'Bearer error="invalid_token", resource_metadata="{metadata}"'
        answer = JSONResponse({"error": "invalid_token"}, 401, headers={"WWW-Authenticate": told})
    await answer(scope, receive, send)


def use(token: str) -> bool:
    tokens[token] = tokens.get(token, 0) - 1 if token in tokens else -1
    if tokens[token] < 0:
        del tokens[token]
        return False
    return True


async def give_token(request: Request, origin: str) -> JSONResponse:
    form = {key: str(value) for key, value in (await request.form()).items()}
    how = who(request, form, origin)
    if how is None or form.get("grant_type") != "client_credentials":
        # What was sent is in the answer, as careless servers have it.
        return JSONResponse({"error": "invalid_client", "sent": form, "headers": dict(request.headers)}, 401)
    asked.append({**form, "how": how})
    token = f"token-number-{len(asked)}-of-the-server"
    tokens[token] = options.uses
    return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 3600})


def who(request: Request, form: dict[str, str], origin: str) -> str | None:
    if "client_assertion" in form:
        with open(options.public_key) as file:
            public = file.read()
        claims = jwt.decode(
            form["client_assertion"], public, algorithms=["ES256"], audience=[origin, f"{origin}/", f"{origin}/token"]
        )
        return "jwt" if claims["sub"] == CLIENT else None
    if form.get("client_id") == CLIENT and form.get("client_secret") == SECRET:
        return "body"
    given = request.headers.get("authorization", "")
    if given.startswith("Basic "):
        user, _, secret = base64.b64decode(given[6:]).decode().partition(":")
        return "basic" if (unquote(user), unquote(secret)) == (CLIENT, SECRET) else None
    return None


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
tls: dict[str, Any] = {"ssl_certfile": options.cert, "ssl_keyfile": options.key} if options.cert else {}
if options.client_ca:
    tls |= {"ssl_ca_certs": options.client_ca, "ssl_cert_reqs": 2}
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error", **tls)).run(sockets=[listener])
