"""Faults injected into tools, so that a policy meets in training what it will meet in the field.

No tool has a fault unless it is given one. Each fault is drawn from the seed, the world's id and the call alone, and
noted in the result, in the world and in the report.
"""

from .faulty_source import Faulty, FaultyWorld, InjectedFault, faults_for
from .kinds import (
    ErrorAnswer,
    Fault,
    InjectedInstruction,
    Latency,
    Outage,
    PartialAnswer,
    RateLimit,
    RenamedFields,
    StaleRead,
    Timeout,
)

__all__ = [
    "ErrorAnswer",
    "Fault",
    "Faulty",
    "FaultyWorld",
    "InjectedFault",
    "InjectedInstruction",
    "Latency",
    "Outage",
    "PartialAnswer",
    "RateLimit",
    "RenamedFields",
    "StaleRead",
    "Timeout",
    "faults_for",
]
