"""Verifiers of the world's final state, the strongest evidence: the policy cannot write it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

from mcp_bridge.safe_text import and_more
from sandboxes import diff

from ..errors import ConfigError, VerifierError
from ..records import Rollout, Task, Verdict
from .value_checks import first_schema_problem, holds_json, missing_expected, same_json, shortened, wrong_expected
from .verifier import ReadyMade, plain_value

# ---------------------------------------------------------------------------------------------------------------------
# Several right final states: a condition in place of one gold state.

Condition = Callable[[Mapping[str, Any], Task], bool]
_SHOWN = 5


@dataclass(eq=False, repr=False)
class state_where(ReadyMade):
    """A verifier: the final state meets a condition that the initial state did not meet, and nothing else changed.

    `condition(state, task)` returns True or False. Without one it is the JSON Schema in
    `task.expected["state_schema"]`. `may_change` names the tables ("orders") and columns ("orders.status") that may
    change, or is "anything".

    Raises `VerifierError` where the world has no readable state, and where the initial state meets the condition: a
    policy that does nothing would be right.

    Example: `state_where(lambda state, task: len(state["refunds"]) == 1, may_change=("refunds", "orders.status"))`
    """

    condition: Condition | None = None
    _: KW_ONLY
    may_change: Sequence[str] | Literal["anything"] | None
    """None: anything."""

    def __post_init__(self) -> None:
        given = self.may_change
        if self.condition is not None and not callable(self.condition):
            raise ConfigError(
                f"state_where: the condition is {self.condition!r}; give a function of the state and the task"
            )
        if given == "anything":
            self.may_change = None
        else:
            if given is None or isinstance(given, str) or not all(isinstance(name, str) for name in given):
                form = "give names: ('orders.status',), or 'anything'"
                raise ConfigError(f"state_where: may_change is {given!r}; {form}")
            self.may_change = tuple(given)

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the final state meets the condition and nothing else changed. Raises `VerifierError` as said there."""
        before, after = rollout.initial_state, rollout.final_state
        if before is None or after is None:
            raise _no_state("initial state" if before is None else "final state", rollout)
        if self._problem(before, rollout.task) is None:
            raise VerifierError(
                f"task {rollout.task.id!r}: the initial state meets the condition already, so that doing nothing would "
                "be right; change the task's setup or the condition"
            )
        problem = self._problem(after, rollout.task)
        others = self._others(before, after)
        components = {"state": float(problem is None), "nothing_else": float(not others)}
        reasons = [problem or "the final state meets the condition"]
        reasons += [f"changed besides: {and_more(others, _SHOWN)}"] * bool(others)
        return Verdict(score=min(components.values()), components=components, explanation="; ".join(reasons))

    def _problem(self, state: Mapping[str, Any], task: Task) -> str | None:
        if self.condition is None:
            if "state_schema" not in task.expected:
                needed = "state_where without a condition takes the JSON Schema in expected['state_schema']"
                raise missing_expected(task, needed)
            where = f"task {task.id!r}: expected['state_schema']"
            return first_schema_problem(task.expected["state_schema"], dict(state), where)
        found = plain_value(self.condition(state, task))
        if not isinstance(found, bool):
            raise VerifierError(f"state_where: the condition returned {shortened(found)}; it must return True or False")
        return None if found else "the final state does not meet the condition"

    def __repr__(self) -> str:
        name = getattr(self.condition, "__name__", "expected['state_schema']")
        return f"state_where({name}, may_change={('anything' if self.may_change is None else self.may_change)!r})"

    def _others(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
        """What changed that may not."""
        if self.may_change is None:
            return []
        places = [(change["table"], f"{change['table']}.{change['column']}") for change in diff(before, after)]
        return list(dict.fromkeys(place for table, place in places if not {table, place} & set(self.may_change)))


# ---------------------------------------------------------------------------------------------------------------------

_PLACE = ("table", "key", "column")


@dataclass(eq=False, repr=False)
class final_state(ReadyMade):
    """A verifier: the final state is the one that the task expects, and nothing else changed.

    - `task.expected["changes"]`: the changes from the initial to the final state, in any order, in the form of
      `sandboxes.diff`: a list of `{"table", "key", "column", "before", "after"}` (`before` may be left out).
      `[]`: nothing may change.
    - `task.expected["state"]`: the final state `state="equals"` this, or `"contains"` it (objects may have more keys).

    Where a task has both, both must hold. `ignore` names tables ("audit_log"), columns ("orders.updated_at") and single
    values ("orders.2342.updated_at") that are left out of both sides; those in `task.expected["ignore"]` are, too.
    Raises `VerifierError` where the world has no readable state, and where the task has neither entry.

    Where nothing should change, a rollout that does nothing is right: combine with `answer_match()` there.

    Example: `all_of(final_state(ignore=("orders.updated_at",)), answer_match())`
    """

    _: KW_ONLY
    state: Literal["equals", "contains"] = "equals"
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.state not in ("equals", "contains"):
            raise ConfigError(f"final_state: state is {self.state!r}; choose 'equals' or 'contains'")
        if isinstance(self.ignore, str):
            raise ConfigError(f"final_state: ignore is {self.ignore!r}; give a tuple: ({self.ignore!r},)")

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the world is as the task expects, 0 otherwise. Raises `VerifierError` when that cannot be known."""
        expected = rollout.task.expected
        if "ignore" in expected:
            return replace(self, ignore=(*self.ignore, *_ignored_columns(rollout.task)))._compared(rollout)
        return self._compared(rollout)

    def _compared(self, rollout: Rollout) -> Verdict:
        expected = rollout.task.expected
        if "changes" not in expected and "state" not in expected:
            needed = "final_state compares with expected['changes'] or expected['state']"
            raise missing_expected(rollout.task, needed)
        components: dict[str, float] = {}
        reasons: list[str] = []
        if "changes" in expected:
            problems = self._wrong_changes(rollout, expected["changes"])
            components["changes"] = float(not problems)
            asked = sum(not self._ignored(change) for change in expected["changes"])
            reasons += problems or [f"the {asked} expected changes and no others"]
        if "state" in expected:
            problem = self._wrong_state(rollout, expected["state"])
            components["state"] = float(problem is None)
            reasons.append(problem or f"the final state {self.state} the expected one")
        return Verdict(score=min(components.values()), components=components, explanation="; ".join(reasons))

    def _wrong_changes(self, rollout: Rollout, gold: Any) -> list[str]:
        checked = _checked_changes(gold, rollout.task)
        # Gold changes are often recorded whole: what is ignored is not asked for, either.
        expected = {_place(change): change for change in checked if not self._ignored(change)}
        before = _tables(rollout.initial_state, "initial state", rollout)
        after = _tables(rollout.final_state, "final state", rollout)
        made = {_place(change): dict(change) for change in diff(before, after) if not self._ignored(change)}
        problems = []
        for place, change in expected.items():
            actual = made.pop(place, None)
            if actual is None:
                problems.append(f"missing: {_name(place)} to {change['after']!r}")
            elif not all(same_json(actual[side], change[side]) for side in ("before", "after") if side in change):
                problems.append(f"wrong: {_name(place)} is {actual['after']!r} instead of {change['after']!r}")
        problems += [f"not asked for: {_name(place)} to {change['after']!r}" for place, change in made.items()]
        return [and_more(problems, _SHOWN, ";")] if problems else []

    def _wrong_state(self, rollout: Rollout, gold: Any) -> str | None:
        state = rollout.final_state
        if state is None:
            raise _no_state("final state", rollout)
        if self.state == "contains" and gold == {}:
            raise wrong_expected(rollout.task, "state", "is {}, which every state contains; name what must be")
        state, wanted = self._without_ignored(state), self._without_ignored(gold)
        right = same_json(state, wanted) if self.state == "equals" else holds_json(state, wanted)
        return None if right else f"the final state does not {self.state.removesuffix('s')} {shortened(gold)}"

    def _ignored(self, change: Mapping[str, Any]) -> bool:
        return is_ignored(self.ignore, change["table"], change["key"], change["column"])

    def _without_ignored(self, state: Any) -> Any:
        """A state, or the expected part of one, without the tables and columns that do not matter."""
        if not self.ignore or not isinstance(state, Mapping):
            return state
        return {table: self._kept_rows(table, rows) for table, rows in state.items() if table not in self.ignore}

    def _kept_rows(self, table: str, rows: Any) -> Any:
        if not isinstance(rows, Mapping) or not any(name.startswith(f"{table}.") for name in self.ignore):
            return rows
        return {
            key: {column: value for column, value in row.items() if not is_ignored(self.ignore, table, key, column)}
            if isinstance(row, Mapping)
            else row
            for key, row in rows.items()
        }


def is_ignored(names: Collection[str], table: str, key: str, column: str) -> bool:
    """Whether `ignore` names a value: its table, its column, or itself."""
    return not {table, f"{table}.{column}", f"{table}.{key}.{column}"}.isdisjoint(names)


def _ignored_columns(task: Task) -> list[str]:
    ignored = task.expected["ignore"]
    if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
        form = "a list of tables, columns and values, such as ['orders.updated_at']"
        raise wrong_expected(task, "ignore", f"is {shortened(ignored)}; it must be {form}")
    return ignored


def _checked_changes(gold: Any, task: Task) -> list[Mapping[str, Any]]:
    form = "a list of {'table', 'key', 'column', 'before', 'after'}"
    if not isinstance(gold, list):
        raise wrong_expected(task, "changes", f"is {shortened(gold)}; it must be {form}")
    for change in gold:
        if not isinstance(change, Mapping) or not {*_PLACE, "after"} <= set(change) <= {*_PLACE, "before", "after"}:
            raise wrong_expected(task, "changes", f"holds {shortened(change)}; it must be {form}")
    places = [_place(change) for change in gold]
    if len(set(places)) != len(places):
        twice = next(place for place in places if places.count(place) > 1)
        raise wrong_expected(task, "changes", f"names {_name(twice)} twice")
    return gold


def _tables(state: Any, which: str, rollout: Rollout) -> Mapping[str, Any]:
    """A state in the form that can be compared: table -> key -> column -> value."""
    if state is None:
        raise _no_state(which, rollout)
    for table, rows in state.items():
        if not isinstance(rows, Mapping) or not all(isinstance(row, Mapping) for row in rows.values()):
            raise VerifierError(
                f"the {which} of rollout {rollout.id!r} is not a table -> key -> column -> value at {table!r}; "
                "compare it with expected['state'] instead of expected['changes']"
            )
    return state  # type: ignore[no-any-return]


def _no_state(which: str, rollout: Rollout) -> VerifierError:
    return VerifierError(
        f"rollout {rollout.id!r} has no {which}: the tools cannot tell their state; "
        "use tools with a sandbox behind them, or another verifier such as required_calls()"
    )


def _place(change: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(change["table"]), str(change["key"]), str(change["column"])


def _name(place: tuple[str, str, str]) -> str:
    return f"{place[0]}[{place[1]!r}]" + f".{place[2]}" * bool(place[2])
