"""Tokens a second in the rollouts of one quickstart step: the embedded engine beside transformers' `generate`.

    python tests/benchmarks/rollout_sampling.py [--rounds 3] [--threads 2] [--model FOLDER]

First `sdk.train` makes a step of eight tasks with six rollouts each, from the quickstart's warm start, which is trained
before (some minutes) unless its folder is given. Then these rollouts are sampled again, turn by turn as they were: by
the engine, each on its own as rollouts are and from its own seeds, so that it comes to the same tokens; and by
`generate`, all of them in one batch with padding on the left, where each turn reads the conversation again, as loops
around it do. Only tokens that a rollout needs count: a batch of `generate` goes on until its longest turn has ended.
The two alternate, because the speed of a shared machine changes: read the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import end_to_end  # its import sets what must be set before torch is loaded
from engine_throughput import alternate, table

SHAPE = {"steps": 1, "prompts": 8, "group_size": 6}
MOST_OTHER = 0.05
"""The share of turns in which rounding may lead the engine to other tokens than those that were recorded."""


class Turn(NamedTuple):
    """The tokens that come before the policy speaks (the prompt, later a tool result), and those that it sampled."""

    heard: list[int]
    said: list[int]
    seed: int


def turns_of(rollout: Any) -> list[Turn]:
    """The turns of a recorded rollout."""
    from sdk.policies.token_agent import turn_seed

    [row] = rollout.rows
    turns: list[Turn] = []
    heard = list(row.prompt_ids)
    for speaks, run in itertools.groupby(zip(row.completion_ids, row.sampled, strict=True), key=lambda pair: pair[1]):
        tokens = [token for token, _ in run]
        if speaks:
            turns.append(Turn(heard, tokens, turn_seed(rollout.seed, len(turns))))
        heard = tokens
    return turns


def recorded_step(model: Path, folder: Path, threads: int) -> list[list[Turn]]:
    """The turns of each rollout of a step of GRPO that begins with `model`."""
    from sdk.traces import RunFolder

    job = {"model": str(model), "config": end_to_end.step_config(seed=0, **SHAPE), "threads": threads}
    end_to_end.in_process([end_to_end.__file__, "--ours"], job, folder, threads)
    return [turns_of(rollout) for rollout in RunFolder.open_to_read(folder / "run").iter_rollouts("grpo")]


def run_engine(engine: Any, rollouts: list[list[Turn]], stops: list[int]) -> float:
    """Seconds until all rollouts have ended, all under way at once."""
    from sdk.cli.quickstart_options import LIMITS, quickstart_options
    from sdk.policies.protocol import Sampling

    sampling = Sampling(max_tokens=LIMITS.max_turn_tokens, temperature=quickstart_options().temperature)
    others = 0

    async def roll(turns: list[Turn]) -> None:
        nonlocal others
        tokens: list[int] = []
        for turn in turns:
            tokens += turn.heard
            said = await engine.sample(tokens, sampling=sampling, seed=turn.seed, stop_token_ids=stops)
            others += said.token_ids != turn.said
            tokens += turn.said

    async def roll_all() -> None:
        await asyncio.gather(*map(roll, rollouts))

    start = time.perf_counter()
    asyncio.run(roll_all())
    taken = time.perf_counter() - start
    if others > MOST_OTHER * sum(map(len, rollouts)):
        raise RuntimeError(
            f"in {others} of {sum(map(len, rollouts))} turns the engine sampled other tokens than before"
        )
    return taken


def run_generate(model: Any, rollouts: list[list[Turn]]) -> float:
    """Seconds until all rollouts have ended, one batch for each turn."""
    import torch

    torch.manual_seed(0)
    tokens: list[list[int]] = [[] for _ in rollouts]
    start = time.perf_counter()
    for number in range(max(map(len, rollouts))):
        turns = {row: turns[number] for row, turns in enumerate(rollouts) if number < len(turns)}
        for row, turn in turns.items():
            tokens[row] += turn.heard
        longest = max(len(tokens[row]) for row in turns)
        padding = {row: longest - len(tokens[row]) for row in turns}
        ids = torch.tensor([[0] * pad + tokens[row] for row, pad in padding.items()])
        seen = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding.values()])
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=seen,
                do_sample=True,
                top_k=0,
                max_new_tokens=max(len(turn.said) for turn in turns.values()),
                pad_token_id=0,
            )
        for row, turn in turns.items():
            tokens[row] += turn.said
    return time.perf_counter() - start


def distinct(rollouts: list[list[Turn]]) -> int:
    """How many sampled tokens have a beginning of their own: the others were sampled after the same tokens before."""

    def beginnings(turns: list[Turn]) -> Iterator[tuple[int, ...]]:
        tokens: list[int] = []
        for turn in turns:
            tokens += turn.heard
            for token in turn.said:
                yield tuple(tokens)
                tokens.append(token)

    return len({beginning for turns in rollouts for beginning in beginnings(turns)})


def section(*, rounds: int = 3, threads: int = 2, model: Path | None = None) -> str:
    """The result as Markdown."""
    from sdk.policies.rendering import make_renderer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = model.resolve() if model is not None else end_to_end.warm_start(folder / "warm_start", threads)
        work = recorded_step(start, folder / "step", threads)
        stops: list[int] = []

        def prepare(tokenizer: Any) -> list[list[Turn]]:
            stops.extend(make_renderer(tokenizer).stop_token_ids)
            return work

        rollouts, taken = alternate(
            prepare,
            lambda engine, rollouts: run_engine(engine, rollouts, stops),
            run_generate,
            rounds=rounds,
            threads=threads,
            model_folder=start,
        )
    sampled = sum(len(turn.said) for turns in rollouts for turn in turns)
    lengths = [len(turns[0].heard) for turns in rollouts]
    about = (
        f"{len(rollouts)} rollouts of one step from the quickstart's warm start with {sum(map(len, rollouts))} turns, "
        f"prompts of {min(lengths)} to {max(lengths)} tokens, {sampled} tokens sampled, of which {distinct(rollouts)} "
        f"after other tokens than the rest of their group, float32, {threads} threads. `generate` goes turn by turn."
    )
    title = "Sampling in the quickstart's rollouts: the embedded engine beside `generate`"
    return table(title, about, sampled, taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a warm-started model; made where not given")
    options = parser.parse_args()
    print(section(rounds=options.rounds, threads=options.threads, model=options.model))


if __name__ == "__main__":
    main()
