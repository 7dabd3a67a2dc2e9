"""Seconds of one GRPO training step with the shared-prefix forward and with TRL's own padded one, side by side.

    python tests/benchmarks/training_step.py [--rounds 3] [--threads 2]

One group of 8 rollouts: a prompt of 512 tokens that all share, 64 completion tokens each, the embedded model in
float32. Both go through TRL's loss and a backward pass; the gradients agree (a test holds that). The two alternate.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

from sdk.cli.process import tune_process

# Before torch is imported, for both contenders: what the `toolbake` command sets for threads and memory.
tune_process()

GROUP_SIZE, PROMPT_TOKENS, COMPLETION_TOKENS = 8, 512, 64


def rows() -> list[Any]:
    """The group's rows; tokens and log-probabilities are arbitrary, only their number matters."""
    import random

    from sdk.records import TokenRow
    from sdk.trainer.batch import TrainRow

    chance = random.Random(0)
    prompt = [chance.randrange(5, 40_000) for _ in range(PROMPT_TOKENS)]
    made = []
    for member in range(GROUP_SIZE):
        row = TokenRow(
            prompt_ids=prompt,
            completion_ids=[chance.randrange(5, 40_000) for _ in range(COMPLETION_TOKENS)],
            sampled=[True] * COMPLETION_TOKENS,
            logprobs=[-10.0] * COMPLETION_TOKENS,
            versions=[0] * COMPLETION_TOKENS,
        )
        made.append(TrainRow(row, 1.0 if member % 2 else -1.0))
    return made


def step_seconds(shared: bool, loaded: Any, folder: str) -> float:
    """Forward, loss and backward of one step."""
    from sdk.trainer.batch import Batch, BatchStats
    from sdk.trainer.config import TrainConfig
    from sdk.trainer.grpo import make_trainer
    from sdk.trainer.micro_batches import Plan, collate_batch

    trainer = make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=TrainConfig(group_size=GROUP_SIZE, prompts_per_step=1, grpo_steps=1, shared_prefix=shared),
        output_dir=folder,
        collect=lambda step: Batch(),
        publisher=_Nobody(),
        callbacks=[],
    )
    batch = Batch(
        groups=[rows()], stats=BatchStats(scored_tokens=GROUP_SIZE * COMPLETION_TOKENS, scored_rows=GROUP_SIZE)
    )
    ((inputs,),) = collate_batch(batch, Plan(shared_prefix=shared), loss_type="dapo", pad_id=0, device="cpu")
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    start = time.perf_counter()
    trainer._compute_loss(trainer.model, inputs).backward()
    taken = time.perf_counter() - start
    trainer.model.zero_grad()
    loaded.model.__dict__.pop("forward", None)
    return taken


def floor_operations(loaded: Any) -> tuple[float, float]:
    """(with the weights, of attention): the least multiplications and additions of the step, each distinct token once.

    As PaLM counts them (arXiv 2204.02311, appendix B). Weights: forward 2 and backward 4 operations a weight and token,
    the head for tokens that predict; what a backward pass computes again is not counted. Attention: of every token with
    itself and each token before it in its row, 4 a query head and number of a head forward and 8 backward.
    """
    import torch

    from sdk.trainer.prefix_tree import build_prefix_tree

    tree = build_prefix_tree([[*row.tokens.prompt_ids, *row.tokens.completion_ids[:-1]] for row in rows()])
    predicting = sum(depth >= PROMPT_TOKENS - 1 for depth in tree.depths)
    config = loaded.model.config
    layers = [module for module in loaded.model.model.modules() if isinstance(module, torch.nn.Linear)]
    head = loaded.model.get_output_embeddings().weight
    weights = 6 * len(tree.depths) * sum(layer.weight.numel() for layer in layers) + 6 * predicting * head.numel()
    pairs = sum(depth + 1 for depth in tree.depths)
    return weights, 12 * pairs * config.num_hidden_layers * config.num_attention_heads * config.head_dim


def operations_a_second(loaded: Any) -> float:
    """What the machine now does of float32 products of one of the model's own shapes."""
    import torch
    from torch.nn import functional as F

    weight = loaded.model.model.layers[-1].mlp.down_proj.weight.detach()
    x = torch.randn(PROMPT_TOKENS + GROUP_SIZE * (COMPLETION_TOKENS - 1), weight.shape[1])
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < 1.0:
        F.linear(x, weight)
        done += 2 * x.shape[0] * weight.numel()
    return done / (time.perf_counter() - start)


class _Nobody:
    def publish(self, state: Any, *, version: int) -> None:
        """Nothing samples in this benchmark."""


def section(*, rounds: int = 3, threads: int = 2) -> str:
    """The result as Markdown."""
    import torch

    from sdk.policies.models import load_model

    torch.set_num_threads(threads)
    loaded = load_model(dtype=torch.float32)
    padded_s: list[float] = []
    shared_s: list[float] = []
    over_floor: list[float] = []
    over_both: list[float] = []
    weights, attention = floor_operations(loaded)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            # The floor beside the step it is compared with: on a shared machine the rate changes from minute to minute.
            shared, rate, padded = (
                step_seconds(True, loaded, folder),
                operations_a_second(loaded),
                step_seconds(False, loaded, folder),
            )
            floor = weights / rate
            print(f"round {number}: shared {shared:.1f} s, floor {floor:.1f} s, padded {padded:.1f} s", flush=True)
            if number:  # the first round warms up
                shared_s.append(shared)
                over_floor.append(shared / floor)
                over_both.append(shared / ((weights + attention) / rate))
                padded_s.append(padded)
    ratios = [p / s for p, s in zip(padded_s, shared_s, strict=True)]
    lines = [
        "## Training: the shared-prefix forward beside TRL's padded one",
        "",
        f"A group of {GROUP_SIZE}, a shared prompt of {PROMPT_TOKENS} tokens, {COMPLETION_TOKENS} completion tokens "
        f"each; forward, TRL's loss, backward; float32, {threads} threads.",
        "",
        "| | seconds, median |",
        "| --- | --- |",
        f"| TRL `GRPOTrainer`, its own forward | {statistics.median(padded_s):.1f} |",
        f"| the same trainer with the shared-prefix forward | {statistics.median(shared_s):.1f} |",
        f"| ratio, median of {len(ratios)} | {statistics.median(ratios):.1f} |",
        f"| shared-prefix step over the floor without attention, median | {statistics.median(over_floor):.2f} |",
        f"| shared-prefix step over the floor with attention, median | {statistics.median(over_both):.2f} |",
        "",
        f"The floor: {weights / 1e9:.0f} billion multiplications and additions with the weights, each distinct token "
        f"once, and {attention / 1e9:.0f} billion of attention, at the rate of one large product measured beside each "
        "step.",
        "",
        "The ratio of each round: " + ", ".join(f"{ratio:.1f}" for ratio in ratios) + ".",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(section(rounds=options.rounds, threads=options.threads))


if __name__ == "__main__":
    main()
