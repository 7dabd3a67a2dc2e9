"""Requests of one prompt share a row as long as they sample the same tokens: nothing is decoded twice, and each gets
what its seed draws from the model."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import pytest
from engine_models import EOS, random_tokens, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_forward import assert_drawn, assert_exact
from test_engine_exactness import MODELS

from sdk.errors import PolicyFailure
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.embedded.decoder import Decoder
from sdk.policies.embedded.inference_engine import Batch
from sdk.policies.embedded.sampling_request import Request, generator
from sdk.policies.embedded.scheduler import Memory, Rows
from sdk.policies.embedded.speculative_decoding import Guesses
from sdk.policies.protocol import Completion, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")
MODEL = tiny_model()
DECODER = Decoder(MODEL)
COOL = 0.3
"""At this temperature the tiny model says much the same again and again, as a trained one does."""


def distinct_prefixes(prompt: list[int], completions: list[Completion]) -> int:
    """How many token sequences have to be decoded, the last token of each completion left out."""
    return len({tuple(c.token_ids[:n]) for c in completions for n in range(1, len(c.token_ids))})


@pytest.mark.parametrize("temperature", [0.0, COOL, 1.0])
async def test_a_group_decodes_each_distinct_beginning_once(temperature: float) -> None:
    prompt = random_tokens(40, 0)
    sampling = Sampling(max_tokens=24, temperature=temperature)
    DECODER.reset()
    batch = Batch(DECODER, max_rows=8, version=0)
    requests = [request_of(prompt, sampling, seed) for seed in range(8)]
    batch.waiting += requests
    while batch.busy:
        batch.step()
    completions = [await request.future for request in requests]
    assert batch.rows.computed_tokens == len(prompt)
    assert batch.rows.decoded_tokens == distinct_prefixes(prompt, completions)
    sampled = sum(len(c.token_ids) for c in completions)
    assert batch.rows.decoded_tokens < sampled / (7 if temperature == 0 else 1)
    for completion in completions:
        assert_exact(MODEL, prompt, completion, temperature or 1.0)


async def test_the_next_turn_is_computed_once_for_all_that_heard_the_same() -> None:
    prompt, heard = random_tokens(40, 0), random_tokens(11, 1)
    with EmbeddedEngine(MODEL) as engine:
        sampling = Sampling(max_tokens=6, temperature=0)
        first = await asyncio.gather(*(engine.sample(prompt, sampling=sampling, seed=i) for i in range(6)))
        before = engine.computed_prompt_tokens
        longer = prompt + first[0].token_ids + heard
        second = await asyncio.gather(*(engine.sample(longer, sampling=sampling, seed=i) for i in range(6)))
        # The last sampled token was never an input. Those that come after the first are never computed again.
        assert engine.computed_prompt_tokens - before == 1 + len(heard)
    assert engine.decoded_tokens == sum(len(c[0].token_ids) - 1 for c in (first, second))
    assert len({tuple(c.token_ids) for c in second}) == 1
    assert_exact(MODEL, longer, second[0])


async def test_requests_of_one_row_keep_their_own_temperature_nucleus_limit_and_end() -> None:
    prompt = random_tokens(30, 3)
    alone = [
        (Sampling(max_tokens=20, temperature=0.0), ()),
        (Sampling(max_tokens=3, temperature=0.0), ()),
        (Sampling(max_tokens=20, temperature=COOL), ()),
        (Sampling(max_tokens=20, temperature=COOL, top_p=0.5), ()),
        (Sampling(max_tokens=20, temperature=1.5), ()),
    ]
    with EmbeddedEngine(MODEL) as engine:
        greedy = await engine.sample(prompt, sampling=alone[0][0], seed=0)
        alone.append((Sampling(max_tokens=20, temperature=0.0), (greedy.token_ids[4],)))

        async def sample(number: int) -> Completion:
            sampling, stops = alone[number]
            return await engine.sample(prompt, sampling=sampling, seed=number, stop_token_ids=stops)

        apart = [await sample(number) for number in range(len(alone))]
        together = await asyncio.gather(*(sample(number) for number in range(len(alone))))
    assert [(c.token_ids, c.stop_reason) for c in together] == [(c.token_ids, c.stop_reason) for c in apart]
    for one, other in zip(together, apart, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert (together[1].token_ids, together[1].stop_reason) == (greedy.token_ids[:3], "length")
    assert together[5].stop_reason == "stop"


async def test_each_request_of_a_row_hears_its_tokens_as_they_come() -> None:
    prompt, heard = random_tokens(30, 3), [[] for _ in range(5)]  # type: list[int], list[list[int]]
    with EmbeddedEngine(MODEL) as engine:
        sampling = Sampling(max_tokens=12, temperature=COOL)
        completions = await asyncio.gather(
            *(engine.sample(prompt, sampling=sampling, seed=seed, on_token=heard[seed].append) for seed in range(5))
        )
    assert heard == [c.token_ids for c in completions]


async def test_a_failure_while_a_row_branches_reaches_every_request_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from sdk.policies.embedded.scheduler import Rows

    def no_room(*_: Any) -> None:
        raise MemoryError("injected fault")

    monkeypatch.setattr(Rows, "branch", no_room)
    with EmbeddedEngine(MODEL) as engine:
        sampling = Sampling(max_tokens=30, temperature=2.0)
        requests = [engine.sample(random_tokens(9, 0), sampling=sampling, seed=seed) for seed in range(6)]
        results = await asyncio.gather(*requests, return_exceptions=True)
    assert all(isinstance(r, PolicyFailure) and "injected fault" in str(r) for r in results)


# Random schedules

PROMPTS = [random_tokens(40, 0), random_tokens(40, 0)[:33] + random_tokens(5, 1), random_tokens(3, 2)]
HEARD = [random_tokens(4, 3), random_tokens(4, 3)[:2] + random_tokens(3, 4)]


@dataclass(frozen=True)
class Visit:
    """A conversation of one or two turns: when it begins, after how many steps it hears of a tool, which sampling."""

    arrives: int
    prompt: int
    pause: int
    heard: int | None
    seed: int
    temperature: float
    max_tokens: int
    cancelled_after: int | None
    reads_along: bool


VISITS = st.builds(
    Visit,
    arrives=st.integers(0, 14),
    prompt=st.sampled_from([0, 0, 0, 1, 2]),
    pause=st.integers(0, 4),
    heard=st.sampled_from([None, 0, 0, 1]),
    seed=st.integers(0, 3),
    temperature=st.sampled_from([0.0, COOL, COOL, 1.0]),
    max_tokens=st.integers(1, 14),
    cancelled_after=st.sampled_from([None, None, None, None, 0, 3]),
    reads_along=st.booleans(),
)


def request_of(prompt: list[int], sampling: Sampling, seed: int, *, reads_along: bool = False) -> Request:
    loop = asyncio.get_running_loop()
    return Request(
        prompt=prompt,
        sampling=sampling,
        limit=sampling.max_tokens,
        stop_ids=frozenset({EOS}),
        random=generator(seed),
        loop=loop,
        future=loop.create_future(),
        on_token=(lambda token: None) if reads_along else None,
    )


async def play(
    visits: list[Visit], max_rows: int, most_tokens: float, piece: int, *, dense: bool
) -> list[list[tuple[list[int], Completion]]]:
    """The turns of each conversation, with the engine's steps made one by one: what comes when is the schedule's."""
    DECODER.reset()
    DECODER.cache.dense = dense
    batch = Batch(DECODER, max_rows=max_rows, version=0, memory=Memory(most_tokens, dense=dense), piece=piece)
    turns: list[list[tuple[list[int], Completion]]] = [[] for _ in visits]
    due = {(visit.arrives, number): list(PROMPTS[visit.prompt]) for number, visit in enumerate(visits)}
    flying: dict[int, tuple[Request, int]] = {}
    clock = longest = 0
    while due or flying:
        for (when, number), prompt in sorted(due.items()):
            if when <= clock:
                visit = visits[number]
                sampling = Sampling(max_tokens=visit.max_tokens, temperature=visit.temperature)
                request = request_of(
                    prompt, sampling, visit.seed + 10 * len(turns[number]), reads_along=visit.reads_along
                )
                flying[number] = request, clock
                batch.waiting.append(request)
                del due[when, number]
        if batch.busy:
            batch.step()
            if dense:  # what was made for one that is larger than the memory stays until there is need of more
                longest = max(longest, longest_alone(batch.rows))
                assert room(batch.rows) / (9 / 8) ** 2 <= max(most_tokens, longest)
            else:
                assert stored_tokens(batch.rows) <= max(most_tokens, longest_alone(batch.rows))
        clock += 1
        await asyncio.sleep(0)  # the answers are delivered through the loop
        for number, (request, began) in list(flying.items()):
            visit = visits[number]
            if request.future.done():
                del flying[number]
                completion = request.future.result()
                turns[number].append((request.prompt, completion))
                if visit.heard is not None and len(turns[number]) == 1:
                    prompt = request.prompt + completion.token_ids + HEARD[visit.heard]
                    due[clock + visit.pause, number] = prompt
            elif visit.cancelled_after is not None and clock - began > visit.cancelled_after:
                del flying[number]
                request.cancelled = True
    assert batch.rows.live <= max_rows
    return turns


def stored_tokens(rows: Rows) -> int:
    """What rows and prefixes take, with what was given to rows and has not been given back."""
    touched = DECODER.cache.touched
    own = [max(row.own, length) for row, length in zip(rows.rows, touched, strict=True)]
    return sum(own) + sum(len(prefix.tokens) for prefix in rows.prefixes)


def room(rows: Rows) -> int:
    """What the cache and the prefixes take where each row takes as much as the longest."""
    shape = DECODER.cache.data.shape
    return shape[2] * shape[4] + sum(len(prefix.tokens) for prefix in rows.prefixes)


def longest_alone(rows: Rows) -> int:
    """What one conversation takes that is computed although it is larger than the memory, with the prefixes."""
    own = max((row.own + len(row.missing) for row in rows.rows), default=0)
    return (own + sum(len(prefix.tokens) for prefix in rows.prefixes)) if rows.live <= 1 else 0


@settings(max_examples=30, deadline=None)
@given(
    visits=st.lists(VISITS, min_size=1, max_size=9),
    max_rows=st.sampled_from([2, 4, 16]),
    most_tokens=st.sampled_from([math.inf, math.inf, 1, 100, 200]),
    piece=st.sampled_from([3, 8, 256]),
    dense=st.booleans(),
)
def test_whatever_comes_when_each_request_gets_what_its_seed_draws_from_the_model(
    visits: list[Visit], max_rows: int, most_tokens: float, piece: int, dense: bool
) -> None:
    played = asyncio.run(play(visits, max_rows, most_tokens, piece, dense=dense))
    for visit, turns in zip(visits, played, strict=True):
        for number, (prompt, completion) in enumerate(turns):
            assert_drawn(MODEL, prompt, completion, visit.temperature, visit.seed + 10 * number)
            assert len(completion.token_ids) == visit.max_tokens or completion.token_ids[-1] == EOS
        if visit.cancelled_after is None:
            assert len(turns) == (1 if visit.heard is None else 2)


# Guesses


async def run(batch: Batch, *requests: Request) -> tuple[list[Completion], int]:
    """The answers, and in how many steps they came."""
    batch.waiting += requests
    steps = 0
    while batch.busy:
        batch.step()
        steps += 1
    return [await request.future for request in requests], steps


async def test_what_was_said_before_comes_in_a_fifth_of_the_steps() -> None:
    model, prompt = tiny_model(eos_token_id=None), random_tokens(40, 0)
    batch = Batch(Decoder(model), max_rows=4, version=0)
    sampling = Sampling(max_tokens=25, temperature=0)
    [first], slow = await run(batch, request_of(prompt, sampling, 0))
    [second], fast = await run(batch, request_of(prompt, sampling, 1))
    assert second.token_ids == first.token_ids
    assert_exact(model, prompt, second)
    # The first token is the prompt's; then come steps of one token and four guesses.
    assert fast == 1 + 5 < slow
    assert batch.rows.decoded_tokens == 2 * 24


@pytest.mark.parametrize("name", MODELS)
async def test_guesses_change_no_result_be_they_right_or_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, options = MODELS[name]
    model = tiny_model(family, **options)
    prompts = [random_tokens(50, 0) + random_tokens(9, 1 + group) for group in range(3) for _ in range(3)]

    def requests() -> list[Request]:
        sampling = Sampling(max_tokens=30, temperature=COOL)
        return [request_of(prompt, sampling, seed) for seed, prompt in enumerate(prompts)]

    honest, _ = await run(Batch(Decoder(model), max_rows=16, version=0), *requests())
    known = [[*prompt, *completion.token_ids] for prompt, completion in zip(prompts, honest, strict=True)]

    def spoilt(_: Guesses, tokens: list[int], *, most: int, stop_ids: frozenset[int]) -> list[int]:
        """What one of them said after these tokens, spoilt from some place on, which changes from call to call."""
        calls.append(1)
        ends = [(one, n) for one in known for n in range(60, len(one)) if one[n - len(tokens) : n] == list(tokens)]
        said = [token for one, n in ends[:1] for token in one[n : n + most]]
        right = said[: len(calls) % 7]
        guess = [*right, *random_tokens(3, len(calls))][:most]
        return guess[: next((place for place, token in enumerate(guess) if token in stop_ids), len(guess))]

    calls: list[int] = []
    monkeypatch.setattr(Guesses, "guess", spoilt)
    monkeypatch.setattr(Guesses, "shorten", lambda _, guesses: guesses)
    guessed, steps = await run(Batch(Decoder(model), max_rows=16, version=0), *requests())
    assert calls
    assert steps < 30
    assert [completion.token_ids for completion in guessed] == [completion.token_ids for completion in honest]
    for prompt, completion in zip(prompts, guessed, strict=True):
        assert_exact(model, prompt, completion, COOL)


def test_a_guess_is_what_came_last_after_three_tokens_and_no_longer_than_may_be() -> None:
    guesses = Guesses()
    for text in ([1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 9, 3, 4, 5, 60]):
        for place in range(3, len(text)):
            guesses.learn(text[:place], text[place])
    assert guesses.guess([1, 2, 3], most=9, stop_ids=()) == [4, 5, 60]
    assert guesses.guess([0, 4, 5, 6], most=9, stop_ids=()) == [7, 8, 9]
    assert guesses.guess([0, 4, 5, 6], most=2, stop_ids=()) == [7, 8]
    assert guesses.guess([0, 4, 5, 6], most=9, stop_ids={8}) == [7]
    assert guesses.guess([0, 4, 5, 6], most=0, stop_ids=()) == []
    assert guesses.guess([7, 7, 7], most=9, stop_ids=()) == []


def test_guesses_are_as_long_as_they_save_steps() -> None:
    guesses = Guesses()
    assert guesses.shorten([]) == []
    assert guesses.shorten([[1, 2, 3, 4]]) == [[1, 2, 3, 4]]
    # One row of forty that would be padded for: not worth it.
    assert guesses.shorten([[1, 2, 3, 4], *[[]] * 39]) == [[]] * 40
    assert guesses.shorten([[1, 2], [3, 4], [5]] * 10) == [[1, 2], [3, 4], [5]] * 10
    guesses.note(made=64, right=0)
    assert guesses.shorten([[1, 2], [3, 4], [5]] * 10) == [[]] * 30
    # It tries again after a while.
    assert any(guesses.shorten([[1, 2], [3, 4], [5]] * 10) == [[1, 2], [3, 4], [5]] * 10 for _ in range(200))


def test_what_was_learnt_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdk.policies.embedded.speculative_decoding._MOST_KNOWN", 2)
    guesses = Guesses()
    for context in ([1, 1, 1], [2, 2, 2], [1, 1, 1], [3, 3, 3]):
        guesses.learn(context, 9)
    known = [guesses.guess([n] * 3, most=1, stop_ids=()) for n in (1, 2, 3)]
    assert known == [[9], [], [9]]


async def drain(batch: Batch, requests: list[Request]) -> list[Completion]:
    while batch.busy:
        batch.step()
        await asyncio.sleep(0)
    return [request.future.result() for request in requests]


async def test_a_long_prompt_is_computed_in_pieces_and_others_go_on_with_a_token_for_each() -> None:
    sampling = Sampling(max_tokens=30, temperature=0)
    short, long = random_tokens(5, 7), random_tokens(90, 8)
    DECODER.reset()
    batch = Batch(DECODER, max_rows=4, version=0, piece=16)
    first = request_of(short, sampling, 0, reads_along=True)
    batch.waiting.append(first)
    batch.step()
    second = request_of(long, sampling, 1)
    batch.waiting.append(second)
    steps = 0
    while not second.token_ids:
        before = len(first.token_ids), batch.rows.computed_tokens
        batch.step()
        steps += 1
        assert len(first.token_ids) > before[0]
        assert batch.rows.computed_tokens - before[1] <= 16
    assert steps == math.ceil(90 / 16)
    for request, completion in zip((first, second), await drain(batch, [first, second]), strict=True):
        assert_exact(MODEL, request.prompt, completion)


async def test_a_short_prompt_does_not_wait_for_a_long_one_and_the_long_one_not_for_many_short_ones() -> None:
    sampling = Sampling(max_tokens=2, temperature=0)
    batch = Batch(Decoder(MODEL), max_rows=8, version=0, piece=16)
    long = request_of(random_tokens(90, 8), sampling, 0, reads_along=True)
    batch.waiting.append(long)
    batch.step()
    requests = [long]
    for step in range(12):
        short = request_of(random_tokens(8, 20 + step), sampling, step, reads_along=True)
        requests.append(short)
        batch.waiting.append(short)
        batch.step()
        assert short.token_ids
    assert long.token_ids
    for request, completion in zip(requests, await drain(batch, requests), strict=True):
        assert_exact(MODEL, request.prompt, completion)


async def test_a_long_beginning_that_several_share_is_computed_once_in_pieces() -> None:
    shared, sampling = random_tokens(70, 9), Sampling(max_tokens=4, temperature=0)
    batch = Batch(Decoder(MODEL), max_rows=8, version=0, piece=16)
    requests = [request_of(shared + random_tokens(3, n), sampling, n, reads_along=True) for n in range(4)]
    batch.waiting += requests
    completions = await drain(batch, requests)
    assert batch.rows.computed_tokens == len(shared) + 4 * 3
    for request, completion in zip(requests, completions, strict=True):
        assert_exact(MODEL, request.prompt, completion)


async def test_one_that_is_given_up_in_the_midst_of_its_prompt_frees_its_row() -> None:
    sampling = Sampling(max_tokens=4, temperature=0)
    batch = Batch(Decoder(MODEL), max_rows=1, version=0, piece=16)
    given_up, next_one = (request_of(random_tokens(60, n), sampling, n, reads_along=True) for n in range(2))
    batch.waiting += [given_up, next_one]
    batch.step()
    given_up.cancelled = True
    [completion] = await drain(batch, [next_one])
    assert_exact(MODEL, next_one.prompt, completion)


async def test_whoever_waits_for_whole_answers_has_its_prompt_computed_at_once() -> None:
    batch = Batch(Decoder(MODEL), max_rows=2, version=0, piece=16)
    request = request_of(random_tokens(90, 8), Sampling(max_tokens=2, temperature=0), 0)
    batch.waiting.append(request)
    batch.step()
    assert request.token_ids
