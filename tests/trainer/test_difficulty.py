"""Tasks that are left out because they teach nothing now, tiers that open, and domains that weigh alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_advantages_and_batches import rollout
from test_curriculum import group
from test_training_runs import TINY, add, even_letters
from test_training_runs import tasks as sums

import sdk
from sdk.records import Task
from sdk.trainer.advantages import normalised_by_domain
from sdk.trainer.batch import build_batch
from sdk.trainer.config import TrainConfig
from sdk.trainer.curriculum import Curriculum, tiers_in_order


def tiered(**sizes: int) -> list[Task]:
    return [
        Task(prompt=f"{tier} {number}", id=f"{tier}-{number}", tags={"tier": tier.removeprefix("t")})
        for tier, size in sizes.items()
        for number in range(size)
    ]


EASY, HARD, MIXED = [1.0] * 4, [0.0] * 4, [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("curriculum", [None, "tier"])
def test_tasks_too_easy_or_too_hard_rest_and_come_back(curriculum: str | None) -> None:
    tasks = tiered(t1=8)
    config = TrainConfig.of(
        {
            "grpo.prompts_per_step": 2,
            "curriculum.difficulty_filter": (0.1, 0.9),
            "curriculum.by": curriculum,
            "seed": 1,
        }
    )
    chooser = Curriculum(tasks, config)
    chooser.observe(group(tasks[0], 0, EASY))
    chooser.observe(group(tasks[1], 0, HARD))
    chooser.observe(group(tasks[2], 0, MIXED))
    assert chooser.difficulty.counts(1) == {"tasks_too_easy": 1, "tasks_too_hard": 1}
    for step in range(1, 21):
        assert chooser.difficulty.left_out(step) == {0, 1}
        chosen = [task.id for task in chooser.choose(step)]
        assert len(set(chosen)) == 2
        assert not {"t1-0", "t1-1"} & set(chosen)
        assert not {"t1-0", "t1-1"} & {task.id for task in chooser.choose_more(step, 1, 6, chosen)}
    assert chooser.difficulty.left_out(21) == frozenset()
    assert chooser.difficulty.counts(21) == {"tasks_too_easy": 0, "tasks_too_hard": 0}


def test_a_task_that_teaches_again_rests_no_more() -> None:
    (task,) = tiered(t1=1)
    chooser = Curriculum(
        [task], TrainConfig.of({"grpo.prompts_per_step": 1, "curriculum.difficulty_filter": (0.1, 0.9)})
    )
    chooser.observe(group(task, 0, EASY))
    assert chooser.difficulty.counts(1)["tasks_too_easy"] == 1
    chooser.observe(group(task, 1, MIXED))
    assert chooser.difficulty.counts(2) == {"tasks_too_easy": 0, "tasks_too_hard": 0}


@pytest.mark.parametrize("curriculum", [None, "tier"])
def test_a_step_is_full_though_every_task_would_rest(curriculum: str | None) -> None:
    tasks = tiered(t1=3, t2=2)
    chooser = Curriculum(
        tasks,
        TrainConfig.of(
            {"grpo.prompts_per_step": 4, "curriculum.difficulty_filter": (0.1, 0.9), "curriculum.by": curriculum}
        ),
    )
    for task in tasks:
        chooser.observe(group(task, 0, EASY))
    assert len({task.id for task in chooser.choose(1)}) == 4


def test_the_next_tier_opens_when_the_latest_groups_of_the_highest_one_succeed() -> None:
    tasks = tiered(t1=10, t2=10, t10=10)
    chooser = Curriculum(tasks, TrainConfig.of({"grpo.prompts_per_step": 4, "curriculum.tiers": "tier"}))
    assert tiers_in_order(tasks, "tier") == ["1", "2", "10"]
    for step in range(8):
        assert {task.tags["tier"] for task in chooser.choose(step)} == {"1"}
        assert chooser.difficulty.counts(step) == {"open_tiers": 1}
        chooser.observe(group(tasks[step], step, MIXED if step < 4 else EASY))
    assert chooser.difficulty.counts(8) == {"open_tiers": 2}
    seen = {task.tags["tier"] for step in range(8, 20) for task in chooser.choose(step)}
    assert seen == {"1", "2"}
    for step in range(8, 16):  # success in the lower tier opens nothing more
        chooser.observe(group(tasks[0], step, EASY))
        chooser.observe(group(tasks[10], step, HARD))
    assert chooser.difficulty.counts(16) == {"open_tiers": 2}
    for step in range(16, 24):
        chooser.observe(group(tasks[10], step, EASY))
    assert chooser.difficulty.counts(24) == {"open_tiers": 3}


def test_tasks_that_rest_count_for_their_tier_as_they_were_left() -> None:
    """Otherwise those that are too hard would go out of sight, and the rest would open the next tier."""
    config = {"grpo.prompts_per_step": 1, "curriculum.tiers": "tier", "curriculum.difficulty_filter": (0.1, 0.9)}
    tasks = tiered(t1=32, t2=4)
    chooser = Curriculum(tasks, TrainConfig.of(config))
    for task in tasks[8:32]:
        chooser.observe(group(task, 0, HARD))
    for task in tasks[:8]:
        chooser.observe(group(task, 1, [1.0, 1.0, 1.0, 0.0]))
    assert chooser.difficulty.counts(2) == {"tasks_too_easy": 0, "tasks_too_hard": 24, "open_tiers": 1}
    for place, task in enumerate(tasks[:8]):  # after their rest the hard ones count no more
        chooser.observe(group(task, 30 + place, [1.0, 1.0, 1.0, 0.0]))
    assert chooser.difficulty.counts(38)["open_tiers"] == 2


def test_a_success_that_misses_the_threshold_by_rounding_counts_as_one() -> None:
    config = {"grpo.prompts_per_step": 1, "curriculum.tiers": "tier", "curriculum.difficulty_filter": (0.1, 0.9)}
    tasks = tiered(t1=8, t2=1)
    chooser = Curriculum(tasks, TrainConfig.of(config))
    for task in tasks[:8]:
        chooser.observe(group(task, 0, [1 - 2**-53] * 4))  # as ten parts of 0.1 may add up
    assert chooser.difficulty.counts(1) == {"tasks_too_easy": 8, "tasks_too_hard": 0, "open_tiers": 2}


@given(st.data(), st.integers(1, 4), st.booleans(), st.sampled_from([None, "tier"]))
def test_a_chooser_rebuilt_from_the_rollouts_chooses_the_same_and_every_step_is_full(
    data: st.DataObject, size: int, tiers: bool, curriculum: str | None
) -> None:
    tasks = tiered(t1=5, t2=4)
    options: dict[str, Any] = {"curriculum.tiers": "tier"} if tiers else {}
    config = TrainConfig.of(
        {
            "grpo.prompts_per_step": size,
            "curriculum.difficulty_filter": (0.2, 0.8),
            "curriculum.by": curriculum,
            **options,
        }
    )
    first, seen = Curriculum(tasks, config), []
    for step in range(6):
        chosen = first.choose(step)
        assert len({task.id for task in chosen}) == size
        for task in chosen:
            rollouts = group(task, step, data.draw(st.sampled_from([EASY, HARD, MIXED])))
            first.observe(rollouts)
            seen += rollouts
    again = Curriculum(tasks, config)
    for step in range(6):
        again.choose(step)
        again.observe(rollout for rollout in seen if rollout.step == step)
    assert [task.id for task in again.choose(6)] == [task.id for task in first.choose(6)]


def test_advantages_are_divided_by_the_deviation_of_their_domain() -> None:
    # a: sqrt((1 + 1 + 9 + 9) / 4) = sqrt(5); b: sqrt((100^2 + 100^2) / 2) = 100
    groups = [[1.0, -1.0], [100.0, None, -100.0], [3.0, -3.0], [None, None]]
    normalised = normalised_by_domain(groups, ["a", "b", "a", "c"])
    root = math.sqrt(5) + 1e-4
    assert normalised[0] == pytest.approx([1 / root, -1 / root])
    assert normalised[1] == pytest.approx([100 / 100.0001, None, -100 / 100.0001])
    assert normalised[2] == pytest.approx([3 / root, -3 / root])
    assert normalised[3] == [None, None]


def test_a_domain_of_large_rewards_does_not_drown_one_of_small_ones() -> None:
    groups = []
    for domain, scores in (("shop", [0.0, 1.0]), ("bank", [0.0, 100.0]), ("bank", [50.0, 70.0]), ("bank", [3.0, 3.0])):
        made = [rollout(f"{domain}{score}", score) for score in scores]
        for one in made:
            one.task = Task(prompt="p", tags={"domain": domain})
        groups.append(made)
    batch = build_batch(groups, TrainConfig.of({"grpo.domain": "domain"}))
    found = [[row.advantage for row in rows] for rows in batch.groups]
    bank = math.sqrt((50**2 * 2 + 10**2 * 2) / 4)
    assert found[0] == pytest.approx([-1.0, 1.0], rel=1e-3)
    assert found[1] == pytest.approx([-50 / bank, 50 / bank], rel=1e-3)
    assert found[2] == pytest.approx([-10 / bank, 10 / bank], rel=1e-3)
    assert found[3] == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"curriculum.difficulty_filter": (0.9, 0.1)}, r"difficulty_filter is \(0.9, 0.1\): give two shares that rise"),
        ({"grpo.domain": "d", "grpo.scale_rewards": "none"}, "domain divides advantages"),
        ({**TINY, "curriculum.tiers": "tier"}, "tiers is 'tier', but 6 of 6 training tasks have no such tag"),
        ({**TINY, "grpo.domain": "api"}, "domain is 'api', but 6 of 6"),
    ],
)
def test_options_that_cannot_work_are_named(config: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(sdk.ConfigError, match=words):
        sdk.train([add], sums(), even_letters, None, tmp_path / "run", config)


def test_a_lowest_tier_that_cannot_fill_a_step_is_named(tmp_path: Path) -> None:
    tasks = [{**task, "tags": {"tier": "1" if place == 0 else "2"}} for place, task in enumerate(sums())]
    with pytest.raises(sdk.ConfigError, match="the lowest tier, '1', has only 1 training tasks"):
        sdk.train(
            [add],
            tasks,
            even_letters,
            None,
            tmp_path / "run",
            {**TINY, "curriculum.tiers": "tier", "evaluation.heldout": 1, "seed": 3},
        )
