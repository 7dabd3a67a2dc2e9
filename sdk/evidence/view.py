"""What a verifier sees of a rollout: what its evidence stores, and nothing else."""

from __future__ import annotations

import json

from ..records import Rollout
from ..traces.json_text import dump_json


def stored_view(rollout: Rollout) -> Rollout:
    """The rollout as it is read back from a run folder, without a verdict; it shares nothing with the original.

    A verifier that sees this sees the same when it runs again on the evidence alone. Raises what cannot be stored
    raises: `TypeError` or `ValueError`.
    """
    line = json.loads(dump_json(rollout))
    line["verdict"] = None
    return Rollout.model_validate(line)
