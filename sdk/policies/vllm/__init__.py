"""vLLM as a policy: started by us or running already, sampled by token ids, its weights published while it runs."""

from .policy import VllmPolicy
from .server_start import open_vllm
from .vllm_options import VllmOptions

__all__ = ["VllmOptions", "VllmPolicy", "open_vllm"]
