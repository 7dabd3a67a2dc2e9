"""The embedded engine: samples from a transformers model in this process, many requests in one batch."""

from .inference_engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
