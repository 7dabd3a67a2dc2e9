"""A template's request in the words of a model, held to the same values."""

from __future__ import annotations

import re

from ..errors import PolicyFailure
from ..policies.protocol import Agent, Sampling
from ..records import Message
from ..rollouts.seeds import derive_seed
from ..verifiers.text_tokens import positions, tokenize
from ..verifiers.wording import numbers_and_names
from .naming import VERBS
from .requesting import Request

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
    if asked.field != "done" and positions(tokenize(str(asked.answer)), said):
        return "it says the answer"
    if not _ASKING.search(text) and not _deeds(text) & (VERBS | _deeds(asked.prompt)):
        return "it asks for nothing"
    added = [token for token in numbers_and_names(text) if token not in before]
    return f"it adds {str(added[0])!r}" if added else ""


def _deeds(text: str) -> set[str]:
    """The words with which a request may tell what to do: those that begin its sentences or come after "please"."""
    return {word.casefold() for word in _DEED.findall(text)} - {"i"}
