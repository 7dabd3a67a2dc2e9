"""What a judge is shown, so that nothing in it can pass for the judge's own instructions.

All that a policy or a tool wrote stands inside JSON strings, with `<`, `>`, `|`, words in brackets (`[INST]`) and every
character beyond ASCII escaped: no quote, line break, role marker or special token can end the string or begin a
message. The rules name a check word made of the material's hash, which nobody who wrote the material could have known,
and a verdict without it is none. What a policy writes that speaks to its judge earns nothing, before any judge is
asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from ..records import CallRecord, Rollout
from ..verifiers.comparing import shortened

_MOST_CALL_CHARS = 2000
"""Of a result, and of what a call's arguments are as text."""
_MOST_ANSWER_CHARS = 8000

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_MARKS = re.compile(r"[<>|]|\[(?=/?[A-Za-z_]\w*\])")
"""What markers of chat formats begin with or hold: `<|im_start|>`, `</s>`, `[/INST]`. Lists stay readable."""
_TO_THE_JUDGE = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:score|reward|verdict|grade|rating|criteria|criterion|check|ranking)\b[\s\"'*]*[:=]",
        r"<\||\|>|</?(?:answer|system|user|assistant|judge|material|evidence|s)>|\[/?INST\]",
        r"\b(?:ignore|disregard|forget)\b.{0,40}\b(?:instruction|rule|criteri|rubric|above|previous|prompt)",
        r"\b(?:judge|grader|evaluator|scorer|examiner)s?\b.{0,30}\b(?:must|should|please|will|has to|note)\b",
        r"\b(?:dear|attention|note to)\b.{0,20}\b(?:judge|grader|evaluator|scorer|examiner)",
        r"\bfull (?:marks|points|score|credit)\b|\b(?:highest|maximum|perfect) (?:score|mark|rating)\b",
        r"\b(?:mark|grade|rate|score|judge|count) (?:this|it|me|(?:the|my) answer)\b.{0,20}\b(?:correct|right|pass)",
        r"\bthe (?:answer|response) (?:above|below)\b.{0,30}\b(?:is|as) (?:correct|right)",
    )
)


def refused(rollout: Rollout) -> str | None:
    """Why a rollout earns nothing and is shown to no judge, or None.

    An answer that does not fit into a judge's context would otherwise leave its rollout unscored, and those that it is
    compared with.
    """
    if (said := speaks_to_the_judge(rollout)) is not None:
        return f"the answer or a call speaks to whoever scores it: {said!r}"
    if len(rollout.answer) > _MOST_ANSWER_CHARS:
        return f"the answer has {len(rollout.answer)} characters, more than {_MOST_ANSWER_CHARS}"
    return None


def speaks_to_the_judge(rollout: Rollout) -> str | None:
    """What in the answer, in a call's name or in its arguments addresses whoever scores it, or None.

    A phrase that the prompt or the gold answer has itself does not count. The name of an argument and its value are
    read apart: a tool may ask for a `rating`. Lexical: it stops what is known, and the escaping stays for the rest.
    """
    own = json.dumps([m.content for m in rollout.task.opening()] + rollout.task.later_turns, ensure_ascii=False)
    own += json.dumps(rollout.task.expected, ensure_ascii=False, default=str)
    texts = [rollout.answer, *(text for record in rollout.calls for text in _written(record))]
    own, written = _plain(own).casefold(), [_plain(text) for text in texts]
    for pattern in _TO_THE_JUDGE:
        for text in written:
            for found in pattern.finditer(text):
                if found[0].casefold() not in own:
                    return found[0]
    return None


def evidence(rollout: Rollout) -> dict[str, Any]:
    """What happened, as the judge sees it. Results and arguments beyond 2 000 characters are cut, and say so."""
    return {
        "asked": [m.content for m in rollout.task.opening() if m.role == "user"] + rollout.task.later_turns,
        "calls": [
            {
                "tool": record.call.name[:_MOST_CALL_CHARS],
                "arguments": _arguments(record),
                "failed": record.result.is_error,
                "result": shortened(record.result.text, _MOST_CALL_CHARS),
            }
            for record in rollout.calls
        ],
        "answer": rollout.answer,
    }


def _plain(text: str) -> str:
    """Without what only looks different: full-width letters, signs that are not shown."""
    shown = (sign for sign in unicodedata.normalize("NFKC", text) if unicodedata.category(sign) != "Cf")
    return "".join(shown)


def _written(record: CallRecord) -> Iterator[str]:
    """The texts that the policy wrote in a call, also where it did not parse."""
    rest: list[Any] = [record.call.name, record.call.error, record.call.arguments]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            rest += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            rest += one


def _arguments(record: CallRecord) -> Any:
    text = json.dumps(record.call.arguments, ensure_ascii=False)
    return record.call.arguments if len(text) <= _MOST_CALL_CHARS else shortened(text, _MOST_CALL_CHARS)


def escaped(material: Any) -> str:
    """JSON in ASCII in which no marker of any chat format can stand."""
    text = json.dumps(material, ensure_ascii=True, sort_keys=True, default=str)
    # Only in strings: outside of them brackets are lists.
    return _STRING.sub(lambda string: _MARKS.sub(lambda mark: f"\\u{ord(mark[0]):04x}", string[0]), text)


def check_word(material: str) -> str:
    """What a verdict on this material must repeat."""
    return hashlib.sha256(material.encode()).hexdigest()[:10]
