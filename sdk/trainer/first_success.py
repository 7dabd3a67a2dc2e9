"""Whether a model solves any task before it is trained: one that does has a signal for reinforcement by itself."""

from __future__ import annotations

from collections.abc import Sequence

from ..evaluation.conditions import is_success
from ..evaluation.measurement import measure
from ..policies.tool_prompt import shown_by_default
from ..records import Task
from ..rollouts.engine import RolloutEngine
from ..rollouts.run_context import RunContext
from ..synthesis.found_demonstrations import STAGE
from ..tasks import spread
from .config import TrainConfig
from .validation import UNTRAINED_STAGE

FIRST_TRIES = "first_tries"
"""The stage of the rollouts where no task is kept aside."""
_TRIES = 16
ENOUGH = 0.1
"""Of the tasks. A model that solves fewer has no signal in most groups."""


async def needs_none(
    engine: RolloutEngine, train: Sequence[Task], validation: Sequence[Task], context: RunContext, config: TrainConfig
) -> bool:
    """Whether a model needs no demonstrations: untrained, it solves a tenth of the tasks kept aside, or of some
    training tasks where none are. Held-out tasks take no part. Decided once; a resumed run keeps to it."""
    done = context.run_folder.stage(STAGE)
    if done is not None:
        return bool(done.get("solved"))
    kept_aside = bool(validation)
    rollouts = await measure(
        engine,
        validation if kept_aside else spread(train, _TRIES),
        context,
        stage=UNTRAINED_STAGE if kept_aside else FIRST_TRIES,
        title="first tries",
        tool_prompt=shown_by_default(config.tool_prompt),
    )
    solved = sum(is_success(rollout, context.success_threshold) for rollout in rollouts)
    if solved < ENOUGH * sum(rollout.scored for rollout in rollouts):
        return False
    context.run_folder.finish_stage(STAGE, {"found": 0, "solved": solved, "tried": len(rollouts)})
    return True
