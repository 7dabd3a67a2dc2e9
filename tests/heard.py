"""Progress for tests: shows nothing, and keeps what is said."""

from __future__ import annotations

from sdk.progress import Silent


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)
