"""Exactly once: a line before and after every call, and no second call of what may not be called twice."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_world import OneWorld

import mcp_bridge
from mcp_bridge import CallTimeout, OutcomeUnknown, ServerDied, Tool, ToolAnnotations, ToolFailure, ToolResult
from mcp_bridge.ledger import ENDS, CallIdentity, Ledger, LedgerLine, current_call, digest_arguments
from mcp_bridge.records import ToolResult as Result

TOOLS = [
    Tool(name="charge", annotations=ToolAnnotations(read_only=False)),
    Tool(name="set_state", annotations=ToolAnnotations(idempotent=True)),
    Tool(name="look", annotations=ToolAnnotations(read_only=True)),
    Tool(name="unmarked"),
]


class Faulty(OneWorld):
    """A backend behind a bad network. `faults`: what becomes of each attempt, in order; then all is well."""

    tools = TOOLS

    def __init__(self, faults: list[str]) -> None:
        self.faults = list(faults)
        self.runs: list[CallIdentity] = []

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,
        timeout_s: float | None = None,
    ) -> ToolResult:
        await anyio.lowlevel.checkpoint()
        fault = self.faults.pop(0) if self.faults else "fine"
        if fault in {"not_sent", "refused"}:
            raise ServerDied("no connection", delivery=fault)  # type: ignore[arg-type]
        if fault == "lost_before":
            raise ServerDied("connection lost", delivery="unknown")
        identity = current_call()
        assert identity is not None
        assert identity.call == call_id
        self.runs.append(identity)
        if fault == "lost_after":
            raise ServerDied("connection lost", delivery="unknown")
        if fault == "timeout":
            raise CallTimeout("too slow", delivery="unknown")
        if fault == "world_lost":
            raise ServerDied("the process ended", delivery="unknown", world_lost=True)
        if fault == "broken":
            raise ToolFailure("internal error", delivery="answered")
        if fault == "bug":
            raise ZeroDivisionError("a fault of ours")
        return ToolResult(text="done", is_error=fault == "tool_error", error_kind=None)


FAULTS = ("fine", "not_sent", "refused", "lost_before", "lost_after", "timeout", "world_lost", "broken", "bug")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_bridge.ledger._FIRST_PAUSE_S", 0.0)


def ends(lines: list[LedgerLine]) -> list[str]:
    return [line.event for line in lines if line.event in ENDS]


async def calling(faults: list[str], tool: str = "charge") -> tuple[Faulty, list[LedgerLine], Exception | None]:
    backend = Faulty(faults)
    raised = None
    async with mcp_bridge.connect(backend) as toolset, toolset.open_world("r") as world:
        try:
            await world.call(tool, {"n": 1}, call_id="c1")
        except Exception as error:
            raised = error
        return backend, world.ledger.lines, raised


@given(
    st.lists(st.tuples(st.sampled_from([tool.name for tool in TOOLS]), st.lists(st.sampled_from(FAULTS), max_size=6)))
)
@settings(max_examples=200)
def test_no_fault_makes_a_call_happen_twice_and_every_call_has_one_end(calls: list[tuple[str, list[str]]]) -> None:
    async def play() -> None:
        backend = Faulty([])
        async with mcp_bridge.connect(backend) as toolset, toolset.open_world("r") as world:
            for tool, faults in calls:
                backend.faults, backend.runs = list(faults), []
                before = len(world.ledger.lines)
                raised: Exception | None = None
                try:
                    await world.call(tool, {})
                except Exception as error:
                    raised = error
                check(tool, backend.runs, world.ledger.lines[before:], raised)

    anyio.run(play)


def check(tool: str, runs: list[CallIdentity], lines: list[LedgerLine], raised: Exception | None) -> None:
    assert len({line.key for line in lines} | {run.key for run in runs}) == 1
    assert len(ends(lines)) == 1
    assert lines[-1].event in ENDS
    assert [line.attempt for line in lines if line.event == "started"] == list(range(1, lines[-1].attempt + 1))
    assert lines[-1].attempt <= 3
    if tool in {"charge", "unmarked"}:
        assert len(runs) <= 1
    assert (lines[-1].event == "answered") == (raised is None)
    if lines[-1].event == "unknown":
        assert isinstance(raised, OutcomeUnknown | ZeroDivisionError)
        assert tool != "look"
    # What is said to have certainly not happened has not happened, and what was done is never denied.
    if lines[-1].event == "failed" and tool != "look" and "broken" not in str(raised) and "internal" not in str(raised):
        assert not runs


@pytest.mark.parametrize(
    ("tool", "faults", "events", "runs", "error"),
    [
        ("charge", ["lost_after"], "started unknown", 1, OutcomeUnknown),
        ("unmarked", ["lost_before"], "started unknown", 0, OutcomeUnknown),
        ("charge", ["not_sent", "refused"], "started lost started lost started answered", 1, None),
        ("charge", ["not_sent", "lost_after"], "started lost started unknown", 1, OutcomeUnknown),
        ("charge", ["not_sent"] * 3, "started lost started lost started failed", 0, ServerDied),
        ("charge", ["broken"], "started failed", 1, ToolFailure),
        ("look", ["lost_after"], "started lost started answered", 2, None),
        ("look", ["lost_after"] * 3, "started lost started lost started failed", 3, ServerDied),
        ("look", ["timeout"], "started failed", 1, CallTimeout),
        ("look", ["world_lost"], "started failed", 1, ServerDied),
        ("set_state", ["lost_after"], "started lost started answered", 2, None),
        ("set_state", ["lost_after"] * 3, "started lost started lost started unknown", 3, OutcomeUnknown),
        ("set_state", ["timeout"], "started unknown", 1, OutcomeUnknown),
        ("set_state", ["lost_after", "broken"], "started lost started unknown", 2, OutcomeUnknown),
    ],
)
async def test_what_is_called_again_and_how_it_ends(
    tool: str, faults: list[str], events: str, runs: int, error: type[Exception] | None
) -> None:
    backend, lines, raised = await calling(faults, tool)
    assert [line.event for line in lines] == events.split()
    assert len(backend.runs) == runs
    assert len({run.key for run in backend.runs}) <= 1
    assert [run.attempt for run in backend.runs] == sorted({run.attempt for run in backend.runs})
    assert (raised is None) if error is None else isinstance(raised, error)
    assert isinstance(raised, OutcomeUnknown) == (lines[-1].event == "unknown")


async def test_an_unknown_outcome_says_why_and_what_could_be_said_of_the_tool() -> None:
    _, _, raised = await calling(["lost_after"])
    assert isinstance(raised, ServerDied)
    assert "whether 'charge' took effect is unknown: it was not called again" in str(raised)
    assert '"toolbake": {"idempotent": ["its name"]}' in str(raised)
    assert str(raised).endswith("connection lost")


def test_a_number_of_another_library_is_digested_as_the_number_that_is_sent() -> None:
    ledger = Ledger("r")
    ledger.open("charge", {"amount": np.float64(12.5)}, None).started()
    assert ledger.lines[0].arguments == digest_arguments({"amount": 12.5})


def nested(levels: int) -> list[Any]:
    whole: list[Any] = []
    for _ in range(levels):
        whole = [whole]
    return whole


def boxed(levels: int) -> frozenset[Any]:
    whole: frozenset[Any] = frozenset()
    for _ in range(levels):
        whole = frozenset([whole])
    return whole


class Unsaid:
    def __repr__(self) -> str:
        raise LookupError("nothing to say")


def test_arguments_that_cannot_be_written_have_digests_too() -> None:
    long, longer = 10**5_000, 10**5_000 + 1  # more digits than Python writes
    itself: list[Any] = [long]
    itself.append(itself)
    odd = [long, longer, [long], {"a": long}, {"a": longer}, {long: 1}, itself, nested(100_000), nested(100_001)]
    odd += [
        {long},
        {longer},
        frozenset([long]),
        {(long,): 1},
        {(longer,): 1},
        [{long, 1}, 2],
        [{long}, 1, 2],
        {"a": {(long,)}},
    ]
    odd += [boxed(5_000), boxed(5_001), Unsaid()]
    digests = [digest_arguments(one) for one in odd]
    assert digests == [digest_arguments(one) for one in odd]
    assert digest_arguments({"a": long, "b": 1}) == digest_arguments({"b": 1, "a": long})
    assert digest_arguments({long, "a", "b"}) == digest_arguments({"b", "a", long})
    assert digest_arguments({(long, 1): 1, "b": 2}) == digest_arguments({"b": 2, (long, 1): 1})
    ledger = Ledger("r")
    ledger.open("charge", {"amount": long}, None).started()
    assert ledger.lines[0].arguments == digest_arguments({"amount": long})


async def test_a_line_holds_digests_that_anyone_can_compute_again() -> None:
    _, lines, _ = await calling([])
    started, answered = lines
    assert started.arguments == hashlib.sha256(b'{"n":1}').hexdigest()
    assert answered.result == hashlib.sha256(b"done").hexdigest()
    assert (started.call, started.rollout, started.tool, started.attempt) == ("c1", "r", "charge", 1)
    assert started.time <= answered.time


@given(
    st.one_of(
        st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.floats() | st.text()),
        st.dictionaries(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=3), max_size=3),
        st.just({"long": "x" * 5_000}),
        st.just({str(n): n for n in range(40)}),
    ),
    st.text(max_size=20) | st.just("é" * 5_000),
)
def test_lines_tell_what_was_called_whatever_becomes_of_the_arguments_and_whenever_they_are_read(
    arguments: dict[str, Any], text: str
) -> None:
    ledger = Ledger("r")
    expected = digest_arguments(arguments), hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    entry = ledger.open("charge", arguments, None)
    entry.started()
    entry.answered(Result(text=text))
    for value in arguments.values():
        if isinstance(value, list):
            value.append("changed afterwards")
    arguments["changed"] = "afterwards"
    lines = ledger.lines
    assert (lines[0].arguments, lines[1].result) == expected
    assert ledger.lines == lines


async def test_a_listener_hears_the_very_lines_that_are_read_later() -> None:
    heard: list[LedgerLine] = []
    async with mcp_bridge.connect(Faulty([])) as toolset, toolset.open_world("r") as world:
        await world.call("charge", {"n": 1})
        world.ledger.listener = heard.append
        await world.call("charge", {"n": 2})
        assert [line.event for line in heard] == ["started", "answered"]
        assert world.ledger.lines[2:] == heard
        assert heard[0].arguments == hashlib.sha256(b'{"n":2}').hexdigest()


async def test_a_call_that_was_refused_has_one_line_and_was_never_started() -> None:
    async with mcp_bridge.connect(Faulty([])) as toolset:
        await toolset.call("chrage", {})
        (line,) = toolset.ledger.lines  # type: ignore[union-attr]
        assert (line.event, line.note, line.attempt) == ("refused", "unknown_tool", 0)


async def test_two_calls_of_one_id_have_keys_of_their_own_and_so_has_the_same_rollout_run_again() -> None:
    keys = []
    async with mcp_bridge.connect(Faulty([])) as toolset:
        for _ in range(2):
            async with toolset.open_world("r") as world:
                await world.call("charge", {}, call_id="c")
                await world.call("charge", {}, call_id="c")
                keys += [line.key for line in world.ledger.lines if line.event == "started"]
    assert len(set(keys)) == 4


async def test_a_cancelled_call_has_its_end() -> None:
    async def hang() -> str:
        began.set()
        await anyio.sleep_forever()
        return ""

    began = anyio.Event()
    async with mcp_bridge.connect(hang) as toolset, toolset.open_world("r") as world:
        async with anyio.create_task_group() as group:
            group.start_soon(world.call, "hang", {})
            await began.wait()
            group.cancel_scope.cancel()
        assert [line.event for line in world.ledger.lines] == ["started", "unknown"]


@pytest.mark.parametrize(("fault", "end"), [("refused", "failed"), ("lost_before", "unknown")])
async def test_a_call_that_is_cancelled_between_two_attempts_ends_as_the_first_left_it(fault: str, end: str) -> None:
    async with mcp_bridge.connect(Faulty([fault])) as toolset, toolset.open_world("r") as world:
        async with anyio.create_task_group() as group:

            def cancel_once_lost(line: LedgerLine) -> None:
                if line.event == "lost":
                    group.cancel_scope.cancel()

            world.ledger.listener = cancel_once_lost
            group.start_soon(world.call, "set_state", {})
        assert [line.event for line in world.ledger.lines] == ["started", "lost", end]


async def test_a_call_that_waits_for_its_turn_when_its_world_ends_reaches_no_server() -> None:
    backend = Faulty(["refused"])
    raised: list[ToolFailure] = []

    async def call(world: Any) -> None:
        try:
            await world.call("charge", {})
        except ToolFailure as failure:
            raised.append(failure)

    async with mcp_bridge.connect(backend) as toolset, anyio.create_task_group() as group:
        async with toolset.open_world("r") as world:
            lost = anyio.Event()
            world.ledger.listener = lambda line: lost.set() if line.event == "lost" else None
            group.start_soon(call, world)
            await lost.wait()
    assert not backend.runs
    told = "'charge' was not called: world 'r' was closed before its turn came"
    assert [str(failure) for failure in raised] == [told]
    assert [line.event for line in world.ledger.lines] == ["started", "lost", "started", "failed"]


async def test_nothing_is_sent_that_could_not_be_written_down() -> None:
    def refuse(line: LedgerLine) -> None:
        raise OSError("no space left")

    backend = Faulty([])
    async with mcp_bridge.connect(backend) as toolset, toolset.open_world("r") as world:
        world.ledger.listener = refuse
        with pytest.raises(OSError, match="no space"):
            await world.call("charge", {})
    assert backend.runs == []


def test_a_ledger_that_keeps_the_latest_lines_says_how_many_it_dropped() -> None:
    ledger = Ledger("default", most_lines=3)
    for _ in range(3):
        entry = ledger.open("charge", {}, None)
        entry.started()
        entry.answered(Result(text="done"))
    assert (len(ledger.lines), ledger.dropped) == (3, 3)
    assert ledger.lines[-1].call == "default/call-3"


CHARGING = Path(__file__).parent / "servers" / "charging.py"


@pytest.mark.parametrize(
    ("tool", "arguments", "runs"),
    [("charge", {"amount": 5}, 1), ("set_limit", {"amount": 5}, 2), ("set_name", {"name": "A"}, 2)],
)
async def test_a_server_that_dies_after_it_did_what_was_asked_is_asked_again_only_where_that_does_no_harm(
    tmp_path: Path, tool: str, arguments: dict[str, Any], runs: int
) -> None:
    log = tmp_path / "log"
    entry = {
        "command": sys.executable,
        "args": [str(CHARGING), str(log)],
        "toolbake": {"isolation": "shared", "idempotent": ["set_name"]},
    }
    async with mcp_bridge.connect({"mcpServers": {"bank": entry}}) as toolset, toolset.open_world("r") as world:
        if runs == 1:
            with pytest.raises(OutcomeUnknown, match="took effect is unknown"):
                await world.call(tool, arguments)
        else:
            assert not (await world.call(tool, arguments)).is_error
        assert len(log.read_text().splitlines()) == runs
        assert ends(world.ledger.lines) == ["unknown" if runs == 1 else "answered"]
        assert json.loads(world.ledger.lines[0].model_dump_json())["tool"] == tool
