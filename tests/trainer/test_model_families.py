"""The shared-prefix forward over the model families of transformers: exact, or refused before anything is spent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from test_shared_prefix import SIZES, padded_rows, plain_log_probs
from trl.trainer.utils import add_fused_lm_head

from sdk.errors import ModelError
from sdk.trainer.shared_prefix import share_prefixes

pytestmark = pytest.mark.timeout(120)

FAMILIES: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            *("Apertus", "Arcee", "Cwm", "Ernie4_5", "GPTNeoX", "Llama", "Olmo", "Olmo2", "Phi", "Qwen2", "SmolLM3"),
            *("Starcoder2",),
        )
    },
    **{name: {"head_dim": 8} for name in ("Gemma", "Glm", "Glm4", "Helium", "HunYuanDenseV1", "Qwen3")},
    "Cohere": {"logit_scale": 0.25},
    "Cohere2": {"logit_scale": 0.25, "head_dim": 8, "sliding_window": 9},
    "Exaone4": {"sliding_window": 9},
    "Gemma3Text": {"head_dim": 8, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
    "Granite": {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    "Ministral": {"head_dim": 8, "sliding_window": 9},
    "Mistral": {"sliding_window": 9},
    "Olmo3": {"sliding_window": 9},
    "Phi3": {"sliding_window": 9},
    **{name: {"num_experts": 4, "num_experts_per_tok": 2} for name in ("FlexOlmo", "Olmoe", "Qwen2Moe")},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
}
REFUSED = {
    "Falcon": "attention of FalconForCausalLM cannot be exchanged",
    "Gemma2": "caps its scores or has sinks",
    "GptOss": "caps its scores or has sinks",
    "Mamba": "layers of the kinds|cannot be exchanged|cannot run",
    "NanoChat": "changes its logits \\(final_logit_softcapping=15.0\\)",
    "Nemotron": "cannot run NemotronForCausalLM",
    "StableLm": "attention of StableLmForCausalLM cannot be exchanged",
    "Qwen3Next": "layers of the kinds",
}


def tiny(name: str, **settings: Any) -> Any:
    config_class = getattr(transformers, f"{name}Config")
    sizes = dict(SIZES)
    if not hasattr(config_class(), "num_key_value_heads"):
        del sizes["num_key_value_heads"]  # a config keeps any name that it is given
    config = config_class(**{**sizes, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, **settings})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(3)  # distributions far from uniform
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_exact(name: str) -> None:
    model = tiny(name, **FAMILIES[name])
    ids, mask, labels = padded_rows()
    expected, _ = plain_log_probs(model, ids, mask, labels, 0.7)
    expected.sum().backward()
    wanted = {name: weights.grad.clone() for name, weights in model.named_parameters() if weights.grad is not None}
    model.zero_grad()
    share_prefixes(model, temperature=0.7)
    found = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    found.sum().backward()
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    gradients = {name: weights.grad for name, weights in model.named_parameters() if weights.grad is not None}
    assert gradients.keys() == wanted.keys()
    for weights, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[weights], rtol=0, atol=1e-4 * largest, msg=weights)


@pytest.mark.parametrize("name", ["FlexOlmo", "Mixtral", "Olmoe", "Qwen2Moe", "Qwen3Moe"])
def test_the_loss_that_balances_experts_is_that_of_trl_over_padded_rows(name: str) -> None:
    ours, theirs = tiny(name, **FAMILIES[name]), tiny(name, **FAMILIES[name])
    share_prefixes(ours)
    add_fused_lm_head(theirs)
    ids, mask, labels = padded_rows()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    call: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "labels": labels, "fused_lm_head": True}
    found = ours(**call, output_router_logits=True).aux_loss
    expected = theirs(**call, position_ids=positions, output_router_logits=True).aux_loss
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    found.backward()
    expected.backward()
    for weights, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(weights.grad, other.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_a_tree_cannot_express_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(ModelError, match=REFUSED[name]) as refused:
        share_prefixes(tiny(name))
    assert "config={'batching': {'shared_prefix': False}}" in str(refused.value)


def test_a_window_of_which_mask_and_attention_tell_different_things_is_found_however_long_it_is() -> None:
    model = tiny("Olmoe", num_experts=4, num_experts_per_tok=2, sliding_window=100)  # its mask knows of none
    with pytest.raises(ModelError, match="differ from the model's own by"):
        share_prefixes(model)


def test_dropout_of_attention_is_refused_by_any_name() -> None:
    model = tiny("Llama")
    model.config.attn_pdrop = 0.1
    with pytest.raises(ModelError, match=r"attn_pdrop=0\.1"):
        share_prefixes(model)


def test_a_model_that_does_something_unknown_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("Llama")
    whole = type(model).forward

    def biased(self: Any, *args: Any, **named: Any) -> Any:
        output = whole(self, *args, **named)
        output.logits = output.logits * 1.5  # after the head: the backbone knows nothing of it
        return output

    monkeypatch.setattr(type(model), "forward", biased)
    with pytest.raises(ModelError, match="differ from the model's own by"):
        share_prefixes(model)


def test_trying_draws_no_random_numbers_and_leaves_the_model_as_it_was() -> None:
    model = tiny("Mistral", sliding_window=100).train()
    model.model.layers[1].eval()
    before, modes = torch.random.get_rng_state(), [module.training for module in model.modules()]
    share_prefixes(model, temperature=0.5)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert model.config.sliding_window == 100
    assert all(weights.grad is None for weights in model.parameters())
