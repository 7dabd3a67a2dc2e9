"""The published calls of prompted models under our verifier, which gives the verdicts of the benchmark's evaluator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clone import SEVERAL, SYSTEMS, PublishedCalls, published, queries
from gold import Replay
from office_tasks import scenario_of, task_id
from outcome import side_effects, verify

import sdk
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


async def gold_lists(folder: str | Path) -> list[bool]:
    """Whether each gold list is right, in a world of its task's systems alone."""
    replay = Replay(folder)
    worlds = {scenario: Replay(folder, scenario) for scenario in {scenario_of(query) for query in queries(folder)}}
    found = []
    for query in queries(folder):
        world = worlds[scenario_of(query)]
        rollout = sdk.Rollout(
            id=query.text,
            task=sdk.Task(prompt=query.text, expected={"changes": replay.changes(query.gold)}),
            initial_state=world.start,
            final_state=world.end(query.gold),
        )
        found.append((await run_verifier(verify, rollout)).score == 1 and not side_effects(rollout))
    return found


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


def verdict_lines(judged: Sequence[Judged], folder: str | Path) -> dict[str, list[str]]:
    """Name of a model, such as `gpt-4-all` -> its verdicts by task, as `sdk.evaluate(verdicts=...)` reads them."""
    files: dict[str, list[str]] = {}

    def add(name: str, domain: str, text: str, right: bool, changed: bool) -> None:
        line = {"task": task_id(domain, text), "score": float(right), "components": {"side_effects": float(changed)}}
        files.setdefault(name, []).append(json.dumps(line))

    replay = Replay(folder)
    for query in queries(folder):
        add("do-nothing", query.domain, query.text, not replay.changes(query.gold), changed=False)
    for one in judged:
        add(f"{one.of.model}-{one.of.tools}", one.of.domain, one.of.query, one.right, one.side_effects)
    return files


def percent(yes: Sequence[bool]) -> str:
    """A share, as text; a dash where there is nothing to count."""
    return f"{100 * sum(yes) / len(yes):.1f} %" if yes else "–"
