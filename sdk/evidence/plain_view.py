"""Copies of rollouts that a run folder gives back as they are: most are so, and to copy one takes a third of the time
that taking it apart and checking it anew does."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import countOf, itemgetter
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel

from mcp_bridge.ledger.lines import LedgerLine
from mcp_bridge.records import ErrorKind, ToolResult
from mcp_bridge.toolsets.plain import NotPlain, check_plain, plain_copy
from mcp_bridge.toolsets.unchecked import unchecked

from ..records import CallRecord, Failure, Message, Rollout, StopReason, Task, TokenRow, ToolCall, ToolPrompt

Record = TypeVar("Record", bound=BaseModel)
Copy = Callable[[Any], Any]
"""The value as JSON gives it back, with nothing shared that can be changed. Raises `NotPlain` where it would be another
one, or none that its field takes."""


def plain_view(rollout: Rollout) -> Rollout:
    """The rollout as it is read back from JSON, without a verdict; it shares nothing with the original that can be
    changed. Raises `NotPlain` where that is not known to be the same in everything."""
    try:
        return _rollout(rollout)
    except KeyError:
        raise NotPlain from None


def row_copy(row: Any) -> TokenRow:
    """A row of numbers that JSON gives back as they are. Raises `NotPlain`."""
    if type(row) is not TokenRow or not _reads_back_equal(row):
        raise NotPlain
    return row.copied()


def ledger_line(line: Any) -> LedgerLine:
    """The line itself, which cannot be changed. Raises `NotPlain` for texts that JSON may change."""
    if type(line) is LedgerLine and f"{line.rollout}{line.call}{line.key}{line.tool}{line.note}".isascii():
        return line
    raise NotPlain


class _Copier(Generic[Record]):
    """Copies records of one type, field by field."""

    def __init__(self, kind: type[Record], /, **fields: Copy) -> None:
        if list(fields) != list(kind.model_fields):
            raise TypeError(f"{kind.__name__} has the fields {list(kind.model_fields)}; say how each is copied")
        self._kind = kind
        self._fields = list(fields.items())
        self._make = unchecked(kind)

    def __call__(self, record: Any) -> Record:
        if type(record) is not self._kind:
            raise NotPlain
        given = record.__dict__
        if len(given) != len(self._fields):
            raise NotPlain
        return self._make({name: copy(given[name]) for name, copy in self._fields})


def _text(value: Any) -> str:
    if type(value) is not str:
        raise NotPlain
    if not value.isascii():
        check_plain(value)
    return value


def _key(value: Any) -> str:
    """What is derived from other fields where it is empty."""
    if not value:
        raise NotPlain
    return _text(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise NotPlain
    check_plain(value)
    return value


def _seconds(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise NotPlain
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise NotPlain
    return value


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise NotPlain
    return plain_copy(value) if value else {}


def _texts_by_name(value: Any) -> dict[str, Any]:
    made = _object(value)
    if not all(type(one) is str for one in made.values()):
        raise NotPlain
    return made


def _one_of(choices: Any) -> Copy:
    known = frozenset(get_args(choices))

    def copy(value: Any) -> Any:
        if type(value) is not str or value not in known:
            raise NotPlain
        return value

    return copy


def _optional(copy: Copy) -> Copy:
    return lambda value: None if value is None else copy(value)


def _list(copy: Copy) -> Copy:
    def copied(value: Any) -> Any:
        if type(value) is not list:
            raise NotPlain
        return [copy(one) for one in value] if value else []

    return copied


def _notes(value: Any) -> tuple[str, ...]:
    if type(value) is not tuple:
        raise NotPlain
    return tuple(map(_text, value)) if value else ()


def _prompt(value: Any) -> Any:
    """A record with an empty one is refused when it is read."""
    if not value or (type(value) is str and not value.strip()):
        raise NotPlain
    return _messages(value) if type(value) is list else _text(value)


_call = _Copier(ToolCall, id=_text, name=_text, arguments=_object, error=_optional(_text))
_messages = _list(
    _Copier(
        Message,
        role=_one_of(Message.model_fields["role"].annotation),
        content=_text,
        tool_calls=_list(_call),
        tool_call_id=_optional(_text),
        name=_optional(_text),
        reasoning=_optional(_text),
    )
)
_result = _Copier(
    ToolResult,
    text=_text,
    structured=_optional(plain_copy),
    is_error=_flag,
    error_kind=_optional(_one_of(ErrorKind)),
    truncated_chars=_whole,
    duration_s=_seconds,
    notes=_notes,
)
_task = _Copier(
    Task,
    prompt=_prompt,
    later_turns=_list(_text),
    setup=_object,
    expected=_object,
    demonstration=_messages,
    tags=_texts_by_name,
    family=_key,
    id=_key,
)
_failure = _Copier(Failure, boundary=_one_of(Failure.model_fields["boundary"].annotation), kind=_text, message=_text)
_rollout = _Copier(
    Rollout,
    id=_text,
    task=_task,
    policy=_text,
    group=_text,
    seed=_whole,
    step=_whole,
    messages=_messages,
    calls=_list(_Copier(CallRecord, turn=_whole, call=_call, result=_result)),
    ledger=_list(ledger_line),
    answer=_text,
    shown_tools=_optional(_list(_text)),
    tool_prompt=_one_of(ToolPrompt),
    initial_state=_optional(_object),
    final_state=_optional(_object),
    rows=_list(row_copy),
    stop_reason=_one_of(StopReason),
    failure=_optional(_failure),
    verdict=lambda _: None,
    turns=_whole,
    sampled_tokens=_whole,
    prompt_tokens=_whole,
    duration_s=_seconds,
)


_columns = itemgetter("prompt_ids", "completion_ids", "sampled", "logprobs", "versions")


def _reads_back_equal(row: TokenRow) -> bool:
    """Whether JSON gives back the row's numbers as they are; most of a rollout's JSON is these."""
    prompt, tokens, sampled, logprobs, versions = columns = _columns(row.__dict__)
    return (
        set(map(type, columns)) == {list}
        and len(tokens) == len(sampled) == len(logprobs) == len(versions)
        and _are_all(int, prompt)
        and _are_all(int, tokens)
        and _are_all(int, versions)
        and _are_all(bool, sampled)
        and _are_all(float, logprobs)
        and math.isfinite(sum(logprobs))
    )


def _are_all(kind: type, values: list[Any]) -> bool:
    return countOf(map(type, values), kind) == len(values)
