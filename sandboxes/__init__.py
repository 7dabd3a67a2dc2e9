"""Simulated backends: state that can be reset, forked, saved and compared, with tools over it."""

from .changes import Change, diff
from .sandbox import Refused, Sandbox, SandboxWorld, SetupError
from .sql import SqlSandbox

__all__ = ["Change", "Refused", "Sandbox", "SandboxWorld", "SetupError", "SqlSandbox", "diff"]
