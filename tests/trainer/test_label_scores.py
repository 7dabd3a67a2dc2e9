"""Log-probabilities and entropies of labels under a linear head, against log_softmax and its own gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdk.trainer.shared_prefix import Allowed, Labels, Limits, linear_scores

CASES = st.fixed_dictionaries(
    {
        "counts": st.lists(st.integers(1, 3), min_size=1, max_size=7),
        "chunk": st.integers(1, 8),
        "kept_bytes": st.sampled_from([0, 300, 10**6]),
        "temperature": st.sampled_from([1.0, 0.7, 2.0]),
        "bias": st.booleans(),
        "seed": st.integers(0, 2**16),
    }
)
VOCABULARY = 11


def made(counts: list[int], *, bias: bool, seed: int) -> tuple[torch.Tensor, torch.nn.Linear, Labels]:
    torch.manual_seed(seed)
    hidden = torch.randn(len(counts), 5, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(5, VOCABULARY, bias=bias, dtype=torch.float64)
    place = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return hidden, head, Labels(place, torch.randint(0, VOCABULARY, place.shape), counts)


def masks_for(labels: Labels, chance: list[float]) -> tuple[Allowed, torch.Tensor]:
    """A mask for each node, which has its labels and of the other tokens about that share; no mask where that is 1. And
    the same as [U, V] of bool."""
    count = len(labels.counts)
    rows = torch.rand(count, VOCABULARY) < torch.tensor(chance * count)[:count, None]
    rows[labels.place_K, labels.target_K] = True
    free = torch.tensor(chance * count)[:count] == 1
    rows[free] = True
    bits = np.packbits(
        torch.cat([torch.ones(1, VOCABULARY, dtype=torch.bool), rows]).numpy(), axis=1, bitorder="little"
    )
    which = torch.arange(1, count + 1).masked_fill(free, 0)
    return Allowed(which, torch.from_numpy(bits)), rows


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
    labels = Labels(torch.tensor([0]), torch.tensor([1]), [1])
    hidden = torch.tensor([[3.0]], dtype=torch.float64, requires_grad=True)
    log_prob, entropy, top1 = linear_scores(hidden, head, labels, 1.0, Limits(1, 0))
    assert (log_prob.item(), entropy.item(), top1.item()) == pytest.approx((-math.log(2), math.log(2), 1.0))
    log_prob.sum().backward()
    # d log p / d logits is (-1/2, 1/2); times the hidden state of 3.
    assert head.weight.grad is not None
    assert head.weight.grad.flatten().tolist() == pytest.approx([-1.5, 1.5])
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
    limits = Limits(case["chunk"], case["kept_bytes"])
    found = linear_scores(hidden, head, labels, case["temperature"], limits, allowed)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=1e-12)

    factors = torch.randn(2, len(labels.place_K), dtype=torch.float64)
    factors[0] *= of != "entropy"
    factors[1] *= of != "log_prob"

    def gradients(scores: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        total = sum((factor * score).sum() for factor, score in zip(factors, scores, strict=False) if factor.any())
        assert isinstance(total, torch.Tensor)
        return tuple(torch.autograd.grad(total, [hidden, *head.parameters()]))

    for one, other in zip(gradients(found), gradients(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_probabilities_that_are_kept_and_those_computed_again_give_the_same_gradient_bit_for_bit() -> None:
    gradients = []
    for kept_bytes in (0, 10**6):
        hidden, head, labels = made([1, 2, 1, 1], bias=False, seed=3)
        linear_scores(hidden, head, labels, 0.7, Limits(2, kept_bytes))[0].sum().backward()
        gradients.append((hidden.grad, head.weight.grad))
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert one.equal(other)


@pytest.mark.parametrize(("kept_bytes", "chunks"), [(0, 0), (2 * 2 * VOCABULARY * 8, 2), (10**6, 4)])
def test_no_more_probabilities_are_kept_than_allowed(kept_bytes: int, chunks: int) -> None:
    hidden, head, labels = made([1] * 8, bias=False, seed=0)
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel() if tensor.shape[-1:] == (VOCABULARY,) else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        linear_scores(hidden, head, labels, 1.0, Limits(2, kept_bytes))
    assert sum(kept) == chunks * 2 * VOCABULARY


@pytest.mark.parametrize("temperature", [1e-5, 1.0, 100.0])
def test_the_only_token_that_is_allowed_is_certain_and_moves_nothing(temperature: float) -> None:
    hidden, head, labels = made([1, 1, 1], bias=True, seed=2)
    hidden32, head32 = hidden.detach().float().requires_grad_(), head.float()
    allowed, _ = masks_for(labels, [0.0])
    log_probs, entropy, top1 = linear_scores(hidden32, head32, labels, temperature, Limits(2, 0), allowed)
    assert (log_probs.tolist(), entropy.tolist(), top1.tolist()) == ([0.0] * 3, [0.0] * 3, [1.0] * 3)
    (log_probs.sum() + entropy.sum()).backward()
    for gradient in (hidden32.grad, *(weight.grad for weight in head32.parameters())):
        assert gradient is not None
        assert not gradient.any()


def test_a_frozen_head_gets_no_gradient_and_the_hidden_state_the_same() -> None:
    hidden, head, labels = made([1, 2], bias=True, seed=5)
    (wanted,) = torch.autograd.grad(plainly(hidden, head, labels, 1.0)[0].sum(), [hidden])
    head.requires_grad_(False)
    linear_scores(hidden, head, labels, 1.0, Limits(1, 10**6))[0].sum().backward()
    torch.testing.assert_close(hidden.grad, wanted, rtol=0, atol=1e-12)
    assert head.weight.grad is None
