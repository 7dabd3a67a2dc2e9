"""Verdicts given again, from the evidence alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
from pydantic import ValidationError

from ..errors import VerifierError
from ..records import Rollout, Verdict
from ..verifiers import VerifierLike
from ..verifiers.running import judge_evidence
from .canonical import numbered_lines, parse
from .findings import Finding


async def rescore(
    path: Path, name: str, verifier: VerifierLike, *, timeout_s: float | None = 60
) -> tuple[int, list[Finding]]:
    """Run `verifier` on every scored rollout of a file; how many, and each reward that it does not give again.

    Score and components must be equal. A verifier that disagrees is asked once more: one that then disagrees with
    itself is not deterministic, and the finding says so.
    """
    count, findings = 0, list[Finding]()
    for number, line, recorded in _scored(path):
        count += 1
        fault = await _disagreement(verifier, line, recorded, timeout_s)
        if fault is not None:
            findings.append(Finding("unearned", name, number, fault, str(line["id"])))
        if count % 100 == 0:
            await anyio.lowlevel.checkpoint()
    return count, findings


async def _disagreement(
    verifier: VerifierLike, line: dict[str, Any], recorded: Verdict, timeout_s: float | None
) -> str | None:
    try:
        again = await judge_evidence(verifier, Rollout.model_validate(line), timeout_s)
        if _same(again, recorded):
            return None
        once_more = await judge_evidence(verifier, Rollout.model_validate(line), timeout_s)
    except ValidationError as error:
        return f"it is no rollout any more: {error.errors()[0]['msg']}"
    except VerifierError as error:
        return f"the reward {recorded.score:g} was recorded, and from its evidence the verifier gives none: {error}"
    if not _same(again, once_more):
        return (
            f"the verifier is not deterministic: {recorded.score:g} was recorded, {again.score:g} and "
            f"{once_more.score:g} were given now; its rewards cannot be recomputed"
        )
    if again.score != recorded.score:
        return f"the reward {recorded.score!r} was recorded, and its evidence gives {again.score!r}"
    return f"the components {recorded.components} were recorded, and its evidence gives {again.components}"


def _same(one: Verdict, other: Verdict) -> bool:
    return one.score == other.score and one.components == other.components


def _scored(path: Path) -> Iterator[tuple[int, dict[str, Any], Verdict]]:
    """Line number, rollout without its verdict, and the verdict. Lines that are no rollouts are named elsewhere."""
    for number, raw in numbered_lines(path):
        try:
            line = parse(raw)
            if line["verdict"] is not None and line["failure"] is None:
                yield number, {**line, "verdict": None}, Verdict.model_validate(line["verdict"])
        except (ValueError, KeyError):  # pydantic's among them
            continue
