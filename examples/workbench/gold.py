"""What calls leave in the office: the gold of a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clone import Call
from office import Office

from sandboxes import diff
from sandboxes.changes import Change, State


class Replay:
    """Calls replayed in fresh worlds, to see what they leave. Without a scenario these have the whole office."""

    def __init__(self, folder: str | Path, scenario: str = "default") -> None:
        self.office = Office(folder, scenario=scenario)
        self.start = self.office.state()
        self._reads = {tool.name for tool in self.office.tools if tool.annotations.read_only}

    def end(self, calls: Sequence[Call]) -> State:
        """The state after the calls. Those that only read are not made; what a tool refuses changes nothing."""
        world = self.office.fork()
        try:
            for name, arguments in calls:
                if name not in self._reads:
                    world.call_now(name, arguments)
            return world.state()
        finally:
            world.close()

    def changes(self, calls: Sequence[Call]) -> list[Change]:
        """What the calls change: the gold of a task."""
        return diff(self.start, self.end(calls))
