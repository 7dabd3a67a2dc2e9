"""Each typical mistake gets one message without a traceback, which names the value, the place and the fix."""

from __future__ import annotations

import shlex
from itertools import permutations

import pytest
from command_line import toolbake
from typical_mistakes import MISTAKES, Mistake

from mcp_bridge import BridgeError
from sdk import ToolbakeError


def message_of(mistake: Mistake) -> str:
    if callable(mistake.does):
        with pytest.raises((ToolbakeError, BridgeError)) as caught:
            mistake.does()
        return str(caught.value)
    result = toolbake(*shlex.split(mistake.does))
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert result.stderr.count("error: ") == 1
    return result.stderr


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_of_a_typical_mistake_names_the_value_the_place_and_the_fix(desk, name):
    mistake = MISTAKES[name]
    for file, text in mistake.files.items():
        (desk / file).parent.mkdir(exist_ok=True)
        (desk / file).write_text(text)
    message = " ".join(message_of(mistake).replace(str(desk), "HERE").split())
    assert [part for part in (mistake.value, mistake.place, mistake.fix) if part not in message] == [], message


def test_there_are_sixty_and_none_takes_one_part_for_another():
    assert len(MISTAKES) >= 60
    for name, mistake in MISTAKES.items():
        parts = (mistake.value, mistake.place, mistake.fix)
        assert not any(one in other for one, other in permutations(parts, 2)), name
