"""Faults: what can go wrong first in a rollout, the rules that find it, the judge that may overrule them, and groups of
faults."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args

from pydantic import BaseModel, Field

from mcp_bridge.records import Tool
from mcp_bridge.safe_text import cut

from ..errors import VerifierError
from ..records import CallRecord, Message, Rollout, Task, ToolCall
from ..verifiers.calls import ABSENT, call_in_words, fits, unmatched
from ..verifiers.expectations import expected_answer, says
from ..verifiers.text_tokens import positions, tokenize
from ..verifiers.value_checks import plain_values, same_json
from ..worker_pool import work_through
from .conditions import is_success

FaultKind = Literal[
    "broken_tool",
    "broken_policy",
    "broken_user",
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
    "broken_policy": "the model's engine, its endpoint or its agent failed, or time ran out; the rollout is unscored",
    "broken_user": "the model that plays the task's user did not keep to its part, or failed; the rollout is unscored",
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


class Fault(BaseModel, frozen=True):
    """What went wrong first in a rollout, and was not made good later."""

    kind: FaultKind
    turn: int = 0
    """The assistant message it began in, from 1; 0 where none was to blame."""
    tool: str = ""
    argument: str = ""
    detail: str = ""
    """What happened, for people. Written from the rollout: untrusted text."""
    by: Literal["rule", "judge"] = "rule"
    judge_error: str | None = None
    """Why a judge that was asked gave no fault; the rule's fault is kept then."""

    @property
    def signature(self) -> str:
        """A short name that distinguishes faults of one kind: `get_order.order_id`."""
        return f"{self.tool}.{self.argument}" if self.argument else self.tool


# ---------------------------------------------------------------------------------------------------------------------
# The rules that find the earliest fault that was not made good later.


class GoldCall(NamedTuple):
    """A call of the right solution."""

    name: str
    arguments: Mapping[str, Any]
    patterns: bool = False
    """Its arguments may be patterns, as `calls_match` reads them; never so where a policy wrote them."""

    def is_made_by(self, call: ToolCall) -> bool:
        return self.name == call.name and not self.differing(call)

    def differing(self, call: ToolCall) -> list[str]:
        """The arguments that are not as needed, those that were given first."""
        given = call.arguments
        names = [*given, *(name for name in self.arguments if name not in given)]
        return [n for n in names if not self._fits(self.arguments.get(n, ABSENT), given.get(n, ABSENT))]

    def _fits(self, wanted: Any, value: Any) -> bool:
        if wanted is ABSENT:
            return False
        try:
            if self.patterns:
                return fits(wanted, value, "expected['calls']")
        except VerifierError:
            pass  # not a pattern, which a verifier of patterns reports; here it is a value like others
        except RecursionError:
            return False
        return value is not ABSENT and same_json(wanted, value)


def gold_calls(task: Task) -> list[GoldCall] | None:
    """`expected["calls"]`, else the calls of the demonstration; None where the task has neither."""
    given = task.expected.get("calls")
    if isinstance(given, list):
        calls = [call for call in given if isinstance(call, Mapping) and isinstance(call.get("name"), str)]
        return [
            GoldCall(call["name"], arguments if isinstance(arguments := call.get("arguments"), Mapping) else {}, True)
            for call in calls
        ]
    if task.demonstration:
        return [GoldCall(call.name, call.arguments) for message in task.demonstration for call in message.tool_calls]
    return None


def missing_calls(gold: Sequence[GoldCall], done: Sequence[ToolCall]) -> list[GoldCall]:
    """The gold calls that were not made; each call made answers for one, and where patterns overlap, for the one that
    leaves the fewest."""
    places, _ = unmatched(list(gold), list(done), lambda call, made: call.is_made_by(made))
    return [gold[place] for place in places]


def says_the_opposite(answer: str, task: Task) -> bool:
    """Whether an answer begins with no where yes is expected, or the other way round."""
    gold = task.expected.get("answer")
    opposite = {True: ("no", "false"), False: ("yes", "true")}.get(gold) if isinstance(gold, bool) else None
    return opposite is not None and tokenize(answer)[:1] in [[word] for word in opposite]


_SHORTEST = 3


def ungrounded_argument(
    name: str, arguments: Mapping[str, Any], context: str, tools: Mapping[str, Tool], *, identifiers_only: bool = False
) -> str | None:
    """The first argument with a value that `context` does not have; None where all can be traced.

    Judged are numbers and single words of three letters or more; sentences are the policy's own to write, and the
    schema's enumerations, defaults and constants are known to it. `identifiers_only`: only values with a digit.
    """
    tokens, text = tokenize(context), context.casefold()
    known = _schema_values(tools[name].input_schema) if name in tools else frozenset[str]()
    for argument, value in arguments.items():
        for leaf in plain_values(value):
            said = str(leaf)
            if said in known or len(said.split()) > 1 or (identifiers_only and not any(c.isdigit() for c in said)):
                continue
            short = len(said) < _SHORTEST and not said.isdigit()
            if not short and said.casefold() not in text and not positions(tokenize(said), tokens):
                return argument
    return None


def words_before(rollout: Rollout, record: CallRecord) -> str:
    """All that was said before the message with the call, the assistant's own earlier words left out. Conversations of
    an agent of one's own come one after the other, so that its turn is not the message's place."""
    said = list(_by_turn(rollout))
    asking = (n for n, m in said if any(call.id == record.call.id for call in m.tool_calls))
    turn = max(next(asking, record.turn), 1)
    return "\n".join(m.content for n, m in said if n < turn and m.role != "assistant")


def _by_turn(rollout: Rollout) -> Iterator[tuple[int, Message]]:
    """The messages, each with the number of the assistant's messages up to it."""
    turn = 0
    for message in rollout.messages:
        turn += message.role == "assistant"
        yield turn, message


def _schema_values(schema: Any) -> frozenset[str]:
    """Enumerated values, constants and defaults anywhere in a schema, as text."""
    found: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            enumerated: Sequence[Any] = part["enum"] if isinstance(part.get("enum"), list) else []
            found |= {
                str(value) for value in [*enumerated, part.get("const"), part.get("default")] if value is not None
            }
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return frozenset(found)


_LOOP = 3
_REPEATED_TEXT = re.compile(r"(.{8,200}?)\1{3,}", re.DOTALL)
_READ_BACK = 2000
"""Characters at the end of a text in which repetition is looked for."""
_REFUSAL = re.compile(
    r"\b(i (can'?t|can ?not|am unable|'?m unable|don'?t know|do not know|could(n'?t| not) find)|i'?m (sorry|afraid)|"
    r"unable to (help|find|answer))\b",
    re.IGNORECASE,
)


def find_faults(rollouts: Iterable[Rollout], *, threshold: float = 1.0, tools: Sequence[Tool] = ()) -> dict[str, Fault]:
    """Rollout id -> fault, of those that did not succeed. `tools` give enumerated arguments and harmless reads."""
    return {rollout.id: find_fault(rollout, tools=tools) for rollout in rollouts if not is_success(rollout, threshold)}


def find_fault(rollout: Rollout, *, tools: Sequence[Tool] = ()) -> Fault:
    """What went wrong first in a rollout that did not succeed. Of several in one turn, see `FAULTS`."""
    if rollout.failure is not None:
        return _of_failure(rollout)
    if rollout.verdict is None:
        return Fault(kind="verifier_doubt", turn=rollout.turns, detail="no verifier said anything")
    known = {tool.name: tool for tool in tools}
    gold = gold_calls(rollout.task)
    found = [*_unreadable(rollout), *_bad_calls(rollout, gold, known), *_loops(rollout), *_at_the_end(rollout, gold)]
    if not found:
        found = [_nothing_found(rollout, gold, known)]
    return min(found, key=lambda fault: (fault.turn, ORDER[fault.kind]))


def _of_failure(rollout: Rollout) -> Fault:
    failure = rollout.failure
    assert failure is not None
    kinds: dict[str, FaultKind] = {
        "tools": "broken_tool",
        "world": "broken_tool",
        "policy": "broken_policy",
        "agent": "broken_policy",
        "user": "broken_user",
        "verifier": "verifier_doubt",
    }
    detail = cut(f"{failure.kind}: {failure.message}", 300)
    last = rollout.ledger[-1].tool if failure.boundary == "tools" and rollout.ledger else ""
    return Fault(kind=kinds[failure.boundary], turn=rollout.turns, tool=last, detail=detail)


def _unreadable(rollout: Rollout) -> Iterator[Fault]:
    """Calls that did not parse, unless a later one worked."""
    for turn, message in _by_turn(rollout):
        for call in message.tool_calls:
            if call.error is not None and not any(r.turn > turn and not r.result.is_error for r in rollout.calls):
                yield Fault(kind="unreadable_call", turn=turn, tool=call.name, detail=cut(call.error, 300))


def _bad_calls(rollout: Rollout, gold: list[GoldCall] | None, tools: Mapping[str, Tool]) -> Iterator[Fault]:
    done = [record.call for record in rollout.calls if not record.result.is_error]
    missing = missing_calls(gold or [], done)
    for place, record in enumerate(rollout.calls):
        if record.call.error is not None:
            continue
        if record.result.is_error:
            if _worked(rollout.calls[:place], record.call):
                yield _fault("loop", record, f"{_written(record.call)}, which had worked")
            elif not _made_good(rollout.calls[place + 1 :], record, gold):
                yield _of_error(rollout, record, gold, missing, tools)
        elif any(note.startswith("fault ") and not note.startswith("fault Latency") for note in record.result.notes):
            yield _fault("broken_tool", record, "; ".join(record.result.notes))
        elif gold is None:
            context = words_before(rollout, record)
            argument = ungrounded_argument(
                record.call.name, record.call.arguments, context, tools, identifiers_only=True
            )
            if argument is not None:
                yield _fault("ungrounded_argument", record, _written(record.call), argument)
        elif missing and not any(call.is_made_by(record.call) for call in gold):
            yield from _beside_gold(rollout, record, gold, missing, tools)


def _made_good(later: Sequence[CallRecord], record: CallRecord, gold: list[GoldCall] | None) -> bool:
    """Whether a later call did what this one failed to do: of its tool, or of the right one where that is known."""
    if gold is None and record.result.error_kind == "unknown_tool":
        return any(not after.result.is_error for after in later)
    names = {record.call.name} if gold is None else {call.name for call in gold}
    return any(not after.result.is_error and after.call.name in names for after in later)


def _worked(earlier: Sequence[CallRecord], call: ToolCall) -> bool:
    """Whether the same call was made before and succeeded."""
    made = GoldCall(call.name, call.arguments)
    return any(made.is_made_by(record.call) and not record.result.is_error for record in earlier)


def _of_error(
    rollout: Rollout,
    record: CallRecord,
    gold: list[GoldCall] | None,
    missing: Sequence[GoldCall],
    tools: Mapping[str, Tool],
) -> Fault:
    """A call that came back as an error."""
    kind, said = record.result.error_kind, cut(record.result.text, 200)
    if kind == "unknown_tool":
        return _fault("wrong_tool", record, said)
    argument = ungrounded_argument(record.call.name, record.call.arguments, words_before(rollout, record), tools)
    needed = gold is None or any(call.name == record.call.name for call in gold)
    reads = _only_reads(record.call.name, tools)
    # Looking elsewhere first is allowed, with arguments that are not made up; beyond that no argument makes it right.
    if not needed and not record.result.notes and not (reads and (argument or not missing)):
        wanted = f"; needed were {', '.join(call.name for call in missing)}" if missing else ""
        return _fault("wrong_tool", record, said + wanted)
    if kind == "invalid_arguments":
        return _fault("wrong_argument", record, said)
    if record.result.notes or (gold and any(call.is_made_by(record.call) for call in gold)):
        return _fault("broken_tool", record, said)
    return _fault("ungrounded_argument" if argument else "wrong_argument", record, said, argument or "")


def _beside_gold(
    rollout: Rollout,
    record: CallRecord,
    gold: Sequence[GoldCall],
    missing: Sequence[GoldCall],
    tools: Mapping[str, Tool],
) -> Iterator[Fault]:
    """A call that worked and is not one of the task's, while one of the task's is missing."""
    call = record.call
    wanted = next((other for other in missing if other.name == call.name), None)
    if wanted is not None:
        differing = wanted.differing(call)
        values = {n: call.arguments[n] for n in differing if n in call.arguments}
        argument = ungrounded_argument(call.name, values, words_before(rollout, record), tools)
        detail = f"{_written(call)} in place of {_written(wanted)}"
        kind: FaultKind = "ungrounded_argument" if argument else "wrong_argument"
        yield _fault(kind, record, detail, argument or (differing[0] if differing else ""))
    elif not any(other.name == call.name for other in gold) and not _only_reads(call.name, tools):
        yield _fault("wrong_tool", record, f"{_written(call)}; needed were {', '.join(c.name for c in missing)}")


def _loops(rollout: Rollout) -> Iterator[Fault]:
    seen: Counter[str] = Counter()
    for record in rollout.calls:
        key = json.dumps([record.call.name, record.call.arguments, record.result.text], sort_keys=True, default=str)
        seen[key] += 1
        if seen[key] == _LOOP:
            yield _fault("loop", record, f"{_written(record.call)}, {_LOOP} times with the same result")
    for turn, message in _by_turn(rollout):
        again = _REPEATED_TEXT.search(message.content[-_READ_BACK:]) if message.role == "assistant" else None
        if again is not None and again[1].strip():
            yield Fault(kind="loop", turn=turn, detail=f"says over and over: {cut(again[1].strip(), 100)}")


def _at_the_end(rollout: Rollout, gold: list[GoldCall] | None) -> Iterator[Fault]:
    """Faults that the end of a rollout shows."""
    turn, answer = rollout.turns, cut(rollout.answer, 200) or "(empty)"
    if rollout.stop_reason != "answered":
        yield Fault(kind="ran_out", turn=turn, detail=rollout.stop_reason)
        return
    missing = missing_calls(gold or [], [record.call for record in rollout.calls if not record.result.is_error])
    required = expected_answer(rollout.task)
    right = bool(required) and says(rollout.answer, required)
    if missing:
        wanted = ", ".join(map(_written, missing))
        yield Fault(kind="gave_up", turn=turn, tool=missing[0].name, detail=cut(f"answered without {wanted}", 300))
    elif not right and (not rollout.answer.strip() or _REFUSAL.search(rollout.answer)):
        yield Fault(kind="gave_up", turn=turn, detail=f"the answer: {answer}")
    if rollout.calls and rollout.calls[-1].result.is_error:
        last = rollout.calls[-1]
        detail = f"answered after: {cut(last.result.text, 200)}"
        yield Fault(kind="ignored_result", turn=turn, tool=last.call.name, detail=detail)
    if says_the_opposite(rollout.answer, rollout.task):
        yield Fault(kind="wrong_answer", turn=turn, detail=f"the answer: {answer}")
    if required and not right:
        told = next((r for r in rollout.calls if not r.result.is_error and says(r.result.text, required)), None)
        kind: FaultKind = "wrong_answer" if told is None else "ignored_result"
        yield Fault(kind=kind, turn=turn, tool=told.call.name if told else "", detail=f"the answer: {answer}")


def _nothing_found(rollout: Rollout, gold: list[GoldCall] | None, tools: Mapping[str, Tool]) -> Fault:
    """All that is known was done: something was done besides, or the verifier is to be looked at."""
    for record in rollout.calls:
        made = any(call.is_made_by(record.call) for call in gold or [])
        if gold is not None and not made and not record.result.is_error and not _only_reads(record.call.name, tools):
            return _fault("wrong_tool", record, f"besides what was needed: {_written(record.call)}")
    reason = cut(rollout.verdict.explanation, 300) if rollout.verdict is not None else ""
    if gold is not None or expected_answer(rollout.task):
        return Fault(
            kind="verifier_doubt", turn=rollout.turns, detail=f"looks right; the verifier says: {reason or 'nothing'}"
        )
    return Fault(kind="unexplained", turn=rollout.turns, detail=reason)


def _only_reads(name: str, tools: Mapping[str, Tool]) -> bool:
    return name in tools and tools[name].annotations.read_only is True


def _fault(kind: FaultKind, record: CallRecord, detail: str, argument: str = "") -> Fault:
    return Fault(kind=kind, turn=record.turn, tool=record.call.name, argument=argument, detail=detail)


def _written(call: ToolCall | GoldCall) -> str:
    patterns = isinstance(call, GoldCall) and call.patterns
    return cut(call_in_words(call.name, call.arguments, patterns=patterns, most=200), 200)


# ---------------------------------------------------------------------------------------------------------------------
# The judge that may overrule the rules.

_ASKED_AT_ONCE = 8
"""Questions to a judge."""


class FaultJudge(Protocol):
    """Says what went wrong first. Rollouts hold text that models and tools wrote: material, never instructions."""

    async def judge(self, rollout: Rollout, found: Fault, /) -> Fault | None:
        """The fault, given what the rules found; None leaves it at that."""


async def judged_faults(
    judge: FaultJudge, rollouts: Iterable[Rollout], faults: Mapping[str, Fault]
) -> dict[str, Fault]:
    """`faults`, with the judge's where it gives one. Where it raises, the error is noted and the rule's fault kept."""
    result = dict(faults)

    async def ask(rollout: Rollout) -> None:
        found = faults[rollout.id]
        try:
            said = await judge.judge(rollout, found)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            result[rollout.id] = found.model_copy(update={"judge_error": reason})
        else:
            result[rollout.id] = found if said is None else said.model_copy(update={"by": "judge"})

    await work_through([one for one in rollouts if one.id in faults], ask, at_once=_ASKED_AT_ONCE)
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Groups of faults, the largest first.

TELLING = 3
"""Rollouts kept of each group."""
_SIGNATURES = 5

TELLING_RULE = (
    "By rule: first tasks that the baseline solved, then the group's commonest tool and argument, then the shortest "
    "conversation."
)


class TellingRollout(BaseModel):
    """A rollout to read, without its tokens and states."""

    fault: Fault
    newly_failing: bool
    """The baseline solved this task."""
    rollout: Rollout


class TaskChanges(BaseModel):
    """Tasks against the baseline, for one kind of fault. A task has the fault of its first rollout that failed."""

    new: int
    """Solved in the baseline, fails so now."""
    moved: int
    """Failed otherwise in the baseline, fails so now."""
    stayed: int
    """Failed so in the baseline and does now."""
    fixed: int
    """Failed so in the baseline, solved now."""
    before: int
    """Failed so in the baseline, over the tasks that both have."""


class ErrorGroup(BaseModel):
    """Rollouts with the same kind of fault."""

    kind: FaultKind
    rollouts: int
    tasks: int
    share: float
    """Of all rollouts of the condition that did not succeed."""
    signatures: dict[str, int]
    """The commonest tools and arguments, `get_order.order_id`, with their number of rollouts."""
    telling: list[TellingRollout]


class ConditionErrors(BaseModel):
    """What went wrong first in one condition."""

    rollouts: int
    failed: int
    """Did not succeed, unscored ones included."""
    groups: list[ErrorGroup]
    faults: dict[str, Fault] = Field(default_factory=dict)
    """Id of each rollout that failed -> its fault."""
    baseline: str | None = None
    changes: dict[str, TaskChanges] = Field(default_factory=dict)
    """Kind of fault -> what became of its tasks; empty without a baseline."""
    judge_errors: int = 0
    """Faults for which a judge was asked and failed."""


def group_errors(
    rollouts: Sequence[Rollout],
    faults: Mapping[str, Fault],
    *,
    baseline: tuple[str, Sequence[Rollout], Mapping[str, Fault]] | None = None,
    threshold: float = 1.0,
) -> ConditionErrors:
    """The groups of one condition. `faults`: see `find_faults`; `baseline`: name, rollouts and faults of another."""
    failed = [rollout for rollout in rollouts if rollout.id in faults]
    members: dict[FaultKind, list[Rollout]] = defaultdict(list)
    for rollout in failed:
        members[faults[rollout.id].kind].append(rollout)
    solved = set[str]()
    if baseline:
        # Tasks that were scored and never failed.
        solved = {rollout.task.id for rollout in baseline[1] if is_success(rollout, threshold)}
        solved -= {rollout.task.id for rollout in baseline[1] if rollout.id in baseline[2]}
    kinds = sorted(members, key=lambda kind: (-len(members[kind]), ORDER[kind]))
    return ConditionErrors(
        rollouts=len(rollouts),
        failed=len(failed),
        groups=[_group(kind, members[kind], faults, len(failed), solved) for kind in kinds],
        faults={rollout.id: faults[rollout.id] for rollout in failed},
        baseline=baseline[0] if baseline else None,
        changes=_changes(rollouts, faults, baseline[1], baseline[2]) if baseline else {},
        judge_errors=sum(faults[rollout.id].judge_error is not None for rollout in failed),
    )


def _group(
    kind: FaultKind,
    members: Sequence[Rollout],
    faults: Mapping[str, Fault],
    failed: int,
    solved: set[str],
) -> ErrorGroup:
    signatures = Counter(signature for r in members if (signature := faults[r.id].signature))
    in_order = sorted(
        members, key=lambda r: (r.task.id not in solved, -signatures[faults[r.id].signature], len(r.messages), r.id)
    )
    return ErrorGroup(
        kind=kind,
        rollouts=len(members),
        tasks=len({r.task.id for r in members}),
        share=len(members) / failed,
        signatures=dict(sorted(signatures.items(), key=lambda item: (-item[1], item[0]))[:_SIGNATURES]),
        telling=[
            TellingRollout(
                fault=faults[r.id],
                newly_failing=r.task.id in solved,
                rollout=r.model_copy(update={"rows": [], "initial_state": None, "final_state": None, "ledger": []}),
            )
            for r in _one_a_task(in_order)[:TELLING]
        ],
    )


def _one_a_task(rollouts: Sequence[Rollout]) -> list[Rollout]:
    first: dict[str, Rollout] = {}
    for rollout in rollouts:
        first.setdefault(rollout.task.id, rollout)
    return list(first.values())


def _changes(
    rollouts: Sequence[Rollout],
    faults: Mapping[str, Fault],
    baseline: Sequence[Rollout],
    baseline_faults: Mapping[str, Fault],
) -> dict[str, TaskChanges]:
    now, before = _kind_by_task(rollouts, faults), _kind_by_task(baseline, baseline_faults)
    both = [(before[task], now[task]) for task in now.keys() & before.keys()]
    kinds = sorted({kind for pair in both for kind in pair if kind is not None}, key=lambda kind: ORDER[kind])
    return {
        kind: TaskChanges(
            new=both.count((None, kind)),
            moved=sum(old not in (None, kind) and new == kind for old, new in both),
            stayed=both.count((kind, kind)),
            fixed=both.count((kind, None)),
            before=sum(old == kind for old, _ in both),
        )
        for kind in kinds
    }


def _kind_by_task(rollouts: Sequence[Rollout], faults: Mapping[str, Fault]) -> dict[str, FaultKind | None]:
    """The kind of each task's first rollout that failed; None for a task without one."""
    kinds: dict[str, FaultKind | None] = {}
    for rollout in sorted(rollouts, key=lambda r: r.id):
        if kinds.get(rollout.task.id) is None:
            kinds[rollout.task.id] = faults[rollout.id].kind if rollout.id in faults else None
    return kinds
