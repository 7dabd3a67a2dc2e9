"""What one rollout may use up. Every limit that ends a rollout is named in its stop reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ConfigError


class Limits(BaseModel):
    """Budgets of one rollout. Example: `Limits(max_turns=4, max_turn_tokens=128)`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_turns: int = Field(default=8, ge=1)
    """Assistant messages."""
    max_turn_tokens: int = Field(default=256, ge=1)
    """Sampled tokens of one assistant message."""
    max_tokens: int = Field(default=2048, ge=1)
    """Sampled tokens of the whole rollout."""
    max_calls: int = Field(default=16, ge=0)
    """Tool calls of the whole rollout, mistaken ones included."""
    max_seconds: float = Field(default=1800.0, gt=0)
    """Wall-clock time, among all that run at once: on two busy cores the embedded model takes minutes for 64 rollouts.
    A rollout that runs out of it is left unscored: a slow machine is not a bad answer."""
    reply_timeout_s: float | None = Field(default=None, gt=0)
    """One reply of the policy: one that takes longer hangs, and the rollout is run again or left unscored. None: only
    `max_seconds` bounds it."""
    call_timeout_s: float = Field(default=30.0, gt=0)
    """One tool call. Running out of it is a failure of the tool and leaves the rollout unscored."""

    @classmethod
    def of(cls, given: Limits | Mapping[str, Any] | None) -> Limits:
        """Limits as users give them, the defaults for None. Raises `ConfigError` that names the limit and its value."""
        if isinstance(given, Limits):
            return given
        if not isinstance(given, Mapping | None):
            raise ConfigError(f"limits is a {type(given).__name__}; give a sdk.Limits or a mapping of them")
        try:
            return cls.model_validate(dict(given or {}))
        except ValidationError as error:
            problem = error.errors()[0]
            name = ".".join(map(str, problem["loc"]))
            if problem["type"] == "extra_forbidden":
                known = ", ".join(cls.model_fields)
                raise ConfigError(f"there is no limit {name!r}; the limits are {known}") from None
            raise ConfigError(f"limit {name} is {problem['input']!r}: {problem['msg']}") from None
