"""Specifications of sources, before anything is started, with what their user may say of them. Secrets stay out of
every repr.

The options are the `toolbake` object of an entry in an `mcp.json`; see `docs/tools.md`. Names of tools may hold `*` and
`?`, as in file names. They are the names that the server gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from ..access import redaction
from ..access.settings import Access, LoginSettings
from ..errors import SourceError
from ..safe_text import did_you_mean
from ..world import WorldSource
from .environment import WORLD_DIR

Isolation = Literal["process", "session", "shared"]
"""Who shares a server: a process (`process`) or a session (`session`) for each world, or one for all (`shared`)."""

Protocol = Literal["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
"""The revisions of MCP. All but the last begin a session with a handshake; the last has no sessions."""

ToolName = Annotated[StrictStr, StringConstraints(min_length=1)]
ToolNames = tuple[ToolName, ...]

WARM_PROCESSES = 2
"""Processes that wait for the next worlds of a command, where its option `warm` says nothing."""

_LONGEST_VALUE = 80
_LISTS = {"roots": "a list of folders"}
"""What an option's list is of, where not of tools."""


class WorldOptions(BaseModel, frozen=True, extra="forbid"):
    """How each world of a server without control tools begins, and how its state is read. One of the two at least."""

    folder: Annotated[StrictStr, StringConstraints(min_length=1)] | None = None
    """A folder that is copied into `${TOOLBAKE_WORLD_DIR}` before each process starts: a path from the folder of the
    `mcp.json`. Its tools then count as simulated, except those that say they reach an open world."""
    state: ToolName | None = None
    """A read-only tool without required arguments, whose result is the state of a world."""

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if self.folder is None and self.state is None:
            raise ValueError("it should have folder, state or both")
        return self


class ServerOptions(BaseModel, frozen=True, extra="forbid"):
    """The options of one server. Every field has a default that leaves the server as it is."""

    isolation: Isolation | None = None
    """Who shares the server; decided by what it offers where None (see `mcp_bridge.sessions.server_source`)."""

    protocol: Protocol | None = None
    """The one revision of MCP to speak with it; agreed on with the server where None."""
    resources: StrictBool = False
    """Offer the server's resources through two tools, `list_resources` and `read_resource`."""
    prompts: StrictBool = False
    """Offer the server's prompts through two tools, `list_prompts` and `get_prompt`."""
    roots: tuple[Annotated[StrictStr, StringConstraints(min_length=1)], ...] | None = None
    """The folders that the server may work in, in place of those of `connect`'s `handlers`: paths from the folder of
    the `mcp.json`, or `file://` URLs."""

    allow: Annotated[ToolNames, Field(min_length=1)] | None = None
    """The tools to use; all where None. What is left out is listed in `Toolset.left_out`."""
    deny: ToolNames = ()
    """Tools to leave out, also where `allow` names them."""
    only_read_only: StrictBool = False
    """Use only tools that are read-only, by annotation or because `read_only` names them."""

    arguments: Literal["lenient", "strict"] | None = None
    """Whether arguments that are likely to be converted there are passed on (`lenient`) or must be valid by the schema
    (`strict`); lenient for live servers and APIs, strict for servers with control tools where None."""

    read_only: ToolNames = ()
    """Tools that change nothing, whatever the server says of them."""
    destructive: ToolNames = ()
    """Tools that may destroy something, whatever the server says of them."""
    idempotent: ToolNames = ()
    """Tools that may be called twice with the effect of once, whatever the server says of them."""

    unmarked_are_destructive: StrictBool = False
    """Count tools that say nothing of themselves as destructive, which is MCP's own default."""
    allow_destructive: ToolNames = ()
    """Destructive tools that training may call for real."""
    allow_shared_state: StrictBool = False
    """Train on it although rollouts see what others changed; its worlds are not tried then."""

    retries: Annotated[StrictInt, Field(ge=0, le=10)] = 2
    """How often a read-only or idempotent call is sent again after its answer was lost."""

    max_concurrency: Annotated[StrictInt, Field(ge=1)] | None = None
    """The most calls that the server works on at once, over all worlds."""
    calls_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = None
    """The most calls in a second, over all worlds; up to a second's worth may come at once."""
    max_result_chars: Annotated[StrictInt, Field(ge=1)] | None = None
    """The most characters of a result's text; `connect`'s `max_result_chars` where None."""

    connect_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = None
    """The longest the server may take to start and answer, in seconds; `connect`'s `connect_timeout_s` where None."""

    warm: Annotated[StrictInt, Field(ge=0)] | None = None
    """How many sessions wait for the next worlds while worlds are opened; 2 for a command, 0 for others where None."""
    max_sessions: Annotated[StrictInt, Field(ge=1)] | None = None
    """The most sessions at once, waiting ones included; more worlds wait. 128 for a command, any number for others
    where None."""
    max_answer_mb: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = 8.0
    """The most megabytes (of 1 000 000 bytes) of one answer; a larger one is not kept, and the call fails."""

    world: WorldOptions | None = None
    """A folder of its own for each world, and the tool that reads the state, for a server without control tools."""

    faults: Mapping[str, Any] | None = None
    """Faults to put into its tools, seeded; see `sandboxes.faults.faults_for`."""

    namespace: Annotated[StrictStr, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,32}$")] | None = None
    """Put before the names of all its tools, with two underscores between: `orders__get`. Where None, only names that
    several sources have are told apart in this way, by the server's own name."""

    @property
    def max_answer_bytes(self) -> int:
        return round(self.max_answer_mb * 1_000_000)


def read_options(value: Any, place: str) -> ServerOptions:
    """The options in a `toolbake` object. Raises `SourceError` that names `place`, the key and the choices."""
    if not isinstance(value, Mapping):
        raise SourceError(
            f'{place}: "toolbake" is {_shown(value)}; it must be an object like {{"isolation": "process"}}'
        )
    for key in value:
        if key not in ServerOptions.model_fields:
            hint = did_you_mean(key, ServerOptions.model_fields)
            if key == "world_template":
                hint = f' Write "world": {{"folder": {_shown(value[key])}}}.'
            known = ", ".join(sorted(ServerOptions.model_fields))
            raise SourceError(
                f'{place}: "toolbake" has an unknown key {redaction.shown_value(key)}.{hint} Known: {known}'
            )
    try:
        return ServerOptions.model_validate(dict(value))
    except ValidationError as error:
        raise SourceError(f"{place}: toolbake.{_explained(error.errors()[0])}") from None


def _explained(problem: ErrorDetails) -> str:
    where = ".".join(str(step) for step in problem["loc"])
    if problem["type"] == "literal_error":
        choices = str(problem.get("ctx", {}).get("expected", "")).replace(" or ", ", ")
        return f"{where} is {_shown(problem['input'])}; the choices are {choices}"
    if problem["type"] == "extra_forbidden":
        return f"{where} is an unknown key. Known in world: {', '.join(WorldOptions.model_fields)}"
    if where == "world" and problem["type"] != "value_error":
        return f'{where} is {_shown(problem["input"])}; it must be an object like {{"folder": "seed/"}}'
    wanted = (
        problem["msg"]
        .replace("a valid tuple", _LISTS.get(where, "a list of tool names"))
        .replace("item after validation", "name")
    )
    return f"{where} is {_shown(problem['input'])}; it must {wanted.partition(' should ')[2] or wanted}"


def _shown(value: Any) -> str:
    text = redaction.shown_value(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


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
    """A live API by its OpenAPI document: a path, a URL or the document itself."""

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
