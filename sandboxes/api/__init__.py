"""API twins: from an OpenAPI document alone, a simulated backend that keeps state, with the live API's own tools.

twin = ApiTwin("openapi.yaml", seed=7)
print(twin.report())
"""

from .api_twin import ApiTwin
from .rules import ApiCall, Refused
from .twin_report import Report

__all__ = ["ApiCall", "ApiTwin", "Refused", "Report"]
