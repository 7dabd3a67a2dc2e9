"""Is a task clear and right? Its calls are played again in a fresh world, and the request is held against them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_bridge.world import WorldSource

from ..policies.scripted import replay_demonstration
from ..progress import Step
from ..records import Rollout, Task
from ..rollouts.episode import Job
from ..rollouts.limits import Limits
from ..rollouts.scripts import play_scripts
from ..verifiers import VerifierLike, all_of, answer_match, calls_match, final_state, required_calls
from ..verifiers.calls import holds_pattern
from ..verifiers.grounding import ungrounded_arguments
from ..verifiers.text_tokens import positions, tokenize

_RIGHT = re.compile(r"\S+ 1: ")
"""How a line of a combined verdict begins that has nothing to complain of."""
_UNBOUNDED = Limits(max_turns=10_000, max_calls=10_000)


def gold_verifier(tasks: Sequence[Task]) -> VerifierLike:
    """What these tasks can be judged by: the world's end, the answer, the calls, as far as all of them expect it."""
    kinds = [set(task.expected) for task in tasks]
    parts: list[VerifierLike] = []
    if all({"changes", "state"} & kind for kind in kinds):
        parts.append(final_state())
    if all("calls" in kind for kind in kinds):
        parts.append(calls_match() if any(map(_has_patterns, tasks)) else required_calls())
    if all("answer" in kind for kind in kinds):
        parts.append(answer_match())
    return all_of(*parts)


def _has_patterns(task: Task) -> bool:
    return holds_pattern(task.expected.get("calls"))


async def played_again(
    source: WorldSource, tasks: Sequence[Task], step: Step, *, concurrency: int = 8
) -> list[Rollout]:
    """The demonstration of each task in a fresh world of its own, judged by all that the task expects."""
    kinds: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for place, task in enumerate(tasks):
        kinds.setdefault((_has_patterns(task), tuple(sorted(task.expected))), []).append(place)
    found: dict[int, Rollout] = {}
    for places in kinds.values():
        plays = [
            (Job(id=f"gold/{place}/{tasks[place].id}", task=tasks[place], seed=0), replay_demonstration(tasks[place]))
            for place in places
        ]
        verifier = gold_verifier([tasks[place] for place in places])
        done = await play_scripts(
            plays, source=source, verifier=verifier, limits=_UNBOUNDED, concurrency=concurrency, step=step
        )
        found.update(zip(places, done, strict=True))
    return [found[place] for place in range(len(tasks))]


def replay_problem(rollout: Rollout) -> str:
    """Why the gold solution does not do what the task expects; empty where it does."""
    if rollout.failure is not None:
        return f"its calls could not be played: {rollout.failure.message}"
    refused = [record for record in rollout.calls if record.result.is_error]
    if refused and not _allows_refusals(rollout.task):
        call, said = refused[0].call, refused[0].result.text[:200]
        return f"the call {call.name}({_shown(call.arguments)}) of its demonstration is refused: {said}"
    if rollout.verdict is None:
        return "its end could not be judged"
    lines = [line for line in rollout.verdict.explanation.splitlines() if not _RIGHT.match(line)]
    return "" if rollout.verdict.score >= 1 else "; ".join(lines)


def _allows_refusals(task: Task) -> bool:
    """A task may be about a call that is refused: then not every call is among those expected."""
    made = sum(len(message.tool_calls) for message in task.demonstration)
    return "calls" in task.expected and len(task.expected["calls"]) < made


def wording_problem(rollout: Rollout) -> str:
    """What the request lacks or gives away; empty where nothing."""
    missing = ungrounded_arguments(rollout)
    if missing:
        return (
            f"the request says nothing of {missing[0]}, and no earlier call returns it; name it in the prompt, or add "
            "the call that finds it"
        )
    expected = rollout.task.expected
    answer = expected.get("answer")
    plain = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    # Where something is to be done, the answer may repeat it.
    if plain and expected.get("changes") == []:
        prompt = [token for message in rollout.task.opening() for token in tokenize(message.content)]
        if positions(tokenize(str(answer)), prompt):
            return f"the request says the answer {answer!r} itself; take it out of the prompt"
    return ""


def normalised(prompt: str) -> str:
    """A request without what does not count: case, spaces, punctuation."""
    return " ".join(str(token) for token in tokenize(prompt))


class Seen:
    """The tasks so far, to find those that repeat or contradict one."""

    def __init__(self) -> None:
        self._prompts: dict[str, tuple[str, str]] = {}
        self._paths: dict[str, str] = {}

    def problem(self, task: Task) -> str:
        """Why a task may not stand beside those before it; empty where it may."""
        prompt, path = _keys(task)
        if prompt in self._prompts:
            name, gold = self._prompts[prompt]
            other = "and expects the same" if gold == _gold(task) else "but expects something else"
            return f"it asks the same as {name} in the same world, {other}"
        if path in self._paths:
            return f"its calls and its end are those of {self._paths[path]}"
        return ""

    def add(self, task: Task, name: str) -> None:
        prompt, path = _keys(task)
        self._prompts[prompt] = (name, _gold(task))
        self._paths[path] = name


def _keys(task: Task) -> tuple[str, str]:
    said = " / ".join([*(normalised(message.content) for message in task.opening()), *task.later_turns])
    calls = [[call.name, call.arguments] for message in task.demonstration for call in message.tool_calls]
    setup = _json(task.setup)
    return f"{setup} {said}", f"{setup} {_json(calls)} {_json(task.expected.get('answer'))} {_json(task.later_turns)}"


def _gold(task: Task) -> str:
    return _json({name: task.expected.get(name) for name in ("answer", "changes", "state")})


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
