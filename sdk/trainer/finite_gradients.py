"""Stops the run at a gradient that is not finite, before an update makes every weight and every sample invalid."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ToolbakeError


class FiniteGradients:
    """Of a trainer of transformers, which asks for the norm before each update (under DeepSpeed after it, but before
    anything is published or kept). The norm is that of all processes, so all of them stop."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Raises `ToolbakeError` where it is not finite."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[misc]
        if norm is not None and not math.isfinite(float(norm)):
            trainer: Any = self
            raise ToolbakeError(
                f"the norm of the gradient is {float(norm)} in step {trainer.state.global_step}: no update was made of "
                "it, and the run's checkpoints are as they were. Set a lower learning_rate (warm_start_learning_rate "
                "in the warm start), leave bf16 out, or set importance_correction where sampler_gap in the metrics is "
                "large, and begin a new run: this one would come to the same"
            )
        return norm
