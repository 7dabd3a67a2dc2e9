"""Does the world end in one of many right states? A condition in place of one gold state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sandboxes import diff

from ..errors import ConfigError, VerifierError
from ..records import Rollout, Task, Verdict
from .comparing import shortened
from .schemas import first_schema_problem

Condition = Callable[[Mapping[str, Any], Task], bool]
_SHOWN = 5


@dataclass(frozen=True, repr=False)
class StateWhere:
    """See `state_where`."""

    condition: Condition | None
    may_change: tuple[str, ...] | None
    """None: anything."""

    def __repr__(self) -> str:
        name = getattr(self.condition, "__name__", "expected['state_schema']")
        allowed = "'anything'" if self.may_change is None else repr(self.may_change)
        return f"state_where({name}, may_change={allowed})"

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the final state meets the condition and nothing else changed. Raises `VerifierError` as said there."""
        before, after = rollout.initial_state, rollout.final_state
        if before is None or after is None:
            raise VerifierError(
                f"rollout {rollout.id!r} has no {'initial' if before is None else 'final'} state: the tools cannot "
                "tell it; use tools with a sandbox behind them, or another verifier such as calls_match()"
            )
        if self._problem(before, rollout.task) is None:
            raise VerifierError(
                f"task {rollout.task.id!r}: the initial state meets the condition already, so that doing nothing would "
                "be right; change the task's setup or the condition"
            )
        problem = self._problem(after, rollout.task)
        others = self._others(before, after)
        components = {"state": float(problem is None), "nothing_else": float(not others)}
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        reasons = [problem or "the final state meets the condition"]
        reasons += [f"changed besides: {', '.join(others[:_SHOWN])}{more}"] * bool(others)
        return Verdict(score=min(components.values()), components=components, explanation="; ".join(reasons))

    def _problem(self, state: Mapping[str, Any], task: Task) -> str | None:
        if self.condition is None:
            return first_schema_problem(_schema(task), dict(state), f"task {task.id!r}: expected['state_schema']")
        found = self.condition(state, task)
        if not isinstance(found, bool):
            raise VerifierError(f"state_where: the condition returned {shortened(found)}; it must return True or False")
        return None if found else "the final state does not meet the condition"

    def _others(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
        """What changed that may not."""
        if self.may_change is None:
            return []
        places = [f"{change['table']}.{change['column']}" for change in diff(before, after)]
        wrong = [place for place in places if not {place, place.partition(".")[0]} & set(self.may_change)]
        return list(dict.fromkeys(wrong))


def state_where(condition: Condition | None = None, *, may_change: Sequence[str] | Literal["anything"]) -> StateWhere:
    """A verifier: the final state meets a condition that the initial state did not meet, and nothing else changed.

    `condition(state, task)` returns True or False. Without one it is the JSON Schema in
    `task.expected["state_schema"]`. `may_change` names the tables ("orders") and columns ("orders.status") that may
    change, or says "anything".

    Raises `VerifierError` where the world cannot tell its state, and where the condition holds from the beginning:
    a policy that does nothing would be right.

    Example: `state_where(lambda state, task: len(state["refunds"]) == 1, may_change=("refunds", "orders.status"))`
    """
    if condition is not None and not callable(condition):
        raise ConfigError(f"state_where: the condition is {condition!r}; give a function of the state and the task")
    if may_change == "anything":
        return StateWhere(condition, None)
    if isinstance(may_change, str) or not all(isinstance(name, str) for name in may_change):
        raise ConfigError(f"state_where: may_change is {may_change!r}; give names: ('orders.status',), or 'anything'")
    return StateWhere(condition, tuple(may_change))


def _schema(task: Task) -> Any:
    if "state_schema" not in task.expected:
        raise VerifierError(
            f"task {task.id!r} expects {sorted(task.expected) or 'nothing'}; state_where without a condition takes "
            "the JSON Schema in expected['state_schema']"
        )
    return task.expected["state_schema"]
