"""How far a twin is from the real thing: recorded sessions replayed against it, tool by tool.

report = await compare("orders.jsonl", OrdersTwin(), ignore=["**.updated_at"])
print(report.to_markdown())
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparing import compare
    from .differences import Difference
    from .report import CallDivergence, DivergenceReport, ToolDivergence

_MODULES = {
    "CallDivergence": "report",
    "Difference": "differences",
    "DivergenceReport": "report",
    "ToolDivergence": "report",
    "compare": "comparing",
}

__all__ = ["CallDivergence", "Difference", "DivergenceReport", "ToolDivergence", "compare"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sandboxes.divergence' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
