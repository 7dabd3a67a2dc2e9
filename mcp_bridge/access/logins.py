"""Logins with servers behind a URL: of a client by itself, and of a user, made once in a browser and kept.

The SDK's OAuth providers do the protocol: discovery, registration, PKCE, refreshing. They hold a lock while a request
is under way, which would send the calls of all sessions one after the other. Here they are asked only where a token is
needed; requests with one go side by side. Imports `mcp`: load it late.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import tempfile
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider, PrivateKeyJWTOAuthProvider
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
    ProtectedResourceMetadata,
)
from mcp.shared.auth_utils import resource_url_from_server_url
from pydantic import AnyHttpUrl, AnyUrl, BaseModel, Field, ValidationError

from ..safe_text import json_in
from .redaction import public_url
from .settings import LoginSettings, UserLogin, assertion, is_safe, token_in, token_request

logger = logging.getLogger(__name__)

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
                            f"{public_url(str(outgoing.url))} is not an https:// URL; no secret is sent there"
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
        value = json_in(await response.aread())
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


# ---------------------------------------------------------------------------------------------------------------------
# The login of a user, which is renewed without the user

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
            issuer = self._settings.issuer if self._settings is not None else None
            if context.oauth_metadata is None and issuer is not None:
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
                await self._keep()
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


# ---------------------------------------------------------------------------------------------------------------------
# Where the tokens of users' logins are kept between programs: in the system's keyring, or in files that only the user
# can read

_SERVICE = "toolbake"
_LOOK_S = 0.05
_RECOMMENDED = 1
"""The lowest priority at which `keyring` counts a backend as safe."""


class KeptTokens(BaseModel, frozen=True):
    """What a login brought, and what is needed to renew it without the user."""

    tokens: OAuthToken = Field(repr=False)
    expires_at: float | None = None
    """In seconds since the epoch; None where the authorization server does not tell."""
    client: OAuthClientInformationFull = Field(repr=False)
    authority: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None
    wanted_scope: str | None = None
    """What the server has asked for since, and the tokens were not given for. The next login asks for it."""


def store_key(server_url: str, login: UserLogin | None) -> str:
    """Under which name the tokens for a server are kept. It holds no secret."""
    key = resource_url_from_server_url(server_url).partition("?")[0]
    if login is None or login.client_id is None:
        return key
    if login.refresh_token is None:
        return f"{key} as {login.client_id}"
    # Another token in the configuration is another login: what came of the former one is of no use any more.
    return f"{key} as {login.client_id}, from {hashlib.sha256(login.refresh_token.encode()).hexdigest()[:16]}"


def read_tokens(key: str) -> KeptTokens | None:
    """The tokens of a login; None where there was none, or what is kept cannot be read, which is logged."""
    # A file is there only where the keyring did not take what is newest.
    text = _from_file(key) or _from_keyring(key)
    if text is None:
        return None
    try:
        return KeptTokens.model_validate_json(text)
    except ValidationError:
        logger.warning("the login that is kept for %s has not the right form and is not used; log in again", key)
        return None


def write_tokens(key: str, kept: KeptTokens) -> str:
    """Keep the tokens of a login in place of earlier ones. Gives where they are, in words. Raises `OSError`."""
    text = kept.model_dump_json(exclude_none=True)
    path = _path(key)
    ring = _keyring()
    if ring is not None:
        try:
            ring.set_password(_SERVICE, key, text)
        except Exception as error:  # each backend has errors of its own: a text that is too long, a locked keyring
            logger.warning("the system's keyring took no login (%s); it goes into a file", type(error).__name__)
        else:
            path.unlink(missing_ok=True)
            return f"the system's keyring ({ring.get_keyring().name})"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # of mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return str(path)


@contextlib.asynccontextmanager
async def renewing(key: str) -> AsyncIterator[None]:
    """While the block runs, no other program renews this login: many refresh tokens serve once. Not on Windows."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = _path(key).with_suffix(".lock")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await anyio.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _path(key: str) -> Path:
    import typer

    return Path(typer.get_app_dir("toolbake")) / "logins" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _from_file(key: str) -> str | None:
    try:
        return _path(key).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _from_keyring(key: str) -> str | None:
    ring = _keyring()
    if ring is None:
        return None
    try:
        found: str | None = ring.get_password(_SERVICE, key)
    except Exception as error:  # each backend has errors of its own
        logger.warning("the system's keyring cannot be read (%s); unlock it, or log in again", type(error).__name__)
        return None
    return found


def _keyring() -> Any:
    """The package `keyring` where it is installed and the system has a safe backend for it."""
    try:
        ring = importlib.import_module("keyring")
    except ImportError:
        return None
    return ring if ring.get_keyring().priority >= _RECOMMENDED else None
