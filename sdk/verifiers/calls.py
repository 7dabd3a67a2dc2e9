"""Were the right calls made, and none of the wrong ones?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, VerifierError
from ..records import CallRecord, Rollout, Verdict
from .argument_patterns import holds_pattern
from .comparing import same_json, shortened


@dataclass(frozen=True, repr=False)
class RequiredCalls:
    """See `required_calls`."""

    ordered: bool = False
    only: bool = False
    forbid: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.forbid, str) or not all(isinstance(name, str) for name in self.forbid):
            raise ConfigError(f"required_calls: forbid is {self.forbid!r}; give names of tools: ('cancel_order',)")

    def __repr__(self) -> str:
        options = ["ordered=True"] * self.ordered + ["only=True"] * self.only
        options += [f"forbid={self.forbid!r}"] * bool(self.forbid)
        return f"required_calls({', '.join(options)})"

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if every gold call succeeded and no forbidden one was tried, 0 otherwise."""
        gold = _gold_calls(rollout)
        done = [record for record in rollout.calls if not record.result.is_error and record.call.error is None]
        missing, extra = _in_order(gold, done) if self.ordered else _in_any_order(gold, done)
        forbidden = self._forbidden(rollout)
        reasons = [f"missing: {_text(call['name'], call.get('arguments', {}))}" for call in missing]
        reasons += [f"forbidden: {_text(record.call.name, record.call.arguments)}" for record in forbidden]
        components = {
            "required": 1 - len(missing) / len(gold) if gold else 1.0,
            "no_forbidden": float(not forbidden),
        }
        if self.only:
            components["no_others"] = float(not extra)
            reasons += [f"not asked for: {_text(record.call.name, record.call.arguments)}" for record in extra]
        score = float(all(value == 1 for value in components.values()))
        return Verdict(
            score=score, components=components, explanation="; ".join(reasons) or f"all {len(gold)} required calls"
        )

    def _forbidden(self, rollout: Rollout) -> list[CallRecord]:
        """Forbidden calls that were tried; one that the tool refused was still tried."""
        named = rollout.task.expected.get("forbid", [])
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise VerifierError(
                f"task {rollout.task.id!r}: expected['forbid'] is {shortened(named)}; give a list of names of tools"
            )
        names = {*self.forbid, *named}
        return [record for record in rollout.calls if record.call.name in names]


def required_calls(*, ordered: bool = False, only: bool = False, forbid: Sequence[str] = ()) -> RequiredCalls:
    """A verifier: every call in `task.expected["calls"]` is among the calls that succeeded, with equal arguments.

    `expected["calls"]` is a list of `{"name": ..., "arguments": {...}}`; two equal ones need two calls.
    `ordered`: they must come in that order, others may stand between. `only`: no other call may have succeeded.
    `forbid`: names of tools that may not even be tried, together with `task.expected["forbid"]`.

    Raises `VerifierError` for a task without `expected["calls"]`, unless something is forbidden there, and for patterns
    of arguments, which `calls_match` reads.

    Example: `required_calls(forbid=("cancel_order",))`
    """
    return RequiredCalls(ordered=ordered, only=only, forbid=forbid if isinstance(forbid, str) else tuple(forbid))  # type: ignore[arg-type]


def _gold_calls(rollout: Rollout) -> list[Mapping[str, Any]]:
    expected = rollout.task.expected
    gold = expected.get("calls", [] if "forbid" in expected else None)
    form = "a list of {'name': ..., 'arguments': {...}}"
    if gold is None:
        raise VerifierError(
            f"task {rollout.task.id!r} expects {sorted(expected) or 'nothing'}; required_calls compares with "
            f"expected['calls'], {form}"
        )
    if not isinstance(gold, list):
        raise VerifierError(f"task {rollout.task.id!r}: expected['calls'] is {shortened(gold)}; it must be {form}")
    for call in gold:
        known = isinstance(call, Mapping) and "name" in call and set(call) <= {"name", "arguments"}
        if not known or not isinstance(call.get("arguments", {}), Mapping):
            raise VerifierError(
                f"task {rollout.task.id!r}: expected['calls'] holds {shortened(call)}; it must be {form}"
            )
        if holds_pattern(call.get("arguments", {})):
            raise VerifierError(
                f"task {rollout.task.id!r}: expected['calls'] holds {shortened(call)}, a pattern that no call is equal "
                "to; use calls_match(), which reads patterns"
            )
    return gold


def _same_call(gold: Mapping[str, Any], record: CallRecord) -> bool:
    return bool(gold["name"] == record.call.name) and same_json(dict(gold.get("arguments", {})), record.call.arguments)


def _in_any_order(
    gold: Sequence[Mapping[str, Any]], done: Sequence[CallRecord]
) -> tuple[list[Mapping[str, Any]], list[CallRecord]]:
    """The gold calls that were not made, and the calls made besides. Each call answers for one gold call."""
    left = list(done)
    missing = []
    for call in gold:
        match = next((place for place, record in enumerate(left) if _same_call(call, record)), None)
        if match is None:
            missing.append(call)
        else:
            left.pop(match)
    return missing, left


def _in_order(
    gold: Sequence[Mapping[str, Any]], done: Sequence[CallRecord]
) -> tuple[list[Mapping[str, Any]], list[CallRecord]]:
    """The same, where the gold calls must come one after the other."""
    waiting = list(gold)
    extra = []
    for record in done:
        if waiting and _same_call(waiting[0], record):
            waiting.pop(0)
        else:
            extra.append(record)
    return waiting, extra


def _text(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={shortened(value, 60)}' for key, value in arguments.items())})"
