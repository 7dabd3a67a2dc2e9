"""How much of the tools a prompt shows, and what a model was trained with: the words, and what they mean.

A model that was trained on its tools should need less of them in its prompt. How a policy is shown less is in
`shown_tools`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from ..records import Rollout, ToolPrompt

TOOL_PROMPTS: tuple[ToolPrompt, ...] = get_args(ToolPrompt)
"""From the longest to the shortest."""
PROMPT_NAMES: dict[ToolPrompt, str] = {"full": "full schemas", "names": "names only", "none": "no tools"}

TrainedToolPrompt = ToolPrompt | dict[ToolPrompt, float]
"""What a model is trained with: one of them, or several by their shares."""


def shown_by_default(trained: TrainedToolPrompt | None) -> ToolPrompt:
    """What a model is measured and served with where nobody says otherwise: what it was trained with, of several the
    longest. `full` where that is not known."""
    if isinstance(trained, Mapping):
        return next(length for length in TOOL_PROMPTS if trained.get(length))
    return trained or "full"


def shortest(*lengths: ToolPrompt) -> ToolPrompt:
    """What is left where several each leave something out. Example: `shortest("full", "names") == "names"`"""
    return max(lengths, key=TOOL_PROMPTS.index)


def lengths_of(trained: TrainedToolPrompt) -> tuple[ToolPrompt, ...]:
    """What may be shown in a training, from the longest."""
    return tuple(n for n in TOOL_PROMPTS if n in trained) if isinstance(trained, Mapping) else (trained,)


def describe_trained(trained: TrainedToolPrompt) -> str:
    """For people. Example: `full schemas (50 %) and names only (50 %), measured with full schemas`"""
    if isinstance(trained, Mapping):
        given = [length for length in TOOL_PROMPTS if trained.get(length)]
        shares = " and ".join(f"{PROMPT_NAMES[length]} ({100 * trained[length]:g} %)" for length in given)
        return f"{shares}, measured with {PROMPT_NAMES[given[0]]}"
    return PROMPT_NAMES[trained]


def describe_shown(rollouts: Iterable[Rollout]) -> str:
    """What the prompts of these rollouts showed, for people. Example: `names only`; empty without rollouts."""
    shown = {rollout.tool_prompt for rollout in rollouts}
    return " and ".join(PROMPT_NAMES[length] for length in TOOL_PROMPTS if length in shown)


def as_trained(value: Any) -> TrainedToolPrompt:
    """What a user or a file gives, in the one form that says it: without shares that are 0, and one share alone as its
    word. Raises `ValueError` for what is no `TrainedToolPrompt`; the text names the choices and the fix."""
    choices = ", ".join(repr(length) for length in TOOL_PROMPTS)
    if not isinstance(value, Mapping):
        if value not in TOOL_PROMPTS:
            raise ValueError(f'give one of {choices}, or shares of several, such as {{"full": 0.5, "names": 0.5}}')
        known: ToolPrompt = value
        return known
    if unknown := [length for length in value if length not in TOOL_PROMPTS]:
        raise ValueError(f"{unknown[0]!r} is no tool prompt; they are {choices}")
    shares = list(value.values())
    if not all(isinstance(s, int | float) and not isinstance(s, bool) and 0 <= s <= 1 for s in shares):
        raise ValueError("each share must be a number from 0 to 1")
    if abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f'the shares add up to {sum(shares):g}; they must make 1, such as {{"full": 0.5, "names": 0.5}}'
        )
    given: dict[ToolPrompt, float] = {length: float(share) for length, share in value.items() if share}
    return next(iter(given)) if len(given) == 1 else given
