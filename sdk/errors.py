"""Errors of the sdk. Each message names the value, the valid choices and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceback import FrameSummary


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


def users_frame(error: BaseException) -> FrameSummary | None:
    """Where in the user's own code an error came from: the innermost frame of neither a library nor toolbake.

    A mistyped field of a rollout is raised inside pydantic, but it is the verifier's line that needs the fix. Without
    such a frame the innermost of all; None where nothing was running.
    """
    import os
    import sysconfig
    import traceback

    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    elsewhere = tuple(os.path.join(folder, "") for folder in (*libraries, os.path.dirname(__file__)))
    own = [f for f in frames if not f.filename.startswith(elsewhere)]
    return next(reversed(own or frames), None)
