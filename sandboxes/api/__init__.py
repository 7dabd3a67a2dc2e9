"""API twins: from an OpenAPI document alone, a simulated backend that keeps state, with the live API's own tools.

twin = ApiTwin("openapi.yaml", seed=7)
print(twin.report())
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api_twin import ApiTwin
    from .rules import ApiCall, Refused
    from .twin_report import Report

__all__ = ["ApiCall", "ApiTwin", "Refused", "Report"]

_MODULES = {
    "ApiTwin": "api_twin",
    "Report": "twin_report",
    "ApiCall": "rules",
    "Refused": "rules",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sandboxes.api' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
