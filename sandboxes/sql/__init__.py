"""Sandboxes over SQLite: tools are functions of a connection, and a fork shares every page that it has not changed."""

from .worlds import SqlSandbox, SqlTool, read_clock

__all__ = ["SqlSandbox", "SqlTool", "read_clock"]
