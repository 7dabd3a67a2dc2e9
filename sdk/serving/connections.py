"""Connections of the endpoint: a client has a limited time to send a request."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 60.0
"""How long a client may take to send all of a request, in seconds, from its connection or its first byte on. Clients
that send nothing, or a byte now and then, would hold connections until there are none left, before a key is asked."""
_INCOMPLETE = ("IDLE", "SEND_BODY")
"""What h11 calls a client that has not sent all of its request."""


class TimedConnection(H11Protocol):
    """uvicorn's HTTP/1.1, which ends a connection whose request does not come to its end in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _look(self) -> None:
        if self.conn.their_state.__name__ not in _INCOMPLETE:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
