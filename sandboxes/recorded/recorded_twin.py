"""A cassette as a sandbox: what was recorded once can be replayed, forked, reset and served as often as needed."""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import anyio.lowlevel

from mcp_bridge.errors import SourceError, ToolFailure
from mcp_bridge.records import Tool, ToolResult
from mcp_bridge.safe_text import and_more
from mcp_bridge.world import Setup

from ..changes import State
from ..sandbox import Refused, Sandbox, SetupError
from ..wrapping import Tally
from .call_index import Effects, Entry, Index, Key, nearest
from .cassette import Cassette, RecordedResult, canonical

if TYPE_CHECKING:
    from .simulation import SimulatedAnswers


logger = logging.getLogger(__name__)

How = Literal["recorded", "repeated", "other_session", "nearest", "simulated", "kept", "mistake", "not_recorded"]
"""How a call was answered:

| word | the answer |
| --- | --- |
| `recorded` | was recorded at this place |
| `repeated` | is the last one recorded here, given again: the call was made more often than in the recording |
| `other_session` | was recorded at this place in another session than the answers before it |
| `nearest` | was recorded for the nearest call |
| `simulated` | is a model's |
| `kept` | is a model's from before, kept in memory or in the cassette |
| `mistake` | says that there is no such tool or that the arguments do not fit its schema |
| `not_recorded` | there is none: `NotRecorded` was raised, or `ToolFailure` where the model gave none |
"""


_FORM = "toolbake recorded twin 2"


@dataclass
class Progress:
    """What calls and the clock have changed in a world since it began. `place`: see `call_index`."""

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
    history: list[dict[str, Any]] = field(default_factory=list)
    """All calls with their answers; `changed` says which of them may have changed something."""

    def copy(self) -> Progress:
        # What is in the lists is never changed.
        return replace(self, sessions=list(self.sessions), given=dict(self.given), history=list(self.history))

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The calls that may have changed something, with the texts of their answers."""
        shown = ("tool", "arguments", "answer", "text")
        return [{name: copy.deepcopy(call[name]) for name in shown} for call in self.history if call["changed"]]

    def next_answer(self, key: Key, answers: Mapping[str, Sequence[Entry]]) -> tuple[Entry, How]:
        """The next answer to a call that was recorded here: of the session that this world follows, where it has one.

        Answers of one session are not mixed with those of others: together they would tell of no real tool.
        """
        number = self.given.get(key, 0)
        session = next(one for one in self.sessions if one in answers)
        entries = answers[session]
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
        answered = {"answer": how, "text": result.text, "is_error": result.is_error, "changed": after != self.place}
        copies = {"arguments": copy.deepcopy(dict(arguments)), "structured": copy.deepcopy(result.structured)}
        self.history.append({"tool": tool, **copies, **answered})
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
                f"this is not a snapshot of a recorded twin ({error}); give what snapshot() returned"
            ) from error


Unseen = Literal["error", "nearest"]
_NEAR = 0.6

_SHOWN = 300


class NotRecorded(ToolFailure):
    """A call that the cassette has no answer to. The rollout is left unscored: what the real tool would have said is
    not known, and the policy is not to blame for that."""

    def __init__(self, message: str) -> None:
        # Asking again would not help, and nothing was done.
        super().__init__(message, delivery="answered")


class RecordedTwin(Sandbox):
    """Replays a cassette: each call is matched by its tool, its arguments and what has been changed so far.

    `cassette`: a file that `toolbake record` wrote. `unseen`: what to do about calls that were never recorded:
    `"error"` raises `NotRecorded`, so that the rollout is left unscored; `"nearest"` answers as for the nearest
    recorded call of the same tool, if it is at least `nearest_at_least` near (0 to 1), and raises otherwise; a
    `SimulatedAnswers` asks a model. `report()` counts all of it.

    Tools that do not say that they only read (`readOnlyHint`) count as changing something. `reads` and `writes` name
    tools, with `*` and `?`, of which the opposite is true. A call that came back with an error counts as having
    changed nothing, unless `errors_change`.

    Where sessions were recorded with setups, `open_world` takes exactly those. Otherwise it takes a `seed`: where
    several sessions were told different things at the same place, it chooses whose answers are given first; 0 is the
    order of the recording. Raises `SourceError` for a file that is not a cassette.
    """

    name = "recorded"
    lenient_arguments = True
    """What a real server took was recorded."""

    def __init__(
        self,
        cassette: str | os.PathLike[str] | Cassette,
        *,
        unseen: Unseen | SimulatedAnswers = "error",
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        errors_change: bool = False,
        nearest_at_least: float = _NEAR,
    ) -> None:
        if unseen not in ("error", "nearest") if isinstance(unseen, str) else not hasattr(unseen, "answer"):
            raise SourceError(f"unseen is {unseen!r}; choose 'error', 'nearest' or a SimulatedAnswers(...)")
        if not 0 <= nearest_at_least <= 1:
            raise SourceError(f"nearest_at_least is {nearest_at_least!r}; it must be a number from 0 to 1")
        if unseen != "nearest" and nearest_at_least != _NEAR:
            raise SourceError(f"nearest_at_least is {nearest_at_least!r} and does nothing without unseen='nearest'")
        self.cassette = cassette if isinstance(cassette, Cassette) else Cassette.read(cassette)
        known: dict[str, Any] = {"reads": reads, "writes": writes, "errors_change": errors_change}
        self._options: dict[str, Any] = {"unseen": unseen, "nearest_at_least": nearest_at_least, **known}
        if not self.cassette.sessions:
            raise SourceError(
                f"the cassette of {self.cassette.header.source} holds no session; record some calls first"
            )
        self._tools = tuple(tool.model_copy(update={"source": "recorded"}) for tool in self.cassette.header.tools)
        super().__init__()
        self._effects = Effects(self._tools, **known)
        self._index = Index(self.cassette.sessions, self._effects)
        self._unseen = unseen
        self._nearest_at_least = nearest_at_least
        self._tally = Tally()
        self._began = datetime.fromisoformat(self.cassette.header.recorded_at)
        self._first_setup = next(iter(self._index.roots))
        if not isinstance(unseen, str):
            unseen.load(self.cassette)
        self._at = self._beginning(0, "default", self._first_setup)
        # Each call moves on the place at which the next one is looked for.
        self._one_at_a_time = anyio.Lock()

    def __repr__(self) -> str:
        return f"RecordedTwin({self.cassette.header.source!r}, {len(self.cassette.calls)} calls)"

    @property
    def tools(self) -> Sequence[Tool]:
        return self._tools

    @property
    def now(self) -> datetime:
        return self._at.now

    def report(self) -> dict[str, Any]:
        """How the calls of all worlds were answered, see `How`:
        `{"calls": 7, "answers": {"recorded": 6, "nearest": 1}, "tools": {"get": {"recorded": 6, ...}}, ...}`.

        `counted_as_changes`: tools that say nothing of themselves and so count as changing something.
        `recorded_failures`: calls in the cassette that have no answer, because the real tool broke.
        """
        tools = self._tally.by_tool()
        answers = sum(map(Counter, tools.values()), Counter[str]())
        return {
            "calls": answers.total(),
            "answers": dict(sorted(answers.items())),
            "tools": tools,
            "counted_as_changes": self._effects.unmarked,
            "recorded_failures": self._index.failures.total(),
        }

    def prepare(self, setup: Setup | None) -> Self:
        """A fork that begins as `setup` says: a recorded setup, or a seed where none was recorded."""
        if setup is not None and not isinstance(setup, Mapping):
            return super().prepare(setup)
        wanted = canonical(dict(setup or {}))
        if setup and wanted in self._index.roots:
            world = self.fork()
            world._at = self._beginning(0, "default", wanted)
            return world
        recorded = [dict(one) for one in self._index.roots.values() if one]
        if setup and recorded:
            shown = and_more([str(one)[:_SHOWN] for one in recorded], 10, ";")
            raise SetupError(f"the setup {dict(setup)!r} was not recorded; those that were: {shown}")
        return super().prepare(setup)

    def without(self, session: str) -> RecordedTwin:
        """A twin with the same options of all sessions but the one of this name. Raises `SourceError` where that leaves
        none."""
        left = [one for one in self.cassette.sessions if one.name != session]
        return RecordedTwin(replace(self.cassette, sessions=left), **self._options)

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin._at, twin._one_at_a_time = self._at.copy(), anyio.Lock()
        return twin

    def snapshot(self) -> bytes:
        return self._at.as_bytes()

    def _restore(self, snapshot: bytes) -> None:
        found = Progress.from_bytes(snapshot)
        if found.setup not in self._index.roots or sorted(found.sessions) != sorted(self._index.sessions):
            raise SetupError("this snapshot is of a twin with another cassette")
        self._at = found

    def state(self) -> State:
        """What has been changed, as far as a recording can tell: the calls that may have changed something, in order.

        Which of the tools' own records they changed is not known here; a verifier that needs it asks by a tool.
        """
        at = self._at
        beginning = {"seed": at.seed, "scenario": at.scenario, "setup": at.setup}
        changes = {f"{number:06d}": change for number, change in enumerate(at.changes, 1)}
        return {"clock": {"world": {"now": at.now.isoformat()}}, "beginning": {"world": beginning}, "changes": changes}

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,  # noqa: ARG002 - the signature is that of `World.call`
        timeout_s: float | None = None,  # noqa: ARG002 - the bridge keeps the time; only a model is waited for
    ) -> ToolResult:
        """Replay a call. Raises `NotRecorded` where there is no answer, `ToolFailure` where a model gave none."""
        await anyio.lowlevel.checkpoint()
        began = time.perf_counter()
        if isinstance(self._unseen, str):
            return self.call_now(name, arguments)
        async with self._one_at_a_time:
            result = self._known(name, arguments)
            if result is None:
                result = await self._simulated(self._unseen, name, dict(arguments))
        return result.model_copy(update={"duration_s": time.perf_counter() - began})

    def call_now(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """`call` without an event loop. A model cannot be asked so: that raises `ToolFailure`."""
        result = self._known(name, arguments)
        if result is None:
            if not isinstance(self._unseen, str):
                raise ToolFailure(
                    f"{name!r} was not recorded with these arguments at this place, and a model is only asked by "
                    "`await twin.call(...)`",
                    delivery="not_sent",
                )
            result = self._near(name, dict(arguments))
        return result

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        result = self.call_now(name, arguments)
        if result.is_error:
            raise Refused(result.text)
        return result.text if result.structured is None else result.structured

    def _reset(self, seed: int, scenario: str) -> None:
        self._at = self._beginning(seed, scenario, self._first_setup)

    def _advance(self, by: timedelta) -> None:
        self._at.now += by

    def _beginning(self, seed: int, scenario: str, setup: str) -> Progress:
        mine = [one.name for one in self.cassette.sessions if canonical(dict(one.setup)) == setup]
        if seed:
            random.Random(f"{scenario}/{seed}").shuffle(mine)
        others = [name for name in self._index.sessions if name not in mine]
        return Progress(seed, scenario, setup, self._index.root(setup), self._began, [*mine, *others])

    def _known(self, name: str, arguments: Mapping[str, Any]) -> ToolResult | None:
        """The recorded answer or what is wrong with the call; None for a call that only was never recorded."""
        at = self._at
        is_call = isinstance(name, str) and isinstance(arguments, Mapping)
        try:
            found = self._index.find(at.place, name, arguments) if is_call else None
        except (TypeError, ValueError, RecursionError):
            self._count(name, "mistake")
            text = f"Invalid arguments for {name}; nothing was called: they are not JSON, or nested too deeply."
            return ToolResult(text=text, is_error=True, error_kind="invalid_arguments")
        if found is not None:
            key, answers = found
            entry, how = at.next_answer(key, answers)
            return self._played(name, dict(arguments), key, entry, how)
        if (mistake := self._mistake(name, arguments)) is not None:
            self._count(str(name), "mistake")
            return mistake
        return None

    def _near(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """The answer to the nearest call; what is wrong by the schema where none is near enough or that is not wanted.
        Raises `NotRecorded` where nothing is."""
        at = self._at
        found = nearest(self._index, at.place, name, arguments)
        failed = self._index.failures[name]
        told = "this tool was never called in the recording"
        if failed:
            told = f"this tool was called in the recording, and no call was answered (failed: {failed})"
        if found is not None:
            near, entry = found
            told = f"the nearest recorded call, {near:.2f} near, has the arguments {entry.call.arguments}"[:_SHOWN]
            if canonical(entry.call.arguments) == canonical(arguments):
                told = (
                    "the same call was recorded after other changes, which are calls of all tools that nothing marks "
                    "as reading; name those that only read in `reads`"
                )
            if self._unseen == "nearest" and near >= self._nearest_at_least:
                key = (at.place, name, canonical(arguments))
                return self._played(name, arguments, key, entry, "nearest", told)
        if (mistake := self._mistake(name, arguments, strict=True)) is not None:
            self._count(name, "mistake")
            return mistake
        self._count(name, "not_recorded", told)
        raise NotRecorded(
            f"{name}({canonical(arguments)[:_SHOWN]}) was not recorded after {len(at.changes)} changes in this world: "
            f"{told}. Record a session in which it is called, or choose what happens with `unseen`."
        )

    def _count(self, tool: str, how: How, detail: str = "") -> None:
        self._tally.add(tool, how)
        if how not in ("recorded", "mistake"):
            logger.info("%s answered %s%s", tool, how, f" ({detail})" if detail else "")

    def _played(
        self, name: str, arguments: dict[str, Any], key: Key, entry: Entry, how: How, detail: str = ""
    ) -> ToolResult:
        result = entry.call.result
        assert result is not None, "the index holds answers alone"
        # As if the recorded call had been made: what follows on it may have been recorded.
        at = self._at
        is_here = at.place == entry.place
        after = entry.after if is_here else self._index.after(at.place, name, canonical(entry.call.arguments), result)
        at.take(key, entry if how != "nearest" else None)
        at.note(name, arguments, result, after=after, how=how)
        self._count(name, how, detail)
        return _noted(result, how, detail)

    async def _simulated(self, model: SimulatedAnswers, name: str, arguments: dict[str, Any]) -> ToolResult:
        if (mistake := self._mistake(name, arguments, strict=True)) is not None:
            self._count(name, "mistake")
            return mistake
        at = self._at
        key = model.key(at.place, name, arguments)
        tool = next(tool for tool in self._tools if tool.name == name)
        number = at.given.get(key, 0)
        try:
            found = await model.answer(tool, arguments, key=key, number=number, history=at.history, index=self._index)
        except ToolFailure as failure:
            self._count(name, "not_recorded", str(failure))
            raise
        result, how = found
        at.take(key, None)
        at.note(name, arguments, result, after=self._index.after(at.place, name, key[2], result), how=how)
        self._count(name, how)
        return _noted(result, how, f"by {model.model}")


def _noted(result: RecordedResult, how: How, detail: str) -> ToolResult:
    if how == "recorded":
        return result.as_tool_result()
    return result.as_tool_result((f"recorded twin: {how}{f' ({detail})' if detail else ''}",))


async def serve_replay(
    twin: RecordedTwin, *, port: int | None = None, say: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the tools of `twin` over standard input and output, or with `port` at `http://127.0.0.1:PORT/mcp`, until
    the client hangs up or it is cancelled. Each session of a client has a world of its own.

    What was never recorded comes back as an error of the protocol, unless the twin answers it. `say`: hears what is
    served, and at the end how the calls were answered. Raises `SourceError` where the port is taken.
    """
    from mcp_bridge.publishing import listener
    from mcp_bridge.publishing.server import publish

    header = twin.cassette.header
    # Not through a toolset, which would answer mistakes in its own words.
    told = {key: str(header.server.get(key) or "") for key in ("name", "version")}
    server = publish(twin, name=told["name"] or twin.name, version=told["version"] or None)
    where = "stdin and stdout" if port is None else f"http://127.0.0.1:{port}/mcp"

    def begun() -> None:
        say(f"replaying {len(twin.cassette.calls)} calls of {len(twin.tools)} tools on {where}")

    try:
        if port is None:
            await listener.serve_stdio(server, begun)
        else:
            await listener.serve_app(server.streamable_http_app(host="127.0.0.1"), port=port, listening=begun)
    finally:
        report = twin.report()
        how = ", ".join(f"{number} {word.replace('_', ' ')}" for word, number in report["answers"].items())
        say(f"answered {report['calls']} calls{f': {how}' if how else ''}")
