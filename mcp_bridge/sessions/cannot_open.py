"""Why a session did not come up, in words that say what to do."""

from __future__ import annotations

from ..sources.environment import WORLD_DIR
from ..sources.specs import StdioSpec, more_time
from .eras import WrongProtocol
from .faults import is_closed
from .notes import Notes
from .reading import NotOffered
from .transports import Transport


class CannotOpen(Exception):
    """A session did not come up. The message is complete and holds no secret."""

    def __init__(self, message: str, *, died: bool) -> None:
        super().__init__(message)
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
            f"this transport? If it is only slow, {more_time(transport.spec, limit)}.{explained}",
            died=False,
        )
    if isinstance(failure, WrongProtocol | NotOffered):
        return CannotOpen(f"{label}: {failure}.", died=False)
    if isinstance(transport.spec, StdioSpec):
        return _cannot_start(transport.spec, failure, notes, explained)
    fault = notes.faults.of(failure)
    if fault is not None and fault.kind == "login":
        return CannotOpen(f"{label}: {notes.redact(fault.message)}", died=False)
    if notes.http_status in {401, 403}:
        return CannotOpen(f"{label} refused us; set the right `headers` or `auth` for it.{explained}", died=False)
    told = notes.redact(fault.message if fault else f"{type(failure).__name__}: {failure}")
    return CannotOpen(
        f"{label} cannot be reached ({told}). Is the server running, and is the path right?{explained}", died=False
    )


def _cannot_start(spec: StdioSpec, failure: BaseException | None, notes: Notes, explained: str) -> CannotOpen:
    if failure is not None and is_closed(failure):
        return CannotOpen(
            f"{spec.label} ended before it answered as an MCP server. Run the command by hand to see why.{explained}",
            died=True,
        )
    if isinstance(failure, FileNotFoundError | NotADirectoryError | PermissionError):
        # A cwd in the folder of a world is another one in each.
        cwd = (spec.cwd or "").removeprefix(WORLD_DIR)
        if cwd and str(failure.filename).endswith(cwd):
            return CannotOpen(
                f"{spec.label}: cwd {notes.redact(spec.cwd or '')!r} is no folder that can be entered.", died=False
            )
        return CannotOpen(
            f"{spec.label}: the command {notes.redact(spec.command)!r} cannot be started "
            f"({failure.strerror}). Give the full path of a program, or install it so that it is on PATH.",
            died=False,
        )
    told = notes.redact(f"{type(failure).__name__}: {failure}")
    return CannotOpen(f"{spec.label} cannot be started as an MCP server ({told}).{explained}", died=False)


def innermost(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
