"""When a call may be sent again, and what is known of one that may not."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

import anyio

from ..errors import CallTimeout, OutcomeUnknown, ToolFailure
from ..guard.rate_limit import Turns
from ..records import Tool, ToolResult
from .identity import reset_current_call, set_current_call
from .lines import Entry, one_line

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0

Send = Callable[[float], Awaitable[ToolResult]]
"""Sends the call once and returns what came back, within the seconds given; raises `ToolFailure` otherwise."""


async def call_once(
    entry: Entry, send: Send, *, tool: Tool, retries: int, limit_s: float, turns: Turns | None
) -> ToolResult:
    """Call a tool so that it takes effect at most once, unless it is one that may be called twice.

    A request that certainly was not taken is sent again, up to `retries` times, whatever the tool, and not before the
    server says (`retry_after_s`). After a lost answer
    a read-only or idempotent tool is called again, as often; of any other the outcome is unknown. A time limit that
    has passed is no reason to call again: `limit_s` holds for all attempts together. Waiting for a turn at the server
    is not counted.

    Raises `OutcomeUnknown`, or the `ToolFailure` of the last attempt where nothing can have been done. Every call
    that was begun has its end in the ledger, whatever is raised.
    """
    may_have_run = False
    left_s = limit_s
    try:
        while True:
            if turns is not None:
                await turns.take()
                entry.look_at_arguments()
            began = time.monotonic()
            try:
                entry.started()
                token = set_current_call(entry)
                try:
                    result = await send(left_s)
                finally:
                    reset_current_call(token)
            except ToolFailure as error:
                failure = error
            else:
                entry.answered(result)
                return result
            finally:
                if turns is not None:
                    turns.give_back()
            may_have_run = may_have_run or failure.delivery == "unknown"
            pause = min(_FIRST_PAUSE_S * 4 ** (entry.attempt - 1), _LONGEST_PAUSE_S)
            pause = max(pause, failure.retry_after_s or 0.0)
            left_s -= time.monotonic() - began + pause
            if entry.attempt > retries or left_s <= 0 or not _may_be_sent_again(failure, tool):
                raise _end(entry, failure, tool, may_have_run=may_have_run)
            logger.warning("%r is sent again (attempt %d): %s", tool.name, entry.attempt + 1, one_line(failure))
            entry.lost(one_line(failure))
            await anyio.sleep(pause)
    except BaseException as error:
        if entry.open:
            # Cancelled, or a fault of ours: the answer is not waited for any more.
            end = entry.failed if tool.annotations.read_only else entry.unknown
            end(one_line(error))
        raise


def _may_be_sent_again(failure: ToolFailure, tool: Tool) -> bool:
    if failure.world_lost or failure.delivery == "answered":
        return False
    if failure.delivery in ("not_sent", "refused"):
        return True
    return may_be_repeated(tool) and not isinstance(failure, CallTimeout)


def may_be_repeated(tool: Tool) -> bool:
    """Whether calling it twice has the effect of calling it once, by what is said of it."""
    return bool(tool.annotations.read_only or tool.annotations.idempotent)


def _end(entry: Entry, failure: ToolFailure, tool: Tool, *, may_have_run: bool) -> ToolFailure:
    """The error to raise; the ledger has its line."""
    if not may_have_run or tool.annotations.read_only:
        entry.failed(one_line(failure))
        return failure
    entry.unknown(one_line(failure))
    if isinstance(failure, CallTimeout):
        why = "a call that was not answered in time is not made again"
    elif may_be_repeated(tool):
        why = f"{entry.attempt} attempts were made" if entry.attempt > 1 else "no further attempt was possible"
    else:
        why = f"it was not called again. {_HINT}"
    return OutcomeUnknown.after(failure, f"whether {tool.name!r} took effect is unknown: {why.rstrip('.')}. {failure}")


_HINT = (
    "Where calling it twice does no harm, say so: readOnlyHint or idempotentHint in its annotations, or "
    '"toolbake": {"idempotent": ["its name"]} for its server in mcp.json'
)
