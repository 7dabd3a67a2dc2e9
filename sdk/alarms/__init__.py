"""Signs that a reward is earned in a way nobody meant, seen while training goes on."""

from .alarm_monitor import Watch
from .signs import Alarm, AlarmSettings, canaries_earned, repeated_answers, reward_alone
from .step_metrics import StepFigures, step_figures

__all__ = [
    "Alarm",
    "AlarmSettings",
    "StepFigures",
    "Watch",
    "canaries_earned",
    "repeated_answers",
    "reward_alone",
    "step_figures",
]
