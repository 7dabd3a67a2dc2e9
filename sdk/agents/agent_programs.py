"""The program of an agent: an async or plain Python function, or a command."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import json
import os
import shlex
import signal
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any, Protocol

import anyio

from mcp_bridge.access.redaction import environment_secrets, is_secret_name, redacted, shown_arguments, shown_text
from mcp_bridge.daemon_threads import call_in_daemon_thread
from mcp_bridge.errors import kind_of, users_line
from mcp_bridge.safe_text import shown_by
from mcp_bridge.sessions.stdio import ServerProcess, StderrTail

from ..errors import AgentFailure, ConfigError
from ..records import Task
from ..traces.identity import digest
from .agent_endpoint import AgentEndpoint

AgentFunction = Callable[[Task, AgentEndpoint], Awaitable[str | None] | str | None]
AgentSource = AgentFunction | str | Sequence[str]
"""An async or plain function of the task and its endpoint, or a command: words, or one text as for a shell."""


class AgentProgram(Protocol):
    """Plays one rollout at a time, many at once."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> dict[str, str]:
        """What a run knows it by."""

    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        """It can be played while this is open."""

    async def play(self, task: Task, endpoint: AgentEndpoint) -> str | None:
        """The agent's answer; None: what its model said last. Raises `AgentFailure` where it crashed."""


def as_program(agent: Any) -> AgentProgram:
    """The program that a user names. Raises `ConfigError` for anything else."""
    if isinstance(agent, Sequence) and not isinstance(agent, bytes | bytearray):
        for place, word in enumerate(agent, 1):
            if not isinstance(word, str):
                raise ConfigError(
                    f"agent has {shown_by(repr, word)} as word {place}, {kind_of(word)}; give each word as text, such "
                    f"as {shown_by(str, word)!r}"
                )
        return CommandAgent(agent)
    if callable(agent):
        return FunctionAgent(agent)
    raise ConfigError(
        f"agent is {kind_of(agent)}; give a function of (task, endpoint), or a command such as 'node agent.js'"
    )


def asked_proxy() -> str:
    """The environment's variable with a proxy that clients in this process ask for this machine; empty for none."""
    if urllib.request.proxy_bypass("127.0.0.1"):
        return ""
    return next((name for name, url in os.environ.items() if url and name.lower() in ("http_proxy", "all_proxy")), "")


def told_task(task: Task) -> Task:
    """The task as an agent gets it: without what is expected, a right solution, and what its user says later. It is a
    copy of its own: what an agent puts into its messages is in no other rollout's."""
    told = task.model_copy(update={"expected": {}, "demonstration": [], "later_turns": [], "user": None})
    return told.model_copy(deep=True)


# ---------------------------------------------------------------------------------------------------------------------


class FunctionAgent:
    """A Python function. Async ones share an event loop of their own, in a thread: one that blocks holds up the other
    async agents, and neither models nor worlds. Plain ones run in a thread each."""

    def __init__(self, function: Any) -> None:
        try:
            inspect.signature(function).bind(None, None)
        except TypeError as error:
            raise ConfigError(
                f"agent {_name(function)} cannot be called with (task, endpoint): {error}; write "
                "async def agent(task, endpoint)"
            ) from None
        except ValueError:  # built in, without a signature
            pass
        self._function = function
        self.name = _name(function)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def identity(self) -> dict[str, str]:
        return {"name": self.name, "digest": digest(self._function)}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._loop = loop = asyncio.new_event_loop()

        def run() -> None:
            with closing(loop):  # here, as the thread may end later than it is waited for
                loop.run_forever()

        # Daemons: what blocks for ever must not keep the process.
        thread = threading.Thread(target=run, name="toolbake-agents", daemon=True)
        thread.start()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(_end(loop), loop)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(thread.join, _END_S)

    async def play(self, task: Task, endpoint: AgentEndpoint) -> str | None:
        called = self._function
        if inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(getattr(called, "__call__", None)):  # noqa: B004
            found = await self._in_loop(called(task, endpoint), endpoint)
        else:
            found = await self._in_thread(task, endpoint)
            if inspect.isawaitable(found):  # a lambda around an async function
                found = await self._in_loop(found, endpoint)
        if found is None or isinstance(found, str):
            return found
        raise AgentFailure(
            "AgentAnswer",
            f"the agent {self.name} returned {kind_of(found)}; return the answer as text, or None for what its "
            "model said last",
        )

    async def _in_loop(self, work: Awaitable[Any], endpoint: AgentEndpoint) -> Any:
        assert self._loop is not None
        given_up = threading.Event()

        async def guarded() -> Any:
            try:
                return await work
            except BaseException as error:  # SystemExit, too, would end the loop of all
                if given_up.is_set():  # nobody waits to hear of it
                    raise asyncio.CancelledError from error
                raise self._crashed(error, endpoint) from error

        running = asyncio.run_coroutine_threadsafe(guarded(), self._loop)
        try:
            return await asyncio.shield(asyncio.wrap_future(running))
        except asyncio.CancelledError:
            given_up.set()
            running.cancel()
            raise

    async def _in_thread(self, task: Task, endpoint: AgentEndpoint) -> Any:
        def work() -> Any:
            try:
                return self._function(task, endpoint)
            except BaseException as error:
                raise self._crashed(error, endpoint) from None

        return await call_in_daemon_thread(work, name="toolbake-agent")

    def _crashed(self, error: BaseException, endpoint: AgentEndpoint) -> AgentFailure:
        while isinstance(error, BaseExceptionGroup):  # MCP clients and others raise in task groups
            error = error.exceptions[0]
        causes = "; caused by ".join(f"{type(one).__name__}: {shown_by(str, one)}" for one in _with_causes(error))
        said = _without_secrets(causes, endpoint)
        return AgentFailure("AgentCrashed", f"the agent {self.name} raised {said[:_SHOWN_CHARS]}{users_line(error)}")


def _with_causes(error: BaseException) -> list[BaseException]:
    """The error, and what it was raised from: openai's "Connection error." says nothing by itself."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and all(cause is not one for one in found):  # a program can make a circle of them
        found.append(cause)
        cause = cause.__cause__
    return found


_END_S = 5.0
_LEAST_TURNS, _LEAST_S = 3, 0.1
"""What is left in a loop gets so many turns to close itself, however late it is: to be cancelled, to be collected, and
to close. A turn that nothing ends takes so many seconds."""
_SHOWN_CHARS = 2000


def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what runs in the loop, let what is left there close itself, and stop it."""
    until = loop.time() + _END_S / 2

    def others() -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks(loop) - {asyncio.current_task()}

    _cancel(others())
    gc.collect()  # clients that nobody closed begin to close themselves, in tasks
    turns = _LEAST_TURNS  # collecting alone may take longer than the time, and the machine may stand still
    while others() and (turns or loop.time() < until):
        least = _LEAST_S if turns else 0.0
        await asyncio.wait(others(), timeout=max(least, until - loop.time()))  # no name here keeps a task
        gc.collect()
        turns = max(0, turns - 1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S / 4):
            await loop.shutdown_asyncgens()
    loop.stop()


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


# ---------------------------------------------------------------------------------------------------------------------

_MOST_OUTPUT = 1_000_000
_STDERR_LINES = 15
_MOST_VARIABLE = 131_072
"""Bytes of one environment variable, with its name and its end."""


class CommandAgent:
    """A program, started for each rollout. What it writes to standard output is its answer."""

    def __init__(self, command: str | Sequence[str]) -> None:
        try:
            self._words = shlex.split(command) if isinstance(command, str) else list(command)
        except ValueError as error:
            raise ConfigError(
                f"agent is {command!r}, which no shell could split: {error}; close each quote, and write \\\\ for \\"
            ) from None
        if not self._words:
            raise ConfigError("agent is empty; give a program and its arguments, such as 'node agent.js'")
        self.name = " ".join(shown_arguments(self._words))

    @property
    def identity(self) -> dict[str, str]:
        return {"name": self.name, "digest": digest(self._words)}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def play(self, task: Task, endpoint: AgentEndpoint) -> str | None:
        errors = StderrTail()
        try:
            process = self._started(task, endpoint, errors)
            try:
                output, status = await self._output(process, errors)
            finally:
                process.release()
        finally:
            errors.close()
        errors.close()  # with what was still in the pipe
        if status:
            said = _without_secrets(errors.text(lines=_STDERR_LINES), endpoint)[-_SHOWN_CHARS:]
            raise AgentFailure("AgentCrashed", f"the agent {self.name} {_ending(status)}; stderr: {said}")
        return output.decode(errors="replace").strip() or None

    def _started(self, task: Task, endpoint: AgentEndpoint, errors: StderrTail) -> ServerProcess:
        told = _task_variables(task)
        environment = {**os.environ, **endpoint.environment, **told}
        try:
            process = ServerProcess(self._words, env=environment, cwd=None, stderr=errors.file)
        except (OSError, ValueError) as error:
            why = _unfit(told) or str(error)
            raise AgentFailure("AgentNotStarted", f"the agent {self.name} cannot be started: {why}") from None
        errors.close_write_end()
        process.end_input()
        return process

    async def _output(self, process: ServerProcess, errors: StderrTail) -> tuple[bytes, int]:
        """What it wrote to standard output, and its exit status. All that it started has ended then."""
        output = bytearray()
        too_much, ended = anyio.Event(), anyio.Event()

        async def read() -> None:
            try:
                while chunk := await process.read():
                    if len(output) + len(chunk) > _MOST_OUTPUT:
                        too_much.set()
                    else:
                        output.extend(chunk)
            finally:
                ended.set()

        async def end_where_too_much() -> None:
            await too_much.wait()
            waiting.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(errors.follow)
            group.start_soon(end_where_too_much)
            try:
                with anyio.CancelScope() as waiting:
                    status = await process.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await process.stop(grace_s=0)
                    with anyio.move_on_after(_END_S):
                        await ended.wait()
                group.cancel_scope.cancel()
        if too_much.is_set():
            raise AgentFailure(
                "AgentFlooded",
                f"the agent {self.name} wrote more than {_MOST_OUTPUT} bytes to standard output, where its answer "
                "belongs; write logs to standard error",
            )
        return bytes(output), status


def _ending(status: int) -> str:
    names = {one.value: one.name for one in signal.Signals}
    return f"exited with status {status}" if status > 0 else f"was ended by the signal {names.get(-status, -status)}"


def _task_variables(task: Task) -> dict[str, str]:
    prompt = task.prompt if isinstance(task.prompt, str) else "\n\n".join(message.content for message in task.prompt)
    return {"TOOLBAKE_PROMPT": prompt, "TOOLBAKE_TASK": json.dumps(task.model_dump(mode="json"), ensure_ascii=False)}


def _unfit(variables: Mapping[str, str]) -> str:
    """Why a program cannot be handed these; empty where that is not the reason."""
    for name, value in variables.items():
        if "\0" in value:
            return f"{name} has a NUL character, which no variable may have; take it out of the task's prompt"
        size = len(f"{name}={value}".encode(errors="surrogatepass")) + 1
        if size > _MOST_VARIABLE:
            return (
                f"{name} takes {size:,} bytes, and a variable may have {_MOST_VARIABLE:,} on Linux; "
                "shorten the task, or give a function of (task, endpoint)"
            )
    return ""


def _without_secrets(text: str, endpoint: AgentEndpoint) -> str:
    hidden = environment_secrets(value for name, value in os.environ.items() if is_secret_name(name))
    return shown_text(redacted(text, [endpoint.api_key, *hidden]))
