"""Real vLLM, started by `sdk.train` on the embedded model, and its log-probabilities beside the trainer's."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_training import TRAINING, assert_trained_on_what_was_published, trained_on

import sdk

pytestmark = pytest.mark.timeout(1200)


def test_the_embedded_model_is_trained_on_what_vllm_samples_from_its_latest_weights(
    vllm_python: Path, tmp_path: Path
) -> None:
    vllm = {
        "python": str(vllm_python),
        "publish": "transfer",
        # A server tries out its largest batch, which takes the longest prompt whole, and clears its cache first.
        "arguments": ["--max-model-len", "1024", "--max-num-batched-tokens", "1024", "--max-num-seqs", "16"],
        "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    }
    result = sdk.train(*TRAINING, None, tmp_path / "run", trained_on(vllm, **{"grpo.learning_rate": 1e-5}))
    assert_trained_on_what_was_published(result)
