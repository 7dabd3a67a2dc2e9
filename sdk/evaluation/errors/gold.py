"""What a task says of its right solution, where it says anything. Never raises: that is the verifier's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import VerifierError
from ...records import Task, ToolCall
from ...verifiers.calls import ABSENT, fits, unmatched
from ...verifiers.comparing import same_json
from ...verifiers.text_tokens import Token, positions, tokenize


class GoldCall(NamedTuple):
    """A call of the right solution."""

    name: str
    arguments: Mapping[str, Any]
    patterns: bool = False
    """Its arguments may be patterns, as `calls_match` reads them; never so where a policy wrote them."""

    def is_made_by(self, call: ToolCall) -> bool:
        return self.name == call.name and not self.differing(call)

    def differing(self, call: ToolCall) -> list[str]:
        """The arguments that are not as needed, those that were given first."""
        given = call.arguments
        names = [*given, *(name for name in self.arguments if name not in given)]
        return [n for n in names if not self._fits(self.arguments.get(n, ABSENT), given.get(n, ABSENT))]

    def _fits(self, wanted: Any, value: Any) -> bool:
        if wanted is ABSENT:
            return False
        try:
            if self.patterns:
                return fits(wanted, value, "expected['calls']")
        except VerifierError:
            pass  # no pattern, which a verifier that reads patterns says; here it is a value like others
        except RecursionError:
            return False
        return value is not ABSENT and same_json(wanted, value)


def gold_calls(task: Task) -> list[GoldCall] | None:
    """`expected["calls"]`, else the calls of the demonstration; None where the task has neither."""
    given = task.expected.get("calls")
    if isinstance(given, list):
        calls = [call for call in given if isinstance(call, Mapping) and isinstance(call.get("name"), str)]
        return [
            GoldCall(call["name"], arguments if isinstance(arguments := call.get("arguments"), Mapping) else {}, True)
            for call in calls
        ]
    if task.demonstration:
        return [GoldCall(call.name, call.arguments) for message in task.demonstration for call in message.tool_calls]
    return None


def missing_calls(gold: Sequence[GoldCall], done: Sequence[ToolCall]) -> list[GoldCall]:
    """The gold calls that were not made; each call made answers for one, and where patterns overlap, for the one that
    leaves the fewest."""
    places, _ = unmatched(list(gold), list(done), lambda call, made: call.is_made_by(made))
    return [gold[place] for place in places]


def expected_answer(task: Task) -> list[list[list[Token]]]:
    """What must be said, each as its acceptable forms in tokens; empty where the task expects no answer in words."""
    gold = task.expected.get("answer")
    parts = gold["all"] if isinstance(gold, Mapping) and isinstance(gold.get("all"), list) else [gold]
    required = []
    for part in parts:
        choices = part if isinstance(part, list) else [part]
        # Yes and no are said in too many ways to be looked for in results.
        words = [choice for choice in choices if isinstance(choice, str | int | float) and not isinstance(choice, bool)]
        forms = [tokens for choice in words if (tokens := tokenize(str(choice)))]
        if forms:
            required.append(forms)
    return required


def says_the_opposite(answer: str, task: Task) -> bool:
    """Whether an answer begins with no where yes is expected, or the other way round."""
    gold = task.expected.get("answer")
    opposite = {True: ("no", "false"), False: ("yes", "true")}.get(gold) if isinstance(gold, bool) else None
    return opposite is not None and tokenize(answer)[:1] in [[word] for word in opposite]


def says(text: str, required: Sequence[Sequence[Sequence[Token]]]) -> bool:
    """Whether the text holds all that must be said, in any acceptable form."""
    tokens = tokenize(text)
    return all(any(positions(form, tokens) for form in forms) for forms in required)
