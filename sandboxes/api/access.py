"""The caller of an API twin: the security schemes it has credentials for, with their scopes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mcp_bridge.errors import SourceError
from mcp_bridge.openapi.document import Document, Operation, SecurityScheme
from mcp_bridge.safe_text import did_you_mean

from .requests import Problem

SIGNED_OUT = "signed_out"
"""The scenario in which the caller has no credential."""

_UNKNOWN_CALLER = (401, 403)
_NOT_ALLOWED = (403, 401)

Held = Mapping[str, frozenset[str] | None]
"""Scheme -> its scopes; all where None."""


def asks_for_credentials(document: Document) -> bool:
    """Whether any operation refuses callers without a credential."""
    return any(operation.security and all(operation.security) for operation in document.operations)


def held_credentials(
    document: Document, given: Mapping[str, Collection[str] | None] | None, *, name: str
) -> dict[str, frozenset[str] | None]:
    """The caller's credentials, as the user gives them; all where None. Raises `SourceError` for another scheme."""
    known = document.security_schemes
    if given is None:
        return dict.fromkeys(known)
    for scheme in given:
        if scheme not in known:
            raise SourceError(
                f"{name}: credentials names {scheme!r}; the security schemes of the document are "
                f"{', '.join(known) or 'none'}.{did_you_mean(scheme, known)}"
            )
    if any(isinstance(scopes, str) for scopes in given.values()):
        raise SourceError(f"{name}: the scopes of a credential must be a list of strings, or None for all of them")
    return {scheme: None if scopes is None else frozenset(scopes) for scheme, scopes in given.items()}


def require_access(operation: Operation, held: Held) -> None:
    """Raises `Problem` where the caller may not do that: 401 without a credential, 403 without its scopes."""
    lacking: list[str] | None = None
    for alternative in operation.security:
        if any(scheme not in held for scheme in alternative):
            continue
        missing = [
            scope
            for scheme, scopes in alternative.items()
            if (own := held[scheme]) is not None
            for scope in scopes
            if scope not in own
        ]
        if not missing:
            return
        lacking = lacking or missing
    if lacking is not None:
        raise Problem(_NOT_ALLOWED, f"The credential lacks the scope {', '.join(lacking)}.")
    if operation.security:
        raise Problem(_UNKNOWN_CALLER, f"This needs a credential: {needs(operation)}.")


def needs(operation: Operation) -> str:
    """The credentials that an operation takes, in words; empty where it takes anybody."""
    if not operation.security or not all(operation.security):
        return ""
    return " or ".join(" with ".join(alternative) for alternative in operation.security)


def brought(
    document: Document, headers: Mapping[str, str], query: Collection[tuple[str, str]]
) -> dict[str, frozenset[str] | None]:
    """The schemes for which a request over HTTP brings something. A twin knows no secrets: any value will do."""
    named = dict(query)
    return {name: None for name, scheme in document.security_schemes.items() if _is_brought(scheme, headers, named)}


def _is_brought(scheme: SecurityScheme, headers: Mapping[str, str], query: Mapping[str, Any]) -> bool:
    word, _, value = headers.get("authorization", "").partition(" ")
    if scheme.kind == "apiKey":
        cookies = dict(one.strip().partition("=")[::2] for one in headers.get("cookie", "").split(";"))
        places = {"header": headers.get(scheme.parameter.lower()), "query": query.get(scheme.parameter)}
        return bool(places.get(scheme.location, cookies.get(scheme.parameter)))
    if scheme.kind == "http":
        return word.lower() == scheme.scheme and bool(value)
    return scheme.kind in ("oauth2", "openIdConnect") and word.lower() == "bearer" and bool(value)
