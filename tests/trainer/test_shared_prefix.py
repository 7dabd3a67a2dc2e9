"""The shared-prefix forward against the plain padded one, in float64, gradients included."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from sdk.errors import ModelError
from sdk.trainer.shared_prefix import IGNORED, Allowed, share_prefixes

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS = [LlamaConfig(**SIZES), Qwen2Config(**SIZES), Qwen3Config(**SIZES, head_dim=8)]
WINDOWED = [  # of 24 tokens and more: windows that end within prompts, within completions, and beyond all
    MistralConfig(**SIZES, sliding_window=4),
    Phi3Config(**SIZES, sliding_window=15, pad_token_id=0, eos_token_id=1),
    Qwen3Config(**SIZES, head_dim=8, use_sliding_window=True, sliding_window=12, max_window_layers=1),
    Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=9, layer_types=["sliding_attention", "full_attention"]),
    MistralConfig(**SIZES, sliding_window=1000),
]


def tiny(config: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    # Transformers' norms compute in float32 whatever the model's type; torch's own keep float64.
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            parent = model.get_submodule(name.rpartition(".")[0])
            gemma = type(module).__name__.startswith("Gemma")  # whose weights are added to one
            norm = torch.nn.RMSNorm(module.weight.shape, eps=module.eps if gemma else module.variance_epsilon)
            setattr(parent, name.rpartition(".")[2], norm)
    return model.double().eval()


def padded_rows(before: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Six rows [B=6, L=24]: a shared prompt, rows that share more, one left-padded, one right-padded, one repeated.

    `before`: so many more tokens of the prompt in front of all.
    """
    torch.manual_seed(1)
    ids = torch.randint(0, 61, (6, 24))
    ids[:, :10] = ids[0, :10]
    ids[:3, :16] = ids[0, :16]
    ids[3] = ids[2]
    mask = torch.ones_like(ids)
    mask[4, 20:] = 0
    ids[5, 4:14] = ids[0, :10]
    mask[5, :4] = 0
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, :12] = IGNORED
    labels[1, 15:18] = IGNORED  # a tool's result between sampled tokens
    if before:
        prompt = torch.randint(0, 61, (before,))
        rows = [torch.cat([prompt, row]) for row in ids[:5]]
        ids = torch.stack([*rows, torch.cat([ids[5, :4], prompt, ids[5, 4:]])])
        prompt = prompt.expand(6, -1)
        mask = torch.cat([mask[:, :4], torch.ones_like(prompt), mask[:, 4:]], 1)
        labels = torch.cat([torch.full_like(prompt, IGNORED), labels], 1)
    return ids, mask, labels


def plain_log_probs(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, L-1] log-probability of each label and entropy before it, by the model's own padded forward."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, :-1] / temperature
    log_softmax = logits.log_softmax(-1)
    wanted = labels[:, 1:]
    scored = wanted != IGNORED
    chosen = log_softmax.gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
    entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    return chosen.masked_fill(~scored, 0.0), entropy.masked_fill(~scored, 0.0)


@pytest.mark.parametrize("config", [*CONFIGS, *WINDOWED], ids=lambda c: c.model_type)
@pytest.mark.parametrize(("temperature", "before"), [(1.0, 0), (0.7, 0), (1.0, 300)])
def test_log_probabilities_entropies_and_gradients_equal_the_padded_forward(
    config: Any, temperature: float, before: int
) -> None:
    plain, shared = tiny(config), tiny(config)
    share_prefixes(shared, temperature=temperature)
    ids, mask, labels = padded_rows(before)
    expected, entropy = plain_log_probs(plain, ids, mask, labels, temperature)
    output = shared(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    # The head is scored in float64 where the model is, so the two differ by rounding alone.
    torch.testing.assert_close(output.log_probs, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(output.entropy, entropy, rtol=0, atol=1e-12)

    weights = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weights).sum().backward()
    (output.log_probs * weights).sum().backward()
    for (name, one), other in zip(plain.named_parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(
            other.grad, one.grad, rtol=0, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


class OtherHead(torch.nn.Linear):
    """Computes as a linear layer does, and is not known to: as one with an adapter."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden)


@pytest.mark.parametrize("plain_head", [True, False])
def test_labels_are_scored_among_the_tokens_that_each_was_chosen_from(plain_head: bool) -> None:
    plain, shared = tiny(CONFIGS[0]), tiny(CONFIGS[0])
    if not plain_head:
        head = OtherHead(32, 61, bias=False, dtype=torch.float64)
        head.weight = shared.lm_head.weight
        shared.lm_head = head
    share_prefixes(shared, temperature=0.7)
    ids, mask, labels = padded_rows()
    scored = labels[:, 1:] != IGNORED
    # Six masks. Rows 2 and 3 have the same tokens, and not the same masks.
    allowed = torch.rand(6, 61) < 0.5
    allowed[0] = True
    which = torch.randint(0, 6, scored.shape)
    which[2:4] = torch.tensor([[1], [0]])
    for token in labels[:, 1:][scored & (which > 0)]:
        allowed[:, token] = True
    masks = torch.from_numpy(np.packbits(allowed.numpy(), axis=1, bitorder="little"))
    masks[0] = 255
    output = shared(
        input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, allowed=Allowed(which, masks)
    )

    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = plain(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, :-1] / 0.7
    log_softmax = logits.masked_fill(~allowed[which], -1e30).log_softmax(-1)
    expected = log_softmax.gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0].masked_fill(~scored, 0.0)
    entropy = -(log_softmax.exp() * log_softmax).sum(-1).masked_fill(~scored, 0.0)
    torch.testing.assert_close(output.log_probs, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(output.entropy, entropy, rtol=0, atol=1e-12)
    unbounded = plain_log_probs(plain, ids, mask, labels, 0.7)[0]
    assert (unbounded - expected).abs().max() > 0.1

    weights = torch.randn(expected.shape, dtype=torch.float64)
    ((expected + 0.3 * entropy) * weights).sum().backward()
    ((output.log_probs + 0.3 * output.entropy) * weights).sum().backward()
    for one, other in zip(plain.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-11)


def test_each_distinct_token_is_forwarded_once() -> None:
    model = tiny(CONFIGS[0])
    share_prefixes(model)
    ids, mask, labels = padded_rows()
    rows = [[int(t) for t, m in zip(row, keep, strict=True) if m] for row, keep in zip(ids, mask, strict=True)]
    # The last token of a row predicts nothing, so it is not forwarded.
    distinct = {tuple(row[:end]) for row in rows for end in range(1, len(row))}
    output = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    assert output.forwarded_tokens == len(distinct)


def test_other_calls_reach_the_models_own_forward() -> None:
    plain, shared = tiny(CONFIGS[0]), tiny(CONFIGS[0])
    share_prefixes(shared)
    ids = torch.arange(8)[None]
    own, expected = shared(input_ids=ids, labels=ids), plain(input_ids=ids, labels=ids)
    assert type(own) is type(expected)
    torch.testing.assert_close(own.loss, expected.loss)
    torch.testing.assert_close(own.logits, expected.logits)


def test_a_batch_with_nothing_to_score_gives_a_zero_that_can_be_trained() -> None:
    model = tiny(CONFIGS[0])
    share_prefixes(model)
    ids = torch.zeros((1, 2), dtype=torch.long)
    nothing = torch.full_like(ids, IGNORED)
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=nothing, fused_lm_head=True)
    output.log_probs.sum().backward()
    assert output.log_probs.tolist() == [[0.0]]
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_layers_that_see_by_chunks_or_do_not_attend_are_refused() -> None:
    model = tiny(LlamaConfig(**SIZES))
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(
        ModelError, match=r"kinds \['chunked_attention', 'full_attention'\].* full or in a sliding window"
    ):
        share_prefixes(model)


def test_a_window_that_only_the_mask_knows_of_is_refused() -> None:
    kinds, whole = tiny(LlamaConfig(**SIZES)), tiny(LlamaConfig(**SIZES))
    kinds.config.layer_types = ["full_attention", "sliding_attention"]
    whole.config.sliding_window = 8
    for model in (kinds, whole):
        with pytest.raises(ModelError, match="LlamaAttention has a sliding window and does not say how far"):
            share_prefixes(model)


def test_attention_that_caps_its_scores_or_has_sinks_is_refused() -> None:
    capped = tiny(LlamaConfig(**SIZES))
    capped.config.attn_logit_softcapping = 50.0
    sinking = tiny(LlamaConfig(**SIZES))
    sinking.model.layers[0].self_attn.sinks = torch.nn.Parameter(torch.zeros(4))
    for model in (capped, sinking):
        with pytest.raises(ModelError, match="caps its scores or has sinks"):
            share_prefixes(model)


def test_a_copy_has_a_plain_forward_of_its_own() -> None:
    model = tiny(CONFIGS[0])
    share_prefixes(model)
    other, ids = copy.deepcopy(model), torch.arange(8)[None]
    before = other(input_ids=ids).logits
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert torch.equal(other(input_ids=ids).logits, before)
