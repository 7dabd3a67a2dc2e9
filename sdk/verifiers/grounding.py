"""The verifier of grounding: everything in the answer and the calls is traceable to the prompt or earlier results."""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Literal, Protocol

import anyio

from ..errors import ConfigError, VerifierError, plain_errors
from ..records import CallRecord, Rollout, Verdict
from .combining import checked_parts
from .text_tokens import (
    CAPITALS,
    Token,
    as_typed,
    content_words,
    currencies,
    named_currencies,
    narrowed,
    numbers_and_names,
    positions,
    quantities,
    sentences,
    tokenize,
)
from .value_checks import shortened, too_long
from .verifier import ReadyMade, VerifierLike, call_in_thread, plain_value, run_verifier, verifier_name

_LEARN = "know|say|tell|answer|find|determine|identify|locate|establish|confirm|verify|retrieve|help"
_LEARNT = "known|said|told|answered|found|determined|identified|located|established|confirmed|verified|retrieved"
_ABSTAINS = re.compile(
    rf"\b(?:(?P<own>(?:i|we) (?:do not|don't|did not|didn't|cannot|can't|can not|could not|couldn't) (?:{_LEARN})"
    r"|(?:i|we) have no idea|(?:i|we)(?:'m| am|'re| are) not (?:sure|certain)"
    r"|(?:i|we) (?:do not|don't) have (?:access|(?:that|this|any|enough) (?:information|data))"
    rf"|(?:unable|not able|wasn't able|weren't able) to (?:{_LEARN}))"
    rf"|(?:not possible|impossible) to (?:{_LEARN})"
    rf"|(?:cannot|can't|can not|could not|couldn't) be (?:{_LEARNT})"
    r"|(?:no|not enough|insufficient) (?:\w+ )?(?:information|data|details?|records?|results?|match(?:es)?|answer)"
    r"|no way to (?:know|tell|find|determine)"
    rf"|not (?:{_LEARNT}|available|given|specified|stated|mentioned|provided|listed|recorded)"
    r"|unknown|unavailable|n/a)\b",
    re.IGNORECASE,
)
_VALUE_FIRST = re.compile(rf"\W*([{CAPITALS}][\w'-]*)(?=\s+(?:is|was|are|were|has|had)\b)")
_BARE_VALUE = re.compile(rf"\W*([{CAPITALS}][\w'-]*)(?:\W+[{CAPITALS}\d][\w'.-]*)*\W*")
"""The capital of a first word belongs to a name before a verb, and in an answer of capitalised words alone."""
_CITATION = re.compile(r"\[([^\[\]\s]{1,80})\]")
_SHOWN = 4


class Checker(Protocol):
    """MiniCheck's interface (Tang et al., arXiv 2404.10774): the probability that `document` supports `claim`.

    A checker that is not async is called in worker threads, several at once, so that no rollout waits for another.
    """

    def __call__(self, document: str, claim: str) -> float | Awaitable[float]: ...


class _Document:
    """What is compared of a document. Each claim asks for it again."""

    def __init__(self, text: str) -> None:
        self.tokens = frozenset(tokenize(text))
        self.amounts = {(one.amount, one.dimension) for one in quantities(text)}
        self.money, self.currencies = currencies(text), named_currencies(text)


_document = lru_cache(maxsize=16)(_Document)


def lexical_support(document: str, claim: str) -> float:
    """The share of the claim's content words that the document has, 0 where `exact_support` is 0.

    It compares words, not meaning: "A pays B" supports "B pays A", it does not see negations, and a claim in other
    words than the document's has no support.
    """
    have = _document(document).tokens
    words = content_words(claim)
    return exact_support(document, claim) * (sum(word in have for word in words) / len(words) if words else 1.0)


def exact_support(document: str, claim: str) -> float:
    """1 where the document has all of the claim's numbers, names and identifiers, otherwise 0: every paraphrase keeps
    them. An amount may be in another unit (12,500 g for 12.5 kg), and a date in another form (5 January 2026 for
    2026-01-05). Its currency is the document's: that of the amount, or one that the document names."""
    have, claim = _document(document), as_typed(claim)
    for amount, names in currencies(claim).items():
        known = have.money.get(amount, have.currencies)
        if known and not names <= known:
            return 0.0
    if have.tokens.issuperset(numbers_and_names(claim)):
        return 1.0
    same = [one.text for one in quantities(claim) if one.dimension and (one.amount, one.dimension) in have.amounts]
    for text in same:
        claim = claim.replace(text, " ", 1)
    return float(have.tokens.issuperset(numbers_and_names(claim)))


def minicheck(scorer: Any, *, batch_column: int = 1) -> Checker:
    """A `Checker` from a `minicheck.minicheck.MiniCheck` object, or from any object with its method `score(docs=[...],
    claims=[...])`, which returns lists: `batch_column` is the index of the list of probabilities. One thread calls it
    at a time, with all the claims that came up meanwhile, of all rollouts. Where such a call fails, each claim is asked
    for alone. A claim on the same document is asked for once: the last 100,000 probabilities are kept."""
    if not callable(getattr(scorer, "score", None)):
        raise ConfigError(f"minicheck: {shortened(scorer)} has no method score(docs=[...], claims=[...])")

    waiting: dict[bytes, tuple[str, str]] = {}
    known: dict[bytes, float] = {}  # by content: rollouts of a group often claim the same
    alone = threading.Lock()

    def check(document: str, claim: str) -> float:
        key = hashlib.sha256(json.dumps([document, claim]).encode()).digest()
        waiting[key] = (document, claim)
        with alone:
            if key not in known:  # nobody has asked for it meanwhile
                together = {key: (document, claim), **waiting}
                for one in together:
                    waiting.pop(one, None)
                try:
                    _ask({one: pair for one, pair in together.items() if one not in known})
                except Exception:
                    if len(together) == 1:
                        raise
                    _ask({key: (document, claim)})  # the others find theirs unknown, and ask for it
            waiting.pop(key, None)
            return known[key]

    def _ask(claims: Mapping[bytes, tuple[str, str]]) -> None:
        found = scorer.score(docs=[one for one, _ in claims.values()], claims=[one for _, one in claims.values()])
        answers = dict(zip(claims, map(float, found[batch_column]), strict=True))  # all, or none: which is whose?
        while len(known) > _MOST_KNOWN:
            del known[next(iter(known))]  # the oldest
        known.update(answers)

    return check


_MOST_KNOWN = 100_000


@dataclass(eq=False, repr=False)
class grounded(ReadyMade):
    """A verifier: the score of `right` where all is traceable, 0 for "I don't know", `unsupported` where something is
    from nowhere, and for a wrong answer half of that, or what `right` gives if that is less. See `docs/verifiers.md`.

    Traceable: every text and number among a call's arguments, and every identifier among the keys of its objects, is in
    the prompt or in a result from before the call. Every sentence of the answer has its source in the prompt and the
    calls that it cites (`[call_1]`, `[#2]`; they must have worked), or in the prompt and all results where it cites
    none. `citations="required"`: every sentence has one.

    Without a `checker`, a sentence has its source where its numbers, names and identifiers have (see `exact_support`).
    Only where no call worked, and beside "I don't know", are all words compared (`lexical_support`, at least `least` of
    them). In a wrong answer a capitalised first word is a name before "is" and the like, and where all words are
    capitalised. `checker(document, claim)` is MiniCheck's interface, sync or async; see `minicheck`. It must find a
    probability of at least `least`. A checker that fails leaves the rollout unscored.

    `free` names arguments that the policy may write itself: patterns of `tool.argument`, such as `"send.text"` or
    `"*.limit"`. What a tool repeats of them in its result counts as a source. A traceable answer can still be wrong:
    `right` decides, so give one that reads the answer.

    Example: `grounded(answer_match(), citations="required", free=("search.query",))`
    """

    right: VerifierLike
    _: KW_ONLY
    checker: Checker | None = None
    least: float = 0.7
    unsupported: float = -1.0
    citations: Literal["required", "checked"] = "checked"
    free: Sequence[str] = ()

    def __post_init__(self) -> None:
        checked_parts((self.right,), "grounded")
        if not 0 < self.least <= 1:
            raise ConfigError(f"grounded: least is {self.least!r}; give a probability above 0, such as 0.7")
        if not math.isfinite(self.unsupported) or self.unsupported >= 0:
            must = 'it must be below 0, what "I don\'t know" scores'
            raise ConfigError(f"grounded: unsupported is {self.unsupported!r}; {must}")
        if self.citations not in ("required", "checked"):
            raise ConfigError(f"grounded: citations is {self.citations!r}; choose 'required' or 'checked'")
        if isinstance(self.free, str) or not (self.checker is None or callable(self.checker)):
            raise ConfigError(
                f"grounded: free is {self.free!r} and checker {self.checker!r}; give patterns and a function"
            )
        self.free = tuple(self.free)

    async def verify(self, rollout: Rollout) -> Verdict:
        first = await run_verifier(self.right, _without_citations(rollout), timeout_s=None)
        name = verifier_name(self.right).partition("(")[0]
        unread = too_long(rollout.answer)
        answer = "" if unread else as_typed(narrowed(rollout.answer))
        abstained = abstains(answer, _prompt_text(rollout))
        arguments = ungrounded_arguments(rollout, self.free)
        # "I don't know" is not a claim. The rest of such an answer is checked where it earns a reward.
        said = _ABSTAINS.sub(" ", answer) if abstained else answer
        looked_at = not abstained or first.score > 0
        claims = await self._unsupported_claims(said, rollout, abstained, first.score > 0) if looked_at else []
        if abstained and claims and not any(found["own"] for found in _ABSTAINS.finditer(answer)):
            abstained = False  # it is right, and reports that something is unknown: "its status is unknown"
            claims = await self._unsupported_claims(answer, rollout, abstained, right=True)
        claims += [unread] if unread else []  # what is not read has no source
        components = {
            "arguments": float(not arguments),
            "claims": float(not claims),
            "abstained": float(abstained),
            name: first.score,
            **{f"{name}.{inner}": value for inner, value in first.components.items()},
        }
        lines = [f"{name} {first.score:g}: {first.explanation or '-'}"]
        faults = [*[f"argument from nowhere: {one}" for one in arguments[:_SHOWN]], *claims[:_SHOWN]]
        if abstained:
            score = 0.0 if faults else max(0.0, first.score)
            lines = ["the answer says that it does not know", *faults, *lines]
        elif faults:
            score = self.unsupported
            lines = [*faults, *lines]
        elif first.score > 0 or not tokenize(rollout.answer):
            score = first.score
            lines.insert(0, "every argument and claim has its source")
        else:
            score = min(first.score, self.unsupported / 2)
            lines.insert(0, "every argument and claim has its source, and the answer is wrong")
        return Verdict(score=score, components=components, explanation="\n".join(lines))

    async def _unsupported_claims(self, answer: str, rollout: Rollout, abstained: bool, right: bool) -> list[str]:
        prompt, worked = _prompt_text(rollout), [record for record in rollout.calls if succeeded(record)]
        # Where nothing was looked up, or nothing is known, every word must be the prompt's or a result's.
        check = self.checker or (exact_support if worked and not abstained else lexical_support)
        computed = str(rollout.task.expected.get("answer", "")) if self.checker is None and worked and right else ""
        problems: dict[int, str] = {}

        async def check_claim(place: int, document: str, claim: str) -> None:
            probability = await _probability(check, document, claim)
            if probability < self.least:
                problems[place] = f"not supported ({probability:.2f} of {self.least:g}): {shortened(claim, 100)}"

        with plain_errors():
            async with anyio.create_task_group() as group:  # a checker may be slow, and take several claims at once
                for place, sentence in enumerate(dict.fromkeys(sentences(answer))):
                    cited, wrong = _cited(sentence, rollout.calls)
                    claim = _CITATION.sub(" ", sentence).strip()
                    if wrong:
                        problems[place] = f"cites what is not a call that worked: {', '.join(wrong)}"
                    elif not tokenize(claim):
                        continue
                    elif self.citations == "required" and not cited and not abstained:
                        problems[place] = f"cites nothing: {shortened(claim, 100)}"
                    else:
                        # What is cited must support the claim by itself; the prompt's own words need no source.
                        document = "\n".join([prompt, computed, *map(result_text, cited or worked)])
                        if not right and check is exact_support and not _has_first_name(document, claim, answer):
                            problems[place] = f"not supported (0.00 of {self.least:g}): {shortened(claim, 100)}"
                        else:
                            group.start_soon(check_claim, place, document, claim)
        return [problems[place] for place in sorted(problems)]


async def _probability(check: Checker, document: str, claim: str) -> float:
    if check in (exact_support, lexical_support) or iscoroutinefunction(check):
        found = check(document, claim)
    else:
        found = await call_in_thread(lambda pair: check(*pair), (document, claim))
    probability = plain_value(await found if isawaitable(found) else found)
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability <= 1:
        raise VerifierError(f"the checker returned {shortened(probability)}; it must be a probability from 0 to 1")
    return float(probability)


def abstains(answer: str, prompt: str = "") -> bool:
    """Whether an answer admits that it does not know and claims nothing else: it has at most 30 words, and no number or
    name that the prompt lacks."""
    answer = as_typed(answer)
    rest = _ABSTAINS.sub(" ", answer)
    claims = [word for word in numbers_and_names(rest) if word != "i" and word not in tokenize(prompt)]
    return rest != answer and len(tokenize(answer)) <= 30 and not claims


def _has_first_name(document: str, claim: str, answer: str) -> bool:
    """Whether `document` has the first word of a claim, where that word is a name; every first word has a capital."""
    found = _VALUE_FIRST.match(claim) or (_BARE_VALUE.fullmatch(claim) if claim == answer.strip() else None)
    return found is None or not set(content_words(found[1])) - set(tokenize(document))


def ungrounded_arguments(rollout: Rollout, free: Sequence[str] = ()) -> list[str]:
    """The arguments, as `tool.argument=value`, that are neither in the prompt nor in a result of an earlier turn.

    Texts and numbers are compared by whole words and values; bools and null always pass. The content words of a text
    may come from several places. Calls that did not parse have no arguments.
    """
    known = tokenize(_prompt_text(rollout))
    signs = set(_prompt_text(rollout).split())
    found = []
    results = sorted(rollout.calls, key=lambda record: record.turn)
    seen = 0
    for record in results:
        while results[seen].turn < record.turn:
            known += tokenize(result_text(results[seen]))
            signs |= set(result_text(results[seen]).split())
            seen += 1
        for path, value in argument_values(record.call.arguments, record.call.name):
            if not any(fnmatchcase(path, pattern) for pattern in free) and not _stands_in(value, known, signs):
                found.append(f"{path}={shortened(value, 60)}")
    return found


def _stands_in(value: str | int | float, known: list[Token], signs: set[str]) -> bool:
    words = tokenize(str(value))
    if not words:
        return signs.issuperset(str(value).split())  # "%" and "*" ask for everything
    if positions(words, known):
        return True
    exact = numbers_and_names(str(value))
    loose = content_words(str(value))
    return len(words) > 1 and all(word in known for word in [*exact, *loose])


def argument_values(value: Any, path: str, inside: bool = False) -> Iterator[tuple[str, str | int | float]]:
    """The texts and numbers inside, and the identifiers among the keys of inner objects, each with its path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if inside and _is_identifier(key):
                yield f"{path}.{key}", key
            yield from argument_values(item, f"{path}.{key}", True)
    elif isinstance(value, list):
        for item in value:
            yield from argument_values(item, path, True)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield path, value


def _is_identifier(key: str) -> bool:
    """Whether a key names a thing ("C-17") and not a field ("line_2", "addressLine2")."""
    return any(sign.isdigit() for sign in key) and not (key.isidentifier() and any(map(str.islower, key)))


def _without_citations(rollout: Rollout) -> Rollout:
    """The rollout as `right` reads it: the name of a call is not part of the answer."""
    names = _named(rollout.calls)
    answer = _CITATION.sub(lambda found: "" if found[1] in names else found[0], rollout.answer)
    return rollout if answer == rollout.answer else rollout.model_copy(update={"answer": answer.strip()})


def _named(calls: Sequence[CallRecord]) -> dict[str, CallRecord]:
    return {record.call.id: record for record in calls} | {f"#{n}": record for n, record in enumerate(calls, 1)}


def _cited(sentence: str, calls: Sequence[CallRecord]) -> tuple[list[CallRecord], list[str]]:
    """The calls that a sentence cites, and the citations that name no call that worked."""
    by_name = _named(calls)
    names = _CITATION.findall(sentence)
    good = [by_name[name] for name in names if name in by_name and succeeded(by_name[name])]
    return good, [name for name in names if name not in by_name or not succeeded(by_name[name])]


def succeeded(record: CallRecord) -> bool:
    return not record.result.is_error and record.call.error is None


def _prompt_text(rollout: Rollout) -> str:
    system = [message.content for message in rollout.task.opening() if message.role == "system"]
    return "\n".join([*system, *rollout.user_texts])


def result_text(record: CallRecord) -> str:
    return f"{record.result.text}\n{record.result.structured if record.result.structured is not None else ''}"
