"""Mistakes: calls that are refused, put before the right ones of a demonstration, so that the warm start teaches what
to do after an error.

A model that saw nothing but right calls takes an error for a success: asked in words that are new to it, it calls
another tool, reads that nothing was called, and reports that all is done (docs/experiments.md). The idea is that of
Ye et al., "How to Learn From Mistakes on Grade-School Math Problems" (arXiv 2408.16293). Here the mistake itself is
context, and is not trained.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from mcp_bridge import ToolFailure
from mcp_bridge.toolsets.validation import ArgumentChecker

from ..evaluation.conditions import is_success
from ..policies.protocol import Agent
from ..policies.rendering import ChatRenderer
from ..policies.scripted import replay_demonstration
from ..policies.token_agent import render_demonstration
from ..policies.tool_prompt import render_less
from ..records import Message, Rollout, Task, TokenRow, ToolCall
from ..rollouts.episode import Job
from ..rollouts.run_context import RunContext, play_scripts
from ..synthesis.prompt_values import STOPWORDS

_CALL_ID = "the_mistake"
_MOST_VALUES = 8
_WORD = re.compile(r"[a-z]{3,}")


async def rows_after_mistakes(
    demonstrations: Sequence[Rollout], context: RunContext, renderer: ChatRenderer, *, share: float, seed: int
) -> list[TokenRow]:
    """Rows that begin with a mistake and its error, and go on as the demonstration does.

    `demonstrations`: as `replay_demonstrations` returns them. `share`: of those that get such a row, 0 to 1. Each is
    played in the world. Where the verifier does not pay for it, or a limit ends it, there is no such row, and the
    console says so.
    """
    tools = context.tools.tools
    # Lenient, because some sources take more than the schema: what is refused all the same is refused by all of them.
    checker = ArgumentChecker(tools, lenient=[tool.name for tool in tools])
    seen = _arguments_seen(demonstrations)
    plays: list[tuple[Job, Agent]] = []
    ends = {}
    for rollout in demonstrations:
        draw = random.Random(f"{seed}/mistake/{rollout.task.id}")
        names = {tool.name for tool in rollout.tools_of(tools)}
        if draw.random() < share and (task := _with_mistake(rollout.task, names, checker, seen, draw)) is not None:
            job = Job(id=f"mistake/{task.id}", task=task, seed=0, tool_prompt=rollout.tool_prompt)
            plays.append((job, replay_demonstration(task)))
            ends[task.id] = rollout.stop_reason
    if not plays:
        return []
    with context.progress.track("demonstrations after a mistake", len(plays)) as step:
        played = await play_scripts(plays, context, step)
    right = [one for one in played if _recovered(one, ends[one.task.id], context.success_threshold)]
    if len(right) < len(played):
        context.progress.say(
            f"{len(played) - len(right)} of {len(played)} demonstrations do not pass the verifier after a mistake, and "
            "are shown without one"
        )
    rows: list[TokenRow] = []
    for rollout in right:
        # Up to the error all is context: what stands before the mistake is trained in the demonstration's own row.
        heard = 1 + next(at for at, message in enumerate(rollout.messages) if message.tool_call_id == _CALL_ID)
        renders = render_less(renderer, rollout.tool_prompt)
        rows += render_demonstration(
            renders, rollout.messages[:heard], rollout.tools_of(tools), rollout.messages[heard:]
        )
    return rows


def _with_mistake(
    task: Task, names: Set[str], checker: ArgumentChecker, seen: Mapping[str, Sequence[Any]], draw: random.Random
) -> Task | None:
    """The task with a mistake before one of its demonstration's calls. None where it has no call, or all would be
    taken. `names`: of the tools that the policy is shown."""
    places = [place for place, message in enumerate(task.demonstration) if message.tool_calls]
    if not places:
        return None
    place = draw.choice(places)
    right = task.demonstration[place].tool_calls[0]
    asked = " ".join(message.content for message in task.opening() if message.role == "user")
    kinds = [kind for kind in _mistakes(right, asked, names, checker, seen) if kind]
    if not kinds:
        return None
    name, arguments = draw.choice(draw.choice(kinds))
    mistake = Message(role="assistant", tool_calls=[ToolCall(id=_CALL_ID, name=name, arguments=arguments)])
    changed = [*task.demonstration[:place], mistake, *task.demonstration[place:]]
    return task.model_copy(update={"demonstration": changed})


def _mistakes(
    right: ToolCall, asked: str, names: Set[str], checker: ArgumentChecker, seen: Mapping[str, Sequence[Any]]
) -> list[list[tuple[str, dict[str, Any]]]]:
    """Calls in place of `right` that are refused before anything is called, by kind: of another tool with the same
    arguments, of a word of the request as if it were a tool, and with an argument of another demonstration's call."""

    def refused(name: str, arguments: dict[str, Any]) -> bool:
        try:
            return checker.problem(name, arguments) is not None
        except ToolFailure:  # a schema that cannot be applied
            return False

    words = sorted({word for word in _WORD.findall(asked) if word not in STOPWORDS and word not in names})
    further = [
        {**right.arguments, name: value}
        for name in sorted(seen.keys() - right.arguments.keys())
        for value in seen[name]
    ]
    return [
        [(name, right.arguments) for name in sorted(names - {right.name}) if refused(name, right.arguments)],
        [(word, right.arguments) for word in words],
        [(right.name, arguments) for arguments in further if refused(right.name, arguments)],
    ]


def _arguments_seen(demonstrations: Sequence[Rollout]) -> dict[str, list[Any]]:
    """Of each argument: the values that the demonstrations' calls give it, the first ones."""
    seen: dict[str, list[Any]] = {}
    for rollout in demonstrations:
        for message in rollout.task.demonstration:
            for call in message.tool_calls:
                for name, value in call.arguments.items():
                    values = seen.setdefault(name, [])
                    if len(values) < _MOST_VALUES and value not in values:
                        values.append(value)
    return seen


def _recovered(rollout: Rollout, end: str, threshold: float) -> bool:
    """Whether the mistake was refused, and the rollout ended as the demonstration does and succeeded all the same."""
    errors = [record.result.error_kind for record in rollout.calls if record.call.id == _CALL_ID]
    refused = errors[:1] in (["unknown_tool"], ["invalid_arguments"])
    return refused and rollout.stop_reason == end and rollout.scored and is_success(rollout, threshold)
