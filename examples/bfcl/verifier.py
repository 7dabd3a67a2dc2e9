"""1 where the policy did in every turn what the user asked for, 0 otherwise. Nothing in between.

toolbake train examples/bfcl/mcp.json tasks.jsonl --verifier examples/bfcl/verifier.py:verify
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dataset import Call, all_entries
from worlds import BfclTwin

import sdk
from sdk.verifiers import extra_credit, thrift


@dataclass(frozen=True)
class Turn:
    """What the calls of one turn of the user came to."""

    state: Any
    results: tuple[str, ...]


def verify(rollout: sdk.Rollout) -> sdk.Verdict:
    """The reward: after each turn of the user that has gold calls, the public state of all APIs is the gold one, and
    every result of that turn's gold calls is among the results so far.

    That is what the package's own checker asks. The calls are played again in a fresh world, which must end as the
    rollout's did. Raises `sdk.VerifierError` where it does not. A task that ends with its first turn is judged there.
    """
    entry = all_entries()[rollout.task.id]
    turns, wanted = calls_by_turn(rollout), _turns(rollout.task)
    if len(turns) != wanted or rollout.stop_reason != "answered":
        where = f"turn {len(turns)} of {wanted}"
        return sdk.Verdict(score=0.0, explanation=f"it ended in {where}: {rollout.stop_reason}")
    played = list(play(entry.id, turns))
    _require_same_end(rollout, played[-1].state)
    problem = first_problem(entry.id, played, [bool(turn) for turn in turns])
    return sdk.Verdict(score=float(problem is None), explanation=problem or "every turn as asked")


def verify_the_end(rollout: sdk.Rollout) -> sdk.Verdict:
    """A looser reward, which looks at the end alone: the public state of all APIs is the gold one, and every gold call
    that does something is among the calls that succeeded."""
    entry = all_entries()[rollout.task.id]
    if rollout.final_state is None:
        raise sdk.VerifierError(
            f"rollout {rollout.id!r} has no final state; use the twin or the server of this example"
        )
    made = [_plain(one.call.name, one.call.arguments) for one in rollout.calls if not one.result.is_error]
    missing = []
    turns = _turns(rollout.task)
    for call in _gold_calls_that_succeed(entry.id, turns):
        if call in made:
            made.remove(call)
        else:
            missing.append(call["name"])
    if missing:
        return sdk.Verdict(score=0.0, explanation=f"calls that are missing: {', '.join(missing)}")
    same = _apis(rollout.final_state) == gold_turns(entry.id)[turns - 1].state
    return sdk.Verdict(score=float(same), explanation="the end is as asked" if same else "another state at the end")


verify_few_calls = extra_credit(verify, {thrift(calls=12): 0.2})
"""The reward, and where it is 1 up to 0.2 more: the fewer calls, the more. Without it, calls too many that only read
cost nothing, and a policy learns to go on until a limit."""


def first_problem(entry_id: str, played: Sequence[Turn], called: Sequence[bool]) -> str | None:
    """Where `played`, some first turns or all, leaves the gold way, or None. `called`: whether there was a call in each
    turn."""
    results: list[str] = []
    turns = len(played)
    for number, (mine, gold, calls) in enumerate(
        zip(played, gold_turns(entry_id)[:turns], all_entries()[entry_id].gold[:turns], strict=True)
    ):
        results += mine.results
        if not calls:
            continue  # nothing can be done in this turn; what was done shows in the next
        if not called[number]:
            return f"turn {number + 1}: no call at all"
        if mine.state != gold.state:
            wrong = [name for name in gold.state if mine.state.get(name) != gold.state[name]]
            return f"turn {number + 1}: another state of {', '.join(wrong)}"
        left = list(results)
        for result in gold.results:
            if result not in left:
                return f"turn {number + 1}: a result is missing: {result[:200]}"
            left.remove(result)
    return None


def play(entry_id: str, turns: Sequence[Sequence[Call]]) -> Iterator[Turn]:
    """Call after call in a fresh world of an entry."""
    world = _origin().prepare({"scenario": entry_id})
    for calls in turns:
        results = tuple(world.call_now(call["name"], call["arguments"]).text for call in calls)
        yield Turn(_apis(world.state()), results)
    world.close()


@cache
def gold_turns(entry_id: str) -> tuple[Turn, ...]:
    """What the gold calls come to."""
    return tuple(play(entry_id, all_entries()[entry_id].gold))


def calls_by_turn(rollout: sdk.Rollout) -> list[list[Call]]:
    """The calls that reached the world, for each time the user spoke."""
    records = iter(rollout.calls)
    turns: list[list[Call]] = []
    for message in rollout.messages:
        if message.role == "user":
            turns.append([])
        for call in message.tool_calls:
            record = next(records, None)
            if record is None:
                break  # the rollout ended before the call was made
            if record.call.id != call.id:
                raise sdk.VerifierError(f"rollout {rollout.id!r}: call {call.id!r} is not where its record is")
            if record.call.error is None:
                turns[-1].append({"name": record.call.name, "arguments": record.call.arguments})
    return turns


@cache
def _origin() -> BfclTwin:
    return BfclTwin()


@cache
def _gold_calls_that_succeed(entry_id: str, turns: int) -> tuple[Call, ...]:
    world = _origin().prepare({"scenario": entry_id})
    calls = [call for turn in all_entries()[entry_id].gold[:turns] for call in turn]
    good = [call for call in calls if not world.call_now(call["name"], call["arguments"]).is_error]
    world.close()
    return tuple(_plain(call["name"], call["arguments"]) for call in good)


def _turns(task: sdk.Task) -> int:
    """How often the user speaks."""
    return 1 + len(task.later_turns)


def _plain(name: str, arguments: dict[str, Any]) -> Call:
    return {"name": name, "arguments": arguments}


def _apis(state: dict[str, Any]) -> dict[str, Any]:
    return {name: table for name, table in state.items() if name != "clock"}


def _require_same_end(rollout: sdk.Rollout, state: Any) -> None:
    if rollout.final_state is not None and _apis(rollout.final_state) != state:
        raise sdk.VerifierError(
            f"rollout {rollout.id!r} ended in another state than its calls lead to when they are played again"
        )
