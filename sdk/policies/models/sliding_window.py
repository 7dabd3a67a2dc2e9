"""How far a layer sees: what transformers' models tell their attention about its window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
            "vLLM, and train it with config={'shared_prefix': False}"
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
    long = [(one, one.sliding_window) for one in places.values() if _number(one) > tokens]
    for one, _ in long:
        one.sliding_window = tokens
    try:
        yield
    finally:
        for one, window in long:
            one.sliding_window = window


def _number(place: Any) -> int:
    window = getattr(place, "sliding_window", None)
    return window if isinstance(window, int) else 0
