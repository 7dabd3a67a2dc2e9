"""Verifiers of calls: the right ones were made, and no forbidden ones; patterns for their arguments."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from mcp_bridge import safe_text

from ..errors import ConfigError, VerifierError
from ..records import CallRecord, Rollout, Verdict
from .text_tokens import other_currency, positions, tokenize
from .value_checks import matches, missing_expected, same_json, shortened, wrong_expected
from .verifier import ReadyMade

# ---------------------------------------------------------------------------------------------------------------------
# Calls as a person reads them: `find(query≈"chair")` where the task has `{"$text": "chair"}`.

_DEEPEST = 5
"""Deeper levels of lists, objects and patterns are shown as `…`, to fit on a line."""
_JOINERS = "\u200c\u200d"  # invisible, but part of writing Persian, Hindi and emoji


def call_in_words(name: str, arguments: Mapping[str, Any], *, patterns: bool, most: int = 60) -> str:
    """A call on one line. Each argument has about `most` characters at most, and the number of those left out.

    `patterns`: the arguments may hold patterns (see `fits`), which are put into words. Other values are shown as JSON.
    Invisible characters and those that change the direction of text are escaped.
    """
    write = _pattern_tokens if patterns else _value
    shown = [_argument(key, safe_text.shortened(write(value), most)) for key, value in arguments.items()]
    return f"{_plain(name)}({', '.join(shown)})"


def _argument(name: object, written: str) -> str:
    return f"{_plain(str(name))}{'' if written.startswith('≈') else '='}{written}"


def _pattern_tokens(pattern: Any, depth: int = 0) -> str:
    if not isinstance(pattern, Mapping | list):
        return _value(pattern)
    if depth > _DEEPEST:
        return "…"
    if isinstance(pattern, list):
        return f"[{', '.join(_pattern_tokens(item, depth + 1) for item in pattern)}]"
    key = pattern_key(pattern)
    if key is None:
        return (
            f"{{{', '.join(f'{_value(name)}: {_pattern_tokens(item, depth + 1)}' for name, item in pattern.items())}}}"
        )
    gold = pattern[key]
    if key == "$one_of":
        return f"({' or '.join(_pattern_tokens(choice, depth + 1) for choice in gold)})"
    return _KINDS[key].shown.format(_pattern_tokens(gold, depth + 1), _value(pattern.get("within")))


def _value(value: Any) -> str:
    """A value as JSON, or the name of its type where JSON cannot hold it."""
    try:
        return _plain(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):  # keys that are not texts, 4 300 digits, nested a thousand times
        return f"({type(value).__name__} that is not JSON)"


def _plain(text: str) -> str:
    """The text with invisible characters escaped: control characters, half surrogate pairs, changes of direction."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in _JOINERS else json.dumps(sign)[1:-1] for sign in text)


# ---------------------------------------------------------------------------------------------------------------------

Order = Literal["any", "in_order", "exact"]
_ORDERS = ("any", "in_order", "exact")
_FORM = "a list of {'name': ..., 'arguments': {...}}"


@dataclass(eq=False, repr=False)
class calls_match(ReadyMade):
    """A verifier: every pattern in `task.expected["calls"]` has a call of its own that succeeded.

    A pattern is `{"name": ..., "arguments": {...}}`. Arguments are equal values, or patterns such as
    `{"$near": 12.5, "within": 0.01}`; see `docs/verifiers.md`. A call must not have arguments that its pattern
    does not name, unless they are null. `order`: `any`; `in_order`, with others allowed between; `exact`, these calls
    and no others, in this order. `only`: no other call may have succeeded. `most_mistakes`: how many calls may have
    failed.

    `task.expected["forbid"]` lists calls that must not even be tried: names of tools, or patterns. Such a pattern needs
    to name only the arguments that make the call forbidden, and 17 and "17" are the same in it.

    `required_calls` asks for equal arguments; prefer it where they are known. Raises `VerifierError` for a task
    without calls, unless something is forbidden there.

    Example: `calls_match(order="in_order", most_mistakes=0)`
    """

    _: KW_ONLY
    order: Order = "any"
    only: bool = False
    most_mistakes: int | None = None

    def __post_init__(self) -> None:
        if self.order not in _ORDERS:
            raise ConfigError(f"calls_match: order is {self.order!r}; choose one of {', '.join(_ORDERS)}")
        if self.most_mistakes is not None and self.most_mistakes < 0:
            raise ConfigError(f"calls_match: most_mistakes is {self.most_mistakes}; give 0 or more, or None for any")

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the calls that succeeded are as the task's patterns say, 0 otherwise, with what is wrong."""
        where = _where(rollout, "calls")

        def fit(pattern: Mapping[str, Any], record: CallRecord) -> bool:
            return bool(pattern["name"] == record.call.name) and all_fit(
                pattern.get("arguments", {}), record.call.arguments, where
            )

        only = self.only or self.order == "exact"
        gold = _gold_calls(rollout, "calls_match")
        return _compared(rollout, gold, fit, _forbidden(rollout), self.order, only, self.most_mistakes)


def _gold_calls(rollout: Rollout, verifier: str) -> list[Mapping[str, Any]]:
    """`task.expected["calls"]`, none where only something is forbidden. Raises `VerifierError` for other forms."""
    task, expected = rollout.task, rollout.task.expected
    if "calls" not in expected and "forbid" not in expected:
        raise missing_expected(task, f"{verifier} compares with expected['calls'], {_FORM}")
    gold = expected.get("calls", [])
    if not isinstance(gold, list):
        raise wrong_expected(task, "calls", f"is {shortened(gold)}; it must be {_FORM}")
    for call in gold:
        if not _is_call(call):
            raise wrong_expected(task, "calls", f"holds {shortened(call)}; it must be {_FORM}")
    return gold


def _is_call(call: Any) -> bool:
    known = isinstance(call, Mapping) and isinstance(call.get("name"), str) and set(call) <= {"name", "arguments"}
    return known and isinstance(call.get("arguments", {}), Mapping)


_Fit = Callable[[Mapping[str, Any], CallRecord], bool]


def _compared(
    rollout: Rollout,
    gold: list[Mapping[str, Any]],
    fit: _Fit,
    forbidden: Sequence[CallRecord],
    order: Order,
    only: bool,
    most_mistakes: int | None,
) -> Verdict:
    """The verdict on a rollout's calls. `fit`: whether a call is the gold one; `forbidden`: those that were tried."""
    done = [record for record in rollout.calls if not record.result.is_error and record.call.error is None]
    missing, others = _paired(gold, done, order, fit)
    mistakes = len(rollout.calls) - len(done)
    components = {"required": 1 - len(missing) / len(gold) if gold else 1.0, "no_forbidden": float(not forbidden)}
    asked = [call_in_words(gold[n]["name"], gold[n].get("arguments", {}), patterns=True) for n in missing]
    reasons = [f"missing: {call}" for call in asked]
    reasons += [f"forbidden: {_called(record)}" for record in forbidden]
    if only:
        components["no_others"] = float(not others)
        reasons += [f"not asked for: {_called(done[place])}" for place in others]
    if most_mistakes is not None:
        components["few_mistakes"] = float(mistakes <= most_mistakes)
        if mistakes > most_mistakes:
            reasons.append(f"{mistakes} calls failed, more than {most_mistakes}")
    return Verdict(
        score=float(all(value == 1 for value in components.values())),
        components=components,
        explanation="; ".join(reasons) or f"all {len(gold)} required calls",
    )


def _paired(
    gold: list[Mapping[str, Any]], done: list[CallRecord], order: Order, fit: _Fit
) -> tuple[list[int], list[int]]:
    """The places of gold calls that were not made, and of calls that no gold call asks for."""
    if order == "any":
        return unmatched(gold, done, fit)
    # The first call that fits is always a good choice in a sequence: it leaves most to those that follow.
    place, others = 0, []
    for at, record in enumerate(done):
        if place < len(gold) and fit(gold[place], record):
            place += 1
        else:
            others.append(at)
    return list(range(place, len(gold))), others


def _forbidden(rollout: Rollout) -> list[CallRecord]:
    """Forbidden calls that were tried; one that the tool refused was still tried."""
    named = rollout.task.expected.get("forbid", [])
    where = _where(rollout, "forbid")
    if not isinstance(named, list):
        raise VerifierError(f"{where} is {shortened(named)}; it must be a list of names of tools, or {_FORM}")
    patterns = [{"name": one} if isinstance(one, str) else one for one in named]
    for pattern in patterns:
        if not _is_call(pattern):
            raise VerifierError(f"{where} holds {shortened(pattern)}; give names of tools, or {_FORM}")
    return [record for record in rollout.calls if any(_is(pattern, record, where) for pattern in patterns)]


def _is(pattern: Mapping[str, Any], record: CallRecord, where: str) -> bool:
    given = record.call.arguments
    wrong = pattern.get("arguments", {}).items()
    return bool(pattern["name"] == record.call.name) and all(
        fits(_leniently(inner), given.get(name, ABSENT), where) for name, inner in wrong
    )


@dataclass(frozen=True)
class _Alike:
    """A plain value that other spellings fit, too."""

    value: str | int | float


def _leniently(pattern: Any) -> Any:
    """A pattern whose plain values, at any depth, other spellings fit: many tools take `17` for `"17"`, and do the
    same."""
    if isinstance(pattern, Mapping):
        plain = not any(str(key).startswith("$") for key in pattern)
        return {key: _leniently(inner) if plain or key in _HOLDS else inner for key, inner in pattern.items()}
    if isinstance(pattern, list):
        return [_leniently(inner) for inner in pattern]
    return _Alike(pattern) if isinstance(pattern, str | int | float) else pattern


_HOLDS = frozenset({"$optional", "$one_of", "$set"})
"""Kinds of patterns that hold patterns."""


def _written_alike(one: Any, other: Any) -> bool:
    """Whether two plain values are the same as text: 17, "17 " and 17.0 are."""
    plain = isinstance(one, str | int | float) and isinstance(other, str | int | float)
    return plain and (tokenize(str(one)) or [one]) == (tokenize(str(other)) or [other])


def _where(rollout: Rollout, key: str) -> str:
    return f"task {rollout.task.id!r}: expected[{key!r}]"


def _called(record: CallRecord) -> str:
    return call_in_words(record.call.name, record.call.arguments, patterns=False)


# ---------------------------------------------------------------------------------------------------------------------

_MOST = 2**1023
"""A policy may write integers of any length. One that a double cannot hold is near to nothing."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
ABSENT = object()
"""The value of an argument that was not given."""


def fits(pattern: Any, value: Any, where: str) -> bool:
    """Whether `value` fits `pattern`, which is an equal JSON value, the same time in ISO 8601, or an object with one
    `$` key: `docs/verifiers.md` lists them. A regular expression has half a second.

    Lists and objects may hold patterns. Raises `VerifierError` for what was meant as a pattern and is none.
    """
    if isinstance(pattern, _Alike):
        return value is not ABSENT and (fits(pattern.value, value, where) or _written_alike(pattern.value, value))
    if (kind := pattern_key(pattern)) is not None:
        return _KINDS[kind].fit(pattern[kind], value, where, pattern)
    _refuse_mistyped(pattern, where)
    if value is ABSENT:
        return pattern is None
    if isinstance(pattern, Mapping):
        return isinstance(value, Mapping) and all_fit(pattern, value, where)
    if isinstance(pattern, list):
        same = isinstance(value, list) and len(value) == len(pattern)
        return same and all(fits(inner, item, where) for inner, item in zip(pattern, value, strict=True))
    return same_json(pattern, value) or _same_time(pattern, value)


def _same_time(pattern: Any, value: Any) -> bool:
    """Whether both are the same ISO 8601 time in other spellings: `2026-04-01T10:00` is `2026-04-01 10:00:00`."""
    if not (isinstance(pattern, str) and isinstance(value, str) and _TIME.match(pattern) and _TIME.match(value)):
        return False
    try:
        return datetime.fromisoformat(pattern) == datetime.fromisoformat(value)
    except ValueError:
        return False


def all_fit(patterns: Mapping[str, Any], values: Mapping[str, Any], where: str) -> bool:
    """Whether every pattern fits the value of its name, and there are no other values. A null is an argument that was
    left out, and the other way round."""
    named = all(fits(pattern, values.get(name, ABSENT), where) for name, pattern in patterns.items())
    return named and {name for name, value in values.items() if value is not None} <= set(patterns)


def _refuse_mistyped(value: Any, where: str) -> None:
    """Raises `VerifierError` for what was meant as a pattern and is none. APIs have keys of their own with a `$`:
    `{"$set": {"status": "open"}}` and `{"$gt": 1}` are values like others."""
    for name, argument in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(name, str) or not name.startswith("$") or isinstance(argument, Mapping):
            continue
        kind = _KINDS.get(name)
        if kind is not None and not kind.takes(argument, value):
            raise VerifierError(f"{where} holds {shortened(value)}; {kind.form}")
        if kind is not None or difflib.get_close_matches(name, _KINDS, n=1, cutoff=0.85):
            raise VerifierError(
                f"{where} holds {shortened(value)}; a pattern has one of the keys {', '.join(_KINDS)} and no other "
                "($near takes `within`)"
            )


def _near(gold: Any, value: Any, _where: str, pattern: Mapping[str, Any]) -> bool:
    if not is_number(value) or abs(value) > _MOST:
        return False
    # A little more than `within`, since 0.3 - 0.2 is not 0.1 in binary.
    return bool(abs(value - gold) <= pattern["within"] + 1e-9 * max(1.0, abs(gold)))


def _text(gold: Any, value: Any, _where: str, pattern: Mapping[str, Any]) -> bool:
    wanted, words = tokenize(gold), tokenize(value) if isinstance(value, str) else []
    same = bool(positions(wanted, words)) if "$says" in pattern else words == wanted
    return same and not other_currency(gold, value)


class _Kind(NamedTuple):
    """A kind of pattern: how it is shown, its argument and `within` in braces, what fits it, and what it takes."""

    shown: str
    fit: Callable[[Any, Any, str, Mapping[str, Any]], bool]
    takes: Callable[[Any, Mapping[str, Any]], bool] = lambda _gold, _pattern: True
    form: str = ""
    """What to give, where it does not take what is there."""


def _has_words(text: Any, _pattern: Mapping[str, Any]) -> bool:
    return isinstance(text, str) and bool(tokenize(text))


def _is_near(gold: Any, pattern: Mapping[str, Any]) -> bool:
    return is_number(gold) and is_number(pattern.get("within")) and bool(pattern["within"] >= 0)


_LIST, _WORDS = "give a list of patterns", "give a text with at least one word"
_KINDS = {
    "$any": _Kind("(any value)", lambda _gold, value, _where, _pattern: value is not ABSENT),
    "$absent": _Kind("(not given)", lambda _gold, value, _where, _pattern: value is ABSENT or value is None),
    "$optional": _Kind(
        "({}, or not given)",
        lambda inner, value, where, _pattern: value is ABSENT or value is None or fits(inner, value, where),
    ),
    "$one_of": _Kind(
        "",
        lambda choices, value, where, _pattern: any(fits(choice, value, where) for choice in choices),
        lambda choices, _pattern: isinstance(choices, list) and bool(choices),
        _LIST,
    ),
    "$near": _Kind("{}±{}", _near, _is_near, "write {'$near': 12.5, 'within': 0.01}"),
    "$text": _Kind("≈{}", _text, _has_words, _WORDS),
    "$says": _Kind("(a text with {})", _text, _has_words, _WORDS),
    "$pattern": _Kind(
        "(a text like {})",
        lambda gold, value, where, _pattern: isinstance(value, str) and matches(gold, value, where=where),
        lambda gold, _pattern: isinstance(gold, str),
        "give a regular expression as a text",
    ),
    "$set": _Kind(
        "({} in any order)",
        lambda items, value, where, _pattern: (
            isinstance(value, list)
            and len(value) == len(items)
            and not unmatched(items, value, lambda item, one: fits(item, one, where))[0]
        ),
        lambda items, _pattern: isinstance(items, list),
        _LIST,
    ),
}


def pattern_key(value: Any) -> str | None:
    """The `$` key of a value that `fits` reads as a pattern; None for other values, also for those that only look like
    one: APIs have arguments such as `{"$set": {"status": "open"}}`."""
    if not isinstance(value, Mapping) or len(value) > 2:
        return None
    key = next((key for key in value if key in _KINDS), None)
    whole = key is not None and len(value) == 1 + (key == "$near") and _KINDS[key].takes(value[key], value)
    return key if whole else None


def holds_pattern(value: Any) -> bool:
    """Whether a value holds a pattern anywhere."""
    rest = [value]
    while rest:
        one = rest.pop()
        if pattern_key(one) is not None:
            return True
        rest += one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()
    return False


def unmatched(wanted: list[Any], found: list[Any], fit: Callable[[Any, Any], bool]) -> tuple[list[int], list[int]]:
    """The indexes in `wanted` and in `found` that are left when as many as possible are paired one to one.

    Patterns overlap: the first item that fits one may be the only one that fits another. So this is a maximum matching
    by augmenting paths (Kuhn 1955).
    """
    edges = [[place for place, item in enumerate(found) if fit(want, item)] for want in wanted]
    taken: dict[int, int] = {}

    def place_for(want: int, tried: set[int]) -> bool:
        for place in edges[want]:
            if place not in tried:
                tried.add(place)
                if place not in taken or place_for(taken[place], tried):
                    taken[place] = want
                    return True
        return False

    missing = [want for want in range(len(wanted)) if not place_for(want, set())]
    return missing, [place for place in range(len(found)) if place not in taken]


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number and not a bool."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class required_calls(ReadyMade):
    """A verifier: every call in `task.expected["calls"]` is among the calls that succeeded, with equal arguments.

    `expected["calls"]` is a list of `{"name": ..., "arguments": {...}}`; two equal entries need two calls. `ordered`:
    they must come in that order, with others allowed between. `only`: no other call may have succeeded. `forbid`: names
    of tools that must not even be tried, in addition to those of `task.expected["forbid"]`.

    Raises `VerifierError` for a task without `expected["calls"]`, unless something is forbidden there, and for patterns
    of arguments, which `calls_match` reads.

    Example: `required_calls(forbid=("cancel_order",))`
    """

    _: KW_ONLY
    ordered: bool = False
    only: bool = False
    forbid: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.forbid, str) or not all(isinstance(name, str) for name in self.forbid):
            raise ConfigError(f"required_calls: forbid is {self.forbid!r}; give names of tools: ('cancel_order',)")
        self.forbid = tuple(self.forbid)

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if every gold call succeeded and no forbidden one was tried, 0 otherwise."""
        gold = _gold_calls(rollout, "required_calls")
        for call in gold:
            if holds_pattern(call.get("arguments", {})):
                problem = f"holds {shortened(call)}, a pattern that no call is equal to; use calls_match()"
                raise wrong_expected(rollout.task, "calls", f"{problem}, which reads patterns")
        named = rollout.task.expected.get("forbid", [])
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            problem = f"is {shortened(named)}; give a list of names of tools"
            raise wrong_expected(rollout.task, "forbid", problem)
        # One that the tool refused was still tried.
        forbidden = [record for record in rollout.calls if record.call.name in {*self.forbid, *named}]
        return _compared(
            rollout, gold, _same_call, forbidden, "in_order" if self.ordered else "any", self.only, most_mistakes=None
        )


def _same_call(gold: Mapping[str, Any], record: CallRecord) -> bool:
    return bool(gold["name"] == record.call.name) and same_json(dict(gold.get("arguments", {})), record.call.arguments)
