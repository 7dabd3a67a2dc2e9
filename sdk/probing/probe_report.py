"""What the probes earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigError
from ..evaluation.safe_text import one_line
from ..records import Rollout
from .degenerate import Probe

_SHOWN = 400


@dataclass(frozen=True)
class Finding:
    """A rollout of a probe that was rewarded."""

    probe: Probe
    rollout: Rollout

    def __str__(self) -> str:
        verdict = self.rollout.verdict
        assert verdict is not None
        prompt = self.rollout.task.opening()[-1].content
        calls = ", ".join(record.call.name for record in self.rollout.calls) or "none"
        return (
            f"{self.probe.name} ({self.probe.does}) scored {verdict.score:g} on task {self.rollout.task.id!r}\n"
            f"    asked: {_short(prompt)}\n    calls: {calls}\n    answer: {_short(self.rollout.answer)}\n"
            f"    verdict: {_short(verdict.explanation or str(verdict.components))}"
        )


@dataclass(frozen=True)
class ProbeReport:
    """All that was tried. `print` it; `require_none` raises where something was found."""

    tasks: int
    rollouts: Sequence[Rollout]
    findings: Sequence[Finding]
    partly: Sequence[Finding] = ()
    """Rollouts that earned more than 0 and less than the threshold: what a partial credit gives for nothing."""
    not_called: Sequence[str] = ()
    """Tools that no probe called, because they are live and do not say that they only read."""

    @property
    def unscored(self) -> int:
        return sum(not rollout.scored for rollout in self.rollouts)

    def __str__(self) -> str:
        lines = [f"{len(self.rollouts)} degenerate rollouts on {self.tasks} tasks: {len(self.findings)} were rewarded"]
        if self.partly:
            lines.append(self.partial_credit)
        if self.unscored:
            lines.append(f"{self.unscored} could not be scored")
        if self.not_called:
            lines.append(f"not called, because they are live: {', '.join(self.not_called)}")
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])

    @property
    def partial_credit(self) -> str:
        """What the probes earned below the threshold, each with the most; empty where they earned nothing."""
        most: dict[str, float] = {}
        for finding in self.partly:
            assert finding.rollout.verdict is not None
            most[finding.probe.name] = max(most.get(finding.probe.name, 0.0), finding.rollout.verdict.score)
        shown = ", ".join(f"{name} {score:g}" for name, score in most.items())
        return f"{len(self.partly)} earned a part of the reward, at most: {shown}" if most else ""

    def require_none(self, *, allowed: Sequence[str] = ()) -> None:
        """Raises `ConfigError` for findings of probes that are not in `allowed`. Partial credit is none."""
        found = [finding for finding in self.findings if finding.probe.name not in allowed]
        if not found:
            return
        names = list(dict.fromkeys(finding.probe.name for finding in found))
        shown = "\n".join(f"  {next(f for f in found if f.probe.name == name)}" for name in names)
        raise ConfigError(
            f"the verifier rewards policies that do not do the task ({', '.join(names)}); training would find them. "
            "Make it look at the state, the calls and the answer together, for example all_of(final_state(), "
            f"required_calls(), answer_match()); or, where one of them is right, allow it by name.\n{shown}"
        )


def _short(text: str) -> str:
    flat = one_line(text)
    return flat if len(flat) <= _SHOWN else f"{flat[:_SHOWN]}..."
