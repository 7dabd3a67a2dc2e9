"""What can go wrong in the bridge, apart from the policy's own mistakes.

Two families: a `SourceError` is a mistake in what the user gave us and is found at start;
a `ToolFailure` is infrastructure breaking during a run and leaves the rollout unscored.
"""

from __future__ import annotations


class BridgeError(Exception):
    """Base of all errors of the bridge. The message names the value, the choices and the fix."""


class SourceError(BridgeError):
    """A tool source that cannot be used: a bad `mcp.json`, no such command, two tools of one name."""


class ToolFailure(BridgeError):
    """The infrastructure behind a tool failed. Never the policy's fault, never a bad answer."""


class ServerDied(ToolFailure):
    """A server's process or connection ended; the message carries the end of its stderr."""


class CallTimeout(ToolFailure):
    """No answer within the time limit. Whether the call took effect is unknown."""
