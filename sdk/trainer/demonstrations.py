"""Demonstrations are played in the world before the warm start learns from them.

A demonstration that does not pass the run's own verifier means that the task, the tools or the verifier is wrong.
Finding this here costs seconds; training on it would cost the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from mcp_bridge.records import Tool

from ..errors import ConfigError, ModelError, PolicyFailure
from ..evaluation.conditions import is_success
from ..policies.protocol import Agent
from ..policies.rendering import ChatRenderer
from ..policies.rendering.renderer import PROBE_CALL, PROBE_TOOL
from ..policies.scripted import Script, ScriptedAgent, replay_demonstration
from ..policies.token_agent import render_demonstration
from ..policies.tool_prompt import render_less
from ..records import Message, Rollout, Task, TokenRow, ToolPrompt
from ..rollouts.episode import AgentHost, Job
from ..rollouts.run_context import RunContext, play_scripts

_SHOWN = 5


async def replay_demonstrations(
    tasks: Sequence[Task],
    context: RunContext,
    *,
    show: Callable[[Task], ToolPrompt] = lambda _: "full",
    found: bool = False,
) -> list[Rollout]:
    """The demonstrations as rollouts, with the tools' real results. Raises ConfigError if one does not succeed.

    `found`: a search found them; those that do not succeed again are left out, and the console says so.

    `show`: how much of the tools each is to show when it is trained on.
    """
    shown = [task for task in tasks if task.demonstration]
    if not shown:
        return []
    plays = [
        (Job(id=f"demonstration/{task.id}", task=task, seed=0, tool_prompt=show(task)), replay_demonstration(task))
        for task in shown
    ]
    with context.progress.track("gold check", len(shown)) as step:
        played = await play_scripts(plays, context, step)
    if found:
        right = [r for r in played if is_success(r, context.success_threshold) and _is_whole(r)]
        if len(right) < len(played):
            left_out = len(played) - len(right)
            context.progress.say(
                f"{left_out} of {len(played)} found demonstrations do not succeed again and are left out"
            )
        return right
    _require_success(played, context.success_threshold)
    return played


def _is_whole(rollout: Rollout) -> bool:
    """Whether it was played to its end: of one that a limit cut off, the model would not learn how it ends."""
    return rollout.stop_reason == "answered"


def _require_success(rollouts: Sequence[Rollout], threshold: float) -> None:
    cut = [rollout for rollout in rollouts if is_success(rollout, threshold) and not _is_whole(rollout)]
    if cut:
        first = cut[0]
        raise ConfigError(
            f"{len(cut)} of {len(rollouts)} demonstrations were not played to their end; the first is task "
            f"{first.task.id}, with {len(first.task.demonstration)} messages, which {first.stop_reason} ended after "
            f"{first.turns}: raise limits.max_turns and limits.max_calls, or shorten the demonstration"
        )
    wrong = [r for r in rollouts if not is_success(r, threshold)]
    if wrong:
        reasons = "\n".join(f"  task {r.task.id}: {_reason(r)}" for r in wrong[:_SHOWN])
        more = f"\n  and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ConfigError(
            f"{len(wrong)} of {len(rollouts)} demonstrations do not pass the verifier when they are played in the "
            f"world; correct the task, the tools or the verifier, or leave the demonstration out:\n{reasons}{more}"
        )


def unwritable(renderer: ChatRenderer, shown: ToolPrompt) -> str | None:
    """Why no reply can be written as the model would have sampled it, so that no demonstration can be learned from;
    None where one can. `shown`: of the tools, in prompts."""
    renderer = render_less(renderer, shown)
    try:
        for said in (Message(role="assistant", tool_calls=[PROBE_CALL]), Message(role="assistant", content="Done.")):
            renderer.encode_reply(said, [PROBE_TOOL])
    except ModelError as error:
        return str(error)
    return None


def demonstration_rows(rollouts: Sequence[Rollout], renderer: ChatRenderer, tools: Sequence[Tool]) -> list[TokenRow]:
    """The rows to train on: what the policy would have sampled in each replayed demonstration, with the demonstration's
    tool prompt."""
    renderers = {length: render_less(renderer, length) for length in {rollout.tool_prompt for rollout in rollouts}}
    rows: list[TokenRow] = []
    for rollout in rollouts:
        opening = rollout.task.opening()
        shown, said = rollout.tools_of(tools), rollout.messages[len(opening) :]
        rows += render_demonstration(renderers[rollout.tool_prompt], opening, shown, said)
    return rows


def above_the_limit(rows: Sequence[TokenRow], most: int) -> str:
    """Which turns of demonstrations the model could not sample to their end; empty where all have at most `most`
    tokens."""
    longest = [max(_turns(row), default=0) for row in rows]
    above = sum(length > most for length in longest)
    if not above:
        return ""
    return (
        f"{above} of {len(rows)} demonstrations have a turn of more than {most} tokens (limits.max_turn_tokens), up to "
        f"{max(longest)}: the model cannot end such a turn; raise the limit to that or more"
    )


def _turns(row: TokenRow) -> list[int]:
    """The lengths of what was sampled at a time."""
    return [len([*run]) for sampled, run in groupby(row.sampled) if sampled]


async def rows_by_agent(
    rollouts: Sequence[Rollout], context: RunContext, host: AgentHost, renderer: ChatRenderer
) -> list[TokenRow]:
    """As `demonstration_rows`, with what the agent of the user's adds: it plays each task again, and the policy gives
    it the demonstration's messages, one for each request.

    Those that do not succeed so are left out, and the console says so. Raises `ConfigError` where none does.
    """
    plays: list[tuple[Job, Agent]] = [
        (
            Job(id=f"demonstration by the agent/{rollout.task.id}", task=rollout.task, seed=0),
            ScriptedAgent(
                _in_order(rollout.task), name="demonstration", renderer=render_less(renderer, rollout.tool_prompt)
            ),
        )
        for rollout in rollouts
    ]
    with context.progress.track("demonstrations by the agent", len(plays)) as step:
        played = await play_scripts(plays, context, step, host=host)
    right = [rollout for rollout in played if is_success(rollout, context.success_threshold)]
    if len(right) < len(played):
        wrong = next(rollout for rollout in played if not is_success(rollout, context.success_threshold))
        said = (
            f"{len(played) - len(right)} of {len(played)} demonstrations do not pass the verifier when the agent plays "
            f"them, which sends a request for each of their messages then; the first is task {wrong.task.id}: "
            f"{_reason(wrong)}"
        )
        if not right:
            raise ConfigError(f"{said}. Set warm_start.max_steps to 0, or write demonstrations that fit the agent")
        context.progress.say(f"{said}. They are left out")
    return [row for rollout in right for row in rollout.rows]


def _in_order(task: Task) -> Script:
    """The demonstration's messages one after the other, whatever conversation asks."""
    left = list(task.demonstration)

    def say(_: list[Message], __: int) -> Message:
        if not left:
            raise PolicyFailure(
                f"the agent asked its model more than {len(task.demonstration)} times, which is how many messages the "
                "demonstration has"
            )
        return left.pop(0)

    return say


def _reason(rollout: Rollout) -> str:
    if rollout.failure is not None:
        return f"{rollout.failure.boundary} broke: {rollout.failure.kind}: {rollout.failure.message}"
    verdict = rollout.verdict
    assert verdict is not None
    errors = [record.result.text for record in rollout.calls if record.result.is_error]
    hint = f"; a tool answered: {errors[0]}" if errors else ""
    return f"score {verdict.score:g} after {rollout.stop_reason!r}: {verdict.explanation or verdict.components}{hint}"
