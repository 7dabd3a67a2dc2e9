"""Running a group verifier safely: what it sees, what it may return, and what becomes of a group it cannot judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import VerifierError
from ..records import Failure, Rollout, Verdict
from .protocol import GroupVerifier
from .running import as_verdict, evidence_of, returned, verifier_name


async def judge_group(verifier: GroupVerifier, rollouts: Sequence[Rollout], timeout_s: float | None = 60) -> None:
    """Put the verdicts of a group into its rollouts, which have ended and have been judged alone.

    Those that broke or could not be judged take no part. Where the group gets no verdict, its rollouts are unscored:
    to keep the scores that some have alone would make an average of those that needed no judge.
    """
    scored = [rollout for rollout in rollouts if rollout.scored]
    if not scored:
        return
    try:
        found = await _verdicts(verifier, scored, timeout_s)
    except VerifierError as error:
        for rollout in scored:
            rollout.verdict = None
            rollout.failure = Failure(boundary="verifier", kind="VerifierError", message=str(error))
        return
    for rollout in scored:
        rollout.verdict = found.get(rollout.id, rollout.verdict)


async def _verdicts(
    verifier: GroupVerifier, scored: Sequence[Rollout], timeout_s: float | None
) -> Mapping[str, Verdict]:
    name = verifier_name(verifier)
    views = [_seen(rollout) for rollout in scored]
    found = await returned(
        name, lambda: verifier.verify_group(views), timeout_s, about=f"the group {scored[0].group!r}"
    )
    if not isinstance(found, Mapping) or not set(found) <= {rollout.id for rollout in scored}:
        raise VerifierError(f"the verifier {name} returned {repr(found)[:200]}; return verdicts by the rollouts' ids")
    return {rollout: as_verdict(verdict, name) for rollout, verdict in found.items()}


def _seen(rollout: Rollout) -> Rollout:
    """The rollout's evidence, with the verdict that it has alone."""
    view = evidence_of(rollout)
    view.verdict = rollout.verdict.model_copy(deep=True) if rollout.verdict is not None else None
    return view
