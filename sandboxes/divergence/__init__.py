"""Divergence of a twin from the real thing: recorded sessions replayed against it, tool by tool.

report = await compare("orders.jsonl", OrdersTwin(), ignore=["**.updated_at"])
print(report.to_markdown())

And how a recorded twin answers sessions that were not recorded: `await leave_one_out(RecordedTwin("orders.jsonl"))`.
"""

from .comparison import compare, leave_one_out
from .differences import Difference
from .report import CallDivergence, DivergenceReport, ToolDivergence

__all__ = ["CallDivergence", "Difference", "DivergenceReport", "ToolDivergence", "compare", "leave_one_out"]
