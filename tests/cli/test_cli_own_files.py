"""What users write into their own files: where a mistake is looked for, and what other programs put before the text."""

from __future__ import annotations

import pytest
from command_line import toolbake


@pytest.mark.parametrize(
    "mistake", ["json.loads('no json')", "Task(prompt='')", "open('/dev/null/none')", "import none.of_this"]
)
def test_a_mistake_that_a_library_finds_is_told_with_the_line_of_the_users_file(desk, mistake):
    (desk / "tasks.py").write_text(f"import json\nfrom sdk import Task\n\n{mistake}\n")
    result = toolbake("train", "desk.py:tools", "tasks.py:tasks", "--verifier", "checks.py:verify")
    assert result.exit_code == 1
    assert "tasks.py:4)" in result.stderr


def test_an_mcp_json_with_a_byte_order_mark_is_read(desk):
    file = desk / "mcp.json"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    result = toolbake("tools", "mcp.json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("9 tools, ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--writer", "https://host/v1"], "--writer: the endpoint https://host/v1 has no model"),
        (["--policy", "https://host/v1"], "--policy: the endpoint https://host/v1 has no model"),
        (["--writer", "none.py:writer"], "--writer: there is no file 'none.py'"),
        (["--writer", "https://host/v1#m", "--writer-key", "NO_SUCH"], "--writer-key is 'NO_SUCH', but that"),
        (["--policy", "embedded", "--policy-key", "KEY"], "--policy-key is for an endpoint, and --policy embedded is"),
    ],
)
def test_a_mistake_in_a_model_of_synthesis_names_the_option_that_has_it(desk, words, said):
    result = toolbake("synthesize", "mcp.json", "--to", "made.jsonl", *words)
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())
