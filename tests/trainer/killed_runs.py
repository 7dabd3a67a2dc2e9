"""Training runs that kill themselves at given points, and go on. Run by test_kill_and_resume.

    python killed_runs.py MODEL_DIR FOLDER < runs.json

Each run has a name, options and points: functions by their names, each with the number of the call before which the
process gets a SIGKILL. The next process goes on from the folder to the next point, with other options of memory, the
last one to the end. Every process is forked, so that what all have in common is made once: the imports, the copies of
the tokenizer. Prints a line of JSON for each run: how its processes ended, what each said until then, and what the run
left.
"""

import gc
import hashlib
import importlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import matplotlib.backends.backend_agg  # noqa: F401 - before the forks, for the curve
from heard import Heard
from test_training_runs import TINY, add, even_letters, tasks

import sdk
import sdk.trainer.learner  # loads torch and TRL before the forks
from sdk.policies.models.loading import load_tokenizer
from sdk.policies.rendering import make_renderer
from sdk.traces import RunFolder

FIGURES = ("step", "loss", "grad_norm", "learning_rate", "entropy", "kl", "reward", "rollouts", "trained_tokens")


def die_at(heard: Heard, folder: Path, place: str, call: int) -> None:
    """Have the process killed when the function of that name is called for the so-manieth time."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original, calls = getattr(owner, name), [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            (folder / "said.json").write_text(json.dumps(heard.lines))
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def forked(model: str, folder: Path, options: dict[str, Any], point: list[Any] | None) -> int:
    """One run in a process of its own; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            heard = Heard()
            if point is not None:
                die_at(heard, folder, *point)
            call = partial(sdk.train_async, [add], tasks(), even_letters, model, folder, {**TINY, **options})
            anyio.run(partial(call, progress=heard))
            (folder / "said.json").write_text(json.dumps(heard.lines))
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def left(folder: Path) -> dict[str, Any]:
    """What a run left, without its times: figures of each step, every sampled token, the weights."""
    run = RunFolder.open_to_read(folder)
    tokens = {
        rollout.id: [(row.completion_ids, row.logprobs, row.versions) for row in rollout.rows]
        for stage in run.rollout_stages()
        for rollout in run.read_rollouts(stage)
        if not stage.endswith("broken")
    }
    return {
        "metrics": [
            {name: line.get(name) for name in ("stage", *FIGURES)}
            for line in run.read_metrics()
            if line["stage"] in ("warm_start", "grpo")
        ],
        "rollouts": sorted(r.id for stage in run.rollout_stages() for r in run.read_rollouts(stage)),
        "tokens": hashlib.sha256(json.dumps(tokens, sort_keys=True).encode()).hexdigest(),
        "weights": [
            hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
            for folder in (run.model_dir, run.checkpoints / "trained")
        ],
    }


def main() -> None:
    model, folder = sys.argv[1], Path(sys.argv[2])
    make_renderer(load_tokenizer(model).tokenizer)
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, all that was made here
    for name, options, points in json.load(sys.stdin):
        place = folder / name.replace(" ", "_")
        ended, said = [], []
        for attempt, point in enumerate([*points, None]):
            lean = attempt % 2 == 1  # options of memory alone, which may change from one to the next
            memory = {"batching.gradient_checkpointing": not lean, "batching.offload_optimizer": lean}
            ended.append(forked(model, place, {**options, **memory}, point))
            said.append(json.loads((place / "said.json").read_text()))
        print(json.dumps({"name": name, "ended": ended, "said": said, "left": left(place)}), flush=True)


if __name__ == "__main__":
    main()
