"""A live API as a source of worlds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx

from ..access.redaction import public_url
from ..errors import SourceError
from ..records import Tool, ToolResult, WorldKind
from ..safe_text import and_more
from ..sources.specs import OpenApiSpec, more_time
from ..toolsets.results import error
from ..world import Setup
from .api_client import Caller, base_of
from .credentials import Credentials
from .document import Document, Operation, read_document
from .references import origin
from .tools import OperationTool, ToolMaker

logger = logging.getLogger(__name__)


class OpenApiSource:
    """The operations of one API as tools. Made by `open_api`.

    The API is live: worlds share whatever it keeps, and nothing can be reset. What a world has of its own are the
    cookies that the API sets in it. Arguments must fit the tool's schema, which a `Toolset` sees to.
    """

    has_state = False
    can_setup = False

    def __init__(self, spec: OpenApiSpec, document: Document) -> None:
        """Raises `SourceError` where there is no base URL, no operation, or `auth` does not fit the document."""
        self._spec = spec
        tls = spec.access.tls
        self._credentials = Credentials(
            document, spec.auth, place=spec.label, has_certificate=tls is not None and tls.cert is not None
        )
        self._base = _base_url(spec, document)
        given = (*spec.headers, *([spec.idempotency_header] if spec.idempotency_header is not None else []))
        fixed = {("header", name.lower()) for name in given} | self._credentials.taken()
        self._maker = ToolMaker(document, source=spec.label, tags=spec.tags, fixed=fixed)
        made, self.left_out = self._maker.make(self._refuse)
        if not made:
            reasons = "; ".join(dict.fromkeys(one.reason for one in self.left_out)) or "it has no operations"
            raise SourceError(f"{spec.label}: no operation can be used: {reasons}")
        self._tools = {one.tool.name: one for one in made}
        self._warn(made)
        self._caller = Caller(spec, self._base, self._credentials, self._maker)

    lenient_arguments = True

    @property
    def world_kind(self) -> WorldKind:
        only_reads = all(tool.annotations.read_only for tool in self.tools)
        return WorldKind(source=self._spec.label, kind="shared", is_fresh=only_reads)

    def __repr__(self) -> str:
        return f"OpenApiSource({self._spec.label!r}, {len(self._tools)} tools)"

    @property
    def spec(self) -> OpenApiSpec:
        """What the user said of the API, with all that must not be written down in `secrets`."""
        return replace(self._spec, secrets=(*self._spec.secrets, *self._credentials.secrets))

    @property
    def tools(self) -> list[Tool]:
        return [one.tool for one in self._tools.values()]

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[_ApiWorld]:
        """A world with cookies of its own. Raises `SourceError` for a setup, which a live API cannot do."""
        if setup:
            raise SourceError(
                f"{self._spec.label} cannot set up world {world_id!r} with {sorted(setup)}: it is a live API. Leave "
                "`setup` empty, or use a sandbox"
            )
        yield _ApiWorld(self._tools, self._caller)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._caller.aclose()

    def _refuse(self, operation: Operation) -> str | None:
        base = base_of(operation, self._spec, self._base)
        if origin(base) == origin(self._base) and not set("?#@") & set(base):
            return None
        return f"its own server is {public_url(operation.servers[0])}; give a base_url to call it there"

    def _warn(self, made: list[OperationTool]) -> None:
        missing = [one for one in made if self._credentials.missing(one.operation)]
        if missing and not self._spec.headers:
            logger.warning(
                "%s: no credentials for %s, which need %s",
                self._spec.label,
                and_more([one.tool.name for one in missing], 5),
                self._credentials.missing(missing[0].operation),
            )


class _ApiWorld:
    def __init__(self, tools: Mapping[str, OperationTool], caller: Caller) -> None:
        self._tools = tools
        self._caller = caller
        self._cookies = httpx.Cookies()

    @property
    def tools(self) -> list[Tool]:
        return [one.tool for one in self._tools.values()]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,  # noqa: ARG002 - the call's key is in its identity
        timeout_s: float | None = None,
    ) -> ToolResult:
        if name not in self._tools:
            return error(f"There is no tool {name!r}.", "unknown_tool")
        return await self._caller.call(self._tools[name], arguments, self._cookies, timeout_s)

    async def state(self) -> dict[str, Any] | None:
        return None


async def open_api(spec: OpenApiSpec, *, connect_timeout_s: float) -> OpenApiSource:
    """Read the document and make its tools. Raises `SourceError`, also where the document does not come in time."""

    def make() -> OpenApiSource:
        return OpenApiSource(spec, _read(spec))

    limit_s = spec.options.connect_timeout_s or connect_timeout_s
    with anyio.move_on_after(limit_s):
        # In a thread: a thousand operations take seconds, and other servers are starting meanwhile.
        return await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
    raise SourceError(f"{spec.label}: the document was not read within {limit_s:g} s; {more_time(spec, limit_s)}")


def _read(spec: OpenApiSpec) -> Document:
    """The headers are for the API's own host, which only the user can say, not the document."""
    is_there = isinstance(spec.document, str) and spec.base_url is not None
    own = is_there and origin(str(spec.document)) == origin(spec.base_url or "")
    headers = spec.headers if own else None
    return read_document(spec.document, follow_urls=spec.follow_urls, access=spec.access, headers=headers)


def _base_url(spec: OpenApiSpec, document: Document) -> str:
    base = spec.base_url if spec.base_url is not None else next(iter(document.servers), "")
    parts = urlsplit(base)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        said = f"the document says {public_url(base)!r}" if base else "the document names no server"
        given = f"base_url is {public_url(base)!r}" if spec.base_url is not None else said
        raise SourceError(
            f'{spec.label}: {given}; give where the API is in mcp.json: {{"openapi": "...", '
            '"base_url": "https://host/path"}, without query and fragment. For training take its twin, which needs no '
            "server: toolbake init --openapi, or sandboxes.api.ApiTwin"
        )
    if parts.username or parts.password:
        raise SourceError(f'{spec.label}: base_url must not hold a user or a password; give them in "auth"')
    return base.rstrip("/")
