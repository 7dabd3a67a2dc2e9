"""Reading a cassette: what was recorded, session by session."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcp_bridge.errors import SourceError
from mcp_bridge.records import Tool

from .lines import FORMAT, VERSION, CallLine, Header, SessionLine, canonical


@dataclass(frozen=True)
class RecordedSession:
    """One session, its calls in the order in which they were made."""

    name: str
    setup: Mapping[str, Any] = field(default_factory=dict)
    calls: Sequence[CallLine] = ()


@dataclass(frozen=True)
class Cassette:
    """Everything in a cassette file.

    Example: `Cassette.read("files.jsonl").sessions[0].calls[0].tool == "write_file"`
    """

    header: Header
    sessions: Sequence[RecordedSession]
    simulated: Sequence[CallLine] = ()
    """Answers that a model made up in earlier replays and that were kept."""
    torn: bool = False
    """The last line was cut off, as when the recorder was killed while it wrote. That line is left out."""
    path: Path | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Cassette:
        """The cassette in a file. Raises `SourceError` that names the line where it is none."""
        where = Path(path)
        try:
            text = where.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise SourceError(f"there is no cassette {str(where)!r}; record one with `toolbake record`") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"the cassette {str(where)!r} cannot be read: {error}") from error
        whole, _, rest = text.rpartition("\n")
        lines = [_parsed(line, number, where) for number, line in enumerate(whole.split("\n"), 1) if line.strip()]
        if not lines or not isinstance(lines[0], Header):
            raise SourceError(
                f"{str(where)!r} does not begin with the header of a {FORMAT}, version {VERSION}; give a file that "
                "`toolbake record` wrote"
            )
        headers = [line for line in lines if isinstance(line, Header)]
        return cls(headers[-1], *_by_session(lines, where), torn=bool(rest.strip()), path=where)

    @property
    def calls(self) -> list[CallLine]:
        """The calls of all sessions, one session after the other."""
        return [call for session in self.sessions for call in session.calls]


def _parsed(line: str, number: int, where: Path) -> Header | SessionLine | CallLine:
    kinds: dict[str, type[Header] | type[SessionLine] | type[CallLine]]
    kinds = {"header": Header, "session": SessionLine, "call": CallLine}
    try:
        found = json.loads(line)
        kind = kinds[found["kind"]]
        return kind.model_validate(found)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        # pydantic repeats the values, which may be long.
        told = error.errors(include_input=False)[0] if isinstance(error, ValidationError) else None
        why = f"{'.'.join(map(str, told['loc']))}: {told['msg']}" if told else f"{type(error).__name__}: {error}"
        raise SourceError(
            f"line {number} of the cassette {str(where)!r} is none of {', '.join(kinds)} ({why[:300]})"
        ) from error


def _by_session(
    lines: Sequence[Header | SessionLine | CallLine], where: Path
) -> tuple[list[RecordedSession], list[CallLine]]:
    setups: dict[str, dict[str, Any]] = {}
    calls: dict[str, list[CallLine]] = {}
    simulated: list[CallLine] = []
    header = lines[0]
    assert isinstance(header, Header)
    for line in lines[1:]:
        if isinstance(line, Header):
            _require_more_tools(header, line, where)
            header = line
            continue
        if isinstance(line, SessionLine):
            setups[line.session] = line.setup
            calls.setdefault(line.session, [])
        elif line.simulated:
            simulated.append(line)
        elif line.session not in calls:
            raise SourceError(f"the cassette {str(where)!r} has a call of {line.session!r}, a session it never began")
        else:
            calls[line.session].append(line)
    sessions = [
        RecordedSession(name, setups[name], sorted(made, key=lambda call: call.order)) for name, made in calls.items()
    ]
    return sessions, simulated


def _require_more_tools(before: Header, after: Header, where: Path) -> None:
    """A header in the middle may only name tools that were offered later, or to other clients."""
    if not only_adds(before.tools, after.tools):
        raise SourceError(f"the cassette {str(where)!r} has a second header of other tools; it must be one recording")


def only_adds(before: Sequence[Tool], after: Sequence[Tool]) -> bool:
    """Whether all tools of `before` are among those of `after`, as they were."""
    later = {tool.name: canonical(tool.model_dump()) for tool in after}
    return all(later.get(tool.name) == canonical(tool.model_dump()) for tool in before)
