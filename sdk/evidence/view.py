"""What a verifier sees of a rollout: what its evidence stores, and nothing else."""

from __future__ import annotations

import json
import math

from ..records import Rollout, TokenRow
from ..traces.json_text import dump_json


def stored_view(rollout: Rollout) -> Rollout:
    """The rollout as it is read back from a run folder, without a verdict; it shares nothing with the original.

    A verifier that sees this sees the same when it runs again on the evidence alone. Raises what cannot be stored
    raises: `TypeError` or `ValueError`.
    """
    apart = all(map(_read_back_equal, rollout.rows))
    line = json.loads(dump_json(rollout.model_copy(update={"rows": []}) if apart else rollout))
    line["verdict"] = None
    view = Rollout.model_validate(line)
    if apart:
        view.rows = [_copied(row) for row in rollout.rows]
    return view


def _read_back_equal(row: TokenRow) -> bool:
    """Whether JSON gives back the row's numbers as they are; most of a rollout's JSON is these."""
    whole = [*row.prompt_ids, *row.completion_ids, *row.versions]
    return (
        set(map(type, whole)) <= {int}
        and set(map(type, row.sampled)) <= {bool}
        and set(map(type, row.logprobs)) <= {float}
        and all(map(math.isfinite, row.logprobs))
        and len({len(row.completion_ids), len(row.sampled), len(row.logprobs), len(row.versions)}) == 1
    )


def _copied(row: TokenRow) -> TokenRow:
    return TokenRow.model_construct(
        prompt_ids=list(row.prompt_ids),
        completion_ids=list(row.completion_ids),
        sampled=list(row.sampled),
        logprobs=list(row.logprobs),
        versions=list(row.versions),
    )
