"""Seconds of a GRPO training step with the shared-prefix forward and with TRL's own padded one, side by side.

    python tests/benchmarks/training_step.py [--rounds 3] [--threads 2] [--model FOLDER]

Three shapes, since what is saved is what rollouts share: a group with a long prompt and short completions, one with
long completions, and the rollouts of a quickstart step, which is made first from the warm-started model in FOLDER, or
from one that is trained before (some minutes). Both forwards go through TRL's loss and a backward pass in float32,
TRL's without gradient checkpointing and with a group at a time, which pads least; the gradients agree (a test holds
that). They alternate, and all is timed by the clock and in processor seconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import end_to_end  # its import sets what must be set before torch is loaded
from engine_throughput import Seconds, spread, timed
from rollout_sampling import SHAPE, Turn, recorded_step


class Shape(NamedTuple):
    """A step's rows, as groups; `parts`: how many parts of them the shared-prefix forward takes."""

    name: str
    groups: list[list[Any]]
    parts: int = 1


def group(size: int, prompt_tokens: int, completion_tokens: int) -> Shape:
    """One group with a prompt that all share; tokens are arbitrary, only their number matters."""
    chance = random.Random(0)
    prompt = [chance.randrange(5, 40_000) for _ in range(prompt_tokens)]
    completions = [[chance.randrange(5, 40_000) for _ in range(completion_tokens)] for _ in range(size)]
    rows = [_row(prompt, one, [True] * completion_tokens) for one in completions]
    name = f"{size} rollouts, prompt of {prompt_tokens} tokens, completions of {completion_tokens}"
    return Shape(name, [_trained(rows)])


def quickstart_step(model: Path, folder: Path, threads: int) -> Shape:
    """The rollouts of a quickstart step."""
    return of_quickstart(recorded_step(model, folder, threads))


def of_quickstart(rollouts: list[list[Turn]]) -> Shape:
    """The same of rollouts that are there. All groups have something to train, as if each had a signal."""
    from sdk.cli.quickstart_options import quickstart_options

    groups = []
    for first in range(0, len(rollouts), SHAPE["group_size"]):
        rows = []
        for turns in rollouts[first : first + SHAPE["group_size"]]:
            runs = [(turn.heard, False) for turn in turns[1:]]
            said = [(turn.said, True) for turn in turns]
            inside = [said[0], *(run for pair in zip(runs, said[1:], strict=True) for run in pair)]
            sampled = [mark for tokens, mark in inside for _ in tokens]
            rows.append(_row(turns[0].heard, [token for tokens, _ in inside for token in tokens], sampled))
        groups.append(_trained(rows))
    rows = [row.tokens for rows in groups for row in rows]
    mean = statistics.fmean(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    prompt = statistics.fmean(len(row.prompt_ids) for row in rows)
    name = (
        f"a quickstart step: {len(groups)} groups of {len(groups[0])}, prompts of {prompt:.0f} tokens, completions of "
        f"{mean - prompt:.0f}"
    )
    return Shape(name, groups, quickstart_options().batching.micro_batches or 1)


def _row(prompt: list[int], completion: list[int], sampled: list[bool]) -> Any:
    from sdk.records import TokenRow

    return TokenRow(
        prompt_ids=prompt,
        completion_ids=completion,
        sampled=sampled,
        logprobs=[-10.0 if mark else 0.0 for mark in sampled],
        versions=[0] * len(sampled),
    )


def _trained(rows: Sequence[Any]) -> list[Any]:
    from sdk.trainer.batch import TrainRow

    return [TrainRow(row, 1.0 if member % 2 else -1.0) for member, row in enumerate(rows)]


def step_seconds(shared: bool, shape: Shape, loaded: Any, folder: str) -> Seconds:
    """Forward, loss and backward of one step."""
    from sdk.trainer.batch import Batch, BatchStats
    from sdk.trainer.config import TrainConfig
    from sdk.trainer.grpo import make_trainer
    from sdk.trainer.micro_batches import Plan, collate_batch

    size, count = len(shape.groups[0]), len(shape.groups)
    parts = shape.parts if shared else count
    trainer = make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=TrainConfig.of(
            {
                "grpo.num_generations": size,
                "grpo.prompts_per_step": count,
                "grpo.max_steps": 1,
                "batching.micro_batches": parts,
                "batching.shared_prefix": shared,
            }
        ),
        output_dir=folder,
        collect=lambda step: Batch(),
        publisher=_Nobody(),
        callbacks=[],
    )
    sampled = sum(sum(row.tokens.sampled) for rows in shape.groups for row in rows)
    batch = Batch(groups=shape.groups, stats=BatchStats(scored_tokens=sampled, scored_rows=size * count))
    plan = Plan(parts=parts, shared_prefix=shared)
    collated = collate_batch(batch, plan, loss_type="dapo", pad_id=0, device="cpu")
    trainer.current_gradient_accumulation_steps = parts
    trainer.model.train()
    taken: list[Seconds] = []
    with timed(taken):
        for inputs in (one for step in collated for one in step):
            trainer.compute_loss(trainer.model, {"parts": [inputs]}).backward()
    trainer.model.zero_grad()
    loaded.model.__dict__.pop("forward", None)
    return taken[0]


def floor_operations(loaded: Any, shape: Shape) -> tuple[float, float]:
    """(with the weights, of attention): the least multiplications and additions of the step, each distinct token once.

    As PaLM counts them (arXiv 2204.02311, appendix B). Weights: forward 2 and backward 4 operations a weight and token,
    the head for tokens that predict; what a backward pass computes again is not counted. Attention: of every token with
    itself and each token before it in its row, 4 a query head and number of a head forward and 8 backward.
    """
    import torch

    from sdk.trainer.tree_attention import build_prefix_tree

    rows = [row.tokens for rows in shape.groups for row in rows]
    tree = build_prefix_tree([[*row.prompt_ids, *row.completion_ids[:-1]] for row in rows])
    predicting = len(
        {(*row.prompt_ids, *row.completion_ids[:at]) for row in rows for at, new in enumerate(row.sampled) if new}
    )
    config = loaded.model.config
    layers = [module for module in loaded.model.model.modules() if isinstance(module, torch.nn.Linear)]
    head = loaded.model.get_output_embeddings().weight
    weights = 6 * len(tree.depths) * sum(layer.weight.numel() for layer in layers) + 6 * predicting * head.numel()
    pairs = sum(depth + 1 for depth in tree.depths)
    return weights, 12 * pairs * config.num_hidden_layers * config.num_attention_heads * config.head_dim


def operations_a_second(loaded: Any) -> float:
    """What the machine now does of float32 products of one of the model's own shapes, a processor second."""
    import torch
    from torch.nn import functional as F

    weight = loaded.model.model.layers[-1].mlp.down_proj.weight.detach()
    x = torch.randn(1024, weight.shape[1])
    done, start, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < 1.0:
        F.linear(x, weight)
        done += 2 * x.shape[0] * weight.numel()
    return done / (time.process_time() - used)


class _Nobody:
    def publish(self, state: Any, *, version: int) -> None:
        """Nothing samples in this benchmark."""


def loaded_for(threads: int) -> Any:
    """The embedded model."""
    import torch

    from sdk.policies.models import load_model

    torch.set_num_threads(threads)
    return load_model(dtype=torch.float32)


class Measured(NamedTuple):
    """Of each round: TRL's step, ours, and the processor seconds of ours over those of the floor."""

    padded: list[Seconds]
    shared: list[Seconds]
    over_floor: list[float]


def measure(shape: Shape, loaded: Any, rounds: int) -> Measured:
    """Both forwards in turns, after a round that warms up."""
    weights, attention = floor_operations(loaded, shape)
    done = Measured([], [], [])
    with tempfile.TemporaryDirectory() as folder:
        step_seconds(True, shape, loaded, folder)
        for number in range(rounds):
            # The floor beside the step it is compared with: on a shared machine the rate changes from minute to minute.
            shared, rate = step_seconds(True, shape, loaded, folder), operations_a_second(loaded)
            padded = step_seconds(False, shape, loaded, folder)
            print(f"round {number}: shared {shared}, padded {padded}", flush=True)
            done.padded.append(padded)
            done.shared.append(shared)
            done.over_floor.append(shared.processor / ((weights + attention) / rate))
    return done


def row(shape: Shape, done: Measured) -> str:
    """Of the table of `HEAD`."""
    cells = []
    for side in (done.padded, done.shared):
        clock, processor = (statistics.median(one) for one in zip(*side, strict=True))
        cells.append(f"{clock:.1f} ({processor:.1f})")
    both = [
        spread([one / other for one, other in zip(padded, shared, strict=True)])
        for padded, shared in zip(zip(*done.padded, strict=True), zip(*done.shared, strict=True), strict=True)
    ]
    return f"| {shape.name} | {' | '.join([*cells, *both])} | {statistics.median(done.over_floor):.2f} |"


HEAD = [
    "| | TRL's padded forward, s (processor s) | shared-prefix forward, s (processor s) | TRL over ours | of processor "
    "time | ours over the floor |",
    "| --- | --- | --- | --- | --- | --- |",
]


def section(*, rounds: int = 3, threads: int = 2, model: Path | None = None) -> str:
    """The result as Markdown."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = model.resolve() if model is not None else end_to_end.warm_start(folder / "warm_start", threads)
        shapes = [group(8, 512, 64), group(4, 256, 256), quickstart_step(start, folder / "step", threads)]
    loaded = loaded_for(threads)
    lines = [row(shape, measure(shape, loaded, rounds)) for shape in shapes]
    return "\n".join(
        [
            "## Training: the shared-prefix forward beside TRL's padded one",
            "",
            "The same trainer with its own forward and with the shared-prefix one: forward, TRL's loss, backward; "
            f"float32, {threads} threads, {rounds} rounds, medians, and of the ratios the least and the largest. What "
            "is saved is what rollouts share, so the shape decides.",
            "",
            *HEAD,
            *lines,
            "",
            "The floor: multiplications and additions with the weights, each distinct token once, and of attention, "
            "at the rate of one large product measured beside each step, in processor seconds.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a warm-started model; made where not given")
    options = parser.parse_args()
    print(section(rounds=options.rounds, threads=options.threads, model=options.model))


if __name__ == "__main__":
    main()
