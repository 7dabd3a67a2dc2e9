"""What was made, and what was not and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..records import Task


@dataclass(frozen=True)
class SynthesizedTasks:
    """Tasks made from tools. `print` it; give `tasks` or `path` to `sdk.train` as prompts."""

    tasks: Sequence[Task]
    wanted: int
    attempts: int
    left_out: Mapping[str, int]
    """Reason -> how many attempts it ended."""
    unused_tools: Mapping[str, str]
    """Tools that no task uses, and why."""
    path: Path | None = None

    def __str__(self) -> str:
        tiers = Counter(task.tags["tier"] for task in self.tasks)
        shown = ", ".join(f"{count} of {tier} call{'s' * (tier != '1')}" for tier, count in sorted(tiers.items()))
        where = f" in {self.path}" if self.path is not None else ""
        worded = sum(task.tags["wording"] == "model" for task in self.tasks)
        if self.tasks:
            by_model = f", {worded} are worded by the model" if worded else ""
            made = f"{len(self.tasks)} tasks{where} from {self.attempts} attempts: {shown}"
            lines = [f"{made}; all were played again in fresh worlds{by_model}"]
        else:
            lines = [f"no task was made in {self.attempts} attempts"]
        if len(self.tasks) < self.wanted:
            lines.append(
                f"{self.wanted} were wanted: the tools and worlds give no more that differ enough; give more `setups`, "
                "more `max_calls`, or go on with fewer"
            )
        lines += [f"  {count} left out: {reason}" for reason, count in Counter(self.left_out).most_common()]
        lines += [f"  the tool {name} is not used: {reason}" for name, reason in self.unused_tools.items()]
        return "\n".join(lines)
