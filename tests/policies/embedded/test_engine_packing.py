"""Parts that the embedded engine exchanges for packed ones: only those that compute the same, published whole."""

from __future__ import annotations

import asyncio
import types
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_models import random_tokens, tiny_model
from plain_forward import assert_exact, plain_logprobs
from torch import nn

from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.embedded.attention import Segment
from sdk.policies.embedded.decoder import Decoder
from sdk.policies.embedded.packed import EVERY_FORM, PackedLinear, packed, packs, packs_weights
from sdk.policies.protocol import Sampling

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]

LAYERS = 2
ALL = {"PackedAttention": LAYERS, "PackedMlp": LAYERS}
FOUND: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "Llama": ({}, ALL | {"PackedNorm": 2 * LAYERS + 1}),
    "Qwen2": ({}, ALL | {"PackedNorm": 2 * LAYERS + 1}),
    "Qwen3": ({"head_dim": 8}, ALL | {"PackedNorm": 4 * LAYERS + 1}),
    # Windows: its own attention stays.
    "Mistral": ({"sliding_window": 9}, {"PackedMlp": LAYERS, "PackedNorm": 2 * LAYERS + 1}),
    # Of other families linear layers alone, whatever the other parts compute.
    "Gemma": ({"head_dim": 8}, {}),
    "Olmo2": ({}, {}),
    "SmolLM3": ({"no_rope_layers": [1, 0]}, {}),
}


@pytest.mark.parametrize("family", FOUND)
def test_what_computes_the_same_is_exchanged_and_nothing_else(family: str) -> None:
    settings, expected = FOUND[family]
    decoder = Decoder(tiny_model(family, bos_token_id=1, **settings))
    kinds = Counter(type(module).__name__ for module in decoder.weights.model.modules())
    assert {kind: n for kind, n in kinds.items() if kind.startswith("Packed") and kind != "PackedLinear"} == expected
    assert kinds["Linear"] == 0


def test_in_bfloat16_the_same_parts_are_exchanged_where_the_processor_computes_in_it() -> None:
    decoder = Decoder(tiny_model().to(torch.bfloat16))
    kinds = Counter(type(module).__name__ for module in decoder.weights.model.modules())
    assert (kinds["Linear"] == 0) is packs(torch.bfloat16)
    assert not packs(torch.float16)


async def test_an_engine_in_bfloat16_rounds_the_float32_weights_that_are_published() -> None:
    begun, trained = tiny_model(), tiny_model(seed=1)
    prompt = random_tokens(20, 0)
    with EmbeddedEngine(begun.to(torch.bfloat16)) as engine:
        engine.publish(trained.state_dict(), version=1)
        completion = await engine.sample(prompt, sampling=Sampling(max_tokens=8), seed=0)
    expected = plain_logprobs(trained.to(torch.bfloat16), prompt, completion.token_ids)
    assert completion.version == 1
    assert completion.logprobs == pytest.approx(expected, abs=0.1)
    others = plain_logprobs(begun, prompt, completion.token_ids)
    assert completion.logprobs != pytest.approx(others, abs=0.1)


def test_hooks_are_heard_as_before() -> None:
    model, heard = tiny_model(), []
    for name, module in model.named_modules():
        if name.endswith(("layers.0.self_attn", "layers.0.mlp.up_proj", "layers.1.input_layernorm")):
            module.register_forward_hook(lambda *_, name=name: heard.append(name))
    decoder = Decoder(model)
    heard.clear()
    decoder.compute([Segment([3, 4, 5], decoder.cache.separate(3), 0)])
    assert len(heard) == len(set(heard)) == 3


async def test_without_the_operations_on_packed_weights_the_engine_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert packs_weights()
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    packs_weights.cache_clear()
    try:
        model, prompt = tiny_model("Llama", attention_bias=True, mlp_bias=True), random_tokens(20, 0)
        with EmbeddedEngine(model) as engine:
            assert_exact(model, prompt, await engine.sample(prompt, sampling=Sampling(max_tokens=8), seed=0))
        assert not packs_weights()
    finally:
        packs_weights.cache_clear()


def test_where_torch_hides_its_hooks_nothing_is_exchanged() -> None:
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        linear = torch.nn.Linear(4, 4)
        assert packed(linear, EVERY_FORM) is not None
        delattr(linear, name)
        assert packed(linear, EVERY_FORM) is None


@pytest.mark.parametrize("settings", [{"hidden_act": "gelu"}, {"hidden_act": "relu"}])
async def test_an_mlp_of_another_activation_is_its_own(settings: dict[str, Any]) -> None:
    model = tiny_model(**settings)
    prompt = random_tokens(20, 0)
    with EmbeddedEngine(model) as engine:
        assert_exact(model, prompt, await engine.sample(prompt, sampling=Sampling(max_tokens=8), seed=0))


@pytest.mark.parametrize(
    ("family", "settings"),
    [("Qwen2", {}), ("Llama", {"attention_bias": True, "mlp_bias": True}), ("Qwen3", {"head_dim": 8})],
)
async def test_every_weight_and_bias_of_a_packed_model_is_published(family: str, settings: dict[str, Any]) -> None:
    old, new = (tiny_model(family, seed=seed, **settings) for seed in (0, 1))
    with torch.no_grad():
        for parameter in new.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape))
    prompts = [random_tokens(30, group) for group in (0, 0, 1)]
    with EmbeddedEngine(old) as engine:
        for model, version in ((old, 0), (new, 1), (old, 2)):
            engine.publish(model.state_dict(), version=version)
            replies = await asyncio.gather(
                *(engine.sample(prompt, sampling=Sampling(max_tokens=8), seed=n) for n, prompt in enumerate(prompts))
            )
            for prompt, reply in zip(prompts, replies, strict=True):
                assert reply.version == version
                assert_exact(model, prompt, reply)


async def published_is_exact(old: Any, new: Any) -> None:
    prompt = random_tokens(30, 0)
    with EmbeddedEngine(old) as engine:
        engine.publish(new.state_dict(), version=1)
        assert_exact(new, prompt, await engine.sample(prompt, sampling=Sampling(max_tokens=8), seed=0))


@pytest.mark.parametrize(
    ("family", "settings", "zeroed"),
    [
        ("Helium", {"head_dim": 8}, "o_proj"),
        ("Ernie4_5", {}, "q_proj"),
        ("Llama", {"hidden_act": "gelu"}, "down_proj"),
        ("SmolLM3", {"no_rope_layers": [1, 0]}, "o_proj"),
    ],
)
async def test_weights_that_are_zero_hide_nothing_that_others_would_show(
    family: str, settings: dict[str, Any], zeroed: str
) -> None:
    old, new = (tiny_model(family, seed=seed, bos_token_id=1, **settings) for seed in (0, 1))
    with torch.no_grad():
        for name, parameter in old.named_parameters():
            if zeroed in name:
                parameter.zero_()
    await published_is_exact(old, new)


async def test_what_is_clamped_only_where_it_is_large_is_its_own() -> None:
    old, new = (tiny_model("Olmo", seed=seed, bos_token_id=1, clip_qkv=8.0) for seed in (0, 1))
    with torch.no_grad():
        for name, parameter in new.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                parameter.mul_(30)
    await published_is_exact(old, new)


class Learnt(nn.Module):
    """Swish whose steepness is a weight."""

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(beta))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.beta * x)


async def test_a_part_with_weights_or_buffers_of_another_kind_is_its_own() -> None:
    models = [tiny_model(seed=seed) for seed in (0, 1)]
    for model, beta in zip(models, (1.0, 2.0), strict=True):
        for layer in model.model.layers:
            layer.mlp.act_fn = Learnt(beta)
            layer.input_layernorm.register_buffer("seen", torch.tensor(beta))
    await published_is_exact(*models)


async def test_a_layer_that_asks_its_parts_for_more_than_their_results_gets_linear_layers_alone() -> None:
    model = tiny_model()

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        assert self.self_attn.is_causal
        assert self.mlp.hidden_size
        return type(self).forward(self, *args, **named)

    for layer in model.model.layers:
        layer.forward = types.MethodType(forward, layer)
    kinds = Counter(type(module).__name__ for module in Decoder(model).weights.model.modules())
    assert kinds["PackedLinear"] == 7 * LAYERS + 1
    assert kinds["PackedAttention"] == kinds["PackedMlp"] == 0
    await published_is_exact(model, model)


@pytest.mark.parametrize("biases", [(True, True), (True, False), (False, False)])
def test_linear_layers_of_one_input_are_one_product(biases: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(8, out, bias=bias) for out, bias in zip((6, 4), biases, strict=True)]
    with torch.no_grad():
        x, other = torch.randn(2, 1, 3, 8), torch.randn(1, 3, 10)
        joined = PackedLinear(*linears)
        for _ in range(2):
            expected = torch.cat([linear(x[0]) for linear in linears], dim=-1)
            torch.testing.assert_close(joined(x[0]), expected)
            torch.testing.assert_close(joined(x[0], "swish"), nn.functional.silu(expected))
            torch.testing.assert_close(joined.times(x[0], other), expected * other)
            joined.load([linear.weight.mul_(2) for linear in linears])
            for linear, bias in zip(linears, joined.biases, strict=True):
                assert (bias is None) == (linear.bias is None)
                if bias is not None:
                    bias.copy_(linear.bias.add_(1))
