"""Rules for a forward pass of our own: the windows of a model's layers, and a tolerance for its logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...errors import ModelError


def window_of(module: Any, handed_over: int | None) -> int | None:
    """The tokens that a query of an attention module sees, itself included; None where it sees all before it.

    `handed_over`: the `sliding_window` of transformers' attention interface. Models with layers of two kinds say in
    their config which ones have it. Raises `ModelError` where a model tells the window to its mask alone, which an
    attention of our own never sees.
    """
    config = getattr(module, "config", None)
    kinds, place = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds and place is not None:
        windowed = kinds[place] == "sliding_attention"
    else:
        of_config = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        windowed = bool(of_config) or handed_over is not None
    if windowed and handed_over is None:
        raise ModelError(
            f"{type(module).__name__} has a sliding window and does not say how far it sees: sample this model with "
            "vLLM, and train it with config={'batching': {'shared_prefix': False}}"
        )
    return handed_over if windowed else None


@contextmanager
def short_windows(model: Any, tokens: int) -> Iterator[None]:
    """In this block no layer of `model` sees further than `tokens`, so that a trial on a few tries windows, too.

    Models differ in which of three places tells their mask and their attention: the config, its layers' or the layers.
    """
    places: dict[int, Any] = {
        id(one): one for module in model.modules() for one in (module, getattr(module, "config", None))
    }
    windows = [(one, getattr(one, "sliding_window", None)) for one in places.values()]
    long = [(one, window) for one, window in windows if isinstance(window, int) and window > tokens]
    for one, _ in long:
        one.sliding_window = tokens
    try:
        yield
    finally:
        for one, window in long:
            one.sliding_window = window


def beyond(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> tuple[float, float] | None:
    """(the largest difference, the most that is allowed) where they differ by more than rounding; None where not.

    `dtype`: what the model computes in. A difference that is nan is beyond everything.
    """
    exact = dtype in (torch.float32, torch.float64)
    limit = (1e-3 if exact else 0.1) * (1 + float(expected.abs().max()))
    difference = float((found - expected).abs().max())
    return None if difference <= limit else (difference, limit)
