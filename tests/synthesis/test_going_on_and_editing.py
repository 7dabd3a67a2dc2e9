"""A killed synthesis goes on without rework, and what people edit is checked against the tools, line by line."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from banks import Bank, bank

import sdk
from sandboxes.helpdesk import Helpdesk
from sdk.progress import Console
from sdk.tasks import load_tasks

MAKING = """
import sys, sdk
from sandboxes.helpdesk import Helpdesk
sdk.synthesize(Helpdesk(), 400, to=sys.argv[1], max_calls=2)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "tasks.jsonl"
    sdk.synthesize(Helpdesk(), 8, to=path, max_calls=2)
    return path


def edited(path: Path, to: Path, line: int, **changes: Any) -> Path:
    """A copy of a file of tasks with fields of one line changed."""
    rows = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    rows[line - 1] |= changes
    to.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return to


def attempts(work: Path) -> list[int]:
    lines = work.read_bytes().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [row["attempt"] for row in rows if "attempt" in row]


def test_a_killed_synthesis_goes_on_from_its_file_and_makes_what_it_would_have_made(
    tmp_path: Path, written: Path
) -> None:
    path, work = tmp_path / "tasks.jsonl", tmp_path / "tasks.work.jsonl"
    child = subprocess.Popen([sys.executable, "-c", MAKING, str(path)], start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not (work.exists() and len(attempts(work)) >= 5):
            assert child.poll() is None, "it ended before it was killed"
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    before = attempts(work)
    assert not path.exists()
    with open(work, "ab") as file:
        file.write(b'{"attempt": 99999, "ta')  # a line that the kill tore
    kept = sum("task" in json.loads(line) for line in work.read_text().splitlines()[:-1])
    made = sdk.synthesize(Helpdesk(), kept + 2, to=path, max_calls=2)
    after = attempts(work)
    assert after[: len(before)] == before
    assert after == list(range(len(after)))
    assert len(load_tasks(path)) == len(made.tasks) == kept + 2


def test_a_finished_file_is_left_as_it_is_and_more_tasks_are_added_to_it(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    first = sdk.synthesize(Helpdesk(), 3, to=path, max_calls=1)
    content = path.read_bytes()
    assert sdk.synthesize(Helpdesk(), 3, to=path, max_calls=1).attempts == first.attempts
    assert path.read_bytes() == content
    more = sdk.synthesize(Helpdesk(), 5, to=path, max_calls=1)
    assert list(more.tasks[:3]) == list(first.tasks)
    assert path.read_bytes().startswith(content)


def test_tasks_that_no_longer_hold_are_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tasks.jsonl"
    sdk.synthesize(bank(), 6, to=path, max_calls=1)
    content = path.read_bytes()
    monkeypatch.setattr(Bank, "unit", 11)
    with pytest.raises(
        sdk.ConfigError,
        match=r"\d of the 6 tasks made so far for .*tasks.jsonl do not hold any more: the tools' worlds",
    ):
        sdk.synthesize(bank(), 8, to=path, max_calls=1)
    assert path.read_bytes() == content


def test_a_task_whose_calls_hold_and_whose_answer_changed_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tasks.jsonl"
    made = sdk.synthesize(bank(), 6, to=path, max_calls=1)
    content = path.read_bytes()
    cities = [task for task in made.tasks if str(task.expected.get("answer")) in ("Bath", "York", "Hull")]
    writes = [task for task in made.tasks if task.expected["changes"]]
    assert cities
    made_before = Bank.__init__

    def moved(self: Any) -> None:
        made_before(self)
        for account in self.accounts.values():
            account["city"] = f"New {account['city']}ton"

    monkeypatch.setattr(Bank, "__init__", moved)
    said = rf"{len(cities) + len(writes)} of the 6 tasks made so far for .* do not hold any more"
    with pytest.raises(sdk.ConfigError, match=said):
        sdk.synthesize(bank(), 8, to=path, max_calls=1)
    assert path.read_bytes() == content


def test_going_on_in_worlds_that_changed_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, work, heard = tmp_path / "tasks.jsonl", tmp_path / "tasks.work.jsonl", io.StringIO()
    sdk.synthesize(bank(), 4, to=path, max_calls=1)
    sdk.synthesize(bank(), 5, to=path, max_calls=1, progress=Console(heard))
    assert "have changed" not in heard.getvalue()
    made_before = Bank.__init__

    def with_clerks(self: Any) -> None:
        made_before(self)
        self.clerks = {"C-1": {"name": "Eve"}}

    monkeypatch.setattr(Bank, "__init__", with_clerks)
    sdk.synthesize(bank(), 6, to=path, max_calls=1, progress=Console(heard))
    said = " ".join(heard.getvalue().split())
    assert "worlds have changed since" in said
    assert "attempts that were left out then are not made again" in said
    first, _, others = work.read_text(encoding="utf-8").partition("\n")
    begun = json.loads(first)
    del begun["first_state"]  # as an earlier version began it
    work.write_text(f"{json.dumps(begun)}\n{others}", encoding="utf-8")
    assert len(sdk.synthesize(bank(), 6, to=path, max_calls=1).tasks) == 6


def test_fewer_tasks_than_there_are_take_none_away(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    sdk.synthesize(bank(), 4, to=path, max_calls=1)
    content, work = path.read_bytes(), (tmp_path / "tasks.work.jsonl").read_bytes()
    said = r"n is 2, and .*tasks.work.jsonl has 4 tasks already.* give n=4 or more"
    with pytest.raises(sdk.ConfigError, match=said):
        sdk.synthesize(bank(), 2, to=path, max_calls=1)
    assert path.read_bytes() == content
    assert (tmp_path / "tasks.work.jsonl").read_bytes() == work


def test_an_edited_file_other_options_and_a_strange_file_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    sdk.synthesize(Helpdesk(), 2, to=path, max_calls=1)
    with pytest.raises(sdk.ConfigError, match=r"begun with other options: .*seed"):
        sdk.synthesize(Helpdesk(), 2, to=path, max_calls=1, seed=5)
    path.write_text(path.read_text(encoding="utf-8").replace("order", "purchase", 1), encoding="utf-8")
    with pytest.raises(sdk.ConfigError, match="was changed since it was written"):
        sdk.synthesize(Helpdesk(), 3, to=path, max_calls=1)
    strange = tmp_path / "mine.jsonl"
    strange.write_text('{"prompt": "mine"}\n', encoding="utf-8")
    with pytest.raises(sdk.ConfigError, match="exists already"):
        sdk.synthesize(Helpdesk(), 2, to=strange)
    assert strange.read_text(encoding="utf-8") == '{"prompt": "mine"}\n'


def test_what_was_written_holds_when_it_is_read_back_and_checked(written: Path) -> None:
    checked = sdk.check_tasks(Helpdesk(), written)
    assert [task.id for task in checked.tasks] == [task.id for task in load_tasks(written)]
    assert checked.problems == []
    checked.require_all()


def test_the_examples_own_tasks_are_solved_by_their_demonstrations() -> None:
    sample = load_tasks(Path(__file__).parents[2] / "examples" / "helpdesk" / "tasks.jsonl")[::80]
    checked = sdk.check_tasks(Helpdesk(), sample)
    assert len(checked.tasks) == len(sample), str(checked)


def call_of(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


def change_of(table: str, before: Any) -> dict[str, Any]:
    change = {"table": table, "key": "2342", "column": "status", "before": before, "after": "cancelled"}
    return {"changes": [change]}


UNWINNABLE = [
    (call_of("get_ordr", order_id="1"), "the tool 'get_ordr', which there is not; did you mean 'get_order'.*Correct"),
    (call_of("get_order", orderid="1"), "the argument 'orderid', .* did you mean 'order_id'.*Correct it"),
    (change_of("order", "open"), "the table 'order', which the state does not have; did you mean 'orders'"),
    (change_of("order", None), "the table 'order', which the state does not have"),
    (change_of("parcels", "open"), "the table 'parcels', .*its tables are .*orders"),
]


def test_names_that_may_be_right_are_no_problem_of_a_task() -> None:
    fine = [
        call_of("get_order", order_id={"$any": True}, note={"$absent": True}, memo=None),
        change_of("audit_log", None),  # may be a table that appears with its first row
        {"calls": "whatever my verifier compares"},
    ]
    tasks = [sdk.Task(prompt=f"Number {number}", expected=expected) for number, expected in enumerate(fine)]
    problems = sdk.check_tasks(Helpdesk(), tasks, verifier=lambda rollout: True).problems
    assert [problem.what.partition(",")[0] for problem in problems] == ["it has no demonstration"] * 3


def test_each_edit_that_breaks_a_task_is_named_with_its_line_and_the_fix(written: Path, tmp_path: Path) -> None:
    tasks = load_tasks(written)
    fact = next(place for place, task in enumerate(tasks, 1) if task.tags["end"] == "fact")
    change = next(place for place, task in enumerate(tasks, 1) if task.tags["end"] == "change")
    first, deed = tasks[fact - 1], tasks[change - 1]
    calls = [message.model_dump(exclude_defaults=True) for message in first.demonstration]
    broken = json.loads(json.dumps(calls).replace(first.expected["calls"][0]["name"], "get_weather"))
    cases: list[tuple[int, dict[str, Any], str]] = [
        (fact, {"expected": {**first.expected, "answer": "Atlantis"}}, "Correct `expected`"),
        (fact, {"prompt": "What is it?"}, "the request says nothing of .* name it in the prompt"),
        (fact, {"prompt": f"{first.prompt} {first.expected['answer']}"}, "says the answer .* take it out"),
        (fact, {"demonstration": []}, "has no demonstration.* add the assistant messages"),
        (fact, {"demonstration": broken}, "calls 'get_weather', which the tools do not have; they are .*get_order"),
        (fact, {"expected": {}}, "expects nothing that can be checked"),
        (fact, {"expectd": {}}, "unknown field 'expectd'; did you mean 'expected'"),
        (fact, {"setup": {"seed": 10**6}}, "Correct `expected`|is refused"),
        *((fact, {"expected": expected, "demonstration": []}, message) for expected, message in UNWINNABLE),
        (change, {"expected": {**deed.expected, "changes": []}}, "final_state 0: not asked for: .*Correct `expected`"),
    ]
    for number, (line, changes, message) in enumerate(cases):
        path = edited(written, tmp_path / f"{number}.jsonl", line, **changes)
        checked = sdk.check_tasks(Helpdesk(), path)
        assert len(checked.tasks) == len(tasks) - 1, str(checked)
        with pytest.raises(sdk.ConfigError, match=rf"{number}.jsonl, line {line}[ :](?s:.*){message}"):
            checked.require_all()


def test_two_tasks_that_ask_the_same_are_named_also_where_they_expect_different_things(
    written: Path, tmp_path: Path
) -> None:
    rows = written.read_text(encoding="utf-8").splitlines()
    twin = json.loads(rows[0]) | {"id": "twin"}
    other = twin | {"id": "other", "prompt": twin["prompt"].upper(), "expected": {**twin["expected"], "answer": "x"}}
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join([*rows, json.dumps(twin), json.dumps(other)]), encoding="utf-8")
    shown = str(sdk.check_tasks(Helpdesk(), path))
    assert f"line {len(rows) + 1} (task 'twin'): it asks the same as" in shown
    assert f"line {len(rows) + 2} (task 'other')" in shown
    assert "but expects something else" in shown


@pytest.mark.parametrize(
    "line",
    [{"attempt": 90, "task": {"promt": 7}, "shape": "x"}, {"attempt": "1", "left_out": "x"}, {"left_out": "x"}],
)
def test_a_damaged_progress_file_is_named_with_what_to_do(tmp_path: Path, written: Path, line: dict[str, Any]) -> None:
    work = tmp_path / "tasks.work.jsonl"
    work.write_bytes(written.with_name(work.name).read_bytes() + json.dumps(line).encode() + b"\n")
    (tmp_path / "tasks.jsonl").write_bytes(written.read_bytes())
    with pytest.raises(sdk.ConfigError, match=r"tasks\.work\.jsonl is damaged: .*or give another path"):
        sdk.synthesize(Helpdesk(), 8, to=tmp_path / "tasks.jsonl", max_calls=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"difficulty": 0.5, "policy": "embedded"}, "difficulty is 0.5; give two shares that rise"),
        ({"difficulty": (0.1, "high"), "policy": "embedded"}, "difficulty is .*; give two shares that rise"),
    ],
)
def test_options_of_another_type_are_plain_errors(options: dict[str, Any], said: str) -> None:
    with pytest.raises(sdk.ConfigError, match=said):
        sdk.synthesize(Helpdesk(), 8, **options)
