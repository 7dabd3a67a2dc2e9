"""Log-probabilities and entropies of labels under the head, against log_softmax and its own gradients."""

import math
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdk.trainer import shared_prefix
from sdk.trainer.shared_prefix import Allowed

CASES = st.fixed_dictionaries(
    {
        "counts": st.lists(st.integers(1, 3), min_size=1, max_size=7),
        "chunk": st.integers(1, 8),
        "temperature": st.sampled_from([1.0, 0.7, 2.0]),
        "bias": st.booleans(),
        "seed": st.integers(0, 2**16),
    }
)
VOCABULARY = 11


@dataclass
class Labels:
    """[K] the node of each label and its token, in any order."""

    place_K: torch.Tensor
    target_K: torch.Tensor


def made(counts: list[int], *, bias: bool, seed: int) -> tuple[torch.Tensor, torch.nn.Linear, Labels]:
    torch.manual_seed(seed)
    hidden = torch.randn(len(counts), 5, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(5, VOCABULARY, bias=bias, dtype=torch.float64)
    place = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    place = place[torch.randperm(len(place))]
    return hidden, head, Labels(place, torch.randint(0, VOCABULARY, place.shape))


def scores(
    hidden: torch.Tensor,
    head: torch.nn.Linear,
    labels: Labels,
    temperature: float,
    *,
    chunk: int = 2,
    allowed: Allowed | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    with patch.object(shared_prefix, "_HEAD_CHUNK", chunk):
        return shared_prefix._score(head, hidden, labels.place_K, labels.target_K, temperature, allowed)


def masks_for(labels: Labels, chance: list[float]) -> tuple[Allowed, torch.Tensor]:
    """A mask of each node, which has its labels and of the other tokens about that share; no mask where that is 1. And
    the same as [U, V] of bool."""
    count = int(labels.place_K.max()) + 1
    rows = torch.rand(count, VOCABULARY) < torch.tensor(chance * count)[:count, None]
    rows[labels.place_K, labels.target_K] = True
    free = torch.tensor(chance * count)[:count] == 1
    rows[free] = True
    bits = np.packbits(
        torch.cat([torch.ones(1, VOCABULARY, dtype=torch.bool), rows]).numpy(), axis=1, bitorder="little"
    )
    which = torch.arange(1, count + 1).masked_fill(free, 0)
    return Allowed(which[labels.place_K], torch.from_numpy(bits)), rows


def plainly(
    hidden: torch.Tensor,
    head: torch.nn.Linear,
    labels: Labels,
    temperature: float,
    allowed_UV: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = head(hidden) / temperature
    if allowed_UV is not None:
        logits = logits.masked_fill(~allowed_UV, -math.inf)
    log_softmax = logits.log_softmax(-1)[labels.place_K]
    chosen = log_softmax.gather(-1, labels.target_K[:, None])[:, 0]
    top1 = (log_softmax.argmax(-1) == labels.target_K).float()
    within = log_softmax.masked_fill(log_softmax == -math.inf, 0.0)  # 0 times infinity is no number
    return chosen, -(log_softmax.exp() * within).sum(-1), top1


def test_two_equal_logits_are_a_half_each() -> None:
    head = torch.nn.Linear(1, 2, bias=False, dtype=torch.float64)
    torch.nn.init.ones_(head.weight)
    labels = Labels(torch.tensor([0]), torch.tensor([0]))
    hidden = torch.tensor([[3.0]], dtype=torch.float64, requires_grad=True)
    log_prob, entropy, top1 = scores(hidden, head, labels, 1.0)
    assert (log_prob.item(), entropy.item(), top1.item()) == pytest.approx((-math.log(2), math.log(2), 1.0))
    log_prob.sum().backward()
    # d log p / d logits is (1/2, -1/2); times the hidden state of 3.
    assert head.weight.grad is not None
    assert head.weight.grad.flatten().tolist() == pytest.approx([1.5, -1.5])
    assert hidden.grad is not None
    assert hidden.grad.item() == pytest.approx(0.0)


@settings(deadline=None, max_examples=100)
@given(
    CASES,
    st.sampled_from(["log_prob", "entropy", "both"]),
    st.none() | st.lists(st.sampled_from([0.0, 0.3, 0.9, 1.0]), min_size=1, max_size=3),
)
def test_scores_and_gradients_are_those_of_log_softmax_over_the_tokens_that_are_allowed(
    case: dict,  # type: ignore[type-arg]
    of: str,
    chance: list[float] | None,
) -> None:
    hidden, head, labels = made(case["counts"], bias=case["bias"], seed=case["seed"])
    allowed, allowed_UV = (None, None) if chance is None else masks_for(labels, chance)
    wanted = plainly(hidden, head, labels, case["temperature"], allowed_UV)
    found = scores(hidden, head, labels, case["temperature"], chunk=case["chunk"], allowed=allowed)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=1e-12)

    factors = torch.randn(2, len(labels.place_K), dtype=torch.float64)
    factors[0] *= of != "entropy"
    factors[1] *= of != "log_prob"

    def gradients(found: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        total = sum((factor * score).sum() for factor, score in zip(factors, found, strict=False) if factor.any())
        assert isinstance(total, torch.Tensor)
        return tuple(torch.autograd.grad(total, [hidden, *head.parameters()]))

    for one, other in zip(gradients(found), gradients(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("temperature", [1e-5, 1.0, 100.0])
def test_the_only_token_that_is_allowed_is_certain_and_moves_nothing(temperature: float) -> None:
    hidden, head, labels = made([1, 1, 1], bias=True, seed=2)
    hidden32, head32 = hidden.detach().float().requires_grad_(), head.float()
    allowed, _ = masks_for(labels, [0.0])
    log_probs, entropy, top1 = scores(hidden32, head32, labels, temperature, allowed=allowed)
    assert (log_probs.tolist(), entropy.tolist(), top1.tolist()) == ([0.0] * 3, [0.0] * 3, [1.0] * 3)
    (log_probs.sum() + entropy.sum()).backward()
    for gradient in (hidden32.grad, *(weight.grad for weight in head32.parameters())):
        assert gradient is not None
        assert not gradient.any()


def test_a_frozen_head_gets_no_gradient_and_the_hidden_state_the_same() -> None:
    hidden, head, labels = made([1, 2], bias=True, seed=5)
    (wanted,) = torch.autograd.grad(plainly(hidden, head, labels, 1.0)[0].sum(), [hidden])
    head.requires_grad_(False)
    scores(hidden, head, labels, 1.0)[0].sum().backward()
    torch.testing.assert_close(hidden.grad, wanted, rtol=0, atol=1e-12)
    assert head.weight.grad is None
