"""A training run as a script, for `accelerate launch` or `torchrun`. Run by test_processes.

run_in_processes.py MODEL_DIR FOLDER OPTIONS
"""

import json
import sys

from test_training_runs import TINY, add, even_letters, tasks

import sdk

if __name__ == "__main__":
    model, folder, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    result = sdk.train([add], tasks(), even_letters, model, folder, {**TINY, **options})
    print("conditions:", list(result.report.conditions))
