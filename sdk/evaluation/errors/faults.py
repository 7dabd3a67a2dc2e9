"""The kinds of what can go wrong first in a rollout."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

FaultKind = Literal[
    "broken_tool",
    "broken_policy",
    "unreadable_call",
    "wrong_tool",
    "ungrounded_argument",
    "wrong_argument",
    "loop",
    "ran_out",
    "gave_up",
    "ignored_result",
    "wrong_answer",
    "verifier_doubt",
    "unexplained",
]

FAULTS: dict[FaultKind, str] = {
    "broken_tool": "a tool, its server or the world failed, or a fault was put into its answer",
    "broken_policy": "the model's engine or endpoint failed, or time ran out; the rollout is unscored",
    "unreadable_call": "a call that no parser can read",
    "wrong_tool": "a tool that does not exist, or one that the task did not need",
    "ungrounded_argument": "an argument that stands neither in the prompt nor in an earlier result",
    "wrong_argument": "an argument against the schema, or other than the task needed",
    "loop": "the same call with the same result three times or after it had worked, or the same text over and over",
    "ran_out": "a limit of turns, tokens, calls or context ended it",
    "gave_up": "an answer before all needed calls were made, an empty one, or a refusal",
    "ignored_result": "a result says the right answer, or an error, and the answer does not heed it",
    "wrong_answer": "the answer says something else, and no result had said the right one",
    "verifier_doubt": "calls and answer look right, or the verifier failed: look at the verifier or the task",
    "unexplained": "no rule applies",
}
"""Each kind with what it means. Of two that begin in one turn the earlier in this list is taken."""

ORDER: dict[FaultKind, int] = {kind: place for place, kind in enumerate(get_args(FaultKind))}


class Fault(BaseModel):
    """What went wrong first in a rollout, and was not made good later."""

    model_config = ConfigDict(frozen=True)

    kind: FaultKind
    turn: int = 0
    """The assistant message it began in, from 1; 0 where none was to blame."""
    tool: str = ""
    argument: str = ""
    detail: str = ""
    """What happened, for people. Written from the rollout: untrusted text."""
    by: Literal["rule", "judge"] = "rule"
    judge_error: str | None = None
    """Why a judge that was asked did not say anything; the rule's fault stands then."""

    @property
    def signature(self) -> str:
        """What tells faults of one kind apart in short: `get_order.order_id`."""
        return f"{self.tool}.{self.argument}" if self.argument else self.tool
