"""Verifiers of an answer in a strict form: an exact text, a set, a pattern or a JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from mcp_bridge.safe_text import strict_json

from ..errors import ConfigError
from ..records import Rollout, Verdict
from .text_tokens import as_typed, content_words, narrowed, other_currency, sentences, tokenize
from .value_checks import (
    first_schema_problem,
    holds_json,
    matches,
    missing_expected,
    same_json,
    shortened,
    too_long,
    wrong_expected,
)
from .verifier import ReadyMade

_FENCED = re.compile(r"```(?:json)?[ \t]*\r?\n(.*?)(?:\r?\n)?```", re.DOTALL | re.IGNORECASE)
_BULLET = re.compile(r"^[ \t]*(?:[-*•]|\d+[.)])[ \t]+", re.MULTILINE)
_DIGITS = re.compile(r"(?<![\w.])(?<!\d,)[-−]?\d+(?:\.\d+)?(?:,[-−]?\d+(?:\.\d+)?)+(?!\w|[.,]\d)")
"""Numbers joined by commas without spaces. Each comma separates thousands or items."""
_THOUSANDS = re.compile(r"[-−]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_MOST_GROUPS = 12
"""A number has at most so many groups of digits between its commas."""
_MOST_JSON_CHARS = 200_000
_DENIALS = "not never isn't aren't wasn't weren't don't doesn't didn't cannot can't doubt wrong incorrect false untrue"
_DENIALS += " ain't isnt arent wasnt werent dont doesnt didnt cant"
DENIALS = frozenset(_DENIALS.split())
"""Words that reverse the meaning of the clause they are in."""
_NONE = DENIALS | {"no", "none", "neither", "nor", "without", "except", "but"}
_NONE |= {"exclude", "excluded", "excluding", "omit", "omitted", "ignore", "ignored", "skip", "skipped"}


_INSTRUCTION = re.compile(r"\W*(?:please\W+)?(?:do not|don't|never|avoid|if|only|just)\b", re.IGNORECASE)


def words_asked(rollout: Rollout) -> list[Any]:
    """The words of the user's messages, one after the other. An answer may repeat the denials among them ("Which have
    not left?"), but not those of instructions ("If you cannot tell, say so.")."""
    asked = (one for text in rollout.user_texts for one in sentences(text) if not _INSTRUCTION.match(one))
    return [word for sentence in asked for word in tokenize(sentence)]


def judged_answer(rollout: Rollout, problem: Callable[[str], str | None]) -> Verdict:
    """1 where the rollout ended with an answer and `problem` returns None for it; otherwise 0, with the reason."""
    said = rollout.answer.strip()
    if rollout.stop_reason != "answered":
        reason: str | None = f"the rollout ended by {rollout.stop_reason}, not with an answer"
    else:
        reason = problem(said) if said else "the answer is empty"
    shown = f"{reason}; got {shortened(said, 120)}" if reason else f"the answer is right: {shortened(said, 120)}"
    right = float(reason is None)
    return Verdict(score=right, components={"answer": right}, explanation=shown)


def gold(rollout: Rollout, key: str, form: str) -> Any:
    """`task.expected[key]`. Raises `VerifierError` where the task has none; `form` describes what it must be."""
    expected = rollout.task.expected
    if key not in expected:
        raise missing_expected(rollout.task, f"give expected[{key!r}], {form}")
    return expected[key]


@dataclass(eq=False, repr=False)
class answer_exact(ReadyMade):
    """A verifier: the answer is `task.expected["answer"]`, or one of the texts in that list, character by character.

    Only space around the answer is ignored. `answer_match(whole=True)` ignores case and punctuation, too.

    Example: `answer_exact()` for identifiers and codes
    """

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the answer is one of the expected texts, character by character."""
        form = "a text or a list of acceptable texts"
        texts = gold(rollout, "answer", form)
        texts = texts if isinstance(texts, list) else [texts]
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise wrong_expected(rollout.task, "answer", f"is {shortened(texts)}; it must be {form}")
        return judged_answer(rollout, lambda said: None if said in [t.strip() for t in texts] else "another text")


@dataclass(eq=False, repr=False)
class answer_set(ReadyMade):
    """A verifier: the answer lists all items of `task.expected["answer"]`, in any order, and no others. The items are a
    list, also as `{"all": [...]}`; each may itself be a list of acceptable ones.

    `partial`: the score of a list that is not right is F1, the harmonic mean of precision and recall, and not 0.

    The answer is the list and nothing else. Commas, semicolons, "and" or line breaks separate the items; bullets and
    numbers are allowed, and so is a lead in words of the prompt and of the names of called tools that ends in a colon
    ("The orders are: 1, 2 and 3") and denies nothing. No item is listed twice, and the answer does not ask. A JSON
    list is an answer, too. A comma between two digits separates thousands or items, whichever gives expected items
    ("1,000,2,000"); where both readings do, the answer is wrong.

    Example: `answer_set()` with `expected={"answer": ["A-17", "A-19"]}`
    """

    _: KW_ONLY
    partial: bool = False

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the answer lists the expected items, in any order, and no others; else 0, or F1 where `partial`."""
        form = "a list of texts and numbers, or of lists of acceptable ones"
        items = gold(rollout, "answer", form)
        if isinstance(items, dict) and set(items) == {"all"}:
            items = items["all"]
        choices = [item if isinstance(item, list) else [item] for item in items] if isinstance(items, list) else []
        if not choices or not all(choices) or not all(tokenize(str(one)) for some in choices for one in some):
            raise wrong_expected(rollout.task, "answer", f"is {shortened(items)}; it must be {form}")
        wanted = [[tokenize(str(one)) for one in some] for some in choices]
        texts = [str(one) for some in choices for one in some]
        denials = _NONE - set(asked := words_asked(rollout))
        tools = [word for record in rollout.calls for word in tokenize(_NAME_PARTS.sub(" ", record.call.name))]
        f1 = 0.0

        def problem(said: str) -> str | None:
            nonlocal f1
            if reason := too_long(said):
                return reason
            said = narrowed(said)
            lead = _lead(said, texts)
            if denial := next((word for word in tokenize(lead) if word in denials | _OPEN.difference(asked)), None):
                return f"the list is denied: {denial!r}"
            if strange := next((word for word in content_words(lead) if not _may_lead(word, [*asked, *tools])), None):
                return f"before the list stands {strange!r}, which neither the prompt nor a tool's name has"
            if said.endswith("?"):
                return "the answer asks"
            if other_currency("\n".join(texts), said):
                return "the answer names another currency"
            try:
                found = _listed(said, texts)
            except ValueError as error:
                return str(error)
            missing = [some[0] for some, forms in zip(choices, wanted, strict=True) if not _count(forms, found)]
            others = [words for words in found if not any(words in forms for forms in wanted)]
            if denial := next((word for words in others for word in words if word in denials), None):
                return f"the list is denied: {denial!r}"
            # An item that is listed twice is found once: the second costs precision.
            twice = [
                some[0]
                for some, forms in zip(choices, wanted, strict=True)
                if _count(forms, found) > wanted.count(forms)
            ]
            f1 = 2 * (len(wanted) - len(missing)) / (len(wanted) + len(found))
            reasons = [f"missing: {', '.join(map(str, missing))}"] * bool(missing)
            reasons += [f"not asked for: {', '.join(' '.join(map(str, words)) for words in others)}"] * bool(others)
            reasons += [f"listed twice: {', '.join(map(str, twice))}"] * bool(twice)
            return "; ".join(reasons) or None

        verdict = judged_answer(rollout, problem)
        if not self.partial or verdict.score == 1:
            return verdict
        return verdict.model_copy(update={"score": f1, "components": {"answer": 0.0, "f1": f1}})


@dataclass(eq=False, repr=False)
class answer_pattern(ReadyMade):
    """A verifier: a regular expression matches the answer, all of it unless `whole` is False.

    The pattern is given here or in `task.expected["answer_pattern"]`. A pattern that takes more than half a second, or
    that matches an empty text, leaves the rollout unscored.

    Example: `answer_pattern(r"[A-Z]{2}-\\d{4}")`
    """

    pattern: str | None = None
    _: KW_ONLY
    whole: bool = True
    ignore_case: bool = False

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the pattern matches the answer."""
        where = "answer_pattern"
        pattern = self.pattern
        if pattern is None:
            pattern = gold(rollout, "answer_pattern", "a regular expression")
            where = f"task {rollout.task.id!r}: expected['answer_pattern']"

        def problem(said: str) -> str | None:
            found = matches(pattern, said, where=where, whole=self.whole, ignore_case=self.ignore_case)
            return None if found else f"the pattern {pattern!r} does not match"

        return judged_answer(rollout, problem)


@dataclass(eq=False, repr=False)
class answer_json(ReadyMade):
    """A verifier: the answer is one JSON document, alone or in one fenced block.

    It fits `schema` or `task.expected["answer_schema"]`, where there is one, and equals
    `task.expected["answer_json"]`, where there is one (`compare="contains"`: has it, with further keys allowed). A
    schema alone rewards the form: an answer that fills it with anything is right.

    Example: `answer_json(compare="contains")` with `expected={"answer_json": {"status": "shipped"}}`
    """

    _: KW_ONLY
    schema: dict[str, Any] | None = None
    compare: Literal["equals", "contains"] = "equals"

    def __post_init__(self) -> None:
        if self.compare not in ("equals", "contains"):
            raise ConfigError(f"answer_json: compare is {self.compare!r}; choose 'equals' or 'contains'")

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the answer is one JSON document that fits the schema and is the expected value."""
        expected = rollout.task.expected
        schema = self.schema if self.schema is not None else expected.get("answer_schema")
        if schema is None and "answer_json" not in expected:
            gold(rollout, "answer_json", "a JSON value, or expected['answer_schema'], a JSON Schema")

        def problem(said: str) -> str | None:
            try:
                value = json_document(said)
            except ValueError as error:
                return f"the answer is not a JSON document: {error}"
            wrong = None
            if schema is not None:
                wrong = first_schema_problem(schema, value, f"task {rollout.task.id!r}: the schema of the answer")
            if wrong is None and "answer_json" in expected:
                same = same_json if self.compare == "equals" else holds_json
                wrong = (
                    None if same(value, expected["answer_json"]) else f"it does not {self.compare[:-1]} the expected"
                )
            return wrong

        return judged_answer(rollout, problem)


def json_document(text: str) -> Any:
    """The one JSON document in a text, which may be fenced. Raises `ValueError` for anything else: a second document,
    `NaN`, a number that no double holds, half a surrogate pair, a key given twice, more than 200 000 characters."""
    fenced = _FENCED.fullmatch(text.strip())
    text = fenced[1] if fenced else text
    if len(text) > _MOST_JSON_CHARS:
        raise ValueError(f"it has {len(text)} characters, more than {_MOST_JSON_CHARS}")
    try:
        value = strict_json(text, unique_keys=True)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair is not a character") from None
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None
    return value


def _lead(said: str, items: list[str]) -> str:
    """The text before the list, with its colon; empty where items have colons themselves."""
    lead, colon, _ = as_typed(said).partition(":")
    return lead + colon if colon and "\n" not in lead and not any(":" in item for item in items) else ""


_LEADS = frozenset({"answer", "final", "list", "following", "item", "result", "found", "total", "here"})
_OPEN = frozenset({"one", "any", "some", "most", "either", "or", "other", "than", "also", "if"})
_OPEN |= {"may", "might", "could", "would"}
"""Words of a lead that leaves open which of the items it means, or what else."""


_NAME_PARTS = re.compile(r"(?<=[a-z])(?=[A-Z])|[\W_]+")
"""Between the words of a tool's name: list_orders, listOrders."""


def _count(forms: list[list[Any]], found: list[list[Any]]) -> int:
    """How many of the items that were found are one of the forms."""
    return sum(words in forms for words in found)


def _may_lead(word: Any, asked: list[Any]) -> bool:
    """Whether a word may stand before the list: one of `asked`, in the singular or the plural, or of any list."""
    return any(str(word).removesuffix("s") == str(one).removesuffix("s") for one in (*asked, *_LEADS))


def _read_commas(run: str, wanted: list[list[Any]]) -> str:
    """Digits and commas (`1,000,2,000`) with each expected item on a line of its own; unchanged where they are not
    expected items. Raises `ValueError` where they can be read as expected items in two ways."""
    groups = run.split(",")
    ways, begins = [1], [0]  # of reading so many groups, and where the last item of one of them begins
    for end in range(1, len(groups) + 1):
        ways.append(0)
        begins.append(0)
        for start in range(max(0, end - _MOST_GROUPS), end):
            item = ",".join(groups[start:end])
            if ways[start] and (end - start == 1 or _THOUSANDS.fullmatch(item)) and tokenize(item) in wanted:
                ways[end], begins[end] = min(2, ways[end] + ways[start]), start
    if not ways[-1]:
        return run
    if ways[-1] > 1:
        raise ValueError(f"the commas of {run} can be read in two ways; after one between items stands a space")
    read: list[str] = []
    end = len(groups)
    while end:
        read.append("".join(groups[begins[end] : end]))
        end = begins[end]
    return "\n".join(reversed(read))  # no line after the last: "USD" may follow, which belongs to it


def _listed(said: str, items: list[str]) -> list[list[Any]]:
    """The items that an answer lists, as words. Raises `ValueError` where the answer can be read in two ways."""
    try:
        document = json_document(said)
    except ValueError:
        document = None
    if isinstance(document, list):
        return [tokenize(str(item)) for item in document]
    said = said.removeprefix(_lead(said, items))
    said = _BULLET.sub("", said.strip())
    wanted = [tokenize(item) for item in items]
    said = _DIGITS.sub(lambda run: _read_commas(run[0], wanted), said)
    marks = "".join(mark for mark in ",;" if not any(mark in item for item in items))
    pieces = re.split(rf"[{marks}\n]" if marks else r"\n", said)
    found: list[list[Any]] = []
    for piece in pieces:
        words = tokenize(piece)
        if words and words[0] == "and" and words not in wanted:
            words = words[1:]
        if words in wanted:
            found.append(words)
        else:
            found += [tokenize(part) for part in re.split(r"\band\b|&", piece)]
    return [words for words in found if words]
