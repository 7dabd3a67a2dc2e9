"""What is trained is what was sampled: random conversations, tools, templates and forks on the embedded engine."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_bridge.records import Tool
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.models import LoadedModel, load_model
from sdk.policies.protocol import Completion, Sampling
from sdk.policies.rendering import make_renderer
from sdk.records import Message, Rollout, Task, TokenRow, Verdict
from sdk.rollouts.forkable import ForkableAgent
from sdk.rollouts.tree import branch_id
from sdk.trainer.branch_batch import build_branch_batch

CHATML = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
REWRITES = CHATML.replace("{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else 'said before' }}")

texts = st.sampled_from(["", "shipped", "<|im_end|>", '<tool_call>{"name": "x"}</tool_call>', "שלום 🔬", "a b " * 20])
heard = st.lists(texts, min_size=1, max_size=2)
given_tools = st.lists(
    st.builds(lambda name, text: Tool(name=name, description=text), st.sampled_from(["find", "refund"]), texts),
    max_size=2,
    unique_by=lambda tool: tool.name,
)


class Recorded:
    """The embedded engine, and everything that it was sent and sampled."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self.context_tokens = engine.context_tokens
        self.sampled: list[tuple[list[int], Completion]] = []

    async def sample(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        found = await self._engine.sample(prompt_ids, sampling=sampling, seed=seed, stop_token_ids=stop_token_ids)
        self.sampled.append((list(prompt_ids), found))
        return found


@pytest.fixture(scope="module")
def loaded(tiny_model_dir: Path) -> LoadedModel:
    return load_model(str(tiny_model_dir))


@pytest.fixture(scope="module")
def engine(loaded: LoadedModel) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(loaded.model) as engine:
        yield engine


async def converse(
    policy: Recorded, renderer: Any, tools: list[Tool], turns: list[list[str]], fork_at: int
) -> list[Rollout]:
    """A conversation of `turns`, and another that leaves it before turn `fork_at`."""

    async def play(conversation: Any, left: Sequence[list[str]]) -> Any:
        for texts_heard in left:
            await conversation.reply([Message(role="user", content=text) for text in texts_heard])
        return conversation

    first = ForkableAgent(policy, renderer).start(tools, sampling=Sampling(max_tokens=5), seed=1)
    await play(first, turns[:fork_at])
    fork = first.fork(seed=2)
    await play(first, turns[fork_at:])
    await play(fork, turns[fork_at:])
    made = zip(("r", branch_id("r", fork_at, 0)), (first, fork), (1.0, 0.0), strict=True)
    task = Task(prompt="p")
    return [Rollout(id=i, task=task, rows=c.rows(), turns=len(turns), verdict=Verdict(score=s)) for i, c, s in made]


def logprobs_of(model: Any, row: TokenRow) -> list[float]:
    """What the trained model gives each token of the completion."""
    ids = torch.tensor([row.prompt_ids + row.completion_ids])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1]
    picked: list[float] = logits.log_softmax(-1)[range(len(row.completion_ids)), row.completion_ids].tolist()
    return picked


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    template=st.sampled_from([None, CHATML, REWRITES]),
    tools=given_tools,
    turns=st.lists(heard, min_size=2, max_size=4),
    fork_at=st.integers(1, 3),
)
def test_every_trained_token_is_one_that_was_sampled_with_the_same_past_and_probability(
    loaded: LoadedModel, engine: EmbeddedEngine, template: Any, tools: Any, turns: Any, fork_at: int
) -> None:
    tokenizer = copy.copy(loaded.tokenizer)
    tokenizer.chat_template = template or loaded.tokenizer.chat_template
    policy = Recorded(engine)
    fork_at = min(fork_at, len(turns) - 1)
    rollouts = anyio.run(converse, policy, make_renderer(tokenizer), tools, turns, fork_at)
    # Every token that was sampled: what stood before it, and its log-probability.
    sampled = [
        (tuple(prompt + done.token_ids[:place]), token, logprob)
        for prompt, done in policy.sampled
        for place, (token, logprob) in enumerate(zip(done.token_ids, done.logprobs, strict=True))
    ]
    trained = []
    (rows,) = build_branch_batch([rollouts], scale="none").groups
    for row in (one.tokens for one in rows):
        again = logprobs_of(loaded.model, row)
        for place, token in enumerate(row.completion_ids):
            if row.sampled[place]:
                past = tuple(row.prompt_ids + row.completion_ids[:place])
                trained.append((past, token, row.logprobs[place]))
                assert again[place] == pytest.approx(row.logprobs[place], abs=1e-4)
    # The turns before the fork are one group of one, which has no signal; all others are trained, each token once.
    shared = sum(len(done.token_ids) for _, done in policy.sampled[:fork_at])
    assert sorted(trained) == sorted(sampled[shared:])
