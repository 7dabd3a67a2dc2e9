"""Tokens a second in the rollouts of one quickstart step: the embedded engine beside transformers' `generate` and vLLM.

    python tests/benchmarks/rollout_sampling.py [--rounds 3] [--threads 2] [--model FOLDER]

First `sdk.train` makes a step of eight tasks with six rollouts each, from the quickstart's warm start, which is
trained before (some minutes) unless its folder is given. Then these rollouts are sampled again, turn by turn as they
were: by the engine, each on its own as rollouts are and from its own seeds, so that in float32 it comes to the same
tokens; by the engine in bfloat16 and by vLLM in the same way, as many tokens in each turn; and by `generate`, all of
them in one batch with padding on the left. Where it keeps its cache, each prompt is computed once for its group, and a
turn computes only what was added to the conversation; else each turn reads all of it again, as TRL's loop over tools
does. Only tokens that a rollout needs count: a batch of `generate` goes on until its longest turn has ended. All begin
with nothing stored. vLLM is left out where `make vllm` has not been run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import end_to_end  # its import sets what must be set before torch is loaded
from engine_throughput import (
    ENGINE,
    ENGINE_BF16,
    Seconds,
    generate,
    in_turns,
    opened,
    padded,
    prefilled,
    table,
    timed,
)
from vllm_server import DEFAULTS, FAST, FOR_TRAINING, Sample, by_default, for_training, installed_python

KEPT = "`generate`, float32, cache kept between turns"
KEPT_BF16 = "`generate`, bfloat16, cache kept between turns"
ANEW = "`generate`, float32, each turn reads the conversation anew"

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


async def roll_all(rollouts: list[list[Turn]], sample: Callable[[list[int], Turn], Awaitable[Any]]) -> None:
    """Sample all rollouts at once; each goes on with the tokens that were recorded."""

    async def roll(turns: list[Turn]) -> None:
        tokens: list[int] = []
        for turn in turns:
            tokens += turn.heard
            await sample(list(tokens), turn)
            tokens += turn.said

    await asyncio.gather(*map(roll, rollouts))


def run_engine(engine: Any, rollouts: list[list[Turn]], stops: list[int] | None) -> Seconds:
    """The embedded engine. `stops`: the tokens that end a turn, as in training, with the tokens that were recorded;
    None to sample as many tokens as were recorded, which another number format needs."""
    from sdk.cli.quickstart_options import LIMITS, quickstart_options
    from sdk.policies.protocol import Sampling

    others = 0

    async def sample(tokens: list[int], turn: Turn) -> None:
        nonlocal others
        most = LIMITS.max_turn_tokens if stops is not None else len(turn.said)
        sampling = Sampling(max_tokens=most, temperature=quickstart_options().grpo.temperature)
        said = await engine.sample(tokens, sampling=sampling, seed=turn.seed, stop_token_ids=stops or ())
        others += said.token_ids != turn.said if stops is not None else len(said.token_ids) != len(turn.said)

    taken: list[Seconds] = []
    with timed(taken):
        asyncio.run(roll_all(rollouts, sample))
    if others > MOST_OTHER * sum(map(len, rollouts)):
        raise RuntimeError(f"{others} of {sum(map(len, rollouts))} turns have other tokens than those recorded")
    return taken[0]


def on_vllm(rollouts: list[list[Turn]]) -> Callable[[Sample], Awaitable[None]]:
    """The rollouts by a vLLM server that ends no text of its own accord."""

    async def work(sample: Sample) -> None:
        await roll_all(rollouts, lambda tokens, turn: sample(tokens, len(turn.said), turn.seed))

    return work


def run_generate(model: Any, rollouts: list[list[Turn]]) -> Seconds:
    """One batch for each turn, which reads the conversations from their beginning."""
    import torch

    torch.manual_seed(0)
    tokens: list[list[int]] = [[] for _ in rollouts]
    taken: list[Seconds] = []
    with timed(taken):
        for number in range(max(map(len, rollouts))):
            turns = {row: turns[number] for row, turns in enumerate(rollouts) if number < len(turns)}
            for row, turn in turns.items():
                tokens[row] += turn.heard
            batch = padded([tokens[row] for row in turns])
            generate(model, *batch, max(len(turn.said) for turn in turns.values()))
            for row, turn in turns.items():
                tokens[row] += turn.said
    return taken[0]


def run_generate_kept(
    model: Any, rollouts: list[list[Turn]], heard: Callable[[Any], None] = lambda out: None, **options: Any
) -> Seconds:
    """One batch for each turn, which reads only what came after the last one. `heard` gets the tokens of each turn.

    The cache has the tokens that were sampled here, which need not be those recorded: they are as many.
    """
    import torch

    torch.manual_seed(0)
    taken: list[Seconds] = []
    with timed(taken):
        rows = list(range(len(rollouts)))
        ids_NL, seen_NL, cache = prefilled(model, [turns[0].heard for turns in rollouts])
        for number in range(max(map(len, rollouts))):
            if number:
                going = [place for place, row in enumerate(rows) if number < len(rollouts[row])]
                rows = [rows[place] for place in going]
                new_NL, added_NL = padded([rollouts[row][number].heard for row in rows])
                cache.batch_select_indices(torch.tensor(going))
                ids_NL = torch.cat([ids_NL[going], new_NL], dim=1)
                seen_NL = torch.cat([seen_NL[going], added_NL], dim=1)
            longest = max(len(rollouts[row][number].said) for row in rows)
            heard(generate(model, ids_NL, seen_NL, longest, cache, **options)[:, -longest:])
            said = [rollouts[row][number].said for row in rows]
            lasting = [[*one, *[0] * (longest - len(one))] for one in said]
            ids_NL = torch.cat([ids_NL, torch.tensor(lasting)], dim=1)
            ended = [[1] * len(one) + [0] * (longest - len(one)) for one in said]
            seen_NL = torch.cat([seen_NL, torch.tensor(ended)], dim=1)
    return taken[0]


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
    start: Path, work: list[list[Turn]], rounds: int, threads: int, *, only: tuple[str, ...] = ()
) -> dict[str, list[Seconds]]:
    """What each contender takes in each round. `only`: some of them, all where empty."""
    from sdk.policies.rendering import make_renderer

    python = installed_python()
    with ExitStack() as stack:
        plain, short = (stack.enter_context(opened(threads, dtype, start)) for dtype in ("float32", "bfloat16"))
        stops = list(make_renderer(plain.loaded.tokenizer).stop_token_ids)
        runs: dict[str, Callable[[], Seconds]] = {
            ENGINE: plain.forgetful(lambda engine: run_engine(engine, work, stops)),
            ENGINE_BF16: short.forgetful(lambda engine: run_engine(engine, work, None)),
            KEPT: lambda: run_generate_kept(plain.model, work),
            KEPT_BF16: lambda: run_generate_kept(short.model, work),
            ANEW: lambda: run_generate(plain.model, work),
        }
        run_engine(plain.engine, work[:2], stops)
        run_engine(short.engine, work[:2], None)
        run_generate_kept(plain.model, work[:2])
        run_generate_kept(short.model, work[:2])
        if python is not None and (not only or FOR_TRAINING in only):
            training = stack.enter_context(for_training(plain.loaded, python))
            runs[FOR_TRAINING] = lambda: training.run(on_vllm(work))
        if python is not None and (not only or FAST in only):
            fast = stack.enter_context(for_training(plain.loaded, python, fast=True))
            runs[FAST] = lambda: fast.run(on_vllm(work))
            fast.run(on_vllm(work[:2]))
        if python is not None and (not only or DEFAULTS in only):
            defaults = stack.enter_context(by_default(plain.loaded, python))
            runs[DEFAULTS] = lambda: defaults.run(on_vllm(work))
            defaults.run(on_vllm(work[:2]))
        chosen = {name: run for name, run in runs.items() if not only or name in only}
        return in_turns(chosen, rounds=rounds)


def about(work: list[list[Turn]], threads: int) -> str:
    """What is sampled, in words."""
    sampled = tokens_of(work)
    lengths = [len(turns[0].heard) for turns in work]
    return (
        f"{len(work)} rollouts of one step from the quickstart's warm start with {sum(map(len, work))} turns, "
        f"prompts of {min(lengths)} to {max(lengths)} tokens, {sampled} tokens sampled, of which {distinct(work)} "
        f"after other tokens than the rest of their group, {threads} threads."
    )


def tokens_of(work: list[list[Turn]]) -> int:
    """How many tokens were sampled."""
    return sum(len(turn.said) for turns in work for turn in turns)


def section(*, rounds: int = 3, threads: int = 2, model: Path | None = None) -> str:
    """The result as Markdown."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = model.resolve() if model is not None else end_to_end.warm_start(folder / "warm_start", threads)
        work = recorded_step(start, folder / "step", threads)
        taken = measure(start, work, rounds, threads)
    told = f"{about(work, threads)} {rounds} rounds. vLLM's processor seconds are those of its server."
    if FOR_TRAINING not in taken:
        told += " vLLM was left out: it is not installed (`make vllm`)."
    title = "Sampling in the quickstart's rollouts: the embedded engine beside `generate` and vLLM on a CPU"
    return "\n".join([f"## {title}", "", told, "", *table(tokens_of(work), taken)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a warm-started model; made where not given")
    options = parser.parse_args()
    print(section(rounds=options.rounds, threads=options.threads, model=options.model))


if __name__ == "__main__":
    main()
