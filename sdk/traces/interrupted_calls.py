"""Calls that were begun and never ended, because their process was killed in between."""

from __future__ import annotations

import time
from collections.abc import Iterable

from mcp_bridge.ledger.lines import ENDS, LedgerLine


def interrupted(lines: Iterable[LedgerLine]) -> list[LedgerLine]:
    """The last line of each call that has no end, in the order in which they were begun."""
    open_calls: dict[str, LedgerLine] = {}
    for line in lines:
        if line.event in ("started", "accepted"):
            open_calls[line.key] = line
        elif line.event in ENDS:
            open_calls.pop(line.key, None)
    return list(open_calls.values())


def ended(line: LedgerLine) -> LedgerLine:
    """The end of an interrupted call: nobody knows whether it took effect."""
    taken = f", which the server works on as {line.note}" if line.event == "accepted" else ""
    note = f"the run was killed during the call{taken}"
    return line.model_copy(update={"event": "unknown", "time": time.time(), "arguments": "", "note": note})
