"""The credentials of an API: values for its security schemes, which are never shown, and OAuth 2.0 tokens."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin

import anyio
import httpx

from ..access.redaction import basic_credentials, is_secret_name, public_url
from ..access.settings import (
    LoginSettings,
    client_auth,
    login_secrets,
    refuse_unknown,
    require_safe,
    signing_key,
    token_in,
    token_request,
)
from ..errors import SourceError, ToolFailure
from ..safe_text import json_in
from .document import Document, Operation, Parameter, SecurityScheme

_WITH_SECRET = {"client_secret", "client_auth"}
_WITH_KEY = {"private_key", "private_key_file", "algorithm"}
_CLIENT_KEYS = {"client_id", "token_url", "scopes", "token_parameters"} | _WITH_SECRET | _WITH_KEY
_SETTLED = {"grant_type", "scope", "client_id", "client_secret", "client_assertion", "client_assertion_type"}
"""Of a request for a token: each has a key of its own."""
_IN_COOKIES = "!#$&'()*+-./:<=>?@[]^_`{|}~"

_OF_A_CREDENTIAL = re.compile(r"^(x )?((access|api|auth|bearer|oauth|private) ?token|api ?key)$")
_OF_ANYTHING = {"token", "key"}
"""Names that credentials have, and other arguments too: the description tells."""
_SAYS_SO = re.compile(r"\b(access|api|auth\w*|bearer|oauth) (token|key)\b", re.IGNORECASE)


def carrying(operation: Operation) -> tuple[Parameter, ...]:
    """The parameters by which the caller's credential may come, beside a security scheme that says how it comes."""
    if not any(operation.security):
        return ()
    return tuple(
        one
        for one in operation.parameters
        if one.location != "path"
        and (
            is_secret_name(one.name, _OF_A_CREDENTIAL)
            or (one.name.lower() in _OF_ANYTHING and _SAYS_SO.search(one.description))
        )
    )


@dataclass(frozen=True)
class Fixed:
    """What schemes add to a request."""

    headers: dict[str, str] = field(default_factory=dict, repr=False)
    query: dict[str, str] = field(default_factory=dict, repr=False)
    cookies: dict[str, str] = field(default_factory=dict, repr=False)

    def in_place(self, location: str) -> dict[str, str]:
        return {"header": self.headers, "query": self.query, "cookie": self.cookies}[location]

    @property
    def text(self) -> str:
        """The token or key alone; "" for a name with a password."""
        found = [*self.headers.values(), *self.query.values(), *map(unquote, self.cookies.values())]
        return found[0].removeprefix("Bearer ") if found and not found[0].startswith("Basic ") else ""


Credential = Fixed | LoginSettings
"""What is sent as it is, or how OAuth 2.0 tokens are fetched by client credentials (RFC 6749, section 4.4)."""


class Credentials:
    """What an operation may be called with."""

    def __init__(
        self,
        document: Document,
        given: Mapping[str, Any],
        *,
        place: str,
        has_certificate: bool = False,
        headers: Collection[str] = (),
    ) -> None:
        """`given`: scheme to value, with secrets filled in. `has_certificate`: whether our own is shown to the server,
        which is all that `mutualTLS` asks for. `headers`: names of those that are sent anyway. Raises `SourceError`,
        which shows no value."""
        self._schemes = document.security_schemes
        unknown = [name for name in given if name not in self._schemes]
        if unknown:
            choices = ", ".join(self._schemes) or 'none; give what it needs in "headers"'
            raise SourceError(f"{place}: auth names {unknown[0]!r}; the security schemes of the API are {choices}")
        self._values: dict[str, Credential] = {
            name: _credential(self._schemes[name], value, document, f"{place}: auth.{name}")
            for name, value in given.items()
        }
        sent = {name.lower(): name for name in headers}
        for name, value in self._values.items():
            own = value.headers if isinstance(value, Fixed) else ("Authorization",)
            for header in (header for header in own if header.lower() in sent):
                twice = sent[header.lower()]
                raise SourceError(f'{place}: "headers" has {twice!r}, which auth.{name} gives too; leave one out')
        if has_certificate:
            self._values |= {name: Fixed() for name, one in self._schemes.items() if one.kind == "mutualTLS"}
        self.secrets: tuple[str, ...] = tuple(
            dict.fromkeys(secret for one in self._values.values() for secret in _secrets(one))
        )
        self._tokens: dict[tuple[str, tuple[str, ...]], Tokens] = {}

    def for_operation(self, operation: Operation, learned: Callable[[str], object]) -> tuple[Fixed, Tokens | None]:
        """What the operation is called with, by the first alternative that all values are there for. `learned`: called
        with each token, so that it is never shown."""
        fixed, tokens = Fixed(), None
        usable = [one for one in operation.security if one and all(name in self._values for name in one)]
        for name, scopes in usable[0].items() if usable else ():
            value = self._values[name]
            if isinstance(value, Fixed):
                fixed.headers.update(value.headers)
                fixed.query.update(value.query)
                fixed.cookies.update(value.cookies)
            else:
                key = name, scopes if value.scope is None else tuple(value.scope.split())
                tokens = self._tokens[key] = self._tokens.get(key) or Tokens(value, key[1], learned)
        for one in carrying(operation) if fixed.text else ():
            if one.required:
                fixed.in_place(one.location).setdefault(one.name, fixed.text)
        return fixed, tokens

    def missing(self, operation: Operation) -> str:
        """Which schemes an operation needs and has no values for, in words; "" where it can be called."""
        if any(all(name in self._values for name in alternative) for alternative in operation.security):
            return ""
        return " or ".join(" with ".join(repr(name) for name in one) for one in operation.security)

    def names_in_query(self, operation: Operation) -> set[str]:
        named = {one.parameter for one in self._schemes.values() if one.kind == "apiKey" and one.location == "query"}
        return named | {one.name for one in carrying(operation) if one.location == "query"}

    def taken(self) -> set[tuple[str, str]]:
        """(location, name in lower case) of what the credentials fill in."""
        return {
            (one.location, one.parameter.lower())
            for name, one in self._schemes.items()
            if one.kind == "apiKey" and name in self._values
        }


def _credential(scheme: SecurityScheme, value: Any, document: Document, place: str) -> Credential:
    if scheme.kind == "apiKey":
        key, sent = _text(value, place), Fixed()
        is_cookie = scheme.location == "cookie"
        sent.in_place(scheme.location)[scheme.parameter] = quote(key, safe=_IN_COOKIES) if is_cookie else key
        return sent
    if scheme.kind == "http" and scheme.scheme == "basic":
        return Fixed(headers={"Authorization": f"Basic {_basic(value, place)}"})
    if scheme.kind == "http" and scheme.scheme != "bearer":
        raise SourceError(
            f"{place}: HTTP authentication {scheme.scheme!r} is not supported; the choices are basic and bearer. "
            'Where it is one header, give that in "headers"'
        )
    if isinstance(value, Mapping) and scheme.kind in {"oauth2", "openIdConnect"}:
        return _client(scheme, value, document, place)
    if scheme.kind in {"http", "oauth2", "openIdConnect"}:
        return Fixed(headers={"Authorization": f"Bearer {_text(value, place)}"})
    raise SourceError(f"{place}: a scheme of type {scheme.kind!r} takes no value here")


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise SourceError(f'{place}: must be a string that is not empty, for example "${{API_KEY}}"')
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", value):
        raise SourceError(f"{place}: must be one line of plain ASCII without spaces around it")
    return value


def _basic(value: Any, place: str) -> str:
    if isinstance(value, Mapping) and set(value) == {"username", "password"}:
        user, password = value["username"], value["password"]
        if isinstance(user, str) and isinstance(password, str) and ":" not in user:
            return base64.b64encode(f"{user}:{password}".encode()).decode()
    raise SourceError(f'{place}: must be {{"username": "...", "password": "..."}}, with no colon in the username')


def _client(scheme: SecurityScheme, value: Mapping[str, Any], document: Document, place: str) -> LoginSettings:
    refuse_unknown(value, _CLIENT_KEYS, place)
    flow = scheme.flows.get("clientCredentials", {})
    token_url = value.get("token_url", flow.get("tokenUrl"))
    if not isinstance(token_url, str) or not token_url:
        flows = ", ".join(scheme.flows) or "none"
        raise SourceError(
            f"{place}: the API does not say where to get a token by client credentials (its flows: {flows}); "
            "give token_url, or a token as a string"
        )
    if document.address is not None and "://" in document.address:
        token_url = urljoin(document.address, token_url)
    require_safe(token_url, f"{place}: token_url")
    scopes = value.get("scopes", [])
    if not isinstance(scopes, list) or not all(isinstance(one, str) for one in scopes):
        raise SourceError(f"{place}: scopes must be a list of strings")
    client_id, scope = _text(value.get("client_id"), f"{place}.client_id"), " ".join(scopes) or None
    more = value.get("token_parameters", {})
    if not isinstance(more, Mapping) or not all(isinstance(one, str) for one in more.values()):
        raise SourceError(f'{place}: token_parameters must be an object of strings, such as {{"audience": "..."}}')
    if settled := sorted(_SETTLED & set(more)):
        raise SourceError(
            f"{place}: token_parameters has {settled[0]!r}, which is made of the other keys; leave it out"
        )
    return LoginSettings(
        client_id=client_id,
        token_url=token_url,
        scope=scope,
        parameters=tuple(more.items()),
        **_proof(value, place),
    )


def _proof(value: Mapping[str, Any], place: str) -> dict[str, Any]:
    """What the client shows to be itself: its secret, or what its key signs (RFC 7523, section 2.2)."""
    by_key, by_secret = _WITH_KEY & set(value), _WITH_SECRET & set(value)
    if by_key and by_secret:
        raise SourceError(f"{place}: has both {min(by_secret)} and {min(by_key)}; a client has a secret or a key")
    if by_key:
        key = signing_key(value, place, Path())
        return {"type": "private_key_jwt", "secret": key, "algorithm": value.get("algorithm", "RS256")}
    secret = _text(value.get("client_secret"), f"{place}.client_secret")
    return {"type": "client_credentials", "secret": secret, "client_auth": client_auth(value, place)}


def _secrets(credential: Credential) -> Sequence[str]:
    if isinstance(credential, LoginSettings):
        return [*login_secrets(credential)]
    found: list[str] = []
    for value in (*credential.headers.values(), *credential.query.values(), *credential.cookies.values()):
        found += [value, quote(value, safe=""), *value.split()[1:]]
        found += basic_credentials("".join(value[6:].split())) if value.startswith("Basic ") else []
    return found


_SPARE_S = 30.0
"""A token is renewed this long before it expires, so that it does not on its way."""

_FETCH_TIMEOUT_S = 20.0


class Tokens(httpx.Auth):
    """Adds a token to every request. A request that is answered with 401 is sent once more with a new one: the server
    did not accept it. `learned`: called with each token, so that it is never shown."""

    requires_response_body = False

    def __init__(self, client: LoginSettings, scopes: Sequence[str], learned: Callable[[str], object]) -> None:
        self._client = client
        self._url = client.token_url or ""
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
        asked = {"scope": " ".join(self._scopes)} if self._scopes else {}
        form, headers = token_request(self._client, asked, audience=self._url, learned=self._learned)
        timeouts = {"timeout": httpx.Timeout(_FETCH_TIMEOUT_S).as_dict()}
        return httpx.Request("POST", self._url, data=form, headers=headers, extensions=timeouts)

    def _keep(self, answer: tuple[int, Any]) -> None:
        status, value = answer
        try:
            token = token_in(status, value)
        except ValueError as error:
            where = public_url(self._url)
            raise ToolFailure(f"{where} gave no token for client credentials: {error}", delivery="not_sent") from None
        self._learned(token)
        lifetime = value.get("expires_in")
        # Many servers leave `expires_in` out; a 401 then says when it is time.
        lasts = float(lifetime) if isinstance(lifetime, int | float) and not isinstance(lifetime, bool) else 3600.0
        self._token = token
        self._ends = time.monotonic() + max(lasts - _SPARE_S, lasts / 2)


async def _read(response: httpx.Response) -> tuple[int, Any]:
    return response.status_code, json_in(await response.aread())
