"""The alarms of a training run, step after step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from ..records import Rollout
from .signs import Alarm, AlarmSettings, canaries_earned, repeated_answers, reward_alone
from .step_metrics import StepFigures, step_figures


class Watch:
    """Remembers a figure or two of each step, and says what is suspicious once per kind and window.

    `follow`: the components that should rise with the reward.

    Example: `Watch(follow=("final_state",)).observe(3, rollouts)`
    """

    def __init__(self, settings: AlarmSettings | None = None, *, follow: Sequence[str] = ()) -> None:
        self._settings = settings or AlarmSettings()
        self._follow = tuple(follow)
        self._history: list[StepFigures] = []
        self._raised: dict[str, int] = {}

    def recall(self, rollouts: Iterable[Rollout], heldout: Mapping[int, float] | None = None) -> None:
        """What steps before had, in their order; raises no alarm again. `heldout` as in `observe`, of all steps."""
        for step, members in groupby(sorted(rollouts, key=lambda r: r.step), key=lambda r: r.step):
            known = {at: success for at, success in (heldout or {}).items() if at <= step}
            self.observe(step, list(members), known)

    def observe(
        self, step: int, rollouts: Sequence[Rollout], heldout: Mapping[int, float] | None = None
    ) -> list[Alarm]:
        """The new alarms of a step. `heldout`: success on tasks that are not trained on, by step, where measured."""
        self._history.append(step_figures(step, rollouts))
        found = [
            *canaries_earned(step, rollouts, self._settings),
            *repeated_answers(step, rollouts, self._settings),
            *reward_alone(self._history, self._settings, follow=self._follow, heldout=heldout),
            *self._missing_components(step),
        ]
        fresh = [alarm for alarm in found if alarm.kind == "canary" or self._is_new(alarm)]
        self._raised |= {alarm.kind: step for alarm in fresh}
        return fresh

    def _missing_components(self, step: int) -> list[Alarm]:
        """What is to be followed and is in no verdict so far: a name mistyped, or behind a gate that never opens."""
        seen = {name for one in self._history for name in one.components}
        missing = [name for name in self._follow if name not in seen]
        if not missing or not any(one.rollouts for one in self._history):
            return []
        message = f"no verdict has the component {missing[0]!r}; they have {', '.join(sorted(seen)) or 'none'}"
        return [Alarm(kind="missing_component", step=step, message=message)]

    def _is_new(self, alarm: Alarm) -> bool:
        return alarm.step - self._raised.get(alarm.kind, -(10**9)) >= self._settings.window
