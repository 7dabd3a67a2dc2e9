"""A draft of a task from a walk: the request, what is expected, and the calls as a demonstration."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ..records import Message, Task, ToolCall
from ..rollouts.seeds import derive_seed
from .descriptions import spoken
from .lessons import Lessons
from .phrases import Phrases
from .random_walk import Found, NoWalk, Walk, minimised, walk
from .request_text import Request, realism, request
from .worlds import Worlds

_WALKS = 8
"""Of one attempt, until one leads to a task with the number of calls that is wanted."""


@dataclass(frozen=True)
class Draft:
    """A task made by templates, before it is checked. `shape`: what it has in common with others of its kind."""

    task: Task
    asked: Request
    shape: str
    tier: int


def calls_of(attempt: int, worlds: int, max_calls: int) -> int:
    """How many calls an attempt's task takes: each number in turn, after all worlds."""
    return attempt // worlds % max_calls + 1


async def draft(worlds: Worlds, lessons: Lessons, phrases: Phrases, *, seed: int, attempt: int, calls: int) -> Draft:
    """The draft of one attempt: depends on the tools and the other arguments alone. Raises `NoWalk`."""
    chance = random.Random(derive_seed(seed, "synthesis", attempt))
    setup = worlds.setups[attempt % len(worlds.setups)]
    for left in reversed(range(_WALKS)):
        try:
            walked = await minimised(worlds, await walk(worlds, lessons, setup, calls, chance))
            if len(walked.steps) < calls:
                raise NoWalk("fewer calls than wanted are enough")
            asked = request(walked, phrases, chance)
            break
        except NoWalk:
            if not left:
                raise
    return Draft(
        _task(walked, asked, lessons, f"synthetic-{seed}-{attempt}"), asked, shape_of(walked, asked), len(walked.steps)
    )


def shape_of(walked: Walk, asked: Request) -> str:
    """The tools in order, how each is fed, and what is asked. Example: "list_orders(customer_id)>get_order: total" """
    parts = []
    for step in walked.steps:
        told = [spoken(name) for name, source in step.sources.items() if not isinstance(source, Found)]
        parts.append(f"{step.tool.name}({', '.join(told)})" if told else step.tool.name)
    return f"{'>'.join(parts)}: {asked.field}"


def _task(walked: Walk, asked: Request, lessons: Lessons, name: str) -> Task:
    calls = [{"name": step.tool.name, "arguments": step.arguments} for step in walked.steps]
    expected: dict[str, Any] = {
        "answer": asked.answer,
        "calls": calls,
        "calls_may_differ": True,  # the request asks for an end, and other tools may lead to it, too
        "changes": walked.changes,
    }
    if asked.options:
        expected["options"] = list(asked.options)
    messages = [
        Message(
            role="assistant", tool_calls=[ToolCall(id=f"call_{number}", name=step.tool.name, arguments=step.arguments)]
        )
        for number, step in enumerate(walked.steps, start=1)
    ]
    tools = list(dict.fromkeys(step.tool.name for step in walked.steps))
    return Task(
        id=name,
        prompt=asked.prompt,
        setup=dict(walked.setup),
        expected=expected,
        demonstration=[*messages, Message(role="assistant", content=asked.closing)],
        tags={
            "tier": str(len(walked.steps)),
            "tools": "+".join(tools),
            "end": "change" if walked.changes else "fact",
            "wording": "template",
            "realism": f"{realism(walked, asked, lessons):g}",
        },
        family=f"{shape_of(walked, asked)}/{asked.wording}",
    )
