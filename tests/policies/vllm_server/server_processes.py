"""What the system says of a server's processes."""

from __future__ import annotations

import os
from pathlib import Path


def processes_of(group: int) -> list[Path]:
    """The folders in `/proc` of a server's processes."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(place.name)) == group:
                found.append(place)
        except ProcessLookupError:
            continue
    return found


def segments_of(group: int) -> set[str]:
    """The shared memory that a server's processes have."""
    lines = [line for place in processes_of(group) for line in (place / "maps").read_text().splitlines()]
    return {line.split()[-1] for line in lines if "/dev/shm/" in line and not line.endswith("(deleted)")}
