"""What every sandbox must do, as tests. One class of your own runs all of them:

    class TestMySandbox(SandboxConformance):
        def make(self) -> Sandbox:
            return MySandbox()                       # a new one each time, in the state that `reset()` gives

        def change(self) -> Call:
            return "cancel_order", {"order_id": "7"}  # succeeds in that state, and changes it

        def calls(self) -> list[Call]:
            return [...]                             # optional: more calls, refused ones among them

Put it into a file named `test_*.py` in this folder; import only `SandboxConformance`. Settings of the class:

- `seeds_differ = False` where all seeds give the same world (a recording, an object without a loader).
- `scenarios_tried = (...)` where there are too many scenarios to try them all.
- `world_setup = {...}`: a setup that `open_world` takes and that gives the state of `make()`.

A test that cannot hold for your sandbox is a question about the protocol (`sandboxes/sandbox.py`), not one to skip.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_bridge.errors import SourceError
from mcp_bridge.world import World, WorldSource
from sandboxes import Sandbox, diff

Call = tuple[str, dict[str, Any]]

NOT_A_TIME_TO_ADVANCE = (timedelta(seconds=-1), 5, None, timedelta.max)


class SandboxConformance:
    """See the top of this file."""

    seeds_differ: ClassVar[bool] = True
    scenarios_tried: ClassVar[tuple[str, ...]] = ()
    world_setup: ClassVar[Mapping[str, Any]] = {"seed": 0}

    def make(self) -> Sandbox:
        raise NotImplementedError("give a new sandbox, in the state that `reset()` gives")

    def change(self) -> Call:
        raise NotImplementedError("give a call that succeeds after `reset()` and changes the state")

    def calls(self) -> list[Call]:
        """Calls to make in any order, refused ones among them. `change` and mistakes are added."""
        return []

    @pytest.fixture
    def sandbox(self) -> Iterator[Sandbox]:
        sandbox = self.make()
        yield sandbox
        sandbox.close()

    # -- the beginning ------------------------------------------------------------------------------------------------

    def test_it_is_a_source_of_worlds_with_tools_of_distinct_names(self, sandbox: Sandbox) -> None:
        assert isinstance(sandbox, WorldSource)
        assert sandbox.name
        names = [tool.name for tool in sandbox.tools]
        assert names
        assert len(set(names)) == len(names)

    def test_the_state_is_json_of_tables_rows_and_columns(self, sandbox: Sandbox) -> None:
        state = sandbox.state()
        assert json.loads(json.dumps(state, allow_nan=False)) == state
        for table, rows in state.items():
            assert isinstance(rows, dict), table
            assert all(isinstance(row, dict) for row in rows.values()), table

    def test_writing_into_a_state_or_a_result_changes_no_world(self, sandbox: Sandbox) -> None:
        result = sandbox.call_now(*self.change())
        before = copy.deepcopy(sandbox.state())
        _spoil(result.structured)
        _spoil(sandbox.state())
        assert sandbox.state() == before

    def test_a_reset_begins_again(self, sandbox: Sandbox) -> None:
        tools = list(sandbox.tools)
        sandbox.reset()
        start, began = sandbox.state(), sandbox.now
        assert self.make().state() == start
        for scenario in self.scenarios_tried or sandbox.scenarios:
            sandbox.reset(scenario=scenario)
            first = sandbox.state()
            sandbox.reset(seed=1, scenario=scenario)
            assert (sandbox.state() != first) is self.seeds_differ
            sandbox.reset(scenario=scenario)
            assert sandbox.state() == first
        sandbox.reset()
        self._change(sandbox)
        sandbox.reset()
        assert (sandbox.state(), sandbox.now, list(sandbox.tools)) == (start, began, tools)

    def test_another_process_at_another_time_makes_the_same_worlds(self) -> None:
        # Other hash seed, other wall clock, other process: nothing of these may show in a state.
        there = subprocess.run(
            [sys.executable, __file__, type(self).__module__, type(self).__qualname__],
            env={**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert there.returncode == 0, there.stderr
        assert there.stdout.strip() == self.fingerprint()

    @pytest.mark.parametrize(
        "bad", [{"seed": -1}, {"seed": "x"}, {"seed": True}, {"seed": 1.0}, {"scenario": "no_such_scenario"}]
    )
    def test_an_unknown_beginning_is_refused_and_changes_nothing(self, sandbox: Sandbox, bad: dict[str, Any]) -> None:
        self._change(sandbox)
        before = sandbox.state()
        with pytest.raises(SourceError, match=next(iter(bad))):
            sandbox.reset(**bad)
        assert sandbox.state() == before

    # -- calls --------------------------------------------------------------------------------------------------------

    def test_a_change_shows_in_the_diff(self, sandbox: Sandbox) -> None:
        start = sandbox.state()
        assert sandbox.diff(start, sandbox.state()) == []
        self._change(sandbox)
        changes = sandbox.diff(start, sandbox.state())
        assert changes
        assert all(set(entry) == {"table", "key", "column", "before", "after"} for entry in changes)
        assert changes == diff(start, sandbox.state())

    def test_a_result_says_its_value_as_text_and_as_json(self, sandbox: Sandbox) -> None:
        for call in self._all_calls(sandbox):
            result = sandbox.call_now(*call)
            assert result.text, call
            assert result.is_error == (result.error_kind is not None), call
            json.dumps(result.structured, allow_nan=False)

    def test_a_call_leaves_its_arguments_alone_and_keeps_none_of_them(self, sandbox: Sandbox) -> None:
        for name, arguments in self._all_calls(sandbox):
            given = copy.deepcopy(arguments)
            sandbox.call_now(name, given)
            assert given == arguments, name
            before = copy.deepcopy(sandbox.state())
            _spoil(given)
            assert sandbox.state() == before, name

    def test_a_call_with_an_error_has_changed_nothing(self, sandbox: Sandbox) -> None:
        for call in self._all_calls(sandbox):
            before = sandbox.state()
            if sandbox.call_now(*call).is_error:
                assert sandbox.state() == before, call

    def test_a_tool_that_says_it_only_reads_changes_nothing(self, sandbox: Sandbox) -> None:
        reading = {tool.name for tool in sandbox.tools if tool.annotations.read_only}
        for name, arguments in self._all_calls(sandbox):
            before = sandbox.state()
            sandbox.call_now(name, arguments)
            if name in reading:
                assert sandbox.state() == before, name

    def test_mistakes_of_the_caller_come_back_as_text_that_says_what_is_right(self, sandbox: Sandbox) -> None:
        start = sandbox.state()
        unknown = sandbox.call_now("no_such_tool", {})
        assert (unknown.is_error, unknown.error_kind) == (True, "unknown_tool")
        assert all(tool.name in unknown.text for tool in list(sandbox.tools)[:20])
        for needy in (tool for tool in sandbox.tools if tool.input_schema.get("required")):
            wrong = sandbox.call_now(needy.name, {})
            assert (wrong.is_error, wrong.error_kind) == (True, "invalid_arguments")
            assert all(name in wrong.text for name in needy.input_schema["required"])
        assert sandbox.state() == start

    def test_what_is_no_call_at_all_is_a_mistake_of_the_caller_too(self, sandbox: Sandbox) -> None:
        start, deep = sandbox.state(), []  # type: ignore[var-annotated]
        for _ in range(3000):
            deep = [deep]
        name, arguments = self.change()
        odd: list[Any] = [None, [], "x", {"x": deep}, {"x": object()}, {"x": b"bytes"}, {"x": {1}}, {1: 2}]
        strange: list[tuple[Any, Any]] = [(name, one) for one in odd]
        strange += [(None, {}), (3, {}), ([], {}), ("", {})]
        for call in strange:
            result = sandbox.call_now(*call)
            assert result.is_error, call[0]
            assert result.error_kind in ("unknown_tool", "invalid_arguments", "tool_error"), call[0]
        assert sandbox.state() == start
        # Whether more may be given than is asked for is for the schema to say; no tool breaks of it.
        sandbox.call_now(name, {**arguments, "no_such_argument": 1})

    # -- forks and snapshots ------------------------------------------------------------------------------------------

    def test_forks_share_nothing_that_a_call_can_change(self, sandbox: Sandbox) -> None:
        start = sandbox.state()
        left, right = sandbox.fork(), sandbox.fork()
        self._change(left)
        changed = left.state()
        assert changed != start
        assert right.state() == sandbox.state() == start
        later = left.fork()
        assert later.state() == changed
        self._change(right)
        assert right.state() == changed, "the same calls lead to the same state"
        left.reset()
        assert (later.state(), left.state()) == (changed, start)
        self._change(sandbox)
        assert left.state() == start
        for one in (left, right, later):
            one.close()

    def test_a_fork_outlives_the_one_it_was_forked_from(self) -> None:
        origin = self.make()
        start = origin.state()
        fork = origin.fork()
        origin.close()
        del origin
        assert fork.state() == start
        self._change(fork)
        fork.close()

    def test_a_snapshot_brings_back_the_state_also_in_another_sandbox(self, sandbox: Sandbox) -> None:
        start, saved = sandbox.state(), sandbox.snapshot()
        assert isinstance(saved, bytes)
        self._change(sandbox)
        changed, later = sandbox.state(), sandbox.snapshot()
        sandbox.restore(saved)
        assert sandbox.state() == start
        other = self.make()
        other.reset(seed=1)
        other.restore(later)
        assert other.state() == changed
        other.restore(saved)
        self._change(other)
        assert (other.state(), sandbox.state()) == (changed, start)
        other.close()

    def test_damaged_snapshots_are_refused_and_change_nothing(self, sandbox: Sandbox) -> None:
        saved = sandbox.snapshot()
        self._change(sandbox)
        changed = sandbox.state()
        for damaged in (b"", b"no snapshot", saved[: len(saved) // 2], saved[:-1], None, "text", 5, bytearray(saved)):
            with pytest.raises(SourceError):
                sandbox.restore(damaged)  # type: ignore[arg-type]
            assert sandbox.state() == changed

    # -- the clock ----------------------------------------------------------------------------------------------------

    def test_time_passes_only_when_it_is_told_to(self, sandbox: Sandbox) -> None:
        began, before = sandbox.now, sandbox.state()
        sandbox.advance(timedelta(0))
        assert (sandbox.now, sandbox.state()) == (began, before)
        sandbox.advance(timedelta(days=3, seconds=1))
        assert sandbox.now == began + timedelta(days=3, seconds=1)
        assert sandbox.diff(before, sandbox.state()), "the clock is part of the state"

    def test_a_fork_has_a_clock_of_its_own_and_a_snapshot_keeps_the_time(self, sandbox: Sandbox) -> None:
        began, saved = sandbox.now, sandbox.snapshot()
        fork = sandbox.fork()
        fork.advance(timedelta(hours=1))
        later = fork.snapshot()
        assert (sandbox.now, fork.now) == (began, began + timedelta(hours=1))
        fork.restore(saved)
        assert fork.now == began
        fork.restore(later)
        assert fork.now == began + timedelta(hours=1)
        fork.reset()
        assert fork.now == began
        fork.close()

    @pytest.mark.parametrize("by", NOT_A_TIME_TO_ADVANCE, ids=str)
    def test_time_does_not_go_back_or_beyond_the_calendar(self, sandbox: Sandbox, by: Any) -> None:
        before = sandbox.state()
        with pytest.raises(SourceError, match="advance"):
            sandbox.advance(by)
        assert sandbox.state() == before

    # -- any sequence of all of these ---------------------------------------------------------------------------------

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(st.integers(0, 10_000), max_size=12), st.integers(0, 12), st.integers(0, 2))
    def test_the_same_steps_lead_to_the_same_state_by_every_road(
        self, steps: list[int], turning: int, seed: int
    ) -> None:
        straight = self.make()
        straight.reset(seed)
        road = self.make()
        road.reset(seed)
        worlds, calls = [straight, road], self._all_calls(straight)
        for place, step in enumerate(steps):
            if place == turning:  # from here on in a fork of a restored snapshot, while the old road goes elsewhere
                saved, old = road.snapshot(), road
                road = old.fork()
                old.advance(timedelta(days=1))
                old.restore(saved)
                forked = old.fork()
                self._change_or_not(old)
                road.close()
                road = forked
                worlds += [road]
            assert _step(straight, calls, step) == _step(road, calls, step)
        assert straight.state() == road.state()
        assert straight.now == road.now
        for world in worlds:
            world.close()

    # -- worlds -------------------------------------------------------------------------------------------------------

    async def test_every_world_is_its_own(self, sandbox: Sandbox) -> None:
        start = sandbox.state()
        async with sandbox.open_world("a") as one, sandbox.open_world("b", self.world_setup) as two:
            assert isinstance(one, World)
            assert [tool.name for tool in one.tools] == [tool.name for tool in sandbox.tools]
            await one.call(*self.change(), call_id="call_1", timeout_s=5)
            assert await two.state() == start == sandbox.state()
            assert await one.state() != start

    async def test_a_setup_that_it_does_not_know_is_refused(self, sandbox: Sandbox) -> None:
        unknown: list[Any] = [{"sed": 1}, {3: 4, "sed": 1}, 3, "sed", [1]]
        for setup in unknown:
            with pytest.raises(SourceError, match="setup"):
                async with sandbox.open_world("c", setup):
                    pass

    async def test_without_a_setup_a_world_begins_where_the_sandbox_stands(self, sandbox: Sandbox) -> None:
        self._change(sandbox)
        async with sandbox.open_world("w") as world:
            assert await world.state() == sandbox.state()

    async def test_many_worlds_at_once_do_not_meet(self, sandbox: Sandbox) -> None:
        start = sandbox.state()
        seen: list[bool] = []

        async def one_rollout(number: int) -> None:
            async with sandbox.open_world(f"w{number}") as world:
                before = await world.state()
                await anyio.lowlevel.checkpoint()
                if number % 2:
                    await world.call(*self.change())
                after = await world.state()
                await anyio.lowlevel.checkpoint()
                seen.append(before == start and (after != before) == bool(number % 2) and after == await world.state())

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one_rollout, number)
        assert seen == [True] * 50

    def test_forks_work_in_threads_of_their_own(self, sandbox: Sandbox) -> None:
        expected = sandbox.fork()
        self._change(expected)
        ends: list[Any] = []

        def play(fork: Sandbox) -> None:
            self._change_or_not(fork)
            ends.append(fork.state())
            fork.close()

        threads = [threading.Thread(target=play, args=(sandbox.fork(),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ends == [expected.state()] * 8
        expected.close()

    # -- what the tests above share -----------------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """Of some states of a new sandbox, and of what its calls answer."""
        sandbox = self.make()
        said = [sandbox.state()]
        if self.seeds_differ:
            sandbox.reset(seed=3)
            said.append(sandbox.state())
            sandbox.reset()
        for call in [self.change(), *self.calls()]:
            said += [{"text": {"text": {"text": sandbox.call_now(*call).text}}}, sandbox.state()]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    def _change(self, sandbox: Sandbox) -> None:
        result = sandbox.call_now(*self.change())
        assert not result.is_error, f"change() must succeed after reset(): {result.text}"

    def _change_or_not(self, sandbox: Sandbox) -> None:
        sandbox.call_now(*self.change())

    def _all_calls(self, sandbox: Sandbox) -> list[Call]:
        needy = [tool.name for tool in sandbox.tools if tool.input_schema.get("required")]
        return [self.change(), *self.calls(), ("no_such_tool", {}), *[(name, {}) for name in needy[:1]], self.change()]


def _step(sandbox: Sandbox, calls: list[Call], number: int) -> Any:
    """What comes of the call, or the passing of time, that a number stands for."""
    place = number % (len(calls) + 1)
    if place == len(calls):
        sandbox.advance(timedelta(minutes=number % 1000))
        return sandbox.now
    return sandbox.call_now(*calls[place]).model_copy(update={"duration_s": 0.0})


def _spoil(value: Any) -> None:
    """Change everything inside a value that can be changed."""
    if isinstance(value, dict):
        for inner in value.values():
            _spoil(inner)
        value["spoiled"] = random.Random(0).random()
    elif isinstance(value, list):
        for inner in value:
            _spoil(inner)
        value.append("spoiled")


def main() -> None:
    """Print the fingerprint of the suite MODULE CLASS; run by `test_another_process_at_another_time...`."""
    sys.path.insert(0, str(Path(__file__).parent))
    suite: Any = importlib.import_module(sys.argv[1])
    for part in sys.argv[2].split("."):
        suite = getattr(suite, part)
    print(suite().fingerprint())


if __name__ == "__main__":
    main()
