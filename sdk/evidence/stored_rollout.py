"""What a verifier sees of a rollout: what its evidence stores, and nothing else."""

from __future__ import annotations

import json

from ..records import Rollout
from ..traces.json_text import TOO_DEEP, dump_json


def stored_view(rollout: Rollout) -> Rollout:
    """The rollout as it is read back from a run folder, without a verdict. It shares nothing with the original that
    can be changed.

    A verifier that sees this sees the same when it runs again on the evidence alone. Raises what cannot be stored
    raises: `TypeError` or `ValueError`.
    """
    try:
        return Rollout.model_validate(json.loads(dump_json(rollout.model_copy(update={"verdict": None}))))
    except RecursionError:  # in reading, which may take a level less than writing did
        raise ValueError(TOO_DEEP) from None
