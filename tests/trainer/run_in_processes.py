"""Training runs as a script, for `accelerate launch`. Run by test_processes and test_processes_sharded.

run_in_processes.py MODEL_DIR FOLDER RUNS
RUNS: JSON, the options of each run by its name. In a run whose name begins with "resumed" the verifier is broken from
the second step on; the run ends with an error, and is called again with the verifier mended.
"""

import json
import sys
from pathlib import Path

from test_training_runs import TINY, add, even_letters, tasks

import sdk

BROKEN = False


def judge(rollout: sdk.Rollout) -> bool:
    if BROKEN and rollout.step >= 1:
        raise RuntimeError("broken")
    return even_letters(rollout)


if __name__ == "__main__":
    model, folder, runs = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    for name, options in runs.items():
        if name.startswith("resumed"):
            BROKEN = True
            try:
                sdk.train([add], tasks(), judge, model, folder / name, {**TINY, **options})
            except sdk.ToolbakeError as error:
                print(f"{name} ended:", error)
            BROKEN = False
        result = sdk.train([add], tasks(), judge, model, folder / name, {**TINY, **options})
        print(f"{name}:", list(result.report.conditions))
