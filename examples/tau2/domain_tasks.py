"""The tasks of τ²-bench's domains, each with its user.

    python examples/tau2/domain_tasks.py retail airline > tasks.jsonl
    python examples/tau2/domain_tasks.py --split train > train.jsonl

Tasks of one customer, and those of one fault of the phone, are one family: never on both sides of a split.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache

from domains import DOMAINS, SPLITS, Task, gold_calls, origin, package_tasks

import sdk

_FACTS: dict[str, tuple[str, list[str]]] = {
    "name": (r"(?:You are|Your? name is) ([A-Z]\w+ [A-Z]\w+|[A-Z]\w+ (?=but))", []),
    "user id": (r"\b[a-z]+_[a-z]+_\d{4}\b", ["user id", "username"]),
    "email": (r"[\w.]+@[\w.]+\w", ["email", "e mail"]),
    "zip code": (r"\b\d{5}\b", ["zip", "zipcode", "postal code"]),
    "phone number": (r"\b\d{3}-\d{3}-\d{4}\b", []),
    "reservation number": (r"\b(?!HAT\d)[A-Z0-9]{6}\b", ["reservation", "confirmation", "booking"]),
    "location": (r"\b(?:abroad in|at home in) [\w ]+", ["location", "where are you", "abroad", "travel"]),
}
"""What a user by rules knows: patterns in what the scenario says that it knows, and words that ask for it."""

_ARGUMENTS = {
    "mode": ("4g_5g_preferred", "4g_only", "3g_only", "2g_only"),
    "app_name": ("messaging", "browser"),
    "permission": ("sms", "storage", "phone", "network"),
}
"""What a user by rules passes to the tools of its phone; it does not use those that take something else."""

_TOGGLE = ("toggle", "turn on", "turn off", "enable", "disable")

_FIRST_PERSON = (
    (r"\b[Yy]ou(?:'re| are)\b", "I am"),
    (r"\b[Yy]ou were\b", "I was"),
    (r"\b[Yy]ourself\b", "myself"),
    (r"\bYour\b|\bYou(?= mobile)", "My"),
    (r"\byour\b", "my"),
    (
        r"\b(to|for|of|with|from|caused|allows?|gives?|told|help|let|refund) you\b(?! (?:want|need|have|can|just)\b)",
        r"\1 me",
    ),
    (r"\b[Yy]ou\b", "I"),
)
"""Scenarios speak to the user. These make a prompt of it; a model that plays the user gets the scenario itself."""

_MOST_TURNS = 40


def tasks(domains: Sequence[str] = DOMAINS, split: str = "base") -> list[sdk.Task]:
    """All tasks of some domains, with a demonstration that plays the gold actions."""
    return [_task(domain, task) for domain in domains for task in package_tasks(domain, split).values()]


def _task(domain: str, task: Task) -> sdk.Task:
    user = _user(domain, task)
    return sdk.Task(
        id=f"{domain}/{task.id}",
        prompt=[
            sdk.Message(role="system", content=origin(domain).policy),
            sdk.Message(role="user", content=_opening(task.user_scenario.instructions.reason_for_call)),
        ],
        user=user,
        setup={"scenario": task.id},
        expected=task.evaluation_criteria.model_dump(mode="json", exclude_none=True),
        demonstration=list(_demonstration(task, user)),
        tags={"domain": domain},
        family=f"{domain}/{_story(task)}",
    )


def _story(task: Task) -> str:
    fault, persona, _ = task.id.partition("[PERSONA")
    return fault if persona else str(task.user_scenario.instructions.known_info).split("\n")[0]


def _opening(reason: str) -> str:
    """What the user says first; what hangs on what the agent does is left to a model that plays the user."""
    sentences = re.split(r"(?<=[.?!])\s+", reason.strip().lstrip(". "))
    said = " ".join(one for one in sentences if "agent" not in one) or reason
    for pattern, words in _FIRST_PERSON:
        said = re.sub(pattern, words, said)
    return said


def _user(domain: str, task: Task) -> sdk.User:
    facts = {}
    for name, (pattern, asked_by) in _FACTS.items():
        if found := re.findall(pattern, task.user_scenario.instructions.known_info or ""):
            facts[name] = sdk.Fact(value=" and ".join(dict.fromkeys(found)).strip(), asked_by=asked_by)
    phone = origin(domain).user_tools
    return sdk.User(
        scenario=str(task.user_scenario),
        facts=facts | _done_when_asked(domain),
        tools=list(phone.tools) if phone else [],
        max_turns=_MOST_TURNS,
    )


@cache
def _done_when_asked(domain: str) -> dict[str, sdk.Fact]:
    """What a user by rules does with its phone: the tools by their names, and by other words for "toggle"."""
    facts = {}
    phone = origin(domain).user_tools
    for name, tool in phone.get_tools().items() if phone else ():
        takes = list(tool.openai_schema["function"]["parameters"].get("properties", ()))
        if not set(takes) <= set(_ARGUMENTS):
            continue
        verb, thing = name.replace("_", " ").split(" ", 1)
        for values in itertools.product(*(_ARGUMENTS[one] for one in takes)):
            facts[" ".join([verb, thing, *values])] = sdk.Fact(
                call=sdk.ToolCall(id="user", name=name, arguments=dict(zip(takes, values, strict=True))),
                asked_by=[
                    " ".join([said, *article, thing, *to, *values])
                    for said in (_TOGGLE if verb == "toggle" else [verb])
                    for article in ([], ["your"], ["the"])
                    for to in ([], ["to"])[: 1 + bool(values)]
                ],
            )
    return facts


def _demonstration(task: Task, user: sdk.User) -> Iterator[sdk.Message]:
    known = [name for name, fact in user.facts.items() if fact.call is None]
    yield sdk.Message(role="assistant", content=f"Could you tell me your {' and your '.join(known)}?")
    for call in gold_calls(task):
        if call.requestor == "user":
            (name,) = [
                one
                for one, fact in user.facts.items()
                if fact.call and (fact.call.name, fact.call.arguments) == (call.name, call.arguments)
            ]
            yield sdk.Message(role="assistant", content=f"Could you please {name}?")
        else:
            made = sdk.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
            yield sdk.Message(role="assistant", tool_calls=[made])
    told = ", ".join(task.evaluation_criteria.communicate_info or ())
    yield sdk.Message(role="assistant", content=f"That is all. {told}".strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domain", nargs="*", choices=DOMAINS, default=DOMAINS, help="default: all three")
    parser.add_argument("--split", choices=SPLITS, default="base", help="the package's own; default: base, all of them")
    options = parser.parse_args()
    for task in tasks(options.domain, options.split):
        print(task.model_dump_json())


if __name__ == "__main__":
    main()
