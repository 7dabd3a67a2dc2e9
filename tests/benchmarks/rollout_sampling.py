"""Tokens a second in the rollouts of one quickstart step: the embedded engine beside transformers' `generate`.

    python tests/benchmarks/rollout_sampling.py [--rounds 3] [--threads 2]

The prompts, the group size and the turns are the quickstart's: eight tasks, six rollouts each, and each rollout has the
turns of its task's demonstration, as many tokens sampled in each turn and the same tool results between. Which tokens
are sampled is left to chance, so that no trained model is needed. The engine runs each rollout on its own, as rollouts
do; `generate` runs all of them turn by turn, in one batch with padding on the left, and reads the conversation again in
each turn, as loops around it do. Only tokens that a rollout needs count: a batch of `generate` goes on until its
longest turn has ended. The two alternate, because the speed of a shared machine changes: read the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from typing import Any

from engine_throughput import alternate, table  # its import sets what must be set before torch is loaded

Turn = tuple[list[int], int]
"""The tokens that come before the policy speaks (the prompt, later a tool result), and how many it then samples."""


def turns_of(prompt_ids: list[int], completion_ids: list[int], sampled: list[bool]) -> list[Turn]:
    """The turns of one rollout."""
    turns: list[Turn] = []
    heard = list(prompt_ids)
    for speaks, run in itertools.groupby(zip(completion_ids, sampled, strict=True), key=lambda pair: pair[1]):
        tokens = [token for token, _ in run]
        if speaks:
            turns.append((heard, len(tokens)))
        heard = tokens
    return turns


def quickstart_step(tokenizer: Any) -> list[list[Turn]]:
    """The turns of each rollout in one step: of demonstrated tasks, as many of one kind as of another."""
    import mcp_bridge
    import sdk
    from sdk.cli.commands.quickstart import HELPDESK
    from sdk.cli.quickstart_options import GROUP_SIZE, PROMPTS_PER_STEP, quickstart_tasks
    from sdk.policies.rendering import make_renderer, render_demonstration
    from sdk.policies.scripted import replay_demonstration
    from sdk.tasks import load_tasks

    tasks = [task for task in load_tasks(quickstart_tasks()) if task.demonstration and task.tags["split"] == "train"]
    tasks.sort(key=lambda task: task.tags["intent"])
    kinds = [list(group) for _, group in itertools.groupby(tasks, key=lambda task: task.tags["intent"])]
    turn_about = [task for row in itertools.zip_longest(*kinds) for task in row if task is not None]
    renderer = make_renderer(tokenizer)
    groups = []

    async def play() -> None:
        async with mcp_bridge.connect(HELPDESK) as toolset:
            tools = list(toolset.tools)
        for task in turn_about[:PROMPTS_PER_STEP]:
            played = await sdk.rollout_async(HELPDESK, task, model=replay_demonstration(task))
            opening = task.opening()
            (row,) = render_demonstration(renderer, opening, tools, played.messages[len(opening) :])
            groups.append(turns_of(row.prompt_ids, row.completion_ids, row.sampled))

    asyncio.run(play())
    return [turns for turns in groups for _ in range(GROUP_SIZE)]


def run_engine(engine: Any, rollouts: list[list[Turn]]) -> float:
    """Seconds until all rollouts have ended, all under way at once."""
    from sdk.policies.protocol import Sampling

    async def roll(seed: int, turns: list[Turn]) -> None:
        tokens: list[int] = []
        for number, (heard, count) in enumerate(turns):
            tokens += heard
            said = await engine.sample(tokens, sampling=Sampling(max_tokens=count), seed=100 * seed + number)
            if len(said.token_ids) != count:
                raise RuntimeError(f"the engine made {len(said.token_ids)} tokens instead of {count}")
            tokens += said.token_ids

    async def roll_all() -> None:
        await asyncio.gather(*(roll(seed, turns) for seed, turns in enumerate(rollouts)))

    start = time.perf_counter()
    asyncio.run(roll_all())
    return time.perf_counter() - start


def run_generate(model: Any, rollouts: list[list[Turn]]) -> float:
    """Seconds until all rollouts have ended, one batch for each turn."""
    import torch

    torch.manual_seed(0)
    tokens: list[list[int]] = [[] for _ in rollouts]
    start = time.perf_counter()
    for number in range(max(map(len, rollouts))):
        rows = [row for row, turns in enumerate(rollouts) if number < len(turns)]
        for row in rows:
            tokens[row] += rollouts[row][number][0]
        longest = max(len(tokens[row]) for row in rows)
        padding = [longest - len(tokens[row]) for row in rows]
        ids = torch.tensor([[0] * pad + tokens[row] for row, pad in zip(rows, padding, strict=True)])
        seen = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=seen,
                do_sample=True,
                top_k=0,
                max_new_tokens=max(rollouts[row][number][1] for row in rows),
                pad_token_id=0,
            )
        for row, said in zip(rows, out[:, longest:].tolist(), strict=True):
            tokens[row] += said[: rollouts[row][number][1]]
    return time.perf_counter() - start


def section(*, rounds: int = 3, threads: int = 2) -> str:
    """The result as Markdown."""
    rollouts, taken = alternate(quickstart_step, run_engine, run_generate, rounds=rounds, threads=threads)
    sampled = sum(count for turns in rollouts for _, count in turns)
    lengths = [len(turns[0][0]) for turns in rollouts]
    about = (
        f"{len(rollouts)} rollouts of one step with {sum(map(len, rollouts))} turns, prompts of {min(lengths)} to "
        f"{max(lengths)} tokens, {sampled} tokens sampled, float32, {threads} threads. `generate` goes turn by turn."
    )
    title = "Sampling in the quickstart's rollouts: the embedded engine beside `generate`"
    return table(title, about, sampled, taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(section(rounds=options.rounds, threads=options.threads))


if __name__ == "__main__":
    main()
