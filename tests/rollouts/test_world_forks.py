"""Worlds behind toolsets and servers are forked for branches, and the ledger of a fork begins with its past."""

from __future__ import annotations

from typing import Any, ClassVar

import anyio
import pytest
from simulation import SimulatedPolicy, simulated_agent

from mcp_bridge import SourceError, ToolFailure, connect, publish
from mcp_bridge.publishing.server import Desk
from sandboxes.faults import ErrorAnswer, Faulty
from sandboxes.helpdesk import Helpdesk
from sandboxes.objects import ObjectTwin
from sdk.evidence.run_verification import calls_not_made
from sdk.policies.protocol import Sampling
from sdk.records import Message, Rollout, Task, ToolCall
from sdk.rollouts.branching import Branching, grow_trees
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.rollouts.limits import Limits

DESK = Helpdesk()
ORDERS = [o for o, row in DESK.state()["orders"].items() if row["status"] == "processing"]


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def write(self, text: str) -> int:
        """Write a note.

        Args:
            text: what it says
        """
        self.notes.append(text)
        return len(self.notes)


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id="", name=name, arguments=arguments)])


def cancel_one_then_another_of_two(turn: int, seed: int) -> Message:
    return [
        call("cancel_order", order_id=ORDERS[2]),
        call("cancel_order", order_id=ORDERS[seed % 2]),
        Message(role="assistant", content="done"),
    ][turn]


def cancelled(before: Any, after: Any) -> list[str]:
    return [change["key"] for change in DESK.diff(before, after) if change["table"] == "orders"]


def served(kind: str) -> Any:
    """Sources whose worlds can all be forked; each takes the helpdesk's tools under their own names."""
    return DESK if kind == "sandbox" else publish(DESK, control=True)


@pytest.mark.parametrize("kind", ["sandbox", "server"])
async def test_a_fork_goes_on_from_the_moment_and_shares_nothing(kind: str) -> None:
    async with connect(served(kind)) as toolset:
        assert toolset.can_fork
        async with toolset.open_world("one") as one:
            begun = await one.state()
            await one.call("cancel_order", {"order_id": ORDERS[0]})
            copy = await one.fork()
            await one.call("cancel_order", {"order_id": ORDERS[1]})
            async with copy.open("two") as two, copy.open("three") as three:
                await two.call("cancel_order", {"order_id": ORDERS[2]})
                assert [cancelled(begun, await world.state()) for world in (one, two, three)] == [
                    [ORDERS[0], ORDERS[1]],
                    [ORDERS[0], ORDERS[2]],
                    [ORDERS[0]],
                ]
                await copy.aclose()
                past = one.ledger.lines[:2]
                assert two.ledger.lines[:2] == three.ledger.lines == past
                assert [line.rollout for line in two.ledger.lines] == ["one", "one", "two", "two"]
                assert len({line.key for line in (*one.ledger.lines, *two.ledger.lines)}) == 3
            with pytest.raises(ToolFailure, match="is closed"):
                await two.call("cancel_order", {"order_id": ORDERS[3]})


async def test_forks_of_several_sources_go_on_together() -> None:
    async with connect([DESK, publish(ObjectTwin(Notes), control=True)]) as toolset:
        async with toolset.open_world("one") as one:
            await one.call("cancel_order", {"order_id": ORDERS[0]})
            await one.call("write", {"text": "first"})
            copy = await one.fork()
            await one.call("write", {"text": "second"})
            async with copy.open("two") as two:
                state = await two.state() or {}
                kept = [text for text in ("first", "second") if text in str(state)]
                assert (kept, len(state)) == (["first"], 2)
            await copy.aclose()


async def test_a_world_with_a_source_that_cannot_fork_says_which() -> None:
    def look(text: str) -> str:
        """Look."""
        return text

    async with connect([DESK, look]) as toolset:
        assert not toolset.can_fork
        async with toolset.open_world("one") as one:
            with pytest.raises(SourceError, match="cannot be forked; sandboxes can"):
                await one.fork()


def runner(source: Any) -> RolloutEngine:
    return RolloutEngine(
        agent=simulated_agent(SimulatedPolicy(cancel_one_then_another_of_two, latency_s=0)),
        source=source,
        verifier=None,
        limits=Limits(max_turn_tokens=10_000, max_tokens=100_000),
        concurrency=8,
    )


async def branched(engine: RolloutEngine) -> list[Rollout]:
    jobs = [Job(id=f"r{n}", task=Task(prompt="go", id=f"t{n}"), seed=n) for n in range(2)]
    branching = Branching(4, where=lambda rollout: [1])
    return await engine.run(jobs, sampling=Sampling(max_tokens=10_000), branching=branching)


class Counted(Desk):
    """The worlds of a server, counted."""

    made: ClassVar[list[Counted]] = []

    def __init__(self, source: Any, **limits: Any) -> None:
        super().__init__(source, **limits)
        self.forks = 0
        Counted.made.append(self)

    async def fork(self, name: str, into: str) -> None:
        self.forks += 1
        await super().fork(name, into)

    @property
    def named(self) -> list[str]:
        """The worlds that a client holds by name."""
        return [key for key in self._held if isinstance(key, str)]


class Unforkable(Faulty):
    """Tools whose worlds cannot be forked."""

    can_fork = False


@pytest.mark.parametrize("kind", ["sandbox", "server", "faulty", "replayed"])
async def test_branches_over_a_toolset_are_forked_where_its_worlds_can_be_and_replayed_elsewhere(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_bridge.publishing.server.Desk", Counted)
    Counted.made = []
    wrapper = {"faulty": Faulty, "replayed": Unforkable}.get(kind)
    source = served(kind) if wrapper is None else wrapper(DESK, {"get_order": ErrorAnswer(p=0)})
    async with connect(source) as toolset:
        engine = runner(toolset)
        rollouts = await branched(engine)
        if kind == "server":
            (desk,) = Counted.made
            # A copy before each of three turns, and a world for each of four branches.
            assert desk.forks == 2 * (3 + 4)
            assert not desk.named, "every copy was given back"
    assert (engine.counts.branches, engine.counts.branches_replayed) == (8, 8 if kind == "replayed" else 0)
    for tree in grow_trees(rollouts):
        for branch in tree.branches[1]:
            assert branch.failure is None
            assert branch.calls[:1] == tree.root.calls[:1]
            assert branch.ledger[:2] == tree.root.ledger[:2]
            assert [line.rollout for line in branch.ledger[2:]] == [branch.id] * 2
            assert len(cancelled(branch.initial_state, branch.final_state)) == 2
            assert calls_not_made(branch.model_dump(mode="json")) == []
            lying = branch.model_dump(mode="json")
            lying["calls"][0]["result"]["text"] = "ok"
            assert len(calls_not_made(lying)) == 1


async def test_a_server_that_refuses_a_fork_has_its_calls_made_again() -> None:
    # Room for the two rollouts and for branches that are replayed, and not for copies before each turn.
    async with connect(publish(DESK, control=True, max_worlds=2)) as toolset:
        engine = runner(toolset)
        engine.concurrency = 2
        rollouts = await branched(engine)
    assert engine.counts.branches_replayed > 0
    assert [rollout.failure for rollout in rollouts] == [None] * 10


async def test_copies_that_no_branch_began_with_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_bridge.publishing.server.Desk", Counted)
    Counted.made = []
    async with connect(publish(DESK, control=True)) as toolset:
        engine = runner(toolset)
        engine.concurrency = 1
        jobs = [Job(id="r0", task=Task(prompt="go", id="t0"), seed=0)]
        one_more = anyio.Event()
        async with engine.stream(
            sampling=Sampling(max_tokens=10_000),
            branching=Branching(4, where=lambda rollout: [1]),
            on_rollout=lambda rollout: one_more.set(),
        ) as stream:
            stream.submit(jobs)
            await one_more.wait()
        assert engine.counts.not_begun + engine.counts.given_up + engine.counts.ended == 5
        assert engine.counts.ended < 5
        assert not Counted.made[0].named
