"""Which tasks a run trains on, keeps aside and measures on, and the options that depend on that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from ..records import Task
from ..tasks import ThreeWaySplit, keep_aside, load_tasks, split_tasks, split_three_ways, spread
from .config import DEFAULT_WARM_START_STEPS, TrainConfig
from .curriculum import tiers_in_order


def choose_sides(prompts: Any, config: TrainConfig) -> ThreeWaySplit:
    """The tasks to train on, those kept aside to choose weights on (none where nothing is chosen), and the held-out
    ones to measure on. `prompts`: anything `sdk.tasks.load_tasks` takes.
    """
    tasks = load_tasks(prompts)
    if config.validation is None:
        split = _split_by_default(tasks, config)
    elif config.validation:
        split = split_three_ways(tasks, heldout=config.heldout, validation=config.validation, seed=config.seed)
    else:
        train, heldout = split_tasks(tasks, heldout=config.heldout, seed=config.seed)
        split = ThreeWaySplit(train, [], heldout)
        if idle := [task for task in tasks if task.tags.get("split") == "validation"]:
            raise ConfigError(
                f"{len(idle)} tasks are tagged 'validation', the first is {idle[0].id!r}, but option validation is 0: "
                "nothing would be chosen on them; leave out the option or the tasks"
            )
    return split._replace(heldout=spread(split.heldout, config.max_heldout))


def _split_by_default(tasks: Sequence[Task], config: TrainConfig) -> ThreeWaySplit:
    """Kept aside are the tasks tagged for validation, or some of the training tasks, as long as a step and the warm
    start have enough of the others."""
    train, heldout = split_tasks(tasks, heldout=config.heldout, seed=config.seed)
    if tagged := [task for task in tasks if task.tags.get("split") == "validation"]:
        return ThreeWaySplit(train, tagged, heldout)
    needed = min(config.prompts_per_step, _first_to_choose_from(train, config)) if _step_is_set(config) else 1
    shown = any(task.demonstration for task in train)

    def enough(rest: Sequence[Task]) -> bool:
        with_demonstrations = not shown or any(task.demonstration for task in rest)
        return with_demonstrations and _first_to_choose_from(rest, config) >= needed

    rest, aside = keep_aside(train, seed=config.seed, enough=enough)
    return ThreeWaySplit(rest, aside, heldout)


def _first_to_choose_from(tasks: Sequence[Task], config: TrainConfig) -> int:
    """How many tasks the first steps take theirs from: all, or those of the lowest tier."""
    if config.tiers is None or any(config.tiers not in task.tags for task in tasks):
        return len(tasks)
    tiers = tiers_in_order(tasks, config.tiers)
    return sum(task.tags[config.tiers] == tiers[0] for task in tasks) if tiers else 0


def _step_is_set(config: TrainConfig) -> bool:
    return "prompts_per_step" in config.model_fields_set


def settle(config: TrainConfig, tasks: ThreeWaySplit) -> tuple[TrainConfig, list[str]]:
    """The options of the run, with numbers where `config` leaves them open, and lines that say what came of it."""
    train = tasks.train
    rise, fall = config.rise_and_fall
    settled: dict[str, Any] = {"learning_rate_rise": rise, "learning_rate_fall": fall}
    lines = [_kept_aside(tasks, config)]
    if config.validation is None:
        settled["validation"] = len(tasks.validation)
    if config.warm_start_steps is None:
        shown = any(task.demonstration for task in train)
        settled["warm_start_steps"] = DEFAULT_WARM_START_STEPS if shown else 0
        if not shown:
            lines.append(
                f"none of the {len(train)} training tasks has a demonstration: there is no warm start, the model "
                "learns from its own attempts alone"
            )
    size = min(config.prompts_per_step, _first_to_choose_from(train, config))
    if config.grpo_steps and size < config.prompts_per_step and not _step_is_set(config):
        settled["prompts_per_step"] = size
        lines.append(f"{size} tasks in a step: there are no more to begin with (prompts_per_step)")
    options = config.model_copy(update=settled)
    options = options.model_copy(update={"micro_batches": options.parts})
    return options, lines


def _kept_aside(tasks: ThreeWaySplit, config: TrainConfig) -> str:
    lost = "the run ends with its last weights, also where they are worse than those it began with"
    if not tasks.validation:
        why = "validation is 0" if config.validation == 0 else f"{len(tasks.train)} training tasks are too few"
        return f"no task is kept aside to choose weights on ({why}): {lost}"
    families = {task.family for task in tasks.validation}
    line = (
        f"kept aside to choose weights on: {len(tasks.validation)} tasks of {len(families)} families; trained on: "
        f"{len(tasks.train)} tasks"
    )
    return f"{line}, also of these families" if families & {task.family for task in tasks.train} else line


def require_a_way_to_learn(tasks: ThreeWaySplit, config: TrainConfig) -> None:
    """Raises `ConfigError` where nothing could be learned with these tasks and settled options, or measured."""
    train = tasks.train
    if config.evaluate_every is not None and not tasks.validation:
        raise ConfigError(
            f"evaluate_every is {config.evaluate_every}, but of {len(train)} training tasks none could be kept aside "
            "to measure on; add tasks, or set validation to a number of them"
        )
    if config.warm_start_steps and not any(task.demonstration for task in train):
        raise ConfigError(
            f"warm_start_steps is {config.warm_start_steps}, but none of the {len(train)} training tasks has a "
            "demonstration; add demonstrations, or leave the option out for a model that can already call tools"
        )
    if not config.warm_start_steps and not config.grpo_steps:
        raise ConfigError(
            "grpo_steps is 0 and there is no warm start (warm_start_steps is 0, or no training task has a "
            "demonstration): nothing would be trained; use sdk.evaluate"
        )
    for option in ("curriculum", "tiers", "domain"):
        tag = getattr(config, option)
        if tag is not None and (without := [task for task in train if tag not in task.tags]):
            raise ConfigError(
                f"{option} is {tag!r}, but {len(without)} of {len(train)} training tasks have no such tag; "
                f"task {without[0].id!r} has the tags {sorted(without[0].tags)}"
            )
    if config.grpo_steps and config.prompts_per_step > len(train):
        raise ConfigError(
            f"prompts_per_step is {config.prompts_per_step}, but there are only {len(train)} training tasks; "
            "lower it or add tasks"
        )
    if config.grpo_steps and config.tiers is not None:
        lowest = tiers_in_order(train, config.tiers)[0]
        if (count := sum(task.tags[config.tiers] == lowest for task in train)) < config.prompts_per_step:
            raise ConfigError(
                f"prompts_per_step is {config.prompts_per_step}, but the lowest tier, {lowest!r}, has only {count} "
                "training tasks; lower it or add tasks"
            )
