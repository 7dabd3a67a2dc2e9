"""Held-out runs, what they say, and how sure that is."""

from .comparisons import PairedComparison, compare_paired
from .conditions import ConditionSummary
from .plots import learning_curve
from .report import Report, build_report
from .statistics import Interval, mcnemar_exact, paired_rate_difference, wilson
from .training_summary import TrainingSummary

__all__ = [
    "ConditionSummary",
    "Interval",
    "PairedComparison",
    "Report",
    "TrainingSummary",
    "build_report",
    "compare_paired",
    "learning_curve",
    "mcnemar_exact",
    "paired_rate_difference",
    "wilson",
]
