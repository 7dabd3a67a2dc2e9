"""Rotary positions whose gradients cost less: the same numbers as transformers' own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from test_shared_prefix import SIZES, padded_rows
from transformers import AutoModelForCausalLM, CohereConfig, GPTNeoXConfig, LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from sdk.trainer.rotary import quicken_rotary, rotate
from sdk.trainer.shared_prefix import checkpoint_layers, share_prefixes

pytestmark = pytest.mark.timeout(120)


def test_queries_and_their_gradients_are_those_of_transformers() -> None:
    torch.manual_seed(0)
    # As a model makes them: a token's heads beside each other.
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    cos, sin, weights = torch.randn(2, 5, 8).double(), torch.randn(2, 5, 8).double(), torch.randn(2, 3, 5, 8).double()
    ours, (theirs, _) = rotate(x, cos[:, None], sin[:, None]), apply_rotary_pos_emb(x, x, cos, sin)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    found, expected = (torch.autograd.grad(out, x, weights)[0] for out in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_the_gradient_is_that_of_the_formula() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    cos, sin = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), (x,))
    # Of each half's pairs a turn: (1, 2) by a right angle is (-2, 1).
    turned = rotate(torch.tensor([1.0, 2.0]), torch.zeros(2), torch.ones(2))
    torch.testing.assert_close(turned, torch.tensor([-2.0, 1.0]))


def llama() -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))


def gradients(model: Any) -> dict[str, torch.Tensor]:
    ids, mask, labels = padded_rows()
    model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs.sum().backward()
    return {name: weights.grad for name, weights in model.named_parameters()}


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_model_s_gradients_stay_what_they_were(checkpoints: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, plain = llama(), llama()
    share_prefixes(quick)
    monkeypatch.setattr("sdk.trainer.shared_prefix.quicken_rotary", lambda _: 0)
    share_prefixes(plain)
    assert "forward" in quick.model.layers[0].self_attn.__dict__
    assert "forward" not in plain.model.layers[0].self_attn.__dict__
    if checkpoints:
        checkpoint_layers(quick)
    expected = gradients(plain)
    for name, gradient in gradients(quick).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5, msg=name)


def test_it_is_done_where_the_forward_calls_it_and_once() -> None:
    model = AutoModelForCausalLM.from_config(Qwen3Config(**SIZES, head_dim=8))
    assert quicken_rotary(model) == SIZES["num_hidden_layers"]
    assert quicken_rotary(model) == 0


def test_positions_that_turn_otherwise_are_left_alone() -> None:
    # Cohere turns neighbours instead of halves.
    assert quicken_rotary(AutoModelForCausalLM.from_config(CohereConfig(**SIZES))) == 0


def test_a_part_of_each_head_is_turned_as_before() -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(GPTNeoXConfig(**sizes)).eval()
    ids = torch.arange(3, 12)[None]
    before = model(input_ids=ids).logits
    quicken_rotary(model)
    torch.testing.assert_close(model(input_ids=ids).logits, before)


def test_other_types_and_no_gradients_compute_as_before() -> None:
    model = llama().eval()
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        half = copy.deepcopy(model).bfloat16()
    of_half = half(input_ids=ids).logits
    quicken_rotary(model)
    quicken_rotary(half)
    assert torch.equal(half(input_ids=ids).logits, of_half)
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, before)


def test_a_copy_has_its_own_and_what_is_unpickled_its_class_s() -> None:
    model = llama()
    quicken_rotary(model)
    other = copy.deepcopy(model)
    attention = other.model.layers[0].self_attn
    assert attention.forward.__self__ is attention
    again = pickle.loads(pickle.dumps(model))
    ids = torch.arange(3, 12)[None]
    torch.testing.assert_close(again(input_ids=ids).logits, model(input_ids=ids).logits)
