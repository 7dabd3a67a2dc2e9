"""A live API as a source of worlds, and its HTTP client: one pool of connections, its credentials, and never another
host."""

from __future__ import annotations

import contextlib
import http.cookiejar
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote_plus, urljoin

import anyio
import anyio.to_thread
import httpx

from ..access.redaction import HiddenInLogs, Hiding, public_url, redacted, split_url
from ..access.settings import environment_proxy
from ..errors import CallTimeout, SourceError, ToolFailure
from ..ledger import current_call
from ..records import Tool, ToolResult, WorldKind, error_result
from ..safe_text import and_more
from ..sources.specs import OpenApiSpec, more_time
from ..world import Setup, SharedWorld
from .credentials import Credentials, Fixed, Tokens
from .document import Document, Operation, read_document
from .paging import next_page, told_of
from .references import origin
from .requests import Prepared, Unwritable, prepare
from .responses import Answer, to_result
from .tools import OperationTool, ToolMaker

logger = logging.getLogger(__name__)

_MOST_CONNECTIONS = 256
_KEEP_ALIVE_S = 4.0
"""Below the five seconds after which common servers close an idle connection: a request on one of those is lost."""
_CONNECT_TIMEOUT_S = 10.0
_TIMEOUT_S = 30.0
_MOST_REDIRECTS = 5
_SECRET_QUERY = "toolbake_secret_query"
_OWN_COOKIES = "toolbake_own_cookies"

# A request that failed so has not left this process.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.LocalProtocolError)


class OpenApiSource:
    """The operations of one API as tools. Made by `open_api`.

    The API is live: worlds share whatever it keeps, and nothing can be reset. What a world has of its own are the
    cookies that the API sets in it. Arguments must fit the tool's schema, which a `Toolset` sees to.
    """

    has_state = False
    can_setup = False
    lenient_arguments = True

    def __init__(self, spec: OpenApiSpec, document: Document) -> None:
        """Raises `SourceError` where there is no base URL, no operation, or `auth` does not fit the document."""
        self._spec = spec
        tls = spec.access.tls
        self._credentials = Credentials(
            document,
            spec.auth,
            place=spec.label,
            has_certificate=tls is not None and tls.cert is not None,
            headers=spec.headers,
        )
        self._base = _base_url(spec, document)
        given = (*spec.headers, *([spec.idempotency_header] if spec.idempotency_header is not None else []))
        fixed = {("header", name.lower()) for name in given} | self._credentials.taken()
        self._maker = ToolMaker(document, source=spec.label, tags=spec.tags, fixed=fixed, is_live=True)
        made, self.left_out = self._maker.make(self._refuse)
        if not made:
            reasons = "; ".join(dict.fromkeys(one.reason for one in self.left_out)) or "it has no operations"
            raise SourceError(f"{spec.label}: no operation can be used: {reasons}")
        self._tools = {one.tool.name: one for one in made}
        self._warn(made)
        self._caller = _Caller(spec, self._base, self._credentials, self._maker)

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
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[SharedWorld]:
        """A world with cookies of its own. Raises `SourceError` for a setup, which a live API cannot do."""
        if setup:
            raise SourceError(
                f"{self._spec.label} cannot set up world {world_id!r} with {sorted(setup)}: it is a live API. Leave "
                "`setup` empty, or use a sandbox"
            )
        cookies = httpx.Cookies()

        async def answer(name: str, arguments: Mapping[str, Any], timeout_s: float | None) -> ToolResult:
            if name not in self._tools:
                return error_result(f"There is no tool {name!r}.", "unknown_tool")
            return await self._caller.call(self._tools[name], arguments, cookies, timeout_s)

        yield SharedWorld(self.tools, answer)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._caller.aclose()

    def _refuse(self, operation: Operation) -> str | None:
        base = _base_of(operation, self._spec, self._base)
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
    try:
        parts = split_url(base)
    except ValueError as error:
        raise SourceError(f"{spec.label}: {error}; give where the API is as base_url") from None
    is_open = spec.base_url is None and "{" in base
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or is_open:
        said = f"the document says {public_url(base)!r}" if base else "the document names no server"
        given = f"base_url is {public_url(base)!r}" if spec.base_url is not None else said
        given += ", and has no default for its variables" if is_open else ""
        raise SourceError(
            f'{spec.label}: {given}; give where the API is in mcp.json: {{"openapi": "...", '
            '"base_url": "https://host/path"}, without query and fragment. For training take its twin, which needs no '
            "server: toolbake init --openapi, or sandboxes.api.ApiTwin"
        )
    if parts.username or parts.password:
        raise SourceError(f'{spec.label}: base_url must not hold a user or a password; give them in "auth"')
    return base.rstrip("/")


class _Caller:
    """All worlds call through this one. It has no cookies of its own: those belong to the worlds."""

    def __init__(self, spec: OpenApiSpec, base_url: str, credentials: Credentials, maker: ToolMaker) -> None:
        self._spec = spec
        self._base = httpx.URL(base_url)
        self._credentials = credentials
        self._maker = maker
        self._secrets = tuple(dict.fromkeys((*spec.secrets, *credentials.secrets)))
        self._hiding = Hiding(lambda: self._secrets, spec.label)
        self._in_logs = HiddenInLogs(lambda: self._secrets)
        limits = httpx.Limits(
            max_connections=_MOST_CONNECTIONS,
            max_keepalive_connections=_MOST_CONNECTIONS,
            keepalive_expiry=_KEEP_ALIVE_S,
        )
        tls, proxy = spec.access.tls, spec.access.proxy
        verify = True if tls is None else tls.context()
        to_api = environment_proxy(base_url) if proxy is None else proxy or None
        self._client = httpx.AsyncClient(
            limits=limits,
            verify=verify,
            proxy=proxy or None,
            trust_env=proxy is None,
            mounts={
                _origin(self._base): _AddsSecrets(httpx.AsyncHTTPTransport(limits=limits, verify=verify, proxy=to_api))
            },
            cookies=http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[])),
            headers={"User-Agent": "toolbake", "Accept": "application/json, text/*;q=0.9, */*;q=0.8"},
            follow_redirects=False,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def call(
        self, tool: OperationTool, arguments: Mapping[str, Any], cookies: httpx.Cookies, timeout_s: float | None
    ) -> ToolResult:
        """Call an operation. `cookies`: those of the world; what the answer sets is kept in them.

        Raises `ToolFailure`; no message and no result shows a secret.
        """
        reserved = self._credentials.names_in_query(tool.operation)
        try:
            prepared = prepare(
                tool.operation,
                tool.plan,
                arguments,
                reserved=reserved,
                slashes=self._spec.slashes_in_path,
            )
            self._maker.refuse_read_only(tool, prepared)
            access, tokens = self._credentials.for_operation(tool.operation, self._learn)
            request = self._request(tool.operation, prepared, access, cookies, timeout_s)
        except Unwritable as problem:
            text = f"Invalid arguments for {tool.tool.name}; nothing was called.\n- {problem}"
            return error_result(text, "invalid_arguments")
        where = f"{tool.operation.method.upper()} {tool.operation.path} of {self._spec.label}"
        try:
            answer = await self._answer(request, tokens, cookies, tool.operation, where)
            has_credentials = self._spec.headers or access.headers or access.query or access.cookies
            result = to_result(
                answer,
                where,
                needs="" if has_credentials else self._credentials.missing(tool.operation),
                declared=str(answer.status) in tool.operation.responses,
                prune=lambda value: self._maker.pruned(tool.operation, answer.status, value),
                hide=self._hiding.text,
            )
            if answer.next_page is not None and not result.is_error:
                more = told_of(answer.next_page, tool.plan, prepared.query, reserved=reserved)
                # Before the page, which may be cut at its end.
                result = result.model_copy(update={"text": f"{more}\n{result.text}"})
            return self._hiding.result(result)
        except ToolFailure as failure:
            failure.args = (redacted(str(failure), self._secrets),)
            raise

    def _request(
        self,
        operation: Operation,
        prepared: Prepared,
        access: Fixed,
        cookies: httpx.Cookies,
        timeout_s: float | None,
    ) -> httpx.Request:
        base = httpx.URL(_base_of(operation, self._spec, str(self._base)))
        path = base.raw_path.rstrip(b"/") + prepared.path.encode("ascii")
        target = path + (b"?" + prepared.query.encode("ascii") if prepared.query else b"")
        url = self._base.copy_with(raw_path=target)
        if url.raw_path != target or url.host != self._base.host:
            raise Unwritable(f"the path {prepared.path!r} would be read as another one")
        headers = {**prepared.headers, **self._spec.headers, **access.headers}
        identity = current_call()
        if self._spec.idempotency_header is not None and identity is not None:
            headers[self._spec.idempotency_header] = identity.key
        content: dict[str, Any] = {}
        if prepared.body is not None and prepared.body.content is not None:
            content["content"] = prepared.body.content
            headers["Content-Type"] = str(prepared.body.content_type)
        elif prepared.body is not None:
            content["files"] = prepared.body.parts
        limit_s = _TIMEOUT_S if timeout_s is None else timeout_s
        timeout = httpx.Timeout(limit_s, connect=min(limit_s, _CONNECT_TIMEOUT_S))
        own_cookies = {**prepared.cookies, **access.cookies}
        extensions = {_SECRET_QUERY: access.query, _OWN_COOKIES: own_cookies, "timeout": timeout.as_dict()}
        request = self._client.build_request(operation.method, url, headers=headers, extensions=extensions, **content)
        _add_cookies(request, cookies, own_cookies)
        return request

    def _learn(self, secret: str) -> None:
        # A new tuple, by which it is seen that there is more to hide.
        if secret not in self._secrets:
            self._secrets = (*self._secrets, secret)

    async def _answer(
        self, request: httpx.Request, tokens: Tokens | None, cookies: httpx.Cookies, operation: Operation, where: str
    ) -> Answer:
        for _ in range(_MOST_REDIRECTS + 1):
            answer, response = await self._send(request, tokens, where)
            cookies.extract_cookies(response)
            if not response.has_redirect_location or str(answer.status) in operation.responses:
                return answer
            request = self._redirected(request, response, answer, cookies, where)
        raise ToolFailure(f"{where} redirects more than {_MOST_REDIRECTS} times", delivery="answered")

    async def _send(self, request: httpx.Request, auth: Tokens | None, where: str) -> tuple[Answer, httpx.Response]:
        try:
            response = await self._client.send(request, stream=True, auth=auth, follow_redirects=False)
            try:
                content = await self._read(response, where)
            finally:
                await response.aclose()
        except _NOT_SENT as problem:
            raise ToolFailure(f"{where} cannot be reached: {_words(problem)}", delivery="not_sent") from None
        except httpx.TimeoutException as problem:
            raise CallTimeout(f"{where} did not answer in time: {_words(problem)}") from None
        except httpx.DecodingError as problem:
            raise ToolFailure(f"{where} sent a broken answer: {_words(problem)}", delivery="answered") from None
        except httpx.RequestError as problem:
            raise ToolFailure(f"{where} was cut off: {_words(problem)}", delivery="unknown") from None
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status_code, headers, content, next_page(response)), response

    async def _read(self, response: httpx.Response, where: str) -> bytes:
        most = self._spec.options.max_answer_bytes
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > most:
                raise ToolFailure(
                    f"{where} answered with more than {most} bytes, which are not kept. Ask for less, or raise "
                    '"toolbake": {"max_answer_mb": ...}',
                    delivery="answered",
                )
            chunks.append(chunk)
        return b"".join(chunks)

    def _redirected(
        self, request: httpx.Request, response: httpx.Response, answer: Answer, cookies: httpx.Cookies, where: str
    ) -> httpx.Request:
        """The next request of a redirect. Only to the same scheme, host and port: credentials travel with it."""
        following = response.next_request
        same_method = request.method in {"GET", "HEAD"} or answer.status in {303, 307, 308}
        if following is None or _origin(following.url) != _origin(request.url) or not same_method:
            target = following.url.copy_with(query=None) if following else "nowhere"
            raise ToolFailure(
                f"{where} was answered with {answer.line} to {target}, which is not followed: credentials stay with "
                "the host they are for. If the API has moved, set base_url",
                delivery="answered",
            )
        following.extensions = dict(request.extensions)
        following.url = _without(following.url, request.extensions[_SECRET_QUERY])
        following.headers.pop("Cookie", None)
        _add_cookies(following, cookies, request.extensions[_OWN_COOKIES])
        return following


class _AddsSecrets(httpx.AsyncBaseTransport):
    """Adds keys to the query below the client, which logs every URL."""

    def __init__(self, inner: httpx.AsyncHTTPTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        secret: Mapping[str, str] = request.extensions.get(_SECRET_QUERY, {})
        if secret:
            added = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in secret.items())
            path, _, query = request.url.raw_path.partition(b"?")
            target = path + b"?" + (query + b"&" if query else b"") + added.encode("ascii")
            request = httpx.Request(
                request.method,
                request.url.copy_with(raw_path=target),
                headers=request.headers,
                stream=request.stream,
                extensions=request.extensions,
            )
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _without(url: httpx.URL, names: Collection[str]) -> httpx.URL:
    """`url` without what its query has under these names: servers repeat the query of a call where they redirect it."""
    path, _, query = url.raw_path.partition(b"?")
    kept = [one for one in query.split(b"&") if unquote_plus(one.partition(b"=")[0].decode("ascii")) not in names]
    return url.copy_with(raw_path=path + (b"?" + b"&".join(kept) if any(kept) else b""))


def _add_cookies(request: httpx.Request, jar: httpx.Cookies, own: Mapping[str, str]) -> None:
    jar.set_cookie_header(request)
    pairs = [request.headers["Cookie"]] if "Cookie" in request.headers else []
    pairs += [f"{name}={value}" for name, value in own.items()]
    if pairs:
        request.headers["Cookie"] = "; ".join(pairs)


def _base_of(operation: Operation, spec: OpenApiSpec, base: str) -> str:
    """Where the operation is called: at the server of its own, unless the user said where the API is."""
    return urljoin(base, operation.servers[0]) if operation.servers and spec.base_url is None else base


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _words(problem: Exception) -> str:
    return f"{type(problem).__name__} {problem}".strip()
