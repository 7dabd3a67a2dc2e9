"""What the user sees when something goes wrong: one clean message on stderr, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..records import Rollout

STOPPED = "stopped"
RESUMABLE = "stopped; run the same command again to go on"
_INTERRUPTED = 130
"""The shell's own code for a process that Ctrl-C ended: 128 + SIGINT."""


@contextmanager
def clean_errors(debug: bool, *, interrupted: str = STOPPED) -> Iterator[None]:
    """Errors that a user can fix become one message each and exit code 1; Ctrl-C becomes `interrupted` and 130.

    All others, which are faults of toolbake, keep their traceback; with `debug` everything does.
    """
    try:
        yield
    except BrokenPipeError:  # `toolbake tools ... | head`; typer ends quietly
        raise
    except KeyboardInterrupt:
        say_red(interrupted, prefix="")
        raise typer.Exit(_INTERRUPTED) from None
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            say_red(interrupted, prefix="")
            raise typer.Exit(_INTERRUPTED) from None
        _end(group, debug)
    except Exception as error:
        _end(error, debug)


def require_no_failure(rollout: Rollout) -> None:
    """Raises `ToolbakeError` where something around the policy broke."""
    from ..errors import ToolbakeError

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


def _end(error: BaseException, debug: bool) -> None:
    messages = _mendable(error)
    if debug or messages is None:
        raise error
    for message in messages:
        say_red(message)
    raise typer.Exit(1) from error


def _mendable(error: BaseException) -> list[str] | None:
    """The messages of what a user can fix; None where anything else is among it."""
    from mcp_bridge.errors import BridgeError

    from ..errors import ToolbakeError

    if isinstance(error, BaseExceptionGroup):
        found: list[str] = []
        for one in error.exceptions:
            messages = _mendable(one)
            if messages is None:
                return None
            found += messages
        return list(dict.fromkeys(found))
    if isinstance(error, OSError):
        return [f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)]
    return [str(error)] if isinstance(error, ToolbakeError | BridgeError) else None
