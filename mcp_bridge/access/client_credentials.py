"""Tokens by client credentials (RFC 6749, section 4.4) over any HTTP client: what is asked, and what is answered."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote_plus

from .settings import LoginSettings

_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_S = 300
_LONGEST_ERROR = 80


def token_request(
    client: LoginSettings, asked: Mapping[str, str], *, audience: str, learned: Callable[[str], object]
) -> tuple[dict[str, str], dict[str, str]]:
    """The form and the headers of a request for a token. `asked`: what else the form says. `learned`: called with each
    secret that is made here, so that it is never shown."""
    form = {"grant_type": "client_credentials", **asked}
    headers = {"Accept": "application/json"}
    if client.type == "private_key_jwt":  # RFC 7523, section 2.2
        signed = assertion(client, audience)
        learned(signed)
        form |= {"client_id": client.client_id, "client_assertion_type": _ASSERTION_TYPE, "client_assertion": signed}
    elif client.client_auth == "basic":
        pair = f"{quote_plus(client.client_id)}:{quote_plus(client.secret)}"
        basic = base64.b64encode(pair.encode()).decode()
        learned(basic)
        headers["Authorization"] = f"Basic {basic}"
    else:
        form |= {"client_id": client.client_id, "client_secret": client.secret}
    return form, headers


def assertion(client: LoginSettings, audience: str) -> str:
    """What proves to an audience who the client is."""
    import jwt

    now = int(time.time())
    claims: dict[str, Any] = {"iss": client.client_id, "sub": client.client_id, "aud": audience}
    claims |= {"jti": str(uuid.uuid4()), "iat": now, "exp": now + _ASSERTION_S}
    return jwt.encode(claims, client.secret, algorithm=client.algorithm)


def token_in(status: int, value: Any) -> str:
    """The token in an answer, whose JSON is `value`. Raises `ValueError`, which says what was answered instead."""
    answer = value if isinstance(value, dict) else {}
    token, told = answer.get("access_token"), answer.get("error")
    if status in (200, 201) and isinstance(token, str) and token.isascii() and token.isprintable():
        return token
    raise ValueError(f"status {status}" + (f", error {told[:_LONGEST_ERROR]!r}" if isinstance(told, str) else ""))
