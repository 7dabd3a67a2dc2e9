"""What a report says of how it came about: seed, tasks, tools, versions, machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..traces.identity import installed_versions, plain_config, seeds_of


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
