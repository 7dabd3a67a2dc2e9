"""Running the Python blocks of a page, one after the other, as a reader would in one session."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import anyio
import pytest
from doc_blocks import Block

from sdk.rollouts.limits import Limits
from sdk.trainer.config import TrainConfig

SHORT: dict[str, Any] = {
    "warm_start.max_steps": 1,
    "warm_start.batch_size": 2,
    "grpo.max_steps": 1,
    "grpo.prompts_per_step": 1,
    "grpo.num_generations": 2,
    "probes.tasks": 1,
    "evaluation.max_served": 1,
    "limits": Limits(max_turns=2, max_turn_tokens=8),
}
"""What a shortened training runs with, whatever the block says."""


def run_page(blocks: list[Block], where: str) -> dict[str, Any]:
    """Run the blocks in one namespace, which is returned. A block may await, as in a notebook."""
    namespace: dict[str, Any] = {"__name__": "docs"}
    for block in blocks:
        # The empty lines make a traceback point into the page.
        code = compile(
            "\n" * (block.line - 1) + block.code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        if block.how == "not run":
            continue
        with pytest.MonkeyPatch.context() as patch:
            if block.how == "shortened":
                _shorten(patch)
            _run(code, namespace)
    return namespace


def _run(code: Any, namespace: dict[str, Any]) -> None:
    if not code.co_flags & inspect.CO_COROUTINE:
        exec(code, namespace)
        return

    async def awaited() -> None:
        await eval(code, namespace)

    anyio.run(awaited)


def _shorten(patch: pytest.MonkeyPatch) -> None:
    whole = TrainConfig.of  # a bound method of the class: what the block gives is still checked

    def short(config: Any) -> TrainConfig:
        return whole(config).changed(SHORT)

    patch.setattr(TrainConfig, "of", short)
