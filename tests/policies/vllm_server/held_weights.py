"""Runs inside vLLM's workers, in the place of our own extension: an exchange of weights can be held in its midst.

Loaded by `--worker-extension-cls held_weights.Extension`. It holds where there is a named pipe at `HELD_WEIGHTS_PIPE`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import toolbake_weights

_all_tensors = toolbake_weights._tensors


def _until_the_middle(memory: Any, info: Any) -> Iterator[Any]:
    """The weights of an update. In the midst whoever opens the pipe hears of it, and nothing more comes."""
    pipe = Path(os.environ["HELD_WEIGHTS_PIPE"])
    for number, pair in enumerate(_all_tensors(memory, info)):
        if number == len(info.names) // 2 and pipe.is_fifo():
            pipe.write_text(f"{number} of {len(info.names)}")
            threading.Event().wait()
        yield pair


toolbake_weights._tensors = _until_the_middle


class Extension:
    """Called by `/collective_rpc`."""

    def put_layers_back(self) -> None:
        """What a broken exchange took apart is put together with what it had, so that no new server is needed."""
        from vllm.model_executor.model_loader.reload import layerwise

        for layer in self.model_runner.model.modules():  # type: ignore[attr-defined]
            info = layerwise.get_layerwise_info(layer)
            if info.can_load():
                layerwise._place_kernel_tensors(layer, info)
            info.reset()
        self._weight_update_active = False
