"""The user that goes by rules: it tells the facts that it is asked for, and ends the talk once nothing is asked."""

from __future__ import annotations

import re

from ..errors import UserFailure
from ..records import CallRecord, Fact, Rollout, User, UserTurn
from .asked_facts import asked_facts, is_yes_or_no, requests, words
from .user_policy import CallTool

UNKNOWN = "I do not know that."
PATIENCE = 2
"""Turns in which a user may be asked for nothing that it knows, or only for what it has told, before it ends the talk.
"""
_CODE = re.compile(r"[\w@.+-]*\d[\w@.+-]*\w|\d")


class RuleUser:
    """Depends on the facts and on what was said, and on nothing else: no model, no chance.

    It tells every fact that a message asks for; agrees to a question for yes or no, unless that has another value for
    a fact that it names, which it corrects; says that it does not know where asked for something else; and ends the
    talk when it is asked for nothing, or for nothing that helps more than `PATIENCE` times.
    """

    async def turn(self, rollout: Rollout, call: CallTool, *, seed: int) -> UserTurn | None:  # noqa: ARG002
        """See `UserPolicy.turn`."""
        user = rollout.task.user
        assert user is not None
        heard = next(message.content for message in reversed(rollout.messages) if message.role == "assistant")
        turn = UserTurn(turn=rollout.turns, by="rules")
        asking = requests(heard)
        told = asked_facts(user.facts, heard)
        if not asking and not told:
            return turn.model_copy(update={"ended": True})
        known = {name for before in rollout.user_turns for name in before.told}
        if set(told) <= known and self._unhelped(rollout) >= PATIENCE:
            return turn.model_copy(update={"ended": True})
        wrong = [name for name, fact in user.facts.items() if any(_contradicts(name, fact, one) for one in asking)]
        told = [name for name in user.facts if name in told or name in wrong]
        said = ["No."] if wrong else []
        said += [await _told(user, name, turn, call) for name in told]
        if not told:
            said = ["Yes, please." if any(map(is_yes_or_no, asking)) else UNKNOWN]
        return turn.model_copy(update={"said": " ".join(said), "told": told})

    def _unhelped(self, rollout: Rollout) -> int:
        """The turns so far in which the user told nothing new."""
        known: set[str] = set()
        count = 0
        for turn in rollout.user_turns:
            count += set(turn.told) <= known
            known.update(turn.told)
        return count


async def _told(user: User, name: str, turn: UserTurn, call: CallTool) -> str:
    """How a fact is told; its call is made, and noted in the turn."""
    fact = user.facts[name]
    if fact.call is None:
        return _worded(name, fact, _as_text(fact.value))
    made = fact.call.model_copy(update={"id": f"user_{turn.turn}_{len(turn.calls) + 1}"})
    result = await call(made)
    turn.calls.append(CallRecord(turn=turn.turn, call=made, result=result))
    if result.error_kind == "invalid_arguments":
        raise UserFailure("UserFact", f"fact {name!r} has a call that cannot be made; correct the task: {result.text}")
    return _worded(name, fact, result.text)


def _worded(name: str, fact: Fact, value: str) -> str:
    if fact.told:
        return fact.told.replace("{value}", value)
    return value if fact.call is not None else f"The {name.replace('_', ' ')} is {value.rstrip('.')}."


def _as_text(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _contradicts(name: str, fact: Fact, sentence: str) -> bool:
    """Whether a question for yes or no names this fact with another value: numbers and codes alone are compared."""
    value = str(fact.value)
    if fact.call is not None or not _CODE.fullmatch(value) or not is_yes_or_no(sentence):
        return False
    said = [found for found in _CODE.findall(sentence) if found.casefold() != value.casefold()]
    telling = set(words(name.replace("_", " "))) & set(words(sentence))
    return bool(said and telling) and value.casefold() not in sentence.casefold()
