"""Mistakes: calls that are refused, put before the right ones of a demonstration, so that the warm start teaches what
to do after an error.

A model that saw nothing but right calls takes an error for a success: asked in words that are new to it, it calls
another tool, reads that nothing was called, and reports that all is done (docs/experiments.md). The idea is that of
Ye et al., "How to Learn From Mistakes on Grade-School Math Problems" (arXiv 2408.16293). Here the mistake itself is
not trained, only what follows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

from mcp_bridge import ToolFailure
from mcp_bridge.toolsets.validation import ArgumentChecker

from ..evaluation.conditions import is_success
from ..policies.protocol import Agent
from ..policies.scripted import replay_demonstration
from ..records import Message, Rollout, Task, ToolCall
from ..rollouts.episode import Job
from ..rollouts.run_context import RunContext, play_scripts
from ..synthesis.prompt_values import STOPWORDS

_WORD = re.compile(r"(?<!\w)[^\W\d_]{3,20}(?!\w)")


class Mistaken(NamedTuple):
    """A demonstration with a mistake in it, played in the world."""

    rollout: Rollout
    call_id: str
    """Of the mistake."""


async def replay_with_mistakes(
    demonstrations: Sequence[Rollout], context: RunContext, *, share: float, seed: int
) -> list[Mistaken]:
    """The demonstrations once more, with a mistake before one of their calls, and the tools' real results.

    `demonstrations`: as `replay_demonstrations` returns them. `share`: of those that get a mistake, 0 to 1. Some are
    left out, and the console says how many: no call in place of theirs is refused, the verifier does not pay for the
    mistake, or a limit ends the rollout.
    """
    wanted = [one for one in demonstrations if random.Random(f"{seed}/mistake?/{one.task.id}").random() < share]
    if not wanted:
        return []
    tools = context.tools.tools
    # Lenient, because some sources take more than the schema: what is refused all the same is refused by all of them.
    checker = ArgumentChecker(tools, lenient=[tool.name for tool in tools])
    every = {tool.name for tool in tools}
    plays: list[tuple[Job, Agent]] = []
    planned: list[tuple[Rollout, int]] = []
    for rollout in wanted:
        draw = random.Random(f"{seed}/mistake/{rollout.task.id}")
        shown = {tool.name for tool in rollout.tools_of(tools)}
        if (mistaken := _with_mistake(rollout.task, shown, every, checker, draw)) is not None:
            task, place = mistaken
            job = Job(id=f"mistake/{task.id}", task=task, seed=0, tool_prompt=rollout.tool_prompt)
            plays.append((job, replay_demonstration(task)))
            planned.append((rollout, place))
    with context.progress.track("demonstrations with a mistake", len(plays)) as step:
        played = await play_scripts(plays, context, step)
    found = [
        Mistaken(rollout, call_id)
        for rollout, (demonstration, place) in zip(played, planned, strict=True)
        if (call_id := _id_at(rollout, place))
        and _recovered(rollout, demonstration, call_id, context.success_threshold)
    ]
    if len(found) < len(wanted):
        context.progress.say(
            f"{len(wanted) - len(found)} of {len(wanted)} demonstrations are not shown with a mistake in them: they do "
            "not succeed with one, or no call in place of theirs is refused"
        )
    return found


def mixed(demonstrations: Sequence[Rollout], mistaken: Sequence[Rollout]) -> list[Rollout]:
    """Both, evenly: a warm start that goes through them in order sees as many of each, however few steps it makes. A
    demonstration and its mistake are half of the way apart."""
    half = len(mistaken) // 2
    others = [*mistaken[half:], *mistaken[:half]]
    placed = [((n + 0.5) / len(demonstrations), one) for n, one in enumerate(demonstrations)]
    placed += [((n + 0.5) / len(others), one) for n, one in enumerate(others)]
    return [one for _, one in sorted(placed, key=lambda entry: entry[0])]


def _with_mistake(
    task: Task, shown: Set[str], every: Set[str], checker: ArgumentChecker, draw: random.Random
) -> tuple[Task, int] | None:
    """The task with a mistake before one of its demonstration's calls, and the mistake's place in the demonstration.

    None where it calls none of the tools, or no wrong call would be refused. `shown`, `every`: the names of the tools
    that the policy is shown, and of all that there are.
    """
    said = task.demonstration
    places = [place for place, message in enumerate(said) if message.tool_calls and message.tool_calls[0].name in shown]
    if not places:
        return None
    place = draw.choice(places)
    asked = " ".join(message.content for message in task.opening() if message.role == "user")
    for name, arguments in _candidates(said[place].tool_calls[0], asked, shown, every, draw):
        # A word is no tool, so it is refused as it stands; also one that is hidden from the policy must not be called.
        if name not in every or _refused(checker, name, arguments):
            mistake = Message(role="assistant", tool_calls=[ToolCall(id="", name=name, arguments=arguments)])
            return task.model_copy(update={"demonstration": [*said[:place], mistake, *said[place:]]}), place
    return None


def _candidates(
    right: ToolCall, asked: str, shown: Set[str], every: Set[str], draw: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls in place of `right` that may be refused, those of a kind that is drawn first: of another tool with the same
    arguments, and of a word of the request as if it were a tool.

    Wrong arguments of the right tool are no kind: where these were shown as often, models kept to the wrong tool and
    made its arguments up (docs/experiments.md).
    """
    words = sorted(set(_WORD.findall(asked.lower())) - STOPWORDS - every)
    kinds = [sorted(shown - {right.name}), words]
    for names in draw.sample(kinds, len(kinds)):
        yield from ((name, right.arguments) for name in draw.sample(names, len(names)))


def _refused(checker: ArgumentChecker, name: str, arguments: dict[str, Any]) -> bool:
    try:
        return checker.problem(name, arguments) is not None
    except ToolFailure:  # a schema that cannot be applied
        return False


def _id_at(rollout: Rollout, place: int) -> str:
    """The id of the first call of a message, counted among the assistant's; empty where the rollout ended before."""
    said = [message for message in rollout.messages[len(rollout.task.opening()) :] if message.role == "assistant"]
    return said[place].tool_calls[0].id if place < len(said) and said[place].tool_calls else ""


def _recovered(rollout: Rollout, demonstration: Rollout, call_id: str, threshold: float) -> bool:
    """Whether the mistake was refused, and the rollout went on to the demonstration's end and succeeded."""
    errors = [record.result.error_kind for record in rollout.calls if record.call.id == call_id]
    return (
        errors in (["unknown_tool"], ["invalid_arguments"])
        and (rollout.turns, rollout.stop_reason) == (demonstration.turns + 1, demonstration.stop_reason)
        and is_success(rollout, threshold)
    )
