"""Norms and tied embeddings whose gradients cost less: the same numbers as torch's and transformers' own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from test_shared_prefix import SIZES, padded_rows
from torch import nn
from transformers import AutoModelForCausalLM, GemmaConfig, LlamaConfig, Qwen3Config
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from sdk.trainer.norms import quicken_norms, rms_norm
from sdk.trainer.shared_prefix import checkpoint_layers, share_prefixes
from sdk.trainer.tied_embedding import tied_in_one_gradient

pytestmark = pytest.mark.timeout(120)


def with_gradients(norm: Any, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    out = norm(x)
    return [out, *torch.autograd.grad(out, (x, norm.weight), weights)]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_a_norm_and_its_gradients_are_those_of_transformers(scale: float) -> None:
    torch.manual_seed(0)
    own, quick = LlamaRMSNorm(96), LlamaRMSNorm(96)
    with torch.no_grad():
        own.weight.normal_()
        quick.weight.copy_(own.weight)
    assert quicken_norms(quick) == 1
    x, weights = (scale * torch.randn(2, 5, 96)).requires_grad_(), torch.randn(2, 5, 96)
    for ours, theirs in zip(with_gradients(quick, x, weights), with_gradients(own, x, weights), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


def test_the_gradient_is_that_of_the_formula() -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-6), (x, weight))
    # x / rms(x) * weight for x = (3, 4), whose mean of squares is 12.5.
    by_hand = rms_norm(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(by_hand, torch.tensor([3 / 12.5**0.5, 8 / 12.5**0.5]))


def test_a_norm_of_frozen_weights_passes_its_gradient_on() -> None:
    norm = LlamaRMSNorm(8)
    norm.weight.requires_grad_(False)
    quicken_norms(norm)
    x = torch.randn(2, 8, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad is not None
    assert norm.weight.grad is None


def test_norms_that_compute_something_else_are_left_alone() -> None:
    model = AutoModelForCausalLM.from_config(GemmaConfig(**SIZES, head_dim=8))
    assert isinstance(model.model.norm, GemmaRMSNorm)  # whose weights are added to one
    assert quicken_norms(model) == 0
    assert "forward" not in model.model.norm.__dict__


class SometimesRMSNorm(nn.Module):  # type: ignore[misc]
    """As some models have it: with a weight or without, by a flag."""

    def __init__(self, size: int, *, with_scale: bool) -> None:
        super().__init__()
        self.eps = 1e-6
        self.doubled = not with_scale
        if with_scale:
            self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()
        return 2 * normed if self.doubled else normed * self.weight


@pytest.mark.parametrize("flags", [(True, False), (False, True)])
def test_norms_of_one_class_that_differ_are_told_apart(flags: tuple[bool, bool]) -> None:
    norms = nn.ModuleList([SometimesRMSNorm(8, with_scale=flag) for flag in flags])
    before = [norm(torch.arange(8.0)) for norm in norms]
    assert quicken_norms(norms) == 1
    for norm, expected in zip(norms, before, strict=True):
        torch.testing.assert_close(norm(torch.arange(8.0)), expected)


def test_a_norm_can_be_pickled_and_is_its_class_s_own_again() -> None:
    norm = LlamaRMSNorm(8)
    quicken_norms(norm)
    again = pickle.loads(pickle.dumps(norm))
    assert torch.equal(again(torch.ones(2, 8)), norm(torch.ones(2, 8)))


def test_all_norms_of_a_model_are_found_once_and_a_copy_has_its_own() -> None:
    model = AutoModelForCausalLM.from_config(Qwen3Config(**SIZES, head_dim=8))
    assert quicken_norms(model) == 2 * 4 + 1  # two of the layer's input, one of queries, one of keys; the last one
    assert quicken_norms(model) == 0
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.norm.weight.zero_()
    assert not other.model.norm(torch.ones(2, 32)).any()
    assert model.model.norm(torch.ones(2, 32)).all()


def test_other_types_than_float32_compute_as_before() -> None:
    own, quick = LlamaRMSNorm(16).bfloat16(), LlamaRMSNorm(16).bfloat16()
    quicken_norms(quick)
    x = torch.randn(4, 16, dtype=torch.bfloat16)
    assert torch.equal(own(x), quick(x))


def llama(*, tied: bool) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, tie_word_embeddings=tied))


def gradients(model: Any, *, calls: int = 1) -> dict[str, torch.Tensor]:
    ids, mask, labels = padded_rows()
    outputs = [model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True) for _ in range(calls)]
    sum(output.log_probs.sum() * (place + 1) for place, output in enumerate(outputs)).backward()
    return {name: weights.grad for name, weights in model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_embedding_has_the_same_dense_gradient(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lean, plain = llama(tied=tied), llama(tied=tied)
    for model in (lean, plain):
        share_prefixes(model)
    parts: list[bool] = []
    table = nn.functional.embedding

    def seen(*args: Any, **options: Any) -> torch.Tensor:
        parts.append(bool(args[6] if len(args) > 6 else options.get("sparse", False)))
        return table(*args, **options)

    monkeypatch.setattr(nn.functional, "embedding", seen)
    found = gradients(lean)
    monkeypatch.setattr("sdk.trainer.tied_embedding._are_one", lambda *_: False)
    expected = gradients(plain)
    assert parts == [tied, False]
    assert list(found) == list(expected)
    assert ("lm_head.weight" in found) is not tied
    for name, gradient in found.items():
        assert not gradient.is_sparse
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("way", ["two forwards", "two backwards", "checkpoints", "half of a pair", "another head"])
def test_the_gradient_of_a_tied_weight_is_whole(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it comes together: in one graph or several, from a head in chunks, from one of its two parts alone."""
    lean, plain = llama(tied=True), llama(tied=True)
    found = []
    for model in (lean, plain):
        if way == "another head":  # computed in chunks with checkpoints, by the head's own forward
            monkeypatch.setattr(type(model.lm_head), "forward", lambda self, x: nn.functional.linear(x, self.weight))
        share_prefixes(model)
        if way == "checkpoints":
            checkpoint_layers(model)
    for model in (lean, plain):
        if way == "half of a pair":
            monkeypatch.setattr(
                "sdk.trainer.shared_prefix._score",
                lambda _model, hidden_NH, node_K, *_: (hidden_NH[node_K].sum(-1), *[hidden_NH[node_K, 0]] * 2),
            )
        if way == "two backwards":
            gradients(model)
        found.append(gradients(model, calls=2 if way == "two forwards" else 1)["model.embed_tokens.weight"])
        monkeypatch.setattr("sdk.trainer.tied_embedding._are_one", lambda *_: False)
    assert found[0].any()
    assert not found[0].is_sparse
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_the_embedding_is_as_before_whatever_happens() -> None:
    model = llama(tied=True)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()

    weight = embedding.weight

    def break_off() -> None:
        with tied_in_one_gradient(model):
            assert embedding.sparse
            assert embedding.weight is not weight
            assert next(model.parameters()) is weight
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        break_off()
    assert not embedding.sparse
    assert embedding.weight is head.weight is weight
    with torch.no_grad(), tied_in_one_gradient(model):
        assert not embedding.sparse
    with torch.autocast("cpu"), tied_in_one_gradient(model):
        assert not embedding.sparse
    embedding.weight.requires_grad_(False)
    with tied_in_one_gradient(model):
        assert not embedding.sparse
