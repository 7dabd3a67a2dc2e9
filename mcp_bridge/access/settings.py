"""Settings of an `mcp.json` entry for reaching a server behind a URL: `auth`, `tls` and `proxy`.

Their keys are in `docs/tools.md`. A login needs `issuer`, whose endpoints are found by discovery, or `token_url`: the
server itself does not decide who gets the credentials. Only `authorization_code`, a user's login by `toolbake login`,
needs neither.
"""

from __future__ import annotations

import base64
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, quote_plus, urlsplit
from urllib.request import getproxies, proxy_bypass

from ..errors import SourceError, kind_of
from ..safe_text import did_you_mean
from ..sources.environment import expanded
from .redaction import split_url, text_secrets, url_secrets

logger = logging.getLogger(__name__)

_LOCAL = {"localhost", "127.0.0.1", "::1"}
_COMMON = {"type", "client_id", "issuer", "token_url"}
_KEYS: dict[str, set[str]] = {
    "client_credentials": _COMMON | {"scope", "client_secret", "client_auth"},
    "private_key_jwt": _COMMON | {"scope", "private_key", "private_key_file", "algorithm"},
    "refresh_token": _COMMON | {"client_secret", "client_auth", "refresh_token"},
    "authorization_code": {"type", "client_id", "client_secret", "client_auth", "scope", "redirect_uri"},
}
_TLS_KEYS = {"ca", "cert", "key", "key_password", "verify"}


@dataclass(frozen=True)
class LoginSettings:
    """How to get a token. Exactly one of `issuer` and `token_url` is needed; with both, the first is the audience."""

    type: Literal["client_credentials", "private_key_jwt"]
    client_id: str
    secret: str = field(repr=False)
    """The client's secret, or its private key in PEM."""
    issuer: str | None = None
    token_url: str | None = None
    scope: str | None = None
    client_auth: Literal["basic", "body"] = "basic"
    algorithm: str = "RS256"
    parameters: tuple[tuple[str, str], ...] = ()
    """What else a request for a token has, such as the `audience` that some servers ask for."""


@dataclass(frozen=True)
class UserLogin:
    """Tokens of a user. Without `refresh_token`, `toolbake login` brings them; with it, `client_id` and exactly one of
    `issuer` and `token_url` at least are there."""

    client_id: str | None = None
    """None: the client registers itself."""
    secret: str | None = field(default=None, repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    issuer: str | None = None
    token_url: str | None = None
    scope: str | None = None
    client_auth: Literal["basic", "body"] = "basic"
    redirect_uri: str | None = None
    """Where the browser comes back to, on this machine. None: a free port."""


@dataclass(frozen=True)
class Tls:
    """`ca`: a file of certificates that are trusted in place of the usual ones. `cert` and `key`: files of the client's
    certificate, with its key in the first where the second is left out. `verify`: `False` trusts anybody."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Takes 50 ms where the usual certificates are read. Raises `OSError`, `ssl.SSLError` among them."""
        import httpx2  # an eighth of a second: not when the module is imported

        context = httpx2.create_ssl_context() if self.ca is None else ssl.create_default_context(cafile=self.ca)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            # Without a password OpenSSL would ask for one on the terminal, and wait.
            context.load_cert_chain(self.cert, self.key, password=self.key_password or "")
        return context


@dataclass(frozen=True)
class Access:
    """Everything beside headers. `proxy`: a URL, `False` for none, `None` for the environment's."""

    login: LoginSettings | UserLogin | None = None
    tls: Tls | None = None
    proxy: str | Literal[False] | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def credentials(self) -> tuple[str, ...]:
        """What not even a policy is shown: see `mcp_bridge.access.redaction`."""
        login = () if self.login is None else tuple(login_secrets(self.login))
        password = self.tls.key_password if self.tls is not None else None
        return (*login, *([password] if password else []), *text_secrets(self.proxy or "", names=False))


def read_access(entry: Mapping[str, Any], place: str, folder: Path) -> Access:
    """What an entry says. Raises `SourceError` that names `place` and shows no secret."""
    found: list[str] = []
    login = _login(_filled(entry, "auth", place, found), place, folder) if "auth" in entry else None
    tls = _tls(_filled(entry, "tls", place, found), place, folder) if "tls" in entry else None
    proxy = _proxy(entry["proxy"], place, found) if "proxy" in entry else None
    if login is not None:
        found += login_secrets(login)
    if tls is not None and tls.key_password:
        found.append(tls.key_password)
    return Access(login, tls, proxy, tuple(dict.fromkeys(found)))


def _filled(entry: Mapping[str, Any], key: str, place: str, found: list[str]) -> dict[str, Any]:
    value = entry[key]
    if not isinstance(value, Mapping):
        raise SourceError(f"{place}: {key} must be an object, not {kind_of(value)}")
    return {
        name: expanded(one, f"{key}.{name}", place, found) if isinstance(one, str) else one
        for name, one in value.items()
    }


def refuse_unknown(value: Mapping[str, Any], known: set[str], place: str) -> None:
    """Raises `SourceError` for a key that is none of the known ones."""
    for name in value:
        if name not in known:
            hint = did_you_mean(name, sorted(known))
            raise SourceError(f"{place} has an unknown key {name!r}.{hint} Known: {', '.join(sorted(known))}")


def _login(value: Mapping[str, Any], place: str, folder: Path) -> LoginSettings | UserLogin:
    where = f"{place}: auth"
    kind = value.get("type")
    if kind not in _KEYS:
        # Not shown: somebody may have put a token there.
        raise SourceError(f"{where}.type must be one of {', '.join(_KEYS)}; a fixed token belongs into headers")
    refuse_unknown(value, _KEYS[kind], where)
    for name, one in value.items():
        if not isinstance(one, str) or not one:
            raise SourceError(f"{where}.{name} must be a string that is not empty")
    if kind == "authorization_code":
        _check_authorization_code(value, where)
    else:
        _check_client(value, kind, where)
    given: dict[str, Any] = {name: value.get(name) for name in ("client_id", "issuer", "token_url", "scope")}
    given["client_auth"] = client_auth(value, where)
    if kind in ("authorization_code", "refresh_token"):
        secret, token = value.get("client_secret"), value.get("refresh_token")
        return UserLogin(secret=secret, refresh_token=token, redirect_uri=value.get("redirect_uri"), **given)
    secret = value["client_secret"] if kind == "client_credentials" else signing_key(value, where, folder)
    return LoginSettings(type=kind, secret=secret, algorithm=value.get("algorithm", "RS256"), **given)


def _check_client(value: Mapping[str, Any], kind: str, where: str) -> None:
    for name in ("client_id", "refresh_token") if kind == "refresh_token" else ("client_id",):
        if name not in value:
            raise SourceError(f"{where}.{name} is missing")
    if "issuer" not in value and "token_url" not in value:
        raise SourceError(
            f"{where} needs issuer (an authorization server, found by discovery) or token_url: the credentials go "
            "there and nowhere else"
        )
    for name in ("issuer", "token_url"):
        if name in value:
            require_safe(value[name], f"{where}.{name}")
    if kind == "client_credentials" and "client_secret" not in value:
        raise SourceError(f'{where}.client_secret is missing; give it as "${{NAME_OF_A_VARIABLE}}"')


def _check_authorization_code(value: Mapping[str, Any], where: str) -> None:
    for name in ("client_secret", "client_auth"):
        needed = "client_id" if name == "client_secret" else "client_secret"
        if name in value and needed not in value:
            raise SourceError(f"{where}.{name} does nothing without {needed}")
    redirect = value.get("redirect_uri")
    if redirect is not None and not _is_here(redirect):
        raise SourceError(
            f"{where}.redirect_uri is {redirect!r}; it must be an address of this machine with a port, such as "
            "http://127.0.0.1:8765/callback"
        )


def _is_here(uri: str) -> bool:
    try:
        parts = split_url(uri)
        rest = (parts.username, parts.query, parts.fragment)
        return parts.scheme == "http" and parts.hostname in _LOCAL and bool(parts.port) and not any(rest)
    except ValueError:  # a port that is none
        return False


def client_auth(value: Mapping[str, Any], where: str) -> str:
    """How the client shows its secret. Raises `SourceError`."""
    given = value.get("client_auth", "basic")
    if given not in ("basic", "body"):
        raise SourceError(f'{where}.client_auth must be "basic" or "body"')
    return str(given)


def require_safe(url: str, where: str) -> None:
    """Raises `SourceError` where credentials must not be sent to a URL."""
    if not is_safe(url):
        raise SourceError(f"{where} must be an https:// URL; the credentials are sent there")


def is_safe(url: str) -> bool:
    """Whether credentials may be sent to a URL: only by https, or to this machine."""
    try:
        parts = split_url(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL))


def signing_key(value: Mapping[str, Any], where: str, folder: Path) -> str:
    """The private key of an entry, in PEM: what `private_key` says, or the file of `private_key_file`.

    Raises `SourceError` where there is not exactly one of them, or it cannot sign with `algorithm` (`RS256`).
    """
    if ("private_key" in value) == ("private_key_file" in value):
        raise SourceError(f"{where} needs exactly one of private_key (in PEM) and private_key_file")
    if "private_key" in value:
        key = str(value["private_key"])
    else:
        path = folder / Path(value["private_key_file"]).expanduser()
        try:
            key = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            told = getattr(error, "strerror", None) or "it is not PEM"
            raise SourceError(f"{where}.private_key_file {str(path)!r} cannot be read: {told}") from None
    import jwt

    algorithm = value.get("algorithm", "RS256")
    # One of the symmetric ones would take the key as a password.
    choices = sorted(name for name in jwt.PyJWS().get_algorithms() if name[:2] in ("RS", "ES", "PS", "Ed"))
    if algorithm not in choices:
        raise SourceError(f"{where}.algorithm is {algorithm!r}; the choices are {', '.join(choices)}")
    try:
        jwt.encode({}, key, algorithm=algorithm)
    except Exception as error:
        raise SourceError(
            f"{where}: the private key cannot sign with {algorithm} ({type(error).__name__}); give an unencrypted key "
            "in PEM that fits the algorithm"
        ) from None
    return key


def login_secrets(login: LoginSettings | UserLogin) -> Iterator[str]:
    if isinstance(login, UserLogin):
        if login.refresh_token is not None:
            yield login.refresh_token
        if login.client_id is not None and login.secret is not None:
            yield from _sent_forms(login.client_id, login.secret)
        return
    if login.type == "client_credentials":
        yield from _sent_forms(login.client_id, login.secret)
    else:  # a key in PEM
        yield login.secret
        yield from (line for line in login.secret.splitlines() if line and not line.startswith("-----"))


def _sent_forms(client_id: str, client_secret: str) -> Iterator[str]:
    yield client_secret
    yield quote(client_secret, safe="")
    yield quote_plus(client_secret)
    for user, secret in ((client_id, client_secret), (quote(client_id, safe=""), quote(client_secret, safe=""))):
        yield base64.b64encode(f"{user}:{secret}".encode()).decode()


def _tls(value: Mapping[str, Any], place: str, folder: Path) -> Tls:
    where = f"{place}: tls"
    refuse_unknown(value, _TLS_KEYS, where)
    verify = value.get("verify", True)
    if not isinstance(verify, bool):
        raise SourceError(f"{where}.verify must be true or false")
    texts: dict[str, str] = {}
    for name in _TLS_KEYS - {"verify"}:
        one = value.get(name)
        if one is not None:
            if not isinstance(one, str) or not one:
                raise SourceError(f"{where}.{name} must be a string that is not empty")
            texts[name] = one if name == "key_password" else str(folder / Path(one).expanduser())
    for name in ("key", "key_password"):
        if name in texts and "cert" not in texts:
            raise SourceError(f"{where}.{name} does nothing without cert, the client's certificate")
    if not verify:
        if "ca" in texts:
            raise SourceError(f"{where}: ca does nothing where verify is false; remove one of them")
        logger.warning("%s: verify is false: whoever answers is trusted, and can read and change everything", where)
    tls = Tls(**texts, verify=verify)
    for name in ("ca", "cert", "key"):
        if name in texts and not Path(texts[name]).is_file():
            raise SourceError(f"{where}.{name}: there is no file {texts[name]!r}")
    try:
        tls.context()
    except (OSError, ValueError) as error:
        told = getattr(error, "reason", None) or type(error).__name__
        raise SourceError(
            f"{where}: the files cannot be used ({told}); give certificates and a key that belong together, in PEM"
        ) from None
    return tls


def _proxy(value: Any, place: str, found: list[str]) -> str | Literal[False]:
    if value is False:
        return False
    if not isinstance(value, str):
        raise SourceError(f'{place}: proxy must be a URL such as "http://proxy.example:3128", or false for none')
    proxy = expanded(value, "proxy", place, found)
    try:
        parts = split_url(proxy)
    except ValueError as error:
        raise SourceError(f"{place}: proxy: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SourceError(f"{place}: proxy must begin with http:// or https:// and name a host")
    found += url_secrets(proxy)
    if parts.username is not None:
        found.append(base64.b64encode(f"{parts.username}:{parts.password or ''}".encode()).decode())
    return proxy


def environment_proxy(url: str) -> str | None:
    """The proxy that the environment names for a URL, as `httpx` would find it."""
    parts, proxies = urlsplit(url), getproxies()
    found = proxies.get(parts.scheme, proxies.get("all"))
    if not found or proxy_bypass(parts.hostname or ""):
        return None
    return found if "://" in found else f"http://{found}"


# ---------------------------------------------------------------------------------------------------------------------
# Tokens by client credentials (RFC 6749, section 4.4) over any HTTP client: what is asked, and what is answered.

_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_S = 300
_LONGEST_ERROR = 80


def token_request(
    client: LoginSettings, asked: Mapping[str, str], *, audience: str, learned: Callable[[str], object]
) -> tuple[dict[str, str], dict[str, str]]:
    """The form and the headers of a request for a token. `asked`: what else the form says. `learned`: called with each
    secret that is made here, so that it is never shown."""
    form = {**dict(client.parameters), "grant_type": "client_credentials", **asked}
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
    import uuid

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
