"""Errors out of task groups, as themselves: who connects tools need not know that task groups are used inside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

from .errors import BridgeError


@contextlib.contextmanager
def ungrouped() -> Iterator[None]:
    """An exception group that holds errors of the bridge alone comes out as the first of them."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise_as_itself(group)


def raise_as_itself(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """As `ungrouped`, for a group that was caught."""
    plain = as_itself(group)
    if plain is group:
        raise group
    raise plain from plain.__cause__


def as_itself(error: BaseException, raised: BaseException | None = None) -> BaseException:
    """The error to raise in place of `error`.

    `raised`: what the block inside raised; groups that hold nothing else are left out around it. Of several errors
    of the bridge the first is given, with the others in its notes. Every other error is given as it is.
    """
    if error is raised or not isinstance(error, BaseExceptionGroup):
        inner: list[BaseException] = [error]
    else:
        inner = list(_leaves(error, raised))
    if len(inner) == 1 and inner[0] is raised and not isinstance(raised, BaseExceptionGroup):
        return inner[0]
    if len(inner) == 1 and inner[0] is raised and isinstance(raised, BaseExceptionGroup):
        error, inner = raised, list(_leaves(raised, None))
    if not all(isinstance(one, BridgeError) for one in inner):
        return error
    first, *others = inner
    for other in others:
        first.add_note(f"besides: {type(other).__name__}: {other}")
    return first


def _leaves(error: BaseException, whole: BaseException | None) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup) and error is not whole:
        for one in error.exceptions:
            yield from _leaves(one, whole)
    else:
        yield error
