"""Tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4), asked for with a secret or with an assertion that a
private key signs (RFC 7523, section 2.2): fetched once, kept, renewed."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any
from urllib.parse import quote_plus

import anyio
import httpx

from ..access.redaction import public_url
from ..errors import ToolFailure
from .credentials import ClientCredentials

_SPARE_S = 30.0
"""A token is renewed this long before it expires, so that it does not on its way."""

_FETCH_TIMEOUT_S = 20.0
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_S = 300


class Tokens(httpx.Auth):
    """Adds a token to every request. A request that is answered with 401 is sent once more with a new one: the server
    did not take it. `learned`: is told each token, so that it is never shown."""

    requires_response_body = False

    def __init__(self, client: ClientCredentials, scopes: Sequence[str], learned: Callable[[str], object]) -> None:
        self._client = client
        self._scopes = scopes
        self._learned = learned
        self._lock = anyio.Lock()
        self._token = ""
        self._ends = 0.0

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        async with self._lock:
            if time.monotonic() >= self._ends:
                self._keep(await _read((yield self._token_request())))
            token = self._token
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code != 401:
            return
        async with self._lock:
            # Another call may have renewed it meanwhile.
            if self._token == token:
                self._keep(await _read((yield self._token_request())))
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def _token_request(self) -> httpx.Request:
        client = self._client
        form = {"grant_type": "client_credentials"}
        if self._scopes:
            form["scope"] = " ".join(self._scopes)
        headers = {"Accept": "application/json"}
        if client.client_auth == "basic":
            pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            self._learned(headers["Authorization"].removeprefix("Basic "))
        elif client.client_auth == "private_key_jwt":
            form |= {"client_id": client.client_id, **self._assertion()}
        else:
            form |= {"client_id": client.client_id, "client_secret": client.client_secret}
        timeouts = {"timeout": httpx.Timeout(_FETCH_TIMEOUT_S).as_dict()}
        return httpx.Request("POST", client.token_url, data=form, headers=headers, extensions=timeouts)

    def _assertion(self) -> dict[str, str]:
        import jwt

        client, now = self._client, int(time.time())
        claims: dict[str, Any] = {
            "iss": client.client_id,
            "sub": client.client_id,
            "aud": client.token_url,
            "jti": str(uuid.uuid4()),
        }
        claims |= {"iat": now, "exp": now + _ASSERTION_S}
        signed = jwt.encode(claims, client.client_secret, algorithm=client.algorithm)
        self._learned(signed)
        return {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": signed}

    def _keep(self, answer: tuple[int, Any]) -> None:
        status, value = answer
        where = public_url(self._client.token_url)
        token = value.get("access_token") if isinstance(value, dict) else None
        if status != 200 or not isinstance(token, str) or not token.isascii() or not token.isprintable():
            told = value.get("error") if isinstance(value, dict) else None
            raise ToolFailure(
                f"{where} gave no token for client credentials: status {status}"
                + (f", error {told!r:.80}" if isinstance(told, str) else ""),
                delivery="not_sent",
            )
        self._learned(token)
        lifetime = value.get("expires_in")
        # Many servers leave `expires_in` out; a 401 then says when it is time.
        lasts = float(lifetime) if isinstance(lifetime, int | float) and not isinstance(lifetime, bool) else 3600.0
        self._token = token
        self._ends = time.monotonic() + max(lasts - _SPARE_S, lasts / 2)


async def _read(response: httpx.Response) -> tuple[int, Any]:
    try:
        return response.status_code, json.loads(await response.aread())
    except ValueError:
        return response.status_code, None
