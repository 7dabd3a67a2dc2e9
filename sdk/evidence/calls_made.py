"""Whether the calls that a rollout's reward rests on are those that its ledger saw being made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

from mcp_bridge.ledger.lines import digest_arguments, digest_text

from ..rollouts.tree import parent_and_turn
from .canonical import digest

_NON_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def calls_not_made(line: Mapping[str, Any], *, kept: bool = False) -> list[str]:
    """What the ledger of a stored rollout does not show of its calls; none where its world kept no ledger. `kept`:
    `calls.jsonl` has calls of this rollout, so that its world kept one.

    A call counts as made where a ledger line has its id, its tool, the digest of its arguments, and the digest of the
    text that came back. Calls that did not parse were never sent and have no line.
    """
    ledger = line["ledger"]
    if not ledger and not kept:
        return []
    arguments = {one["key"]: one["arguments"] for one in ledger if one["arguments"]}
    made = Counter(
        (one["call"], one["tool"], arguments.get(one["key"], ""), one["result"])
        for one in ledger
        if one["event"] in ("answered", "refused")
    )
    faults = []
    for number, record in enumerate(line["calls"], start=1):
        call = record["call"]
        if call["error"] is not None:
            continue
        name = f"{_caller(line['id'], record['turn'])}/{call['id']}"
        result = digest_text(record["result"]["text"])
        # A stored `nan` is the text "nan"; the ledger saw the number.
        spelled = (call["arguments"], _with_non_finite(call["arguments"]))
        keys = [(name, call["name"], digest_arguments(one), result) for one in spelled]
        key = next((key for key in keys if made[key]), None)
        if key is None:
            faults.append(f"call {number} ({call['name']}): its ledger shows no such call with this result")
        else:
            made[key] -= 1
    return faults


def _caller(rollout: str, turn: int) -> str:
    """Who made the calls of a turn, counted from 1: a branch has those of its past from the rollout it left."""
    past = parent_and_turn(rollout)
    return past[0] if past is not None and turn <= past[1] else rollout


def _with_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_non_finite(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def lines_not_written(line: Mapping[str, Any], written: Set[str]) -> list[str]:
    """Which ledger lines of a stored rollout are not in `calls.jsonl`; `written`: the digests of its lines."""
    return [
        f"ledger line {number} ({one['event']} of {one['tool']}) is not in calls.jsonl"
        for number, one in enumerate(line["ledger"], start=1)
        if digest(one) not in written
    ]
