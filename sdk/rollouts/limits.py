"""Limits of a rollout. It ends when it has used one up, which its stop reason names, or by a tool that gives its final
answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError

from mcp_bridge.errors import kind_of
from mcp_bridge.records import Tool

from ..errors import ConfigError
from ..records import Options


class Limits(Options):
    """What ends one rollout. Example: `Limits(max_turns=4, max_turn_tokens=128, final_tools={"finish": "answer"})`"""

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
    final_tools: dict[str, str | None] = Field(default_factory=dict)
    """Tools that end the rollout, by name: once one has answered a call without an error, the policy is not asked
    again. The value names the argument that is the final answer (text as it is, anything else as JSON); null takes what
    the tool returned. Other calls of the same turn are made, too."""

    @classmethod
    def of(cls, given: Limits | Mapping[str, Any] | None) -> Limits:
        """Limits as users give them, the defaults for None. Raises `ConfigError` that names the limit and its value."""
        if isinstance(given, Limits):
            return given
        if not isinstance(given, Mapping | None):
            raise ConfigError(f"limits is {kind_of(given)}; give a sdk.Limits or a mapping of them")
        try:
            return cls.model_validate(dict(given or {}))
        except ValidationError as error:
            problem = error.errors()[0]
            name = ".".join(map(str, problem["loc"]))
            if problem["type"] == "extra_forbidden":
                known = ", ".join(cls.model_fields)
                raise ConfigError(f"limits: there is no limit {name!r}; the limits are {known}") from None
            said = problem["msg"].removeprefix("Value error, ")
            raise ConfigError(f"limit {name} is {problem['input']!r}: {said}") from None

    def check(self, tools: Sequence[Tool]) -> None:
        """Raise `ConfigError` where a final tool is none of `tools`, or has no such argument."""
        by_name = {tool.name: tool for tool in tools}
        for name, argument in self.final_tools.items():
            if name not in by_name:
                raise ConfigError(f"limits.final_tools names {name!r}; the tools are {', '.join(by_name) or 'none'}")
            arguments = by_name[name].input_schema.get("properties", {})
            if argument is not None and argument not in arguments:
                raise ConfigError(
                    f"limits.final_tools names the argument {argument!r} of {name}; it has "
                    f"{', '.join(arguments) or 'none'}. null takes what the tool returns"
                )
