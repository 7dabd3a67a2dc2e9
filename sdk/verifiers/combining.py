"""Combinations: several verifiers as one, with the parts as components of its verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ..errors import ConfigError, VerifierError, require_number
from ..records import ROUNDING, Rollout, Verdict, reaches
from .verifier import ReadyMade, VerifierLike, check_verifier, judges_groups, run_verifier, verifier_name


@dataclass(init=False, eq=False, repr=False)
class _Combination(ReadyMade):
    """Verifiers that all run."""

    verifiers: tuple[VerifierLike, ...]

    def __init__(self, *verifiers: VerifierLike) -> None:
        self.verifiers = checked_parts(verifiers, type(self).__name__)

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts(self.verifiers, rollout)
        return joined(verdicts, self._score(verdicts))

    def _score(self, verdicts: Mapping[str, Verdict]) -> float:
        raise NotImplementedError


class all_of(_Combination):
    """A verifier: 1 if every one of `verifiers` scores 1 or more, otherwise 0.

    Begin with this reward: it gives nothing for half an answer, so that a policy gains nothing by faking one half. The
    score of each part is among the verdict's components. All parts run, also after one has failed.

    Example: `all_of(final_state(), answer_match())`
    """

    def _score(self, verdicts: Mapping[str, Verdict]) -> float:
        return float(all(reaches(verdict.score) for verdict in verdicts.values()))


class any_of(_Combination):
    """A verifier: 1 if at least one of `verifiers` scores 1 or more, otherwise 0.

    Example: `any_of(required_calls(), answer_match())`
    """

    def _score(self, verdicts: Mapping[str, Verdict]) -> float:
        return float(any(reaches(verdict.score) for verdict in verdicts.values()))


@dataclass(init=False, eq=False, repr=False)
class weighted(ReadyMade):
    """A verifier: the sum of weight times score. The weights are taken as they are, negative ones as penalties.

    Partial credit invites policies that collect the easy part; prefer `all_of` unless nothing is learned with it.

    Example: `weighted({final_state(): 0.7, answer_match(): 0.3})`
    """

    verifiers: tuple[VerifierLike, ...]
    weights: tuple[float, ...]

    def __init__(self, weights: Mapping[Any, float]) -> None:
        if not isinstance(weights, Mapping):
            raise ConfigError(f"weighted: {weights!r} is not a mapping; give {{verifier: weight, ...}}")
        for verifier, weight in weights.items():
            require_number(f"weighted: the weight of {verifier_name(verifier)}", weight)
        self.verifiers = checked_parts(tuple(weights), "weighted")
        self.weights = tuple(map(float, weights.values()))

    def __repr__(self) -> str:
        return f"weighted({_shown(self.verifiers, self.weights)})"

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts(self.verifiers, rollout)
        return joined(verdicts, _sum(self.weights, verdicts), weights=self.weights)


@dataclass(init=False, eq=False, repr=False)
class gated(ReadyMade):
    """A verifier: the score of `then` where every gate scores 1 or more, otherwise 0.

    `then` does not run where a gate is closed: put what costs nothing into the gates, and a judge behind them.

    Example: `gated(final_state(), required_calls(), then=judge(endpoint, rubric=["The answer is polite."]))`
    """

    gates: tuple[VerifierLike, ...]
    _: KW_ONLY
    then: VerifierLike

    def __init__(self, *gates: VerifierLike, then: VerifierLike) -> None:
        self.gates = checked_parts(gates, "gated")
        (self.then,) = checked_parts((then,), "gated")

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts(self.gates, rollout)
        if not all(reaches(verdict.score) for verdict in verdicts.values()):
            return joined(verdicts, 0.0)
        verdicts = await run_parts((self.then,), rollout, before=verdicts)
        return joined(verdicts, list(verdicts.values())[-1].score)


@dataclass(init=False, eq=False, repr=False)
class watched(ReadyMade):
    """A verifier: the score of `counts`. The `watchers` run beside it, earn nothing, and are kept as components.

    A watcher shows what training does not optimise: where the reward rises and a watcher's component does not, the
    alarms of `sdk.alarms` report it.

    Example: `watched(answer_match(), final_state())`
    """

    counts: VerifierLike
    watchers: tuple[VerifierLike, ...]

    def __init__(self, counts: VerifierLike, *watchers: VerifierLike) -> None:
        (self.counts,) = checked_parts((counts,), "watched")
        self.watchers = checked_parts(watchers, "watched")

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts((self.counts, *self.watchers), rollout)
        counts, *watchers = verdicts.values()
        return joined(verdicts, counts.score, weights=[1.0] + [0.0] * len(watchers))


# ---------------------------------------------------------------------------------------------------------------------
# Order among rewards: lexicographic order, and extra credit that never outweighs a right outcome.

_MOST_STEPS = 2**48
"""Steps that a float distinguishes with room to spare; its significand has 53 bits."""
_MOST_EXTRA = 0.5


@dataclass(init=False, eq=False, repr=False)
class lexicographic(_Combination):
    """A verifier: the first decides; the second breaks the first's ties, the third the second's, and so on.

    Each part must score in [0, 1] and is rounded down to `levels` steps. The score is at least 1 exactly where the
    first part is 1, and below 1 + 1/`levels`: the first part alone decides what a success is.

    GRPO divides by the group's spread unless `grpo.scale_rewards` is "none": in a group whose first parts are equal,
    the tie-breaker then counts in full.

    Raises `ConfigError` where there are more steps than a float distinguishes.

    Example: `lexicographic(answer_match(), thrift(calls=8))`
    """

    _: KW_ONLY
    levels: int

    def __init__(self, *verifiers: VerifierLike, levels: int = 10) -> None:
        super().__init__(*verifiers)
        require_number("lexicographic: levels", levels, least=1, whole=True)
        if (levels + 1) ** len(verifiers) > _MOST_STEPS:
            raise ConfigError(
                f"lexicographic: {len(verifiers)} parts of {levels} levels are more steps than one number tells apart; "
                "give fewer levels or parts"
            )
        self.levels = levels

    def _score(self, verdicts: Mapping[str, Verdict]) -> float:
        for name, verdict in verdicts.items():
            _require_share(name, verdict.score, "lexicographic")
        # Whole numbers to the end, so that no rounding can change the order; a sum that is 1 but for its rounding is 1.
        base = self.levels + 1
        total = 0
        for verdict in verdicts.values():
            total = total * base + math.floor(min(1.0, max(0.0, verdict.score)) * self.levels + 1e-9)
        return float(total / (self.levels * base ** (len(verdicts) - 1)))


@dataclass(init=False, eq=False, repr=False)
class extra_credit(ReadyMade):
    """A verifier: the score of `right`; where that is 1, plus the sum of weight times score of the `extras`.

    A wrong rollout gets no extra, so it stays below every right one, whatever it saved. Extras score in [0, 1]; the
    weights are above 0, and their sum E is at most 0.5. A policy that trades right answers for savings loses reward as
    soon as it gives up a share of E/(1 + E) of its right answers: 9 % where E is 0.1.

    Example: `extra_credit(all_of(final_state(), answer_match()), {thrift(turns=8, tokens=2048): 0.1})`
    """

    right: VerifierLike
    extras: tuple[VerifierLike, ...]
    weights: tuple[float, ...]

    def __init__(self, right: VerifierLike, extras: Mapping[Any, float]) -> None:
        if not isinstance(extras, Mapping):
            raise ConfigError(f"extra_credit: {extras!r} is not a mapping; give {{verifier: weight, ...}}")
        for extra, weight in extras.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= _MOST_EXTRA:
                raise ConfigError(
                    f"extra_credit: the weight of {verifier_name(extra)} is {weight!r}; give a number above 0 and at "
                    f"most {_MOST_EXTRA}, such as 0.1"
                )
        if math.fsum(extras.values()) > _MOST_EXTRA:
            raise ConfigError(
                f"extra_credit: the weights add up to {math.fsum(extras.values()):g}; extra credit is small, at "
                f"most {_MOST_EXTRA:g} in all"
            )
        (self.right,) = checked_parts((right,), "extra_credit")
        self.extras = checked_parts(tuple(extras), "extra_credit")
        self.weights = tuple(map(float, extras.values()))

    def __repr__(self) -> str:
        return f"extra_credit({verifier_name(self.right)}, {_shown(self.extras, self.weights)})"

    async def verify(self, rollout: Rollout) -> Verdict:
        verdicts = await run_parts((self.right,), rollout)
        (name, first), *_ = verdicts.items()
        if first.score > 1 + ROUNDING:
            raise VerifierError(
                f"extra_credit: {name} scored {first.score:g}, more than 1, so that the extra could outweigh a part of "
                "it; give a verifier whose scores are at most 1"
            )
        if not reaches(first.score):
            return joined(verdicts, first.score)
        verdicts = await run_parts(self.extras, rollout, before=verdicts)
        earned = dict(list(verdicts.items())[1:])
        for extra, verdict in earned.items():
            _require_share(extra, verdict.score, "extra_credit")
        return joined(verdicts, 1 + _sum(self.weights, earned))


def _shown(verifiers: Sequence[VerifierLike], weights: Sequence[float]) -> str:
    pairs = zip(verifiers, weights, strict=True)
    return f"{{{', '.join(f'{verifier_name(verifier)}: {weight}' for verifier, weight in pairs)}}}"


def _sum(weights: Sequence[float], verdicts: Mapping[str, Verdict]) -> float:
    return math.fsum(weight * verdict.score for weight, verdict in zip(weights, verdicts.values(), strict=True))


def _require_share(name: str, score: float, where: str) -> None:
    if not -ROUNDING <= score <= 1 + ROUNDING:
        raise VerifierError(f"{where}: {name} scored {score:g}; a part must score from 0 to 1")


@dataclass(eq=False, repr=False, kw_only=True)
class thrift(ReadyMade):
    """A verifier: how little the rollout used, from 0 to 1; the mean over the arguments that are given.

    Use it in `extra_credit` and in later places of `lexicographic`: alone it rewards doing nothing. Each argument is
    the amount that earns nothing: assistant messages (`turns`), tool calls, mistaken ones included (`calls`), sampled
    tokens (`tokens`), wall time of the rollout (`seconds`, which depends on the machine as much as on the policy).

    Example: `extra_credit(answer_match(), {thrift(turns=8, calls=16): 0.1})`
    """

    turns: int | None = None
    calls: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not self._limits():
            raise ConfigError("thrift() measures nothing; give at least one of turns, calls, tokens, seconds")
        for name, most in self._limits().items():
            if isinstance(most, bool) or not math.isfinite(most) or most <= 0:
                raise ConfigError(f"thrift: {name} is {most!r}; give the amount above 0 at which nothing is earned")

    def verify(self, rollout: Rollout) -> Verdict:
        """From 0 (at or above every limit) to 1 (nothing used), with a component for each limit."""
        used = {
            "turns": rollout.turns,
            "calls": len(rollout.calls),
            "tokens": rollout.sampled_tokens,
            "seconds": rollout.duration_s,
        }
        limits = self._limits()
        saved = {name: max(0.0, 1 - used[name] / most) for name, most in limits.items()}
        shown = ", ".join(f"{used[name]:g} of {most:g} {name}" for name, most in limits.items())
        return Verdict(score=math.fsum(saved.values()) / len(saved), components=saved, explanation=shown)

    def _limits(self) -> dict[str, float]:
        return {name: most for name, most in vars(self).items() if most is not None}


# ---------------------------------------------------------------------------------------------------------------------


def checked_parts(verifiers: tuple[Any, ...], name: str) -> tuple[VerifierLike, ...]:
    """The parts of a combination called `name`. Raises `ConfigError` without parts, and for what cannot be one."""
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
    """The verdicts by short name, after those in `before`; equal names get a number. The outer verifier's time limit
    holds for all of them."""
    verdicts: dict[str, Verdict] = dict(before or {})
    for verifier in verifiers:
        short = name = verifier_name(verifier).partition("(")[0]
        while name in verdicts:
            name = f"{short}#{int(name.removeprefix(short).lstrip('#') or 1) + 1}"
        verdicts[name] = await run_verifier(verifier, rollout, timeout_s=None)
    return verdicts


def joined(verdicts: Mapping[str, Verdict], score: float, *, weights: Sequence[float] | None = None) -> Verdict:
    """One verdict with the components `part` and `part.component`, and a line of explanation for each part.

    Its rewards by turn are the sums of those of the parts, each times its weight (1 where None).
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
    # A watcher earns nothing: with only its rewards by turn, the combination has none.
    parts = [(verdict.turn_rewards, weight) for verdict, weight in pairs if weight]
    given = [[weight * one for one in rewards] for rewards, weight in parts if rewards is not None]
    return [math.fsum(rewards) for rewards in zip(*given, strict=True)] if given else None
