"""Whole training runs on a tiny model in which sampling overlaps training, and in which rollouts branch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import sdk
from sandboxes.helpdesk import Helpdesk
from sdk.rollouts.branching import grow_trees, parent_and_turn
from sdk.traces import RunFolder

TINY: dict[str, Any] = {
    "probes.tasks": 0,  # the verifier of these tests is a coin
    "warm_start.max_steps": 0,
    "grpo.max_steps": 4,
    "grpo.prompts_per_step": 2,
    "grpo.num_generations": 3,
    "evaluation.heldout": 1,
    "evaluation.max_served": 0,
    "grpo.save_steps": 1,
    "limits": {"max_turns": 3, "max_turn_tokens": 6, "max_tokens": 18},
}
BRANCHES = {"branches": 2, "branch_points": 2}
TASKS = [{"prompt": f"What is {n}?", "later_turns": ["Sure?", "Really?"]} for n in range(5)]

NO_MODEL = str(Path(__file__).parent)
"""A folder without a model: what loads it fails."""


def even_letters(rollout: sdk.Rollout) -> bool:
    return sum(map(ord, rollout.messages[-1].content)) % 2 == 0


def train(model: Path, folder: Path, **config: Any) -> RunFolder:
    sdk.train(Helpdesk(), TASKS, even_letters, str(model), folder, {**TINY, **config})
    return RunFolder.open_to_read(folder)


def versions(rollout: sdk.Rollout) -> set[int]:
    return {v for row in rollout.rows for v in row.versions if v >= 0}


class StopAfter:
    """Progress that cancels everything after some steps of GRPO."""

    def __init__(self, scope: anyio.CancelScope, steps: int) -> None:
        self.scope, self.steps = scope, steps

    def say(self, text: str) -> None: ...

    def track(self, title: str, total: int, done: int = 0) -> Any:
        from contextlib import nullcontext

        outer = self

        class Step:
            def advance(self, amount: int = 1, note: str = "") -> None:
                if title == "GRPO":
                    outer.steps -= 1
                    if outer.steps == 0:
                        anyio.from_thread.run_sync(outer.scope.cancel)

        return nullcontext(Step())


@pytest.mark.timeout(300)
async def test_sampling_runs_ahead_within_the_bound_and_a_stopped_run_counts_no_rollout_twice(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    config = {**TINY, "off_policy.max_off_policy_steps": 2}
    call = partial(sdk.train_async, Helpdesk(), TASKS, even_letters, str(tiny_model_dir), tmp_path / "run", config)
    with anyio.CancelScope() as scope:
        await call(progress=StopAfter(scope, 2))
    assert scope.cancelled_caught
    await call()
    run = RunFolder.open_to_read(tmp_path / "run")
    rollouts = run.read_rollouts("grpo")
    assert len(rollouts) == len({r.id for r in rollouts}) == 4 * 2 * 3
    ages = {r.step - v for r in rollouts for v in versions(r)}
    assert ages <= {0, 1, 2}
    assert ages > {0}, "nothing was sampled ahead"
    assert [m["step"] for m in run.read_metrics() if m["stage"] == "grpo"] == [0, 1, 2, 3]
    figures = [m for m in run.read_metrics() if m["stage"] == "rollouts" and "step" in m]
    assert [m["step"] for m in figures] == [0, 1, 2, 3]
    assert max(m["staleness/max"] for m in figures) == max(ages)


def talking(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A tiny model that ends about every third token's turn, so that conversations have several turns."""
    import torch
    from transformers import LlamaForCausalLM

    from sdk.policies.models import load_model, save_model

    loaded = load_model(str(tiny_model_dir))
    config = loaded.model.config
    config.tie_word_embeddings = False
    torch.manual_seed(1)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # One dimension of the hidden state is the same for all tokens, and the end token's logit rests on it.
        model.model.embed_tokens.weight[:, 0] = 3.0
        model.lm_head.weight[config.eos_token_id] = 0.0
        model.lm_head.weight[config.eos_token_id, 0] = 1.8
    return save_model(model, loaded.tokenizer, tmp_path / "talking")


@pytest.mark.timeout(300)
def test_a_run_whose_rollouts_branch_trains_trees_and_keeps_every_branch(tiny_model_dir: Path, tmp_path: Path) -> None:
    run = train(talking(tiny_model_dir, tmp_path), tmp_path / "run", rollouts=BRANCHES, **{"grpo.max_steps": 2})
    rollouts = run.read_rollouts("grpo")
    trees = grow_trees(rollouts)
    assert len(trees) == 2 * 2 * 3
    branched = [tree for tree in trees if tree.branches]
    assert branched
    assert all(len(found) == 2 for tree in branched for found in tree.branches.values())
    for branch in (r for r in rollouts if parent_and_turn(r.id)):
        assert branch.scored
        assert branch.final_state == branch.initial_state
    steps = [line for line in run.read_metrics() if line["stage"] == "grpo"]
    assert sum(line["rollouts"] for line in steps) == len(rollouts)
    # A past that branches share is counted, and trained, once.
    everything = sum(r.sampled_tokens for r in rollouts)
    assert sum(line["sampled_tokens"] for line in steps) < everything
    assert any(line["trained_tokens"] for line in steps)
    assert max(line["sampler_gap/max"] for line in steps if "sampler_gap/max" in line) < 1e-3


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rollouts.branch_points": 2}, "branch_points does nothing while branches is 0"),
        ({"off_policy.max_off_policy_steps": -1}, "off_policy.max_off_policy_steps is -1"),
        ({"rollouts.retries": -1}, "retries"),
    ],
)
def test_options_that_would_do_nothing_are_refused(config: Any, words: str) -> None:
    with pytest.raises(sdk.ConfigError, match=words):
        sdk.TrainConfig.of(config)


def test_branches_over_live_tools_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    def book(seat: int) -> str:
        """Book a seat."""
        return f"booked {seat}"

    with pytest.raises(sdk.ConfigError, match="tool 'book' is live"):
        sdk.train([book], TASKS, even_letters, NO_MODEL, tmp_path / "run", {**TINY, "rollouts.branches": 1})
