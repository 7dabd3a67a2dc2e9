"""A finished run that is trained longer: what it keeps for that, and what of its end is made anew."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..evaluation.measurement import SERVED
from ..evaluation.report import CONDITIONS
from ..traces.run_folder import LAST_CHECKPOINT, RunFolder
from .groups import STAGE
from .validation import CHOICE, EARLIER_CHOICE, EARLIER_END, LAST_STAGE

MAX_STEPS = "train.grpo.max_steps"
"""The option that may be larger when a run goes on, in the configuration of its folder."""
_ENDED = ("after_grpo", "chosen", LAST_STAGE, SERVED)
"""Stages with rollouts of the last weights, or of the chosen ones: others will be measured."""
_MARKED = ("report", CONDITIONS, SERVED, "chosen", CHOICE, "after_grpo", STAGE)
"""Stages that a longer run finishes again; that of the steps is reopened last, so that a kill in between repeats it."""


def keep_last_checkpoint(folder: RunFolder, checkpoint: Path | None, steps: int) -> None:
    """Of a run that ends: keep its newest checkpoint, which has the optimiser's state, and cover it by the evidence."""
    last = folder.path / LAST_CHECKPOINT
    if checkpoint is not None:
        shutil.rmtree(last, ignore_errors=True)
        checkpoint.rename(last)
    if last.is_dir():
        folder.record_weights(last, version=steps)


def reopen(folder: RunFolder, steps: int) -> int | None:
    """Make a run that was finished with `grpo.max_steps` lower than `steps` go on; returns how many it has made.
    None where there is nothing to reopen.

    The rollouts of its end are set aside; the weights that it had chosen stay among those that are chosen from.
    """
    done = folder.stage(STAGE)
    wanted = int(done["steps"]) if done is not None else 0
    if wanted >= steps or not any(folder.stage(name) is not None for name in _MARKED):
        return None
    finished = int(done.get("last", wanted)) if done is not None else 0
    folder.finish_stage(EARLIER_END, {"step": finished})
    choice = folder.stage(CHOICE)
    if choice is not None:
        folder.finish_stage(EARLIER_CHOICE, {"version": choice["version"]})
    last = folder.path / LAST_CHECKPOINT
    if last.is_dir():
        (folder.checkpoints / STAGE).mkdir(exist_ok=True)
        last.rename(folder.checkpoints / STAGE / f"checkpoint-{finished}")
    for stage in _ENDED:
        folder.drop_after(stage, -2)
    for stage in _MARKED:
        folder.reopen_stage(stage)
    return finished
