"""One question to a model behind an OpenAI-compatible endpoint, and its text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from mcp_bridge.access.redaction import public_url, redacted
from mcp_bridge.errors import SourceError, ToolFailure

_SHOWN = 300


class ChatEndpoint:
    """Speaks with `base_url` + `/chat/completions`. The key is never shown."""

    def __init__(self, base_url: str, model: str, api_key: str | None, *, timeout_s: float) -> None:
        """Raises `SourceError` for a URL that cannot be asked, or one that holds credentials."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceError(f"the endpoint {public_url(base_url)!r} is no http(s) URL; try http://host:8000/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise SourceError(
                f"the URL of the endpoint at {parts.hostname!r} holds credentials or a query; use api_key"
            )
        self.url = base_url.rstrip("/").removesuffix("/chat/completions")
        self.model = model
        self._key = api_key
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"endpoint {self.url} (model {self.model!r})"

    async def ask(self, messages: Sequence[Mapping[str, str]], body: Mapping[str, Any]) -> str:
        """The text of the model's answer. Fields of `body` that are None are not sent.

        Raises `ToolFailure` where there is none: the simulation is infrastructure, like the tool it stands for.
        """
        import httpx

        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        sent = {"model": self.model, "messages": list(messages), **body}
        sent = {name: value for name, value in sent.items() if value is not None}
        try:
            async with httpx.AsyncClient(timeout=self._timeout_s, headers=headers) as client:
                response = await client.post(f"{self.url}/chat/completions", json=sent)
        except httpx.HTTPError as error:
            raise self._failure(f"could not be asked: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise self._failure(f"answered HTTP {response.status_code}: {response.text}")
        try:
            said = response.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise self._failure(f"gave an answer that cannot be read: {json.dumps(response.text)}") from error
        if not isinstance(said, str):
            raise self._failure(f"gave an answer without text: {json.dumps(response.text)}")
        return said

    def _failure(self, message: str) -> ToolFailure:
        told = redacted(message, [self._key] if self._key else [])
        return ToolFailure(f"{self!r} {told[:_SHOWN]}", delivery="answered")
