"""Divergence of a twin from the real thing: recorded sessions replayed against it, tool by tool.

report = await compare("orders.jsonl", OrdersTwin(), ignore=["**.updated_at"])
print(report.to_markdown())

And how a recorded twin answers sessions that were not recorded: `await leave_one_out(RecordedTwin("orders.jsonl"))`.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Literal

from pydantic import BaseModel, Field

from mcp_bridge.access.redaction import HIDDEN
from mcp_bridge.errors import SourceError, ToolFailure
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.safe_text import json_in, plural, shortened, whole_characters
from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors
from mcp_bridge.toolsets.validation import ArgumentChecker
from mcp_bridge.world import World, WorldSource

from .recorded.call_index import scrubbed_pattern
from .recorded.cassette import CallLine, Cassette, RecordedResult, RecordedSession, canonical
from .recorded.recorded_twin import RecordedTwin
from .sandbox import SetupError

Kind = Literal["changed", "missing", "extra", "type"]
"""`missing`: the twin has no such value; `extra`: the recording has none; `type`: both have one, of different types."""

_MOST_LINES_COMPARED = 2000

Step = str | int
Same = Callable[[Sequence[Step], Any, Any], bool]
"""Whether a recorded value and the twin's count as the same at this path, though they are not equal."""


class Difference(BaseModel, frozen=True):
    """One value that differs. `path` begins with what is compared: `text`, `structured`, `is_error`, `input_schema`."""

    path: str
    kind: Kind
    recorded: Any = None
    twin: Any = None

    def __str__(self) -> str:
        if self.kind == "missing":
            return f"{self.path}: {_shown(self.recorded)} is missing"
        if self.kind == "extra":
            return f"{self.path}: {_shown(self.twin)} was not there"
        if isinstance(self.recorded, str) and isinstance(self.twin, str):
            return f"{self.path}: {_changed_lines(self.recorded, self.twin)}"
        return f"{self.path}: {_shown(self.recorded)} became {_shown(self.twin)}"


def differences(
    recorded: Any, twin: Any, path: tuple[Step, ...] = (), *, ignore: Ignored | None = None, same: Same | None = None
) -> Iterator[Difference]:
    """The differences between two JSON values. Lists are compared place by place; `1` and `1.0` are equal, `1` and
    `True` are not."""
    if ignore is not None and ignore.matches(path):
        return
    if isinstance(recorded, list) and isinstance(twin, list):
        recorded, twin = dict(enumerate(recorded)), dict(enumerate(twin))
    if isinstance(recorded, dict) and isinstance(twin, dict):
        for key in {**recorded, **twin}:
            here = (*path, key)
            if key in recorded and key in twin:
                yield from differences(recorded[key], twin[key], here, ignore=ignore, same=same)
            elif ignore is not None and ignore.matches(here):
                continue
            elif key in recorded:
                yield Difference(path=dotted(here), kind="missing", recorded=recorded[key])
            else:
                yield Difference(path=dotted(here), kind="extra", twin=twin[key])
    elif not _equal(recorded, twin) and not (same is not None and same(path, recorded, twin)):
        kind: Kind = "changed" if _type(recorded) == _type(twin) else "type"
        yield Difference(path=dotted(path), kind=kind, recorded=recorded, twin=twin)


class Ignored:
    """Paths whose values are not compared: `*` is any one step, `**` any number of them, numbers are places in lists.

    `**.updated_at` is that key anywhere; `get_order:structured.items.*.price` a path in the results of one tool.
    """

    def __init__(self, patterns: Sequence[str], tool: str = "") -> None:
        """Raises `SourceError` for a pattern that is empty, and for a text in place of a list."""
        _require_list("ignore", patterns)
        self._patterns = [_compiled(path) for path in _for_tool(patterns, tool)]

    def matches(self, path: Sequence[Step]) -> bool:
        text = "".join(f"{step}\0" for step in path)
        return any(pattern.fullmatch(text) for pattern in self._patterns)


_BEGINNINGS = ("*", "**", "structured", "text")


def _require_list(option: str, patterns: Sequence[str]) -> None:
    if isinstance(patterns, str):
        raise SourceError(f"{option} is {patterns!r}; it must be a list: [{patterns!r}]")


def _for_tool(patterns: Sequence[str], tool: str) -> Iterator[str]:
    for pattern in patterns:
        owner, colon, path = pattern.partition(":")
        if not (path if colon else owner):
            raise SourceError(f"the path {pattern!r} to ignore is empty; write for example '**.updated_at'")
        if colon and owner == tool:
            yield path
        elif not colon or owner.partition(".")[0] in _BEGINNINGS:  # a colon in a key: `**.xml:lang`
            yield pattern


def _compiled(path: str) -> re.Pattern[str]:
    steps = {"**": r"(?:[^\0]*\0)*", "*": r"[^\0]*\0"}
    return re.compile("".join(steps.get(step, re.escape(step) + r"\0") for step in path.split(".")))


def dotted(path: Sequence[Step]) -> str:
    """`("items", 0, "id")` as `items.0.id`."""
    return ".".join(str(step) for step in path) or "(all)"


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right):
        return True
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def _changed_lines(recorded: str, twin: str) -> str:
    """The lines that differ, not the whole of two long texts."""
    ours, theirs = recorded.splitlines(), twin.splitlines()
    if min(len(ours), len(theirs)) < 2 or max(len(ours), len(theirs)) > _MOST_LINES_COMPARED:
        return f"{_shown(recorded)} became {_shown(twin)}"
    changed = [step for step in difflib.SequenceMatcher(None, ours, theirs).get_opcodes() if step[0] != "equal"]
    _, begin, end, their_begin, their_end = changed[0] if changed else ("", 0, len(ours), 0, len(theirs))
    told = f"{_shown(chr(10).join(ours[begin:end]))} became {_shown(chr(10).join(theirs[their_begin:their_end]))}"
    more = f", and {len(changed) - 1} more places" if len(changed) > 1 else ""
    return f"in line {begin + 1}, {told}{more}"


def _shown(value: Any) -> str:
    return shortened(repr(value), 200)


AnsweredBy = Literal["twin", "itself", "others"]

_MOST_SHOWN = 20
_MOST_OF_A_CALL = 10


class ToolDivergence(BaseModel):
    """The counts of one tool."""

    tool: str
    calls: int = 0
    compared: int = 0
    """Calls with a recorded answer."""
    without_answer: int = 0
    """Calls in the recording that have none, because the real tool broke."""
    scrubbed_arguments: int = 0
    """Calls of whose arguments a part was scrubbed. They are made with `***` in its place."""
    results_agree: int = 0
    """Calls whose results are equal, but for what is ignored."""
    errors_agree: int = 0
    """Calls that came back as an error in both, or in neither."""
    invalid_results: int = 0
    """Results of the twin that are not valid against the recorded output schema."""
    failures: int = 0
    """Calls for which the twin had no result at all."""
    is_missing: bool = False
    """The twin has no such tool."""
    schema_differences: list[Difference] = Field(default_factory=list)

    @property
    def agrees(self) -> bool:
        all_agree = self.results_agree == self.compared and not self.invalid_results
        return all_agree and not self.is_missing and not self.schema_differences


class CallDivergence(BaseModel, frozen=True):
    """One call whose answers differ."""

    session: str
    order: int
    tool: str
    arguments: dict[str, Any]
    """As recorded."""
    differences: list[Difference]
    failure: str | None = None
    """What the twin raised in place of a result."""


class DivergenceReport(BaseModel):
    """How often a twin answers as the real tools did."""

    cassette: str
    sessions: int
    tools: list[ToolDivergence]
    extra_tools: list[str] = Field(default_factory=list)
    """Tools of the twin that the recording does not have."""
    calls: list[CallDivergence]
    """The calls that differ, in the order in which they were replayed."""
    mapped_identifiers: int = 0
    """Identifiers of the recording for which the twin had others."""
    answered_by: AnsweredBy = "twin"
    """What answered: a twin, the recorded twin of these sessions itself, or to each session that of the others."""
    on_itself: float | None = None
    """Where the others answered, the `agreement` of the recorded twin of all sessions with what it is made of."""

    @property
    def compared(self) -> int:
        """Calls that have a recorded answer."""
        return sum(tool.compared for tool in self.tools)

    @property
    def agreement(self) -> float:
        """The share of compared calls whose results are equal; 1.0 where there are none."""
        return sum(tool.results_agree for tool in self.tools) / self.compared if self.compared else 1.0

    @property
    def sessions_agree(self) -> int:
        """Sessions with no call that differs."""
        return self.sessions - len({call.session for call in self.calls})

    @property
    def agrees(self) -> bool:
        """Whether every result, error and schema is the same, of one call at least."""
        return self.compared > 0 and not self.calls and not self.extra_tools and all(tool.agrees for tool in self.tools)

    def to_json(self) -> str:
        """The whole report, with the differences of every call. JSON has no NaN, and UTF-8 no half characters."""
        found = json.loads(json.dumps(self.model_dump(exclude_defaults=True)), parse_constant=str)
        text = json.dumps({"agrees": self.agrees, "agreement": self.agreement, **found}, indent=2, ensure_ascii=False)
        return whole_characters(text)

    def to_markdown(self) -> str:
        """A table of the tools and the differences to read, at most 20 calls with 10 differences each."""
        lines = [
            f"# Divergence from {_cell(self.cassette)}",
            "",
            *self._summary(),
            "",
            "| tool | calls | results agree | errors agree | schema |",
            "| --- | --- | --- | --- | --- |",
            *(_row(tool) for tool in self.tools),
        ]
        if self.extra_tools:
            lines += ["", f"Only the twin has: {', '.join(map(_cell, self.extra_tools))}."]
        if self.mapped_identifiers:
            lines += ["", f"{self.mapped_identifiers} identifiers have counterparts in the twin."]
        broken = sum(tool.without_answer for tool in self.tools)
        if broken:
            lines += ["", f"{broken} recorded calls have no answer to compare with: the real tool broke."]
        scrubbed = sum(tool.scrubbed_arguments for tool in self.tools)
        if scrubbed:
            lines += ["", f"{scrubbed} calls were made with `***` where a part of their arguments was scrubbed."]
        lines += _schemas(self.tools) + _calls(self.calls)
        return whole_characters("\n".join(lines) + "\n")

    def _summary(self) -> list[str]:
        if not self.compared:
            return ["Nothing was compared: no recorded call has an answer."]
        compared = f"{self.compared} calls in {self.sessions} {plural(self.sessions, 'session')} were compared"
        if self.answered_by != "others":
            lines = [f"{compared}: {self.agreement:.1%} of the results agree."]
            if self.answered_by == "itself":
                lines += ["", "The twin replays the sessions that it is made of. That says nothing of other sessions."]
            if self.answered_by == "itself" and self.sessions == 1:
                lines[-1] += " Record more: then each is answered by a twin of the others."
            return lines
        lines = [
            f"{compared}, each session with a twin of the others: {self.agreement:.1%} of the results agree, and "
            f"{self.sessions_agree} of {self.sessions} sessions as a whole.",
            "",
            f"The twin of all sessions replays {self.on_itself or 0:.1%} of them. That says nothing of other sessions.",
        ]
        if not self.agrees:
            lines += [
                "",
                "Record more sessions. If the server can be started for each rollout (`world` in an `mcp.json`), take "
                "it in place of a twin: it answers every call.",
            ]
        return lines


def _row(tool: ToolDivergence) -> str:
    schema = "missing" if tool.is_missing else f"{len(tool.schema_differences)} differences"
    if not tool.is_missing and not tool.schema_differences:
        schema = "agrees"
    if tool.invalid_results:
        schema += f", {tool.invalid_results} results against it"
    return (
        f"| {_cell(tool.tool)} | {tool.calls} | {_share(tool.results_agree, tool.compared)} "
        f"| {_share(tool.errors_agree, tool.compared)} | {schema} |"
    )


def _share(agree: int, compared: int) -> str:
    return f"{agree} of {compared}" if compared else "-"


def _schemas(tools: list[ToolDivergence]) -> list[str]:
    differing = [tool for tool in tools if tool.schema_differences]
    if not differing:
        return []
    lines = ["", "## Schemas"]
    for tool in differing:
        lines += ["", f"### {_cell(tool.tool)}", "", *_listed(tool.schema_differences)]
    return lines


def _calls(calls: list[CallDivergence]) -> list[str]:
    if not calls:
        return []
    lines = ["", "## Calls"]
    for call in calls[:_MOST_SHOWN]:
        told = _code(json.dumps(call.arguments, ensure_ascii=False), 300)
        lines += ["", f"### {_cell(call.tool)}, call {call.order} of session {_cell(call.session)}", "", told, ""]
        if call.failure is not None:
            lines.append(f"- the twin has no result: {_code(call.failure, 500)}")
        lines += _listed(call.differences)
    if len(calls) > _MOST_SHOWN:
        lines += ["", f"And {len(calls) - _MOST_SHOWN} more calls; the JSON has them all."]
    return lines


def _listed(found: list[Difference]) -> list[str]:
    lines = [f"- {_code(str(one), 600)}" for one in found[:_MOST_OF_A_CALL]]
    return [*lines, f"- and {len(found) - _MOST_OF_A_CALL} more"] if len(found) > _MOST_OF_A_CALL else lines


def _cell(text: str) -> str:
    """A text that no table or heading takes for marks of its own."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str, most: int) -> str:
    """A text as code, on one line; tools may have written it to be anything."""
    text = shortened(" ".join(text.split()), most)
    marks = "`"
    while marks in text:
        marks += "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{marks}{space}{text}{space}{marks}"


_ID_NAME = re.compile(r"(?:^|[_\-.])(?i:id|uuid|guid)(?i:s?)$|(?<=[a-z0-9])(?:Id|ID|Uuid|UUID|Guid)s?$")
_SHORTEST_IN_TEXT = 3
"""A shorter identifier would be found inside ordinary words."""

_READING = re.compile(r"(?i:get|list|search|find|read|show|fetch|describe|lookup|query|count|view)(?![a-z])")
_DOING_MORE = re.compile(r"(?<![a-zA-Z])(?i:or|and)(?![a-z])|Or[A-Z]|And[A-Z]")
"""As `get_or_create` does."""

Scalar = str | int


def _only_reads(tool: Tool) -> bool:
    """By its annotations; by its name, where it says nothing of itself: what it returns, it did not create."""
    says, name = tool.annotations, tool.name_at_source or tool.name
    if says.read_only is not None or says.destructive is not None:
        return bool(says.read_only)
    return _READING.match(name) is not None and _DOING_MORE.search(name) is None


class Identifiers:
    """The recorded identifiers of one session and their counterparts in the twin.

    A value counts as created where a call that may change something, by its annotations or its name, returns it, it
    never came up before, and either its key is that of an identifier or a later call of the recording uses it under
    such a key. What stands at the same path in the twin's result is its counterpart. Anything else that differs is a
    difference.
    """

    def __init__(self, calls: Sequence[CallLine], reading: Set[str]) -> None:
        """`reading`: the tools that only read."""
        self._calls = calls
        self._reading = reading
        self._used_later = [{value for name, value in _named(call.arguments) if is_id_name(name)} for call in calls]
        # From the end: what any later call uses.
        for number in range(len(calls) - 2, -1, -1):
            self._used_later[number] |= self._used_later[number + 1]
        self._used_later.append(set())
        self._seen: set[Scalar] = set()
        self._mapped: dict[tuple[str, Scalar], Scalar] = {}
        """By `_kind` and value: order 5 is not customer 5, nor five pieces."""
        self._makers: dict[Scalar, str] = {}
        """The tools that returned a number under a mere `id`."""
        self._number = -1

    @property
    def count(self) -> int:
        return len(self._mapped)

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The next recorded call's arguments, for the twin. Numbers are replaced under names of identifiers alone."""
        self._number += 1
        self._seen.update(_scalars(arguments))
        return {key: self._replaced(value, key) for key, value in arguments.items()}

    def learn(self, path: Sequence[Step], recorded: Any, twin: Any) -> bool:
        """Whether two values that differ are one identifier: a known one, or one that this call created."""
        if not _is_scalar(recorded) or type(recorded) is not type(twin):
            return False
        name = next((step for step in reversed(path) if isinstance(step, str)), "")
        if (known := self._counterpart(recorded, name)) is not None:
            return bool(known == twin)
        kind = _kind(recorded, name)
        is_identifier = recorded in self._used_later[self._number + 1] or is_id_name(name)
        is_created = recorded not in self._seen and self._calls[self._number].tool not in self._reading
        is_taken = any(of == kind and one == twin for (of, _), one in self._mapped.items())
        if not (is_identifier and is_created) or is_taken:
            return isinstance(recorded, str) and self._in_text(recorded) == twin  # the same but for known identifiers
        self._mapped[kind, recorded] = twin
        if not kind:
            self._makers[recorded] = self._calls[self._number].tool
        return True

    def learn_text(self, recorded: str, twin: str) -> bool:
        """The same for two texts of the same words, some of which are identifiers."""
        ours, theirs = (re.split(r"([\w-]+)", text) for text in (recorded, twin))
        if len(ours) != len(theirs):
            return False
        # Each word is looked at, also after one that differs: what is created beside it is needed later.
        same = [one == other or self.learn((), one, other) for one, other in zip(ours, theirs, strict=True)]
        return all(same)

    def answered(self, result: Any) -> None:
        """What a recorded result held is no longer new."""
        self._seen.update(_scalars(result))

    def _replaced(self, value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return {key: self._replaced(one, str(key)) for key, one in value.items()}
        if isinstance(value, list):
            return [self._replaced(one, name) for one in value]
        if isinstance(value, str):
            return self._mapped.get((_OF_TEXTS, value), self._in_text(value))
        if _is_scalar(value) and is_id_name(name):
            known = self._counterpart(value, name, sent=True)
            return value if known is None else known
        return value

    def _counterpart(self, value: Scalar, name: str, *, sent: bool = False) -> Scalar | None:
        """What the twin has for an identifier under this key. An `id` may be of anything, and so may a number that was
        taken for an identifier because a later call uses it as one."""
        kind = _kind(value, name)
        known = {of: twin for (of, old), twin in self._mapped.items() if old == value}
        if (kind or sent) and self._is_of_another(value, kind):
            known.pop("", None)
        if kind in known or kind == _OF_TEXTS or not is_id_name(name):
            return known.get(kind)
        return next((twin for of, twin in known.items() if not kind or not of or of.startswith(_OTHER)), None)

    def _is_of_another(self, value: Scalar, kind: str) -> bool:
        """Whether a number is not the `id` that a call returned: the customer of `get_customer` is not what
        `place_order` made, where other calls of the recording name the order by that number."""
        maker = self._makers.get(value)
        if maker is None:
            return False
        uses = {
            (call.tool, _kind(used, name))
            for call in self._calls
            for name, used in _named(call.arguments)
            if used == value and is_id_name(name)
        }
        is_told = any(_is_about(maker, *use) for use in uses)
        return is_told and not _is_about(maker, self._calls[self._number].tool, kind)

    def _in_text(self, text: str) -> str:
        known = {
            old: new
            for (_, old), new in self._mapped.items()
            if isinstance(old, str) and len(old) >= _SHORTEST_IN_TEXT and old in text
        }
        if not known:
            return text
        longest_first = sorted(known, key=len, reverse=True)
        pattern = rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])"
        return re.sub(pattern, lambda match: str(known[match[0]]), text)


_OF_TEXTS, _OTHER = "*", "="


def _kind(value: Scalar, name: str) -> str:
    """What an identifier is of: a text of itself; a number of what its key says, such as `order` of `orderId`."""
    if isinstance(value, str):
        return _OF_TEXTS
    return _ID_NAME.sub("", name).lower() if is_id_name(name) else f"{_OTHER}{name}"


def _is_about(maker: str, tool: str, kind: str) -> bool:
    """Whether what `maker` makes is what another tool is told of by an identifier of this kind, by the tools' names."""
    made, told = (
        {word.removesuffix("s") for word in re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())}
        for name in (maker, kind or tool)
    )
    return not made.isdisjoint(told)


def is_id_name(name: str) -> bool:
    """Whether a key names an identifier: `id`, `order_id`, `orderId`, `uuid`."""
    return _ID_NAME.search(name) is not None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _scalars(value: Any) -> Iterator[Scalar]:
    """Every text and whole number inside a JSON value, and every word of its texts."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _scalars(one)
    elif isinstance(value, list):
        for one in value:
            yield from _scalars(one)
    elif _is_scalar(value):
        yield value
        if isinstance(value, str):
            yield from re.findall(r"[\w-]+", value)


def _named(value: Any, name: str = "") -> Iterator[tuple[str, Scalar]]:
    """Every text and whole number inside a JSON value with the key it stands under."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _named(one, str(key))
    elif isinstance(value, list):
        for one in value:
            yield from _named(one, name)
    elif _is_scalar(value):
        yield name, value


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
    raises `ToolFailure`, the call does not agree and the session goes on. Raises `SourceError` for a file that is not
    a cassette, a pattern that is not valid, and a setup that the twin does not take.
    """
    found = cassette if isinstance(cassette, Cassette) else Cassette.read(cassette)
    comparison = _Comparison(found, list(twin.tools), ignore, _texts(ignore_text), map_ids, call_timeout_s)
    for session in found.sessions:
        await comparison.replay_in_world(session, twin)
    is_own = isinstance(twin, RecordedTwin) and {one.name for one in found.sessions} <= {
        one.name for one in twin.cassette.sessions
    }
    return comparison.report(answered_by="itself" if is_own else "twin")


async def leave_one_out(
    twin: RecordedTwin,
    *,
    ignore: Sequence[str] = (),
    ignore_text: Sequence[str] = (),
    map_ids: bool = True,
    call_timeout_s: float = 30.0,
) -> DivergenceReport:
    """Replay each session of a recorded twin against a twin of all other sessions: how such a twin answers sessions
    that were never recorded.

    The twins have the options of `twin`; the rest is as for `compare`. Where no other session has a session's setup,
    none of its calls agrees. Raises `SourceError` where there is one session alone.
    """
    cassette, options = twin.cassette, {"ignore": ignore, "ignore_text": ignore_text, "map_ids": map_ids}
    if len(cassette.sessions) < 2:
        raise SourceError(
            f"the cassette of {cassette.header.source} has one session, and leaving it out leaves none; record more, "
            "or compare the twin with its own session: `compare(cassette, twin)`"
        )
    itself = await compare(cassette, twin, call_timeout_s=call_timeout_s, **options)  # type: ignore[arg-type]
    comparison = _Comparison(cassette, list(twin.tools), ignore, _texts(ignore_text), map_ids, call_timeout_s)
    for session in cassette.sessions:
        try:
            await comparison.replay_in_world(session, twin.without(session.name))
        except SetupError as error:
            await comparison.replay(session, ToolFailure(str(error), delivery="not_sent"))
    return comparison.report(answered_by="others", on_itself=itself.agreement)


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
        self._schemas = {tool.name: tool.output_schema for tool in cassette.header.tools}
        recorded = {call.tool for call in cassette.calls}
        self._twins = _by_recorded_name({*self._schemas, *recorded}, tools)
        met = {twin.name for name, twin in self._twins.items() if name in self._schemas}
        self._extra_tools = [tool.name for tool in tools if tool.name not in met]
        self._ignore = {name: Ignored(ignore, name) for name in recorded}
        self._ignore_text = ignore_text
        self._map_ids = map_ids
        self._timeout_s = call_timeout_s
        self._by_tool = {tool.name: ToolDivergence(tool=tool.name) for tool in cassette.header.tools}
        self._calls: list[CallDivergence] = []
        self._mapped = 0
        self._reading = {tool.name for tool in cassette.header.tools if _only_reads(tool)}
        self._checker = ArgumentChecker(cassette.header.tools)

    async def replay_in_world(self, session: RecordedSession, twin: WorldSource) -> None:
        async with twin.open_world(f"divergence/{session.name}", dict(session.setup) or None) as world:
            await self.replay(session, world)

    async def replay(self, session: RecordedSession, world: World | ToolFailure) -> None:
        """`world`: or what was raised in place of each answer, where there can be none."""
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
                if isinstance(world, ToolFailure):
                    raise world
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
            is_valid = call.tool in self._schemas and self._checker.problem(call.tool, call.arguments) is None
            is_mistake = recorded.is_error and answer.is_error and not is_valid
            values = [] if is_mistake else [*self._values(call.tool, recorded, answer, identifiers)]
            counted.results_agree += not values and not outcome
            found = [*outcome, *values]
            if problem := _breaks_schema(answer, self._schemas.get(call.tool)):
                counted.invalid_results += 1
                found.append(problem)
        if found or failure is not None:
            divergence = CallDivergence(
                session=session.name,
                order=call.order,
                tool=call.tool,
                arguments=call.arguments,
                differences=found,
                failure=failure,
            )
            self._calls.append(divergence)

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
        ours, theirs = json_in(recorded.text), json_in(answer.text)
        if not (isinstance(ours, dict | list) and isinstance(theirs, dict | list)):
            ours, theirs = recorded.text, answer.text
        yield from differences(ours, theirs, ("text",), ignore=ignore, same=same)

    def _plain(self, text: str) -> str:
        for pattern in self._ignore_text:
            text = pattern.sub("", text)
        return text

    def report(self, answered_by: AnsweredBy, on_itself: float | None = None) -> DivergenceReport:
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
            answered_by=answered_by,
            on_itself=on_itself,
        )


def _by_recorded_name(recorded: Iterable[str], tools: Sequence[Tool]) -> dict[str, Tool]:
    """The twin's tools by their names in the recording. Connected ones may be called otherwise than at their source
    (see `mcp_bridge.guard`), which the recording knows them by."""
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
    try:
        errors = schema_errors(compiled_schema(schema, is_known_valid=True), answer.structured)
    except SchemaTimeout as timeout:
        return Difference(path="output_schema", kind="type", twin=f"it could not be checked in time: {timeout}")
    problem = min(errors, key=lambda one: one.json_path, default=None)
    if problem is None:
        return None
    return Difference(path=f"output_schema at {problem.json_path}", kind="type", twin=problem.message[:300])


def _texts(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    _require_list("ignore_text", patterns)
    found = []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
        except re.error as error:
            raise SourceError(
                f"`ignore_text` {pattern!r} is not a valid regular expression: {error}; write \\ before a sign "
                "that is meant as it is"
            ) from error
    return found
