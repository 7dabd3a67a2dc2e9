"""The checker of `bfcl-eval`, as it is, over call lists of ours.

It evaluates strings and keeps its instances in globals of its module: so it gets only calls that tests made, written
out again from records, and its instances are taken away after each check.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import json
from collections.abc import Sequence
from typing import Any

from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from dataset import API_NAMES, Entry, api_class

_numbers = itertools.count()
_DEFAULTS = {
    function: copy.deepcopy(function.__defaults__)
    for name in API_NAMES
    for function in vars(api_class(name)).values()
    if inspect.isfunction(function)
}
"""`TwitterAPI.post_tweet` keeps its default lists, and `mention` appends to them: from then on all later checks of a
process find other tweets. Each check here finds the API as it is written."""


def package_says(entry: Entry, turns: Sequence[Sequence[dict[str, Any]]]) -> bool:
    """Whether the package takes these calls, turn by turn, for a right answer to the entry."""
    if len(turns) != len(entry.gold):
        return False  # as its runner does with a run that was cut off
    name = f"check{next(_numbers)}"
    for function, defaults in _DEFAULTS.items():
        function.__defaults__ = copy.deepcopy(defaults)
    decoded = [[[as_python(call)] for call in turn] for turn in turns]
    test_entry = {"id": entry.id, "initial_config": entry.config, "involved_classes": list(entry.apis)}
    try:
        found = multi_turn_checker(decoded, [list(turn) for turn in entry.gold_texts], test_entry, "", name)
        return bool(found["valid"])
    finally:
        for left in [one for one in vars(multi_turn_utils) if one.startswith(f"{name}_")]:
            del vars(multi_turn_utils)[left]


def as_python(call: dict[str, Any]) -> str:
    """A record as the call that the package evaluates."""
    json.dumps(call)
    assert call["name"].isidentifier()
    assert all(name.isidentifier() for name in call["arguments"])
    return f"{call['name']}({', '.join(f'{name}={value!r}' for name, value in call['arguments'].items())})"
