"""Tokens for a server behind a URL, fetched and renewed by the SDK's OAuth providers. Imports `mcp`: load it late.

The SDK's provider holds a lock while a request is under way, which would send the calls of all sessions one after the
other. Here it is asked only where a token is needed; requests with one go side by side.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from .redaction import public_url
from .settings import LoginSettings

_FETCH_TIMEOUT_S = 20.0
_LONGEST_ERROR = 80

Flow = AsyncGenerator[httpx2.Request, httpx2.Response]


class LoginFailed(httpx2.RequestError):
    """No token could be had. The message names the server and holds no secret."""


class Login(httpx2.Auth):
    """Adds a token to every request of all sessions with one server.

    A request that is answered 401 is sent once more with a new token: the server did not take it. `learned`: is told
    each token, so that it is never shown.
    """

    def __init__(self, settings: LoginSettings, server_url: str, learned: Callable[[str], object]) -> None:
        self._settings = settings
        self._provider = _provider(settings, server_url)
        self._learned = learned
        self._lock = anyio.Lock()

    def __repr__(self) -> str:
        return f"Login({self._settings!r})"

    @property
    def _token(self) -> str | None:
        context = self._provider.context
        return context.current_tokens.access_token if context.is_token_valid() and context.current_tokens else None

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        """As `httpx2.Auth.async_auth_flow`. Raises `LoginFailed`."""
        token, refused = self._token, None
        if token is not None or self._settings.token_url is None:
            # Discovery begins with what a refusal says.
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token}"
            refused = yield request
            if not self._wants_login(refused):
                return
        async with self._lock:
            if self._token is None or self._token == token:
                flow = self._renewing(request, refused)
                try:
                    outgoing = await anext(flow)
                    while True:
                        outgoing.extensions = {**outgoing.extensions, "timeout": _timeout()}
                        outgoing = await flow.asend((yield outgoing))
                except StopAsyncIteration:
                    pass
                except (OAuthFlowError, ValidationError) as error:
                    told = str(error) if isinstance(error, OAuthFlowError) else "its answer has not the right form"
                    raise LoginFailed(f"{self._where} gave no token: {told}") from None
                finally:
                    await flow.aclose()
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def _wants_login(self, response: httpx2.Response) -> bool:
        if response.status_code == 401:
            return True
        told = response.headers.get("www-authenticate", "")
        # With a scope of the user's own there is no other to ask for.
        return response.status_code == 403 and "insufficient_scope" in told and self._settings.scope is None

    async def _renewing(self, request: httpx2.Request, refused: httpx2.Response | None) -> Flow:
        """The requests that bring a token. `refused`: the answer to the request itself; None with a token URL."""
        if self._settings.token_url is not None:
            response = yield await self._direct()
            await self._check(response)
            await self._provider._handle_token_response(response)
            return
        assert refused is not None
        before = self._provider.context.current_tokens
        flow = self._provider.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                now = self._provider.context.current_tokens
                if outgoing is request:
                    if now is not None and now is not before:
                        return
                    response = refused
                else:
                    response = yield outgoing
                    if outgoing.method == "POST":
                        # Before the SDK reads it, which would log what is in it.
                        await self._check(response)
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            raise LoginFailed(f"{self._where} gave no token") from None
        finally:
            await flow.aclose()

    async def _direct(self) -> httpx2.Request:
        """The request for a token at the URL that the user gave, without discovery."""
        settings, provider = self._settings, self._provider
        if not provider._initialized:
            await provider._initialize()
        context = provider.context
        context.protocol_version = LATEST_HANDSHAKE_VERSION
        context.oauth_metadata = OAuthMetadata.model_construct(
            issuer=settings.issuer or settings.token_url, token_endpoint=settings.token_url
        )
        return await provider._perform_authorization()

    async def _check(self, response: httpx2.Response) -> None:
        """Raises `LoginFailed` unless the response holds a token."""
        where, status = public_url(str(response.request.url)), response.status_code
        try:
            value = json.loads(await response.aread())
        except ValueError:
            value = None
        token = value.get("access_token") if isinstance(value, dict) else None
        if status not in (200, 201) or not isinstance(token, str) or not token.isascii() or not token.isprintable():
            told = value.get("error") if isinstance(value, dict) else None
            shown = f", error {told[:_LONGEST_ERROR]!r}" if isinstance(told, str) else ""
            raise LoginFailed(
                f"{where} gave no token for client {self._settings.client_id!r}: status {status}{shown}. Check auth"
            )
        self._learned(token)
        if isinstance(value.get("refresh_token"), str):
            self._learned(value["refresh_token"])

    @property
    def _where(self) -> str:
        return public_url(self._settings.token_url or self._settings.issuer or "")


class _InMemory:
    """Tokens live as long as the connection to their server."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


class _WithSecret(ClientCredentialsOAuthProvider):
    scope: str | None = None

    async def _perform_authorization(self) -> httpx2.Request:
        _keep_scope(self, self.scope)
        return await super()._perform_authorization()


class _WithKey(PrivateKeyJWTOAuthProvider):
    scope: str | None = None

    async def _perform_authorization(self) -> httpx2.Request:
        _keep_scope(self, self.scope)
        return await super()._perform_authorization()


def _keep_scope(provider: Any, scope: str | None) -> None:
    # The SDK takes the server's word for which scopes to ask for, also over the user's.
    if scope is not None:
        provider.context.client_metadata.scope = scope


def _provider(settings: LoginSettings, server_url: str) -> _WithSecret | _WithKey:
    # With a token URL there is no discovery that an issuer could be held to.
    issuer = settings.issuer if settings.token_url is None else None
    provider: _WithSecret | _WithKey
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if settings.type == "client_credentials":
            provider = _WithSecret(
                server_url,
                _InMemory(),
                settings.client_id,
                settings.secret,
                "client_secret_basic" if settings.client_auth == "basic" else "client_secret_post",
                settings.scope,
                issuer,
            )
        else:
            signed = SignedJWTParameters(
                issuer=settings.client_id,
                subject=settings.client_id,
                signing_key=settings.secret,
                signing_algorithm=settings.algorithm,
            )
            assertions = signed.create_assertion_provider()
            provider = _WithKey(server_url, _InMemory(), settings.client_id, assertions, settings.scope, issuer)
    provider.scope = settings.scope
    return provider


def _timeout() -> dict[str, float | None]:
    return dict(httpx2.Timeout(_FETCH_TIMEOUT_S).as_dict())
