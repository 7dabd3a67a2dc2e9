"""The tasks that a run trains on, keeps aside and measures on, and the options that depend on that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from ..evaluation.statistics import student_t_975
from ..records import Task
from ..tasks import ThreeWaySplit, counted, keep_aside, load_tasks, split_tasks, split_three_ways, spread
from .config import (
    FEWEST_WARM_START_STEPS,
    MOST_WARM_START_STEPS,
    WARM_START_PASSES,
    TrainConfig,
    WarmStartOptions,
)
from .curriculum import tiers_in_order


def split_for_training(prompts: Any, config: TrainConfig) -> ThreeWaySplit:
    """The tasks to train on, those kept aside to choose weights on (none where nothing is chosen), and the held-out
    ones to measure on. `prompts`: anything `sdk.tasks.load_tasks` takes.
    """
    tasks = load_tasks(prompts)
    options = config.evaluation
    if options.validation is None:
        split = _split_by_default(tasks, config)
    elif options.validation:
        split = split_three_ways(tasks, heldout=options.heldout, validation=options.validation, seed=config.seed)
    else:
        train, heldout = split_tasks(tasks, heldout=options.heldout, seed=config.seed)
        split = ThreeWaySplit(train, [], heldout)
        if idle := [task for task in tasks if task.tags.get("split") == "validation"]:
            raise ConfigError(
                f"{len(idle)} tasks are tagged 'validation', the first is {idle[0].id!r}, but option "
                "evaluation.validation is 0: nothing would be chosen on them; leave out the option or the tasks"
            )
    return split._replace(heldout=spread(split.heldout, options.max_heldout))


def _split_by_default(tasks: Sequence[Task], config: TrainConfig) -> ThreeWaySplit:
    """Kept aside are the tasks tagged for validation, or some of the training tasks, as long as a step and the warm
    start have enough of the others."""
    if any(task.tags.get("split") == "validation" for task in tasks):
        return split_three_ways(tasks, heldout=config.evaluation.heldout, seed=config.seed)
    train, heldout = split_tasks(tasks, heldout=config.evaluation.heldout, seed=config.seed)
    step = config.grpo.prompts_per_step if _step_is_set(config) else config.batching.micro_batches or 1
    needed = min(step, _first_to_choose_from(train, config))
    shown = any(task.demonstration for task in train)

    def enough(rest: Sequence[Task]) -> bool:
        with_demonstrations = not shown or any(task.demonstration for task in rest)
        return with_demonstrations and _first_to_choose_from(rest, config) >= needed

    rest, aside = keep_aside(train, seed=config.seed, enough=enough)
    return ThreeWaySplit(rest, aside, heldout)


def _first_to_choose_from(tasks: Sequence[Task], config: TrainConfig) -> int:
    """How many tasks the first steps take theirs from: all, or those of the lowest tier."""
    tag = config.curriculum.tiers
    if tag is None or any(tag not in task.tags for task in tasks):
        return len(tasks)
    tiers = tiers_in_order(tasks, tag)
    return sum(task.tags[tag] == tiers[0] for task in tasks) if tiers else 0


def _step_is_set(config: TrainConfig) -> bool:
    return "prompts_per_step" in config.grpo.model_fields_set


def settle(config: TrainConfig, tasks: ThreeWaySplit) -> tuple[TrainConfig, list[str]]:
    """The options of the run, with numbers where `config` leaves them open, and lines that explain them."""
    train = tasks.train
    settled: dict[str, Any] = {}
    lines = [_kept_aside(tasks, config), *_few_families(tasks)]
    if config.evaluation.validation is None:
        settled["evaluation.validation"] = len(tasks.validation)
    if config.warm_start.max_steps is None:
        shown = sum(bool(task.demonstration) for task in train)
        searches = config.warm_start.find_demonstrations
        demonstrations = shown or (len(train) if searches else 0)
        settled["warm_start.max_steps"] = warm_start_steps(demonstrations, config.warm_start)
        if not shown and not searches:
            lines.append(
                f"no demonstration in {counted(train, 'training task')}: there is no warm start, the model learns from "
                "its own attempts alone"
            )
    wanted, parts = config.grpo.prompts_per_step, config.batching.micro_batches or 1
    count = _first_to_choose_from(train, config)
    if count < wanted and not _step_is_set(config):
        size = count - count % parts  # a step has whole parts
        if not size and config.grpo.max_steps:
            raise ConfigError(
                f"batching.micro_batches is {parts}, but there are only {count} training tasks to begin with; lower it "
                "or add tasks"
            )
        if size:  # also where there are no steps yet: the run may be trained longer
            settled["grpo.prompts_per_step"] = size
        why = "there are no more to begin with" if size == count else f"of {count} they fit {parts} micro-batches"
        if config.grpo.max_steps:
            lines.append(f"{size} tasks in a step, not {wanted}: {why} (grpo.prompts_per_step)")
    options = config.changed(settled)
    return options.changed({"batching.micro_batches": options.parts}), lines


def warm_start_steps(demonstrations: int, options: WarmStartOptions) -> int:
    """How many there are by default."""
    used = demonstrations if options.max_tasks is None else min(demonstrations, options.max_tasks)
    steps = math.ceil(WARM_START_PASSES * used / options.batch_size)
    return min(max(steps, FEWEST_WARM_START_STEPS), MOST_WARM_START_STEPS) if used else 0


def _kept_aside(tasks: ThreeWaySplit, config: TrainConfig) -> str:
    lost = "the run ends with its last weights, also where they are worse than those it began with"
    if not tasks.validation:
        none = config.evaluation.validation == 0
        why = "evaluation.validation is 0" if none else f"too few: {counted(tasks.train, 'training task')}"
        return f"no task is kept aside to choose weights on ({why}): {lost}"
    families = {task.family for task in tasks.validation}
    line = f"kept aside to choose weights on: {counted(tasks.validation)}; trained on: {counted(tasks.train)}"
    return f"{line}, also of these families" if families & {task.family for task in tasks.train} else line


_FEW_FAMILIES = 10


def _few_families(tasks: ThreeWaySplit) -> list[str]:
    """A warning where so few families are held out that the report can hardly tell a gain from chance."""
    held = len({task.family for task in tasks.heldout})
    if not held or held >= _FEW_FAMILIES:
        return []
    if held == 1:
        known = "success is known for this one only"
    elif _points(held) < 50:
        known = f"success is known within {_points(held)} points at worst"
    else:
        known = "success may be anything at worst"
    total = len({task.family for side in tasks for task in side})
    return [
        f"few families: {counted(tasks.heldout, 'held-out task')} (of {total}). Intervals count families, so {known}; "
        f"with {_FEW_FAMILIES} held-out families it would be known within {_points(_FEW_FAMILIES)} points, with 30 "
        f"within {_points(30)}, with 100 within {_points(100)}. Give every wording, entity or combination a family of "
        "its own, or raise evaluation.heldout"
    ]


def _points(families: int) -> int:
    """Half of the widest interval of a success rate where each family counts as one task, in points."""
    return round(100 * student_t_975(families - 1) * 0.5 / math.sqrt(families))


def require_use_of_teacher(train: Sequence[Task], config: TrainConfig) -> None:
    """Raises `ConfigError` where a teacher would have nothing to teach. `config` is settled."""
    shown = sum(bool(task.demonstration) for task in train)
    idle = {
        f"{shown} of {counted(train, 'training task')} have demonstrations": shown,
        "warm_start.find_demonstrations is false": not config.warm_start.find_demonstrations,
        "warm_start.max_steps is 0": config.warm_start.max_steps == 0,
    }
    if why := next((why for why, applies in idle.items() if applies), None):
        raise ConfigError(f"teacher does nothing while {why}; leave one of them out")


def require_a_way_to_learn(tasks: ThreeWaySplit, config: TrainConfig) -> None:
    """Raises `ConfigError` where nothing could be learned with these tasks and settled options, or measured."""
    train = tasks.train
    for name, value in config.evaluation.measures_meanwhile().items():
        if not tasks.validation:
            raise ConfigError(
                f"evaluation.{name} is {value}, but of {counted(train, 'training task')} none could be kept aside to "
                "measure on; add tasks, or set evaluation.validation to a number of them"
            )
    lacks = not any(task.demonstration for task in train) and not config.warm_start.find_demonstrations
    if config.warm_start.max_steps and lacks:
        raise ConfigError(
            f"warm_start.max_steps is {config.warm_start.max_steps}, but of {counted(train, 'training task')} none "
            "has a demonstration; add demonstrations, or leave the option out for a model that can already call tools"
        )
    if not config.warm_start.max_steps and not config.grpo.max_steps:
        raise ConfigError(
            "grpo.max_steps is 0 and there is no warm start (warm_start.max_steps is 0, or no training task has a "
            "demonstration): nothing would be trained; use sdk.evaluate"
        )
    options = config.curriculum
    tags = {"curriculum.by": options.by, "curriculum.tiers": options.tiers, "grpo.domain": config.grpo.domain}
    for option, tag in tags.items():
        if tag is not None and (without := [task for task in train if tag not in task.tags]):
            raise ConfigError(
                f"{option} is {tag!r}, but {len(without)} of {len(train)} training tasks have no such tag; "
                f"task {without[0].id!r} has the tags {sorted(without[0].tags)}"
            )
    size = config.grpo.prompts_per_step
    if config.grpo.max_steps and size > len(train):
        raise ConfigError(
            f"grpo.prompts_per_step is {size}, but there are only {len(train)} training tasks; lower it or add tasks"
        )
    if config.grpo.max_steps and options.tiers is not None:
        lowest = tiers_in_order(train, options.tiers)[0]
        if (count := sum(task.tags[options.tiers] == lowest for task in train)) < size:
            raise ConfigError(
                f"grpo.prompts_per_step is {size}, but the lowest tier, {lowest!r}, has only {count} training tasks; "
                "lower it or add tasks"
            )
