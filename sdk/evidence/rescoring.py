"""The second scoring of a run: verdicts given again, from the evidence alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
from pydantic import ValidationError

from ..errors import VerifierError
from ..records import Rollout, Verdict
from ..verifiers import VerifierLike
from ..verifiers.verifier import judge_evidence, judges_groups
from .canonical import numbered_lines, parse
from .chained_file import Finding


async def rescore(
    path: Path, name: str, verifier: VerifierLike, *, timeout_s: float | None = 60
) -> tuple[int, list[Finding]]:
    """Run `verifier` on every scored rollout of a file; how many, and each reward that it does not give again.

    Score and components must be equal. A verifier that disagrees is asked once more: one that then disagrees with
    itself is not deterministic, which the finding reports. Rollouts of a training step that a group verifier has judged
    together are judged together again, see `GroupVerifier.again`.
    """
    count, findings = 0, list[Finding]()
    again = _Again(verifier, timeout_s)
    for key, members in groupby(_scored(path), key=_group if judges_groups(verifier) else lambda one: one.number):
        group = list(members)
        faults = await again.of_group(group) if isinstance(key, str) else await again.of_each(group)
        findings += [Finding("unearned", name, one.number, fault, str(one.line["id"])) for one, fault in faults]
        count += len(group)
        if count % 100 < len(group):
            await anyio.lowlevel.checkpoint()
    return count, findings


@dataclass(frozen=True)
class _Scored:
    """A line of a file, without its verdict, and the verdict."""

    number: int
    line: dict[str, Any]
    recorded: Verdict

    def rollout(self) -> Rollout:
        return Rollout.model_validate(self.line)


def _group(one: _Scored) -> str | int:
    """Rollouts of a training step are judged in their groups, which are together in their file; others alone."""
    step = one.line.get("step")
    return str(one.line.get("group")) if isinstance(step, int) and step >= 0 else one.number


class _Again:
    """Verdicts given again, and what differs from those that were recorded."""

    def __init__(self, verifier: VerifierLike, timeout_s: float | None) -> None:
        self._verifier = verifier
        self._timeout_s = timeout_s

    async def of_each(self, scored: Sequence[_Scored]) -> list[tuple[_Scored, str]]:
        faults = [(one, await self._fault(one)) for one in scored]
        return [(one, fault) for one, fault in faults if fault is not None]

    async def of_group(self, group: Sequence[_Scored]) -> list[tuple[_Scored, str]]:
        """What each gets alone, and what follows from that and from what the group's judge had said."""
        assert judges_groups(self._verifier)
        faults: dict[int, str] = {}
        alone: dict[str, Verdict] = {}
        rollouts: list[Rollout] = []
        for one in group:
            try:
                rollouts.append(one.rollout().model_copy(update={"verdict": one.recorded}))
                alone[rollouts[-1].id] = await judge_evidence(self._verifier, one.rollout(), self._timeout_s)
            except ValidationError as error:
                faults[one.number] = _no_rollout(error)
            except VerifierError as error:
                faults[one.number] = _no_verdict(one.recorded, error)
        try:
            found = self._verifier.again(rollouts, alone)
        except VerifierError as error:
            found = {}
            faults |= {one.number: _no_verdict(one.recorded, error) for one in group if one.number not in faults}
        for one in group:
            own = alone.get(str(one.line["id"]))
            if own is not None and one.number not in faults:
                again = found.get(str(one.line["id"]), own)
                if not _same(again, one.recorded):
                    faults[one.number] = _differing(one.recorded, again)
        return [(one, faults[one.number]) for one in group if one.number in faults]

    async def _fault(self, one: _Scored) -> str | None:
        try:
            again = await judge_evidence(self._verifier, one.rollout(), self._timeout_s)
            if _same(again, one.recorded):
                return None
            once_more = await judge_evidence(self._verifier, one.rollout(), self._timeout_s)
        except ValidationError as error:
            return _no_rollout(error)
        except VerifierError as error:
            return _no_verdict(one.recorded, error)
        if not _same(again, once_more):
            return (
                f"the verifier is not deterministic: {one.recorded.score:g} was recorded, {again.score:g} and "
                f"{once_more.score:g} were given now; its rewards cannot be recomputed"
            )
        return _differing(one.recorded, again)


def _no_rollout(error: ValidationError) -> str:
    return f"it is not a rollout any more: {error.errors()[0]['msg']}"


def _no_verdict(recorded: Verdict, error: VerifierError) -> str:
    return f"the reward {recorded.score:g} was recorded, and from its evidence the verifier gives none: {error}"


def _differing(recorded: Verdict, again: Verdict) -> str:
    if again.score != recorded.score:
        return f"the reward {recorded.score!r} was recorded, and its evidence gives {again.score!r}"
    if again.components != recorded.components:
        return f"the components {recorded.components} were recorded, and its evidence gives {again.components}"
    if again.turn_rewards != recorded.turn_rewards:
        return f"the turn_rewards {recorded.turn_rewards} were recorded, and its evidence gives {again.turn_rewards}"
    return f"it was compared with {recorded.rests_on}, as recorded, and its group's evidence is {again.rests_on}"


_SAME = ("score", "components", "rests_on", "turn_rewards")


def _same(one: Verdict, other: Verdict) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _SAME)


def _scored(path: Path) -> Iterator[_Scored]:
    """Lines that are not rollouts are named elsewhere."""
    for number, raw in numbered_lines(path):
        try:
            line = parse(raw)
            if isinstance(line["id"], str) and line["verdict"] is not None and line["failure"] is None:
                yield _Scored(number, {**line, "verdict": None}, Verdict.model_validate(line["verdict"]))
        except (ValueError, KeyError):  # pydantic's among them
            continue
