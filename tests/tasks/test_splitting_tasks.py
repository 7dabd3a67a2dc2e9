"""The split is stable, leaks nothing, and never leaves a side empty in silence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.errors import ConfigError
from sdk.records import Task
from sdk.tasks import keep_aside, split_tasks, split_three_ways


def tasks_of(families):
    return [Task(prompt=f"do {n}", id=str(n), family=family) for n, family in enumerate(families)]


families_lists = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=2, max_size=60)


def split_or_none(tasks, **options):
    try:
        return split_tasks(tasks, **options)
    except ConfigError as error:
        if "no task is left" not in str(error):
            raise
        return None


@given(families_lists, st.one_of(st.floats(0.05, 0.95), st.integers(1, 59)), st.integers(0, 5))
def test_no_family_is_on_both_sides_and_no_task_is_lost(families, heldout, seed):
    tasks = tasks_of(families)
    if isinstance(heldout, int):
        heldout = min(heldout, len(tasks) - 1)
    split = split_or_none(tasks, heldout=heldout, seed=seed)
    if split is None:
        return
    assert not {t.family for t in split.train} & {t.family for t in split.heldout}
    assert sorted(t.id for t in [*split.train, *split.heldout]) == sorted(t.id for t in tasks)


@given(families_lists, families_lists, st.integers(0, 5))
def test_adding_tasks_never_moves_others(families, more, seed):
    tasks = tasks_of([*families, *more])
    before = split_or_none(tasks[: len(families)], heldout=0.4, seed=seed)
    after = split_or_none(tasks, heldout=0.4, seed=seed)
    if before is None or after is None:
        return
    if min(len({t.family for t in side}) for side in before) == 1:
        return  # of few families one may be on its side only so that the side is not empty
    assert {t.id for t in before.train} <= {t.id for t in after.train}
    assert {t.id for t in before.heldout} <= {t.id for t in after.heldout}


@given(families_lists, st.randoms())
def test_the_order_of_the_tasks_does_not_matter(families, random):
    tasks = tasks_of(families)
    shuffled = random.sample(tasks, len(tasks))
    one, two = split_or_none(tasks, heldout=0.5), split_or_none(shuffled, heldout=0.5)
    assert (one is None) == (two is None)
    if one and two:
        assert {t.id for t in one.heldout} == {t.id for t in two.heldout}


def test_the_share_is_met_on_average_and_the_seed_matters():
    tasks = tasks_of(map(str, range(2000)))
    one, two = split_tasks(tasks, heldout=0.2), split_tasks(tasks, heldout=0.2, seed=1)
    assert len(one.heldout) == pytest.approx(400, abs=60)
    assert {t.id for t in one.heldout} != {t.id for t in two.heldout}


def test_the_sides_are_the_same_on_every_machine():
    # `printf '[0, "a"]' | sha256sum`, first digit below 8: held out. A change would move tasks of existing projects.
    split = split_tasks(tasks_of("abcdefgh"), heldout=0.5)
    assert "".join(t.family for t in split.heldout) == "acefgh"


def test_a_number_of_tasks_is_held_out_family_by_family():
    tasks = tasks_of([f"{n // 5}" for n in range(50)])
    assert len(split_tasks(tasks, heldout=10).heldout) == 10
    assert len(split_tasks(tasks, heldout=11).heldout) == 15


def test_tags_on_every_task_decide():
    tasks = [Task(prompt=f"p{n}", tags={"split": "heldout" if n == 3 else "train"}) for n in range(5)]
    for heldout in (0.2, 50):
        split = split_tasks(tasks, heldout=heldout)
        assert [t.prompt for t in split.heldout] == ["p3"]


def test_tags_that_are_partial_wrong_or_tear_a_family_apart_are_refused():
    one = Task(prompt="a", id="a", tags={"split": "train"})
    with pytest.raises(ConfigError, match=r"1 of 2 tasks lack tags\['split'\], the first is 'b'"):
        split_tasks([one, Task(prompt="b", id="b")])
    with pytest.raises(ConfigError, match="'test'; use 'train', 'validation' or 'heldout'"):
        split_tasks([one, Task(prompt="b", tags={"split": "test"})])
    family = [one.model_copy(update={"family": "f"}), Task(prompt="b", tags={"split": "heldout"}, family="f")]
    with pytest.raises(ConfigError, match="family 'f' is tagged 'train' and 'heldout'"):
        split_tasks(family)
    with pytest.raises(ConfigError, match="no task is left for heldout"):
        split_tasks([one, Task(prompt="b", tags={"split": "train"})])


def test_one_prompt_under_two_families_is_a_leak():
    tasks = [Task(prompt="same", id=str(n), tags={"split": side}) for n, side in enumerate(["train", "heldout"])]
    with pytest.raises(ConfigError, match="'0' \\(train\\) and '1' \\(heldout\\) have the same prompt and setup"):
        split_tasks(tasks)
    with pytest.raises(ConfigError, match="have the same prompt and setup"):
        split_tasks([tasks[0], tasks[1].model_copy(update={"prompt": " same  "})])
    tasks[1].setup["seed"] = 2
    assert len(split_tasks(tasks).heldout) == 1


@pytest.mark.parametrize("heldout", [0, 1.0, 0.0, -0.2, 5, 9, True, "0.2", None])
def test_a_share_that_cannot_be_is_refused(heldout):
    with pytest.raises(ConfigError, match="heldout is"):
        split_tasks(tasks_of("abcde"), heldout=heldout)


def test_an_empty_side_says_why():
    with pytest.raises(ConfigError, match="at least two families"):
        split_tasks(tasks_of("aaaa"))
    with pytest.raises(ConfigError, match="give at least two"):
        split_tasks(tasks_of("a"))


@given(families_lists, st.one_of(st.floats(0.05, 0.95), st.integers(1, 20)), st.integers(0, 5))
def test_a_part_for_validation_leaves_the_held_out_side_as_it_is(families, validation, seed):
    tasks = tasks_of(families)
    two = split_or_none(tasks, heldout=0.3, seed=seed)
    try:
        three = split_three_ways(tasks, heldout=0.3, validation=validation, seed=seed)
    except ConfigError:
        return
    assert three.heldout == two.heldout
    assert sorted(t.id for t in [*three.train, *three.validation]) == sorted(t.id for t in two.train)
    assert three.train
    assert three.validation
    sides = [{task.family for task in side} for side in three]
    assert sum(map(len, sides)) == len(set().union(*sides))
    if isinstance(validation, int):
        assert len(three.validation) >= validation


def test_tasks_tagged_for_validation_are_neither_trained_on_nor_held_out():
    tasks = [Task(prompt=f"p{n}", tags={"split": side}) for n, side in enumerate(["train", "validation", "heldout"])]
    assert [[t.prompt for t in side] for side in split_tasks(tasks)] == [["p0"], ["p2"]]
    assert [[t.prompt for t in side] for side in split_three_ways(tasks)] == [["p0"], ["p1"], ["p2"]]
    with pytest.raises(ConfigError, match=r"no task is left for validation: .*; tag some tasks with it"):
        split_three_ways([tasks[0], tasks[2]])
    leak = tasks[0].model_copy(update={"id": "twin", "family": "twin", "tags": {"split": "validation"}})
    with pytest.raises(ConfigError, match=r"\(train\) and 'twin' \(validation\) have the same prompt"):
        split_three_ways([*tasks, leak])


@pytest.mark.parametrize("heldout", [0.05, 0.34, 0.95])
@pytest.mark.parametrize("seed", range(5))
def test_a_share_of_few_families_is_at_least_one_of_them_and_never_all(heldout, seed):
    split = split_tasks(tasks_of("aaaabbbbcccc"), heldout=heldout, seed=seed)
    assert min(len({task.family for task in side}) for side in split) >= 1
    three = split_three_ways(tasks_of("aaaabbbbcccc"), heldout=0.01, validation=0.01, seed=seed)
    assert [len({task.family for task in side}) for side in three] == [1, 1, 1]


@given(families_lists, st.integers(0, 5))
def test_some_tasks_are_kept_aside_and_most_are_left_to_learn_from(families, seed):
    tasks = tasks_of(families)
    rest, aside = keep_aside(tasks, seed=seed)
    assert sorted(task.id for task in [*rest, *aside]) == sorted(task.id for task in tasks)
    assert len(aside) <= len(tasks) // 4
    assert len(aside) == min(8, len(tasks) // 4) or len(aside) >= 0.15 * len(tasks)


@pytest.mark.parametrize(("tasks", "aside"), [(3, 0), (4, 1), (8, 2), (40, 8), (100, 15), (300, 45), (1000, 64)])
def test_how_many_tasks_are_kept_aside(tasks, aside):
    assert len(keep_aside(tasks_of(map(str, range(tasks))))[1]) == aside


def test_of_few_families_some_tasks_of_each_are_kept_aside():
    rest, aside = keep_aside(tasks_of("abcde" * 12))
    assert sorted({task.family for task in aside}) == sorted({task.family for task in rest}) == list("abcde")


def test_of_many_families_whole_ones_are_kept_aside():
    rest, aside = keep_aside(tasks_of([str(n // 3) for n in range(90)]))
    assert len(aside) == 15
    assert not {task.family for task in aside} & {task.family for task in rest}


@given(st.lists(st.integers(1, 3), min_size=10, max_size=30), st.integers(0, 5))
def test_no_kind_of_tasks_is_kept_aside_as_a_whole(wordings, seed):
    """`wordings`: of each kind, so many wordings of four tasks, each wording a family."""
    tasks = [
        Task(prompt=f"{kind} {wording} {n}", family=f"{kind}/{wording}", tags={"kind": str(kind), "who": str(n)})
        for kind, count in enumerate(wordings)
        for wording in range(count)
        for n in range(4)
    ]
    rest, aside = keep_aside(tasks, seed=seed)
    assert len(aside) >= 0.15 * len(tasks) or len(aside) == len(tasks) // 4 or len(aside) >= 8
    if max(wordings) > 1:
        assert {task.tags["kind"] for task in rest} == {str(kind) for kind in range(len(wordings))}


def test_tasks_with_the_same_prompt_and_setup_are_kept_aside_together():
    tasks = [Task(prompt=f"p{n // 2}", id=str(n), family="one") for n in range(16)]
    rest, aside = keep_aside(tasks)
    assert len(aside) == 4
    assert not {task.prompt for task in aside} & {task.prompt for task in rest}
    pairs = [Task(prompt=f"p{n // 2}", id=str(n)) for n in range(40)]  # each of a family of its own
    rest, aside = keep_aside(pairs)
    assert len(aside) == 8
    assert not {task.prompt for task in aside} & {task.prompt for task in rest}


def test_what_would_leave_too_few_tasks_is_not_kept_aside():
    tasks = tasks_of("aaaabbbb")
    assert keep_aside(tasks, enough=lambda rest: len(rest) >= 7)[1] == [keep_aside(tasks)[1][0]]
    assert keep_aside(tasks, enough=lambda rest: len(rest) == 8) == (tasks, [])
