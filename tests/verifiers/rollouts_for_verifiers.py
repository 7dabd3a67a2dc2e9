"""Rollouts as the engine leaves them, in one line."""

from mcp_bridge.records import ToolResult
from sdk.records import CallRecord, Rollout, Task, ToolCall


def rollout(answer="", *, expected=None, prompt="Where is order 4417?", calls=(), before=None, after=None, **fields):
    """`calls`: `(name, arguments)`, or `(name, arguments, "refused")` for one that the tool refused."""
    records = [
        CallRecord(
            turn=turn,
            call=ToolCall(id=f"c{turn}", name=call[0], arguments=call[1]),
            result=ToolResult(text="", is_error=len(call) > 2, error_kind="tool_error" if len(call) > 2 else None),
        )
        for turn, call in enumerate(calls)
    ]
    task = Task(id="t1", prompt=prompt, expected=expected or {})
    return Rollout(id="r1", task=task, answer=answer, calls=records, initial_state=before, final_state=after, **fields)
