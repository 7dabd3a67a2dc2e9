"""Evaluation: held-out runs, their report, and the uncertainty of its figures."""

from .conditions import ConditionSummary, Cost, PairedComparison, Price, compare_paired
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
