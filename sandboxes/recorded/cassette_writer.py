"""Writing a cassette, a line at a time, as it happens."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp_bridge.errors import SourceError
from mcp_bridge.records import Tool, ToolResult

from .cassette import Cassette, only_adds
from .lines import CallLine, Header, RecordedFailure, RecordedResult, SessionLine
from .scrubbing import Scrubber

logger = logging.getLogger(__name__)


class CassetteWriter:
    """Adds sessions and calls to a cassette. Several processes may write to one file: each line is written under a
    lock, at once and as a whole, so that a killed writer leaves every earlier line readable."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        tools: Sequence[Tool],
        *,
        source: str,
        server: Mapping[str, Any] | None = None,
        scrubber: Scrubber | None = None,
    ) -> None:
        """Begins the file, or goes on in one that has the same tools, or some of the same.

        Raises `SourceError` where the file is no cassette, is one of other tools, or cannot be written.
        """
        self.path = Path(path)
        self.scrubber = scrubber or Scrubber()
        self.calls = 0
        self._header = Header(
            recorded_at=_now(),
            source=self.scrubber.text(source),
            server=self.scrubber.value(dict(server or {})),
            tools=[self._clean_tool(tool) for tool in tools],
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked() as file:
                self._begin(file)
        except OSError as error:
            raise SourceError(f"the cassette {str(self.path)!r} cannot be written: {error}") from error

    def learn(self, tools: Sequence[Tool]) -> None:
        """Tools that are offered now. Those that are new are added to what was recorded; one that is known stays as it
        was first."""
        cleaned = [self._clean_tool(tool) for tool in tools]
        known = {tool.name for tool in self._header.tools}
        new = [tool for tool in cleaned if tool.name not in known]
        if not new:
            return
        self._header = self._header.model_copy(update={"tools": [*self._header.tools, *new]})
        with self._locked() as file:
            self._begin(file)

    def begin_session(self, setup: Mapping[str, Any] | None = None) -> str:
        """A new session's name; it is unique among all writers of the file."""
        name = secrets.token_hex(4)
        self._append(SessionLine(session=name, setup=self.scrubber.value(dict(setup or {})), began_at=_now()))
        return name

    def add_call(
        self,
        session: str,
        order: int,
        tool: str,
        arguments: Mapping[str, Any],
        outcome: ToolResult | BaseException,
        duration_s: float,
    ) -> CallLine:
        """A call with its result, or with what was raised in its place; returns the line that was written."""
        result, failure = None, None
        if isinstance(outcome, ToolResult):
            recorded = RecordedResult.of(outcome)
            cleaned = {
                "text": self.scrubber.text(recorded.text),
                "structured": self.scrubber.value(recorded.structured),
            }
            result = recorded.model_copy(update=cleaned)
        else:
            failure = RecordedFailure(type=type(outcome).__name__, text=self.scrubber.text(str(outcome)))
        line = CallLine(
            session=session,
            order=order,
            tool=self.scrubber.text(tool),
            arguments=self.scrubber.value(dict(arguments)),
            result=result,
            failure=failure,
            duration_s=round(duration_s, 6),
        )
        self.append_call(line)
        return line

    def append_call(self, line: CallLine) -> None:
        """A line that holds no secret, as it is."""
        self._append(line)
        self.calls += 1

    def _append(self, line: SessionLine | CallLine) -> None:
        with self._locked() as file:
            _write_all(file, line.as_text() + "\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _begin(self, file: int) -> None:
        size = os.fstat(file).st_size
        if size == 0:
            _write_all(file, self._header.as_text() + "\n")
            return
        found = Cassette.read(self.path)
        kept, ours = found.header.tools, self._header.tools
        adds = only_adds(kept, ours)
        if not (adds or only_adds(ours, kept)):
            raise SourceError(
                f"the cassette {str(self.path)!r} holds a recording of other tools ({found.header.source}); "
                "record into another file"
            )
        if found.torn:
            whole = self.path.read_bytes()
            end = whole.rfind(b"\n") + 1
            logger.warning("%s: the last line was cut off (%d bytes); leaving it out", self.path, len(whole) - end)
            os.ftruncate(file, end)
        if adds and len(ours) > len(kept):
            _write_all(file, self._header.as_text() + "\n")

    def _clean_tool(self, tool: Tool) -> Tool:
        # The label of a source may name folders of this machine; a twin has a source of its own.
        cleaned = {"description": self.scrubber.words(tool.description), "name_at_source": ""}
        schemas = {"input_schema": _clean(tool.input_schema, self.scrubber)}
        if tool.output_schema is not None:
            schemas["output_schema"] = _clean(tool.output_schema, self.scrubber)
        return tool.model_copy(update={**cleaned, **schemas, "source": ""})


def _clean(schema: dict[str, Any], scrubber: Scrubber) -> dict[str, Any]:
    """A schema with its texts scrubbed. The names in it are words, not secrets: `{"token": {"type": "string"}}`."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(one) for key, one in value.items()}
        if isinstance(value, list):
            return [walk(one) for one in value]
        return scrubber.words(value) if isinstance(value, str) else value

    found: dict[str, Any] = walk(schema)
    return found


def _write_all(file: int, text: str) -> None:
    data = memoryview(text.encode("utf-8", "surrogatepass"))
    while data:
        data = data[os.write(file, data) :]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
