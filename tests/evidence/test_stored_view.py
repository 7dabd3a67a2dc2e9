"""What a verifier sees of a rollout's tokens is what a run folder gives back, however odd the numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.evidence.view import stored_view
from sdk.records import Rollout, Task, TokenRow
from sdk.traces.json_text import dump_json

logprobs = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 0) | st.sampled_from([float("nan"), -0.0])
sampled = st.tuples(st.integers(0, 2**31), st.booleans(), logprobs, st.integers(-1, 9))
rows = st.lists(st.tuples(st.lists(st.integers(0, 2**31), max_size=4), st.lists(sampled, max_size=5)), max_size=3)


def rollout_of(given_rows: list[Any]) -> Rollout:
    made = Rollout(id="r", task=Task(prompt="Hi"))
    for prompt, tokens in given_rows:
        columns = [list(column) for column in zip(*tokens, strict=True)] or [[], [], [], []]
        made.rows.append(
            TokenRow.model_construct(
                prompt_ids=prompt,
                completion_ids=columns[0],
                sampled=columns[1],
                logprobs=columns[2],
                versions=columns[3],
            )
        )
    return made


@given(given_rows=rows)
def test_a_view_has_the_tokens_that_a_folder_gives_back_and_shares_none_with_the_rollout(given_rows: list[Any]) -> None:
    rollout = rollout_of(given_rows)
    back = Rollout.model_validate(json.loads(dump_json(rollout)))
    view = stored_view(rollout)
    assert view.model_dump_json() == back.model_dump_json()
    for row in view.rows:
        row.completion_ids.append(7)
    assert [len(row.completion_ids) for row in rollout.rows] == [len(tokens) for _, tokens in given_rows]


def test_rows_that_no_folder_would_give_back_are_refused() -> None:
    rollout = rollout_of([([1], [(2, True, -0.5, 0)])])
    rollout.rows[0].versions.clear()
    with pytest.raises(ValueError, match="differ in length"):
        stored_view(rollout)
