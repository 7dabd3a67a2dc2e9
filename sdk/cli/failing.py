"""Failures of a command. The user sees one clean message on stderr and gets an exit code."""

from __future__ import annotations

import errno
import functools
import inspect
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from ..errors import ToolbakeError

if TYPE_CHECKING:
    from ..records import Rollout

STOPPED = "stopped"
RESUMABLE = "stopped; run the same command again to go on"
_BY_SIGNAL = 128
"""With the signal's number, the shell's own exit code for a process that a signal ended: 130 for Ctrl-C."""


_options: ContextVar[Collection[str]] = ContextVar("options", default=())
_interrupted = ContextVar("interrupted", default=STOPPED)


def with_clean_errors(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with `--debug` as its last option, and its errors as `clean_errors` tells them."""

    @functools.wraps(command)
    def run(*, debug: bool, **words: Any) -> None:
        with clean_errors(debug):
            command(**words)

    told = Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")]
    last = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=told)
    given = inspect.signature(command, eval_str=True)
    run.__signature__ = given.replace(parameters=[*given.parameters.values(), last])  # type: ignore[attr-defined]
    return run


def when_interrupted(text: str) -> None:
    """What the command that runs says from now on where it is interrupted."""
    _interrupted.set(text)


class Command(TyperCommand):
    """A command whose messages name its own options, see `as_options`."""

    def invoke(self, ctx: Any) -> Any:
        token = _options.set({option for parameter in self.params for option in parameter.opts})
        try:
            return super().invoke(ctx)
        finally:
            _options.reset(token)


def as_options(text: str, options: Collection[str] | None = None) -> str:
    """`text` with the parameters of `sdk` as they are typed: "`max_calls`" as --max-calls, "`port=0`" as --port 0.

    `options`: those there are; None: of the command that runs. What is none of them stays as it is.
    """
    known = _options.get() if options is None else options

    def option(found: re.Match[str]) -> str:
        name = "--" + found[1].replace("_", "-")
        for typed in (name, f"{name}-env", name.removesuffix("s"), name.removesuffix("-s")):
            if typed in known:
                return " ".join([typed, *([found[2].strip("'")] if found[2] else [])])
        return found[0]

    return re.sub(r"`(\w+)(?:=([^`]+))?`", option, text)


@contextmanager
def clean_errors(debug: bool) -> Iterator[None]:
    """Errors that a user can fix become one message each and exit code 1; Ctrl-C becomes a line (`when_interrupted`)
    and 130, and SIGTERM and SIGHUP the same with 143 and 129.

    All others, which are faults of toolbake, keep their traceback; with `debug` everything does.
    """
    _interrupted.set(STOPPED)
    with _stopped_by_signals() as received:
        try:
            yield
        except BrokenPipeError:  # `toolbake tools ... | head`; typer ends quietly
            raise
        except (KeyboardInterrupt, BaseExceptionGroup) as error:
            if isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt) is None:
                _end(error, debug)
            say_red(_interrupted.get(), prefix="")
            raise typer.Exit(_BY_SIGNAL + [*received, signal.SIGINT][0]) from None
        except Exception as error:
            _end(error, debug)


@contextmanager
def _stopped_by_signals() -> Iterator[list[int]]:
    """Inside, SIGTERM (`docker stop`, SLURM, Kubernetes) and SIGHUP (a terminal that closes) do what Ctrl-C does.

    Yields the numbers of those that came. A signal that the parent had ignored (`nohup`) stays ignored.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Windows
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        numbers = []
    numbers = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    with _heard_by_asyncio() if numbers else nullcontext(), _sent_again_from_destructors(received):
        for number in numbers:
            signal.signal(number, stop)
        try:
            yield received
        finally:
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def _sent_again_from_destructors(received: Sequence[int]) -> Iterator[None]:
    """Inside, a signal that came while a destructor ran, from which Python lets no exception out, comes once more."""
    told = sys.unraisablehook
    main = threading.main_thread().ident
    waiting: list[threading.Timer] = []

    def hear(lost: Any) -> None:
        if lost.exc_type is not KeyboardInterrupt or main is None or not hasattr(signal, "pthread_kill"):
            told(lost)
            return
        waiting.append(threading.Timer(_AGAIN_S, signal.pthread_kill, (main, [signal.SIGINT, *received][-1])))
        waiting[-1].start()

    sys.unraisablehook = hear
    try:
        yield
    finally:
        sys.unraisablehook = told
        for one in waiting:
            one.cancel()


_AGAIN_S = 0.1
"""The destructor should be over."""


@contextmanager
def _heard_by_asyncio() -> Iterator[None]:
    """Inside, SIGINT has Python's own handler, also where the shell ignores it for commands in the background: in its
    place asyncio puts one that cancels the main task, which cleans up. An exception raised in the midst of anything
    would leave a server that is just being started to itself. SIGINT itself is blocked then, and so still ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops one that came
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def require_no_failure(rollout: Rollout) -> None:
    """Raises `ToolbakeError` where something around the policy broke."""
    failure = rollout.failure
    if failure is not None:
        raise ToolbakeError(
            f"the rollout failed at the boundary {failure.boundary!r}: {failure.kind}: {failure.message}"
        )


def say_red(text: str, *, prefix: str = "error: ") -> None:
    """A message on stderr, red on a terminal. Control characters in it are shown, not obeyed."""
    from rich.console import Console
    from rich.text import Text

    from mcp_bridge.safe_text import visible

    Console(stderr=True, highlight=False).print(Text(prefix + visible(text), style="red"), soft_wrap=True)


def _end(error: BaseException, debug: bool) -> NoReturn:
    messages = _mendable(error)
    if debug or messages is None:
        raise error
    for message in messages:
        say_red(as_options(message))
    raise typer.Exit(1) from error


def _mendable(error: BaseException) -> list[str] | None:
    """The messages of what a user can fix; None where anything else is among it."""
    from mcp_bridge.errors import BridgeError

    if isinstance(error, BaseExceptionGroup):
        found: list[str] = []
        for one in error.exceptions:
            messages = _mendable(one)
            if messages is None:
                return None
            found += messages
        return list(dict.fromkeys(found))
    if isinstance(error, OSError):
        told = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return [f"{told}: make room where the output goes, and run the same command again" if is_full else told]
    return [str(error)] if isinstance(error, ToolbakeError | BridgeError) else None
