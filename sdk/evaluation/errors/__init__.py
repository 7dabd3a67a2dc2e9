"""Why rollouts failed: what went wrong first, in groups, with the rollouts to read."""

from .faults import FAULTS, Fault, FaultKind
from .finding import find_fault, find_faults
from .grouping import ConditionErrors, ErrorGroup, group_errors
from .judging import FaultJudge, judged_faults
from .similar import Embedder

__all__ = [
    "FAULTS",
    "ConditionErrors",
    "Embedder",
    "ErrorGroup",
    "Fault",
    "FaultJudge",
    "FaultKind",
    "find_fault",
    "find_faults",
    "group_errors",
    "judged_faults",
]
