"""What is trained is what was sampled, on any engine: random conversations with random tools, templates, stops, forks
and publications of weights are played, made into a batch, and every token of it is computed again.

`Case` is one of them, `cases()` draws it, `assert_what_is_trained_was_sampled` plays it.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from plain_forward import TOLERANCE, plain_logprobs

from mcp_bridge.records import Tool
from sdk import TrainConfig
from sdk.policies.models import LoadedModel
from sdk.policies.protocol import Completion, Sampling
from sdk.policies.rendering import make_renderer
from sdk.policies.token_agent import TokenAgent
from sdk.records import Message, Rollout, Task, TokenRow, Verdict
from sdk.rollouts.branching import branch_id
from sdk.trainer.batch import build_batch

CHATML = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
REWRITES = CHATML.replace("{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else 'said before' }}")
OTHER_END = CHATML.replace("<|im_end|>", "<|endoftext|>")
"""Its turns end with another token than the one with which the model's config says that texts end."""

FIRST_ORDINARY = 100
"""Token ids below are special, or single characters."""


@dataclass(frozen=True)
class Case:
    template: str | None
    """None: the model's own."""
    tools: list[Tool]
    turns: list[list[Message]]
    """What the policy hears before each of its turns."""
    fork_at: int
    """The turn before which a second conversation leaves the first."""
    publish_at: int | None
    """The turn of the first conversation before which new weights come; the second is in some turn of its own then."""
    sampling: Sampling
    stop_every: int | None
    """Every so-manieth ordinary token ends a turn, too."""


_texts = st.sampled_from(["", "shipped", "<|im_end|>", '<tool_call>{"name": "x"}</tool_call>', "שלום 🔬", "a b " * 20])
_messages = st.builds(lambda role, text: Message(role=role, content=text), st.sampled_from(["user", "tool"]), _texts)
_tools = st.builds(lambda name, text: Tool(name=name, description=text), st.sampled_from(["find", "refund"]), _texts)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    heard = st.lists(_messages, min_size=1, max_size=2)
    turns = [[Message(role="user", content=draw(_texts))], *draw(st.lists(heard, min_size=1, max_size=3))]
    sampling = st.builds(
        lambda most, temperature: Sampling(max_tokens=most, temperature=temperature),
        st.sampled_from([1, 5, 40]),
        st.sampled_from([1.0, 0.7]),
    )
    return Case(
        template=draw(st.sampled_from([None, CHATML, REWRITES, OTHER_END])),
        tools=draw(st.lists(_tools, max_size=2, unique_by=lambda tool: tool.name)),
        turns=turns,
        fork_at=draw(st.integers(1, len(turns) - 1)),
        publish_at=draw(st.none() | st.integers(1, len(turns) - 1)),
        sampling=draw(sampling),
        stop_every=draw(st.sampled_from([None, 50])),
    )


class Sampled(NamedTuple):
    """One token: all that stood before it, and what the engine said of it."""

    past: tuple[int, ...]
    token: int
    logprob: float
    version: int


class Recorded:
    """An engine, what it was asked and what it answered. `stop_every`: see `Case`."""

    def __init__(self, engine: Any, loaded: LoadedModel, stop_every: int | None) -> None:
        self._engine = engine
        self._eos = loaded.tokenizer.eos_token_id
        self._further_stops = range(FIRST_ORDINARY, len(loaded.tokenizer), stop_every) if stop_every else ()
        self.context_tokens: int = engine.context_tokens
        self.turns: list[list[Sampled]] = []

    async def sample(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        stops = [*stop_token_ids, *self._further_stops]
        done: Completion = await self._engine.sample(prompt_ids, sampling=sampling, seed=seed, stop_token_ids=stops)
        assert_stopped_where_it_must({*stops, self._eos}, sampling.max_tokens, done)
        versions = done.versions or [done.version] * len(done.token_ids)
        self.turns.append(
            [
                Sampled((*prompt_ids, *done.token_ids[:place]), *one)
                for place, one in enumerate(zip(done.token_ids, done.logprobs, versions, strict=True))
            ]
        )
        return done


def assert_stopped_where_it_must(stops: set[int], max_tokens: int, done: Completion) -> None:
    assert done.token_ids
    assert not stops.intersection(done.token_ids[:-1])
    assert done.stop_reason == ("stop" if done.token_ids[-1] in stops else "length")
    assert done.stop_reason == "stop" or len(done.token_ids) == max_tokens


async def converse(engine: Any, policy: Recorded, renderer: Any, case: Case, published: Any) -> list[Rollout]:
    """Both conversations; `published` is the model whose weights come as version 1."""

    async def play(conversation: Any, turns: range, *, publishes: bool) -> None:
        for turn in turns:
            if publishes and turn == case.publish_at:
                await asyncio.to_thread(engine.publish, published.state_dict(), version=1)
            await conversation.reply(case.turns[turn])

    first = TokenAgent(policy, renderer).start(case.tools, sampling=case.sampling, seed=1)
    before, after = range(case.fork_at), range(case.fork_at, len(case.turns))
    await play(first, before, publishes=True)
    fork = first.fork(seed=2)
    await asyncio.gather(play(first, after, publishes=True), play(fork, after, publishes=False))
    made = zip(("r", branch_id("r", case.fork_at, 0)), (first, fork), (1.0, 0.0), strict=True)
    task = Task(prompt="p")
    return [
        Rollout(id=i, task=task, rows=c.rows(), turns=len(case.turns), verdict=Verdict(score=s)) for i, c, s in made
    ]


def trained_tokens(row: TokenRow) -> list[Sampled]:
    """The tokens of a row that are trained."""
    return [
        Sampled((*row.prompt_ids, *row.completion_ids[:place]), token, row.logprobs[place], row.versions[place])
        for place, token in enumerate(row.completion_ids)
        if row.sampled[place]
    ]


async def assert_what_is_trained_was_sampled(
    engine: Any, case: Case, *, loaded: LoadedModel, other_weights: Any
) -> None:
    """Every token of the batch is one that `engine` sampled, after the same tokens, with the log-probability and the
    version that it said; and the weights of that version do give it that log-probability.

    The engine begins and ends with the weights of `loaded` as version 0; `other_weights` is a model that differs.
    """
    tokenizer = copy.copy(loaded.tokenizer)
    tokenizer.chat_template = case.template or loaded.tokenizer.chat_template
    policy = Recorded(engine, loaded, case.stop_every)
    try:
        rollouts = await converse(engine, policy, make_renderer(tokenizer), case, other_weights)
    finally:
        if case.publish_at is not None:
            await asyncio.to_thread(engine.publish, loaded.model.state_dict(), version=0)
    (rows,) = build_batch([rollouts], TrainConfig.of({"grpo.scale_rewards": "none"})).groups
    trained = [token for row in rows for token in trained_tokens(row.tokens)]
    # The turns before the fork are one group of one, which has no signal; all others are trained, each token once.
    assert sorted(trained) == sorted(token for turn in policy.turns[case.fork_at :] for token in turn)
    for row in (one.tokens for one in rows):
        by_version = [
            plain_logprobs(model, row.prompt_ids, row.completion_ids, case.sampling.temperature)
            for model in (loaded.model, other_weights)
        ]
        expected = [by_version[max(version, 0)][place] for place, version in enumerate(row.versions)]
        pairs = zip(row.sampled, row.logprobs, expected, strict=True)
        said, again = zip(*((mine, plain) for sampled, mine, plain in pairs if sampled), strict=True)
        assert said == pytest.approx(again, abs=TOLERANCE)
