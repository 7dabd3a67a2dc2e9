"""Evaluation: held-out runs, their report, and the uncertainty of its figures."""

from .comparisons import PairedComparison, compare_paired
from .conditions import ConditionSummary, Cost, Price
from .plots import learning_curve
from .report import Report, TrainingSummary, build_report
from .statistics import Interval, mcnemar_exact, paired_rate_difference, pass_at_k, pass_hat_k, wilson

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
