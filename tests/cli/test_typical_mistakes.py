"""Each typical mistake gets one message without a traceback, which holds the value, the place and the fix."""

from __future__ import annotations

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
    result = toolbake(*mistake.does)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    return result.stderr


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_of_a_typical_mistake_holds_the_value_the_place_and_the_fix(desk, name):
    mistake = MISTAKES[name]
    for file, text in mistake.files.items():
        (desk / file).parent.mkdir(exist_ok=True)
        (desk / file).write_text(text)
    message = " ".join(message_of(mistake).split())
    assert [part for part in mistake.says if part not in message] == [], message


def test_there_are_sixty_and_each_names_what_is_wrong_and_more():
    assert len(MISTAKES) >= 60
    assert all(len(mistake.says) >= 2 for mistake in MISTAKES.values())
