"""Audits of a training run: what judges them, and whether their golds are what the outcome verifier had said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .canonical import numbered_lines, parse
from .findings import Finding

if TYPE_CHECKING:
    from ..judging.audit_examples import AuditCall

AUDIT, AUDITED = "audit", "grpo"
"""The stages of the audits and of what they are about."""
_TASK = "audit/"


def audit_verifier_of(info: dict[str, Any]) -> AuditCall | None:
    """What judged the audits of a run, by the scores in its config; None where it has none. `info`: its `run.json`."""
    from ..errors import ConfigError
    from ..judging import audit_call
    from ..verifiers import verifier_identity

    try:
        recorded = info["config"]["verifiers"][AUDIT]
        right, false_alarm, missed = map(float, info["config"]["train"]["audit_scores"])
        verifier = audit_call(right=right, false_alarm=false_alarm, missed=missed)
    except (KeyError, TypeError, ValueError, ConfigError):
        return None
    return verifier if verifier_identity(verifier) == recorded else None


def wrong_golds(path: Path, info: dict[str, Any]) -> list[Finding]:
    """Audits whose task says something else of the audited rollout than its verdict does."""
    name = f"rollouts/{AUDIT}.jsonl"
    try:
        threshold = float(info["config"]["train"].get("success_threshold", 1.0))
    except (TypeError, ValueError):
        return []  # run.json was changed, which is named
    audits = [(number, line) for number, line in _lines(path / name)]
    if not audits:
        return []
    scores = {str(line.get("id")): _score(line) for _, line in _lines(path / "rollouts" / f"{AUDITED}.jsonl")}
    findings = []
    for number, line in audits:
        task = _mapping(line, "task")
        audited = str(task.get("id", "")).removeprefix(_TASK)
        gold = _mapping(task, "expected").get("audit_error")
        score = scores.get(audited)
        if score is None or gold is not (score < threshold - 1e-9):
            text = f"its task says of {audited!r} that it is {'wrong' if gold else 'right'}, and its verdict is {score}"
            findings.append(Finding("unearned", name, number, text, str(line.get("id", ""))))
    return findings


def _score(line: dict[str, Any]) -> float | None:
    score = _mapping(line, "verdict").get("score")
    return float(score) if isinstance(score, int | float) and line.get("failure") is None else None


def _mapping(line: dict[str, Any], name: str) -> dict[str, Any]:
    found = line.get(name)
    return found if isinstance(found, dict) else {}  # of another form it was changed, which is named


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, raw in numbered_lines(path):
        try:
            yield number, parse(raw)
        except ValueError:
            continue  # named where the file is compared with its evidence
