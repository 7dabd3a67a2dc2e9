"""Rollouts for the tests of the evaluation, written out small."""

from __future__ import annotations

from typing import Any

from mcp_bridge.records import ToolResult
from sdk.records import CallRecord, Failure, Message, Rollout, Task, ToolCall, Verdict


def make_rollout(task: str, score: float | None = 1.0, *, rollout_id: str = "", **fields: Any) -> Rollout:
    """A rollout of one call. `score=None`: unscored, because a server died."""
    call = ToolCall(id="c1", name="get_order", arguments={"order_id": task})
    result = fields.pop("result", ToolResult(text='{"status": "shipped"}'))
    tags = fields.pop("tags", {"tier": "1"})
    base: dict[str, Any] = {
        "id": rollout_id or f"{task}-0",
        "task": Task(prompt=f"Where is order {task}?", id=task, tags=tags),
        "messages": [
            Message(role="user", content=f"Where is order {task}?"),
            Message(role="assistant", tool_calls=[call]),
            Message(role="tool", content=result.text, tool_call_id="c1", name="get_order"),
            Message(role="assistant", content="It has shipped."),
        ],
        "calls": [CallRecord(turn=0, call=call, result=result)],
        "turns": 2,
        "sampled_tokens": 40,
        "duration_s": 1.5,
    }
    if score is None:
        base["failure"] = Failure(boundary="tools", kind="ServerDied", message="the helpdesk exited with 137")
        base["stop_reason"] = "failed"
    else:
        base["verdict"] = Verdict(score=score, components={"answer": score}, explanation=f"the answer scored {score}")
    return Rollout(**{**base, **fields})


def make_condition(scores: str) -> list[Rollout]:
    """Tasks t00, t01, ... by one sign each: `1` solved, `0` not, `x` unscored, `.` absent."""
    made = {"1": 1.0, "0": 0.0, "x": None}
    return [make_rollout(f"t{i:02d}", made[sign]) for i, sign in enumerate(scores) if sign != "."]
