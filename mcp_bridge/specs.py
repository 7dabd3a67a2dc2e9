"""What a source is, before anything is started. Secrets stay out of every repr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from .world import WorldSource

Isolation = Literal["process", "session", "shared"]
"""Who shares a server: a process (`process`) or a session (`session`) for each world, or one for all (`shared`)."""

_SHORTEST_SECRET = 6


@dataclass(frozen=True)
class StdioSpec:
    """A command that speaks MCP on stdin and stdout."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    isolation: Isolation | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        shown = " ".join([self.command, *self.args])
        shown = f"{shown[:200]}..." if len(shown) > 200 else shown
        return redacted(f"{self.name} ({shown})" if self.name else shown, self.secrets)


@dataclass(frozen=True)
class HttpSpec:
    """A server behind a URL, over streamable HTTP."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    isolation: Isolation | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        shown = redacted(public_url(self.url), self.secrets)
        return f"{self.name} ({shown})" if self.name else shown


@dataclass(frozen=True)
class ServerObjectSpec:
    """An MCP server object of this process. `factory`: called for a server of its own for each world."""

    name: str
    server: Any = field(repr=False)
    factory: Callable[[], Any] | None = field(default=None, repr=False)
    isolation: Isolation | None = None
    secrets: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"in-process server {self.name!r}"


@dataclass(frozen=True)
class FunctionSpec:
    """A Python function."""

    function: Callable[..., Any] = field(repr=False)


@dataclass(frozen=True)
class WorldSourceSpec:
    """Something that opens worlds by itself, for example a sandbox."""

    source: WorldSource = field(repr=False)
    label: str


ServerSpec = StdioSpec | HttpSpec | ServerObjectSpec
Spec = ServerSpec | FunctionSpec | WorldSourceSpec


def public_url(url: str) -> str:
    """A URL without user, password, query and fragment, where tokens are often kept."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def url_secrets(url: str) -> tuple[str, ...]:
    """The parts of a URL that `public_url` leaves out."""
    parts = urlsplit(url)
    values = [value for _, value in parse_qsl(parts.query)]
    return tuple(part for part in (parts.username, parts.password, parts.query, parts.fragment, *values) if part)


def redacted(text: str, secrets: tuple[str, ...]) -> str:
    """`text` with every secret value replaced; very short values are left, they would blank out ordinary words."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text
