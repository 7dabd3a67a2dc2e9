"""Simulated backends: state that can be reset, forked, saved and compared, with tools over it."""

from mcp_bridge.sources.spoiling import faults_are_put_in_by

from .changes import Change, diff
from .sandbox import Refused, Sandbox, SandboxWorld, SetupError
from .sql import SqlSandbox

faults_are_put_in_by("sandboxes.faults.configured:faults_for")

__all__ = ["Change", "Refused", "Sandbox", "SandboxWorld", "SetupError", "SqlSandbox", "diff"]
