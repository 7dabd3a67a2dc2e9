"""The ledger of one rollout: each call happens once, with a line before it and a line that tells how it ended.

The identity of the call being made travels beside the arguments, so that a source of worlds which wraps another one
cannot lose it on the way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio
from pydantic import BaseModel

from .control_tools import CALL_META, DEFAULT_WORLD, IDEMPOTENCY_META, ROLLOUT_META
from .errors import CallTimeout, OutcomeUnknown, ToolFailure, kind_of
from .records import Tool, ToolResult

if TYPE_CHECKING:
    from .guard import Turns

logger = logging.getLogger(__name__)


class CallIdentity(NamedTuple):
    """Which call this is. `key` is the same in every attempt of one call, and that of no other call anywhere."""

    call: str
    key: str
    rollout: str
    attempt: int
    accepted: Callable[[str], None] | None = None
    """Writes a line into the ledger: the server has taken the call and works on it under this name."""


current: ContextVar[CallIdentity | None] = ContextVar("toolbake_call", default=None)


def current_call() -> CallIdentity | None:
    """The call that this task makes; None outside of calls. A Python function that is a tool may ask too."""
    return current.get()


def current_call_meta() -> dict[str, str] | None:
    """The identity in the form of a call's `_meta`; the default world is not a rollout."""
    call = current.get()
    if call is None:
        return None
    meta = {CALL_META: call.call, IDEMPOTENCY_META: call.key}
    return meta if call.rollout == DEFAULT_WORLD else {**meta, ROLLOUT_META: call.rollout}


Event = Literal["started", "accepted", "lost", "answered", "refused", "failed", "unknown"]
"""What a line records of a call.

| event | means |
| --- | --- |
| `started` | it is sent from here on; one line for each attempt |
| `accepted` | the server took the call and answers later; the note says under which name: `task 7` |
| `lost` | this attempt brought no answer, and the call is sent again |
| `answered` | the tool answered, perhaps with an error for the model |
| `refused` | nothing was called: the tool is unknown, or the arguments are not what its schema asks for |
| `failed` | no usable answer, and no doubt: it never arrived, it only reads, or the server answered that it failed |
| `unknown` | no answer, and whether it took effect cannot be told |

The last four are ends: a call that was started has exactly one of them, unless this process was killed.
"""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=repr)

ENDS = frozenset({"answered", "refused", "failed", "unknown"})

Listener = Callable[["LedgerLine"], None]


class LedgerLine(BaseModel, frozen=True):
    """One line. Digests are SHA-256 in hexadecimal, see `digest_arguments` and `digest_text`."""

    rollout: str
    call: str
    """The call's id, as the server sees it in `_meta`."""
    key: str
    """The idempotency key: one for all attempts of the call, and for no other call."""
    event: Event
    tool: str
    """The name under which the model called it."""
    attempt: int
    """Counted from 1; 0 where nothing was sent."""
    time: float
    """Seconds since 1970, by this machine's clock."""
    arguments: str = ""
    """Digest of the arguments; in the first line of a call."""
    result: str = ""
    """Digest of the text that came back; where the event is `answered` or `refused`."""
    note: str = ""
    """What went wrong, in one line."""


def digest_arguments(arguments: object) -> str:
    """Of the arguments as JSON with sorted keys and without spaces; of what JSON cannot write, as Python does; of what
    Python cannot write either (a number of 5,000 digits), of the name of its type. Never raises."""
    try:
        text = _CANONICAL.encode(arguments)
    except Exception:  # also of what somebody else wrote
        try:
            text = repr(arguments)
        except Exception:
            text = kind_of(arguments)
    return digest_text(text)


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class Ledger:
    """The calls of one world, in the order of what happened to them."""

    def __init__(self, rollout: str, *, most_lines: int | None = None, past: Sequence[LedgerLine] = ()) -> None:
        """`most_lines`: keep only as many, the latest; all where None. `past`: the lines of the world that this one
        was forked from, under the names that they have there."""
        self.rollout = rollout
        self.listener: Listener | None = None
        """Called with each line as it is written. What it raises stops the call: nothing is sent unrecorded."""
        self.dropped = 0
        """Lines that are no longer kept."""
        self._lines: deque[LedgerLine] = deque(past, maxlen=most_lines)
        # New for each world: a rollout that is run again makes other calls, also where their ids are the same.
        self._nonce = secrets.token_hex(8)
        self._calls = 0

    @property
    def lines(self) -> list[LedgerLine]:
        return list(self._lines)

    def open(self, tool: object, arguments: object, call_id: str | None) -> Entry:
        """A call that is to be made. `call_id`: given by the caller; made here where None."""
        self._calls += 1
        call = call_id if call_id is not None else f"{self.rollout}/call-{self._calls}"
        return Entry(self, call, f"{self._nonce}-{self._calls}", str(tool), arguments)

    def add(self, line: LedgerLine) -> None:
        if self.listener is not None:
            self.listener(line)
        if len(self._lines) == self._lines.maxlen:
            self.dropped += 1
        self._lines.append(line)


class Entry:
    """One call's lines."""

    __slots__ = ("_arguments", "_ledger", "attempt", "call", "ended", "key", "tool")

    def __init__(self, ledger: Ledger, call: str, key: str, tool: str, arguments: object) -> None:
        self._ledger = ledger
        self._arguments = arguments
        self.call = call
        self.key = key
        self.tool = tool
        self.attempt = 0
        self.ended = False

    @property
    def open(self) -> bool:
        """Begun and not ended."""
        return self.attempt > 0 and not self.ended

    @property
    def identity(self) -> CallIdentity:
        return CallIdentity(self.call, self.key, self._ledger.rollout, self.attempt, partial(self.noted, "accepted"))

    def started(self) -> None:
        """The next attempt is sent from here on."""
        self.attempt += 1
        try:
            self._write("started", arguments=digest_arguments(self._arguments) if self.attempt == 1 else "")
        except BaseException:
            self.ended = True  # nothing is sent, and what cannot be written has no end either
            raise

    def noted(self, event: Literal["accepted", "lost", "failed", "unknown"], note: str) -> None:
        self._write(event, note=note)

    def answered(self, result: ToolResult) -> None:
        self._write("answered", result=digest_text(result.text))

    def refused(self, result: ToolResult) -> ToolResult:
        """`result`, with the call's only line: nothing was sent."""
        arguments, result_digest = digest_arguments(self._arguments), digest_text(result.text)
        self._write("refused", arguments=arguments, result=result_digest, note=result.error_kind or "")
        return result

    def _write(self, event: Event, *, arguments: str = "", result: str = "", note: str = "") -> None:
        if event in ENDS:
            # Also where the listener raises: the call must not end twice.
            self.ended = True
        line = LedgerLine(
            rollout=self._ledger.rollout,
            call=self.call,
            key=self.key,
            event=event,
            tool=self.tool,
            attempt=self.attempt,
            time=time.time(),
            arguments=arguments,
            result=result,
            note=note,
        )
        self._ledger.add(line)


def one_line(error: Any) -> str:
    """An error as a note: its type and the first line of its message."""
    first, _, _ = str(error).strip().partition("\n")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


# ---------------------------------------------------------------------------------------------------------------------
# When a call may be sent again, and what is known of one that may not

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0

Send = Callable[[float], Awaitable[ToolResult]]
"""Sends the call once and returns what came back, within the seconds given; raises `ToolFailure` otherwise."""


async def call_once(
    entry: Entry, send: Send, *, tool: Tool, retries: int, limit_s: float, turns: Turns | None
) -> ToolResult:
    """Call a tool so that it takes effect at most once, unless it is one that may be called twice.

    A request that certainly was not taken is sent again, up to `retries` times, whatever the tool, and not before the
    server says (`retry_after_s`). After a lost answer a read-only or idempotent tool is called again, as often; of any
    other the outcome is unknown. A time limit that has passed is not a reason to call again: `limit_s` holds for all
    attempts together. Waiting for a turn at the server is not counted.

    Raises `OutcomeUnknown`, or the `ToolFailure` of the last attempt where nothing can have been done. Every call
    that was begun has its end in the ledger, whatever is raised.
    """
    may_have_run = is_sent = False
    left_s = limit_s
    try:
        while True:
            async with contextlib.nullcontext() if turns is None else turns.taken():
                began = time.monotonic()
                try:
                    entry.started()
                    is_sent = True
                    token = current.set(entry.identity)
                    try:
                        result = await send(left_s)
                    finally:
                        current.reset(token)
                except ToolFailure as error:
                    failure = error
                else:
                    entry.answered(result)
                    return result
            is_sent = False
            may_have_run = may_have_run or failure.delivery == "unknown"
            pause = min(_FIRST_PAUSE_S * 4 ** (entry.attempt - 1), _LONGEST_PAUSE_S)
            pause = max(pause, failure.retry_after_s or 0.0)
            left_s -= time.monotonic() - began + pause
            if entry.attempt > retries or left_s <= 0 or not _may_be_sent_again(failure, tool):
                raise _end(entry, failure, tool, may_have_run=may_have_run)
            logger.warning("%r is sent again (attempt %d): %s", tool.name, entry.attempt + 1, one_line(failure))
            entry.noted("lost", one_line(failure))
            await anyio.sleep(pause)
    except BaseException as error:
        if entry.open:
            # Cancelled, or a fault of ours: the answer is not waited for any more.
            is_certain = tool.annotations.read_only or not (is_sent or may_have_run)
            entry.noted("failed" if is_certain else "unknown", one_line(error))
        raise


def _may_be_sent_again(failure: ToolFailure, tool: Tool) -> bool:
    if failure.world_lost or failure.delivery == "answered":
        return False
    if failure.delivery in ("not_sent", "refused"):
        return True
    return may_be_repeated(tool) and not isinstance(failure, CallTimeout)


def may_be_repeated(tool: Tool) -> bool:
    """Whether calling it twice has the effect of calling it once, by its annotations."""
    return bool(tool.annotations.read_only or tool.annotations.idempotent)


def _end(entry: Entry, failure: ToolFailure, tool: Tool, *, may_have_run: bool) -> ToolFailure:
    """The error to raise; the ledger has its line."""
    if not may_have_run or tool.annotations.read_only:
        entry.noted("failed", one_line(failure))
        return failure
    entry.noted("unknown", one_line(failure))
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
