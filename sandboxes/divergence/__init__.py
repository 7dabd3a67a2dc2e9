"""Divergence of a twin from the real thing: recorded sessions replayed against it, tool by tool.

report = await compare("orders.jsonl", OrdersTwin(), ignore=["**.updated_at"])
print(report.to_markdown())
"""

from .comparison import compare
from .differences import Difference
from .report import CallDivergence, DivergenceReport, ToolDivergence

__all__ = ["CallDivergence", "Difference", "DivergenceReport", "ToolDivergence", "compare"]
