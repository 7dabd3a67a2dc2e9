"""A cassette is a JSON Lines file with the recorded calls of tools, session by session. Its writer is here, and
recording from Python, where it grows as the worlds of any source are used.

Each line is one JSON object; its `kind` is `header`, `session` or `call`:

{"kind": "header", "format": "toolbake cassette", "version": 1, "tools": [...], ...}
{"kind": "session", "session": "3f9c01ab", "setup": {}, "began_at": "2026-01-05T10:00:00+00:00"}
{"kind": "call", "session": "3f9c01ab", "order": 0, "tool": "read_file", "arguments": {...}, "result": {...}, ...}
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mcp_bridge.access.redaction import without_inputs
from mcp_bridge.appended_files import append_whole, cut_torn_line
from mcp_bridge.errors import SourceError
from mcp_bridge.records import ErrorKind, Tool, ToolResult, compact_json
from mcp_bridge.safe_text import and_more, json_in, with_texts
from mcp_bridge.world import Setup, World, WorldSource

from ..wrapping import WrappedSource, WrappedWorld
from .scrubber import Scrubber

FORMAT: Literal["toolbake cassette"] = "toolbake cassette"
VERSION: Literal[1] = 1


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def as_text(self) -> str:
        """The line without its end."""
        always = {name: getattr(self, name) for name in ("kind", "format", "version") if hasattr(self, name)}
        found = {**always, **self.model_dump(exclude_defaults=True)}
        text = compact_json(found)
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair, which some tools return and UTF-8 cannot hold
            return json.dumps(found, separators=(",", ":"))
        return text


class Header(_Line):
    """The first line: what was recorded. Again where more tools were offered than before: the last one counts."""

    kind: Literal["header"] = "header"
    format: Literal["toolbake cassette"] = FORMAT
    version: Literal[1] = VERSION
    recorded_at: str
    """When the cassette was begun: ISO 8601, with a zone."""
    source: str
    """The command, URL or object that was recorded, without secrets."""
    server: dict[str, Any] = Field(default_factory=dict)
    """`name` and `version`, where a server gave them."""
    tools: list[Tool]

    @field_validator("recorded_at")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        datetime.fromisoformat(value)
        return value

    @field_validator("tools")
    @classmethod
    def _have_names_of_their_own(cls, value: list[Tool]) -> list[Tool]:
        names = [tool.name for tool in value]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"there are two tools {twice!r}")
        return value


class SessionLine(_Line):
    """A session, or a world, has begun. Its calls name it."""

    kind: Literal["session"] = "session"
    session: str
    setup: dict[str, Any] = Field(default_factory=dict)
    began_at: str = ""


class RecordedResult(BaseModel):
    """What a call returned: see `mcp_bridge.ToolResult`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    structured: Any = None
    is_error: bool = False
    error_kind: ErrorKind | None = None
    truncated_chars: int = 0
    content: tuple[dict[str, Any], ...] | None = None
    meta: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, result: ToolResult) -> RecordedResult:
        return cls.model_validate({name: getattr(result, name) for name in cls.model_fields})

    def as_tool_result(self, notes: tuple[str, ...] = ()) -> ToolResult:
        # A copy: what a caller does to a result must not change the recording.
        return ToolResult(**copy.deepcopy(dict(self)), notes=notes)


class RecordedFailure(BaseModel):
    """Why a call has no result: the infrastructure broke, so whether it took effect is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: str
    text: str


class CallLine(_Line):
    """One call with its result or its failure."""

    kind: Literal["call"] = "call"
    session: str
    order: int = Field(ge=0)
    """The place among the session's calls by when they were made, from 0. Lines stand in the order of the answers."""
    tool: str
    arguments: dict[str, Any]
    result: RecordedResult | None = None
    failure: RecordedFailure | None = None
    duration_s: float = 0.0
    simulated: bool = False
    """A model made this answer up; no real tool gave it."""
    place: str | None = None
    """Of a simulated answer: the place in the twin at which it was given."""


_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def canonical(value: Any) -> str:
    """One text for equal JSON: keys sorted, and `2.0` written as `2`, which models do not tell apart."""
    return _ENCODER.encode(_plain(value))


def digest(*parts: str) -> str:
    """A short name for a sequence of texts."""
    hashed = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


@dataclass(frozen=True)
class RecordedSession:
    """One session, its calls in the order in which they were made."""

    name: str
    setup: Mapping[str, Any] = field(default_factory=dict)
    calls: Sequence[CallLine] = ()

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Calls that were made and never written, before one that was: from the first to the last `order` of each
        gap."""
        orders = [-1, *(call.order for call in self.calls)]
        return [(one + 1, other - 1) for one, other in itertools.pairwise(orders) if other > one + 1]


@dataclass(frozen=True)
class Cassette:
    """Everything in a cassette file.

    Example: `Cassette.read("files.jsonl").sessions[0].calls[0].tool == "write_file"`
    """

    header: Header
    sessions: Sequence[RecordedSession]
    simulated: Sequence[CallLine] = ()
    """Answers that a model made up in earlier replays and that were kept."""
    path: Path | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Cassette:
        """The cassette in a file, without a last line that was cut off, as when the recorder was killed while it wrote.
        Warnings tell of it, and of calls that were never written. Raises `SourceError` with the line that is not valid.
        """
        where = Path(path)
        try:
            # A line that was cut off may end in the midst of a letter.
            told, _, rest = where.read_bytes().rpartition(b"\n")
            if _is_whole(rest):
                told, rest = told + b"\n" + rest, b""
            whole = told.decode("utf-8")
        except FileNotFoundError:
            raise SourceError(f"there is no cassette {str(where)!r}; record one with `toolbake record`") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"the cassette {str(where)!r} cannot be read: {error}") from error
        lines = [_parsed(line, number, where) for number, line in enumerate(whole.split("\n"), 1) if line.strip()]
        if not lines or not isinstance(lines[0], Header):
            raise SourceError(
                f"{str(where)!r} does not begin with the header of a {FORMAT}, version {VERSION}; give a file that "
                "`toolbake record` wrote"
            )
        if rest.strip():
            logger.warning("%s: the last line was cut off (%d bytes); it is left out", where, len(rest))
        headers = [line for line in lines if isinstance(line, Header)]
        sessions, simulated = _by_session(lines, where)
        for session in sessions:
            if gaps := [str(first) if first == last else f"{first} to {last}" for first, last in session.gaps]:
                logger.warning(
                    "%s: the session %s lacks calls that were made and never written, as by a recorder that was "
                    "killed: order %s. What they changed is unknown, so a recorded twin answers no call after them, "
                    "unless all tools only read; record the session again",
                    where,
                    session.name,
                    and_more(gaps, 10),
                )
        return cls(headers[-1], sessions, simulated, path=where)

    @property
    def calls(self) -> list[CallLine]:
        """The calls of all sessions, one session after the other."""
        return [call for session in self.sessions for call in session.calls]


def _is_whole(line: bytes) -> bool:
    """Whether a last line without a line break is one, as editors leave it, and not the beginning of one."""
    return isinstance(json_in(line), dict)


def _parsed(line: str, number: int, where: Path) -> Header | SessionLine | CallLine:
    kinds: dict[str, type[Header] | type[SessionLine] | type[CallLine]]
    kinds = {"header": Header, "session": SessionLine, "call": CallLine}
    try:
        found = json.loads(line)
        if not isinstance(found, dict) or found.get("kind") not in kinds:
            raise SourceError(
                f"line {number} of {str(where)!r} is not a line of a cassette ({', '.join(kinds)}); give a file that "
                "`toolbake record` wrote"
            )
        return kinds[found["kind"]].model_validate(found)
    except (ValueError, TypeError, RecursionError) as error:
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
            # One in the middle may only name tools that were offered later, or to other clients.
            if not only_adds(header.tools, line.tools):
                raise SourceError(
                    f"the cassette {str(where)!r} has a second header of other tools; it must be one recording"
                )
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


def only_adds(before: Sequence[Tool], after: Sequence[Tool]) -> bool:
    """Whether all tools of `before` are among those of `after`, as they were but for what is said of them."""
    # Cassettes of earlier versions have no titles; annotations are the user's to change.
    left_out = {"title", "meta", "icons", "annotations"}
    later, earlier = (
        {tool.name: canonical(tool.model_dump(exclude=left_out)) for tool in tools} for tools in (after, before)
    )
    return all(later.get(name) == tool for name, tool in earlier.items())


logger = logging.getLogger(__name__)


class CassetteWriter:
    """Adds sessions and calls to a cassette. Several processes may write to one file: each line is written under a
    lock and as a whole. One that was cut off, by a kill or a full disk, is taken back before the next is written."""

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

        Raises `SourceError` where the file is not a cassette, is one of other tools, or cannot be written.
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
        with self._locked(create=True) as file:
            self._begin(file)

    def learn(self, tools: Sequence[Tool]) -> None:
        """Tools that are offered now. Those that are new are added to what was recorded; one that is known stays as it
        was first."""
        cleaned = [self._clean_tool(tool) for tool in tools]
        known = {tool.name for tool in self._header.tools}
        new = [tool for tool in cleaned if tool.name not in known]
        if not new:
            return
        before, self._header = self._header, self._header.model_copy(update={"tools": [*self._header.tools, *new]})
        try:
            with self._locked() as file:
                self._begin(file)
        except SourceError:
            self._header = before
            raise

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
            result = self.clean_result(RecordedResult.of(outcome))
        else:
            # What cancels a call tells of Python's own objects.
            said = str(outcome) if isinstance(outcome, Exception) else "the call was stopped before its answer came"
            failure = RecordedFailure(type=type(outcome).__name__, text=self.scrubber.text(without_inputs(said)))
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

    def clean_result(self, result: RecordedResult) -> RecordedResult:
        """The result with its secrets replaced."""
        cleaned = {
            "text": self.scrubber.text(result.text),
            "structured": self.scrubber.value(result.structured),
            "content": None if result.content is None else tuple(map(self._clean_part, result.content)),
            "meta": self.scrubber.value(result.meta),
        }
        return result.model_copy(update=cleaned)

    def append_call(self, line: CallLine) -> None:
        """A line that holds no secret, as it is."""
        self._append(line)
        self.calls += 1

    def _append(self, line: SessionLine | CallLine) -> None:
        with self._locked() as file:
            self._cut_torn_line(file)
            self._add(file, line)

    @contextlib.contextmanager
    def _locked(self, *, create: bool = False) -> Iterator[int]:
        """`create`: at the beginning. Later a file that is gone is an error: a new one would lack its header and what
        was recorded before."""
        import fcntl  # which Windows has not; cassettes can be read there

        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise SourceError(f"the cassette {str(self.path)!r} cannot be written: {error}") from error

    def _begin(self, file: int) -> None:
        size = os.fstat(file).st_size
        if size == 0:
            self._add(file, self._header)
            return
        found = Cassette.read(self.path)
        kept, ours = found.header.tools, self._header.tools
        adds = only_adds(kept, ours)
        if not (adds or only_adds(ours, kept)):
            raise SourceError(
                f"the cassette {str(self.path)!r} holds a recording of other tools ({found.header.source}); "
                "record into another file"
            )
        if _is_whole(self.path.read_bytes().rpartition(b"\n")[2]):
            append_whole(file, b"\n")
        self._cut_torn_line(file)
        said = {tool.name: tool.annotations for tool in kept}
        if adds and {tool.name: tool.annotations for tool in ours} != said:
            self._add(file, self._header)

    def _add(self, file: int, line: Header | SessionLine | CallLine) -> None:
        append_whole(file, f"{line.as_text()}\n".encode("utf-8", "surrogatepass"))

    def _cut_torn_line(self, file: int) -> None:
        if cut := cut_torn_line(file):
            logger.warning("%s: the last line was cut off (%d bytes); leaving it out", self.path, cut)

    def _clean_part(self, part: dict[str, Any]) -> dict[str, Any]:
        """Bytes stay as they are: nothing is found in base64, and an image with a hole is none."""
        kept = {key: part[key] for key in ("data", "blob") if key in part}
        rest = {key: value for key, value in part.items() if key not in kept}
        inner = {"resource": self._clean_part(rest.pop("resource"))} if isinstance(rest.get("resource"), dict) else {}
        return {**self.scrubber.value(rest), **inner, **kept}

    def _clean_tool(self, tool: Tool) -> Tool:
        # Words alone: under the name of a secret a schema has none (`{"token": {"type": "string"}}`).
        words = self.scrubber.words
        # The label of a source may name folders of this machine; a twin has a source of its own.
        cleaned: dict[str, Any] = {"description": words(tool.description), "name_at_source": ""}
        cleaned |= {"title": words(tool.title), "meta": with_texts(tool.meta, words)}
        schemas = {"input_schema": with_texts(tool.input_schema, words)}
        if tool.output_schema is not None:
            schemas["output_schema"] = with_texts(tool.output_schema, words)
        return tool.model_copy(update={**cleaned, **schemas, "source": ""})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def record(
    source: WorldSource, path: str | os.PathLike[str], *, secrets: Iterable[str] = (), scrub: Iterable[str] = ()
) -> RecordingSource:
    """The same tools, every call of which is added to the cassette at `path`.

        async with mcp_bridge.connect("mcp.json") as toolset:
            result = await sdk.evaluate_async(record(toolset, "orders.jsonl"), tasks, verify)

    `source`: connected tools, a sandbox, or anything else with `tools` and `open_world`. `secrets`: values that are
    never written, beside those that a connected toolset knows. `scrub`: regular expressions for more of them.
    A file that holds a recording of the same tools is gone on with. Raises `SourceError` where it cannot be.
    """
    if not isinstance(source, WorldSource):
        raise SourceError(
            f"{source!r:.200} cannot be recorded; give something with `tools` and `open_world`: connect to it first, "
            "`async with mcp_bridge.connect(...) as toolset`"
        )
    given = tuple(secrets)
    label = ", ".join(dict.fromkeys(tool.source for tool in source.tools if tool.source))
    label = label or str(getattr(source, "name", "") or type(source).__name__)
    scrubber = Scrubber(lambda: (*given, *getattr(source, "secrets", ())), scrub)
    return RecordingSource(source, CassetteWriter(path, source.tools, source=label, scrubber=scrubber))


class RecordingSource(WrappedSource):
    """A source of worlds that records another one. Made by `record`."""

    def __init__(self, source: WorldSource, writer: CassetteWriter) -> None:
        super().__init__(source)
        self._writer = writer

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[RecordingWorld]:
        """A world of the source, and a session of its own in the cassette."""
        async with self.source.open_world(world_id, setup) as world:
            yield RecordingWorld(world, world_id, self._writer, setup)


class RecordingWorld(WrappedWorld):
    """One world, whose calls are written into the cassette as a session of it."""

    def __init__(self, world: World, world_id: str, writer: CassetteWriter, setup: Setup | None) -> None:
        super().__init__(world, world_id)
        self._writer = writer
        self._setup = setup
        self._session = writer.begin_session(setup)
        self._begun = 0
        self._lines: list[CallLine] = []

    def copied(self) -> Self:
        """See `WrappedWorld.copied`."""
        twin = super().copied()
        twin._lines = list(self._lines)
        return twin

    def begin_fork(self) -> None:
        """The cassette gets a session for a fork, too; it begins with the calls that were made until then."""
        self._session = self._writer.begin_session(self._setup)
        for line in self._lines:
            self._writer.append_call(line.model_copy(update={"session": self._session}))

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, timeout_s: float | None = None
    ) -> ToolResult:
        # A call whose arguments are not an object, or whose tool is not a name, has nothing to be matched by.
        is_written = isinstance(name, str) and isinstance(arguments, Mapping)
        order, self._begun = self._begun, self._begun + is_written
        began = time.perf_counter()
        outcome: ToolResult | BaseException
        try:
            outcome = result = await self.world.call(name, arguments, call_id=call_id, timeout_s=timeout_s)
        except BaseException as error:
            outcome = error
            raise
        finally:
            if is_written:
                took = time.perf_counter() - began
                self._lines.append(self._writer.add_call(self._session, order, name, arguments, outcome, took))
        return result
