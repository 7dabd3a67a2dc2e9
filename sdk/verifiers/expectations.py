"""The verifier that needs no code: every field of a task's `expected` is compared by the check that is made for it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, VerifierError
from ..records import Rollout, Task, Verdict
from .answer_forms import answer_json, answer_pattern
from .answers import NO, YES, answer_match
from .calls import calls_match
from .combining import joined, run_parts
from .grounding import argument_values, result_text, succeeded
from .states import final_state
from .text_tokens import Token, positions, tokenize
from .verifier import ReadyMade, VerifierLike

_CALLS, _CALLS_ALONE = calls_match(), calls_match(only=True)
_ANSWERS = frozenset({"answer", "answer_json", "answer_schema", "answer_pattern"})
_CHECKS: tuple[tuple[frozenset[str], VerifierLike], ...] = (
    (frozenset({"changes", "state"}), final_state()),
    (frozenset({"calls", "forbid"}), _CALLS),
    (frozenset({"answer"}), answer_match()),
    (frozenset({"answer_json", "answer_schema"}), answer_json()),
    (frozenset({"answer_pattern"}), answer_pattern()),
)
_MAY_DIFFER = "calls_may_differ"
_BESIDE = frozenset({"options", "ignore", _MAY_DIFFER})
"""Fields that tell how another one is compared."""
_KNOWN = frozenset[str]().union(*(fields for fields, _ in _CHECKS), _BESIDE)


@dataclass(eq=False, repr=False)
class as_expected(ReadyMade):
    """A verifier: 1 if everything holds that the task expects, otherwise 0.

    `changes` and `state` are compared by `final_state()`, without what `ignore` names, `calls` and `forbid` by
    `calls_match()`, `answer` by `answer_match()`, `answer_json` and `answer_schema` by `answer_json()`,
    `answer_pattern` by `answer_pattern()`. Where a task expects calls and no answer, no other call may succeed: calling
    every tool would be right otherwise. A task with other fields, or none, is unscored: it needs a verifier of its own.
    On the command line: `--verifier expected`.

    `calls_may_differ`, true: other calls than the expected ones are right, too. The values of the expected calls that
    the request names must be among the arguments or results of calls that succeeded. Where no `changes` are expected,
    the task needs `answer`, and a call that succeeded must have returned it; one that was given the answer has returned
    it only with such a value that it was not given. So a guess earns nothing without a call, after looking up only
    another thing, or where a tool repeats it. An answer that is computed from results (a sum) needs the expected calls.
    `sdk.synthesize` writes the field.
    """

    async def verify(self, rollout: Rollout) -> Verdict:
        if problem := _problem(rollout.task):
            raise VerifierError(problem)
        verdicts = await run_parts(_checks(rollout.task.expected), rollout)
        return joined(verdicts, float(all(verdict.score >= 1 for verdict in verdicts.values())))

    def require_fields(self, tasks: Sequence[Task]) -> None:
        """Raises `ConfigError` for tasks that do not say what is expected, before any rollout."""
        problems = [problem for task in tasks if (problem := _problem(task))]
        if problems:
            more = f" ({len(problems)} of {len(tasks)} tasks)" if len(problems) > 1 else ""
            raise ConfigError(problems[0] + more)


def _checks(expected: Mapping[str, Any]) -> list[VerifierLike]:
    checks = [check for fields, check in _CHECKS if fields & set(expected)]
    of_calls: VerifierLike = _CALLS
    if expected.get(_MAY_DIFFER):
        of_calls = _CallsMayDiffer()
    elif "calls" in expected and not _ANSWERS & set(expected):
        of_calls = _CALLS_ALONE
    return [of_calls if check is _CALLS else check for check in checks]


def _problem(task: Task) -> str:
    """Why this task cannot be judged by its own fields; empty where it can."""
    known = ", ".join(sorted(_KNOWN - _BESIDE))
    fix = "give a verifier of your own for it (FILE.py:NAME on the command line)"
    if unknown := sorted(set(task.expected) - _KNOWN):
        near = difflib.get_close_matches(unknown[0], _KNOWN, n=1)
        meant = f"did you mean {near[0]!r}? Or {fix}" if near else fix
        told = f"task {task.id!r} expects {unknown[0]!r}, which no ready-made check compares"
        return f"{told}; {meant}. They know {known}"
    if (differ := task.expected.get(_MAY_DIFFER, False)) is not False:
        if differ is not True:
            return f"task {task.id!r} has {_MAY_DIFFER} {differ!r}; give true or false, in lower case"
        if not task.expected.get("calls") or not ("answer" in task.expected or task.expected.get("changes")):
            told = f"task {task.id!r} has {_MAY_DIFFER}, which is for calls that lead to an answer or to changes"
            return f"{told}; give calls and one of answer and changes, or leave it out"
    if not set(task.expected) - _BESIDE:
        return f"task {task.id!r} expects nothing; give expected with some of {known} (toolbake solve does), or {fix}"
    return ""


# ---------------------------------------------------------------------------------------------------------------------
# Other calls that come to the same.


class _CallsMayDiffer:
    """The expected calls, or others that looked up what is asked for. What was to change, the check of the state
    sees."""

    def __repr__(self) -> str:
        return "calls_may_differ()"

    def verify(self, rollout: Rollout) -> Verdict:
        asked = _CALLS.verify(rollout)
        if asked.score == 1 or not asked.components["no_forbidden"]:
            return asked
        lacking = list(_not_looked_up(rollout))
        return Verdict(
            score=float(not lacking),
            components={**asked.components, "looked_up": float(not lacking)},
            explanation="; ".join([asked.explanation, *lacking]) if lacking else "other calls looked it up",
        )


def _not_looked_up(rollout: Rollout) -> Iterator[str]:
    """What keeps the calls that succeeded from being another way to the answer: who looks up another thing, or nothing,
    guesses, though the answer may be right by chance."""
    task, done = rollout.task, [record for record in rollout.calls if succeeded(record)]
    if not done:
        yield "no other call succeeded"
        return
    facts = task.user.facts.values() if task.user is not None else ()
    said = [*(message.content for message in task.opening()), *task.later_turns]
    request = tokenize("\n".join([*said, *(str(fact.value) for fact in facts)]))
    named = {}
    for call in task.expected["calls"]:
        for path, value in argument_values(call.get("arguments", {}), call["name"]):
            if (words := tokenize(str(value))) and positions(words, request):
                named[f"{path}={value!r}"] = words
    results = [result_text(record) for record in done]
    given = ["\n".join(str(value) for _, value in argument_values(record.call.arguments, "")) for record in done]

    def returned(forms: Sequence[Sequence[Token]], result: str, asked: str) -> bool:
        if not says(result, [forms]):
            return False
        # "Nothing found for ..." repeats a guess; a list of all that fits one is a look at what the request names.
        found, sought = tokenize(result), tokenize(asked)
        others = any(positions(words, found) and not positions(words, sought) for words in named.values())
        return others or not says(asked, [forms])

    for forms in () if task.expected.get("changes") else expected_answer(task, in_results=True):
        if not any(returned(forms, *texts) for texts in zip(results, given, strict=True)):
            yield "no other call returned the answer"
            break
    dealt_with = tokenize("\n".join([*results, *given]))
    for what, words in named.items():
        if not positions(words, dealt_with):
            yield f"no other call dealt with {what}, which the request names"


_TRUTHS = {word: words for words in (YES, NO) for word in words}


def expected_answer(task: Task, *, in_results: bool = False) -> list[list[list[Token]]]:
    """What must be said, each as its acceptable forms in tokens; empty where the task expects no answer in words.
    `in_results`: yes and no, too, as results have them."""
    gold = task.expected.get("answer")
    parts = gold["all"] if isinstance(gold, Mapping) and isinstance(gold.get("all"), list) else [gold]
    required = []
    for part in parts:
        choices = part if isinstance(part, list) else [part]
        words = [choice for choice in choices if isinstance(choice, str | int | float)]
        if in_results:
            words = [word for choice in words for word in _TRUTHS.get(str(choice).strip().lower(), (choice,))]
        else:  # an answer says yes and no in too many ways
            words = [choice for choice in words if not isinstance(choice, bool)]
        forms = [tokens for choice in words if (tokens := tokenize(str(choice)))]
        if forms:
            required.append(forms)
    return required


def says(text: str, required: Sequence[Sequence[Sequence[Token]]]) -> bool:
    """Whether the text holds all that must be said, in any acceptable form."""
    tokens = tokenize(text)
    return all(any(positions(form, tokens) for form in forms) for forms in required)
