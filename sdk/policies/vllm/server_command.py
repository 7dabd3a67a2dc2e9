"""The command of vLLM servers that we start: what a plan prints is what is run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .published_weights import TransferSettings
from .server_placement import Placement
from .server_process import TAKES_WEIGHTS, VllmBuild, on_port, server_arguments, typed
from .vllm_options import Dtype, VllmOptions


@dataclass(frozen=True)
class ServerCommand:
    """Of the servers of one model, which differ in their port and their GPUs."""

    python: str
    arguments: tuple[str, ...]
    """What follows `python -m`, up to the port."""
    _environment: Mapping[str, str]
    _placement: Placement

    @classmethod
    def of(
        cls,
        model: str,
        options: VllmOptions,
        *,
        build: VllmBuild,
        lora_rank: int,
        context_tokens: int | str | None,
        dtype: Dtype,
        placement: Placement,
        transfer: TransferSettings | None,
    ) -> ServerCommand:
        """`context_tokens`: a word where the number is not known yet. `transfer`: what servers need for weights that
        are sent; None where none are."""
        arguments = [
            *server_arguments(model, build=build, lora_rank=lora_rank, context_tokens=context_tokens, dtype=dtype),
            *placement.arguments,
            *(transfer.server_arguments if transfer is not None else ()),
            *options.arguments,
        ]
        environment = _with_plugin(transfer, {**TAKES_WEIGHTS, **options.environment})
        return cls(build.python, tuple(arguments), environment, placement)

    def environment(self, replica: int) -> dict[str, str]:
        """What a server has beside this process's environment. They are counted from 0."""
        return {**self._environment, **self._placement.environment(replica)}

    def typed(self, replica: int, port: int | str) -> str:
        """As the log of a server begins."""
        return typed([self.python, "-m", *on_port(self.arguments, port)], self.environment(replica))


def _with_plugin(transfer: TransferSettings | None, environment: Mapping[str, str]) -> dict[str, str]:
    """What the options name, and what the transfer needs before it."""
    needed = dict(transfer.server_environment) if transfer is not None else {}
    paths = [value for one in (needed, environment, os.environ) if (value := one.get("PYTHONPATH"))]
    together = {"PYTHONPATH": os.pathsep.join(paths[:2])} if "PYTHONPATH" in needed else {}
    return {**needed, **environment, **together}
