"""Ports for servers that are told theirs before they start, which can be seconds before they listen there."""

from __future__ import annotations

import os
import socket

_FIRST, _LAST = 10_000, 32_000
"""Below the ports that the system gives to whoever asks for any."""
_next = _FIRST + os.getpid() * 211 % (_LAST - _FIRST)
"""Processes of tests begin far from each other, and no port is given out twice."""


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    global _next
    while True:
        port, _next = _next, _next + 1 if _next < _LAST else _FIRST
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
