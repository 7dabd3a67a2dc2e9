"""The reward of the papers: the right answer with the right source, and the F1 of a set.

toolbake train examples/papers/mcp.json tasks.jsonl --verifier examples/papers/paper_outcome.py:verify
"""

from __future__ import annotations

import sdk


def verify(rollout: sdk.Rollout) -> sdk.Verdict:
    """A question: 1 for the right answer whose only source is the right paper, else 0. A set: the F1 of what was cited.

    A rollout that does not finish earns 0.
    """
    wanted = set(rollout.task.expected["cited"])
    cited = set((rollout.final_state or {}).get("citations", {}))
    finished = rollout.stop_reason == "answered" and any(one.call.name == "finish" for one in rollout.calls)
    f1 = 2 * len(wanted & cited) / (len(wanted) + len(cited)) * finished
    parts = {"finished": float(finished), "f1": f1, "citation": float(cited == wanted and finished)}
    gold = rollout.task.expected.get("answer")
    if gold is None:
        return sdk.Verdict(score=f1, components=parts, explanation=f"{len(wanted & cited)} of {len(wanted)} are cited")
    right = finished and rollout.answer.strip().strip(".").lower() == gold
    parts["answer"] = float(right)
    reason = f"the answer is {'right' if right else 'wrong'}, the source {'right' if cited == wanted else 'wrong'}"
    return sdk.Verdict(score=float(right and cited == wanted), components=parts, explanation=reason)


def answer_alone(rollout: sdk.Rollout) -> sdk.Verdict:
    """A question by heart: 1 for the right answer, else 0."""
    gold = rollout.task.expected["answer"]
    right = rollout.answer.strip().strip(".").lower() == gold
    return sdk.Verdict(score=float(right), explanation=f"the answer is {'right' if right else 'wrong'}")
