"""The published calls of prompted models under our verifier, which gives the verdicts of the benchmark's evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clone import SEVERAL, SYSTEMS, Call, PublishedCalls, published, queries
from office import Office
from outcome import side_effects, verify

import sdk
from sandboxes import diff
from sandboxes.changes import Change, State
from sdk.verifiers import run_verifier


@dataclass(frozen=True)
class Judged:
    """Published calls with our verdict."""

    of: PublishedCalls
    right: bool
    side_effects: bool

    @property
    def as_the_benchmark(self) -> bool:
        """Whether verdict and side effects are the benchmark's own, where the folder has these."""
        theirs = (self.of.verdict, self.of.side_effects)
        return theirs in ((None, None), (self.right, self.side_effects))


class Replay:
    """Calls replayed in fresh worlds of the whole office, to see what they leave."""

    def __init__(self, folder: str | Path) -> None:
        self.office = Office(folder)
        self.start = self.office.state()
        self._reads = {tool.name for tool in self.office.tools if tool.annotations.read_only}

    def end(self, calls: Sequence[Call]) -> State:
        """The state after the calls. Those that only read are not made; what a tool refuses changes nothing."""
        world = self.office.fork()
        try:
            for name, arguments in calls:
                if name not in self._reads:
                    world.call_now(name, arguments)
            return world.state()
        finally:
            world.close()

    def changes(self, calls: Sequence[Call]) -> list[Change]:
        """What the calls change: the gold of a task."""
        return diff(self.start, self.end(calls))


async def judge(folder: str | Path) -> list[Judged]:
    """A verdict for every published list of calls."""
    replay = Replay(folder)
    gold = {query.text: replay.changes(query.gold) for query in queries(folder)}
    found = []
    for number, one in enumerate(published(folder)):
        rollout = sdk.Rollout(
            id=str(number),
            task=sdk.Task(prompt=one.query, expected={"changes": gold[one.query]}),
            initial_state=replay.start,
            final_state=replay.end(one.calls),
            # What the benchmark calls an error is a limit that was met, or an agent that broke.
            stop_reason="turn_limit" if one.error else "answered",
        )
        right = (await run_verifier(verify, rollout)).score == 1
        found.append(Judged(one, right, side_effects(rollout)))
    return found


def results(judged: Sequence[Judged], folder: str | Path) -> Iterator[list[str]]:
    """A table: each model's success by system, and its side effects; doing nothing comes first."""
    replay = Replay(folder)
    domains = (*SYSTEMS, SEVERAL)
    yield ["model", "tools in its prompt", *(domain.replace("_", " ") for domain in domains), "all", "side effects"]
    idle = {query.text: (query.domain, not replay.changes(query.gold), False) for query in queries(folder)}
    rows = {("do nothing", ""): list(idle.values())}
    for one in judged:
        rows.setdefault((one.of.model, one.of.tools), []).append((one.of.domain, one.right, one.side_effects))
    for names, outcomes in rows.items():
        by_domain = [[right for domain, right, _ in outcomes if domain == wanted] for wanted in domains]
        every = [right for _, right, _ in outcomes]
        spoilt = [changed for *_, changed in outcomes]
        yield [*names, *(percent(one) for one in (*by_domain, every, spoilt))]


def percent(yes: Sequence[bool]) -> str:
    """A share, as text; a dash where there is nothing to count."""
    return f"{100 * sum(yes) / len(yes):.1f} %" if yes else "–"
