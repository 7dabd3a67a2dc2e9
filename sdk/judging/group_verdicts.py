"""`ranked`: what is right by its outcome, and among what is right, what a model puts first."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import ConfigError, VerifierError
from ..records import Rollout, Verdict
from ..verifiers.combining import checked_parts, joined, run_parts
from ..verifiers.verification import verifier_name
from ..verifiers.verifier import VerifierLike
from .judge_model import Spent
from .material import escaped, evidence, refused
from .ranking import MOST, Ranker, Ranking, kendall, scores_of

_ALONE = 0.5
"""What a rollout gets that nobody can be compared with: the mean of every ranking."""


@dataclass(frozen=True, repr=False)
class Ranked:
    """See `ranked`. A `sdk.verifiers.verifier.GroupVerifier`."""

    gates: tuple[VerifierLike, ...]
    ranker: Ranker
    weight: float

    most: ClassVar[int] = MOST

    def __repr__(self) -> str:
        return f"ranked({', '.join(map(verifier_name, self.gates))}, by={self.ranker!r}, weight={self.weight:g})"

    @property
    def spent(self) -> Spent:
        return self.ranker.spent

    async def close(self) -> None:
        """Stop a local model."""
        await self.ranker.close()

    async def verify(self, rollout: Rollout) -> Verdict:
        """1 where every gate scores 1 or more and the judge can be shown it (see `refused`), otherwise 0. Asks no
        model."""
        if (reason := refused(rollout)) is not None:
            return Verdict(score=0.0, explanation=reason)
        verdicts = await run_parts(self.gates, rollout)
        return joined(verdicts, float(all(verdict.score >= 1 for verdict in verdicts.values())))

    async def verify_group(self, rollouts: Sequence[Rollout]) -> Mapping[str, Verdict]:
        """The verdicts of those that are right, with their rank."""
        right = _right(rollouts)
        if not right:
            return {}
        if len(right) == 1:
            ranking = Ranking({right[0].id: _ALONE}, 1.0, {}, {right[0].id: (0, 0)})
        else:
            ranking = await self.ranker.rank(right)
        alone = {rollout.id: rollout.verdict for rollout in right if rollout.verdict is not None}
        return self._verdicts(right, alone, ranking)

    def again(self, rollouts: Sequence[Rollout], alone: Mapping[str, Verdict]) -> Mapping[str, Verdict]:
        """The verdicts that follow from the places that the model gave, as the recorded verdicts have them."""
        right = sorted((r for r in rollouts if r.id in alone and alone[r.id].score >= 1), key=lambda r: r.id)
        if not right:
            return {}
        places = {rollout.id: _recorded_places(rollout) for rollout in right}
        for order in (0, 1):
            if sorted(place[order] for place in places.values()) != list(range(len(right))):
                raise VerifierError(
                    f"the places that were recorded, {places}, are no order of the {len(right)} that are right"
                )
        if len(right) == 1:
            ranking = Ranking({right[0].id: _ALONE}, 1.0, {}, places)
        else:
            ranking = Ranking(scores_of(right, places), kendall(list(places.values())), {}, places)
        return self._verdicts(right, alone, ranking)

    def _verdicts(self, right: Sequence[Rollout], alone: Mapping[str, Verdict], ranking: Ranking) -> dict[str, Verdict]:
        digests = {rollout.id: hashlib.sha256(escaped(evidence(rollout)).encode()).hexdigest() for rollout in right}
        found = {}
        for rollout in right:
            own, rank, (forth, back) = alone[rollout.id], ranking.scores[rollout.id], ranking.places[rollout.id]
            figures = {"rank": rank, "rank.forth": float(forth), "rank.back": float(back)}
            figures |= {"rank.compared": float(len(right)), "rank.consistency": ranking.consistency}
            said = f"rank {rank:.2f}: place {forth + 1}, then {back + 1} of {len(right)}"
            found[rollout.id] = Verdict(
                score=own.score + self.weight * rank,
                components=own.components | figures,
                explanation=f"{own.explanation}\n{said}".strip(),
                turn_rewards=own.turn_rewards,
                rests_on={name: digest for name, digest in digests.items() if name != rollout.id},
            )
        return found


def ranked(*gates: VerifierLike, by: Ranker, weight: float = 0.5) -> Ranked:
    """A verifier of whole groups, for `sdk.train`: 1 where every gate scores 1 or more, and there `weight` times the
    rank on top; otherwise 0.

    The rank is that of `by` among the rollouts of the group that are right, from 0 to 1. What is wrong stays below
    everything that is right. Held-out tasks, probes and demonstrations are judged by the gates alone: a ranking says
    who is better, not who is right. A group that the judge fails on is unscored. `weight` is above 0 and at most 1.

    Example: `ranked(answer_match(), by=Ranker(("http://localhost:8001/v1", "large"), by="It needs fewer calls."))`
    """
    if not gates:
        raise ConfigError(
            "ranked: there is no gate; a ranking says who is better, not who is right, and held-out tasks need to "
            "know: give a verifier of the outcome, such as answer_match(), or a judge"
        )
    if not isinstance(by, Ranker):
        raise ConfigError(f"ranked: by is {by!r}; give a sdk.judging.Ranker")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1:
        raise ConfigError(f"ranked: weight is {weight!r}; give a number above 0, at most 1")
    return Ranked(checked_parts(gates, "ranked"), by, float(weight))


def _right(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """In the order of their ids: in whichever order they ended, the judge is asked the same, and its cache knows it."""
    return sorted((r for r in rollouts if r.verdict is not None and r.verdict.score >= 1), key=lambda r: r.id)


def _recorded_places(rollout: Rollout) -> tuple[int, int]:
    components: Mapping[str, Any] = rollout.verdict.components if rollout.verdict is not None else {}
    try:
        forth, back = components["rank.forth"], components["rank.back"]
    except KeyError as error:
        raise VerifierError(f"rollout {rollout.id!r} is right and was not ranked: its verdict has no {error}") from None
    if forth != int(forth) or back != int(back):
        raise VerifierError(f"rollout {rollout.id!r} has the places {forth} and {back}, which are no places")
    return int(forth), int(back)
