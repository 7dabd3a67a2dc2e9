"""Cohen's kappa of a judge beside people's labels, with its interval, and whether it is enough."""

from __future__ import annotations

from pydantic import BaseModel

from mcp_bridge.safe_text import visible

from ..errors import ToolbakeError
from ..evaluation.statistics import Interval, wilson


def on_kappas_scale(share: Interval, chance: float) -> Interval:
    """The interval of a share of agreement as one of kappa, chance taken as known. No kappa is below -1."""
    low, middle, high = ((p - chance) / (1 - chance) for p in (share.low, share.estimate, share.high))
    return Interval(estimate=middle, low=max(-1.0, low), high=high)


def require_above_chance(kappa: Interval, of: str, min_kappa: float, *, option: str, counted: str) -> None:
    """Raises `ToolbakeError` where an interval reaches down to 0, as it does for few of what is `counted`. `of`: whose
    agreement it is."""
    if min_kappa > 0 and kappa.low <= 0:
        raise ToolbakeError(
            f"the agreement {of} may be chance: its interval begins at {kappa.low:.2f}; {option} {min_kappa:g} "
            f"needs one above 0, so label more {counted}"
        )


class Agreement(BaseModel, frozen=True):
    """A judge beside labels. `print` it.

    `kappa` is Cohen's (1960): (p_o - p_e) / (1 - p_e), with p_o the share of agreement and p_e that expected by chance;
    None where the labels and the judge both know one answer only. Unscored examples take part in no figure.
    """

    both_right: int
    both_wrong: int
    too_lenient: int
    """The judge passes what people do not."""
    too_strict: int
    unscored: dict[str, str]
    """Why, by the example's number."""
    disagreements: list[str]
    threshold: float = 1.0
    """The score from which the judge passes an answer."""

    @property
    def examples(self) -> int:
        return self.both_right + self.both_wrong + self.too_lenient + self.too_strict

    @property
    def accuracy(self) -> Interval | None:
        """The share of agreement with its interval."""
        return wilson(self.both_right + self.both_wrong, self.examples) if self.examples else None

    @property
    def kappa(self) -> float | None:
        interval = self.kappa_interval
        return None if interval is None else interval.estimate

    @property
    def kappa_interval(self) -> Interval | None:
        """The interval of `accuracy` on kappa's scale: it is wide for few labels."""
        accuracy, chance = self.accuracy, self._chance
        if accuracy is None or chance == 1:
            return None
        return on_kappas_scale(accuracy, chance)

    def require(self, min_kappa: float, *, option: str) -> None:
        """Raises `ToolbakeError` where kappa is below `min_kappa`, the value of `option`, or may be chance: where its
        interval reaches down to 0, as it does with few examples, or few of one label."""
        kappa = self.kappa_interval
        if kappa is None:
            raise ToolbakeError(
                f"kappa is not defined, because no two different answers were given, so {option} {min_kappa:g} "
                "cannot be checked; add examples of both labels"
            )
        of = f"(kappa {kappa.estimate:.2f} on {self.examples} examples, at the threshold {self.threshold:g})"
        if kappa.estimate < min_kappa:
            raise ToolbakeError(
                f"the agreement {of} is below {option} {min_kappa:g}; sharpen the criteria, or take another model"
            )
        require_above_chance(kappa, of, min_kappa, option=option, counted="examples")

    @property
    def _chance(self) -> float:
        """The share of agreement expected of two who judge as often right, each by chance."""
        count = self.examples
        judged, labelled = self.both_right + self.too_lenient, self.both_right + self.too_strict
        return (judged * labelled + (count - judged) * (count - labelled)) / count**2 if count else 1.0

    def __str__(self) -> str:
        accuracy, kappa = self.accuracy, self.kappa_interval
        lines = [
            f"examples    {self.examples} judged, {len(self.unscored)} without a verdict",
            "agreement   "
            + (f"{accuracy.estimate:.1%} [{accuracy.low:.1%}, {accuracy.high:.1%}]" if accuracy else "-"),
            "kappa       "
            + (
                f"{kappa.estimate:.2f} [{kappa.low:.2f}, {kappa.high:.2f}]"
                if kappa
                else f"not defined: {'only one answer was ever given' if self.examples else 'nothing was judged'}"
            ),
            "",
            "                judge: right  judge: wrong",
            f"label: right    {self.both_right:12}  {self.too_strict:12}",
            f"label: wrong    {self.too_lenient:12}  {self.both_wrong:12}",
        ]
        lines += ["", *self.disagreements] if self.disagreements else []
        lines += [f"no verdict on example {number}: {why}" for number, why in self.unscored.items()]
        return visible("\n".join(lines))
