"""Choosing tokens: the distribution, the nucleus, the seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdk.policies.embedded.sampling_request import choose, generator
from sdk.policies.protocol import AdjustedSampling, Sampling

# Probabilities 1/2, 1/4, 1/8, 1/8, in no order.
LOGITS = torch.tensor([math.log(1 / 8), math.log(1 / 2), math.log(1 / 8), math.log(1 / 4)])


@dataclass
class Drawing:
    """A request, as far as it draws."""

    sampling: Sampling
    random: np.random.Generator
    derivation: None = None
    token_ids: list[int] = field(default_factory=list)


def choose_for(
    logits: torch.Tensor, samplings: Sequence[Sampling], seeds: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Each from a row of its own."""
    drawing = [Drawing(one, generator(seed)) for one, seed in zip(samplings, seeds, strict=True)]
    return choose(logits, drawing, range(len(drawing)))


def draw(count: int, **options: float) -> tuple[list[int], list[float]]:
    sampling = Sampling(**options)  # type: ignore[arg-type]
    return choose_for(LOGITS.expand(count, -1), [sampling] * count, range(count))


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    tokens, logprobs = draw(8000)
    share = torch.bincount(torch.tensor(tokens), minlength=4) / 8000
    # Three standard errors of a share of 1/2 over 8000 draws are 0.017.
    assert share.tolist() == pytest.approx([1 / 8, 1 / 2, 1 / 8, 1 / 4], abs=0.017)
    assert logprobs == pytest.approx(LOGITS[tokens].tolist(), abs=1e-6)


def test_top_p_keeps_the_smallest_set_that_holds_it_and_renormalizes() -> None:
    tokens, logprobs = draw(400, top_p=0.7)
    assert set(tokens) == {1, 3}
    expected = {1: math.log(2 / 3), 3: math.log(1 / 3)}
    assert logprobs == pytest.approx([expected[t] for t in tokens], abs=1e-6)


def test_top_p_is_of_the_distribution_after_the_temperature() -> None:
    # At temperature 1/2 the probabilities are squared: 16/22, 4/22, 1/22, 1/22.
    tokens, logprobs = draw(200, top_p=0.72, temperature=0.5)
    assert set(tokens) == {1}
    assert logprobs == pytest.approx([0.0] * 200, abs=1e-6)


def test_temperature_zero_takes_the_most_likely_token_with_its_own_logprob() -> None:
    tokens, logprobs = draw(3, temperature=0, top_p=0.1)
    assert tokens == [1, 1, 1]
    assert logprobs == pytest.approx([math.log(1 / 2)] * 3, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    seeds=st.lists(st.integers(-(2**70), 2**70), min_size=2, max_size=6),
    temperatures=st.lists(st.sampled_from([0.0, 0.3, 1.0, 1.7]), min_size=6, max_size=6),
    top_ps=st.lists(st.sampled_from([0.05, 0.6, 1.0]), min_size=6, max_size=6),
)
def test_a_row_does_not_depend_on_the_rows_beside_it(
    seeds: list[int], temperatures: list[float], top_ps: list[float]
) -> None:
    count = len(seeds)
    logits = torch.randn(count, 50, generator=torch.Generator().manual_seed(0)) * 3
    samplings = [Sampling(temperature=t, top_p=p) for t, p in zip(temperatures, top_ps, strict=True)][:count]
    tokens, logprobs = choose_for(logits, samplings, seeds)
    for i in range(count):
        token, logprob = choose_for(logits[i : i + 1], [samplings[i]], [seeds[i]])
        assert token == [tokens[i]]
        assert logprob == pytest.approx([logprobs[i]], abs=1e-6)


@pytest.mark.parametrize("vocabulary", [5, 256, 257, 1000])
def test_tokens_of_every_block_are_drawn_as_often_as_they_are_likely(vocabulary: int) -> None:
    logits = torch.full((vocabulary,), -math.inf)
    possible = sorted({0, vocabulary // 2, vocabulary - 1})
    logits[possible] = torch.tensor([math.log(one) for one in (1.0, 2.0, 5.0)])
    rows = 4000
    tokens, logprobs = choose_for(logits.expand(rows, -1), [Sampling()] * rows, range(rows))
    shares = [tokens.count(token) / rows for token in possible]
    assert shares == pytest.approx([1 / 8, 1 / 4, 5 / 8], abs=0.024)  # three standard errors of the last
    wanted = dict(zip(possible, (1 / 8, 1 / 4, 5 / 8), strict=True))
    assert logprobs == pytest.approx([math.log(wanted[token]) for token in tokens], abs=1e-6)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_logits_that_are_not_finite_spoil_their_own_row_only(spoilt: float) -> None:
    logits = torch.stack([torch.full((4,), spoilt), LOGITS])
    tokens, logprobs = choose_for(logits, [Sampling()] * 2, range(2))
    assert math.isnan(logprobs[0])
    assert 0 <= tokens[0] < 4
    assert tokens[1:] == choose_for(LOGITS[None], [Sampling()], [1])[0]


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(st.integers(0, 19), max_size=30),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    bias=st.dictionaries(st.integers(0, 19), st.floats(-100, 100), max_size=5),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_penalties_and_bias_change_the_distribution_by_the_formula_of_openais_reference(
    drawn: list[int], presence: float, frequency: float, bias: dict[int, float], temperature: float
) -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(1)) * 3
    sampling = AdjustedSampling(
        temperature=temperature,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=tuple(bias.items()),
    )
    before = logits.clone()
    plain, adjusted = Drawing(Sampling(), generator(5)), Drawing(sampling, generator(5), token_ids=drawn)
    # Beside a request of the same row that asks for nothing.
    tokens, logprobs = choose(logits, [plain, adjusted], [0, 0])
    expected = [
        logit + bias.get(v, 0.0) - frequency * drawn.count(v) - presence * (v in drawn)
        for v, logit in enumerate(before[0].tolist())
    ]
    distribution = (torch.tensor(expected) / (temperature or 1.0)).log_softmax(-1)
    assert logprobs[1] == pytest.approx(float(distribution[tokens[1]]), abs=1e-4)
    assert logprobs[0] == pytest.approx(float(before[0].log_softmax(-1)[tokens[0]]), abs=1e-5)
    assert torch.equal(logits, before)
