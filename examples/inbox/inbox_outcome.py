"""The reward of the inbox: right 1, unknown 0, wrong -1, and a little more for fewer turns.

toolbake train examples/inbox/mcp.json tasks.jsonl --verifier examples/inbox/inbox_outcome.py:verify
"""

from __future__ import annotations

import json
from collections.abc import Callable

import sdk
from sdk.verifiers import answer_match, extra_credit, thrift
from sdk.verifiers.text_tokens import positions, tokenize

FINISH, READ = "return_final_answer", "read_email"
DONT_KNOW = "i don't know"

_says = answer_match(other_values=0)
"""A fact that a later mail corrects stands beside its correction: who names both has not said which holds."""


def problem_of_sources(rollout: sdk.Rollout, answer: str) -> str | None:
    """Why the sources do not support the answer: none is named, or one was not read or does not contain it."""
    read, sources = {}, []
    for record in rollout.calls:
        if record.call.name == READ and not record.result.is_error:
            read[record.call.arguments["message_id"]] = json.loads(record.result.text)["body"]
        elif record.call.name == FINISH and not record.result.is_error:
            sources = record.call.arguments["sources"]
    if not sources:
        return "no source is named"
    for source in sources:
        if source not in read:
            return f"{source} was not read"
        if not positions(tokenize(answer), tokenize(read[source])):
            return f"{source} does not contain the answer"
    return None


def judge(*, abstaining: bool = True, sources: bool = True) -> Callable[[sdk.Rollout], sdk.Verdict]:
    """The reward without its credit for few turns. Without `abstaining`, "I don't know" costs as much as a wrong answer
    where there is an answer; without `sources`, they are not looked at."""

    def verdict(rollout: sdk.Rollout) -> sdk.Verdict:
        gold = rollout.task.expected["answer"]
        finished = rollout.stop_reason == "answered" and any(r.call.name == FINISH for r in rollout.calls)
        abstained = finished and rollout.answer.strip().rstrip(".").lower().replace("\u2019", "'") == DONT_KNOW
        wrong = None
        if not finished:
            wrong = f"it gave no final answer ({rollout.stop_reason})"
        elif gold is None:
            wrong = None if abstained else "no e-mail tells it"
        elif not abstained:
            said = _says.verify(rollout)
            wrong = said.explanation if said.score < 1 else None
            if wrong is None and sources:
                wrong = problem_of_sources(rollout, str(gold))
        right = wrong is None and (gold is None or not abstained)
        unsure = abstained and gold is not None
        score = 1.0 if right else (0.0 if unsure and abstaining else -1.0)
        parts = {"right": float(right), "abstained": float(abstained), "wrong": float(not right and not unsure)}
        reason = "right" if right else "it is in the inbox" if unsure else str(wrong)
        return sdk.Verdict(score=score, components=parts, explanation=reason)

    return verdict


_few_turns = {thrift(turns=8): 0.1}

verify = extra_credit(judge(), _few_turns)
without_abstaining = extra_credit(judge(abstaining=False), _few_turns)
without_sources = extra_credit(judge(sources=False), _few_turns)
without_thrift = judge()
