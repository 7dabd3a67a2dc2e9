"""Rollouts without a model, by a clock that jumps: scheduling, branches, incidents."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from simulation import Incident, SimulatedPolicy, SlowTools, run_virtual, simulated_agent

from mcp_bridge import SourceError
from mcp_bridge.records import Tool
from sandboxes.helpdesk import Helpdesk
from sdk.errors import ConfigError
from sdk.policies.protocol import Sampling
from sdk.records import Message, Rollout, Task, ToolCall
from sdk.rollouts.branching import Branching, grow_trees, parent_and_turn, sampled_turns
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.rollouts.limits import Limits

LIMITS = Limits(max_turn_tokens=10_000, max_tokens=100_000)
SAMPLING = Sampling(max_tokens=10_000)
DESK = Helpdesk()
ORDERS = [o for o, row in DESK.state()["orders"].items() if row["status"] == "processing"]


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id="", name=name, arguments=arguments)])


def done() -> Message:
    return Message(role="assistant", content="done")


def look_then_end(turns: int) -> Callable[[int, int], Message]:
    """Looks an order up in every turn but the last."""
    return lambda turn, seed: done() if turn == turns - 1 else call("get_order", order_id=ORDERS[turn % len(ORDERS)])


def look_then_cancel_one_of_two(turn: int, seed: int) -> Message:
    return [call("get_order", order_id=ORDERS[0]), call("cancel_order", order_id=ORDERS[seed % 2]), done()][turn]


def jobs(count: int, group: int = 1) -> list[Job]:
    return [Job(id=f"r{n}", task=Task(prompt="go", id=f"t{n // group}"), seed=n) for n in range(count)]


def engine(policy: SimulatedPolicy, source: Any = DESK, **options: Any) -> RolloutEngine:
    return RolloutEngine(
        agent=simulated_agent(policy), source=source, verifier=None, **{"limits": LIMITS, "concurrency": 8, **options}
    )


async def timed(runner: RolloutEngine, made: list[Job]) -> tuple[list[Rollout], float]:
    started = anyio.current_time()
    rollouts = await runner.run(made, sampling=SAMPLING)
    return rollouts, anyio.current_time() - started


def test_the_schedule_is_the_ideal_one_whatever_the_length_of_the_rollouts() -> None:
    # 24 rollouts of 1 to 3 turns by turns, 0.2 s a turn and 0.1 s a call: 0.2, 0.5 and 0.8 s, 12 s in all, in 8 slots.
    def say(turn: int, seed: int) -> Message:
        return done()

    lengths = {f"p{n}": n % 3 + 1 for n in range(24)}

    class ByPrompt(SimulatedPolicy):
        def _completion(self, prompt_ids: Any, seed: int, sampling: Any, version: int) -> Any:
            prompt = self._renderer.decode(prompt_ids).split("<user>")[1].split("<end>")[0]
            self._say = look_then_end(lengths[prompt])
            return super()._completion(prompt_ids, seed, sampling, version)

    source = SlowTools(DESK, latency_s=0.1)
    made = [Job(id=prompt, task=Task(prompt=prompt), seed=0) for prompt in lengths]
    policy = ByPrompt(say)
    rollouts, seconds = run_virtual(timed, engine(policy, source), made)
    assert [r.turns for r in rollouts] == list(lengths.values())
    # No schedule is shorter than the work over the slots; a list schedule ends at most one rollout later (Graham 1969).
    assert 12.0 / 8 <= seconds <= 12.0 / 8 + 0.8
    assert policy.most_in_flight == 8


def test_concurrency_follows_the_cache_of_the_policy_down_and_up_again() -> None:
    policy = SimulatedPolicy(look_then_end(2), cache_rows=10)
    runner = engine(policy, concurrency=40)

    async def run() -> Any:
        async with runner.stream(sampling=SAMPLING) as stream:
            rollouts = await stream.submit(jobs(400)).wait()
            return rollouts, stream.concurrency

    rollouts, concurrency = run_virtual(run)
    assert len({r.id for r in rollouts}) == 400
    assert runner.counts.most_in_flight == 40
    assert concurrency.lowest <= 10
    assert 5 <= concurrency.limit <= 12


@pytest.mark.parametrize("kind", ["crash", "fail", "hang"])
def test_what_breaks_is_played_again_and_nothing_is_counted_twice(kind: Any) -> None:
    policy = SimulatedPolicy(look_then_end(3), incidents=[Incident(request=23, kind=kind)])
    broken: list[Rollout] = []

    async def run() -> tuple[list[Rollout], float]:
        started = anyio.current_time()
        limits = LIMITS.model_copy(update={"reply_timeout_s": 2.0})
        runner = engine(policy, limits=limits)
        async with runner.stream(sampling=SAMPLING, retries=1, on_broken=broken.append) as stream:
            rollouts = await stream.submit(jobs(24)).wait()
            assert stream.counts.attempts_again == len(broken)
            assert (stream.counts.begun, stream.counts.ended) == (24, 24)
        assert stream.counts.given_up == 0
        return rollouts, anyio.current_time() - started

    rollouts, seconds = run_virtual(run)
    assert [r.id for r in rollouts] == [f"r{n}" for n in range(24)]
    assert all(r.failure is None and r.turns == 3 for r in rollouts)
    assert {r.failure.boundary for r in broken if r.failure} == {"policy"}
    # A crash takes everything in flight with it; the other two cost one rollout.
    assert len(broken) == (8 if kind == "crash" else 1)
    assert seconds < 6


class LiveWorld:
    """Tools that do something real, of a source that keeps no ledger."""

    simulated = False

    def __init__(self) -> None:
        self.booked = 0
        self.tools = [Tool(name="book", description="", input_schema={"type": "object"})]

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Any = None) -> Any:
        yield self

    async def call(self, *given: Any, **options: Any) -> Any:
        self.booked += 1
        await anyio.sleep_forever()

    async def state(self) -> None:
        return None


def test_a_live_call_that_was_under_way_when_time_ran_out_is_not_made_again() -> None:
    source = LiveWorld()
    policy = SimulatedPolicy(lambda turn, seed: [call("book"), done()][turn])

    async def run() -> list[Rollout]:
        runner = engine(policy, source, limits=LIMITS.model_copy(update={"max_seconds": 5.0}))
        async with runner.stream(sampling=SAMPLING, retries=2) as stream:
            return await stream.submit(jobs(1)).wait()

    (rollout,) = run_virtual(run)
    assert (rollout.stop_reason, rollout.calls, source.booked) == ("time_limit", [], 1)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_world_that_cannot_be_used_leaves_its_rollout_unscored_whatever_the_number_of_calls(calls: int) -> None:
    class Misconfigured(LiveWorld):
        async def call(self, *given: Any, **options: Any) -> Any:
            raise SourceError("the token has expired")

    asked = Message(role="assistant", tool_calls=call("book").tool_calls * calls)
    policy = SimulatedPolicy(lambda turn, seed: [asked, done()][turn])
    (rollout,), _ = run_virtual(timed, engine(policy, Misconfigured()), jobs(1))
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.kind) == ("world", "SourceError")


def test_a_reply_that_the_context_cuts_is_told_from_one_that_its_limit_cuts() -> None:
    def ended(room: int | None, limit: int) -> tuple[str, int, int]:
        """With `room` tokens of context for the reply: the stop reason, and how many turns and tokens were said."""
        policy = SimulatedPolicy(look_then_end(1))
        if room is not None:
            policy.context_tokens = len(whole.rows[0].prompt_ids) + room
        runner = engine(policy, limits=LIMITS.model_copy(update={"max_turn_tokens": limit}))
        (rollout,), _ = run_virtual(timed, runner, jobs(1))
        assert rollout.failure is None
        return rollout.stop_reason, rollout.turns, rollout.sampled_tokens

    (whole,), _ = run_virtual(timed, engine(SimulatedPolicy(look_then_end(1))), jobs(1))
    assert whole.stop_reason == "answered"
    assert whole.sampled_tokens > 3
    assert ended(room=None, limit=3) == ("token_limit", 1, 3)
    assert ended(room=3, limit=3) == ("token_limit", 1, 3)
    assert ended(room=2, limit=3) == ("context_limit", 1, 2)
    assert ended(room=0, limit=3) == ("context_limit", 0, 0)


def test_without_retries_what_broke_is_left_unscored_and_says_where() -> None:
    policy = SimulatedPolicy(look_then_end(2), incidents=[Incident(request=0, kind="fail")])
    rollouts, _ = run_virtual(timed, engine(policy), jobs(4))
    failed = [r for r in rollouts if r.failure is not None]
    assert [(r.failure.boundary, r.stop_reason) for r in failed if r.failure] == [("policy", "failed")]
    assert "no memory" in str(failed[0].failure)


def test_a_verifier_that_hangs_leaves_its_rollout_unscored_and_holds_up_no_other() -> None:
    async def verify(rollout: Rollout) -> float:
        if rollout.id == "r2":
            await anyio.sleep_forever()
        return 1.0

    runner = RolloutEngine(
        agent=simulated_agent(SimulatedPolicy(look_then_end(1))),
        source=DESK,
        verifier=verify,
        limits=LIMITS,
        concurrency=2,
        verifier_timeout_s=3.0,
    )
    rollouts, seconds = run_virtual(timed, runner, jobs(20))
    assert [r.id for r in rollouts if not r.scored] == ["r2"]
    assert rollouts[2].failure is not None
    assert (rollouts[2].failure.boundary, rollouts[2].verdict) == ("verifier", None)
    assert seconds == pytest.approx(3.6, abs=0.21)  # the other 18 go through the other slot meanwhile


def test_rollouts_given_up_when_a_stream_is_closed_are_counted() -> None:
    runner = engine(SimulatedPolicy(look_then_end(2)), concurrency=4)

    async def run() -> None:
        async with runner.stream(sampling=SAMPLING) as stream:
            stream.submit(jobs(10))
            await anyio.sleep(0.1)

    run_virtual(run)
    assert (runner.counts.begun, runner.counts.given_up, runner.counts.not_begun) == (4, 4, 6)


def cancelled(rollout: Rollout) -> list[str]:
    changes = DESK.diff(rollout.initial_state or {}, rollout.final_state or {})
    return [c["key"] for c in changes if c["table"] == "orders"]


class NotForkable(SlowTools):
    """Tools that cannot fork their worlds."""

    can_fork = False


SOURCES = [DESK, SlowTools(DESK, latency_s=0.1), NotForkable(DESK, latency_s=0.1)]


@pytest.mark.parametrize("source", SOURCES, ids=["forked", "forked behind slow tools", "replayed"])
def test_branches_go_on_from_the_same_moment_in_worlds_of_their_own(source: Any) -> None:
    runner = engine(SimulatedPolicy(look_then_cancel_one_of_two), source)

    async def run() -> list[Rollout]:
        return await runner.run(jobs(2), sampling=SAMPLING, branching=Branching(8, where=lambda rollout: [1]))

    rollouts = run_virtual(run)
    assert runner.counts.branches == 16
    trees = grow_trees(rollouts)
    assert [len(tree.leaves) for tree in trees] == [9, 9]
    for tree in trees:
        for branch in tree.branches[1]:
            assert parent_and_turn(branch.id) == (tree.root.id, 1)
            assert branch.messages[:3] == tree.root.messages[:3]
            assert branch.calls[:1] == tree.root.calls[:1]
            assert (branch.turns, branch.stop_reason, branch.failure) == (3, "answered", None)
            # Tokens of the past are the very same, with the log-probabilities they were sampled with.
            (row,), (root_row,) = branch.rows, tree.root.rows
            past = sampled_turns(tree.root)[0].end
            assert row.prompt_ids == root_row.prompt_ids
            assert row.completion_ids[:past] == root_row.completion_ids[:past]
            assert row.logprobs[:past] == root_row.logprobs[:past]
        chosen = collections.Counter(order for leaf in tree.leaves for order in cancelled(leaf))
        assert sum(chosen.values()) == 9, "each world has its own leaf's cancellation and no other"
        assert len(chosen) == 2, "seeds of branches differ"


def test_a_branch_of_a_tool_that_is_live_is_refused() -> None:
    from mcp_bridge import connect

    async def run() -> None:
        async with connect([look_then_end]) as source:
            await engine(SimulatedPolicy(look_then_end(2)), source).run(
                jobs(1), sampling=SAMPLING, branching=Branching(1)
            )

    with pytest.raises(ConfigError, match="is live"):
        anyio.run(run)


def test_the_least_sure_turn_is_branched_at_and_never_the_first() -> None:
    runner = engine(SimulatedPolicy(look_then_end(4)))
    rollouts, _ = run_virtual(timed, runner, jobs(1))
    (row,) = rollouts[0].rows
    spans = sampled_turns(rollouts[0])
    assert len(spans) == 4
    for unsure in range(4):
        for turn, span in enumerate(spans):
            row.logprobs[span.begin : span.end] = [-2.0 if turn == unsure else -0.1 * turn] * (span.end - span.begin)
        assert Branching(1).turns(rollouts[0]) == [unsure or 3]
    assert Branching(1, points=9).turns(rollouts[0]) == [1, 2, 3]
