"""An API over HTTP that says what it received, and misbehaves on request. Its port is its first line of output.

GET /status/418?retry_after=3    any status
GET /drop                        closes the connection in the middle of an answer
POST /token                      tokens by client credentials, each good for as many calls as `?uses=` says, for who
                                 names the `?audience=`
GET /escaped                     what was received, with `/` and `+` escaped, as PHP and .NET write their JSON
GET /pages?link=<text>           a list, with this text as the header Link
GET /again                       leads to /again/ with the same query
GET /told                        where something was made, with the key in it
GET /count/<name>                how often a path with this name was asked for
everything else                  what was received, as JSON
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections import Counter
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

import jwt
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse

COUNTS: Counter[str] = Counter()
TOKENS: dict[str, int] = {}
SEEN: set[str] = set()
TEXTS = {
    "unnamed": ("text/csv", "name\nMüller".encode("latin-1")),
    "marked": ("text/csv", "\ufeffname\nMüller".encode()),
    "mixed": ("text/csv", b"\xef\xbb\xbfname\nM\xfcller"),
    "xml": ("application/xml", "<name>Müller</name>".encode("latin-1")),
    "image": ("text/csv", b"\x89PNG\x00\xff"),
}
REQUIRED = ["iss", "sub", "aud", "exp", "jti"]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    request = Request(scope, receive)
    path = scope["raw_path"].decode("ascii")
    if not path.startswith("/count/"):
        COUNTS[path.rpartition("/")[2]] += 1
    if path == "/drop":
        # One byte of a hundred, then the end.
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        raise RuntimeError("the connection is dropped on request")
    response = await answer(path, request)
    await response(scope, receive, send)


async def answer(path: str, request: Request) -> Response:
    query = dict(request.query_params)
    first, _, rest = path.lstrip("/").partition("/")
    if first == "status":
        headers = {"retry-after": query["retry_after"]} if "retry_after" in query else {}
        return JSONResponse({"problem": "as asked"}, int(rest.partition("/")[0]), headers=headers)
    if first == "busy":
        # Takes the second call with this path, and says when it would.
        if COUNTS[rest] % 2:
            return JSONResponse({"problem": "busy"}, 429, headers={"retry-after": query["retry_after"]})
        return JSONResponse({"taken": True})
    if first == "count":
        return JSONResponse({"count": COUNTS[rest]})
    if first == "token":
        return await token(request, int(query.get("uses", "1000")))
    if first == "guarded":
        return guarded(request)
    if first == "loop":
        return RedirectResponse("/loop")
    if path == "/again":
        return RedirectResponse(request.url.replace(path="/again/"), 307)
    if first == "redirect":
        return RedirectResponse(query["to"], int(query.get("status", "302")))
    if first == "slow":
        await asyncio.sleep(60)
    if first == "cookie":
        response = JSONResponse({"cookies": request.cookies})
        response.set_cookie("session", query["session"])
        return response
    if first == "escaped":
        received = bytes((await echoed(path, request)).body)
        return Response(received.replace(b"/", b"\\/").replace(b"+", b"\\u002B"), media_type="application/json")
    if first == "told":
        return Response(status_code=201, headers={"location": f"/orders/7?key={request.headers['x-key']}"})
    fixed = plain_answer(path, query)
    return fixed if fixed is not None else await echoed(path, request)


def plain_answer(path: str, query: dict[str, str]) -> Response | None:
    first = path.split("/")[1]
    if first == "text":
        return PlainTextResponse("plain words")
    if first == "nothing":
        return Response(status_code=204)
    if first == "made":
        return Response(status_code=201, headers={"location": "/orders/7"})
    if first == "binary":
        return Response(b"\x89PNG....", media_type="image/png")
    if first == "lines":
        return Response(b'{"a": 1}\n{"b": 2}\n', media_type="application/x-ndjson")
    if first == "latin":
        return Response('{"a": "é"}'.encode("latin-1"), headers={"content-type": "application/json;charset=ISO-8859-1"})
    if first == "pages":
        return JSONResponse([1, 2], headers={"link": query["link"]} if "link" in query else {})
    if first in TEXTS:
        kind, content = TEXTS[first]
        return Response(content, headers={"content-type": kind})
    if first == "undefined":
        return Response("voilà".encode(), headers={"content-type": "text/plain; charset=undefined"})
    if first == "nojson":
        return Response(b"<html>", media_type="application/json")
    if first == "big":
        return StreamingResponse((b"x" * 1000 for _ in range(int(query["thousands"]))), media_type="text/plain")
    if path == "/document/openapi.json":
        operation = {"get": {"operationId": "it"}}
        return JSONResponse({"openapi": "3.1.0", "info": {}, "paths": {"/x": operation}, "servers": [{"url": "v1"}]})
    if first == "user":
        return JSONResponse({"name": "Ann", "password": "hunter2", "friends": [{"name": "Bo", "password": "x"}]})
    return None


async def token(request: Request, uses: int) -> Response:
    form = dict(parse_qsl((await request.body()).decode()))
    if "public" in request.query_params:
        return signed_for(request, form)
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    pair = (
        base64.b64decode(value).decode()
        if scheme == "Basic"
        else f"{form.get('client_id')}:{form.get('client_secret')}"
    )
    if pair != "shop:s3cret-of-shop" or form.get("grant_type") != "client_credentials":
        return JSONResponse({"error": "invalid_client"}, 401)
    if form.get("audience") != request.query_params.get("audience"):
        return JSONResponse({"error": "invalid_target"}, 400)
    return new_token(form, uses)


def signed_for(request: Request, form: dict[str, str]) -> Response:
    """A token for who signs with the key whose public half the URL has (RFC 7523, section 3)."""
    public, where = request.query_params["public"], str(request.url)
    try:
        claims = jwt.decode(form["client_assertion"], public, ["ES256"], audience=where, options={"require": REQUIRED})
    except jwt.PyJWTError:
        return JSONResponse({"error": "invalid_client"}, 401)
    kind = form["client_assertion_type"].rpartition(":")[2]
    if (claims["iss"], claims["sub"], kind) != ("shop", "shop", "jwt-bearer") or claims["jti"] in SEEN:
        return JSONResponse({"error": "invalid_client"}, 401)
    SEEN.add(claims["jti"])
    return new_token(form, 1)


def new_token(form: dict[str, str], uses: int) -> Response:
    made = f"token-number-{len(TOKENS) + 1}"
    TOKENS[made] = uses
    return JSONResponse({"access_token": made, "token_type": "Bearer", "expires_in": 3600, "scope": form.get("scope")})


def guarded(request: Request) -> Response:
    value = request.headers.get("authorization", "").removeprefix("Bearer ")
    if TOKENS.get(value, 0) <= 0:
        return JSONResponse({"problem": "no such token"}, 401)
    TOKENS[value] -= 1
    return JSONResponse({"given": value})


async def echoed(path: str, request: Request) -> Response:
    body = await request.body()
    kind = request.headers.get("content-type", "")
    received: dict[str, Any] = {
        "method": request.method,
        "path": path,
        "query": request.scope["query_string"].decode("ascii"),
        "headers": [[name.decode(), value.decode("latin-1")] for name, value in request.headers.raw],
        # What the bridge hides can still be compared.
        "digests": {name: sha256(value.encode("latin-1")).hexdigest() for name, value in request.headers.items()},
        "body": body.decode("utf-8", errors="replace"),
        "bytes": base64.b64encode(body).decode(),
    }
    if kind.startswith("multipart/form-data"):
        form = await request.form()
        received["form"] = [
            [
                name,
                value
                if isinstance(value, str)
                else [value.filename, value.content_type, base64.b64encode(await value.read()).decode()],
            ]
            for name, value in form.multi_items()
        ]
        received["body"] = ""
    return JSONResponse(received)


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(json.dumps(listening.getsockname()[1]), flush=True)
    config = uvicorn.Config(app, log_level="critical", lifespan="off")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
