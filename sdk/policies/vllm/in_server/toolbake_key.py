"""The API key for all of vLLM, whose own check covers `/v1` alone: `/invocations` answers the same requests without it.

vLLM loads it by `--middleware toolbake_key.Key`, with this folder on `PYTHONPATH`, and the key is in `VLLM_API_KEY`. It
imports nothing of ours: vLLM has an environment of its own, and an export has a copy of this file.
"""

from __future__ import annotations

import hmac
import os
from typing import Any

_OPEN = frozenset({"/health", "/metrics", "/ping", "/version"})
"""What probes and scrapers ask without a key."""


class Key:
    """An ASGI middleware. Without a key in the environment it lets everything through."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._key = os.environ.get("VLLM_API_KEY", "")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers 401 for what lacks the key."""
        is_request = scope["type"] in ("http", "websocket")
        if not is_request or not self._key or scope.get("method") == "OPTIONS" or self._is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error":"Unauthorized"}'})

    def _is_allowed(self, scope: Any) -> bool:
        if scope["path"].removeprefix(scope.get("root_path", "")) in _OPEN:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._key.encode())
