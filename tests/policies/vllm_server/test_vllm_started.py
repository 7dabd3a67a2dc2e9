"""Real vLLM, started by `sdk.train`, and its log-probabilities beside the trainer's.

The newest release; `test_vllm_real.py` starts the oldest that is supported, trains with it and sends it weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_training import TRAINING, assert_trained_on_what_was_published, trained_on

import sdk

pytestmark = pytest.mark.timeout(1200)


def test_a_model_is_trained_on_what_a_vllm_that_the_training_starts_samples_from_its_latest_weights(
    newest_vllm_python: Path, small_model_folder: Path, tmp_path: Path
) -> None:
    vllm = {
        "python": str(newest_vllm_python),
        "publish": "transfer",
        # A server tries out its largest batch, which takes the longest prompt whole, and clears its cache first.
        "arguments": ["--max-model-len", "1024", "--max-num-batched-tokens", "1024", "--max-num-seqs", "16"],
        "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    }
    config = trained_on(vllm, **{"grpo.learning_rate": 1e-4})
    result = sdk.train(*TRAINING, str(small_model_folder), tmp_path / "run", config)
    # The server begins with the model's own folder: what the two steps changed is all that it is sent.
    assert_trained_on_what_was_published(result, publications=2)
