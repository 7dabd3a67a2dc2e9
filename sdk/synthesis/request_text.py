"""The request that a walk answers: from templates, and in a model's words."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import PolicyFailure
from ..policies.protocol import Agent, Sampling
from ..records import Message
from ..rollouts.seeds import derive_seed
from ..verifiers.text_tokens import numbers_and_names, positions, tokenize
from .descriptions import Describer, Phrases, asked_for, last_name, listed, require_one_description, spoken
from .walks import Found, NoWalk, Path, Step, Told, Walk
from .words import MAKING, SETTING, VERBS, verb_and_object, words
from .worlds import Scalar, leaves

ASKING = (
    "{What} {is_} {x}?",
    "Tell me {x}.",
    "Please look up {x}.",
    "I need to know {x}.",
    "Can you find out {x}?",
    "Could you check {x} for me?",
)
DOING = (
    "{Act}.",
    "Please {act}.",
    "Can you {act}?",
    "I need you to {act}.",
    "Could you {act} for me?",
    "I would like you to {act}.",
)
REPORTING = ("Then tell me {x}.", "What is {x}?", "Afterwards, I need to know {x}.")
_TIMELIKE = ("at", "date", "time", "timestamp")
_MOST_OPTIONS = 8
_ONE_WORD = re.compile(r"[\w@.+-]+")


@dataclass(frozen=True)
class Request:
    """A request before it is checked. `said`: values that it must have. `wording`: which template."""

    prompt: str
    said: tuple[Any, ...]
    field: str
    answer: Scalar
    options: tuple[str, ...]
    wording: int
    closing: str
    """The last message of the demonstration."""


def request(walked: Walk, phrases: Phrases, chance: random.Random) -> Request:
    """A request whose end is that of the walk. Raises `NoWalk` where it cannot be put clearly."""
    return (_deed if walked.changes else _question)(walked, phrases, chance)


def _question(walked: Walk, phrases: Phrases, chance: random.Random) -> Request:
    step = walked.steps[-1]
    earlier = {str(v).casefold() for one in walked.steps[:-1] for _, v in leaves(one.content)}
    choices = [
        (path, value)
        for path, value in _asked_of(step.content)
        if str(value).casefold() not in earlier and _may_be_asked(path, value, step)
    ]
    chance.shuffle(choices)
    reason = "its result has nothing that was not known before"
    for path, value in choices[:8]:
        describer = Describer(walked, phrases)
        about = verb_and_object(step.tool.name)[1] or " ".join(words(step.tool.name))
        field = asked_for(path) if last_name(path) not in ("", "result", "value") else about
        try:
            described = describer.thing(step, path, field)
            _require_unsaid(walked, describer, value)
        except NoWalk as problem:
            reason = str(problem)
            continue
        whole = described if described == f"the {field}" else f"the {_quoted(field)} of {described}"
        number = chance.randrange(len(ASKING))
        prompt = ASKING[number].format(What="What", is_="are" if _is_plural(field) else "is", x=whole)
        closing = f"The {field} {'are' if _is_plural(field) else 'is'} {value}."
        options = _options(walked, last_name(path), value)
        return Request(prompt, tuple(describer.said), field, value, options, number, closing)
    raise NoWalk(reason)


def _asked_of(content: Any) -> Iterator[tuple[Path, Scalar]]:
    """The values of a result that one may ask for. Beside a list of things, others are about its pages."""
    found = list(leaves(content))
    listed = any(
        isinstance(part, int) and len(path) > place + 1 for path, _ in found for place, part in enumerate(path)
    )
    for path, value in found:
        if not listed or any(isinstance(part, int) for part in path):
            yield path, value


def _require_unsaid(walked: Walk, describer: Describer, answer: Scalar | None = None) -> None:
    """Raises `NoWalk` where the request says what is to be found out."""
    sources = (source for step in walked.steps for source in step.sources.values())
    found = [source.value for source in sources if isinstance(source, Found)]
    secret = {str(value).casefold() for value in (*found, answer) if value is not None}
    if secret & {str(value).casefold() for value in describer.said}:
        raise NoWalk("the request would say what is to be found out")


def _may_be_asked(path: Path, value: Scalar, step: Step) -> bool:
    if str(value).casefold() in {str(inner).casefold() for inner in step.arguments.values()}:
        return False
    # A text as a whole is an answer where it is one word.
    return bool(path) or step.result.structured is not None or bool(_ONE_WORD.fullmatch(str(value)))


def _deed(walked: Walk, phrases: Phrases, chance: random.Random) -> Request:
    step, describer = walked.steps[-1], Describer(walked, phrases)
    require_one_description(step)
    deed = phrases.words(step, describer) or _imperative(step, describer)
    _require_unsaid(walked, describer)
    number = chance.randrange(len(DOING))
    prompt = DOING[number].format(Act=deed[0].upper() + deed[1:], act=deed)
    field, answer, closing = _outcome(walked, describer)
    what = _outcome_name(step, field)
    if answer is None:
        prompt = f'{prompt} When it is done, answer with "{DONE}".'
        return Request(prompt, tuple(describer.said), DONE, DONE, (), number, DONE)
    ask = REPORTING[chance.randrange(len(REPORTING))].format(x=what)
    if _is_plural(field):
        ask = ask.replace("What is", "What are")
    return Request(f"{prompt} {ask}", tuple(describer.said), field, answer, (), number, closing)


def _outcome(walked: Walk, describer: Describer) -> tuple[str, Scalar | None, str]:
    """What the last result tells that the request did not say: a number before anything that could be guessed."""
    step = walked.steps[-1]
    known = {str(value).casefold() for value in (*describer.said, *step.arguments.values())}
    known |= {str(value).casefold() for one in walked.steps[:-1] for _, value in leaves(one.content)}
    choices = [
        (name, value)
        for path, value in leaves(step.content)
        if len(path) == 1
        and isinstance(name := path[0], str)
        and str(value).casefold() not in known
        and words(name)
        and words(name)[-1] not in _TIMELIKE
        and any(character.isdigit() for character in str(value))
    ]
    if not choices:
        return "", None, ""
    name, value = choices[0]
    return spoken(name), value, f"Done. The {spoken(name)} {'are' if _is_plural(spoken(name)) else 'is'} {value}."


def _outcome_name(step: Step, field: str) -> str:
    verb, about = verb_and_object(step.tool.name)
    if verb in MAKING and about:
        return f"the {_quoted(field)} of the new {about}"
    return f"the {_quoted(field)} that this gives"


def _imperative(step: Step, describer: Describer) -> str:
    """What is to be done, beginning with a verb in lower case."""
    verb, about = verb_and_object(step.tool.name)
    if not verb or not about:
        return _as_described(step, describer)
    rest = dict(step.sources)
    if about in {spoken(name) for name in rest} and len(rest) > 1:
        return _set_one(verb, about, rest, describer)
    target = next((name for name in rest if _is_target(name, rest[name], about, describer)), None)
    if verb in SETTING and len(rest) == (target is not None):
        raise NoWalk("it changes something without saying to what")
    if target is not None:
        thing = describer.argument(target, rest.pop(target))
    else:
        thing = f"a new {about}" if verb in MAKING else f"the {about}"
    if target is not None and verb in MAKING:
        thing = f"{thing} as a new one"
    return f"{verb} {thing}{_further(verb, rest, describer, described=' with the ' in thing)}"


def _is_target(name: str, source: Told | Found, about: str, describer: Describer) -> bool:
    """Whether an argument names what is acted on."""
    noun = describer.noun_of_argument(source)
    is_key = isinstance(source, Found) or (source.cell is not None and source.cell.is_key)
    return bool(noun) and is_key and noun == about and spoken(name).startswith(noun)


def _set_one(verb: str, about: str, rest: dict[str, Told | Found], describer: Describer) -> str:
    """ "change the address of order 4417 to ..." for a tool named after one of its arguments."""
    value = next(name for name in rest if spoken(name) == about)
    source = rest.pop(value)
    said = describer.value(source.value) if isinstance(source, Told) else describer.argument(value, source)
    of = [describer.argument(name, other) for name, other in rest.items() if describer.noun_of_argument(other)]
    if len(of) != len(rest) or not of:
        raise NoWalk("the request cannot be put clearly")
    return f"{verb} the {about} of {' and '.join(of)} {'to' if verb in SETTING else 'as'} {said}"


def _further(verb: str, rest: dict[str, Told | Found], describer: Describer, *, described: bool) -> str:
    """The arguments beside what is acted on: " for customer C11, with the quantity 3". `described`: what is acted on
    is named by what it is like, so that a comma must keep the rest from being read as more of that."""
    things = [name for name, source in rest.items() if describer.names_a_thing(name, source)]
    said = "".join(f" for {describer.argument(name, rest[name])}" for name in things)
    joint = "to" if verb in SETTING else ""
    parts = [describer.named(name, source, joint) for name, source in rest.items() if name not in things]
    # Long ones last: "the product of the order of C26 and the quantity 1" may be read as the quantity of that order.
    parts.sort(key=len)
    if sum(" with the " in part for part in parts) > 1:
        raise NoWalk("two of its values take long descriptions, and what belongs to which would not be clear")
    if parts:
        said += (": set " if joint else ", with " if things or described else " with ") + listed(parts)
    return said


def _as_described(step: Step, describer: Describer) -> str:
    """In the words of the tool's own description, or of its name where it has none."""
    first = re.split(r"[.;] |\n", step.tool.description.strip())[0].rstrip(".")
    word = first.split()[0] if first else ""
    plain = word.isalpha() and not word.isupper() and len(first) <= 80  # "DELETE /staff/{id}" is no sentence
    begun = f"{first[0].lower()}{first[1:]}" if plain else f"use {' '.join(words(step.tool.name))}"
    parts = []
    for name, source in step.sources.items():
        described = describer.value(source.value) if isinstance(source, Told) else describer.argument(name, source)
        parts.append(f"the {spoken(name)} is {described}")
    return f"{begun}, where {listed(parts)}" if parts else begun


def _options(walked: Walk, name: str, value: Scalar) -> tuple[str, ...]:
    """The closed list that an answer is from, as far as the state shows it: few different texts in a column."""
    for (_, column), cells in walked.facts.columns.items():
        texts = sorted({str(cell.value) for cell in cells})
        few = len(texts) <= _MOST_OPTIONS and len(cells) >= 2 * len(texts)
        if column == name and isinstance(value, str) and few and value in texts and len(texts) > 1:
            return tuple(texts)
    return ()


def _quoted(field: str) -> str:
    return f'"{field}"' if len(field.split()) > 2 else field


def _is_plural(field: str) -> bool:
    last = field.split()[-1] if field else ""
    return last.endswith("s") and not last.endswith(("ss", "us", "is"))


DONE = "done"
"""What is asked for, and the answer, where a deed has no result to tell of."""
RULES = """\
You rewrite requests to an assistant so that they sound like a person wrote them. Keep the meaning exactly: the same \
thing is asked or to be done, of the same thing. Keep every value in the list of values word for word. Add no value, \
name, number or condition, answer nothing, and name no tools. Reply with the rewritten request alone, in at most two \
sentences."""
TRIES = 2
_ASKING = re.compile(
    r"\?|\b(?:please|kindly|tell|show|give|find|check|look up|let me know|need|want|would like|wonder(?:ing)?"
    r"|(?:can|could|would|will) you)\b",
    re.IGNORECASE,
)
_DEED = re.compile(r"(?:^|[.!] |\bplease |\byou (?:to )?)(\w+)", re.IGNORECASE)
"""Where a request has the verb of what is to be done."""
_QUOTES = "\"'“”„"


async def reworded(agent: Agent, asked: Request, *, seed: int, attempt: int) -> tuple[str | None, str]:
    """The model's wording, or None with the reason why none of its tries can be used.

    Raises `PolicyFailure` where the model cannot be reached.
    """
    values = "\n".join(f"- {value}" for value in asked.said)
    material = f"Request: {asked.prompt}\nValues:\n{values or '- none'}"
    problem = ""
    for number in range(TRIES):
        sampling = Sampling(temperature=0.8, max_tokens=160)
        conversation = agent.start([], sampling=sampling, seed=derive_seed(seed, "wording", attempt, number))
        reply = await conversation.reply(
            [Message(role="system", content=RULES), Message(role="user", content=material)]
        )
        if reply.stop_reason == "context":
            raise PolicyFailure("a request does not fit into the context of the model that words it")
        text = _plain(reply.message.content)
        problem = "it was cut off" if reply.stop_reason == "length" else _problem(text, asked)
        if not problem:
            return text, ""
    return None, problem


def _plain(text: str) -> str:
    text = " ".join(text.split())
    text = re.sub(r"^(rewritten )?request: *", "", text, flags=re.IGNORECASE)
    # Quotes around the whole, not those around a value at its end.
    return text[1:-1] if len(text) > 2 and text[0] in _QUOTES and text[-1] in _QUOTES else text


def _problem(text: str, asked: Request) -> str:
    """What is wrong with a wording; empty where nothing is."""
    said, before = tokenize(text), tokenize(asked.prompt)
    if not said:
        return "it is empty"
    if len(said) > 2 * len(before) + 10:
        return "it is more than twice as long"
    for value in asked.said:
        if not positions(tokenize(str(value)), said):
            return f"it lacks {value!r}"
    if asked.field != DONE and positions(tokenize(str(asked.answer)), said):
        return "it says the answer"
    if not _ASKING.search(text) and not _deeds(text) & (VERBS | _deeds(asked.prompt)):
        return "it asks for nothing"
    added = [token for token in numbers_and_names(text) if token not in before]
    return f"it adds {str(added[0])!r}" if added else ""


def _deeds(text: str) -> set[str]:
    """The words with which a request may tell what to do: those that begin its sentences or come after "please"."""
    return {word.casefold() for word in _DEED.findall(text)} - {"i"}
