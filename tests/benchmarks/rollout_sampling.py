"""Tokens a second in the rollouts of one quickstart step: the embedded engine beside transformers' `generate` and vLLM.

    python tests/benchmarks/rollout_sampling.py [--rounds 3] [--threads 2] [--model FOLDER]

First `sdk.train` makes a step of eight tasks with six rollouts each, from the quickstart's warm start, which is trained
before (some minutes) unless its folder is given. Then these rollouts are sampled again, turn by turn as they were: by
the engine, each on its own as rollouts are and from its own seeds, so that it comes to the same tokens; by vLLM in the
same way, as many tokens in each turn; and by `generate`, all of them in one batch with padding on the left, where each
turn reads the conversation again, as loops around it do. Only tokens that a rollout needs count: a batch of `generate`
goes on until its longest turn has ended. All begin with nothing stored, in turns, because the speed of a shared machine
changes: read the ratio. vLLM is left out where `make vllm` has not been run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import end_to_end  # its import sets what must be set before torch is loaded
from engine_throughput import ENGINE, GENERATE, forgetful, in_turns, opened, table
from vllm_engine import PEER, Served, installed_python, serving

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


async def roll_all(policy: Any, rollouts: list[list[Turn]], options: Callable[[Turn], Mapping[str, Any]]) -> int:
    """Sample all rollouts at once, each turn with `options`. Returns in how many turns other tokens came than those
    recorded."""

    async def roll(turns: list[Turn]) -> int:
        tokens: list[int] = []
        others = 0
        for turn in turns:
            tokens += turn.heard
            said = await policy.sample(tokens, seed=turn.seed, **options(turn))
            others += said.token_ids != turn.said
            tokens += turn.said
        return others

    return sum(await asyncio.gather(*map(roll, rollouts)))


def run_engine(engine: Any, rollouts: list[list[Turn]], stops: list[int]) -> float:
    """Seconds of the embedded engine."""
    from sdk.cli.quickstart_options import LIMITS, quickstart_options
    from sdk.policies.protocol import Sampling

    sampling = Sampling(max_tokens=LIMITS.max_turn_tokens, temperature=quickstart_options().temperature)
    options = {"sampling": sampling, "stop_token_ids": stops}
    start = time.perf_counter()
    others = asyncio.run(roll_all(engine, rollouts, lambda turn: options))
    taken = time.perf_counter() - start
    if others > MOST_OTHER * sum(map(len, rollouts)):
        raise RuntimeError(
            f"in {others} of {sum(map(len, rollouts))} turns the engine sampled other tokens than before"
        )
    return taken


def run_vllm(served: Served, rollouts: list[list[Turn]], state: Mapping[str, Any]) -> float:
    """Seconds of a vLLM server that ends no text of its own accord, once it has the weights again."""
    from sdk.policies.protocol import Sampling

    served.policy.publish(state, version=1)
    start = time.perf_counter()
    served.portal.call(
        roll_all, served.policy, rollouts, lambda turn: {"sampling": Sampling(max_tokens=len(turn.said))}
    )
    return time.perf_counter() - start


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


def measure(
    start: Path, work: list[list[Turn]], rounds: int, threads: int, python: Path | None
) -> dict[str, list[float]]:
    """The seconds of each contender in each round."""
    from sdk.policies.rendering import make_renderer

    with ExitStack() as stack:
        loaded, engine = stack.enter_context(opened(threads, start))
        stops, model = list(make_renderer(loaded.tokenizer).stop_token_ids), loaded.model
        run_engine(engine, work[:2], stops)
        run_generate(model, work[:2])
        contenders = {ENGINE: forgetful(engine, model, lambda: run_engine(engine, work, stops))}
        if python is not None:
            served = stack.enter_context(serving(loaded, python))
            contenders[PEER] = lambda: run_vllm(served, work, model.state_dict())
        contenders[GENERATE] = lambda: run_generate(model, work)
        return in_turns(contenders, rounds=rounds)


def section(*, rounds: int = 3, threads: int = 2, model: Path | None = None) -> str:
    """The result as Markdown."""
    python = installed_python()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = model.resolve() if model is not None else end_to_end.warm_start(folder / "warm_start", threads)
        work = recorded_step(start, folder / "step", threads)
        taken = measure(start, work, rounds, threads, python)
    sampled = sum(len(turn.said) for turns in work for turn in turns)
    lengths = [len(turns[0].heard) for turns in work]
    about = (
        f"{len(work)} rollouts of one step from the quickstart's warm start with {sum(map(len, work))} turns, "
        f"prompts of {min(lengths)} to {max(lengths)} tokens, {sampled} tokens sampled, of which {distinct(work)} "
        f"after other tokens than the rest of their group, float32, {threads} threads. `generate` goes turn by turn."
    )
    if python is None:
        about += " vLLM was left out: it is not installed (`make vllm`)."
    title = "Sampling in the quickstart's rollouts: the embedded engine beside `generate` and vLLM on a CPU"
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
