"""An API's security schemes with the values that a user gives for them. The values are never shown."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from ..access.settings import key_secrets, signing_key
from ..errors import SourceError
from .document import Document, Operation, SecurityScheme

_LOCAL = {"localhost", "127.0.0.1", "::1"}
_WITH_SECRET = {"client_secret", "client_auth"}
_WITH_KEY = {"private_key", "private_key_file", "algorithm"}
_CLIENT_KEYS = {"client_id", "token_url", "scopes"} | _WITH_SECRET | _WITH_KEY


@dataclass(frozen=True)
class Fixed:
    """What one scheme adds to a request."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    cookies: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ClientCredentials:
    """OAuth 2.0 client credentials. `client_auth`: how the client names itself, `basic`, `body` or `private_key_jwt`
    (RFC 7523, section 2.2); then the secret is its key in PEM, which signs with `algorithm`."""

    client_id: str
    client_secret: str = field(repr=False)
    token_url: str
    scopes: tuple[str, ...] = ()
    client_auth: str = "basic"
    algorithm: str = "RS256"


Credential = Fixed | ClientCredentials


class Credentials:
    """What an operation may be called with."""

    def __init__(
        self, document: Document, given: Mapping[str, Any], *, place: str, has_certificate: bool = False
    ) -> None:
        """`given`: scheme to value, with secrets filled in. `has_certificate`: whether our own is shown to the server,
        which is all that `mutualTLS` asks for. Raises `SourceError`, which shows no value."""
        self._schemes = document.security_schemes
        unknown = [name for name in given if name not in self._schemes]
        if unknown:
            choices = ", ".join(self._schemes) or 'none; give what it needs in "headers"'
            raise SourceError(f"{place}: auth names {unknown[0]!r}; the security schemes of the API are {choices}")
        self._values: dict[str, Credential] = {
            name: _credential(self._schemes[name], value, document, f"{place}: auth.{name}")
            for name, value in given.items()
        }
        if has_certificate:
            self._values |= {name: Fixed() for name, one in self._schemes.items() if one.kind == "mutualTLS"}
        self.secrets: tuple[str, ...] = tuple(
            dict.fromkeys(secret for one in self._values.values() for secret in _secrets(one))
        )

    def for_operation(self, operation: Operation) -> list[tuple[str, Credential, tuple[str, ...]]]:
        """The schemes to use, each with its scopes: the first alternative that all values are there for."""
        for alternative in sorted(operation.security, key=lambda one: not one):
            if alternative and all(name in self._values for name in alternative):
                return [(name, self._values[name], scopes) for name, scopes in alternative.items()]
        return []

    def missing(self, operation: Operation) -> str:
        """Which schemes an operation needs and has no values for, in words; "" where it can be called."""
        if any(all(name in self._values for name in alternative) for alternative in operation.security):
            return ""
        return " or ".join(" with ".join(repr(name) for name in one) for one in operation.security)

    def names_in_query(self) -> set[str]:
        return {one.parameter for one in self._schemes.values() if one.kind == "apiKey" and one.location == "query"}

    def taken(self) -> set[tuple[str, str]]:
        """(location, name in lower case) of what the credentials fill in."""
        return {
            (one.location, one.parameter.lower())
            for name, one in self._schemes.items()
            if one.kind == "apiKey" and name in self._values
        }


def _credential(scheme: SecurityScheme, value: Any, document: Document, place: str) -> Credential:
    if scheme.kind == "apiKey":
        return _key(scheme, _text(value, place))
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


def _key(scheme: SecurityScheme, value: str) -> Fixed:
    if scheme.location == "header":
        return Fixed(headers={scheme.parameter: value})
    if scheme.location == "query":
        return Fixed(query={scheme.parameter: value})
    return Fixed(cookies={scheme.parameter: quote(value, safe="!#$&'()*+-./:<=>?@[]^_`{|}~")})


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


def _client(scheme: SecurityScheme, value: Mapping[str, Any], document: Document, place: str) -> ClientCredentials:
    unknown = sorted(set(value) - _CLIENT_KEYS)
    if unknown:
        raise SourceError(f"{place}: has an unknown key {unknown[0]!r}; known are {', '.join(sorted(_CLIENT_KEYS))}")
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
    parts = urlsplit(token_url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
        raise SourceError(f"{place}: token_url must be an https:// URL; the client's secret is sent there")
    scopes = value.get("scopes", [])
    if not isinstance(scopes, list) or not all(isinstance(one, str) for one in scopes):
        raise SourceError(f"{place}: scopes must be a list of strings")
    return ClientCredentials(
        client_id=_text(value.get("client_id"), f"{place}.client_id"),
        token_url=token_url,
        scopes=tuple(scopes),
        **_proof(value, place),
    )


def _proof(value: Mapping[str, Any], place: str) -> dict[str, str]:
    """What the client shows to be itself: its secret, or what its key signs."""
    by_key, by_secret = _WITH_KEY & set(value), _WITH_SECRET & set(value)
    if by_key and by_secret:
        raise SourceError(f"{place}: has both {min(by_secret)} and {min(by_key)}; a client has a secret or a key")
    if by_key:
        key = signing_key(value, place, Path())
        return {"client_secret": key, "client_auth": "private_key_jwt", "algorithm": value.get("algorithm", "RS256")}
    client_auth = value.get("client_auth", "basic")
    if client_auth not in {"basic", "body"}:
        raise SourceError(f'{place}: client_auth must be "basic" or "body"')
    return {"client_secret": _text(value.get("client_secret"), f"{place}.client_secret"), "client_auth": client_auth}


def _secrets(credential: Credential) -> Sequence[str]:
    if isinstance(credential, ClientCredentials):
        has_key = credential.client_auth == "private_key_jwt"
        return key_secrets(credential.client_secret) if has_key else [credential.client_secret]
    found: list[str] = []
    for value in (*credential.headers.values(), *credential.query.values(), *credential.cookies.values()):
        found += [value, quote(value, safe=""), *value.split()[1:]]
        if value.startswith("Basic "):
            decoded = base64.b64decode(value[6:]).decode()
            found += [decoded, decoded.partition(":")[2]]
    return found
