"""What a report says of how it came about: seed, tasks, tools, versions, machine."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records import Rollout
from ..traces.identity import installed_versions, plain_config, seeds_of

if TYPE_CHECKING:
    from mcp_bridge import Toolset
    from mcp_bridge.ledger.lines import LedgerLine


def run_facts(info: Mapping[str, Any] | None, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Seed, task counts, tools, verifier, versions and machine of a run.

    `info`: the content of `run.json`, None without a folder. `identity`: what the folder was opened with, or would
    have been. Secrets are hidden. The versions are those of the start; those of each resume are in `run.json`.
    """
    known = plain_config(identity)
    tools, verifier = known.get("tools", {}), known.get("verifier", {})
    return {
        "seed": next(iter(seeds_of(known).values()), None),
        "tasks": {
            name: part["count"] for name in ("tasks", "train_tasks", "heldout_tasks") if (part := known.get(name))
        },
        "tools": {"source": ", ".join(tools.get("source", [])), "count": tools.get("count")},
        "verifier": verifier.get("name"),
        "versions": dict(info["versions"]) if info is not None else installed_versions(),
        "machine": machine_facts(),
    }


def call_facts(calls: Iterable[LedgerLine | Rollout]) -> dict[str, Any]:
    """How calls ended, from lines of a ledger or from rollouts; `sent_again`: attempts whose answer was lost."""
    lines = (line for one in calls for line in (one.ledger if isinstance(one, Rollout) else [one]))
    told = (line.event for line in lines if line.event not in ("started", "accepted"))
    counts = Counter("sent_again" if event == "lost" else event for event in told)
    return {"calls": dict(sorted(counts.items()))} if counts else {}


def guard_facts(toolset: Toolset) -> dict[str, Any]:
    """What the policy was not shown, what it knew by another name, and what it could destroy for real."""
    renamed = {tool.name: f"{tool.name_at_source} of {tool.source}" for tool in toolset.tools if tool.name_at_source}
    facts = {
        "tools_left_out": [f"{one.tool} of {one.source}: {one.reason}" for one in toolset.left_out],
        "tools_renamed": renamed,
        "live_destructive_tools": [tool.name for tool in toolset.live_destructive],
    }
    return {name: value for name, value in facts.items() if value}


def machine_facts() -> dict[str, Any]:
    """The processor, the cores this process may use, and the GPU where torch has found one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts: dict[str, Any] = {"processor": _processor(), "cores": usable, "system": platform.system()}
    torch = sys.modules.get("torch")  # without it nothing ran on a GPU here
    if torch is not None and torch.cuda.is_available():
        facts["gpu"] = str(torch.cuda.get_device_name())
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
