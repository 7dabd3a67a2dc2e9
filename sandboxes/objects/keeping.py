"""Copies of the objects of a world, in memory and as bytes."""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Collection
from datetime import datetime
from typing import Any

from ..sandbox import SetupError

_MAGIC = b"toolbake objects 1\n"
_DIGEST_BYTES = 32


def copied(world: dict[str, Any], shared: Collection[str]) -> dict[str, Any]:
    """A deep copy of all objects at once, so that what they share among themselves they share in the copy too.

    Attributes named in `shared` are the same objects in the copy.
    """
    memo = {id(value): value for one in world.values() for name in shared if (value := getattr(one, name, None))}
    return copy.deepcopy(world, memo)


def to_bytes(name: str, now: datetime, world: dict[str, Any]) -> bytes:
    """Raises `SetupError` for objects that cannot be pickled."""
    try:
        body = pickle.dumps((name, now, world))
    except Exception as error:
        raise SetupError(
            f"the objects of {name} cannot be pickled ({error}); give the class a `__getstate__` without what cannot"
        ) from error
    return _MAGIC + hashlib.sha256(body).digest() + body


def from_bytes(name: str, snapshot: bytes) -> tuple[datetime, dict[str, Any]]:
    """What `to_bytes` was given. Raises `SetupError` for anything else.

    The digest tells damage, not malice: pickled bytes can run code, so restore only snapshots of your own.
    """
    start = len(_MAGIC) + _DIGEST_BYTES
    body = snapshot[start:]
    if not snapshot.startswith(_MAGIC) or snapshot[len(_MAGIC) : start] != hashlib.sha256(body).digest():
        raise SetupError(f"this is no snapshot of {name}; give what snapshot() returned")
    try:
        of, now, world = pickle.loads(body)
    except Exception as error:
        raise SetupError(f"this snapshot of {name} cannot be read ({error}); was its class renamed?") from error
    if of != name:
        raise SetupError(f"this is a snapshot of {of}, not of {name}")
    return now, world
