"""Agreement of a judge or a ranking with people's labels, measured before it earns anybody a reward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ValidationError

from mcp_bridge.safe_text import visible

from ..errors import ConfigError, ToolbakeError, VerifierError, require_number, wrong_fields
from ..evaluation.conditions import is_success
from ..evaluation.statistics import Interval, wilson
from ..records import Rollout, Task, reaches
from ..tasks.task_files import read_json_lines
from ..verifiers import VerifierLike, run_verifier
from ..worker_pool import work_through
from .kappa import Agreement, on_kappas_scale, require_above_chance
from .ranking import Ranked, Ranker, Ranking
from .verdicts import Judge

Labelled = tuple[Rollout, bool]


def labelled_examples(path: Path | str) -> list[Labelled]:
    """Rollouts with labels, from a JSONL file.

    Each line is `{"label": true, "rollout": {...}}`, with a rollout as run folders hold it, or `{"label": false,
    "prompt": ..., "answer": ..., "expected": {...}}`. The labels that `toolbake view` exports are read, too (`good`,
    `bad`); what is labelled `unsure` is not an example. Raises `ConfigError` that names the line.
    """
    path = Path(path)
    try:
        rows = list(read_json_lines(path))
    except ConfigError as error:
        raise ConfigError(f"{error}; examples are a .jsonl file, each line {_FORM}") from error
    read = [_example(row, where) for row, where in rows]
    found = [example for example in read if example is not None]
    if read and not found:
        raise ConfigError(f"examples {str(path)!r}: all {len(read)} are labelled unsure; label some good or bad")
    if not found:
        raise ConfigError(f"examples {str(path)!r} holds none; give a line of JSON for each")
    return found


_FORM = '{"label": true, "rollout": {...}} or {"label": true, "prompt": ..., "answer": ..., "expected": {...}}'
_LABELS = {"good": True, "bad": False}


def _example(row: Any, where: str) -> Labelled | None:
    """What a line holds; None where somebody was unsure, which no judge can be held to."""
    try:
        label = row.get("label") if isinstance(row, dict) else None
        if label == "unsure":
            return None
        label = _LABELS.get(label) if isinstance(label, str) else label
        if not isinstance(label, bool):
            raise ValueError("it has no label that is true or false, good or bad")
        if "rollout" in row:
            return Rollout.model_validate(row["rollout"]), label
        if unknown := sorted(set(row) - {"label", "prompt", "answer", "expected"}):
            raise ValueError(f"there is no field {unknown[0]!r}")
        task = Task(prompt=row["prompt"], expected=row.get("expected", {}))
        return Rollout(id=where, task=task, answer=row["answer"]), label
    except KeyError as error:
        raise ConfigError(f"{where}: {error.args[0]} is missing; a line is {_FORM}") from error
    except ValidationError as error:
        raise ConfigError(f"{where}: {wrong_fields(error, 'rollout')}; a line is {_FORM}") from error
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; a line is {_FORM}") from error


async def measure_agreement(
    verifier: VerifierLike, examples: Sequence[Labelled], *, threshold: float = 1.0, concurrency: int = 8
) -> Agreement:
    """Judge every example and count. Any verifier can be measured; a `Judge` with a cache keeps what was measured,
    which `min_kappa` asks for. Of one that judges groups it measures what it says of each rollout alone: of `ranked`
    the gates; `measure_ranking` measures the rest. Raises `ConfigError` for a threshold that is not a number."""
    require_number("threshold", threshold)
    judged: list[bool | str] = [""] * len(examples)
    asked: VerifierLike = verifier.ask if isinstance(verifier, Judge) else verifier

    async def judge_one(place: int) -> None:
        try:
            verdict = await run_verifier(asked, examples[place][0], timeout_s=None)
            judged[place] = is_success(
                examples[place][0].model_copy(update={"verdict": verdict, "failure": None}), threshold
            )
        except VerifierError as error:
            judged[place] = str(error)

    await work_through(range(len(examples)), judge_one, at_once=concurrency)
    found = _count(judged, examples, threshold)
    if isinstance(verifier, Judge) and verifier.cache is not None and found.examples:
        verifier.cache.put("agreement", {verifier.identity: found.model_dump(exclude={"unscored", "disagreements"})})
    return found


def _count(judged: Sequence[bool | str], examples: Sequence[Labelled], threshold: float) -> Agreement:
    pairs = [(said, label) for said, (_, label) in zip(judged, examples, strict=True)]
    differing = [
        f"example {number}: labelled {'right' if label else 'wrong'}, judged {'right' if said else 'wrong'}: "
        f"{' '.join(rollout.answer.split())[:120]}"
        for number, (said, (rollout, label)) in enumerate(zip(judged, examples, strict=True), 1)
        if isinstance(said, bool) and said != label
    ]
    return Agreement(
        both_right=pairs.count((True, True)),
        both_wrong=pairs.count((False, False)),
        too_lenient=pairs.count((True, False)),
        too_strict=pairs.count((False, True)),
        unscored={str(number): said for number, said in enumerate(judged, 1) if isinstance(said, str)},
        disagreements=differing,
        threshold=threshold,
    )


_SHOWN = 100


class RankingAgreement(BaseModel, frozen=True):
    """A ranking beside labels, over every pair of one right and one wrong rollout of a task. `print` it."""

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

    @property
    def kappa_interval(self) -> Interval | None:
        """`kappa` with Wilson's interval of the share of pairs in the right order, on kappa's scale. It counts tasks:
        the pairs of one share rollouts."""
        if self.kappa is None:
            return None
        return on_kappas_scale(wilson((1 + self.kappa) / 2 * self.tasks, self.tasks), chance=0.5)

    def require(self, min_kappa: float, *, option: str) -> None:
        """Raises `ToolbakeError` where kappa is below `min_kappa`, the value of `option`, or may be chance."""
        kappa = self.kappa_interval
        if kappa is None or not reaches(kappa.estimate, min_kappa):
            shown = "not defined" if kappa is None else f"{kappa.estimate:.2f}"
            raise ToolbakeError(f"the agreement of the ranking (kappa {shown}) is below {option} {min_kappa:g}")
        of = f"of the ranking (kappa {kappa.estimate:.2f} on {self.tasks} tasks)"
        require_above_chance(kappa, of, min_kappa, option=option, counted="tasks")

    def __str__(self) -> str:
        pairs, kappa = self.above + self.below + self.ties, self.kappa_interval
        shown = (
            f"{kappa.estimate:.2f} [{kappa.low:.2f}, {kappa.high:.2f}]" if kappa else "not defined: nothing was ranked"
        )
        lines = [
            f"tasks       {self.tasks} ranked, {len(self.unscored)} without a ranking",
            f"pairs       {pairs}: {self.above} in the right order, {self.below} in the wrong one, {self.ties} ties",
            f"kappa       {shown}",
            "consistency " + (f"{self.consistency:.2f}" if self.consistency is not None else "-"),
        ]
        lines += ["", *self.disagreements] if self.disagreements else []
        lines += [f"no ranking for task {name!r}: {why}" for name, why in self.unscored.items()]
        return visible("\n".join(lines))


async def measure_ranking(
    ranking: Ranker | Ranked, examples: Sequence[Labelled], *, concurrency: int = 8
) -> RankingAgreement:
    """Rank the examples of each task and count pairs. What `ranked` has for gates takes no part: `measure_agreement`
    measures those.

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
    rankings: dict[str, Ranking] = {}
    unscored: dict[str, str] = {}

    async def rank_one(name: str) -> None:
        try:
            rankings[name] = await ranker.rank([rollout for rollout, _ in both[name]])
        except VerifierError as error:
            unscored[name] = str(error)

    await work_through(both, rank_one, at_once=concurrency)
    counts = {"above": 0, "below": 0, "ties": 0}
    disagreements = []
    for name, found in rankings.items():
        rights, wrongs = ([rollout for rollout, label in both[name] if label is kind] for kind in (True, False))
        for right, wrong in product(rights, wrongs):
            difference = found.scores[right.id] - found.scores[wrong.id]
            # Scores are sums of places, which rounding may keep from being equal.
            kind = "ties" if abs(difference) < 1e-9 else "above" if difference > 0 else "below"
            counts[kind] += 1
            if kind == "below":
                disagreements.append(
                    f"{wrong.id}, labelled wrong, is above {right.id}, labelled right: "
                    f"{' '.join(wrong.answer.split())[:_SHOWN]} | {' '.join(right.answer.split())[:_SHOWN]}"
                )
    return RankingAgreement(
        tasks=len(rankings),
        **counts,
        consistency=fmean(one.consistency for one in rankings.values()) if rankings else None,
        unscored=unscored,
        disagreements=sorted(disagreements),
    )
