"""A step's rows in parts that are forwarded one after the other, and each part as the tensors that TRL's loss reads.

Axes: B rows of a part, P padded prompt, T padded completion, M masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..records import TokenRow
from .batch import Batch, TrainRow
from .config import BY_TOKENS_OF_THE_STEP


@dataclass(frozen=True)
class Part:
    """Rows that are forwarded together."""

    rows: list[TrainRow]
    height: int
    """The most rows that a process has in its part of the same round. TRL gathers its figures of the rows, so the
    tensors of all processes have as many, and at least one: what is missing are rows that have nothing to train."""


@dataclass(frozen=True)
class Plan:
    """What a step's rows are divided by. `token_budget` None: whole groups, in `parts` of about the same size."""

    parts: int = 1
    """Parts that the gradient is accumulated over by the trainer's own count; the loss is divided by it."""
    token_budget: int | None = None
    shared_prefix: bool = True
    """Whether a token that rows have in common is forwarded once, and so costs one."""
    processes: int = 1
    process: int = 0

    def parts_of(self, batch: Batch) -> list[list[Part]]:
        """This process's parts, as [accumulation step][part].

        Every process gets the same number of parts, empty ones where there are no more rows.
        """
        groups = [rows for rows in batch.groups if rows]
        if self.token_budget is None:
            shares = shared_out(groups, self.parts * self.processes)
            return [[part] for part in self._own(shares)]
        shares = within_budget(
            [row for rows in groups for row in rows], self.token_budget, shared_prefix=self.shared_prefix
        )
        shares += [[] for _ in range(-len(shares) % self.processes)]
        return [self._own(shares)]

    def _own(self, shares: Sequence[list[TrainRow]]) -> list[Part]:
        """Of each round of the processes this one's share."""
        rounds = [shares[start : start + self.processes] for start in range(0, len(shares), self.processes)]
        return [Part(one[self.process], height=max(map(len, one))) for one in rounds]


def shared_out(groups: Sequence[Sequence[TrainRow]], parts: int) -> list[list[TrainRow]]:
    """Whole groups: the largest first, each into the part that has the fewest tokens so far."""
    shares: list[list[TrainRow]] = [[] for _ in range(parts)]
    sizes = [0] * parts
    for group in sorted(groups, key=_completion_tokens, reverse=True):
        smallest = sizes.index(min(sizes))
        shares[smallest].extend(group)
        sizes[smallest] += _completion_tokens(group)
    return shares


def within_budget(rows: Sequence[TrainRow], budget: int, *, shared_prefix: bool) -> list[list[TrainRow]]:
    """Rows in the order of their tokens, so that those with a common prefix are adjacent, cut where a part is full.

    A part costs its distinct prefix tokens, or with `shared_prefix=False` what it is padded to: its rows times the
    longest prompt and the longest completion among them, which need not be of one row. A row that is larger than the
    budget is a part of its own: it cannot be divided (`over_budget` counts these). At least one part, which is empty
    where there are no rows.
    """
    parts: list[list[TrainRow]] = [[]]
    cost = longest_prompt = longest_completion = 0
    before: list[int] = []
    for tokens, _, row in sorted(
        ((row.tokens.prompt_ids + row.tokens.completion_ids, place, row) for place, row in enumerate(rows)),
        key=lambda entry: entry[:2],
    ):
        prompt, completion = len(row.tokens.prompt_ids), len(row.tokens.completion_ids)
        if shared_prefix:
            # In this order a row shares with all before it exactly what it shares with the last one.
            grown = cost + len(tokens) - _common(before, tokens)
        else:
            width = max(longest_prompt, prompt) + max(longest_completion, completion)
            grown = (len(parts[-1]) + 1) * width
        if parts[-1] and grown > budget:
            parts.append([])
            grown, longest_prompt, longest_completion = len(tokens), 0, 0
        parts[-1].append(row)
        longest_prompt, longest_completion = max(longest_prompt, prompt), max(longest_completion, completion)
        cost, before = grown, tokens
    return parts


def over_budget(batch: Batch, budget: int) -> int:
    """Rows that are larger than a micro-batch may be."""
    return sum(
        len(row.tokens.prompt_ids) + len(row.tokens.completion_ids) > budget for rows in batch.groups for row in rows
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


def _completion_tokens(rows: Sequence[TrainRow]) -> int:
    return sum(len(row.tokens.completion_ids) for row in rows)


def collate_batch(
    batch: Batch, plan: Plan, *, loss_type: str, pad_id: int, device: torch.device | str
) -> list[list[dict[str, torch.Tensor]]]:
    """A step as dicts of TRL's tensors, as [accumulation step][part].

    A part without rows becomes one row with nothing to train. TRL averages most losses within each part; `loss_scale`
    makes of that the average over all scored rows (or tokens) of the step and of all processes, whose gradients are
    averaged. Rows of groups without signal count there also where they are not forwarded: their advantage is zero.
    `entropy_scale` is for the entropy bonus, which TRL averages over each part's tokens whatever the loss: times both
    scales it is the sum over the part's tokens divided by the scored tokens of the step. `balance_scale` is for the
    balancing loss of experts, which is a number of each part: times both scales the mean of the parts by their rows.
    """
    stats = batch.stats
    tokens = torch.tensor(float(stats.scored_tokens), device=device)
    whole = max(stats.scored_tokens if loss_type == "bnpo" else stats.scored_rows, 1)

    all_rows = max(sum(map(len, batch.groups)), 1)
    nothing = TrainRow(
        TokenRow(prompt_ids=[pad_id], completion_ids=[pad_id], sampled=[False], logprobs=[0.0], versions=[-1]), 0.0
    )

    def collate(part: Part) -> dict[str, torch.Tensor]:
        rows = [*part.rows, *[nothing] * (max(1, part.height) - len(part.rows))]
        times = plan.processes * plan.parts
        # TRL knows of the processes in the losses that it divides by the tokens of the step.
        scale = 1.0 if loss_type in BY_TOKENS_OF_THE_STEP else times * _weight(rows, loss_type) / whole
        share = times * _weight(rows, "bnpo") / max(stats.scored_tokens, 1)
        return {
            **_collate_rows(rows, pad_id, device),
            "height": torch.tensor(part.height),
            "num_items_in_batch": tokens,
            "loss_scale": torch.tensor(scale, device=device),
            # On the host, where they are read.
            "entropy_scale": torch.tensor(share / scale if scale else 0.0),
            "balance_scale": torch.tensor(times * len(part.rows) / all_rows / scale if scale else 0.0),
        }

    return [[collate(part) for part in parts] for parts in plan.parts_of(batch)]


def _weight(rows: Sequence[TrainRow], loss_type: str) -> float:
    """What TRL divides a part's loss by: its sampled tokens (bnpo), or its rows."""
    return float(sum(sum(row.tokens.sampled) for row in rows) if loss_type == "bnpo" else len(rows))


def _collate_rows(rows: Sequence[TrainRow], pad_id: int, device: torch.device | str) -> dict[str, torch.Tensor]:
    prompts = [row.tokens.prompt_ids for row in rows]
    completions = [row.tokens.completion_ids for row in rows]
    sampled = [row.tokens.sampled for row in rows]
    logprobs = [row.tokens.logprobs for row in rows]
    advantages = [row.advantage for row in rows]
    P, T = max(map(len, prompts)), max(map(len, completions))

    def right(values: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> torch.Tensor:
        padded = [[*value, *[fill] * (T - len(value))] for value in values]
        return torch.tensor(padded, dtype=dtype, device=device)

    def left(values: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
        return torch.tensor([[*[fill] * (P - len(value)), *value] for value in values], device=device)

    return {
        "prompt_ids": left(prompts, pad_id),
        "prompt_mask": left([[1] * len(p) for p in prompts], 0),
        "completion_ids": right(completions, pad_id, torch.long),
        "completion_mask": right([[1] * len(c) for c in completions], 0, torch.long),
        "tool_mask": right(sampled, False, torch.long),
        "old_per_token_logps": right(logprobs, 0.0, torch.float32),
        "advantages": torch.tensor(advantages, device=device),
        **_collate_masks(rows, T, device),
    }


def _collate_masks(rows: Sequence[TrainRow], T: int, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Which of the masks `allowed_masks` [M, bytes] bounded the choice of each token, [B, T], as `Allowed` has them;
    nothing where no row has any."""
    masks = list(dict.fromkeys(mask for row in rows for mask in row.tokens.allowed if mask is not None))
    if not masks:
        return {}
    places: dict[bytes | None, int] = {None: 0, **{mask: place for place, mask in enumerate(masks, start=1)}}
    which = [[places[mask] for mask in row.tokens.allowed] for row in rows]
    everything = b"\xff" * len(masks[0])
    packed = np.stack([np.frombuffer(mask, dtype=np.uint8) for mask in (everything, *masks)])
    return {
        "allowed": torch.tensor([[*row, *[0] * (T - len(row))] for row in which], device=device),
        "allowed_masks": torch.from_numpy(packed).to(device),
    }
