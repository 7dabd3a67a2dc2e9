"""What a source is, before anything is started. Secrets stay out of every repr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..access import redaction
from ..access.settings import Access, LoginSettings
from ..world import WorldSource
from .environment import WORLD_DIR
from .server_options import ServerOptions

_LONGEST_LABEL = 200

UrlTransport = Literal["streamable", "sse"]
"""How MCP travels over HTTP: `streamable` since 2025-03-26, `sse` before."""


@dataclass(frozen=True)
class StdioSpec:
    """A command that speaks MCP on stdin and stdout."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    options: ServerOptions = field(default_factory=ServerOptions)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What else is never shown; the secrets in the arguments and every value of `env` are added to it."""
    credentials: tuple[str, ...] = field(default=(), repr=False)
    """What is not shown to the policy either (see `mcp_bridge.access.redaction`); those in the arguments and the
    environment are added to it."""
    notes: tuple[str, ...] = ()
    """What the first entry of an `mcp.json` tells of it all: what does nothing here, and which servers are disabled."""

    def __post_init__(self) -> None:
        arguments = redaction.argument_secrets(self._words)
        secrets = (*self.secrets, *arguments, *redaction.environment_secrets(self.env.values()))
        object.__setattr__(self, "secrets", tuple(dict.fromkeys(secrets)))
        given = redaction.argument_secrets(self._words, names=False)
        credentials = (*self.credentials, *given, *redaction.environment_credentials(self.env))
        object.__setattr__(self, "credentials", tuple(dict.fromkeys(credentials)))

    def __repr__(self) -> str:
        return f"StdioSpec({self.label!r})"

    @property
    def label(self) -> str:
        # Cut last: half a secret would no longer be recognized.
        shown = redaction.redacted_command(" ".join(redaction.shown_arguments(self._words)), self.secrets)
        shown = f"{shown[:_LONGEST_LABEL]}..." if len(shown) > _LONGEST_LABEL else shown
        return f"{self.name} ({shown})" if self.name else shown

    @property
    def has_world_dir(self) -> bool:
        """Whether each process is given a folder of its own."""
        return any(WORLD_DIR in text for text in (self.command, *self.args, *self.env.values(), self.cwd or ""))

    @property
    def seed_folder(self) -> str | None:
        """What is copied into the folder of each process; None: it is empty."""
        return self.options.world.folder if self.options.world is not None else None

    def with_world_dir(self, folder: str) -> StdioSpec:
        """As it is started for one world, whose folder is `folder`."""
        return replace(
            self,
            command=self.command.replace(WORLD_DIR, folder),
            args=tuple(arg.replace(WORLD_DIR, folder) for arg in self.args),
            env={name: value.replace(WORLD_DIR, folder) for name, value in self.env.items()},
            cwd=None if self.cwd is None else self.cwd.replace(WORLD_DIR, folder),
        )

    @property
    def _words(self) -> list[str]:
        # Some write a whole command line where the program belongs.
        return [*self.command.split(" "), *self.args]


@dataclass(frozen=True)
class HttpSpec:
    """A server behind a URL. `transport`: found out where None, streamable HTTP first."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    transport: UrlTransport | None = None
    options: ServerOptions = field(default_factory=ServerOptions)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    access: Access = field(default_factory=Access, repr=False)
    credentials: tuple[str, ...] = field(default=(), repr=False)
    """As for a command; those in the headers, the URL and `access` are added to it."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        found = (
            *redaction.header_credentials(self.headers),
            *redaction.text_secrets(self.url, names=False),
            *self.access.credentials,
        )
        object.__setattr__(self, "credentials", tuple(dict.fromkeys((*self.credentials, *found))))

    @property
    def label(self) -> str:
        shown = redaction.redacted(redaction.public_url(self.url), self.secrets)
        return f"{self.name} ({shown})" if self.name else shown

    @property
    def may_have_kept_login(self) -> bool:
        """Whether the user gave nothing that the server takes in place of a login by `toolbake login`."""
        in_url = "@" in self.url.partition("://")[2].partition("/")[0]
        in_headers = any(header.lower() == "authorization" for header in self.headers)
        return not (in_url or in_headers or isinstance(self.access.login, LoginSettings))

    def learn(self, secret: str) -> None:
        """From now on, `secret` is never shown: a token that was fetched."""
        if secret not in self.secrets:
            object.__setattr__(self, "secrets", (*self.secrets, secret))
            object.__setattr__(self, "credentials", (*self.credentials, secret))


@dataclass(frozen=True)
class ServerObjectSpec:
    """An MCP server object of this process. `factory`: called for a server of its own for each world."""

    name: str
    server: Any = field(repr=False)
    factory: Callable[[], Any] | None = field(default=None, repr=False)
    options: ServerOptions = field(default_factory=ServerOptions)
    secrets: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"in-process server {self.name!r}"


@dataclass(frozen=True)
class OpenApiSpec:
    """A live API by its OpenAPI document: a path, a URL or the document itself. See `openapi.openapi_settings`."""

    name: str
    document: str | Mapping[str, Any] = field(repr=False)
    base_url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tags: tuple[str, ...] = ()
    idempotency_header: str | None = None
    slashes_in_path: bool = False
    follow_urls: bool = False
    options: ServerOptions = field(default_factory=ServerOptions)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    access: Access = field(default_factory=Access, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        if isinstance(self.document, Mapping):
            info = self.document.get("info")
            shown = str(info.get("title", "")) if isinstance(info, Mapping) else ""
            shown = f"OpenAPI document {shown!r}"
        else:
            shown = redaction.redacted(redaction.public_url(self.document), self.secrets)
        return f"{self.name} ({shown})" if self.name else shown


@dataclass(frozen=True)
class FunctionSpec:
    """A Python function."""

    function: Callable[..., Any] = field(repr=False)


@dataclass(frozen=True)
class WorldSourceSpec:
    """Something that opens worlds by itself, for example a sandbox."""

    source: WorldSource = field(repr=False)
    label: str


def more_time(spec: ServerSpec | OpenApiSpec, limit_s: float) -> str:
    """How to give a source longer than `limit_s` to connect, in words, for whoever gave it in this way."""
    longer = f"{3 * limit_s:g}"
    entry = f'"toolbake": {{"connect_timeout_s": {longer}}} in its entry of the mcp.json'
    if spec.options.connect_timeout_s is not None:
        return f"set {entry}"
    others = f"connect_timeout_s={longer} in Python, or --connect-timeout {longer} on the command line"
    return f"set {entry}, {others}" if spec.name and not isinstance(spec, ServerObjectSpec) else f"give {others}"


ServerSpec = StdioSpec | HttpSpec | ServerObjectSpec
Spec = ServerSpec | OpenApiSpec | FunctionSpec | WorldSourceSpec
