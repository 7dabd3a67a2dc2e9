"""Tokens for a server behind a URL, fetched and renewed by the SDK's OAuth providers. Imports `mcp`: load it late.

The SDK's provider holds a lock while a request is under way, which would send the calls of all sessions one after the
other. Here it is asked only where a token is needed; requests with one go side by side.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import ValidationError

from .client_credentials import assertion, token_in, token_request
from .redaction import public_url
from .settings import LoginSettings, UserLogin, is_safe

_TIMEOUT = httpx2.Timeout(20.0).as_dict()
_FORM = "application/x-www-form-urlencoded"
"""A request for a token; a registration of a client is JSON."""

Flow = AsyncGenerator[httpx2.Request, httpx2.Response]


class LoginFailed(httpx2.RequestError):
    """No token could be had. The message names the server and holds no secret."""


class Login(httpx2.Auth):
    """Adds a token to every request of all sessions with one server.

    A request that is answered 401 is sent once more with a new token: the server did not accept it. A subclass tells
    how a token is renewed. `learned`: called with each secret that came, so that it is never shown.
    """

    def __init__(self, provider: OAuthClientProvider, learned: Callable[[str], object]) -> None:
        self._provider = provider
        self._learned = learned
        self._lock = anyio.Lock()
        self._failure: LoginFailed | None = None

    @property
    def _token(self) -> str | None:
        context = self._provider.context
        return context.current_tokens.access_token if context.is_token_valid() and context.current_tokens else None

    @property
    def _renews_first(self) -> bool:
        """Whether a token can be had before the server has refused a request. Discovery begins with a refusal."""
        return False

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        """As `httpx2.Auth.async_auth_flow`. Raises `LoginFailed`."""
        token, refused = self._token, None
        if token is not None or not self._renews_first:
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token}"
            refused = yield request
            if not self._wants_login(refused):
                return
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._token is None or self._token == token:
                flow = self._renewing(request, refused)
                try:
                    outgoing = await anext(flow)
                    while True:
                        outgoing.extensions = {**outgoing.extensions, "timeout": _TIMEOUT}
                        outgoing = await flow.asend((yield outgoing))
                except StopAsyncIteration:
                    pass
                except LoginFailed as error:
                    self._note(error)
                    raise
                except (OAuthFlowError, ValidationError) as error:
                    told = str(error) if isinstance(error, OAuthFlowError) else "its answer has not the right form"
                    failure = LoginFailed(f"{self._where} gave no token: {told}")
                    self._note(failure)
                    raise failure from None
                finally:
                    await flow.aclose()
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def _wants_login(self, response: httpx2.Response) -> bool:
        return response.status_code == 401 or lacks_scope(response)

    def _note(self, failure: LoginFailed) -> None:
        """Hear that no token could be had. The next request that needs one tries again, unless `_failure` is set."""

    def _renewing(self, request: httpx2.Request, refused: httpx2.Response | None) -> Flow:
        """The requests that bring a token. `refused`: the answer to the request itself; None where it was not sent."""
        raise NotImplementedError

    async def _by_the_provider(self, request: httpx2.Request, refused: httpx2.Response | None) -> Flow:
        """The same, as the SDK makes them."""
        before = self._provider.context.current_tokens
        flow = self._provider.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                now = self._provider.context.current_tokens
                if outgoing is request:
                    if now is not None and now is not before:
                        return
                    assert refused is not None
                    response = refused
                else:
                    asks_for_token = outgoing.headers.get("content-type", "").startswith(_FORM)
                    if asks_for_token and not is_safe(str(outgoing.url)):
                        raise LoginFailed(
                            f"{public_url(str(outgoing.url))} is no https:// URL; no secret is sent there"
                        )
                    response = yield outgoing
                    if asks_for_token:
                        # Before the SDK reads it, which would log what is in it.
                        await self._check(response)
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            raise LoginFailed(f"{self._where} gave no token") from None
        finally:
            await flow.aclose()

    async def _check(self, response: httpx2.Response) -> None:
        """Raises `LoginFailed` unless the response holds a token."""
        where, status = public_url(str(response.request.url)), response.status_code
        try:
            value = json.loads(await response.aread())
        except ValueError:
            value = None
        try:
            self._learned(token_in(status, value))
        except ValueError as error:
            raise LoginFailed(f"{where} gave no token for {self._who}: {error}. {self._advice}") from None
        if isinstance(value.get("refresh_token"), str):
            self._learned(value["refresh_token"])

    @property
    def _where(self) -> str:
        """Who gives the tokens, for errors."""
        return public_url(self._provider.context.server_url)

    @property
    def _who(self) -> str:
        client = self._provider.context.client_info
        return f"client {client.client_id!r}" if client is not None else "us"

    @property
    def _advice(self) -> str:
        return "Check auth"


def lacks_scope(response: httpx2.Response) -> bool:
    """Whether a server refuses a token because it was given for less than the request needs."""
    return response.status_code == 403 and "insufficient_scope" in response.headers.get("www-authenticate", "")


class ClientLogin(Login):
    """A client that is its own user: client credentials, or a signed assertion."""

    def __init__(self, settings: LoginSettings, server_url: str, learned: Callable[[str], object]) -> None:
        super().__init__(_provider(settings, server_url), learned)
        self._settings = settings

    def __repr__(self) -> str:
        return f"ClientLogin({self._settings!r})"

    @property
    def _renews_first(self) -> bool:
        return self._settings.token_url is not None

    def _wants_login(self, response: httpx2.Response) -> bool:
        # With a scope of the user's own there is no other to ask for.
        return response.status_code == 401 or (self._settings.scope is None and lacks_scope(response))

    def _renewing(self, request: httpx2.Request, refused: httpx2.Response | None) -> Flow:
        return self._by_the_provider(request, refused) if self._settings.token_url is None else self._by_token_url()

    async def _by_token_url(self) -> Flow:
        response = yield self._direct()
        await self._check(response)
        context = self._provider.context
        context.current_tokens = OAuthToken.model_validate_json(await response.aread())
        context.update_token_expiry(context.current_tokens)

    def _direct(self) -> httpx2.Request:
        """The request for a token at the URL that the user gave, without discovery."""
        settings = self._settings
        assert settings.token_url is not None
        asked = {"resource": self._provider.context.get_resource_url()}
        if settings.scope is not None:
            asked["scope"] = settings.scope
        audience = settings.issuer or settings.token_url
        form, headers = token_request(settings, asked, audience=audience, learned=self._learned)
        return httpx2.Request("POST", settings.token_url, data=form, headers=headers)

    @property
    def _where(self) -> str:
        return public_url(self._settings.token_url or self._settings.issuer or "")

    @property
    def _who(self) -> str:
        return f"client {self._settings.client_id!r}"


class InMemory:
    """The SDK's storage of tokens; they live as long as the connection to their server."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self._tokens: OAuthToken | None = None
        self._client = client

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


class FixedScope(OAuthClientMetadata):
    """Keeps the user's scope: the SDK takes the server's word for which scopes to ask for, also over the user's."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "scope":
            super().__setattr__(name, value)


def _provider(settings: LoginSettings, server_url: str) -> OAuthClientProvider:
    # With a token URL there is no discovery that an issuer could be held to.
    issuer = settings.issuer if settings.token_url is None else None
    provider: OAuthClientProvider

    async def proof(audience: str) -> str:
        return assertion(settings, audience)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if settings.type == "client_credentials":
            provider = ClientCredentialsOAuthProvider(
                server_url,
                InMemory(),
                settings.client_id,
                settings.secret,
                auth_method(settings),
                settings.scope,
                issuer,
            )
        else:
            provider = PrivateKeyJWTOAuthProvider(
                server_url, InMemory(), settings.client_id, proof, settings.scope, issuer
            )
    if settings.scope is not None:
        provider.context.client_metadata = FixedScope(**provider.context.client_metadata.model_dump())
    return provider


def auth_method(settings: LoginSettings | UserLogin) -> Literal["client_secret_basic", "client_secret_post"]:
    return "client_secret_basic" if settings.client_auth == "basic" else "client_secret_post"
