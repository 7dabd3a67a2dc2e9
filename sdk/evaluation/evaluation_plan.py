"""The plan of an evaluation: which policies are measured under which conditions, and which of them are compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..policies.model_source import ModelSource, check_model_source, default_tool_prompt, model_label
from ..policies.tool_prompt import TOOL_PROMPTS
from ..records import PROMPT_NAMES, Task, ToolPrompt

SINGLE_STAGE = "evaluation"


@dataclass(frozen=True)
class Condition:
    """One policy with so much of the tools in its prompt."""

    policy: str
    """What the user calls the policy, also in prices."""
    name: str | None
    """None for the only condition of an evaluation that shows full schemas: the agent says its own name once it is
    open."""
    source: ModelSource
    tool_prompt: ToolPrompt
    stage: str
    """Where the run folder keeps its rollouts."""


@dataclass(frozen=True)
class Plan:
    """The conditions in the order in which they are measured, those of one policy one after the other."""

    conditions: list[Condition]
    pairs: list[tuple[str, str]] | None
    """Names to compare; None where there is one condition."""

    @property
    def policies(self) -> dict[str, list[Condition]]:
        """The conditions of each policy."""
        grouped: dict[str, list[Condition]] = {}
        for condition in self.conditions:
            grouped.setdefault(condition.policy, []).append(condition)
        return grouped

    @property
    def identity(self) -> dict[str, Any]:
        """What the run folder knows it by."""
        if self.pairs is None:
            only = self.conditions[0]
            less = {} if only.tool_prompt == "full" else {"tool_prompt": only.tool_prompt}
            return {"evaluate": model_label(only.source), **less}
        return {"evaluate": [[c.name, c.tool_prompt, model_label(c.source)] for c in self.conditions]}


def make_plan(
    model: ModelSource,
    models: Mapping[str, ModelSource] | Sequence[ModelSource] | None,
    baseline: str | None,
    tool_prompts: ToolPrompt | Sequence[ToolPrompt] | None,
) -> Plan:
    """Check what the user names, and order it. `tool_prompts`: what each was trained with where None.

    Raises `ConfigError`, and `ModelError` for a model's folder that is damaged.
    """
    asked = _lengths(tool_prompts) if tool_prompts is not None else None
    if models is None:
        check_model_source(model)
        named: dict[str, ModelSource] = {_label(model): model}
    else:
        named = _named(model, models)
    if baseline is not None and baseline not in named:
        raise ConfigError(f"baseline is {baseline!r}, which is not evaluated; the names are {', '.join(named)}")
    lengths = {policy: asked or [default_tool_prompt(source)] for policy, source in named.items()}
    if models is None and len(lengths[_label(model)]) == 1:
        if baseline is not None:
            raise ConfigError(f"baseline {baseline!r} does nothing with one policy; give several as models")
        policy, (length,) = _label(model), lengths[_label(model)]
        name = None if length == "full" else _condition_name(policy, length, [length])
        return Plan([Condition(policy, name, model, length, SINGLE_STAGE)], None)
    names = {
        (policy, length): _condition_name(policy, length, lengths[policy])
        for policy in named
        for length in lengths[policy]
    }
    conditions = [
        Condition(policy, name, named[policy], length, f"{SINGLE_STAGE}_{place:02d}_{_slug(name)}")
        for place, ((policy, length), name) in enumerate(names.items(), start=1)
    ]
    first = baseline or next(iter(named))
    longest = {policy: names[policy, lengths[policy][0]] for policy in named}
    pairs = [(longest[first], longest[policy]) for policy in named if policy != first]
    pairs += [(longest[policy], names[policy, length]) for policy in named for length in lengths[policy][1:]]
    return Plan(conditions, pairs)


def tasks_of_split(tasks: Sequence[Task], split: str | None) -> list[Task]:
    """The tasks tagged with that split, all where None. Raises `ConfigError` where there is none."""
    if split is None:
        return list(tasks)
    chosen = [task for task in tasks if task.tags.get("split") == split]
    if not chosen:
        known = sorted({task.tags["split"] for task in tasks if "split" in task.tags})
        raise ConfigError(
            f"split is {split!r}, but none of {len(tasks)} tasks has tags['split'] == {split!r}; the tasks have "
            f"{', '.join(known) or 'no such tag'}"
        )
    return chosen


def _lengths(tool_prompts: Any) -> list[ToolPrompt]:
    lengths: list[Any] = [tool_prompts] if isinstance(tool_prompts, str) else list(tool_prompts)
    if not lengths or len(set(lengths)) != len(lengths) or (unknown := [n for n in lengths if n not in TOOL_PROMPTS]):
        problem = f"{unknown[0]!r} is not one" if lengths and len(set(lengths)) == len(lengths) else "each once"
        raise ConfigError(f"tool_prompts is {tool_prompts!r}: {problem}; give one or more of {', '.join(TOOL_PROMPTS)}")
    return lengths


def _named(model: ModelSource, models: Mapping[str, ModelSource] | Sequence[ModelSource]) -> dict[str, ModelSource]:
    if model is not None:
        raise ConfigError("both model and models are given; give one policy as model, or several as models")
    if isinstance(models, str | Path) or not isinstance(models, Mapping | Sequence) or not models:
        raise ConfigError(
            f"models is {'empty' if not models else 'a ' + type(models).__name__}; give a mapping of names to models, "
            "or a list of models"
        )
    for source in models.values() if isinstance(models, Mapping) else models:
        check_model_source(source)
    if isinstance(models, Mapping):
        bad = [name for name in models if not isinstance(name, str) or not name.strip()]
        if bad:
            raise ConfigError(f"models has the name {bad[0]!r}; a name is a text that is not empty")
        return dict(models)
    named: dict[str, ModelSource] = {}
    for source in models:
        if (label := _label(source)) in named:
            raise ConfigError(f"two of models are called {label!r}; give a mapping with names of your own")
        named[label] = source
    return named


def _label(source: ModelSource) -> str:
    """A short name: of a folder its own, of an endpoint the model's."""
    label = model_label(source)
    if label is None:
        return "embedded"
    if isinstance(source, tuple | Mapping):
        return label.rpartition("#")[2]
    return Path(label).name if isinstance(source, Path) or Path(label).is_dir() else label


def _condition_name(policy: str, length: ToolPrompt, lengths: Sequence[ToolPrompt]) -> str:
    return policy if list(lengths) == ["full"] else f"{policy}, {PROMPT_NAMES[length]}"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "policy"
