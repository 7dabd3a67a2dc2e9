"""The options of vLLM: how it is reached or started, and how weights get to it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from mcp_bridge.access.redaction import require_http_url

from ...records import Options

Way = Literal["adapter", "checkpoint", "transfer"]
Publish = Literal["auto", "adapter", "checkpoint", "transfer"]
Dtype = Literal["auto", "float32", "bfloat16"]
"""What a server computes in. `auto`: float32 on a CPU, what vLLM chooses on a GPU."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MOST_VLLM_TEMPERATURE = 2.0
"""It refuses requests with more."""


class VllmOptions(Options):
    """Options of vLLM as a policy. Example: `VllmOptions(python="/opt/vllm/bin/python", replicas=2)`"""

    urls: tuple[str, ...] = ()
    """Servers that run already, one URL for each replica, such as `http://127.0.0.1:8000`. Empty: we start them."""
    served_model: str | None = None
    """The name under which running servers have the model; the first that they list where None."""

    python: str | None = None
    """The Python of the environment that has vLLM. None: the one named by `TOOLBAKE_VLLM_PYTHON`, else this one."""
    replicas: int = Field(default=1, ge=1)
    """How many servers to start. On GPUs each gets its own, which no training process uses."""
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM's server, such as `("--tensor-parallel-size", "2")`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Further environment variables of the servers we start, such as `{"VLLM_CPU_KVCACHE_SPACE": "4"}`."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """From the start until a server answers."""
    max_restarts: int = Field(default=2, ge=0)
    """How often a server that we started and that broke is started again, in all."""

    publish: Publish = "auto"
    """How new weights get to the servers: `adapter` (LoRA, a new name for each version), `transfer` (all weights, by
    vLLM's own weight transfer), `checkpoint` (all weights, through a folder that the servers can read), or `auto`:
    adapters where adapters are trained, else a checkpoint."""
    transfer_backend: Literal["shared_memory", "nccl", "ipc"] = "shared_memory"
    """What carries a transfer: memory of the trainer that servers on the same machine read, `nccl` to other GPUs, or
    `ipc` to servers on the trainer's own GPU. The last two have not been run on a GPU yet."""
    in_flight: bool = False
    """New weights interrupt what is being sampled, which goes on with them from the token it had reached. Otherwise
    they wait until the requests under way have ended. Adapters never interrupt."""

    request_timeout_s: float = Field(default=600.0, gt=0)
    """One request."""
    recover_timeout_s: float = Field(default=300.0, gt=0)
    """How long a request waits for a server to come back before its rollout is left unscored."""
    max_retries: int = Field(default=2, ge=0)
    """How often a request that a broken server lost is sent again. It asks for the same tokens, so nothing counts
    twice; every repetition is counted and logged."""

    def takes_adapters(self, lora_rank: int) -> bool:
        """Whether weights are published as adapters where those of `lora_rank` are trained (0: none)."""
        return self.way(lora_rank) == "adapter"

    def way(self, lora_rank: int) -> Way:
        """How weights are published where adapters of `lora_rank` are trained (0: none)."""
        if self.publish != "auto":
            return self.publish
        return "adapter" if lora_rank > 0 else "checkpoint"

    @field_validator("urls")
    @classmethod
    def _real_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            require_http_url(url, "http://host:8000")
        urls = tuple(url.rstrip("/").removesuffix("/v1") for url in urls)
        if len(set(urls)) != len(urls):
            raise ValueError("a URL is named twice; name each replica once")
        return urls

    @field_validator("python")
    @classmethod
    def _python_is_there(cls, python: str | None) -> str | None:
        if python is not None and not Path(python).expanduser().exists():
            raise ValueError(f"there is no {python!r}; name the Python of an environment that has vLLM")
        return python

    @model_validator(mode="after")
    def _nothing_idle(self) -> VllmOptions:
        if self.urls:
            ours = ("python", "replicas", "arguments", "environment", "start_timeout_s", "max_restarts")
            idle = [name for name in ours if name in self.model_fields_set]
            if idle:
                raise ValueError(f"{idle[0]} does nothing for servers that run already; take it or urls out")
        elif self.served_model is not None:
            raise ValueError("served_model does nothing for servers that we start; take it out, or give urls")
        if self.in_flight and self.publish == "adapter":
            raise ValueError("in_flight does nothing for adapters, which never interrupt; take it out")
        usual = type(self).model_fields["transfer_backend"].default
        if self.transfer_backend != usual and self.publish != "transfer":
            raise ValueError(
                f'transfer_backend does nothing while publish is "{self.publish}"; set publish to "transfer", or take '
                "it out"
            )
        return self
