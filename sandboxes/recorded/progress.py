"""How far one world has come in a recording."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..sandbox import SetupError
from .lines import RecordedResult
from .places import Entry, Key, in_order
from .tally import How

_FORM = "toolbake recorded twin 1"


@dataclass
class Progress:
    """What calls and the clock have changed in a world since it began. `place` is explained in `places`."""

    seed: int
    scenario: str
    setup: str
    """Canonical JSON of the recorded setup whose sessions are replayed."""
    place: str
    now: datetime
    sessions: list[str]
    """All sessions in the order in which this world looks for answers; the first is the one it follows."""
    given: dict[Key, int] = field(default_factory=dict)
    """How often a call was answered at a place."""
    changes: list[dict[str, Any]] = field(default_factory=list)
    """Calls that may have changed something, with their answers."""
    history: list[dict[str, Any]] | None = None
    """All calls with their answers, where a model is to go on from here."""

    def copy(self) -> Progress:
        # What is in the lists is never changed.
        return Progress(
            **{
                **self.__dict__,
                "sessions": list(self.sessions),
                "given": dict(self.given),
                "changes": list(self.changes),
                "history": None if self.history is None else list(self.history),
            }
        )

    def next_answer(self, key: Key, answers: Mapping[str, Sequence[Entry]]) -> tuple[Entry, How]:
        """The next answer to a call that was recorded here: of the session that this world follows, where it has one.

        Answers of one session are not mixed with those of others: together they would tell of no real tool.
        """
        number = self.given.get(key, 0)
        session, entries = next(in_order(answers, self.sessions))
        if number >= len(entries):
            return entries[-1], "repeated"
        return entries[number], "recorded" if session == self.sessions[0] else "other_session"

    def take(self, key: Key, entry: Entry | None) -> None:
        """A call was answered, by this entry of the recording."""
        self.given[key] = self.given.get(key, 0) + 1
        if entry is not None and entry.after != entry.place and entry.call.session in self.sessions:
            # A change as another session saw it: that session knows what comes after it.
            self.sessions.remove(entry.call.session)
            self.sessions.insert(0, entry.call.session)

    def note(self, tool: str, arguments: Mapping[str, Any], result: RecordedResult, *, after: str, how: How) -> None:
        """Remember what was answered, and go on to the place after it."""
        if self.history is None and after == self.place:
            return
        call = {"tool": tool, "arguments": copy.deepcopy(dict(arguments)), "answer": how}
        if self.history is not None:
            structured = copy.deepcopy(result.structured)
            self.history.append({**call, "text": result.text, "structured": structured, "is_error": result.is_error})
        if after != self.place:
            self.changes.append({**call, "text": result.text})
            self.place = after

    def as_bytes(self) -> bytes:
        found = {**self.__dict__, "now": self.now.isoformat(), "given": [[*key, n] for key, n in self.given.items()]}
        return json.dumps({"form": _FORM, **found}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Progress:
        """Raises `SetupError` for bytes that `as_bytes` did not give."""
        try:
            found = json.loads(data)
            if found.pop("form") != _FORM:
                raise ValueError("another form")
            found["now"] = datetime.fromisoformat(found["now"])
            found["given"] = {(place, tool, arguments): n for place, tool, arguments, n in found["given"]}
            return cls(**found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SetupError(
                f"this is no snapshot of a recorded twin ({error}); give what snapshot() returned"
            ) from error
