"""Fidelity: the errors of a model that plays a user, found by rules from the task's facts and from what was said.

The rules read words, and know no meaning. What each looks for, and how often it errs, is in `docs/users.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from ..records import Fact, Failure, Rollout, User, UserTurn

# ---------------------------------------------------------------------------------------------------------------------
# The facts that a message asks a user for, by its words alone.

_SENTENCE = re.compile(r"[^.?!\n]*(?:[.](?=\S)[^.?!\n]*)*[.?!\n]*")
_ITEM = re.compile(r"[ \t]*(?:[-*\u2022]|\d{1,3}[.)])[ \t]+(?P<text>\S.*)")
_OPENS_A_LIST = re.compile(r"(?P<line>.*)(?P<mark>[:?])[*_ \t]*")
_INNER_END = re.compile(r"[.?!]+(?=\s|\Z)")
_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_ASKING = re.compile(
    r"\?"
    r"|\b(?:(?:please|kindly|could you|can you|would you|will you)\b.*)?"
    r"\b(?:tell|give|provide|share|send|specify|state|confirm|enter|supply|name|type|write)\b\s+(?:me|us|the|your|which)\b"
    r"|\b(?:let me know|may i have|could i have|can i have|could i get|can i get|may i ask)\b"
    r"|\b(?:i|we)(?:'ll| will|'d| would)?(?: still| also| just| only| first)?\s+(?:need|require|like|want)\b"
    r"|\b(?:missing|required)\b"
    r"|^\W*(?:what|which|whose)\b",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"\b(?:anything|something|any other|what|how) (?:else|more)\b|\bfurther (?:questions?|help|assistance)\b"
    r"|\bif you (?:have|need|want|would like)\b|\bfeel free\b|\b(?:more|other|any) (?:questions|help)\b",
    re.IGNORECASE,
)
_YES_OR_NO = re.compile(
    r"^\W*(?:(?:so|ok|okay|just to confirm|to confirm|and|then)\b\W*)*"
    r"(?:shall|should|do|does|did|is|are|were|would|will|can|may|could|have|has"
    # not in German, "Was ist die Bestellnummer?", "Am welchen Tag?"
    r"|was(?! (?:ist|sind|war|waren|wäre|kostet|genau|für)\b)|am(?! (?:welchem|welchen|wievielten)\b))\b"
    r"|\b(?:correct|right|ok|okay|yes or no)\s*\?\s*$",
    re.IGNORECASE,
)
_TELLING = re.compile(
    r"\b(?:tell|give|giving|provide|share|(?:do|would) you have|you got|(?:may|can|could) (?:i|we) have)\b"
    r"|\b(?:know|remember|get|send|specify|say|state|ask|let)\b"
    r"|\bconfirm (?:the|your)\b",
    re.IGNORECASE,
)
_PLEASE = re.compile(r"\b(?:please|kindly|(?:could|can|would|will) you)\b", re.IGNORECASE)
_OFFERING = re.compile(r"\b(?:shall|should|may|can|could) (?:i|we)\b|\b(?:want|like) (?:me|us) to\b", re.IGNORECASE)
_IDENTIFYING = frozenset(
    {"id", "ids", "key", "number", "no", "code", "name", "value", "the", "a", "an", "of", "my", "your", "our", "their"}
)
"""Words of a fact's name that alone ask for nothing, and whose lack does not matter: "which order?"."""


def words(text: str) -> list[str]:
    """The words of a text in lower case, each without the `s` of a plural and without `'s`."""
    found = [
        word.casefold().removesuffix("'s") for word in _WORD.findall(text.replace("-", " ").replace("\u2019", "'"))
    ]
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found]


def sentences(text: str) -> list[str]:
    """The sentences of a text, with the mark that ends each. A list after `:` or `?` belongs to the sentence above."""
    return [found.strip() for found in _SENTENCE.findall(_lists_joined(text)) if found.strip()]


def _lists_joined(text: str) -> str:
    """The text with each list in the line above it: of a line "Tell me:" and the items "- The city" and "- The day" it
    makes "Tell me: The city, The day."."""
    lines: list[str] = []
    items: list[str] = []
    asks = False
    for line in [*filter(str.strip, text.split("\n")), ""]:
        item = _ITEM.fullmatch(line)
        opens = _OPENS_A_LIST.fullmatch(lines[-1]) if lines and not _ITEM.fullmatch(lines[-1]) else None
        if item and opens:
            asks |= "?" in item["text"]
            items.append(_INNER_END.sub(",", item["text"]).rstrip(", "))
            continue
        if items and opens:
            end = "?" if asks or opens["mark"] == "?" else "."
            lines[-1] = f"{opens['line']}: {', '.join(items)}{end}"
            items, asks = [], False
        lines.append(line)
    return "\n".join(lines)


def is_closing(sentence: str) -> bool:
    """Whether it offers more help rather than asks: "Can I do anything else for you?"."""
    return _CLOSING.search(sentence) is not None


def is_yes_or_no(sentence: str) -> bool:
    """Whether it can be answered by yes or no, and asks for nothing else: "Shall I cancel it?"."""
    return _YES_OR_NO.search(sentence) is not None and _TELLING.search(sentence) is None


def requests(text: str) -> list[str]:
    """The sentences that ask the user for something."""
    return [one for one in sentences(text) if _ASKING.search(one) and not is_closing(one)]


def asked_facts(facts: Mapping[str, Fact], text: str) -> list[str]:
    """The names of the facts that `text` asks for, in the order of `facts`. One that stands in the question itself is
    not asked for: "Shall I cancel order 4417?"."""
    found: set[str] = set()
    for sentence in sentences(text):
        said = words(sentence)
        by_name = {name: ways for name, fact in facts.items() if (ways := _asking_words(name, fact, sentence, said))}
        for name, ways in by_name.items():
            wider = any(ways < others for other, others in by_name.items() if other != name)
            if not wider and not stands_in(facts[name], said):
                found.add(name)
    return [name for name in facts if name in found]


def _asking_words(name: str, fact: Fact, sentence: str, said: list[str]) -> frozenset[str]:
    """The words of the sentence by which it asks for the fact; none where it does not."""
    asks = not is_closing(sentence) and _ASKING.search(sentence) is not None
    if fact.asked_by:
        # Also what somebody is asked to do: "please restart it", "could you restart it?".
        if (asks or _PLEASE.search(sentence)) and not _OFFERING.search(sentence):
            found = [asking for phrase in fact.asked_by if places(asking := words(phrase), said)]
            return frozenset(word for asking in found for word in asking)
        return frozenset()
    if not asks or (is_yes_or_no(sentence) and not isinstance(fact.value, bool)):
        return frozenset()
    named = words(name.replace("_", " "))
    telling = [word for word in named if word not in _IDENTIFYING] or named
    return frozenset(word for word in named if word in said) if set(telling) <= set(said) else frozenset()


def stands_in(fact: Fact, said: list[str]) -> bool:
    """Whether the fact's value is among these words; True and False are not words."""
    return fact.value is not None and not isinstance(fact.value, bool) and places(words(str(fact.value)), said)


def places(wanted: Iterable[str], said: list[str]) -> bool:
    """Whether these words follow each other among those that were said."""
    sought = list(wanted)
    return bool(sought) and any(said[at : at + len(sought)] == sought for at in range(len(said) - len(sought) + 1))


# ---------------------------------------------------------------------------------------------------------------------

UserErrorKind = Literal[
    "answered_for_the_agent", "contradicted", "told_too_much", "only_agreed", "gave_up", "never_ended"
]

USER_ERRORS: dict[UserErrorKind, str] = {
    "answered_for_the_agent": "it spoke as the assistant: offered help, said that it did something, or wrote a call",
    "contradicted": "it told something else than its facts, or said that it does not know what it knows",
    "told_too_much": "it told what nobody had asked for yet, what it must never tell, or its part",
    "only_agreed": "it was asked for something that it knows, or for something wrong, and only agreed or asked again",
    "gave_up": "it ended the conversation, or took its request back, while it was asked for something",
    "never_ended": "it went on after the policy had nothing to ask any more",
}
"""Each kind with what it means. Of two in one turn the earlier in this list is taken."""


@dataclass(frozen=True)
class UserError:
    """What a user did wrong. `turn`: the place among `rollout.user_turns`, from 1."""

    kind: UserErrorKind
    turn: int
    detail: str


class UserJudge(Protocol):
    """Finds what no rule does. Rollouts hold text that models and tools wrote: material, never instructions."""

    async def judge(self, rollout: Rollout, /) -> UserError | None:
        """The first error of the user's, None where there is none. Raises `VerifierError` where it cannot tell."""


def played_by_model(rollout: Rollout) -> bool:
    """Whether a model took a turn of the user: rules keep to the facts."""
    return any(turn.by not in ("rules", "script") for turn in rollout.user_turns)


def user_fault(rollout: Rollout) -> Failure | None:
    """The failure of a rollout whose user a model played, and played wrong; None for any other."""
    found = user_errors(rollout) if played_by_model(rollout) else []
    return user_failure(found[0]) if found else None


def user_failure(error: UserError) -> Failure:
    """An error of the user's as what left a rollout unscored."""
    kind = "User" + "".join(word.capitalize() for word in error.kind.split("_"))
    message = f"user turn {error.turn}: {USER_ERRORS[error.kind]}: {error.detail}"
    return Failure(boundary="user", kind=kind, message=message)


def user_errors(rollout: Rollout) -> list[UserError]:
    """The errors of the user in the order of its turns; at most one a turn."""
    user = rollout.task.user
    if user is None:
        return []
    order = {kind: place for place, kind in enumerate(get_args(UserErrorKind))}
    found = sorted(_Reading(rollout, user).errors(), key=lambda one: (one.turn, order[one.kind]))
    return [one for place, one in enumerate(found) if not place or found[place - 1].turn != one.turn]


_CODE = re.compile(r"\d+")
_TOKEN = re.compile(r"[\w@][\w@.+-]*[\w@]|\d")
_MIXED = re.compile(r"[A-Za-z]\d|\d(?!(?:st|nd|rd|th|am|pm|h)\b)[A-Za-z]")
_SIGN = re.compile(r"[^\w@]")
_NAME = re.compile(r"(?<![.!?\"'] )(?<!^)\b[A-Z][a-z]{2,}\b")
_UNSURE = re.compile(
    r"\b(?:(?:don't|do not|didn't|can't|cannot|can not|not) (?:know|remember|recall|have|sure|find|tell)"
    r"|no idea|not sure|unsure|forgot|forgotten|unknown)\b",
    re.IGNORECASE,
)
_AGREEING = frozenset(
    """yes yeah yep yup ok okay sure right correct exactly fine good great perfect alright absolutely
    certainly definitely agreed indeed course sound thank thanks please that it is this the
    a to me my i i'm you your go ahead do so all very much for help and works work with make makes sense
    of just would be lovely nice wonderful excellent happy whatever think best confirm confirmed proceed
    continue no problem by can will as say said already then now everything looks look seem seems in are
    am we let love appreciate""".split()  # noqa: SIM905 - a list of a hundred words
)
_ASSENT = re.compile(
    r"\W*(?:yes|yeah|yep|yup|ok|okay|sure|right|correct|exactly|fine|good|great|perfect|alright|absolutely|certainly"
    r"|definitely|agreed|indeed|of course|sounds|no problem)\b",
    re.IGNORECASE,
)
_THANKING = re.compile(r"\bthank(?:s| you)\b[^.?!,;]*", re.IGNORECASE)
_GIVING_UP = re.compile(
    r"\b(?:never ?mind|forget (?:it|about it|that)|(?:i )?give up|giving up|do(?:ing)? it (?:by )?myself|leave it"
    r"|not worth|don't (?:want|need) (?:it|this|that|your help)? ?(?:any ?more|any longer)"
    r"|(?:try|look|go) (?:it )?(?:somewhere else|elsewhere|another time|some other time)|waste of (?:my )?time"
    r"|(?:i've|i have) had enough|too (?:complicated|much trouble)|drop it|changed my mind|i'm (?:done|out)\b"
    r"|(?:call|come) back (?:another|some other) (?:time|day)|i'm leaving|cancel (?:this|my) request)\b",
    re.IGNORECASE,
)
_AS_AGENT = re.compile(
    r"^\W*(?:assistant|agent|support|tool)\s*:"
    r"|</?tool_call>|<\|"
    r"|\{\s*\"(?:name|tool|function|arguments)\"\s*:"
    r"|\b[a-z]+_[a-z_]+\s*\("
    r"|\bhow (?:can|may) (?:i|we) (?:help|assist)|\b(?:can|may|could) (?:i|we) (?:help|assist) you\b"
    r"|\b(?:anything|something) else (?:i|we) can\b"
    r"|\b(?:happy to|glad to|glad i could) (?:help|assist)\b"
    r"|\bthank you for (?:contacting|calling|reaching|providing|confirming)"
    r"|\bthank you for your (?:patience|order|call|request|message)"
    r"|\bas (?:an|your) (?:ai|assistant|agent)\b"
    r"|\b(?:i|we)(?:'ve| have|'ll| will| can| am going to|'m going to)? (?:now |just |already |go ahead and )*"
    r"(?:cancel|process|updat|chang|refund|plac|sen[dt]|book|check|look|locat|found|find|reset|clos|open|forward|escalat"
    r"|arrang|schedul|submitt?|issu|transferr?|verif)\w*\b[^.?!]*\b(?:your|for you|to you)\b"
    r"|\byour (?:\w+ ){1,3}?(?:\w+ )?(?:has|have) (?:now |just |already |successfully )*been\b"
    r"|\b(?:let me|allow me to) (?:\w+ )?(?:check|look|cancel|process|pull|find|verify|update|see|get)\b[^.?!]*"
    r"\b(?:your|for you|that|this|it|into|up)\b"
    r"|\b(?:could|can|may|would) (?:i|you) (?:please )?(?:have|get|give me|provide|tell me|confirm|share) your\b",
    re.IGNORECASE,
)
_AS_PART = re.compile(
    r"\b(?:my|the) (?:scenario|instructions?|script|role|prompt) (?:say|is|tell|state|mention|require|want)"
    r"|\b(?:i am|i'm|i was) (?:told|instructed|asked|supposed|simulat|playing|pretend)\w*\b"
    r"|\b(?:simulated user|user simulator|role-?play|system prompt|according to my (?:scenario|instructions))\b",
    re.IGNORECASE,
)
_PROPOSING = re.compile(r"\b(?:how|what) about\b|\bwould you like\b|\bwhy (?:not|don't)\b", re.IGNORECASE)
_OPEN = re.compile(
    r"\b(?:details?|information|everything|more about|describe|explain|what happened|elaborate|specifics)\b",
    re.IGNORECASE,
)
_FILLING = frozenset(
    """the a an is it its was were be been to of in on at for and or my i i'm me we our with that this
    from by as so has have had not very too just one some any there they he she them his her their would
    should could please want name number id address code value""".split()  # noqa: SIM905
)
_MOST_CHATTER = 3
"""Turns in which a user may go on although the policy asked for nothing; the third is one too many."""
_ENDING_CHATTER = 2
"""The same for a conversation that a limit of turns ended."""
_SCENARIO_RUN = 7
"""So many words of the scenario in a row are recited."""


class _Reading:
    """One rollout's conversation, from the user's side."""

    def __init__(self, rollout: Rollout, user: User) -> None:
        self._rollout = rollout
        self._user = user
        self._prompt = "\n".join(one.content for one in rollout.task.opening() if one.role == "user")
        self._own = set(_after({"my", "our"}, words(self._prompt))) - _FILLING | {"account", "detail", "case"}
        """What the user has: from its mouth it is not "yours"."""

    def errors(self) -> Iterator[UserError]:
        told = {name for name, fact in self._user.facts.items() if _has(self._prompt, fact)}
        known = "\n".join([self._prompt, self._user.scenario, *(_text(fact) for fact in self._user.facts.values())])
        asked: set[str] = set()
        acted = False
        for number, turn in enumerate(self._rollout.user_turns, 1):
            heard = turn.heard
            known = "\n".join([known, heard, *(record.result.text for record in turn.calls)])
            acted = acted or bool(turn.calls)
            asking = asked_facts(self._user.facts, heard)
            asked.update(asking)
            missing = [name for name in asking if self._is_missing(turn, name)]
            found = {
                "answered_for_the_agent": self._as_agent(turn.said, missing) if not acted else _marked(turn.said),
                "contradicted": self._contradiction(turn, heard, missing, known),
                "told_too_much": self._too_much(turn, heard, asked, told),
                "only_agreed": self._agreement(turn, heard, missing),
                "gave_up": self._giving_up(turn, heard, missing),
            }
            if not any(found.values()) and missing and not acted and "you" in _stated(turn.said):
                found["answered_for_the_agent"] = _shown(turn.said)  # to the other side, and nothing of what it knows
            kinds: list[UserErrorKind] = [kind for kind in get_args(UserErrorKind) if found.get(kind)]
            yield from (UserError(kind, number, found[kind]) for kind in kinds)
            told.update(name for name, fact in self._user.facts.items() if _has(turn.said, fact))
            known = f"{known}\n{turn.said}"
        if chatter := self._chatter():
            yield UserError("never_ended", chatter, _shown(self._rollout.user_turns[chatter - 1].said))

    def _is_missing(self, turn: UserTurn, name: str) -> bool:
        """Whether a fact that was asked for is not told in this turn."""
        fact = self._user.facts[name]
        return fact.call is None and not isinstance(fact.value, bool) and not _has(turn.said, fact, partly=True)

    # -- answered for the agent

    def _as_agent(self, said: str, missing: list[str]) -> str:
        """It says "your" of its own things, or of any in place of what it was asked for."""
        spoken = _stated(said)
        theirs = "your" in spoken if missing else self._own & set(_after({"your"}, spoken))
        return _shown(said) if theirs or _AS_AGENT.search(said) else ""

    # -- contradicted

    def _contradiction(self, turn: UserTurn, heard: str, missing: list[str], known: str) -> str:
        said = turn.said
        if strange := self._strange(said, known, short=bool(missing or _open_questions(heard))):
            return f"it knows no {strange}: {_shown(said)}"
        for name, fact in self._user.facts.items():
            if isinstance(fact.value, bool) and self._asks_yes_or_no(name, heard) and _denies(said) == fact.value:
                return f"{name} is {'yes' if fact.value else 'no'}: {_shown(said)}"
        if not missing or turn.ended or not said:
            return ""
        if _UNSURE.search(said):
            return f"it knows its {missing[0]}: {_shown(said)}"
        own = set(words(known))
        for name in missing:
            value = _text(self._user.facts[name])
            if _CODE.search(value):
                continue  # another number is found above
            others = [one for one in _NAME.findall(said) if one.casefold() not in own]
            new = [word for word in _content(said) if word not in own and word not in _AGREEING]
            if (_NAME.search(f"x {value}") and others) or (not _NAME.search(f"x {value}") and new and "?" not in said):
                return f"its {name} is {value}: {_shown(said)}"
        return ""

    def _strange(self, said: str, known: str, *, short: bool) -> str:
        """A number, code or address in a text that stands nowhere in what the user knows; `short`: also a digit."""
        numbers = {number.lstrip("0") for number in _CODE.findall(known)}
        run = "".join(_CODE.findall(said))
        if any(run and run == "".join(_CODE.findall(_text(fact))) for fact in self._user.facts.values()):
            numbers.update(number.lstrip("0") for number in _CODE.findall(said))  # one number, written in other groups
        squeezed = _SIGN.sub("", known).casefold()
        for token in _TOKEN.findall(said):
            mixed = _MIXED.search(token) is not None or "@" in token
            if mixed and _SIGN.sub("", token).casefold() not in squeezed:
                return str(token)
            for number in _CODE.findall(token):
                if not mixed and number.lstrip("0") not in numbers and (short or len(number) > 1):
                    return str(number)
        return ""

    def _asks_yes_or_no(self, name: str, heard: str) -> bool:
        named = set(words(name.replace("_", " "))) - _FILLING
        return any(named and named <= set(words(one)) for one in requests(heard))

    # -- told too much

    def _too_much(self, turn: UserTurn, heard: str, asked: set[str], told: set[str]) -> str:
        said = turn.said
        for text in self._user.never_tells:
            if places(words(text), words(said)) and not places(words(text), words(f"{heard}\n{self._prompt}")):
                return f"it must not say {text!r}"
        if _AS_PART.search(said) or self._recites(said):
            return f"it speaks of its part: {_shown(said)}"
        if _OPEN.search(heard):
            return ""
        early = [
            name
            for name, fact in self._user.facts.items()
            if name not in asked and name not in told and _has(said, fact) and not _has(heard, fact)
        ]
        # The policy may ask in words that are not those of a name: "Where shall we send it?".
        unmatched = sum(not is_yes_or_no(one) and not asked_facts(self._user.facts, one) for one in requests(heard))
        return f"nobody had asked for its {early[-1]}: {_shown(said)}" if len(early) > unmatched else ""

    def _recites(self, said: str) -> bool:
        part, spoken = words(self._user.scenario), words(said)
        runs = (part[at : at + _SCENARIO_RUN] for at in range(len(part) - _SCENARIO_RUN + 1))
        return any({"you", "your"} & set(run) and places(run, spoken) for run in runs)

    # -- only agreed, gave up, never ended

    def _agreement(self, turn: UserTurn, heard: str, missing: list[str]) -> str:
        if turn.ended or not turn.said:
            return ""
        tells_nothing = _only_agrees(turn.said) or _ASSENT.match(turn.said) or _repeats(turn.said, [self._prompt])
        if missing and "?" not in turn.said and tells_nothing:
            return f"it was asked for its {missing[0]}: {_shown(turn.said)}"
        if not _only_agrees(turn.said):
            return ""
        if open_question := _open_questions(heard):
            return f"it was asked {_shown(open_question[-1])}: {_shown(turn.said)}"
        wrong = _wrong_proposal(self._user, heard, f"{self._prompt}\n{self._user.scenario}")
        return f"it was asked whether {wrong} is right: {_shown(turn.said)}" if wrong else ""

    def _giving_up(self, turn: UserTurn, heard: str, missing: list[str]) -> str:
        asking = requests(heard)
        if _GIVING_UP.search(turn.said) and not _GIVING_UP.search(f"{self._user.scenario}\n{heard}"):
            return _shown(turn.said)
        if not turn.ended or not asking or (_content(turn.said) and not missing):
            return ""
        return f"it ended the conversation when it was asked {_shown(asking[-1])}"

    def _chatter(self) -> int:
        """The turn with which a user went on once too often; 0 where it did not."""
        idle = 0
        seen = [self._prompt]
        for number, turn in enumerate(self._rollout.user_turns, 1):
            asked_for_nothing = not requests(turn.heard) and not turn.ended and bool(turn.said)
            idle += asked_for_nothing and (_only_agrees(turn.said) or _repeats(turn.said, seen) or "?" not in turn.said)
            if idle >= _MOST_CHATTER or (idle >= _ENDING_CHATTER and self._rollout.stop_reason == "turn_limit"):
                return number
            seen.append(turn.said)
        return 0


def _text(fact: Fact) -> str:
    return "" if fact.value is None else str(fact.value)


def _content(text: str) -> list[str]:
    return [word for word in words(text) if word not in _FILLING]


def _has(text: str, fact: Fact, *, partly: bool = False) -> bool:
    """Whether a text has the value of a fact; `partly`: a word of it that tells is enough, since people tell in words
    of their own."""
    value = _text(fact)
    if not value or isinstance(fact.value, bool):
        return False
    numbers = _CODE.findall(value)
    if numbers:
        said = [number.lstrip("0") for number in _CODE.findall(text)]
        alike = all(number.lstrip("0") in said for number in numbers)
        return alike or "".join(numbers) in "".join(_CODE.findall(text))
    if partly:
        return bool(set(_content(value)) & set(_content(text)))
    return places(words(value), words(text))


def _open_questions(heard: str) -> list[str]:
    """What is asked for that no yes or no answers."""
    return [one for one in requests(heard) if not is_yes_or_no(one) and not _PROPOSING.search(one)]


def _only_agrees(said: str) -> bool:
    """Whether a message has no words but those of agreement and thanks."""
    return "?" not in said and all(word in _AGREEING for word in words(said))


def _repeats(said: str, earlier: Iterable[str]) -> bool:
    return any(words(said) == words(one) for one in earlier)


def _denies(said: str) -> bool | None:
    """Whether it answers by no; None where by neither."""
    first = next(iter(words(said)), "")
    if first in ("no", "nope", "nah", "not"):
        return True
    return False if first in ("yes", "yeah", "yep", "sure", "correct", "right") else None


def _wrong_proposal(user: User, heard: str, given: str) -> str:
    """The number in a question for yes or no that is another one than the fact that the question names."""
    for sentence in requests(heard):
        if not is_yes_or_no(sentence):
            continue
        said = _CODE.findall(sentence)
        for name, fact in user.facts.items():
            named = set(words(name.replace("_", " "))) - _FILLING
            numbers = _CODE.findall(_text(fact))
            if numbers and named and named <= set(words(sentence)) and said and not set(numbers) & set(said):
                strange = [one for one in said if one not in _CODE.findall(given)]
                if strange:
                    return f"{name} {strange[0]}"
    return ""


def _stated(text: str) -> list[str]:
    """The words of its sentences that ask nothing, without thanks."""
    return [word for one in sentences(text) if "?" not in one for word in words(_THANKING.sub("", one))]


def _after(owners: set[str], said: list[str]) -> list[str]:
    """The two words after each of these."""
    return [one for place, word in enumerate(said) if word in owners for one in said[place + 1 : place + 3]]


_MARKED = re.compile(
    r"</?tool_call>|<\||\{\s*\"(?:name|tool|function|arguments)\"\s*:|^\W*(?:assistant|agent)\s*:", re.I
)


def _marked(said: str) -> str:
    """The same of a user that has acted: it may say what it did."""
    return _shown(said) if _MARKED.search(said) else ""


_SHOWN = 160


def _shown(text: str) -> str:
    plain = " ".join(text.split())
    return repr(plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}…")
