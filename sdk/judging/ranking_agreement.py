"""How far a ranking agrees with people: does it put what they call right above what they call wrong?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import anyio
from pydantic import BaseModel, ConfigDict

from ..errors import ConfigError, VerifierError
from ..evaluation.safe_text import visible
from ..records import Rollout
from .agreement import Labelled
from .group_verdicts import Ranked
from .ranking import Ranker

_SHOWN = 100


class RankingAgreement(BaseModel):
    """A ranking beside labels, over every pair of one right and one wrong rollout of a task. `print` it."""

    model_config = ConfigDict(frozen=True)

    tasks: int
    """Tasks with a right and a wrong example that were ranked."""
    above: int
    """Pairs with the right one above the wrong one."""
    below: int
    ties: int
    consistency: float | None
    """Kendall's tau between both orders of presentation, the mean of the tasks; see `Ranking`."""
    unscored: dict[str, str]
    """Why, by the task's id."""
    disagreements: list[str]

    @property
    def kappa(self) -> float | None:
        """Agreement beyond chance, (p - 1/2) / (1 - 1/2), with p the share of pairs in the right order and a tie as
        half of one: 1 where every right one stands above every wrong one, 0 for one that guesses or sees places only;
        None without a pair."""
        pairs = self.above + self.below + self.ties
        return (self.above - self.below) / pairs if pairs else None

    def __str__(self) -> str:
        pairs, kappa = self.above + self.below + self.ties, self.kappa
        lines = [
            f"tasks       {self.tasks} ranked, {len(self.unscored)} without a ranking",
            f"pairs       {pairs}: {self.above} in the right order, {self.below} in the wrong one, {self.ties} ties",
            "kappa       " + (f"{kappa:.2f}" if kappa is not None else "not defined: nothing was ranked"),
            "consistency " + (f"{self.consistency:.2f}" if self.consistency is not None else "-"),
        ]
        lines += ["", *self.disagreements] if self.disagreements else []
        lines += [f"no ranking for task {name!r}: {why}" for name, why in self.unscored.items()]
        return visible("\n".join(lines))


async def measure_ranking(
    ranking: Ranker | Ranked, examples: Sequence[Labelled], *, concurrency: int = 8
) -> RankingAgreement:
    """Rank the examples of each task and count pairs. What `ranked` has for gates takes no part: `measure_agreement`
    says how far those agree.

    Raises `ConfigError` where no task has both a right and a wrong example.
    """
    ranker = ranking.ranker if isinstance(ranking, Ranked) else ranking
    tasks: dict[str, list[Labelled]] = defaultdict(list)
    for number, (rollout, label) in enumerate(examples, 1):
        tasks[rollout.task.id].append((rollout.model_copy(update={"id": f"example {number}"}), label))
    both = {name: group for name, group in tasks.items() if len({label for _, label in group}) == 2}
    if not both:
        raise ConfigError(
            f"of {len(examples)} examples of {len(tasks)} tasks no right and no wrong one are of the same task; a "
            "ranking compares rollouts of one task, so label several of each"
        )
    limiter, found = anyio.CapacityLimiter(concurrency), _Found()

    async def one(name: str) -> None:
        async with limiter:
            await found.add(ranker, name, both[name])

    async with anyio.create_task_group() as group:
        for name in both:
            group.start_soon(one, name)
    return found.agreement()


class _Found:
    def __init__(self) -> None:
        self._counts = {"above": 0, "below": 0, "ties": 0}
        self._consistency: list[float] = []
        self._unscored: dict[str, str] = {}
        self._disagreements: list[str] = []

    async def add(self, ranker: Ranker, name: str, group: Sequence[Labelled]) -> None:
        try:
            ranking = await ranker.rank([rollout for rollout, _ in group])
        except VerifierError as error:
            self._unscored[name] = str(error)
            return
        self._consistency.append(ranking.consistency)
        for right in (rollout for rollout, label in group if label):
            for wrong in (rollout for rollout, label in group if not label):
                self._count(right, wrong, ranking.scores[right.id] - ranking.scores[wrong.id])

    def _count(self, right: Rollout, wrong: Rollout, difference: float) -> None:
        # Scores are sums of places, which rounding may keep from being equal.
        kind = "ties" if abs(difference) < 1e-9 else "above" if difference > 0 else "below"
        self._counts[kind] += 1
        if kind == "below":
            self._disagreements.append(
                f"{wrong.id}, labelled wrong, is above {right.id}, labelled right: "
                f"{' '.join(wrong.answer.split())[:_SHOWN]} | {' '.join(right.answer.split())[:_SHOWN]}"
            )

    def agreement(self) -> RankingAgreement:
        consistency = sum(self._consistency) / len(self._consistency) if self._consistency else None
        return RankingAgreement(
            tasks=len(self._consistency),
            **self._counts,
            consistency=consistency,
            unscored=self._unscored,
            disagreements=sorted(self._disagreements),
        )
