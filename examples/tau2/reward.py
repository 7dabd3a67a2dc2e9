"""1 where all is as the package's task asks, 0 otherwise. Nothing in between.

toolbake train examples/tau2/mcp.json tasks.jsonl --verifier examples/tau2/reward.py:verify
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache, partial
from math import prod

from domain_twin import Tau2Twin
from domains import Call, gold_calls, package_tasks

import sdk


def verify(rollout: sdk.Rollout) -> sdk.Verdict:
    """The reward: the product of the parts in the reward basis of the package's task; see `reward_parts`.

    A rollout that was cut off is 0, as the package's own. The calls are made again in a fresh world, which must end as
    the rollout's did. Raises `sdk.VerifierError` where it does not.
    """
    domain, task_id = rollout.task.tags["domain"], rollout.task.setup["scenario"]
    if rollout.stop_reason != "answered":
        return sdk.Verdict(score=0.0, explanation=f"it ended early: {rollout.stop_reason}")
    records = [*rollout.calls, *(call for turn in rollout.user_turns for call in turn.calls)]
    records = sorted((one for one in records if one.call.error is None), key=lambda record: record.turn)
    calls = [Call(name=one.call.name, arguments=one.call.arguments) for one in records]
    reached = [call for call, one in zip(calls, records, strict=True) if one.result.error_kind != "unknown_tool"]
    world = play(domain, task_id, reached)
    if rollout.final_state is not None and rollout.final_state != world.state():
        raise sdk.VerifierError(
            f"rollout {rollout.id!r} ended in another state than its calls lead to when they are made again"
        )
    said = [one.content for one in rollout.messages if one.role == "assistant"]
    parts = reward_parts(task_id, world, calls, said)
    wrong = ", ".join(name for name, value in parts.items() if not value)
    return sdk.Verdict(score=prod(parts.values()), components=parts, explanation=wrong and f"not as asked: {wrong}")


def reward_parts(task_id: str, world: Tau2Twin, calls: Sequence[Call], said: Sequence[str]) -> dict[str, float]:
    """Each part of the task's reward basis, 1.0 or 0.0.

    `world`: as the calls left it. `calls`: of both sides, refused ones among them. `said`: the agent's texts.

    - `DB`: the tables are as the gold actions leave them.
    - `ENV_ASSERTION`: the task's assertions hold in the world.
    - `ACTION`: every gold action is among the calls.
    - `COMMUNICATE`: every text of the task's `communicate_info` stands in one of the agent's, commas and case aside.

    Raises `KeyError` for `NL_ASSERTION`, which takes a model to judge. No task's reward rests on one.
    """
    criteria = package_tasks(world.domain)[task_id].evaluation_criteria
    texts = [text.lower().replace(",", "") for text in said]
    holds = partial(world.environment().run_env_assertion, raise_assertion_error=False)
    parts = {
        "DB": lambda: tables(world) == _gold_tables(world.domain, task_id),
        "ENV_ASSERTION": lambda: all(map(holds, criteria.env_assertions or ())),
        "ACTION": lambda: all(any(map(one.compare_with_tool_call, calls)) for one in criteria.actions or ()),
        "COMMUNICATE": lambda: all(
            any(told.lower() in text for text in texts) for told in criteria.communicate_info or ()
        ),
    }
    return {basis.value: float(parts[basis.value]()) for basis in criteria.reward_basis}


def play(domain: str, task_id: str, calls: Iterable[Call]) -> Tau2Twin:
    """The world of a task after some calls."""
    world = _origin(domain).prepare({"scenario": task_id})
    for call in calls:
        world.call_now(call.name, call.arguments)
    return world


@cache
def _origin(domain: str) -> Tau2Twin:
    return Tau2Twin(domain)


@cache
def _gold_tables(domain: str, task_id: str) -> str:
    return tables(play(domain, task_id, gold_calls(package_tasks(domain)[task_id])))


def tables(world: Tau2Twin) -> str:
    """What is not as in the beginning, as a text that two worlds share where the package's hashes are equal."""
    # As text: 1 and 1.0 are two values to the package.
    return json.dumps({name: rows for name, rows in world.state().items() if name != "clock"}, sort_keys=True)
