"""The example's cassettes and reports are what the code makes of them, and what the real servers still say."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from recorder_runs import node_command
from typer.testing import CliRunner

from sandboxes.divergence import compare, leave_one_out
from sandboxes.recorded import Cassette, RecordedTwin
from sdk.cli.app import app

EXAMPLE = Path(__file__).parents[2] / "examples" / "recorded"
SERVERS = {"files": "server-filesystem", "everything": "server-everything"}


pytestmark = pytest.mark.timeout(300)  # each test starts several servers


@pytest.mark.parametrize("name", SERVERS)
async def test_the_twin_of_a_cassette_agrees_with_it_and_the_report_on_others_is_the_committed_one(name: str) -> None:
    twin = RecordedTwin(EXAMPLE / f"{name}.jsonl")
    assert (await compare(EXAMPLE / f"{name}.jsonl", twin)).agrees
    report = await leave_one_out(twin)
    assert (EXAMPLE / f"{name}.divergence.md").read_text() == report.to_markdown()
    assert json.loads((EXAMPLE / f"{name}.divergence.json").read_text()) == json.loads(report.to_json())


@pytest.mark.parametrize("name", SERVERS)
def test_the_example_is_recorded_again_with_the_same_answers(name: str, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    arguments = ["."] if name == "files" else []
    done = subprocess.run(
        [
            *(sys.executable, str(EXAMPLE / "sessions.py"), name, "--to", str(again)),
            *("--command", shlex.join([*node_command(SERVERS[name]), *arguments])),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    known, found = Cassette.read(EXAMPLE / f"{name}.jsonl"), Cassette.read(again)
    assert found.header.tools == known.header.tools
    assert str(tmp_path) not in again.read_text()
    assert "node_modules" in found.header.source
    assert [(c.tool, c.arguments) for c in found.calls] == [(c.tool, c.arguments) for c in known.calls]
    same = [c.result == k.result for c, k in zip(found.calls, known.calls, strict=True) if c.tool != "get_file_info"]
    assert all(same)


def test_the_command_reports_what_differs_and_ends_with_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    monkeypatch.chdir(tmp_path / "files")
    server = shlex.join([*node_command("server-filesystem"), "."])
    words = [
        "divergence",
        str(EXAMPLE / "files.jsonl"),
        "--command",
        server,
        "--json-to",
        str(tmp_path / "report.json"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "toolbake", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])},
        check=False,
    )
    assert "| get_file_info | 1 |" in done.stdout, done.stderr
    assert "created: " in done.stdout
    assert json.loads((tmp_path / "report.json").read_text())["agrees"] is False
    assert done.returncode == 3
    options = [["--at-least", "0.9"], ["--ignore-text", "(created|modified|accessed): .*"]]
    for option in options:  # in this process, which has all imported that the command needs
        for left in sorted((tmp_path / "files").rglob("*"), reverse=True):
            left.rmdir() if left.is_dir() else left.unlink()
        ended = CliRunner().invoke(app, [*words, *option], prog_name="toolbake")
        assert "| get_file_info | 1 |" in ended.stdout, ended.stderr
        assert ended.exit_code == 0
