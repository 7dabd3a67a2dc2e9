"""What one session, or one attempt at it, left behind: for the message when it fails, and to tell how it failed."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from ..access.redaction import redacted
from .http_client import HttpFaults
from .processes import ServerProcess
from .stderr import StderrTail


class Ending:
    """An event that is asked about before every call: an attribute in place of anyio's two calls. Most are never
    waited for, and take no event of anyio's then."""

    __slots__ = ("_event", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._event: anyio.Event | None = None

    def set(self) -> None:
        self.is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
            if self.is_set:
                self._event.set()
        await self._event.wait()


class Notes:
    """Kept by the transport, read by the session."""

    def __init__(self, secrets: Callable[[], tuple[str, ...]]) -> None:
        """`secrets`: asked each time, because tokens are learned while a session goes on."""
        self._secrets = secrets
        self.http_status: int | None = None
        self.stderr: StderrTail | None = None
        self.process: ServerProcess | None = None
        self.faults = HttpFaults()
        self.is_open = False
        """Set once the session is open: from there on a failed request is no failure to connect."""
        self.has_session_id = False
        """Whether the server keeps something for this session: it gave it an id over HTTP."""
        self.gone = Ending()
        """Set where the connection has ended, also while nobody calls."""
        self.why_gone = ""

    def note_end(self, why: str) -> None:
        self.why_gone = self.why_gone or why
        self.gone.set()

    def explain(self) -> str:
        """The end of the server's stderr and the HTTP status, where there are any; secrets replaced."""
        parts = []
        if self.why_gone:
            parts.append(f" {self.why_gone[:1].upper()}{self.why_gone[1:]}.")
        if self.http_status is not None:
            parts.append(f" The server answered HTTP {self.http_status}.")
        if self.stderr is not None:
            text = self.stderr.text()
            parts.append(f" The end of its stderr:\n{text}" if text else " It wrote nothing to stderr.")
        return redacted("".join(parts), self._secrets())

    def redact(self, text: str) -> str:
        return redacted(text, self._secrets())
