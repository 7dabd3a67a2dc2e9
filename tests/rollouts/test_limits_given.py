"""Limits as users give them: a mistake in one is the user's to mend, and is named before anything runs."""

from __future__ import annotations

import math

import pytest

import sdk


def get_order(order_id: str) -> str:
    """Read an order."""
    return "shipped"


def verify(rollout):
    return 1.0


CALLS = {
    "evaluate": lambda limits: sdk.evaluate(get_order, ["Where is it?"], verify, limits=limits),
    "rollout": lambda limits: sdk.rollout(get_order, "Where is it?", limits=limits),
    "certify": lambda limits: sdk.certify(get_order, ["Where is it?"], verify, limits=limits),
    "synthesize": lambda limits: sdk.synthesize(get_order, 1, limits=limits),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_turns": 0}, "limit max_turns is 0: Input should be greater than or equal to 1"),
        ({"max_turns": True}, "limit max_turns is True: give a number"),
        ({"max_seconds": math.inf}, "limit max_seconds is inf: Input should be a finite number"),
        ({"max_turn": 3}, "there is no limit 'max_turn'; the limits are max_turns, max_turn_tokens, "),
        (3, "limits is an int; give a sdk.Limits or a mapping of them"),
    ],
)
def test_a_limit_that_cannot_be_is_named_with_its_value_by_every_function(name, limits, said):
    with pytest.raises(sdk.ConfigError, match=said):
        CALLS[name](limits)


def test_limits_are_a_record_a_mapping_or_the_defaults():
    few = sdk.Limits(max_turns=2)
    assert sdk.Limits.of(few) is few
    assert sdk.Limits.of({"max_turns": 2}) == few
    assert sdk.Limits.of(None) == sdk.Limits()
