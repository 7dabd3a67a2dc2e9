"""Databases as they are built from a seed, kept so that each is built once."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

MOST_IMAGES = 1024
MOST_BYTES = 256 * 2**20

Key = tuple[type, int, str, tuple[Any, ...]]
"""The kind of sandbox, the seed, the scenario, and what the sandbox itself may make its world from."""


class Images:
    """The images used last, up to a number and a size. The newest is kept whatever its size."""

    def __init__(self, *, most_images: int = MOST_IMAGES, most_bytes: int = MOST_BYTES) -> None:
        self._most_images, self._most_bytes = most_images, most_bytes
        self._images: OrderedDict[Key, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Key) -> bytes | None:
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
            return self._images.get(key)

    def put(self, key: Key, image: bytes) -> None:
        with self._lock:
            self._bytes += len(image) - len(self._images.pop(key, b""))
            self._images[key] = image
            while len(self._images) > 1 and (len(self._images) > self._most_images or self._bytes > self._most_bytes):
                self._bytes -= len(self._images.popitem(last=False)[1])
