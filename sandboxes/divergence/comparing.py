"""Replaying a cassette against a twin, call by call."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mcp_bridge.access.redaction import HIDDEN
from mcp_bridge.errors import SourceError, ToolFailure
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.toolsets.validation import ArgumentChecker
from mcp_bridge.world import World, WorldSource
from sandboxes.recorded.cassette import Cassette, RecordedSession
from sandboxes.recorded.lines import CallLine, RecordedResult, canonical
from sandboxes.recorded.places import scrubbed_pattern

from .differences import Difference, Ignored, differences
from .identifiers import Identifiers
from .report import CallDivergence, DivergenceReport, ToolDivergence


async def compare(
    cassette: str | os.PathLike[str] | Cassette,
    twin: WorldSource,
    *,
    ignore: Sequence[str] = (),
    ignore_text: Sequence[str] = (),
    map_ids: bool = True,
    call_timeout_s: float = 30.0,
) -> DivergenceReport:
    """Replay every recorded session in a world of its own and compare what comes back.

    `ignore`: paths of results that are not compared, such as `**.updated_at`; see `differences.Ignored`.
    What was scrubbed from a recorded text counts as equal to anything.
    `ignore_text`: regular expressions; what one matches in a text counts as equal. `map_ids`: identifiers that a
    session created stand for those that the twin created at the same place.

    Calls against the recorded schemas agree where both came back as errors: their words are those of whoever noticed.
    Recorded calls without an answer, because the real tool broke, are not compared; they are counted. Where the twin
    raises `ToolFailure`, the call does not agree and the session goes on. Raises `SourceError` for a file that is no
    cassette, a pattern that is none, and a setup that the twin does not take.
    """
    found = cassette if isinstance(cassette, Cassette) else Cassette.read(cassette)
    comparison = _Comparison(found, list(twin.tools), ignore, _texts(ignore_text), map_ids, call_timeout_s)
    for session in found.sessions:
        setup = dict(session.setup) or None
        async with twin.open_world(f"divergence/{session.name}", setup) as world:
            await comparison.replay(session, world)
    return comparison.report()


class _Comparison:
    def __init__(
        self,
        cassette: Cassette,
        tools: Sequence[Tool],
        ignore: Sequence[str],
        ignore_text: Sequence[re.Pattern[str]],
        map_ids: bool,
        call_timeout_s: float,
    ) -> None:
        self._cassette = cassette
        self._known = {tool.name for tool in cassette.header.tools}
        recorded = {call.tool for call in cassette.calls}
        self._twins = _by_recorded_name(self._known | recorded, tools)
        met = {twin.name for name, twin in self._twins.items() if name in self._known}
        self._extra_tools = [tool.name for tool in tools if tool.name not in met]
        self._ignore = {name: Ignored(ignore, name) for name in recorded}
        self._ignore_text = ignore_text
        self._map_ids = map_ids
        self._timeout_s = call_timeout_s
        self._by_tool = {tool.name: ToolDivergence(tool=tool.name) for tool in cassette.header.tools}
        self._calls: list[CallDivergence] = []
        self._mapped = 0
        self._reading = {tool.name for tool in cassette.header.tools if tool.annotations.read_only}
        self._checker = ArgumentChecker(cassette.header.tools)

    async def replay(self, session: RecordedSession, world: World) -> None:
        identifiers = Identifiers(session.calls, self._reading)
        for call in session.calls:
            arguments = identifiers.arguments(call.arguments)
            counted = self._by_tool.setdefault(call.tool, ToolDivergence(tool=call.tool))
            counted.calls += 1
            counted.scrubbed_arguments += HIDDEN in canonical(call.arguments)
            if call.result is None:
                counted.without_answer += 1
                continue
            try:
                twin = self._twins.get(call.tool)
                answer: ToolResult | ToolFailure = await world.call(
                    call.tool if twin is None else twin.name,
                    arguments if self._map_ids else call.arguments,
                    timeout_s=self._timeout_s,
                )
            except ToolFailure as failure:
                answer = failure
            self._note(session, call, call.result, answer, counted, identifiers)
            identifiers.answered([call.result.text, call.result.structured])
        self._mapped += identifiers.count

    def _note(
        self,
        session: RecordedSession,
        call: CallLine,
        recorded: RecordedResult,
        answer: ToolResult | ToolFailure,
        counted: ToolDivergence,
        identifiers: Identifiers,
    ) -> None:
        counted.compared += 1
        failure = None
        if isinstance(answer, ToolFailure):
            counted.failures += 1
            failure, found = f"{type(answer).__name__}: {answer}"[:500], []
        else:
            outcome = [*differences(recorded.is_error, answer.is_error, ("is_error",))]
            counted.errors_agree += not outcome
            # Mistakes against the schema are answered by whoever notices them first, each in its own words.
            is_mistake = recorded.is_error and answer.is_error and self._is_mistake(call)
            values = [] if is_mistake else [*self._values(call.tool, recorded, answer, identifiers)]
            counted.results_agree += not values and not outcome
            found = [*outcome, *values]
            if problem := _breaks_schema(answer, self._schema(call.tool)):
                counted.invalid_results += 1
                found.append(problem)
        if found or failure is not None:
            self._calls.append(
                CallDivergence(
                    session=session.name,
                    order=call.order,
                    tool=call.tool,
                    arguments=call.arguments,
                    differences=found,
                    failure=failure,
                )
            )

    def _values(
        self, tool: str, recorded: RecordedResult, answer: ToolResult, identifiers: Identifiers
    ) -> Iterator[Difference]:
        ignore = self._ignore[tool]

        def same(path: Sequence[str | int], ours: Any, theirs: Any) -> bool:
            if isinstance(ours, str) and isinstance(theirs, str):
                ours, theirs = self._plain(ours), self._plain(theirs)
                if ours == theirs or (HIDDEN in ours and scrubbed_pattern(ours).fullmatch(theirs)):
                    return True
            if not self._map_ids:
                return False
            if identifiers.learn(path, ours, theirs):
                return True
            return isinstance(ours, str) and isinstance(theirs, str) and identifiers.learn_text(ours, theirs)

        if recorded.structured is not None or answer.structured is not None:
            yield from differences(recorded.structured, answer.structured, ("structured",), ignore=ignore, same=same)
        ours, theirs = _as_json(recorded.text), _as_json(answer.text)
        if isinstance(ours, dict | list) and isinstance(theirs, dict | list):
            yield from differences(ours, theirs, ("text",), ignore=ignore, same=same)
        else:
            yield from differences(recorded.text, answer.text, ("text",), ignore=ignore, same=same)

    def _is_mistake(self, call: CallLine) -> bool:
        return call.tool not in self._known or self._checker.problem(call.tool, call.arguments) is not None

    def _plain(self, text: str) -> str:
        for pattern in self._ignore_text:
            text = pattern.sub("", text)
        return text

    def _schema(self, tool: str) -> Mapping[str, Any] | None:
        known = next((one for one in self._cassette.header.tools if one.name == tool), None)
        return known.output_schema if known is not None else None

    def report(self) -> DivergenceReport:
        for tool in self._cassette.header.tools:
            counted = self._by_tool[tool.name]
            theirs = self._twins.get(tool.name)
            counted.is_missing = theirs is None
            if theirs is not None:
                counted.schema_differences = [*_schema_differences(tool, theirs)]
        return DivergenceReport(
            cassette=self._cassette.header.source,
            sessions=len(self._cassette.sessions),
            tools=list(self._by_tool.values()),
            extra_tools=self._extra_tools,
            calls=self._calls,
            mapped_identifiers=self._mapped,
        )


def _by_recorded_name(recorded: Iterable[str], tools: Sequence[Tool]) -> dict[str, Tool]:
    """The twin's tools by their names in the recording. Connected ones may be called otherwise than at their source
    (see `mcp_bridge.guard.naming`), which the recording knows them by."""
    by_name = {tool.name: tool for tool in tools}
    at_source: dict[str, list[Tool]] = {}
    for tool in tools:
        at_source.setdefault(tool.name_at_source, []).append(tool)
    found = {}
    for name in recorded:
        renamed = at_source.get(name, [])
        if name in by_name or len(renamed) == 1:
            found[name] = by_name.get(name) or renamed[0]
    return found


def _schema_differences(recorded: Tool, twin: Tool) -> Iterator[Difference]:
    for name in ("input_schema", "output_schema", "description"):
        yield from differences(getattr(recorded, name), getattr(twin, name), (name,))
    yield from differences(recorded.annotations.model_dump(), twin.annotations.model_dump(), ("annotations",))


def _breaks_schema(answer: ToolResult, schema: Mapping[str, Any] | None) -> Difference | None:
    """Where a result of the twin is not valid against the recorded output schema."""
    if schema is None or answer.is_error:
        return None
    from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors

    try:
        errors = schema_errors(compiled_schema(schema, is_known_valid=True), answer.structured)
    except SchemaTimeout as timeout:
        return Difference(path="output_schema", kind="type", twin=f"it could not be checked in time: {timeout}")
    problem = min(errors, key=lambda one: one.json_path, default=None)
    if problem is None:
        return None
    return Difference(path=f"output_schema at {problem.json_path}", kind="type", twin=problem.message[:300])


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _texts(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    try:
        return [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise SourceError(f"ignore_text has a pattern that is no regular expression: {error}") from error
