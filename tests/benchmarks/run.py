"""All benchmarks in one run, into docs/benchmarks.md: `make bench`."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import call_faults
import end_to_end
import evidence
import lost_calls
import rollout_engine
import rollout_sampling  # its import sets what must be set before torch is loaded
import tool_calls
import training_step
import viewing
import vllm_engine
import world_forks

TARGET = Path(__file__).parents[2] / "docs" / "benchmarks.md"
PACKAGES = ("toolbake", "mcp", "aiohttp", "httpx2", "torch", "transformers", "trl")


def machine() -> str:
    """Processor and cores."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = models[0].strip() if models else name
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    head = [
        "# Benchmarks",
        "",
        "Written by `make bench`, everything in one run, each pair alternating: on shared machines read the ratios.",
        "",
        f"{datetime.date.today().isoformat()}; {machine()}; Python {platform.python_version()}; {versions}; "
        "the embedded SmolLM2-135M-Instruct.",
    ]
    sections = [
        tool_calls.section(),
        vllm_engine.section(),  # beside `generate`, too
        rollout_sampling.section(),
        training_step.section(),
        end_to_end.section(),
        rollout_engine.section(),
        world_forks.section(),
        lost_calls.section(),
        call_faults.section(),
        evidence.section(),
        viewing.section(),
    ]
    TARGET.write_text("\n".join(head) + "\n\n" + "\n\n".join(sections) + "\n")
    sys.stdout.write(TARGET.read_text())


if __name__ == "__main__":
    main()
