"""Held-back facts: a request that says everything becomes one whose user tells the rest when it is asked."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ..records import Fact, Message, Task, User
from ..rollouts import derive_seed
from ..tasks import counted, load_tasks
from .words import listed, words

TOLD = ("The {name} is {value}.", "It is {value}.", "{value}")
"""How the users tell a fact, where nobody says otherwise."""
_SCENARIO = 'You ask an assistant for help, and tell only what it asks for. In full, you want this: "{prompt}"'
_IDS = frozenset({"id", "ids", "key", "uuid", "code", "number", "no"})
_BEFORE = "with|of|by|for|to|at|in|on|from|as|under|named|called|about|until|into"
_AFTER = re.compile(
    r"\s*(?:[.,?!;:]|$|\s(?:and|or|to|of|for|with|in|at|on|as|by|from|into|until|instead|again|once|please)\b)"
)
"""What may follow words that are left out, so that a sentence stays one."""
_VAGUE = frozenset({"query", "q", "text", "value", "input", "search", "term", "data", "content", "body", "filter"})
"""Names of arguments that no user is asked for."""
_ARTICLE = "the|my|a|an|this|our|its"


@dataclass(frozen=True)
class HeldBackTasks:
    """Tasks with users who hold facts back. `print` it; give `tasks` to `sdk.train` as prompts."""

    tasks: Sequence[Task]
    left_out: Mapping[str, str]
    """Task id -> why nothing of it can be held back."""

    def __str__(self) -> str:
        lines = [f"{counted(self.tasks)} whose users hold facts back"]
        return "\n".join([*lines, *(f"  left out {name}: {why}" for name, why in self.left_out.items())])


def hold_back(tasks: Any, facts: int = 1, *, told: Sequence[str] = TOLD, seed: int = 0) -> HeldBackTasks:
    """Of each task one whose prompt lacks `facts` of the values that its gold calls need. The user has them and tells
    them when asked; the demonstration asks first, then calls.

    `tasks`: what `sdk.tasks.load_tasks` takes; each needs a demonstration and a prompt in text. `told`: how a fact is
    told, with `{name}` and `{value}`; one of them for each fact, chosen by `seed`. Family, setup and what is expected
    stay, and the tag `held_back` names the facts. The rewording goes by rules: read some of the prompts.

    Raises `ConfigError` where no task has a value that can be held back.

    Example: `hold_back("tasks.jsonl", 2).tasks`
    """
    if facts < 1:
        raise ConfigError(f"facts is {facts}; hold back 1 or more facts of each task")
    if not told or not all("{value}" in text for text in told):
        raise ConfigError(f"told is {list(told)!r}; give texts with {{value}} in them, such as 'It is {{value}}.'")
    made: list[Task] = []
    left_out: dict[str, str] = {}
    for task in load_tasks(tasks):
        found = held_back(task, facts, told=told, seed=seed)
        if isinstance(found, Task):
            made.append(found)
        else:
            left_out[task.id] = found
    if not made:
        raise ConfigError(f"no task has a fact that can be held back; the first: {next(iter(left_out.items()))}")
    return HeldBackTasks(made, left_out)


def held_back(task: Task, facts: int, *, told: Sequence[str] = TOLD, seed: int = 0) -> Task | str:
    """The task with so many facts held back, or why that cannot be. See `hold_back`."""
    if not isinstance(task.prompt, str):
        return "its prompt is a list of messages"
    if task.user is not None or task.later_turns:
        return "its user says more than the prompt already"
    chance = random.Random(derive_seed(seed, "held back", task.id))
    candidates = [one for one in _told_values(task) if _without(task.prompt, *one) is not None]
    if len(candidates) < facts:
        return f"its prompt names {len(candidates)} values of its calls that can be held back, and {facts} are wanted"
    chosen = sorted(chance.sample(candidates, facts), key=candidates.index)
    prompt = task.prompt
    for name, value in chosen:
        shorter = _without(prompt, name, value)
        if shorter is None:
            return "its values cannot be taken out together"
        prompt = shorter
    texts = [chance.choice(list(told)) for _ in chosen]
    known = {
        name: Fact(value=value, told=text.replace("{name}", name))
        for (name, value), text in zip(chosen, texts, strict=True)
    }
    question = Message(role="assistant", content=f"What is {listed([f'the {name}' for name, _ in chosen])}?")
    return task.model_copy(
        update={
            "id": "-".join([task.id, "asks", *(name.replace(" ", "_") for name, _ in chosen)]),
            "prompt": prompt,
            "user": User(scenario=_SCENARIO.replace("{prompt}", task.prompt), facts=known),
            "demonstration": [question, *task.demonstration],
            "tags": {**task.tags, "held_back": ", ".join(name for name, _ in chosen)},
        }
    )


def _told_values(task: Task) -> list[tuple[str, str]]:
    """The arguments of the gold calls whose values stand once in the prompt: name in words, and value."""
    found: dict[str, set[str]] = {}
    for message in task.demonstration:
        for call in message.tool_calls:
            for argument, value in call.arguments.items():
                if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
                    found.setdefault(" ".join(words(argument)), set()).add(str(value))
    single = [(name, next(iter(values))) for name, values in found.items() if name not in _VAGUE and len(values) == 1]
    prompt = str(task.prompt)
    return [
        (name, value)
        for name, value in single
        if len(_standing(value).findall(prompt)) == 1
        and not any(value in other and value != other for _, other in single)
        and sum(value == other for _, other in single) == 1
    ]


def _standing(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")


def _without(prompt: str, name: str, value: str) -> str | None:
    """The prompt without a value: "order 7" becomes "the order", "to 5 New Street" is left out, and a value that stands
    alone becomes "the" and its name. None where nothing would be left."""
    found = _standing(value).search(prompt)
    if found is None:
        return None
    before, after = prompt[: found.start()], prompt[found.end() :]
    if before[-1:] in "'\"" and after[:1] == before[-1:]:
        before, after = before[:-1], after[1:]
    named = name.split()
    noun = [word for word in named if word not in _IDS] or named
    of_noun = re.search(
        rf"(?i)(?:\b(?:{_ARTICLE})\s+)?\b{re.escape(noun[-1])}\s+(?:(?:with\s+)?(?:the\s+)?(?:id|number|no\.?|code)\s+)?#?$",
        before,
    )
    of_place = re.search(
        rf"(?i)\s+(?:{_BEFORE})\s+(?:(?:{_ARTICLE})\s+)?(?:{'|'.join(map(re.escape, named))}\s+)*$", before
    )
    article = re.search(rf"(?i)\b(?:{_ARTICLE})\s+$", before)
    if of_noun is not None:
        head, thing = before[: of_noun.start()], f"the {noun[-1]}"
    elif not _AFTER.match(after):
        return None
    elif of_place is not None:
        head, thing = f"{before[: of_place.start()]} ", ""
    elif article is None and re.search(r"[\d@]", value):  # a word among others has no name to stand in
        head, thing = before, f"the {' '.join(noun)}"
    else:
        return None
    if not head.strip() or re.search(r"[.?!]\s*$", head):
        thing = thing[:1].upper() + thing[1:]
    text = re.sub(r"\s+([.,?!;:])", r"\1", re.sub(r"[ \t]{2,}", " ", f"{head}{thing}{after}")).strip()
    return text if len(text.split()) > 1 else None
