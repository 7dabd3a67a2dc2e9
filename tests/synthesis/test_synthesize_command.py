"""`toolbake synthesize`: makes tasks, checks edited ones, and says what is wrong with what it was told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import sdk
from sdk.cli.app import app
from sdk.tasks import load_tasks

DESK = "from sandboxes.helpdesk import Helpdesk\n\ndesk = Helpdesk()\n"

ODD = """
from sandboxes.objects import ObjectTwin


class Doors:
    def __init__(self):
        self.open = []

    def open_all(self, names: list[str]) -> None:
        self.open += names

    def look(self) -> str:
        raise ValueError("it is dark")


odd = ObjectTwin(Doors, reads=("look",))
"""


def synthesize(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["synthesize", *map(str, words)], prog_name="toolbake")


@pytest.fixture
def desk(tmp_path: Path) -> str:
    (tmp_path / "made_desk.py").write_text(DESK, encoding="utf-8")
    return f"{tmp_path / 'made_desk.py'}:desk"


def test_tasks_are_made_checked_and_named_where_an_edit_broke_them(desk: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    made = synthesize(
        *(desk, "--to", path, "-n", 2, "--max-calls", 1, "--setup", '{"seed": 7}'),
        *("--phrase", "get_order=the order numbered {order_id}"),
    )
    assert made.exit_code == 0, made.output
    assert "2 tasks of 2 families in" in made.stdout
    assert {str(task.setup) for task in load_tasks(path)} == {"{'seed': 7}"}
    checked = synthesize(desk, "--check", path)
    assert checked.exit_code == 0, checked.output
    assert "2 tasks hold" in checked.stdout
    path.write_text(path.read_text(encoding="utf-8").replace('"seed":7', '"seed":8', 1), encoding="utf-8")
    broken = synthesize(desk, "--check", path)
    assert broken.exit_code == 1
    assert "line 1 (task" in broken.stderr


def test_no_task_at_all_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD, encoding="utf-8")
    path = tmp_path / "tasks.jsonl"
    made = synthesize(f"{tmp_path / 'odd.py'}:odd", "--to", path, "-n", 2, "--setup", "{}")
    assert made.exit_code == 1
    assert "no task was made in 120 attempts" in made.stderr
    assert "the tool open_all is not used" in made.stderr
    assert made.stdout == ""
    assert not path.exists()


@pytest.fixture(scope="module")
def served(tiny_model_folder: Path) -> Iterator[str]:
    """A random model behind an endpoint that wants a key, as `--writer` and `--policy` take it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DESK_KEY", "s3cret-of-the-desk")
        patch.setenv("OTHER_KEY", "another")
        server = sdk.serve(tiny_model_folder, port=0, api_key="s3cret-of-the-desk")
        try:
            yield f"{server.url}/v1#{server.model_name}"
        finally:
            server.close()


def test_a_served_model_that_can_neither_word_nor_solve_is_said_to_do_neither(
    served: str, desk: str, tmp_path: Path
) -> None:
    path, plain = tmp_path / "tasks.jsonl", tmp_path / "plain.jsonl"
    asked = ["-n", 2, "--max-calls", 1, "--setup", '{"seed": 7}']
    models = ["--writer", served, "--writer-key", "DESK_KEY", "--policy", served, "--policy-key", "DESK_KEY"]
    short = ["--attempts", 2, "--limit", "max_turns=1", "--limit", "max_turn_tokens=4"]
    made = synthesize(desk, "--to", path, *asked, *models, *short)
    assert made.exit_code == 0, made.output
    assert "worded by the model" not in made.stdout
    assert synthesize(desk, "--to", plain, *asked).exit_code == 0
    tasks = load_tasks(path)
    assert [task.prompt for task in tasks] == [task.prompt for task in load_tasks(plain)]
    assert [(task.tags["wording"], task.tags["success"]) for task in tasks] == [("template", "0.00")] * 2
    assert all(task.tags["not_reworded"] for task in tasks)
    assert not any("s3cret" in file.read_text(encoding="utf-8") for file in tmp_path.iterdir() if file.is_file())
    wrong = synthesize(desk, "--to", tmp_path / "no.jsonl", *asked, "--writer", served, "--writer-key", "OTHER_KEY")
    assert wrong.exit_code == 1
    assert "401" in wrong.stderr
    assert "another" not in wrong.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --to FILE to make tasks or --check FILE to check some; this has neither"),
        (["--to", "a.jsonl", "--check", "b.jsonl"], "this has both"),
        (["--to", "a.jsonl", "--setup", "seed=7"], "--setup is 'seed=7', which is not valid JSON"),
        (["--to", "a.jsonl", "--setup", "7"], "--setup is '7'; it must be an object"),
        (
            ["--to", "a.jsonl", "--phrase", "cancel it"],
            "--phrase is 'cancel it'; give a name and a value, such as 'book=Book",
        ),
        (["--to", "a.jsonl", "--phrase", "x=y", "--phrase", "x=z"], "--phrase names 'x' twice; keep one of them"),
        (["--to", "a.jsonl", "--difficulty", "easy"], "--difficulty is 'easy'; give two shares"),
        (["--to", "a.jsonl", "--writer-key", "KEY"], "--writer-key does nothing without --writer"),
        (["--check", "nowhere.jsonl"], "'nowhere.jsonl', and there is no such file"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_fix(
    words: list[str], message: str, desk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = synthesize(desk, *words)
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "a.jsonl").exists()
