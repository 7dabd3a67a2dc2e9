"""Several verifiers as one, with the parts kept visible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ..records import Rollout, Verdict
from .protocol import VerifierLike, judges_groups
from .running import check_verifier, run_verifier, verifier_name

_RIGHT = 1.0


@dataclass(frozen=True, repr=False)
class AllOf:
    """See `all_of`."""

    verifiers: tuple[VerifierLike, ...]

    def __repr__(self) -> str:
        return f"all_of({', '.join(map(verifier_name, self.verifiers))})"

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts(self.verifiers, rollout)
        return joined(verdicts, float(all(verdict.score >= _RIGHT for verdict in verdicts.values())))


@dataclass(frozen=True, repr=False)
class AnyOf:
    """See `any_of`."""

    verifiers: tuple[VerifierLike, ...]

    def __repr__(self) -> str:
        return f"any_of({', '.join(map(verifier_name, self.verifiers))})"

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts(self.verifiers, rollout)
        return joined(verdicts, float(any(verdict.score >= _RIGHT for verdict in verdicts.values())))


@dataclass(frozen=True, repr=False)
class Weighted:
    """See `weighted`."""

    verifiers: tuple[VerifierLike, ...]
    weights: tuple[float, ...]

    def __repr__(self) -> str:
        parts = zip(self.verifiers, self.weights, strict=True)
        return f"weighted({{{', '.join(f'{verifier_name(verifier)}: {weight}' for verifier, weight in parts)}}})"

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts(self.verifiers, rollout)
        pairs = zip(self.weights, verdicts.values(), strict=True)
        return joined(verdicts, math.fsum(weight * verdict.score for weight, verdict in pairs), weights=self.weights)


@dataclass(frozen=True, repr=False)
class Gated:
    """See `gated`."""

    gates: tuple[VerifierLike, ...]
    then: VerifierLike

    def __repr__(self) -> str:
        return f"gated({', '.join(map(verifier_name, self.gates))}, then={verifier_name(self.then)})"

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts(self.gates, rollout)
        if any(verdict.score < _RIGHT for verdict in verdicts.values()):
            return joined(verdicts, 0.0)
        verdicts = await run_parts((self.then,), rollout, before=verdicts)
        return joined(verdicts, list(verdicts.values())[-1].score)


@dataclass(frozen=True, repr=False)
class Watched:
    """See `watched`."""

    counts: VerifierLike
    watchers: tuple[VerifierLike, ...]

    def __repr__(self) -> str:
        return f"watched({', '.join(map(verifier_name, (self.counts, *self.watchers)))})"

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts((self.counts, *self.watchers), rollout)
        counts, *watchers = verdicts.values()
        return joined(verdicts, counts.score, weights=[1.0] + [0.0] * len(watchers))


def all_of(*verifiers: VerifierLike) -> AllOf:
    """A verifier: 1 only if every one of them scores 1 or more, otherwise 0.

    This gate is the reward to begin with: it gives nothing for half an answer, so that nothing is gained by faking
    one half. The score of each part is among the verdict's components. All parts run, also after one has failed.

    Example: `all_of(final_state(), answer_match())`
    """
    return AllOf(checked_parts(verifiers, "all_of"))


def any_of(*verifiers: VerifierLike) -> AnyOf:
    """A verifier: 1 if at least one of them scores 1 or more, otherwise 0.

    Example: `any_of(required_calls(), answer_match())`
    """
    return AnyOf(checked_parts(verifiers, "any_of"))


def weighted(weights: Mapping[Any, float]) -> Weighted:
    """A verifier: the sum of weight times score. The weights are taken as they are, negative ones as penalties.

    Partial credit invites policies that collect the easy part; prefer `all_of` unless nothing is learned with it.

    Example: `weighted({final_state(): 0.7, answer_match(): 0.3})`
    """
    if not isinstance(weights, Mapping):
        raise ConfigError(f"weighted: {weights!r} is no mapping; give {{verifier: weight, ...}}")
    for verifier, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError(f"weighted: the weight of {verifier_name(verifier)} is {weight!r}; give a finite number")
    return Weighted(checked_parts(tuple(weights), "weighted"), tuple(map(float, weights.values())))


def gated(*gates: VerifierLike, then: VerifierLike) -> Gated:
    """A verifier: the score of `then` where every gate scores 1 or more, otherwise 0.

    `then` does not run where a gate is closed: put what costs nothing into the gates, and a judge behind them.

    Example: `gated(final_state(), required_calls(), then=judge(endpoint, rubric=["The answer is polite."]))`
    """
    return Gated(checked_parts(gates, "gated"), checked_parts((then,), "gated")[0])


def watched(counts: VerifierLike, *watchers: VerifierLike) -> Watched:
    """A verifier: the score of `counts`. The `watchers` run beside it, earn nothing, and are kept as components.

    Training that optimises one verdict is seen in another that it does not optimise: where the reward rises and a
    watcher's component does not, the alarms of `sdk.alarms` say so.

    Example: `watched(answer_match(), final_state())`
    """
    return Watched(checked_parts((counts,), "watched")[0], checked_parts(watchers, "watched"))


def checked_parts(verifiers: tuple[Any, ...], name: str) -> tuple[VerifierLike, ...]:
    """The parts of a combination called `name`. Raises `ConfigError` for none, and for what is no verifier."""
    if not verifiers:
        raise ConfigError(f"{name}() combines nothing; give at least one verifier")
    for verifier in verifiers:
        check_verifier(verifier)
        if judges_groups(verifier):
            raise ConfigError(
                f"{name}: {verifier_name(verifier)} judges whole groups, which no combination can; give it to "
                "sdk.train itself, and what it is combined with as its gates"
            )
    return verifiers


async def run_parts(
    verifiers: Sequence[VerifierLike], rollout: Rollout, *, before: Mapping[str, Verdict] | None = None
) -> dict[str, Verdict]:
    """The verdicts by short name, after those in `before`; equal names get a number. The time limit is the outer
    verifier's."""
    verdicts: dict[str, Verdict] = dict(before or {})
    for verifier in verifiers:
        short = name = verifier_name(verifier).partition("(")[0]
        while name in verdicts:
            name = f"{short}#{int(name.removeprefix(short).lstrip('#') or 1) + 1}"
        verdicts[name] = await run_verifier(verifier, rollout, timeout_s=None)
    return verdicts


def joined(verdicts: Mapping[str, Verdict], score: float, *, weights: Sequence[float] | None = None) -> Verdict:
    """Components `part` and `part.component`; the explanation has one line for each part.

    The rewards by turn are the sums of those that the parts give, each times its weight (1 where None).
    """
    components: dict[str, float] = {}
    for name, verdict in verdicts.items():
        components[name] = verdict.score
        components |= {f"{name}.{inner}": value for inner, value in verdict.components.items()}
    lines = [f"{name} {verdict.score:g}: {verdict.explanation or '-'}" for name, verdict in verdicts.items()]
    explanation = "\n".join(lines)
    return Verdict(score=score, components=components, explanation=explanation, turn_rewards=_summed(verdicts, weights))


def _summed(verdicts: Mapping[str, Verdict], weights: Sequence[float] | None) -> list[float] | None:
    pairs = zip(verdicts.values(), weights or [1.0] * len(verdicts), strict=True)
    # A watcher earns nothing, so that its rewards alone are none.
    parts = [(verdict.turn_rewards, weight) for verdict, weight in pairs if weight]
    given = [[weight * one for one in rewards] for rewards, weight in parts if rewards is not None]
    return [math.fsum(rewards) for rewards in zip(*given, strict=True)] if given else None
