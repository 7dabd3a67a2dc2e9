"""vLLM as a policy: started by us or running already, sampled by token ids, its weights published while it runs."""

from .opening import open_vllm
from .options import VllmOptions
from .policy import VllmPolicy

__all__ = ["VllmOptions", "VllmPolicy", "open_vllm"]
