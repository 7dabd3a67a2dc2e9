"""Which tasks a step takes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sdk.records import Rollout, Task, Verdict
from sdk.trainer.config import TrainConfig
from sdk.trainer.curriculum import Curriculum, interleaved, tasks_of_step


def tasks_of_kinds(**sizes: int) -> list[Task]:
    return [
        Task(prompt=f"{kind} {number}", id=f"{kind}-{number}", tags={"intent": kind})
        for kind, size in sizes.items()
        for number in range(size)
    ]


def group(task: Task, step: int, scores: list[float]) -> list[Rollout]:
    rollouts = []
    for number, score in enumerate(scores):
        rollout = Rollout(
            id=f"{step}/{task.id}/{number}", task=task, policy="p", group=f"{step}/{task.id}", seed=0, step=step
        )
        rollout.verdict = Verdict(score=score)
        rollout.stop_reason = "answered"
        rollouts.append(rollout)
    return rollouts


def test_a_step_takes_different_tasks_and_an_epoch_takes_each_once() -> None:
    config = TrainConfig.of({"grpo.prompts_per_step": 3, "grpo.num_generations": 2, "seed": 5})
    epochs = [[tasks_of_step(step, 12, config) for step in range(e * 4, e * 4 + 4)] for e in range(3)]
    for epoch in epochs:
        assert sorted(task for step in epoch for task in step) == list(range(12))
    assert epochs[0] != epochs[1] != epochs[2]
    assert tasks_of_step(7, 12, config) == epochs[1][3]  # nothing to remember, so a resumed run cannot lose its place


@given(st.integers(0, 200), st.integers(1, 40), st.integers(1, 8))
def test_the_tasks_of_a_step_are_always_different(step: int, count: int, size: int) -> None:
    assume(size <= count)
    tasks = tasks_of_step(step, count, TrainConfig.of({"grpo.prompts_per_step": size}))
    assert len(set(tasks)) == size
    assert set(tasks) <= set(range(count))


def test_kinds_whose_groups_differ_are_taken_more_often_and_none_is_forgotten() -> None:
    tasks = tasks_of_kinds(learned=40, learning=40, hopeless=40)
    scores = {"learned": [1.0] * 8, "learning": [0.0, 1.0] * 4, "hopeless": [0.0] * 8}
    curriculum = Curriculum(tasks, TrainConfig.of({"grpo.prompts_per_step": 6, "curriculum.by": "intent"}))
    taken: Counter[str] = Counter()
    for step in range(40):
        chosen = curriculum.choose(step)
        for task in chosen:
            kind = task.tags["intent"]
            taken[kind] += step >= 4
            curriculum.observe(group(task, step, scores[kind]))
    assert taken["learning"] > 1.5 * taken["learned"]
    assert taken["learning"] > 1.5 * taken["hopeless"]
    assert min(taken.values()) >= 36 * 6 / 3 / 2 - 6  # half of the steps' places is even over the kinds


def test_before_anything_was_seen_the_kinds_have_even_shares() -> None:
    curriculum = Curriculum(
        tasks_of_kinds(a=50, b=5, c=9), TrainConfig.of({"grpo.prompts_per_step": 6, "curriculum.by": "intent"})
    )
    assert Counter(task.tags["intent"] for task in curriculum.choose(0)) == {"a": 2, "b": 2, "c": 2}


def test_a_curriculum_rebuilt_from_the_rollouts_chooses_the_same_tasks() -> None:
    tasks = tasks_of_kinds(a=7, b=9, c=3)
    config = TrainConfig.of({"grpo.prompts_per_step": 4, "curriculum.by": "intent", "seed": 3})
    first, seen = Curriculum(tasks, config), []
    for step in range(6):
        for place, task in enumerate(first.choose(step)):
            rollouts = group(task, step, [float((place + step + n) % 3 == 0) for n in range(4)])
            first.observe(rollouts)
            seen.extend(rollouts)
    again = Curriculum(tasks, config)
    for step in range(6):
        again.choose(step)
        again.observe(rollout for rollout in seen if rollout.step == step)
    assert [task.id for task in again.choose(6)] == [task.id for task in first.choose(6)]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), min_size=1),
    st.data(),
    st.integers(1, 8),
    st.integers(0, 50),
)
def test_a_step_of_a_curriculum_is_full_and_its_tasks_are_different(
    sizes: dict[str, int], data: st.DataObject, size: int, seed: int
) -> None:
    assume(size <= sum(sizes.values()))
    curriculum = Curriculum(
        tasks_of_kinds(**sizes),
        TrainConfig.of({"grpo.prompts_per_step": size, "curriculum.by": "intent", "seed": seed}),
    )
    for step in range(4):
        chosen = curriculum.choose(step)
        assert len({task.id for task in chosen}) == size
        for task in chosen:
            curriculum.observe(
                group(task, step, data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3)))
            )


def test_every_task_of_a_kind_is_taken_once_before_one_is_taken_again() -> None:
    curriculum = Curriculum(
        tasks_of_kinds(a=6), TrainConfig.of({"grpo.prompts_per_step": 2, "curriculum.by": "intent"})
    )
    taken = []
    for step in range(3):
        for task in curriculum.choose(step):
            taken.append(task.id)
            curriculum.observe(group(task, step, [0.0, 1.0]))
    assert len(set(taken)) == 6


def test_steps_that_are_chosen_ahead_take_other_tasks_than_those_before_them() -> None:
    curriculum = Curriculum(
        tasks_of_kinds(a=9, b=9), TrainConfig.of({"grpo.prompts_per_step": 6, "curriculum.by": "intent"})
    )
    ahead = [curriculum.choose(step) for step in range(3)]  # before anything of them was played
    assert len({task.id for tasks in ahead for task in tasks}) == 18


def test_a_task_taken_while_one_before_it_rests_is_not_taken_again_before_the_others() -> None:
    config = TrainConfig.of(
        {
            "grpo.prompts_per_step": 1,
            "curriculum.by": "intent",
            "curriculum.difficulty_filter": (0.1, 0.9),
        }
    )
    fresh = Curriculum(tasks_of_kinds(a=4), config)
    first, second, third, fourth = (fresh.choose(step)[0] for step in range(4))
    curriculum = Curriculum(tasks_of_kinds(a=4), config)
    curriculum.observe(group(second, 0, [1.0, 1.0]))  # too easy: it rests
    taken = []
    for step in range(1, 4):
        (task,) = curriculum.choose(step)
        curriculum.observe(group(task, step, [0.0, 1.0]))
        taken.append(task.id)
    assert taken == [first.id, third.id, fourth.id]


@pytest.mark.parametrize("by", [None, "intent"])
def test_where_no_task_is_left_over_none_is_added_to_a_step(by: str | None) -> None:
    curriculum = Curriculum(tasks_of_kinds(a=2, b=2), TrainConfig.of({"grpo.prompts_per_step": 4, "curriculum.by": by}))
    taken = {task.id for task in curriculum.choose(0)}
    assert curriculum.choose_more(0, 1, 2, taken) == []


def test_groups_that_could_not_be_scored_say_nothing_of_their_kind() -> None:
    tasks = tasks_of_kinds(a=8, b=8)
    curriculum = Curriculum(tasks, TrainConfig.of({"grpo.prompts_per_step": 4, "curriculum.by": "intent"}))
    broken = group(tasks[0], 0, [1.0, 0.0])
    for rollout in broken:
        rollout.verdict = None
    curriculum.observe(broken)
    assert Counter(task.tags["intent"] for task in curriculum.choose(1)) == {"a": 2, "b": 2}


def test_demonstrations_come_in_turns_of_their_kinds() -> None:
    tasks = tasks_of_kinds(a=4, b=4, c=4)
    order = interleaved(tasks, "intent", seed=1)
    assert sorted(task.id for task in order) == sorted(task.id for task in tasks)
    for start in range(0, 12, 3):
        assert {task.tags["intent"] for task in order[start : start + 3]} == {"a", "b", "c"}
    assert order != interleaved(tasks, "intent", seed=2)


@given(st.dictionaries(st.sampled_from("abc"), st.integers(1, 12), min_size=1), st.integers(0, 40))
def test_any_part_of_the_demonstrations_holds_each_kinds_share(sizes: dict[str, int], part: int) -> None:
    order = interleaved(tasks_of_kinds(**sizes), "intent", seed=0)[:part]
    share = len(order) / sum(sizes.values())
    seen = Counter(task.tags["intent"] for task in order)
    for kind, size in sizes.items():
        assert abs(seen[kind] - share * size) <= len(sizes)


@pytest.mark.parametrize("curriculum", [None, "intent"])
def test_groups_without_signal_are_replaced_by_other_tasks_in_the_same_step(curriculum: str | None) -> None:
    tasks = tasks_of_kinds(a=5, b=5)
    curriculum_ = Curriculum(tasks, TrainConfig.of({"grpo.prompts_per_step": 4, "curriculum.by": curriculum}))
    first = curriculum_.choose(0)
    taken = [task.id for task in first]
    more = curriculum_.choose_more(0, 1, 4, taken)
    assert len({task.id for task in [*first, *more]}) == 8
    rest = curriculum_.choose_more(0, 2, 4, [*taken, *(task.id for task in more)])
    assert len({task.id for task in [*first, *more, *rest]}) == len(tasks)  # fewer where there are no more
