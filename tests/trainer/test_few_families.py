"""Too few held-out families are told before the training, with how many would do."""

from __future__ import annotations

import re

import sdk
from sdk.trainer.task_splits import settle, split_for_training


def tasks_of(families: int, each: int) -> list[sdk.Task]:
    return [
        sdk.Task(prompt=f"request {family}/{number}", family=f"family {family}")
        for family in range(families)
        for number in range(each)
    ]


def told(families: int, each: int, **evaluation: float) -> list[str]:
    config = sdk.TrainConfig.of({f"evaluation.{name}": value for name, value in evaluation.items()})
    _, lines = settle(config, split_for_training(tasks_of(families, each), config))
    return [line for line in lines if line.startswith("few families")]


def test_few_held_out_families_are_told_with_how_many_would_do() -> None:
    (line,) = told(families=10, each=8, heldout=60)
    assert "64 held-out tasks of 8 families (of 10)" in line
    assert "success is known within 42 points at worst" in line
    points = re.search(
        r"with 10 held-out families it would be known within (\d+) points, with 30 within (\d+), with 100 within (\d+)",
        line,
    )
    assert points is not None
    assert [int(number) for number in points.groups()] == [36, 19, 10]


def test_families_whose_interval_may_be_everything_tell_nothing_certain() -> None:
    (line,) = told(families=7, each=8, heldout=33)
    assert "40 held-out tasks of 5 families (of 7)" in line
    assert "success may be anything at worst" in line


def test_three_families_are_split_whatever_the_share_and_one_family_is_told_as_such() -> None:
    for share in (0.2, 0.34):
        (line,) = told(families=3, each=4, heldout=share)
        assert "4 held-out tasks of 1 family (of 3)" in line
        assert "success is known for this one only;" in line


def test_ten_families_are_enough_for_silence() -> None:
    assert told(families=20, each=2, heldout=20) == []
