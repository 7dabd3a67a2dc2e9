"""Models: loaded and saved; the embedded one, a hub name, or a local folder.

torch and transformers are imported only when a model is loaded.
"""

from .loading import (
    DEFAULT_SAMPLING,
    EMBEDDED_NAME,
    LoadedModel,
    has_bfloat16,
    load_model,
    load_sampling,
    load_tokenizer,
)
from .saving import save_model

__all__ = [
    "DEFAULT_SAMPLING",
    "EMBEDDED_NAME",
    "LoadedModel",
    "has_bfloat16",
    "load_model",
    "load_sampling",
    "load_tokenizer",
    "save_model",
]
