"""Training runs as a script, for `accelerate launch`. Run by test_processes and test_processes_sharded.

run_in_processes.py MODEL_DIR FOLDER RUNS
RUNS: JSON, the options of each run by its name; a `model` among them is trained in place of MODEL_DIR. In a run whose
name begins with "resumed" the verifier is broken from the second step on; the run ends with an error, and is called
again with the verifier mended; where it has a `buffer`, another value of that buffer is put into the checkpoint it goes
on from. In one whose name begins with "early" only the weights that it begins with are right, in one whose name begins
with "quiet" all rollouts from the second step on. One that is named
"gradients" is no training, see `shard_in_processes`, and comes after one. In one whose name begins with "fails" the
first process cannot write the figures of its first step, and in one whose name begins with "cancelled" it is cancelled
in its first update; nothing can be called after either.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.from_thread
from accelerate import PartialState
from safetensors.torch import load_file, save_file
from shard_in_processes import relative_difference
from test_training_runs import TINY, add, even_letters, tasks

import sdk
from sdk.traces import RunFolder
from sdk.trainer.grpo import RolloutTrainer

# No dict, since one that the verifier reads is a part of what the run is known by.
NOW = SimpleNamespace(broken=False, early=False, quiet=False)


def judge(rollout: sdk.Rollout) -> bool:
    if NOW.early and rollout.step < 0:
        return {version for row in rollout.rows for version in row.versions if version >= 0} == {0}
    if NOW.broken and rollout.step >= 1:
        raise RuntimeError("broken")
    if NOW.quiet and rollout.step >= 1:
        return True
    return even_letters(rollout)


def change_buffer(name: str, checkpoints: Path) -> None:
    """One more, in each number of it: as training would have left it there."""
    (file,) = checkpoints.glob("checkpoint-*/model.safetensors")
    weights = load_file(file)
    save_file({**weights, name: weights[name] + 1}, file, metadata={"format": "pt"})


def no_space(self: RunFolder, line: dict[str, Any]) -> None:
    if line["stage"] == "grpo":
        raise OSError("no space left")


async def cancelled(model: str, folder: Path, options: dict[str, Any]) -> None:
    with anyio.CancelScope() as scope:
        if os.environ["RANK"] == "0":
            compute_loss = RolloutTrainer.compute_loss

            def cancelling(*args: Any, **kwargs: Any) -> Any:
                anyio.from_thread.run_sync(scope.cancel)
                return compute_loss(*args, **kwargs)

            RolloutTrainer.compute_loss = cancelling
        await sdk.train_async([add], tasks(), judge, model, folder, options)


def tell(line: str) -> None:
    """In one write, so that the lines of two processes never mix."""
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    model, folder, runs = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    for name, options in runs.items():
        if name == "gradients":
            tell(f"relative difference: {relative_difference(model)}")
            continue
        trained, buffer = options.pop("model", model), options.pop("buffer", None)
        if name.startswith("cancelled"):
            try:
                anyio.run(cancelled, trained, folder / name, {**TINY, **options})
                tell(f"{name} in process {os.environ['RANK']}")
            except RuntimeError as error:
                tell(f"{name} in process {os.environ['RANK']}: {type(error).__name__}")
            break
        if name.startswith("fails"):
            if os.environ["RANK"] == "0":
                RunFolder.append_metrics = no_space
            try:
                sdk.train([add], tasks(), judge, trained, folder / name, {**TINY, **options})
            except (OSError, RuntimeError) as error:
                tell(f"{name} in process {os.environ['RANK']}: {type(error).__name__}")
            break
        if name.startswith("resumed"):
            NOW.broken = True
            try:
                sdk.train([add], tasks(), judge, trained, folder / name, {**TINY, **options})
            except sdk.ToolbakeError as error:
                tell(f"{name} ended: {error}")
            NOW.broken = False
            if buffer is not None and os.environ["RANK"] == "0":
                change_buffer(buffer, folder / name / "checkpoints" / "grpo")
        NOW.early, NOW.quiet = name.startswith("early"), name.startswith("quiet")
        result = sdk.train([add], tasks(), judge, trained, folder / name, {**TINY, **options})
        tell(f"{name}: {list(result.report.conditions)} by {PartialState().distributed_type.value}")
