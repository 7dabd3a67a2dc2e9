"""The benchmarks, into docs/benchmarks.md: `make bench` for all, or some of them by name.

    python tests/benchmarks/run.py [--list] [--model FOLDER] [name ...]

Each writes its section as soon as it has ended, in place of its last one, with the day and the load that it ran under;
what was measured before stays. So a run that is cut off loses nothing, and goes on with the names that are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import inspect
import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

TARGET = Path(__file__).parents[2] / "docs" / "benchmarks.md"
PACKAGES = ("toolbake", "mcp", "aiohttp", "httpx2", "torch", "transformers", "trl")
NAMES = (
    "tool_calls",
    "rollout_sampling",
    "vllm_engine",
    "constrained_decoding",
    "training_step",
    "end_to_end",
    "first_update",
    "rollout_engine",
    "world_forks",
    "lost_calls",
    "call_faults",
    "evidence",
    "viewing",
    "small_systems",
    "published_documents",
    "agents_by_url",
    "planted_holes",
)


def machine() -> str:
    """Processor and cores."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = models[0].strip() if models else name
    return f"{name}, {os.cpu_count()} cores"


def conditions() -> str:
    """Where and with what a section was measured."""
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return f"{machine()}; Python {platform.python_version()}; {versions}"


def measured(name: str, model: str | None) -> str:
    """One benchmark's section, with a last line that says when and where. `model`: see `--model`."""
    load, began = os.getloadavg()[0], time.time()
    with contextlib.redirect_stdout(sys.stderr):  # what it says while it works
        program = importlib.import_module(name)
        takes_model = "model" in inspect.signature(program.section).parameters
        section = program.section(**({"model": Path(model)} if model and takes_model else {})).rstrip()
    minutes = (time.time() - began) / 60
    day = datetime.date.today().isoformat()
    where = f"{minutes:.0f} minutes, load average before it {load:.1f}; {conditions()}"
    return f"{section}\n\n*`{name}.py`, {day}, {where}.*\n"


def placed(page: str, section: str) -> str:
    """`page` with `section` in place of those of the same titles, else at the end of what was measured."""
    before, *parts = re.split(r"(?m)^(?=## )", page)
    new = re.split(r"(?m)^(?=## )", section)[1:]
    titles = [part.partition("\n")[0] for part in new]
    places = [place for place, part in enumerate(parts) if part.partition("\n")[0] in titles]
    kept = [part for place, part in enumerate(parts) if place not in places]
    place = places[0] if places else len(kept)
    return before + "\n".join(part.strip() + "\n" for part in [*kept[:place], *new, *kept[place:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of: {', '.join(NAMES)}; all where none is given")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument(
        "--model", metavar="FOLDER", help="the quickstart's warm start, for the programs that train it otherwise"
    )
    parser.add_argument("--section", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        print(measured(options.section, options.model))
        return
    strangers = sorted(set(options.names) - set(NAMES))
    if strangers:
        parser.error(f"there is no benchmark {', '.join(strangers)}; there are {', '.join(NAMES)}")
    if options.list:
        print("\n".join(NAMES))
        return
    chosen = options.names or NAMES
    failed = []
    for place, name in enumerate(chosen, 1):
        print(f"== {name} ({place} of {len(chosen)}) ==", flush=True)
        # Each in a process of its own: what one loads and keeps in memory must not slow down the next.
        command = [sys.executable, __file__, "--section", name]
        if options.model:
            command += ["--model", options.model]
        made = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        print(made.stdout, flush=True)
        if made.returncode:
            failed.append(name)
        else:
            TARGET.write_text(placed(TARGET.read_text(), made.stdout))
    if failed:
        sys.exit(f"not measured, see above: {', '.join(failed)}")


if __name__ == "__main__":
    main()
