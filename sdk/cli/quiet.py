"""Keeps libraries from talking over our own progress. Errors still come through."""

from __future__ import annotations

import os
import warnings

_LIBRARIES = ("accelerate", "datasets", "huggingface_hub", "peft", "safetensors", "torch", "transformers", "trl")


def quiet_libraries() -> None:
    """Silence bars and warnings of libraries that a user can do nothing about.

    Set before they are imported, and only where the user has not chosen otherwise; downloads keep their bars.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", module=rf"({'|'.join(_LIBRARIES)})(\.|$)")


def quiet_bars() -> None:
    """Take away transformers' own bars ("Writing model shards"); those of downloads stay. Imports transformers."""
    from transformers.utils import logging

    logging.set_tqdm_hook(lambda _, args, options: logging.EmptyTqdm(*args, **options))
