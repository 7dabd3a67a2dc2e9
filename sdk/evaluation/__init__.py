"""Held-out runs, what they say, and how sure that is."""

from .comparisons import PairedComparison, compare_paired
from .conditions import ConditionSummary
from .costs import Cost, Price
from .plots import learning_curve
from .report import Report, build_report
from .statistics import Interval, mcnemar_exact, paired_rate_difference, wilson
from .training_summary import TrainingSummary
from .tries import pass_at_k, pass_hat_k

__all__ = [
    "ConditionSummary",
    "Cost",
    "Interval",
    "PairedComparison",
    "Price",
    "Report",
    "TrainingSummary",
    "build_report",
    "compare_paired",
    "learning_curve",
    "mcnemar_exact",
    "paired_rate_difference",
    "pass_at_k",
    "pass_hat_k",
    "wilson",
]
