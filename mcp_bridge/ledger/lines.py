"""The ledger of one rollout: a line before each call and a line after it."""

from __future__ import annotations

import hashlib
import json
import marshal
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..records import ToolResult
from ..toolsets.plain import is_plain
from .spelling import spelled

Event = Literal["started", "accepted", "lost", "answered", "refused", "failed", "unknown"]
"""What a line says of a call.

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


class LedgerLine(BaseModel):
    """One line. Digests are SHA-256 in hexadecimal, see `digest_arguments` and `digest_text`."""

    model_config = ConfigDict(frozen=True)

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


_Digested = str | bytes
"""A digest, or what it is made of when the line is read: small arguments as `marshal` packs them, or a short text as
UTF-8."""

_Record = tuple[str, str, str, Event, str, int, float, _Digested, _Digested, str]
"""A line as it is written: the fields of `LedgerLine` in their order. Nobody reads most lines of a training run, and a
record with two digests takes ten times as long as a tuple."""

_LONGEST_KEPT = 1_000
"""Characters of a text, bytes of arguments. What is longer is digested at once: a ledger must not hold on to whole
answers."""


def digest_arguments(arguments: object) -> str:
    """Of the arguments as JSON with sorted keys and without spaces; of what JSON cannot write, as Python does; of what
    that cannot write either, as `spelled` does. Never raises."""
    try:
        text = _CANONICAL.encode(arguments)
    except Exception:  # also of what somebody else wrote
        try:
            text = repr(arguments)
        except Exception:
            text = spelled(arguments)
    return digest_text(text)


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _kept_text(text: str) -> _Digested:
    return text.encode(errors="surrogatepass") if len(text) <= _LONGEST_KEPT else digest_text(text)


def _line(record: _Record | LedgerLine) -> LedgerLine:
    if isinstance(record, LedgerLine):
        return record
    rollout, call, key, event, tool, attempt, when, arguments, result, note = record
    return LedgerLine(
        rollout=rollout,
        call=call,
        key=key,
        event=event,
        tool=tool,
        attempt=attempt,
        time=when,
        arguments=digest_arguments(marshal.loads(arguments)) if isinstance(arguments, bytes) else arguments,
        result=hashlib.sha256(result).hexdigest() if isinstance(result, bytes) else result,
        note=note,
    )


class Ledger:
    """The calls of one world, in the order of what happened to them."""

    def __init__(self, rollout: str, *, most_lines: int | None = None, past: Sequence[LedgerLine] = ()) -> None:
        """`most_lines`: keep only as many, the latest; all where None. `past`: the lines of the world that this one
        was forked from, under the names that they have there."""
        self.rollout = rollout
        self.listener: Listener | None = None
        """Hears of each line as it is written. What it raises stops the call: nothing is sent unrecorded."""
        self.dropped = 0
        """Lines that are no longer kept."""
        self._lines: deque[_Record | LedgerLine] = deque(past, maxlen=most_lines)
        # New for each world: a rollout that is run again makes other calls, also where their ids are the same.
        self._nonce = secrets.token_hex(8)
        self._calls = 0

    @property
    def lines(self) -> list[LedgerLine]:
        """Made of the records here, each once."""
        made = [_line(one) for one in self._lines]
        self._lines = deque(made, maxlen=self._lines.maxlen)
        return made

    def open(self, tool: object, arguments: object, call_id: str | None) -> Entry:
        """A call that is to be made. `call_id`: given by the caller; made here where None."""
        self._calls += 1
        call = call_id if call_id is not None else f"{self.rollout}/call-{self._calls}"
        return Entry(self, call, f"{self._nonce}-{self._calls}", str(tool), arguments)

    def write(self, of: Entry, event: Event, arguments: _Digested = "", result: _Digested = "", note: str = "") -> None:
        """A line of one of its calls."""
        if event in ENDS:
            # Also where the listener raises: the call must not end twice.
            of.ended = True
        kept: _Record | LedgerLine
        kept = (self.rollout, of.call, of.key, event, of.tool, of.attempt, time.time(), arguments, result, note)
        if self.listener is not None:
            kept = _line(kept)
            self.listener(kept)
        if len(self._lines) == self._lines.maxlen:
            self.dropped += 1
        self._lines.append(kept)


class Entry:
    """One call's lines."""

    __slots__ = ("_arguments", "_ledger", "attempt", "call", "ended", "has_plain_arguments", "key", "rollout", "tool")

    def __init__(self, ledger: Ledger, call: str, key: str, tool: str, arguments: Any) -> None:
        self._ledger = ledger
        self.tool = tool
        self._arguments = arguments
        self.look_at_arguments()
        self.call = call
        self.key = key
        self.rollout = ledger.rollout
        self.attempt = 0
        self.ended = False

    def look_at_arguments(self) -> None:
        """To be called again where somebody may have changed them since: between that and the line nothing may wait."""
        self.has_plain_arguments = type(self._arguments) is dict and is_plain(self._arguments)

    @property
    def open(self) -> bool:
        """Begun and not ended."""
        return self.attempt > 0 and not self.ended

    def started(self) -> None:
        """The next attempt is sent from here on."""
        self.attempt += 1
        try:
            self._ledger.write(self, "started", self._kept_arguments() if self.attempt == 1 else "")
        except BaseException:
            self.ended = True  # nothing is sent, and what cannot be written has no end either
            raise

    def accepted(self, note: str) -> None:
        self._ledger.write(self, "accepted", note=note)

    def lost(self, note: str) -> None:
        self._ledger.write(self, "lost", note=note)

    def answered(self, result: ToolResult) -> None:
        self._ledger.write(self, "answered", "", _kept_text(result.text))

    def refused(self, result: ToolResult) -> None:
        """Nothing was sent; the call's only line."""
        kept = self._kept_arguments()
        self._ledger.write(self, "refused", kept, _kept_text(result.text), result.error_kind or "")

    def failed(self, note: str) -> None:
        self._ledger.write(self, "failed", note=note)

    def unknown(self, note: str) -> None:
        self._ledger.write(self, "unknown", note=note)

    def _kept_arguments(self) -> _Digested:
        """Small arguments packed, so that nobody can change them any more; else the digest."""
        if not self.has_plain_arguments:  # `marshal` would take the bytes of a number of numpy's for a text
            return digest_arguments(self._arguments)
        packed = marshal.dumps(self._arguments)
        return packed if len(packed) <= _LONGEST_KEPT else digest_arguments(self._arguments)


def one_line(error: Any) -> str:
    """An error as a note: its type and the first line of its message."""
    first, _, _ = str(error).strip().partition("\n")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
