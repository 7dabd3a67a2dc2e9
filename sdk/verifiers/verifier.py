"""A verifier: what may be one, what it may return, and how it is run within a time limit."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Protocol, TypeGuard, TypeVar, runtime_checkable

import anyio
import anyio.lowlevel
from pydantic import ValidationError

from mcp_bridge.daemon_threads import call_in_daemon_thread
from mcp_bridge.errors import is_cancelled, users_frame
from mcp_bridge.safe_text import shortened, shown_by, shown_parameters

from ..errors import ConfigError, VerifierError
from ..records import LARGEST, Failure, Rollout, Verdict
from ..traces.identity import digest, is_secret_key, without_addresses
from ..traces.json_text import stored_view

Score = float | bool | Verdict
"""What a verifier returns. True is 1.0 and False is 0.0; a number is from -1e15 to 1e15."""


@runtime_checkable
class Verifier(Protocol):
    """An object that judges rollouts. `verify` may be async."""

    def verify(self, rollout: Rollout, /) -> Score | Awaitable[Score]: ...


VerifierLike = Verifier | Callable[[Rollout], Score] | Callable[[Rollout], Awaitable[Score]]
"""A function of the rollout, sync or async, or a `Verifier`."""


@runtime_checkable
class GroupVerifier(Protocol):
    """An object that compares the rollouts of one task in training; `sdk.judging.ranked` is one.

    `verify` judges a rollout alone, as soon as it has ended. Held-out tasks, probes and demonstrations get only that.
    `most` is how many rollouts a group may have.
    """

    most: int

    def verify(self, rollout: Rollout, /) -> Score | Awaitable[Score]: ...

    async def verify_group(self, rollouts: Sequence[Rollout], /) -> Mapping[str, Verdict]:
        """Verdicts by id, for the scored rollouts of a group, which have their verdicts of `verify`. A rollout without
        an entry keeps its own.

        Raises `VerifierError` where there is no verdict; the whole group is unscored then.
        """

    def again(self, rollouts: Sequence[Rollout], alone: Mapping[str, Verdict], /) -> Mapping[str, Verdict]:
        """The verdicts that `verify_group` must have given for stored rollouts, computed from their recorded verdicts
        and from `alone`, the verdicts of `verify`. What cannot be computed again, such as a model's reply, is taken as
        recorded. Raises `VerifierError` where the record is not possible.
        """


class ReadyMade:
    """The base of ready-made verifiers: dataclasses with the names of functions, as they are used like these.

    Each is shown as the call that makes it: fields that must be given by their value, others by name and value where
    they are not at their default. Example: `grounded(answer_match(), least=0.8)`
    """

    known_as: ClassVar[str]
    """By this name of its class a run knows a verifier: `AnswerMatch` of `answer_match`."""

    def __init_subclass__(cls) -> None:
        cls.known_as = f"{cls.__module__}.{''.join(part.capitalize() for part in cls.__name__.split('_'))}"

    def __repr__(self) -> str:
        shown: list[str] = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name in _PARTS:
                shown += map(verifier_name, value)
            elif value != field.default:
                is_named = field.kw_only is True or field.default is not dataclasses.MISSING
                shown.append(f"{field.name}=" * is_named + _argument(value))
        return f"{type(self).__name__}({', '.join(shown)})"


_PARTS = frozenset({"verifiers", "gates", "watchers"})
"""Fields whose verifiers are arguments one by one."""


def judges_groups(verifier: Any) -> TypeGuard[GroupVerifier]:
    """Whether a verifier judges the rollouts of a group together."""
    return callable(getattr(verifier, "verify_group", None))


# ---------------------------------------------------------------------------------------------------------------------
# Calling a sync function without blocking the loop, and without waiting for it at exit.

Given = TypeVar("Given")

_MOST_AT_ONCE = 64
"""As many as rollouts are in flight by default: the time that a verifier may take runs while it waits for a thread,
too, and one that asks a server would be left without a verdict because of those before it."""
_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("verifier_threads")


async def call_in_thread(function: Callable[[Given], Any], given: Given) -> Any:
    """`function(given)` in a daemon thread, as a verifier may never return. Raises what it raises."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_MOST_AT_ONCE)
        _limiter.set(limiter)
    async with limiter:
        return await call_in_daemon_thread(lambda: function(given), name="verifier")


# ---------------------------------------------------------------------------------------------------------------------


async def judge_group(verifier: GroupVerifier, rollouts: Sequence[Rollout], timeout_s: float | None = 60) -> None:
    """Put the verdicts of a group into its rollouts, which have ended and have been judged alone.

    Rollouts that broke or could not be judged take no part. Where the group gets no verdict, all its rollouts are
    unscored: an average of only those that needed no judge would be biased.
    """
    scored = [rollout for rollout in rollouts if rollout.scored]
    if not scored:
        return
    try:
        found = await _verdicts(verifier, scored, timeout_s)
    except VerifierError as error:
        for rollout in scored:
            rollout.verdict = None
            rollout.failure = Failure(boundary="verifier", kind="VerifierError", message=str(error))
        return
    for rollout in scored:
        rollout.verdict = found.get(rollout.id, rollout.verdict)


async def _verdicts(
    verifier: GroupVerifier, scored: Sequence[Rollout], timeout_s: float | None
) -> Mapping[str, Verdict]:
    name = verifier_name(verifier)
    views = [_seen(rollout) for rollout in scored]
    found = await returned(
        name, lambda: verifier.verify_group(views), timeout_s, about=f"the group {scored[0].group!r}"
    )
    if not isinstance(found, Mapping) or not set(found) <= {rollout.id for rollout in scored}:
        raise VerifierError(f"the verifier {name} returned {repr(found)[:200]}; return verdicts by the rollouts' ids")
    return {rollout: as_verdict(verdict, name) for rollout, verdict in found.items()}


def _seen(rollout: Rollout) -> Rollout:
    """The rollout's evidence, with its own verdict."""
    view = evidence_of(rollout)
    view.verdict = rollout.verdict.model_copy(deep=True) if rollout.verdict is not None else None
    return view


# ---------------------------------------------------------------------------------------------------------------------

_FIX = "return a finite float, a bool, or sdk.Verdict(score=..., components={...}, explanation='...')"


async def run_verifier(verifier: VerifierLike, rollout: Rollout, timeout_s: float | None = 60) -> Verdict:
    """The verdict of `verifier` on `rollout`.

    The verifier sees the rollout's evidence: a copy made from what a run folder stores, without a verdict. So it cannot
    alter the trace, and gives the same verdict when it runs again on the stored rollout. A sync verifier runs in a
    worker thread; one that exceeds its time limit is left behind there, since Python cannot stop a thread.
    `timeout_s=None`: no limit.

    Raises `VerifierError`, which names the verifier and the fix, where it raises, takes too long, or returns a value
    that is not a score.
    """
    return await judge_evidence(verifier, evidence_of(rollout), timeout_s)


def evidence_of(rollout: Rollout) -> Rollout:
    """The copy that a verifier sees. Raises `VerifierError` for a rollout that a run folder cannot store."""
    try:
        return stored_view(rollout)
    except (TypeError, ValueError) as error:
        raise VerifierError(f"rollout {rollout.id!r} holds what no evidence can: {error}") from error


async def judge_evidence(verifier: VerifierLike, evidence: Rollout, timeout_s: float | None = 60) -> Verdict:
    """As `run_verifier`, on a rollout that was just read from a run folder; the verifier may alter it."""
    name = verifier_name(verifier)
    judge = _judge(verifier)
    about = f"rollout {evidence.id!r}"
    found = await returned(name, lambda: _call(judge, evidence), timeout_s, about=about)
    verdict = as_verdict(found, name)
    if verdict.turn_rewards is not None and len(verdict.turn_rewards) != evidence.turns:
        raise VerifierError(
            f"the verifier {name} gave {len(verdict.turn_rewards)} turn_rewards for rollout {evidence.id!r}, which has "
            f"{evidence.turns} assistant messages; give one for each"
        )
    return verdict


async def returned(name: str, judge: Callable[[], Awaitable[Any]], timeout_s: float | None, *, about: str) -> Any:
    """The return value of the verifier called `name`. Raises `VerifierError` where it raises or takes too long."""
    with anyio.move_on_after(timeout_s) as scope:
        try:
            found = await judge()
        except VerifierError as error:
            raise VerifierError(f"{name}: {error}") from error
        except anyio.get_cancelled_exc_class() as error:
            if is_cancelled():
                raise
            raise VerifierError(f"the verifier {name} waited for something that was cancelled, {about}") from error
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit and pytest's own, too: they end the verdict, and no run
            raise VerifierError(f"the verifier {name} raised {described(error)}") from error
    if scope.cancelled_caught:
        raise VerifierError(
            f"the verifier {name} gave no verdict within {timeout_s} s on {about}; "
            "make it faster or raise the time limit"
        )
    return found


def check_verifier(verifier: Any) -> None:
    """Raises `ConfigError` for a value that cannot be a verifier, before any rollout is run."""
    if inspect.isclass(verifier):
        raise ConfigError(f"the verifier is the class {verifier.__name__}; give an instance: {verifier.__name__}()")
    if not callable(verifier) and not isinstance(verifier, Verifier):
        raise ConfigError(
            f"the verifier is {verifier!r} ({type(verifier).__name__}); give a function of the rollout, "
            "an object with a method verify(rollout), or sdk.verifiers.as_expected() to judge by the tasks' own fields"
        )
    if inspect.isgeneratorfunction(_judge(verifier)) or inspect.isasyncgenfunction(_judge(verifier)):
        raise ConfigError(
            f"the verifier {verifier_name(verifier)} yields, so that it gives no score; let it return one"
        )
    try:
        signature = inspect.signature(_judge(verifier))
    except (ValueError, TypeError):  # a builtin without a signature; running it will show
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(
            f"the verifier {verifier_name(verifier)} takes {shown_parameters(_judge(verifier))} and is called with one "
            f"argument, the rollout: {error}; let it take (rollout)"
        ) from error


def verifier_name(verifier: Any) -> str:
    """A verifier's name in messages and verdicts: its function's name, its own repr, or its class.

    A `functools.partial` is named by its parts. Memory addresses are left out.
    """
    if inspect.isroutine(verifier):
        return str(getattr(verifier, "__name__", type(verifier).__name__))
    if isinstance(verifier, functools.partial):
        parts = [verifier_name(verifier.func), *map(_argument, verifier.args)]
        parts += [f"{n}={'***' if is_secret_key(n) else _argument(a)}" for n, a in verifier.keywords.items()]
        return f"partial({', '.join(parts)})"
    if any("__repr__" in vars(cls) for cls in type(verifier).__mro__[:-1]):
        return without_addresses(repr(verifier))
    return type(verifier).__name__


def verifier_identity(verifier: Any) -> dict[str, str]:
    """The identity of a verifier, the same in every process: `name`, and `digest` of its code and parts.

    The digest covers a function's module, name, source, defaults and closure, and the constants, functions and classes
    of the user's that it reads, so an edited verifier is another one. It covers what an object holds, too; an object
    whose attributes change while it works needs a `__repr__` of its own.
    """
    return {"name": verifier_name(verifier), "digest": digest(verifier)}


def _argument(value: Any) -> str:
    if callable(value) or isinstance(value, Verifier):
        return verifier_name(value)
    return shortened(without_addresses(repr(value)), 160)


def _judge(verifier: Any) -> Callable[[Rollout], Any]:
    judge = getattr(verifier, "verify", None)
    return judge if callable(judge) else verifier  # type: ignore[no-any-return]


async def _call(judge: Callable[[Rollout], Any], evidence: Rollout) -> Any:
    is_async = inspect.iscoroutinefunction(judge) or inspect.iscoroutinefunction(getattr(judge, "__call__", None))  # noqa: B004
    found = judge(evidence) if is_async else await call_in_thread(judge, evidence)
    # A sync function may still hand back something to await, for example a lambda around an async function.
    return await found if isinstance(found, Awaitable) else found


def as_verdict(found: Any, name: str) -> Verdict:
    """The return value of the verifier called `name` as a verdict. Raises `VerifierError` for what is not a score."""
    try:
        return _as_verdict(found, name)
    except VerifierError:
        raise
    except Exception as error:  # what reads a value is its own code
        raise VerifierError(
            f"the verifier {name} returned a {type(found).__qualname__} that cannot be read: {described(error)}; {_FIX}"
        ) from error


def plain_value(found: Any) -> Any:
    """One value of numpy or torch, also of type bool, as Python's; everything else as it is."""
    return found.item() if getattr(found, "ndim", None) == 0 and hasattr(found, "item") else found


def _as_verdict(found: Any, name: str) -> Verdict:
    if isinstance(found, Verdict):
        try:  # validated again: fields may have been set after it was built
            return Verdict.model_validate(found.model_dump(warnings=False))
        except ValidationError as error:
            raise VerifierError(
                f"the verifier {name} returned {found!r}: {error.errors()[0]['msg']}; {_FIX}"
            ) from error
    found = plain_value(found)
    if isinstance(found, numbers.Real | Decimal):  # bool among them
        try:
            score = float(found)
        except OverflowError:
            score = math.inf
        if abs(score) <= LARGEST:
            return Verdict(score=score)
        beyond = f", and a score is from {-LARGEST:g} to {LARGEST:g}" if math.isfinite(score) else ""
        raise VerifierError(f"the verifier {name} returned {shortened(shown_by(repr, found), 200)}{beyond}; {_FIX}")
    kind = "" if found is None else f" ({type(found).__module__}.{type(found).__qualname__})"
    raise VerifierError(f"the verifier {name} returned {shortened(shown_by(repr, found), 200)}{kind}; {_FIX}")


def described(error: BaseException) -> str:
    """The exception with the line of the verifier that raised it."""
    message = shown_by(str, error).strip() or "no message"
    frame = users_frame(error)
    if frame is None:
        return f"{type(error).__name__}: {message}"
    line = f": {frame.line}" if frame.line else ""
    return f"{type(error).__name__}: {message} ({frame.filename}:{frame.lineno} in {frame.name}{line})"
