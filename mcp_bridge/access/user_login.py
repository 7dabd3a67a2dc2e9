"""The login of a user with a server behind a URL: made once in a browser, then renewed without the user.

The SDK's provider does the protocol: PKCE, registration of the client, refreshing. Imports `mcp`: load it late.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Awaitable, Callable

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    create_oauth_metadata_request,
    extract_scope_from_www_auth,
    handle_auth_metadata_response,
    is_valid_client_metadata_url,
    union_scopes,
    validate_metadata_issuer,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyHttpUrl, AnyUrl

from .auth import FixedScope, Flow, InMemory, Login, LoginFailed, auth_method, lacks_scope
from .redaction import public_url
from .settings import UserLogin
from .token_store import KeptTokens, read_tokens, renewing, store_key, write_tokens

logger = logging.getLogger(__name__)

_LONG_AGO = 1.0
"""A time at which no token is valid any more; the SDK's provider takes 0 for "never ends"."""


class KeptLogin(Login):
    """Tokens that are kept, for all sessions with a server. They are refreshed when they end, and kept again."""

    def __init__(self, server_url: str, settings: UserLogin | None, learned: Callable[[str], object]) -> None:
        self._key = store_key(server_url, settings)
        self._settings = settings
        no_client = OAuthClientMetadata(redirect_uris=None)
        self._storage = InMemory()
        super().__init__(OAuthClientProvider(server_url, no_client, self._storage), learned)
        self._kept: KeptTokens | None = None

    def __repr__(self) -> str:
        return f"KeptLogin({self._key!r})"

    async def load(self) -> bool:
        """Whether there are tokens: those that are kept, or a refresh token of the settings."""
        kept = await anyio.to_thread.run_sync(read_tokens, self._key)
        if kept is None and self._settings is not None and self._settings.refresh_token is not None:
            kept = _given(self._settings, self._provider.context.server_url)
        if kept is not None:
            await self._take(kept)
        return kept is not None

    async def _take(self, kept: KeptTokens) -> None:
        self._kept = kept
        for secret in _secrets(kept):
            self._learned(secret)
        await self._storage.set_tokens(kept.tokens)
        await self._storage.set_client_info(kept.client)
        context = self._provider.context
        context.current_tokens, context.client_info = kept.tokens, kept.client
        context.token_expiry_time = kept.expires_at
        context.oauth_metadata, context.protected_resource_metadata = kept.authority, kept.resource

    @property
    def _renews_first(self) -> bool:
        return True

    async def _renewing(self, request: httpx2.Request, refused: httpx2.Response | None) -> Flow:
        if refused is not None and lacks_scope(refused):
            raise LoginFailed(await self._lacking(refused))
        async with renewing(self._key):
            if await self._was_renewed_elsewhere():
                return
            context = self._provider.context
            if not context.can_refresh_token():
                raise LoginFailed(
                    f"the login with {self._where} has ended, and it came without a refresh token. {_ADVICE}"
                )
            flow = self._refreshing(request, refused)
            try:
                outgoing = await anext(flow)
                while True:
                    outgoing = await flow.asend((yield outgoing))
            except StopAsyncIteration:
                await self._keep()
            finally:
                await flow.aclose()

    async def _refreshing(self, request: httpx2.Request, refused: httpx2.Response | None) -> Flow:
        context = self._provider.context
        if context.oauth_metadata is None and self._settings is not None and self._settings.issuer is not None:
            issuer = self._settings.issuer
            for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, context.server_url):
                response = yield create_oauth_metadata_request(url)
                _, context.oauth_metadata = await handle_auth_metadata_response(response)
                if context.oauth_metadata is not None:
                    validate_metadata_issuer(context.oauth_metadata, issuer)
                    break
            else:
                raise OAuthFlowError("no metadata of an authorization server; give token_url in place of issuer")
        context.token_expiry_time = _LONG_AGO
        flow = self._by_the_provider(request, refused)
        try:
            outgoing = await anext(flow)
            while True:
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    async def _was_renewed_elsewhere(self) -> bool:
        newest = await anyio.to_thread.run_sync(read_tokens, self._key)
        if newest is None or self._kept is None or newest.tokens.access_token == self._kept.tokens.access_token:
            return False
        await self._take(newest)
        return self._token is not None

    async def _keep(self) -> None:
        assert self._kept is not None
        context = self._provider.context
        assert context.current_tokens is not None
        kept = self._kept.model_copy(
            update={
                "tokens": context.current_tokens,
                "expires_at": context.token_expiry_time,
                "authority": context.oauth_metadata,
            }
        )
        await self._take(kept)
        await self._write(kept)

    async def _write(self, kept: KeptTokens) -> None:
        try:
            await anyio.to_thread.run_sync(write_tokens, self._key, kept)
        except OSError as error:
            # The tokens are good, and this program goes on with them.
            logger.warning(
                "the renewed login with %s cannot be kept (%s): log in again before the next program uses it",
                self._where,
                error.strerror or type(error).__name__,
            )

    async def _lacking(self, refused: httpx2.Response) -> str:
        assert self._kept is not None
        wanted = extract_scope_from_www_auth(refused)
        scope = union_scopes(union_scopes(self._kept.tokens.scope, self._kept.wanted_scope), wanted)
        await self._write(self._kept.model_copy(update={"wanted_scope": scope}))
        asked = f"the scope {wanted!r}" if wanted else "more"
        return f"the login with {self._where} was not given {asked}, which the server asks for. {_ADVICE}"

    @property
    def _advice(self) -> str:
        if self._settings is not None and self._settings.refresh_token is not None:
            return "Check auth: a refresh token ends, and where the issuer gives a new one each time it serves once"
        return _ADVICE


_ADVICE = "Log in again with `toolbake login`"


class BrowserLogin(Login):
    """A login that the user makes in a browser, once."""

    def __init__(
        self,
        server_url: str,
        settings: UserLogin | None,
        learned: Callable[[str], object],
        *,
        redirect_uri: str,
        show: Callable[[str], Awaitable[None]],
        answered: Callable[[], Awaitable[AuthorizationCodeResult]],
        wanted_scope: str | None = None,
    ) -> None:
        """`show`: called with the address where the user logs in. `answered`: waits for what comes back by
        `redirect_uri`. `wanted_scope`: to ask for in place of what the server names."""
        settings = settings or UserLogin()
        scope = settings.scope or wanted_scope
        metadata = (OAuthClientMetadata if scope is None else FixedScope)(
            client_name="toolbake", redirect_uris=[AnyUrl(redirect_uri)], scope=scope
        )
        is_url = is_valid_client_metadata_url(settings.client_id)
        client = None
        if settings.client_id is not None and not is_url:
            client = OAuthClientInformationFull(
                client_id=settings.client_id,
                client_secret=settings.secret,
                redirect_uris=[AnyUrl(redirect_uri)],
                token_endpoint_auth_method="none" if settings.secret is None else auth_method(settings),
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            provider = OAuthClientProvider(
                server_url, metadata, InMemory(client=client), show, answered, settings.client_id if is_url else None
            )
        super().__init__(provider, learned)

    def __repr__(self) -> str:
        return f"BrowserLogin({self._where!r})"

    def _renewing(self, request: httpx2.Request, refused: httpx2.Response | None) -> Flow:
        return self._by_the_provider(request, refused)

    def _note(self, failure: LoginFailed) -> None:
        # The SDK's client tries other ways to begin a session: the user is asked once.
        self._failure = failure

    @property
    def _advice(self) -> str:
        return "Nobody is logged in"

    def kept(self) -> KeptTokens | None:
        """What the login brought; None where the server did not ask for one."""
        context = self._provider.context
        if context.current_tokens is None or context.client_info is None:
            return None
        kept = KeptTokens(
            tokens=context.current_tokens,
            expires_at=context.token_expiry_time,
            client=context.client_info,
            authority=context.oauth_metadata,
            resource=context.protected_resource_metadata,
        )
        for secret in _secrets(kept):
            self._learned(secret)
        return kept


def _secrets(kept: KeptTokens) -> list[str]:
    found = (kept.tokens.access_token, kept.tokens.refresh_token, kept.client.client_secret)
    return [one for one in found if one]


def _given(settings: UserLogin, server_url: str) -> KeptTokens:
    """A refresh token of an `mcp.json`, as if it had been kept."""
    assert settings.client_id is not None
    authority = None
    if settings.token_url is not None:
        url = AnyHttpUrl(settings.token_url)
        authority = OAuthMetadata(
            issuer=AnyHttpUrl(settings.issuer or public_url(server_url)), authorization_endpoint=url, token_endpoint=url
        )
    return KeptTokens(
        tokens=OAuthToken(access_token="", refresh_token=settings.refresh_token),
        expires_at=time.time(),
        client=OAuthClientInformationFull(
            client_id=settings.client_id,
            client_secret=settings.secret,
            token_endpoint_auth_method="none" if settings.secret is None else auth_method(settings),
        ),
        authority=authority,
    )
