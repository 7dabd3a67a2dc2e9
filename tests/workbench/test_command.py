"""The example's command, as its users run it, on the folder of a few rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_folder import write_queries, write_small_folder, write_table

import sdk
from sdk.tasks import load_tasks

COMMAND = Path(__file__).parents[2] / "examples" / "workbench" / "workbench.py"
HEADER = ["domain", "model", "tools", "query", "function_calls", "error", "correct", "side_effects"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_small_folder(tmp_path)
    write_queries(tmp_path)
    return tmp_path


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, COMMAND, *words], capture_output=True, text=True, check=False)


def published(folder: Path, *verdicts: tuple[str, str, str]) -> None:
    """Calls of one model for three tasks: the error, and what the benchmark says of success and side effects."""
    texts = [
        ("Delete my last email from nadia", "['email.delete_email.func(email_id=\"00000007\")']"),
        ("Delete my last email from raj", "['email.delete_email.func(email_id=\"00000001\")']"),
        ("Remove the newest email from raj", "['email.search_emails.func(query=\"raj\")']"),
    ]
    rows = [
        ["email", "large", "all", text, calls, error, right, changed]
        for (text, calls), (error, right, changed) in zip(texts, verdicts, strict=True)
    ]
    write_table(folder / "prompted_models.csv", [HEADER, *rows])


def test_verdicts_are_compared_with_those_of_the_folder_and_written_as_baselines(folder: Path) -> None:
    published(folder, ("", "1", "0"), ("", "0", "1"), ("", "0", "0"))
    told = run("verdicts", folder, "--to", folder / "verdicts")
    assert told.returncode == 0, told.stderr
    assert "| large | all | 33.3 % | – | – | – | – | – | 33.3 % | 33.3 % |" in told.stdout
    assert "3 of 3 verdicts" in told.stdout
    assert "12 of 12 gold lists are right" in told.stdout
    lines = [json.loads(line) for line in (folder / "verdicts" / "large-all.jsonl").read_text().splitlines()]
    assert [(line["score"], line["components"]["side_effects"]) for line in lines] == [(1, 0), (0, 1), (0, 0)]
    assert len((folder / "verdicts" / "do-nothing.jsonl").read_text().splitlines()) == 12


def test_a_verdict_that_is_not_the_benchmarks_ends_the_command_with_1(folder: Path) -> None:
    published(folder, ("too long", "1", "0"), ("", "0", "1"), ("", "0", "0"))
    told = run("verdicts", folder)
    assert told.returncode == 1
    assert "2 of 3 verdicts" in told.stdout


def test_tasks_are_written_as_files_that_can_be_trained_on(folder: Path) -> None:
    told = run("tasks", folder, "--to", folder / "tasks")
    assert told.returncode == 0, told.stderr
    assert "one_system: 2 to train on, 2 with a demonstration; 2 held out" in told.stdout
    made = load_tasks(folder / "tasks" / "one_system.jsonl")
    assert sdk.tasks.split_tasks(made).train == [task for task in made if task.demonstration]


def test_the_list_has_every_tool_with_its_system(folder: Path) -> None:
    lines = run("list", folder).stdout.splitlines()
    assert len(lines) == 27
    assert lines[-1].split()[:2] == ["company_directory", "find_email_address"]


def test_a_folder_that_is_no_clone_is_told_without_a_traceback(tmp_path: Path) -> None:
    told = run("list", tmp_path / "none")
    assert told.returncode == 2
    assert "none has no emails.csv" in told.stderr
    assert "git clone" in told.stderr
    assert "Traceback" not in told.stderr
