"""The reward: 1 where the office ends as the gold calls leave it, 0 otherwise. Side effects are counted beside it.

toolbake train examples/workbench/mcp.json tasks.jsonl --verifier examples/workbench/outcome.py:verify
"""

from __future__ import annotations

import sdk
from sdk.verifiers import all_of, final_state, watched

_right = final_state()


def answered(rollout: sdk.Rollout) -> bool:
    """A rollout that met a limit is wrong, whatever it did: so it is in the benchmark."""
    return rollout.stop_reason == "answered"


def side_effects(rollout: sdk.Rollout) -> bool:
    """Whether something was changed that should not have been: any change by calls that are not right."""
    return rollout.initial_state != rollout.final_state and _right.verify(rollout).score < 1


verify = watched(all_of(_right, answered), side_effects)
