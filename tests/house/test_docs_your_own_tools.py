"""The page "Your own tools in 30 minutes", typed into an empty folder: every file, every command, the served model."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import blocks
from project_files import read
from typer.testing import CliRunner

import sdk
from sdk.cli.app import app
from sdk.tasks import load_tasks

PAGE = Path("docs/your-own-tools.md")
MOST_LINES = 60
SHORT = {
    "evaluate": ["--limit", "max_turn_tokens=8", "--limit", "max_turns=1"],
    "train": [
        *("--set", "warm_start.max_steps=1", "--set", "grpo.max_steps=1", "--set", "grpo.num_generations=2"),
        *("--set", "grpo.prompts_per_step=2", "--set", "limits.max_turn_tokens=8", "--set", "limits.max_tokens=16"),
        *("--set", "probes.tasks=1", "--set", "evaluation.max_served=1"),
    ],
}
"""The model of the tests has random weights: it shows that everything runs, not that it learns."""


def files() -> dict[str, str]:
    """The files that the page shows, by name."""
    text = read(PAGE)
    lines = text.splitlines()
    found = {}
    for block in blocks(text, str(PAGE)):
        before = [line for line in lines[: block.line - 2] if line.strip() and not line.startswith("<!--")]
        if name := re.fullmatch(r"`([\w.]+)`:", before[-1]):
            found[name[1]] = block.code
    return found


def commands() -> list[list[str]]:
    shown = [block.code for block in blocks(read(PAGE)) if block.language == "bash"]
    return [shlex.split(line) for code in shown for line in code.splitlines()]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("TOOLBAKE_CONTROL", "")
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_reader_writes_at_most_sixty_lines() -> None:
    shown = files()
    assert set(shown) == {"server.py", "requests.csv", "client.py"}
    written = [line for code in shown.values() for line in code.splitlines() if line.strip()]
    assert len(written) <= MOST_LINES


def test_the_page_is_read_in_minutes() -> None:
    assert len(read(PAGE).split()) <= 1300
    assert len(read(Path("README.md")).split()) + len(read(PAGE).split()) <= 4000, "before the first own training"


@pytest.mark.timeout(600)
def test_the_page_runs_from_an_empty_folder_to_a_served_model(
    empty: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = files()
    (empty / "server.py").write_text(shown["server.py"])
    (empty / "requests.csv").write_text(shown["requests.csv"])
    typed = [words for words in commands() if words[0] == "toolbake" and words[1] not in ("view", "serve")]
    assert [words[1] for words in typed] == ["init", "solve", "doctor", "evaluate", "train", "report"]
    for _, name, *words in typed:
        if name == "init":  # requests.csv is written after it
            (empty / "requests.csv").rename(empty / "later.csv")
        model = ["--model", str(tiny_model_folder)] if name in ("evaluate", "train") else []
        done = CliRunner().invoke(app, [name, *words, *model, *SHORT.get(name, [])], prog_name="toolbake")
        assert done.exit_code == 0, f"{name}: {done.output}"
        if name == "init":
            assert {path.name for path in empty.iterdir()} >= {"mcp.json", "tasks.jsonl", "verify.py", "train.json"}
            assert 5 <= len(load_tasks("tasks.jsonl")) <= 10
            (empty / "later.csv").rename(empty / "requests.csv")
            runpy.run_path("test_tasks.py")["test_the_gold_solutions_earn_their_reward"]()
        if name == "doctor":
            assert "(0 must be fixed)" in done.output
    assert len(load_tasks("requests.jsonl")) == len(shown["requests.csv"].splitlines()) - 1
    with sdk.serve("runs/first", port=0) as server:
        assert server.model_name == "first"
        client = shown["client.py"].replace("http://127.0.0.1:8000", server.url)
        (empty / "client.py").write_text(client.replace("tools=tools", "tools=tools, max_tokens=8"))
        runpy.run_path("client.py")
    assert "ChatCompletionMessage(" in capsys.readouterr().out
    assert os.listdir(empty / "runs") == ["first"]
