"""Errors of the sdk. Each message names the value, the valid choices and the fix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class ToolbakeError(Exception):
    """Base of all errors that a user can fix."""


class ConfigError(ToolbakeError):
    """An option, a prompt file or a combination of them that cannot work."""


class ModelError(ToolbakeError):
    """A model or tokenizer that cannot be loaded or lacks something needed."""


class RunFolderError(ToolbakeError):
    """An output folder that cannot be written, holds another run, or is damaged."""


class StoppedByAlarm(ToolbakeError):
    """A training that an alarm ended: a reward was earned in a way that nobody meant."""


class PolicyFailure(ToolbakeError):
    """The engine or endpoint behind a policy failed. The rollout stays unscored."""


class AgentFailure(ToolbakeError):
    """An agent of the user's that crashed, never asked its model, or asked without end. The rollout stays unscored."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class UserFailure(ToolbakeError):
    """Who plays a task's user failed, or did not keep to its part. The rollout stays unscored."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class VerifierError(ToolbakeError):
    """A verifier raised or returned something that is not a score. The rollout stays unscored."""


def require_number(name: str, value: Any, *, least: float = -math.inf, whole: bool = False) -> None:
    """Raises `ConfigError` for a value that is not a finite number from `least` on. True and False are none."""
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not (is_number and (whole or math.isfinite(value)) and value >= least):
        kind = "a whole number" if whole else "a finite number"
        raise ConfigError(f"{name} is {value!r}; give {kind}" + f" from {least:g}" * math.isfinite(least))


def wrong_fields(error: ValidationError, whole: str) -> str:
    """What is wrong with a record, field by field and without the values. `whole`: what the record itself is called."""
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or whole}: {one['msg']}" for one in error.errors())


@contextmanager
def plain_errors() -> Iterator[None]:
    """What fails inside a task group comes out as itself: callers catch documented types, not groups of them.

    Wrap the task group in it. Of several errors the first is raised; the others stay in its `__context__`.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__
