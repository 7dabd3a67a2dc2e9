"""Opens the SDK's client for each kind of server. Imports `mcp`, which takes seconds: load it late."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation, ServerNotification

from ..access.logins import ClientLogin, KeptLogin, Login
from ..access.redaction import HiddenInLogs, redacted
from ..access.settings import UserLogin, environment_proxy
from ..control_tools import CONTROL_ENV
from ..errors import SourceError
from ..sources.environment import WORLD_DIR_PREFIX
from ..sources.specs import HttpSpec, ServerObjectSpec, ServerSpec, StdioSpec
from .answering import Answers
from .handlers import Handlers
from .http_client import ContainedClient, HttpFaults, SseStreams
from .listing import Catalogue, Notices, watched
from .messages import Incoming
from .protocol_version import Era, agree, client_mode, is_handshake
from .stdio import ServerProcess, StderrTail, StdioStreams

if TYPE_CHECKING:
    from .connections import Connections


# ---------------------------------------------------------------------------------------------------------------------
# What one session, or one attempt at it, left behind: for the message when it fails, and to tell how it failed.


class Notes:
    """Kept by the transport, read by the session."""

    def __init__(self, secrets: Callable[[], tuple[str, ...]]) -> None:
        """`secrets`: asked each time, because tokens are learned while a session goes on."""
        self._secrets = secrets
        self.http_status: int | None = None
        self.stderr: StderrTail | None = None
        self.process: ServerProcess | None = None
        self.faults = HttpFaults()
        self.is_open = False
        """Set once the session is open: from there on a failed request is not a failure to connect."""
        self.session_id: str | None = None
        """That the server gave this session over HTTP: it may keep something for it."""
        self.gone = anyio.Event()
        """Set where the connection has ended, also while nobody calls."""
        self.why_gone = ""
        self.listener: Callable[[ServerNotification], Awaitable[None]] | None = None
        """Hears what the server tells in this session without being asked, such as its log."""

    def note_end(self, why: str) -> None:
        self.why_gone = self.why_gone or why
        self.gone.set()

    def explain(self) -> str:
        """The end of the server's stderr and the HTTP status, where there are any; secrets replaced."""
        parts = []
        if self.why_gone:
            parts.append(f" {self.why_gone[:1].upper()}{self.why_gone[1:]}.")
        if self.http_status is not None:
            parts.append(f" The server answered HTTP {self.http_status}.")
        if self.stderr is not None:
            text = self.stderr.text()
            parts.append(f" The end of its stderr:\n{text}" if text else " It wrote nothing to stderr.")
        return redacted("".join(parts), self._secrets())

    def redact(self, text: str) -> str:
        return redacted(text, self._secrets())


# ---------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

_eras: dict[tuple[str, ...], Era] = {}
"""How to begin with the server of a command and its environment, in the revision that is asked for; found out once for
each process of ours."""

_CLIENT_INFO = Implementation(name="toolbake", version="1")
_LONGEST_REACH_S = 20.0
"""How long a connection to a host may take to come up; a server behind it may take longer to answer."""
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4.0)
"""Of a session that has connections of its own. They are closed before common servers do, after five seconds: a request
on one that the server just closed is lost. How many calls there are at once is for the guard to say."""
_MOST_STARTS = max(2, os.cpu_count() or 2)
"""Of processes, each of which takes a core for a second: more at once would only run into the time limit."""
_MOST_HANDSHAKES = 64
"""At once with a server behind a URL, where they mostly wait for the network."""


class Transport:
    """How to reach one server, again for each session. Holds what its sessions share."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        connect_timeout_s: float,
        handlers: Handlers | None = None,
        login: Login | None = None,
    ) -> None:
        """`login`: in place of the one that the spec asks for, or that is kept for its server."""
        self.spec = spec
        self.secrets: Callable[[], tuple[str, ...]] = lambda: spec.secrets
        """Asked each time, because tokens are learned while a session goes on."""
        self._in_logs = HiddenInLogs(self.secrets)
        self.connect_timeout_s = spec.options.connect_timeout_s or connect_timeout_s
        given = handlers or Handlers()
        roots = spec.options.roots
        self._handlers = given if roots is None else replace(given, roots=roots)
        self._eras = _eras if isinstance(spec, StdioSpec) else {}
        self._notices = Notices()
        self._incoming = Incoming(spec)
        self.starts = anyio.CapacityLimiter(_MOST_STARTS if isinstance(spec, StdioSpec) else _MOST_HANDSHAKES)
        self._ssl: ssl.SSLContext | None = None
        self._login = login
        self._connections: Connections | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is known how to begin a session."""
        return self._command in self._eras

    @property
    def era(self) -> Era:
        """How to begin the next session."""
        if isinstance(self.spec, HttpSpec) and self.spec.transport == "sse":
            return "sse"
        return self._eras.get(self._command, "auto")

    def remember(self, era: Era, version: str) -> None:
        """`version`: what a session begun as `era` speaks. A server that shook hands is not asked for more again."""
        if era == "auto" and is_handshake(version):
            era = "legacy"
        self._eras[self._command] = era

    def forget(self) -> None:
        self._eras.pop(self._command, None)

    @property
    def _command(self) -> tuple[str, ...]:
        spec = self.spec
        if not isinstance(spec, StdioSpec):
            return ()
        env = (f"{name}={value}" for name, value in sorted(spec.env.items()))
        return (spec.options.protocol or "", spec.cwd or "", spec.command, *spec.args, *env)

    @contextlib.asynccontextmanager
    async def open(self, era: Era, notes: Notes) -> AsyncIterator[Catalogue]:
        """What the server offers, not yet listed, through an entered client. Enter and leave it in one task.

        `notes` gathers what explains a failure.
        """
        spec, asked = self.spec, self.spec.options.protocol
        own = Notices()
        answers = Answers(self._handlers, label=spec.label, secrets=self.secrets)

        async def hear(message: ServerNotification | Exception) -> None:
            await own.hear(message)
            if notes.listener is not None and not isinstance(message, Exception):
                await notes.listener(message)

        options = {
            "mode": client_mode(era, asked),
            "client_info": _CLIENT_INFO,
            "message_handler": hear,
            "cache": None,  # every listing is the server's present one
            **answers.client_options(),
        }
        opened: AbstractAsyncContextManager[Client]
        if isinstance(spec, StdioSpec):
            opened = _stdio(spec, options, notes, self._incoming)
        elif isinstance(spec, HttpSpec):
            opened = self._http(spec, era, options, notes)
        else:
            opened = Client(spec.factory() if spec.factory is not None else spec.server, **options)
        async with opened as client:
            answers.install(client)
            await agree(client, asked, answers.capabilities())
            await answers.ask_for_log(client)
            # Without sessions the list is the server's own, the same for all: one of them listens.
            has_server = isinstance(spec, StdioSpec) or (
                isinstance(spec, ServerObjectSpec) and spec.factory is not None
            )
            is_own = has_server or is_handshake(client.protocol_version)
            notices = own if is_own else self._notices
            async with watched(client, notices):
                yield Catalogue(client, spec.options, notices, answers, label=spec.label)

    async def take_kept_login(self) -> bool:
        """Use the login that `toolbake login` keeps for the server. Whether there is one that was not used before."""
        spec = self.spec
        if self._login is not None or not isinstance(spec, HttpSpec) or not spec.may_have_kept_login:
            return False
        settings = spec.access.login
        kept = KeptLogin(spec.url, settings if isinstance(settings, UserLogin) else None, spec.learn)
        if not await kept.load():
            return False
        self._login = kept
        return True

    @contextlib.asynccontextmanager
    async def _http(self, spec: HttpSpec, era: Era, options: dict[str, Any], notes: Notes) -> AsyncIterator[Client]:
        if self._ssl is None:
            # Making one takes 50 ms: all sessions share it. Each has a client of its own, because the
            # cost of one shared connection pool grows with the sessions.
            self._ssl = spec.access.tls.context() if spec.access.tls else httpx2.create_ssl_context()
        if self._login is None and spec.access.login is not None:
            if isinstance(spec.access.login, UserLogin):
                await self.take_kept_login()
            else:
                self._login = ClientLogin(spec.access.login, spec.url, spec.learn)
        where, address, basic = httpx2.URL(spec.url), spec.url, None
        if where.userinfo:
            # Taken out: httpx2 writes addresses into its log, and our connections take no login beside a header.
            basic = httpx2.BasicAuth(where.username, where.password)
            where = where.copy_with(username=None, password=None)
            address = str(where)

        async def note_status(response: httpx2.Response) -> None:
            # One status says little of a session that goes on: later ones come with their call.
            # A server that asks for a login may refuse what the SDK tries after that in other ways.
            is_news = response.status_code >= 400 and not notes.is_open and notes.http_status != 401
            if is_news and _same_place(response.request.url, where):
                notes.http_status = response.status_code
            if not notes.is_open:
                notes.session_id = response.headers.get("mcp-session-id", notes.session_id)

        # No read limit here: a call's own time limit is the bridge's.
        timeout = httpx2.Timeout(min(self.connect_timeout_s, _LONGEST_REACH_S), read=None)
        settings: dict[str, Any] = {
            "headers": dict(spec.headers),
            "timeout": timeout,
            "verify": self._ssl,
            "event_hooks": {"response": [note_status]},
            "auth": self._login or basic,
            "proxy": spec.access.proxy or None,
            "trust_env": spec.access.proxy is None,
        }
        if era == "sse":
            notes.session_id = "of the stream"
            async with httpx2.AsyncClient(**settings) as http:
                streams = SseStreams(address, http, self._incoming, notes.note_end)
                async with Client(streams.open(), **options) as client:
                    yield client
            return
        from .connections import AiohttpTransport  # loads aiohttp, which other servers do without
        from .direct_calls import DirectCalls

        most = spec.options.max_answer_bytes
        async with self._connected(spec) as connections, contextlib.AsyncExitStack() as stack:
            transport = None if connections is None else AiohttpTransport(connections)
            contained = ContainedClient(notes, most, limits=_LIMITS, transport=transport, **settings)
            http = await stack.enter_async_context(contained)
            # The size of events is bounded by `ContainedClient`, whose fault costs one call and not the session.
            streamable = streamable_http_client(address, http_client=http, max_sse_event_size=None)
            calls = DirectCalls(streamable, http, transport, spec.url, notes, most_bytes=most)
            yield await stack.enter_async_context(Client(calls.open(), **options))

    @contextlib.asynccontextmanager
    async def _connected(self, spec: HttpSpec) -> AsyncIterator[Connections | None]:
        """The connections of all sessions, or None where each session makes its own: through a proxy, and in trio."""
        from .connections import Connections

        proxy = spec.access.proxy
        if proxy or (proxy is None and environment_proxy(spec.url)) or not _on_asyncio():
            yield None
            return
        if self._connections is None:
            assert self._ssl is not None
            self._connections = Connections(self._ssl)
        async with self._connections.used():
            yield self._connections


@contextlib.asynccontextmanager
async def _stdio(spec: StdioSpec, options: dict[str, Any], notes: Notes, incoming: Incoming) -> AsyncIterator[Client]:
    tail = notes.stderr = StderrTail()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(tail.follow)
            async with _with_world_dir(spec) as own, Client(_started(own, tail, notes, incoming), **options) as client:
                yield client
            group.cancel_scope.cancel()
    finally:
        tail.close()


@contextlib.asynccontextmanager
async def _with_world_dir(spec: StdioSpec) -> AsyncIterator[StdioSpec]:
    """The spec with a fresh folder of its own where it names one; the folder is removed in the end."""
    if not spec.has_world_dir:
        yield spec
        return
    folder = await anyio.to_thread.run_sync(_new_world_dir, spec.seed_folder)
    try:
        yield spec.with_world_dir(folder)
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await anyio.to_thread.run_sync(shutil.rmtree, folder)
            except (OSError, RecursionError) as error:
                logger.warning("the folder of a world of %s cannot be removed: %s", spec.label, error)


def _new_world_dir(seed: str | None) -> str:
    folder = tempfile.mkdtemp(prefix=WORLD_DIR_PREFIX)
    try:
        if seed is not None:
            shutil.copytree(seed, folder, symlinks=True, dirs_exist_ok=True, copy_function=_copy)
            _refuse_links_outside(folder, seed)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


_PIECE = 2**30


def _copy(source: str, target: str) -> str:
    """As `shutil.copy2`. Where the file system can, as Btrfs and XFS, both files have the same blocks until one is
    written to."""
    try:
        if hasattr(os, "copy_file_range") and os.path.isfile(source):
            with open(source, "rb") as ours, open(target, "wb") as theirs:
                while os.copy_file_range(ours.fileno(), theirs.fileno(), _PIECE):
                    pass
            shutil.copystat(source, target)
            return target
    except OSError:
        pass  # such as between two file systems; a file that cannot be read fails below as well
    return str(shutil.copy2(source, target))


def _refuse_links_outside(folder: str, seed: str) -> None:
    """A link that leaves the copy would let one world write what all others, and the user, see."""
    inside = os.path.realpath(folder)
    for here, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(here, name)
            if os.path.islink(path) and os.path.commonpath((inside, os.path.realpath(path))) != inside:
                found = os.path.join(seed, os.path.relpath(path, folder))
                raise SourceError(
                    f"world.folder: {found!r} is a link to {os.readlink(path)!r}, which leaves the folder, so a world "
                    "could change what is there; put a copy in its place, or a relative link inside the folder"
                )


@contextlib.asynccontextmanager
async def _started(spec: StdioSpec, tail: StderrTail, notes: Notes, incoming: Incoming) -> AsyncIterator[Any]:
    env = {**get_default_environment(), CONTROL_ENV: "1", **spec.env}
    if sys.platform == "win32":
        # Process groups are a matter of POSIX; there the SDK puts a server and what it starts into a job.
        parameters = StdioServerParameters(
            command=spec.command, args=list(spec.args), env=env, cwd=spec.cwd, encoding_error_handler="replace"
        )
        async with stdio_client(parameters, errlog=tail.file) as streams:
            tail.close_write_end()
            yield streams
        return
    process = notes.process = ServerProcess([spec.command, *spec.args], env=env, cwd=spec.cwd, stderr=tail.file)
    tail.close_write_end()
    async with StdioStreams(process, incoming, notes.note_end).open() as streams:
        yield streams


def _same_place(url: httpx2.URL, other: httpx2.URL) -> bool:
    """Whether both are the server itself; a login has requests of its own."""
    return (url.scheme, url.netloc, url.path) == (other.scheme, other.netloc, other.path)


def _on_asyncio() -> bool:
    """Whether the current task is one of asyncio's."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
