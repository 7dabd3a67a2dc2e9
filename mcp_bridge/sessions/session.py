"""One MCP session with a task of its own.

The SDK's client must be entered and left in the same task, and an error of the transport cancels the task that
entered it. So each session has an owner task that does nothing else; calls come from any task, many at once.

A session is *dead* once its connection is known to have ended, and *doubtful* after something that may be a sign of
it: a call that was given up, a connection that failed. A doubtful one is asked before the next call depends on it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import pydantic
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

from ..access.redaction import without_inputs
from ..control_tools import CONTROL_META
from ..errors import Delivery, ServerDied, ToolFailure
from ..records import ErrorKind, ToolResult, error_result
from ..safe_text import and_more
from ..sources.environment import WORLD_DIR
from ..sources.specs import HttpSpec, ServerObjectSpec, StdioSpec, more_time
from .answering import is_refusal
from .listing import NotOffered
from .messages import CLOSED, Fault, is_answer, is_closed, is_made_by_the_client
from .protocol_version import Era, WrongProtocol
from .tasks import TaskInterrupted
from .transports import Notes, Transport

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

    from .listing import Catalogue


# ---------------------------------------------------------------------------------------------------------------------
# Why a session did not come up, in words that say what to do.


_MOST_PROBLEMS = 3


class CannotOpen(Exception):
    """A session did not come up. The message is complete and holds no secret."""

    def __init__(self, message: str, *, died: bool = False, wants_login: bool = False) -> None:
        super().__init__(message)
        self.wants_login = wants_login
        """True where the server refused a request that came without any login."""
        self.died = died
        """True where the server started and then ended, which a server of the older era may do."""


def cannot_open(transport: Transport, failure: BaseException | None, notes: Notes) -> CannotOpen:
    """The error for a session that `failure` kept from opening."""
    label = transport.spec.label
    failure = innermost(failure)
    explained = notes.explain()
    if isinstance(failure, TimeoutError):
        limit = transport.connect_timeout_s
        return CannotOpen(
            f"{label} did not answer within {limit:g} s and was given up. Is it an MCP server that speaks on "
            f"this transport? If it is only slow, {more_time(transport.spec, limit)}.{explained}"
        )
    refused = notes.http_status is not None and (notes.http_status in {401, 403} or notes.http_status >= 500)
    cause = failure.__cause__ if isinstance(failure, WrongProtocol) else failure
    fault = notes.faults.of(cause)
    if fault is not None or refused or (cause is not None and is_closed(cause)):
        failure = cause  # a server that did not answer speaks no other revision for that
    if isinstance(failure, WrongProtocol | NotOffered):
        return CannotOpen(f"{label}: {failure}.{explained if notes.http_status is not None else ''}")
    if isinstance(transport.spec, StdioSpec):
        return _cannot_start(transport.spec, failure, notes, explained)
    if fault is not None and fault.kind == "login":
        return CannotOpen(f"{label}: {notes.redact(fault.message)}")
    spec = transport.spec
    if notes.http_status == 401 and isinstance(spec, HttpSpec) and spec.may_have_kept_login:
        which = f"MCP_JSON --server {spec.name}" if spec.name else "URL"
        told = f"log in with `toolbake login {which}`, or set the right `headers` or `auth` for it"
        return CannotOpen(f"{label} refused us; {told}.{explained}", wants_login=True)
    if notes.http_status in {401, 403}:
        return CannotOpen(f"{label} refused us; set the right `headers` or `auth` for it.{explained}")
    told = notes.redact(fault.message if fault else _named(failure))
    return CannotOpen(f"{label} cannot be reached ({told}). Is the server running, and is the path right?{explained}")


def _cannot_start(spec: StdioSpec, failure: BaseException | None, notes: Notes, explained: str) -> CannotOpen:
    if failure is not None and is_closed(failure):
        if notes.stderr is not None and not notes.stderr.text():
            explained += " A program that defines a server must also run it, as `server.run()` does."
        return CannotOpen(
            f"{spec.label} ended before it answered as an MCP server. Run the command by hand to see why.{explained}",
            died=True,
        )
    if isinstance(failure, FileNotFoundError | NotADirectoryError | PermissionError):
        # A cwd in the folder of a world is another one in each.
        cwd = (spec.cwd or "").removeprefix(WORLD_DIR)
        if cwd and str(failure.filename).endswith(cwd):
            return CannotOpen(
                f"{spec.label}: cwd {notes.redact(spec.cwd or '')!r} is not a folder that can be entered."
            )
        fix = "Give the full path of a program, or install it so that it is on PATH."
        if len(words := notes.redact(spec.command).split()) > 1:
            fix = (
                "Where it holds arguments, give them apart from the program: "
                f'"command": {json.dumps(words[0])}, "args": {json.dumps([*words[1:], *map(notes.redact, spec.args)])}.'
            )
        return CannotOpen(
            f"{spec.label}: the command {notes.redact(spec.command)!r} cannot be started ({failure.strerror}). {fix}"
        )
    told = notes.redact(_named(failure))
    return CannotOpen(f"{spec.label} cannot be started as an MCP server ({told}).{explained}")


def _named(error: BaseException | None) -> str:
    """An error with its type. Of what has not the form of MCP, where, and not the value (see `without_inputs`)."""
    told, code = without_inputs(str(error)), f" (code {error.code})" if isinstance(error, MCPError) else ""
    if isinstance(error, pydantic.ValidationError):
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        told = and_more([f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in problems], _MOST_PROBLEMS, ";")
    return f"{type(error).__name__}{code}: {told}"


def innermost(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# ---------------------------------------------------------------------------------------------------------------------

_REAP_S = 10.0
"""Longer than the SDK takes to stop a process: closing stdin, SIGTERM and SIGKILL, two seconds each."""
_GOODBYE_S = 2.0
"""How long a server without a process of ours may take to hear that its session ends."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Session:
    """A session in an owner task; made by `open_session`."""

    def __init__(self, transport: Transport, era: Era, deadline: float) -> None:
        self._transport = transport
        self.era = era
        self._deadline = deadline
        self.notes = Notes(transport.secrets)
        self._catalogue: Catalogue | None = None
        self._failure: Exception | None = None
        # None until the session is started.
        self._scope: anyio.CancelScope | None = None
        self._settled = anyio.Event()
        self._ended = anyio.Event()
        self._checking = anyio.Lock()
        self._answers = 0
        self.doubtful = False

    @property
    def listed(self) -> list[mcp_types.Tool]:
        """The server's tools, control tools included, as it last listed them."""
        return self._catalogue.tools if self._catalogue else []

    @property
    def catalogue(self) -> Catalogue:
        """What the server offers, and the client behind it. Once opened, also of a session that is over."""
        assert self._catalogue is not None
        return self._catalogue

    @property
    def protocol_version(self) -> str:
        """The revision of MCP that is spoken. Once opened."""
        return self.catalogue.client.protocol_version

    @property
    def client(self) -> Client:
        """The client itself, for whoever passes whole requests on. Raises `ServerDied` once the session is over."""
        return self._alive().client

    @property
    def process_id(self) -> int | None:
        """Of the process that was started for it, if one was."""
        return None if self.notes.process is None else self.notes.process.pid

    def has_computed(self) -> bool:
        """Whether its process has computed since this was last asked, as far as anybody knows."""
        return self.notes.process is not None and self.notes.process.has_computed()

    @property
    def dead(self) -> bool:
        """True once the connection is known to be gone or the session was closed."""
        return self.notes.gone.is_set() or self._ended.is_set()

    @property
    def keeps_state(self) -> bool:
        """Whether the server may hold something for this session alone, which a new session would not find."""
        spec = self._transport.spec
        if isinstance(spec, HttpSpec):
            return self.notes.session_id is not None
        return not (isinstance(spec, ServerObjectSpec) and spec.factory is None)

    @property
    def epitaph(self) -> str:
        """Why the session ended, with the end of the server's stderr."""
        return str(self._died("the session is over", "not_sent"))

    async def wait_dead(self) -> None:
        await self.notes.gone.wait()

    async def start(self, group: anyio.abc.TaskGroup) -> None:
        """Open the session; its owner task runs in `group`. Raises `CannotOpen`."""
        self._scope = anyio.CancelScope()
        group.start_soon(self._own, self._scope)
        try:
            await self._settled.wait()
        except BaseException:
            self._scope.cancel()
            raise
        if self._catalogue is None:
            raise cannot_open(self._transport, self._failure, self.notes)

    async def close(self) -> None:
        """End the session and wait until its process, if it has one, is gone. Bounded, also when shielded."""
        self.notes.gone.set()
        if self._scope is None:
            return
        with anyio.move_on_after(_REAP_S if isinstance(self._transport.spec, StdioSpec) else _GOODBYE_S):
            await self._ended.wait()
        # A server that does not answer the goodbye is left; stopping a process is shielded from this.
        self._scope.cancel()
        await self._ended.wait()

    async def check(self, limit_s: float) -> None:
        """Ask for the tools. A server behind a URL that cannot be reached is asked again until the limit has passed.

        Raises `ServerDied`: nothing was asked of the server. A session that does not answer is dead from then on,
        except one behind a URL, which may answer later.
        """
        # By tools/list, because the protocol's newest revision has no ping.
        answers = self._answers
        async with self._checking:
            if self._answers > answers:
                return  # asked by another meanwhile
            deadline, pause = anyio.current_time() + limit_s, _FIRST_PAUSE_S
            while True:
                client = self._alive().client
                failure: Exception = TimeoutError(f"no answer within {limit_s:g} s")
                fault: Fault | None = None
                with anyio.move_on_at(deadline):
                    try:
                        await client.list_tools(cache_mode="refresh")
                        self.doubtful = False
                        self._answers += 1
                        return
                    except (MCPError, RuntimeError, pydantic.ValidationError, *CLOSED) as error:
                        failure, fault = error, self.notes.faults.of(error)
                reachable = fault is None or fault.kind != "connection"
                if reachable or anyio.current_time() + pause >= deadline:
                    break
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            told = fault.message if fault else self.notes.redact(_named(failure))
            if not isinstance(self._transport.spec, HttpSpec) or (fault and fault.kind == "no_session"):
                self.notes.note_end(f"asked for its tools, it did not answer: {told}")
            raise ServerDied(
                f"{self._transport.spec.label} does not answer ({told}).{self.notes.explain()}", delivery="not_sent"
            )

    async def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> ToolResult:
        """Call a tool. The caller sets the time limit; a cancelled call leaves the session usable.

        An error that the server answers with is what the tool said, whatever its code. An answer above the limit of
        size is the policy's to read about, too: it asked for too much. Raises `ServerDied` where the connection ended
        and `ToolFailure` where the server broke the protocol; `delivery` says what is known of the request.
        """
        catalogue = self._alive()
        if catalogue.is_outdated:
            await self.load_changes()
        try:
            result = await catalogue.call(name, arguments, meta)
        except MCPError as error:
            fault = self.notes.faults.of(error)
            if fault is not None:
                return self._instead_of_answer(name, fault)
            answer = self.answer_in(error)
            if answer is None:
                raise await self._broken(name, error) from None
            return answer
        # RuntimeError: the result violates the server's own output schema (as the SDK reports it). The cause would show
        # in a traceback what the message does not: values of the server, secrets among them.
        except (RuntimeError, pydantic.ValidationError, *CLOSED) as error:
            raise await self._broken(name, error) from None
        except TaskInterrupted as cut:
            return await self._of_task(name, cut)
        except SystemExit as error:
            # Of a server in this process. It must not end a run of thousands of rollouts.
            label = self._transport.spec.label
            told = f"{label}: tool {name!r} tried to end the program (SystemExit: {error})"
            raise ToolFailure(told, delivery="answered") from error
        except anyio.get_cancelled_exc_class():
            self.doubtful = True
            raise
        self.doubtful = False
        return result

    async def load_changes(self) -> None:
        """List the tools again where the server said that they changed. Raises `ToolFailure` as a call does."""
        try:
            await self._alive().load_changes()
        except (MCPError, RuntimeError, pydantic.ValidationError, *CLOSED) as error:
            raise await self._broken("tools/list", error) from None

    def _alive(self) -> Catalogue:
        if self._catalogue is None or self.dead:
            raise self._died("the session is over", "not_sent")
        return self._catalogue

    async def _own(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                with anyio.CancelScope(deadline=self._deadline) as limit:
                    async with self._transport.open(self.era, self.notes) as catalogue:
                        await catalogue.load()
                        limit.deadline = math.inf
                        self.notes.is_open = True
                        self._catalogue = catalogue
                        self._settled.set()
                        await self.notes.gone.wait()
                if limit.cancelled_caught:
                    self._failure = TimeoutError()
        except Exception as error:
            # Kept for whoever starts or calls; raised here it would end every other session.
            self._failure = error
        finally:
            self._ended.set()
            self.notes.gone.set()
            self._settled.set()

    def _instead_of_answer(self, name: str, fault: Fault) -> ToolResult:
        label = self._transport.spec.label
        if fault.kind == "too_large":
            return error_result(fault.message[:1].upper() + fault.message[1:], "tool_error")
        told = self.notes.redact(fault.message)
        if fault.kind in ("status", "login", "unusable"):
            said = f"{label} failed on {name!r}: {told}"
            raise ToolFailure(said, delivery=fault.delivery, retry_after_s=fault.retry_after_s)
        if fault.kind == "no_session":
            self.notes.note_end("")
            raise ServerDied(f"{label} no longer knows the session, during {name!r}: {told}", delivery=fault.delivery)
        self.doubtful = True
        raise ServerDied(f"the connection to {label} ended, during {name!r}: {told}", delivery=fault.delivery)

    async def _of_task(self, name: str, cut: TaskInterrupted) -> ToolResult:
        """Like any failed call, but that the server had taken it: nothing that it says now means that it did not."""
        error = cut.cause
        fault = self.notes.faults.of(error)
        try:
            if fault is not None:
                return self._instead_of_answer(name, fault)
            raise await self._broken(name, error) from None
        except ToolFailure as failure:
            failure.delivery = "unknown"
            failure.args = (f"{failure.args[0]} The server had taken the call as task {cut.task_id}.",)
            raise

    async def _broken(self, name: str, error: Exception) -> ToolFailure:
        """The failure to raise for `error`; a session whose connection ended is closed first."""
        label = self._transport.spec.label
        if is_closed(error) or isinstance(error, CLOSED) or self.dead:
            await self.close()
            return self._died(f"during {name!r}", "unknown")
        code = error.code if isinstance(error, MCPError) else None
        if code == CONNECTION_CLOSED:
            self.doubtful = True
            return ServerDied(f"the connection to {label} ended, during {name!r}: {self.notes.redact(str(error))}")
        refused = isinstance(error, MCPError) and self._does_not_know_the_world(error)
        delivery: Delivery = "refused" if refused else "answered"
        return ToolFailure(f"{label} failed on {name!r}: {self.notes.redact(_named(error))}", delivery=delivery)

    def answer_in(self, error: MCPError) -> ToolResult | None:
        """What a policy reads of an error that a call raised; None where the server did not answer the call with it."""
        if self.notes.faults.of(error) is not None:
            return None
        if not is_refusal(error) and (not is_answer(error) or self._does_not_know_the_world(error)):
            return None
        kind: ErrorKind = "invalid_arguments" if error.code == INVALID_PARAMS else "tool_error"
        return error_result(error.message or "The tool refused the call without a message.", kind)

    def _does_not_know_the_world(self, error: MCPError) -> bool:
        """Whether an answer may mean that a server with control tools has lost a world, and so did not call the tool.

        From any other server the same codes are not a sign of that.
        """
        if error.code not in (INVALID_REQUEST, METHOD_NOT_FOUND) or is_made_by_the_client(error):
            return False
        return any(CONTROL_META in (tool.meta or {}) for tool in self.listed)

    def _died(self, when: str, delivery: Delivery) -> ServerDied:
        failure = innermost(self._failure)
        why = f" ({self.notes.redact(_named(failure))})" if failure is not None else ""
        return ServerDied(
            f"the connection to {self._transport.spec.label} ended, {when}{why}.{self.notes.explain()}",
            delivery=delivery,
        )


# ---------------------------------------------------------------------------------------------------------------------
# A session is opened in the way that the server understands, and which that is is remembered.
#
# Servers on mcp 1.0 to 1.8 stop at the first question of the newest revision: over stdio they neither answer nor end,
# so silence is all that is heard of it. A second process is then started beside the first and greeted in the old way.
# Both start from the same command, so one that answers first although it was started later has not stopped, and the
# other has. A process that computes is still starting, and silent for that: a second one would only take the processor
# from it.

_SILENCE_S = 1.0
"""After this long without an answer, the old way is tried beside the new one."""
_LOOK_S = 0.2
"""How often it is looked at whether the silent process computes."""
_LONGEST_START_S = 10.0
"""One that computes for longer may be doing something else."""
_GRACE_S = 0.3
"""What the one that was asked first may be later than the one that was greeted in the old way."""
_NO_SUCH_POST = frozenset({400, 404, 405})
"""How a server of the old HTTP transport answers a POST to its stream of events."""


async def open_session(transport: Transport, group: anyio.abc.TaskGroup) -> Session:
    """A started session; all attempts share one time limit. Raises `CannotOpen`.

    A login that is kept for a server is used where the server asks for one.
    """
    try:
        return await _open_session(transport, group)
    except CannotOpen as refused:
        if not (refused.wants_login and await transport.take_kept_login()):
            raise
    return await _open_session(transport, group)


async def _open_session(transport: Transport, group: anyio.abc.TaskGroup) -> Session:
    async with transport.starts:
        was_known = transport.is_settled and transport.spec.options.protocol is None
        try:
            session = await _begun(transport, group)
        except CannotOpen as failure:
            # It may be another server by now. One that kept silent until the time limit is not given as much again.
            transport.forget()
            if not (was_known and failure.died):
                raise
            session = await _begun(transport, group)
        transport.remember(session.era, session.protocol_version)
        return session


async def _begun(transport: Transport, group: anyio.abc.TaskGroup) -> Session:
    """A session begun as the server is known to understand, or as is found out."""
    spec, deadline = transport.spec, anyio.current_time() + transport.connect_timeout_s
    if isinstance(spec, StdioSpec) and spec.options.protocol is None and not transport.is_settled:
        return await _Race(transport, group, deadline).run()
    if isinstance(spec, HttpSpec) and spec.transport is None and not transport.is_settled:
        return await _by_url(transport, group, deadline)
    session = Session(transport, transport.era, deadline)
    await session.start(group)
    return session


async def _by_url(transport: Transport, group: anyio.abc.TaskGroup, deadline: float) -> Session:
    session = Session(transport, transport.era, deadline)
    try:
        await session.start(group)
    except CannotOpen as first:
        if session.notes.http_status not in _NO_SUCH_POST:
            raise
        session = Session(transport, "sse", deadline)
        try:
            await session.start(group)
        except CannotOpen:
            raise CannotOpen(f"{first} The old transport over SSE was tried as well.") from None
    return session


class _Race:
    """One start of a command whose era is not known yet."""

    def __init__(self, transport: Transport, group: anyio.abc.TaskGroup, deadline: float) -> None:
        self._group = group
        self._deadline = deadline
        self._new = Session(transport, "auto", deadline)
        self._old = Session(transport, "legacy", deadline)
        self._new_ended = anyio.Event()
        self._winner: Session | None = None
        self._failure: CannotOpen | None = None

    async def run(self) -> Session:
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._ask, both.cancel_scope)
                both.start_soon(self._greet, both.cancel_scope)
        finally:
            for session in (self._new, self._old):
                if session is not self._winner:
                    # Not waited for: stopping a process may take seconds.
                    self._group.start_soon(session.close)
        if self._winner is None:
            assert self._failure is not None
            raise self._failure
        return self._winner

    async def _ask(self, race: anyio.CancelScope) -> None:
        try:
            await self._new.start(self._group)
        except CannotOpen as failure:
            self._failure = failure
            if not failure.died:
                race.cancel()
        else:
            self._winner = self._new
            race.cancel()
        finally:
            self._new_ended.set()

    async def _greet(self, race: anyio.CancelScope) -> None:
        await self._silence()
        try:
            await self._old.start(self._group)
        except CannotOpen as failure:
            # The newer one may still answer; where it ended, this is what there is to say.
            if self._failure is not None:
                self._failure = failure
            return
        with anyio.move_on_after(_GRACE_S):
            await self._new_ended.wait()
        self._winner = self._old
        race.cancel()

    async def _silence(self) -> None:
        """Until the one that was asked first has ended, or has neither answered nor computed for a while."""
        with anyio.move_on_after(_SILENCE_S):
            await self._new_ended.wait()
        # The old way needs most of the time that there is, where it is what the server speaks.
        longest_s = min(_LONGEST_START_S, (self._deadline - anyio.current_time()) / 3)
        with anyio.move_on_after(longest_s - _SILENCE_S):
            while not self._new_ended.is_set() and self._new.has_computed():
                with anyio.move_on_after(_LOOK_S):
                    await self._new_ended.wait()
