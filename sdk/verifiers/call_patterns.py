"""Were the right calls made, where an argument may be right in more than one way?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import ConfigError, VerifierError
from ..records import CallRecord, Rollout, Verdict
from .argument_patterns import all_fit, fits, unmatched
from .comparing import shortened
from .pattern_words import call_in_words

Order = Literal["any", "in_order", "exact"]
_ORDERS = ("any", "in_order", "exact")
_FORM = "a list of {'name': ..., 'arguments': {...}}"


@dataclass(frozen=True, repr=False)
class CallsMatch:
    """See `calls_match`."""

    order: Order = "any"
    only: bool = False
    most_mistakes: int | None = None

    def __post_init__(self) -> None:
        if self.order not in _ORDERS:
            raise ConfigError(f"calls_match: order is {self.order!r}; choose one of {', '.join(_ORDERS)}")
        if self.most_mistakes is not None and self.most_mistakes < 0:
            raise ConfigError(f"calls_match: most_mistakes is {self.most_mistakes}; give 0 or more, or None for any")

    def __repr__(self) -> str:
        options = [f"order={self.order!r}"] * (self.order != "any") + ["only=True"] * self.only
        options += [f"most_mistakes={self.most_mistakes}"] * (self.most_mistakes is not None)
        return f"calls_match({', '.join(options)})"

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the calls that succeeded are as the task's patterns say, 0 otherwise, with what is wrong."""
        gold = _patterns(rollout, "calls")
        done = [record for record in rollout.calls if not record.result.is_error and record.call.error is None]
        missing, others = _paired(gold, done, self.order, _where(rollout, "calls"))
        forbidden = _forbidden(rollout)
        mistakes = len(rollout.calls) - len(done)
        components = {
            "required": 1 - len(missing) / len(gold) if gold else 1.0,
            "no_forbidden": float(not forbidden),
        }
        reasons = [f"missing: {_asked(gold[place])}" for place in missing]
        reasons += [f"forbidden: {_called(record)}" for record in forbidden]
        if self.only or self.order == "exact":
            components["no_others"] = float(not others)
            reasons += [f"not asked for: {_called(done[place])}" for place in others]
        if self.most_mistakes is not None:
            components["few_mistakes"] = float(mistakes <= self.most_mistakes)
            if mistakes > self.most_mistakes:
                reasons.append(f"{mistakes} calls failed, more than {self.most_mistakes}")
        score = float(all(value == 1 for value in components.values()))
        said = "; ".join(reasons) or f"all {len(gold)} required calls"
        return Verdict(score=score, components=components, explanation=said)


def calls_match(*, order: Order = "any", only: bool = False, most_mistakes: int | None = None) -> CallsMatch:
    """A verifier: for every pattern in `task.expected["calls"]` a call of its own succeeded.

    A pattern is `{"name": ..., "arguments": {...}}`. Arguments are equal values, or patterns such as
    `{"$near": 12.5, "within": 0.01}`; see `sdk.verifiers.argument_patterns.fits`. An argument that no pattern names
    must not be given. `order`: `any`; `in_order`, with others allowed between; `exact`, these calls and no others, in
    this order. `only`: no other call may have succeeded. `most_mistakes`: how many calls may have failed.

    `task.expected["forbid"]` lists what may not even be tried: names of tools, or patterns whose arguments need to name
    only what makes the call forbidden.

    `required_calls` asks for equal arguments; prefer it where they are known. Raises `VerifierError` for a task
    without calls, unless something is forbidden there.

    Example: `calls_match(order="in_order", most_mistakes=0)`
    """
    return CallsMatch(order=order, only=only, most_mistakes=most_mistakes)


def _patterns(rollout: Rollout, key: str) -> list[Mapping[str, Any]]:
    expected = rollout.task.expected
    if key not in expected and "forbid" not in expected:
        raise VerifierError(
            f"task {rollout.task.id!r} expects {sorted(expected) or 'nothing'}; calls_match compares with "
            f"expected['calls'], {_FORM}"
        )
    gold = expected.get(key, [])
    if not isinstance(gold, list):
        raise VerifierError(f"{_where(rollout, key)} is {shortened(gold)}; it must be {_FORM}")
    for call in gold:
        known = isinstance(call, Mapping) and isinstance(call.get("name"), str) and set(call) <= {"name", "arguments"}
        if not known or not isinstance(call.get("arguments", {}), Mapping):
            raise VerifierError(f"{_where(rollout, key)} holds {shortened(call)}; it must be {_FORM}")
    return gold


def _paired(
    gold: Sequence[Mapping[str, Any]], done: Sequence[CallRecord], order: Order, where: str
) -> tuple[list[int], list[int]]:
    """The places of patterns without a call, and of calls without a pattern."""

    def fit(pattern: Mapping[str, Any], record: CallRecord) -> bool:
        return bool(pattern["name"] == record.call.name) and all_fit(
            pattern.get("arguments", {}), record.call.arguments, where
        )

    if order == "any":
        return unmatched(list(gold), list(done), fit)
    # The first call that fits is always a good choice in a sequence: it leaves most to those that follow.
    place, others = 0, []
    for at, record in enumerate(done):
        if place < len(gold) and fit(gold[place], record):
            place += 1
        else:
            others.append(at)
    return list(range(place, len(gold))), others


def _forbidden(rollout: Rollout) -> list[CallRecord]:
    """Forbidden calls that were tried; one that the tool refused was still tried."""
    named = rollout.task.expected.get("forbid", [])
    where = _where(rollout, "forbid")
    if not isinstance(named, list):
        raise VerifierError(f"{where} is {shortened(named)}; it must be a list of names of tools, or {_FORM}")
    patterns = [{"name": one} if isinstance(one, str) else one for one in named]
    for pattern in patterns:
        if not isinstance(pattern, Mapping) or not isinstance(pattern.get("name"), str):
            raise VerifierError(f"{where} holds {shortened(pattern)}; give names of tools, or {_FORM}")
    return [record for record in rollout.calls if any(_is(pattern, record, where) for pattern in patterns)]


def _is(pattern: Mapping[str, Any], record: CallRecord, where: str) -> bool:
    given = record.call.arguments
    wrong = pattern.get("arguments", {}).items()
    return bool(pattern["name"] == record.call.name) and all(
        name in given and fits(inner, given[name], where) for name, inner in wrong
    )


def _where(rollout: Rollout, key: str) -> str:
    return f"task {rollout.task.id!r}: expected[{key!r}]"


def _asked(pattern: Mapping[str, Any]) -> str:
    return call_in_words(pattern["name"], pattern.get("arguments", {}), patterns=True)


def _called(record: CallRecord) -> str:
    return call_in_words(record.call.name, record.call.arguments, patterns=False)
