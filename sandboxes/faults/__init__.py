"""Faults put into tools on purpose, so that a policy meets in training what it will meet in the field.

    flaky = Faulty(Helpdesk(), {"get_*": [Latency(seconds=2), ErrorAnswer(p=0.1)], "*_order": Timeout(p=0.05)}, seed=3)

No tool has a fault unless it is given one. Each fault is drawn from the seed, the world's id and the call alone, and
noted: in the result, in the world, in the report.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .configured import faults_for
    from .faulty_source import Faulty, FaultyWorld
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
    from .log import InjectedFault

_MODULES = {
    "ErrorAnswer": "kinds",
    "Fault": "kinds",
    "Faulty": "faulty_source",
    "FaultyWorld": "faulty_source",
    "InjectedFault": "log",
    "InjectedInstruction": "kinds",
    "Latency": "kinds",
    "Outage": "kinds",
    "PartialAnswer": "kinds",
    "RateLimit": "kinds",
    "RenamedFields": "kinds",
    "StaleRead": "kinds",
    "Timeout": "kinds",
    "faults_for": "configured",
}

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


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sandboxes.faults' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
