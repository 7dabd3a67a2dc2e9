"""Our verdicts beside those of the package's own evaluators: on the gold calls, and on calls that are not gold.

    python examples/tau2/compare.py              # every task: gold, and 4 mutations of each of 6 kinds
    python examples/tau2/compare.py --whole      # the package reads its files and hashes its tables for each: an hour

The calls are made in our worlds. The package's evaluator makes them again in its own, and refuses a conversation in
which a result is another than its own: so every result is compared, too. Ends with status 1 where a verdict differs.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from domain_twin import BEGINNING
from domains import DOMAINS, Call, Environment, Task, gold_calls, package_environment, package_tasks
from reward import play, reward_parts, tables
from tau2.data_model.message import AssistantMessage, Message, ToolMessage, UserMessage
from tau2.evaluator.evaluator_action import ActionEvaluator
from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
from tau2.evaluator.evaluator_env import EnvironmentEvaluator

Step = Call | str
"""A call of either side, or something that the agent says."""


@dataclass(frozen=True)
class Played:
    """Some steps of a task, made in a world of ours."""

    ours: float
    messages: list[Message]
    """The conversation as the package's records."""
    refused: bool
    """Whether a call was refused by its schema. The package has no such check, and so words the error otherwise."""


def gold_steps(task: Task) -> list[Step]:
    """A right solution: the gold calls, and then what is to be told."""
    return [*gold_calls(task), *(f"It is {told}." for told in task.evaluation_criteria.communicate_info or ())]


def played(domain: str, task: Task, steps: list[Step]) -> Played:
    """What our verifier gives for some steps."""
    world = play(domain, task.id, ())
    refused = False
    messages: list[Message] = [AssistantMessage(role="assistant", content="Hi! How can I help you today?")]
    for number, step in enumerate(steps):
        if isinstance(step, str):
            messages.append(AssistantMessage(role="assistant", content=step))
            continue
        call = step.model_copy(update={"id": f"call_{number}"})
        result = world.call_now(call.name, call.arguments)
        refused |= result.error_kind == "invalid_arguments"
        speaker = UserMessage if call.requestor == "user" else AssistantMessage
        messages.append(speaker(role=call.requestor, tool_calls=[call]))
        messages.append(
            ToolMessage(id=call.id, role="tool", content=result.text, requestor=call.requestor, error=result.is_error)
        )
    calls = [step for step in steps if isinstance(step, Call)]
    said = [step for step in steps if isinstance(step, str)]
    return Played(prod(reward_parts(task.id, world, calls, said).values()), messages, refused)


def package_says(task: Task, messages: list[Message], make: Callable[..., Environment]) -> float:
    """The package's reward: the product of what its evaluators give for the task's reward basis.

    Its `evaluate_simulation` does this, but cannot be imported without a client of language models. `make` makes the
    package's environment. Raises `ValueError` where a result in `messages` is not the one that it gives itself.
    """
    basis = {one.value for one in task.evaluation_criteria.reward_basis}
    rewards = []
    if basis & {"DB", "ENV_ASSERTION"}:
        rewards.append(EnvironmentEvaluator.calculate_reward(make, task, messages).reward)
    if "ACTION" in basis:
        rewards.append(ActionEvaluator.calculate_reward(task, messages).reward)
    if "COMMUNICATE" in basis:
        rewards.append(CommunicateEvaluator.calculate_reward(task, messages).reward)
    return prod(rewards)


def quick_environment(domain: str, solo_mode: bool = False) -> Environment:  # noqa: ARG001 - none is asked for
    """The package's environment over tables that are not read from the files again, of which only changed rows count.

    `package_environment` is the whole one. Both lead to the same verdicts; one of these takes a hundredth of the time.
    """
    world = play(domain, BEGINNING, ())
    environment = world.environment()
    environment.get_db_hash = lambda: tables(world)
    return environment


def _places(steps: list[Step], kind: type) -> list[int]:
    return [place for place, step in enumerate(steps) if isinstance(step, kind)]


def _drop(steps: list[Step], chance: random.Random, _others: list[Call]) -> None:
    if places := _places(steps, Call):
        del steps[chance.choice(places)]


def _double(steps: list[Step], chance: random.Random, _others: list[Call]) -> None:
    if places := _places(steps, Call):
        steps.insert(chance.randrange(len(steps) + 1), steps[chance.choice(places)])


def _reorder(steps: list[Step], chance: random.Random, _others: list[Call]) -> None:
    places = _places(steps, Call)
    calls = [steps[place] for place in places]
    chance.shuffle(calls)
    for place, call in zip(places, calls, strict=True):
        steps[place] = call


def _change(steps: list[Step], chance: random.Random, others: list[Call]) -> None:
    if places := [place for place in _places(steps, Call) if steps[place].arguments]:
        place = chance.choice(places)
        arguments = copy.deepcopy(steps[place].arguments)
        name = chance.choice(list(arguments))
        arguments[name] = _another(arguments[name], chance, [one.arguments.get(name) for one in others])
        steps[place] = steps[place].model_copy(update={"arguments": arguments})


def _silence(steps: list[Step], chance: random.Random, _others: list[Call]) -> None:
    """An answer is left out, or told in other words."""
    if places := _places(steps, str):
        place = chance.choice(places)
        steps[place] = chance.choice(["", "Done.", steps[place][:-2], steps[place].upper(), f"{steps[place]}0"])


def _stray(steps: list[Step], chance: random.Random, others: list[Call]) -> None:
    """A call of another task of the domain."""
    steps.insert(chance.randrange(len(steps) + 1), chance.choice(others))


MUTATIONS: dict[str, Callable[[list[Step], random.Random, list[Call]], None]] = {
    "dropped": _drop,
    "doubled": _double,
    "reordered": _reorder,
    "changed": _change,
    "silenced": _silence,
    "strayed": _stray,
}


def _another(value: Any, chance: random.Random, seen: list[Any]) -> Any:
    """Another value of the same type, often one that is valid elsewhere."""
    known = [one for one in seen if type(one) is type(value) and one != value]
    if known and chance.random() < 0.5:
        return copy.deepcopy(chance.choice(known))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + chance.choice([1, -1, 10])
    if isinstance(value, list) and value:
        return chance.choice([value[:-1], value[::-1], value * 2, [_another(value[0], chance, []), *value[1:]]])
    if isinstance(value, dict) and value:
        name = chance.choice(list(value))
        return {**value, name: _another(value[name], chance, [])}
    return chance.choice([f"{value}x", value.upper(), value[:-1]]) if isinstance(value, str) else value


def mutated(domain: str, task: Task, kind: str, number: int) -> list[Step]:
    """The gold steps of a task after one or two changes of a kind; the same for the same number."""
    chance = random.Random(f"{domain}/{task.id}/{kind}/{number}")
    others = [call for one in package_tasks(domain).values() for call in gold_calls(one)]
    steps = gold_steps(task)
    for _ in range(chance.choice([1, 1, 2])):
        MUTATIONS[kind](steps, chance, others)
    return [step for step in steps if step]


def compared(
    domain: str, cases: Iterator[tuple[str, Task, list[Step]]], make: Callable[..., Environment]
) -> Counter[str]:
    """How many verdicts are equal, and how many are 1; how many were not compared, as a call was refused by its schema.

    Prints those that differ.
    """
    counts: Counter[str] = Counter()
    for kind, task, steps in cases:
        mine = played(domain, task, steps)
        if mine.refused:
            counts["refused"] += 1
            continue
        try:
            theirs: object = package_says(task, mine.messages, make)
        except ValueError as error:
            theirs = f"{type(error).__name__}: {error}"
        counts["all"] += 1
        counts["right"] += mine.ours == 1
        counts["equal"] += mine.ours == theirs
        if mine.ours != theirs:
            print(f"{domain}/{task.id} {kind}: {mine.ours} is {theirs} to the package")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", action="append", choices=DOMAINS, help="default: all three")
    parser.add_argument("--each", type=int, default=4, metavar="N", help="mutations of each kind of each task")
    parser.add_argument("--whole", action="store_true", help="nothing of the package's evaluator is made quick")
    options = parser.parse_args()
    print("| domain | calls | compared | equal | right | not compared |\n| --- | --- | --- | --- | --- | --- |")
    total: Counter[str] = Counter()
    for domain in options.domain or DOMAINS:
        tasks = package_tasks(domain).values()
        for kind in ("gold", *MUTATIONS):
            cases = (
                (kind, task, gold_steps(task) if kind == "gold" else mutated(domain, task, kind, number))
                for task in tasks
                for number in range(1 if kind == "gold" else options.each)
            )
            make = package_environment if options.whole else quick_environment
            counts = compared(domain, cases, partial(make, domain))
            total += counts
            _show(domain, kind, counts)
    _show("all", "", total)
    sys.exit(total["all"] != total["equal"])


def _show(domain: str, kind: str, counts: Counter[str]) -> None:
    print(
        "|",
        " | ".join([domain, kind, *(str(counts[name]) for name in ("all", "equal", "right", "refused"))]),
        "|",
        flush=True,
    )


if __name__ == "__main__":
    main()
