"""A model's answers to the rows of a file: by a schema, each kept as it comes, and no row lost without a word."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from sdk.cli.app import app
from sdk.errors import ConfigError, VerifierError
from sdk.judging import label_rows, labelled_examples
from sdk.policies.endpoint import EndpointAgent
from sdk.policies.scripted import ScriptedAgent

ROWS = [{"prompt": "Why is it late?", "answer": said, "n": n} for n, said in enumerate(["ill", "no", "ill", "so"])]
FORM = {"enum": ["good", "bad"]}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return written(tmp_path / "rows.jsonl", ROWS)


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answering(answer: Callable[[dict[str, Any]], Any], asked: list[str] | None = None) -> ScriptedAgent:
    def reply(messages: Any, seed: int) -> str:
        rules, material = (message.content for message in messages)
        if asked is not None:
            asked.append(rules)
        check = re.search(r'"check": "(\w+)"', rules)[1]  # type: ignore[index]
        return json.dumps({"check": check, "answer": answer(json.loads(material))})

    return ScriptedAgent(reply)


async def label(rows: Path, model: Any, **options: Any) -> Any:
    to = rows.with_name("labelled.jsonl")
    return await label_rows(
        rows, to, **{"instructions": "Is a {reason} named?", "schema": FORM, "model": model, **options}
    )


async def test_rows_get_their_answers_in_their_order_and_equal_rows_are_asked_about_once(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.jsonl", [{**row, "n": 0} for row in ROWS])
    asked: list[str] = []
    found = await label(rows, answering(lambda row: "good" if row["answer"] == "ill" else "bad", asked), name="named")
    assert [row["named"] for row in read(found.path)] == ["good", "bad", "good", "bad"]
    assert [{**row, "named": 0} for row in read(found.path)] == [{**row, "n": 0, "named": 0} for row in ROWS]
    assert (found.labelled, found.asked, found.failed) == (4, 3, {})
    assert "Is a {reason} named?" in asked[0]
    assert '{"enum": ["good", "bad"]}' in asked[0]


class ByTable:
    """Is the same to the cache also when its table has changed, as models of one name are."""

    def __init__(self, table: dict[str, str]) -> None:
        self.table = table

    def __repr__(self) -> str:
        return "ByTable"

    def __call__(self, row: dict[str, Any]) -> str:
        return self.table[row["answer"]]


async def test_answers_that_do_not_fit_are_asked_for_again_and_named_with_their_line(rows: Path) -> None:
    table = {"ill": "good", "no": "perhaps", "so": "bad"}
    model = answering(ByTable(table))
    found = await label(rows, model)
    assert [row["n"] for row in read(found.path)] == [0, 2, 3]
    assert (found.labelled, found.asked) == (3, 5)
    ((where, why),) = found.failed.items()
    assert where == f"{rows}, line 2"
    assert "no verdict in 2 tries: the answer 'perhaps' is not what was asked for" in why
    table.update(dict.fromkeys(table, "bad"))
    again = await label(rows, model)
    assert [row["label"] for row in read(again.path)] == ["good", "bad", "good", "bad"]
    assert (again.labelled, again.asked) == (4, 1)


async def test_other_instructions_and_another_schema_are_other_questions(rows: Path) -> None:
    await label(rows, answering(lambda row: "good"))
    for options in ({"instructions": "Is it polite?"}, {"schema": {"enum": ["bad"]}}):
        found = await label(rows, answering(lambda row: "bad"), **options)
        assert ({row["label"] for row in read(found.path)}, found.asked) == ({"bad"}, 4)


class Stands(EndpointAgent):
    """Answers two questions, and no further one."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, "honest")
        self.left, self.stands = 2, anyio.Event()

    def start(self, tools: Any, **options: Any) -> Any:
        conversation: Any = super().start(tools, **options)
        self.left -= 1
        if self.left < 0:
            self.stands.set()
            conversation.reply = lambda _: anyio.sleep_forever()
        return conversation


async def test_an_interrupted_call_goes_on_where_it_was(endpoint: str, rows: Path) -> None:
    form = {"enum": ["good", "vague"]}
    agent = Stands(endpoint)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: label(rows, agent, schema=form, concurrency=1))
        await agent.stands.wait()
        group.cancel_scope.cancel()
    assert not rows.with_name("labelled.jsonl").exists()
    found = await label(rows, Stands(endpoint), schema=form)
    assert [row["label"] for row in read(found.path)] == ["good", "vague", "good", "vague"]
    assert found.asked == 2


async def test_at_most_so_many_questions_are_in_flight(rows: Path) -> None:
    written(rows, [{"n": n} for n in range(12)])
    waiting, most = 0, 0

    model = answering(lambda row: "good")
    start = model.start

    def start_slowly(*arguments: Any, **options: Any) -> Any:
        conversation: Any = start(*arguments, **options)
        answer = conversation.reply

        async def reply(messages: Any) -> Any:
            nonlocal waiting, most
            waiting += 1
            most = max(most, waiting)
            await anyio.wait_all_tasks_blocked()
            waiting -= 1
            return await answer(messages)

        conversation.reply = reply
        return conversation

    model.start = start_slowly  # type: ignore[method-assign]
    assert (await label(rows, model, concurrency=5)).labelled == 12
    assert most == 5


async def test_a_model_that_answers_nothing_is_not_asked_for_ever(endpoint: str, tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.jsonl", [{"n": n} for n in range(300)])
    asked: list[str] = []
    with pytest.raises(VerifierError, match="no verdict in 2 tries"):
        await label(rows, answering(lambda row: None, asked), concurrency=1)
    assert len(asked) == 2 * 20
    assert not rows.with_name("labelled.jsonl").exists()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ([{"label": 1}], {}, "line 1 has a field 'label' already"),
        ([{}, [1]], {}, "line 2: a list, not an object"),
        (ROWS, {"schema": {"type": "sentence"}}, "the schema is not a JSON Schema"),
        (ROWS, {"instructions": " "}, "instructions are empty"),
        (ROWS, {"name": ""}, "the name of the answer's field is empty"),
        ([], {}, "has no rows"),
        (ROWS, {"concurrency": 0}, "concurrency is 0"),
    ],
)
async def test_what_cannot_work_is_refused_before_the_model_is_asked(
    rows: Path, content: list[Any], options: dict[str, Any], message: str
) -> None:
    written(rows, content)
    asked: list[str] = []
    with pytest.raises(ConfigError, match=message):
        await label(rows, answering(lambda row: "good", asked), **options)
    assert asked == []


async def test_a_file_of_somebody_else_is_not_written_over(rows: Path) -> None:
    rows.with_name("labelled.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="was written by something else, or changed"):
        await label(rows, answering(lambda row: "good"))
    assert rows.with_name("labelled.jsonl").read_text() == "mine"
    with pytest.raises(ConfigError, match="was written by something else, or changed"):
        await label_rows(rows, rows, instructions="x", schema=FORM, model=None)


def test_the_command_stops_at_its_limit_goes_on_and_writes_what_a_judge_is_checked_with(
    endpoint: str, rows: Path
) -> None:
    written(rows, [{name: row[name] for name in ("prompt", "answer")} for row in ROWS[:2]])
    schema = rows.with_name("schema.json")
    schema.write_text('{"enum": ["good", "vague"]}')
    to = rows.with_name("labelled.jsonl")
    words = [*("judge", "label", str(rows), "--instructions", "Is a reason named?", "--schema", str(schema), "--quiet")]
    words += [*("--to", str(to), "--endpoint", endpoint, "--model", "honest", "--concurrency", "1")]
    first = CliRunner().invoke(app, [*words, "--max-calls", "1"])
    assert first.exit_code == 1
    assert "line 2: the judge's budget is spent: 1 of 1 calls" in first.output
    assert "rows without an answer: 1" in first.output
    assert len(read(to)) == 1
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.output) == (0, f"{to}: 2 rows, 1 questions\n")
    to.write_text(to.read_text().replace("vague", "bad"))
    assert [label for _, label in labelled_examples(to)] == [True, False]
    wrong = CliRunner().invoke(app, [*words[:-2], "--schema", "nowhere.json"])
    assert (wrong.exit_code, "nowhere.json cannot be read" in wrong.output) == (1, True)


async def test_labels_that_a_person_corrected_are_not_written_over(rows: Path) -> None:
    model = answering(lambda row: "good")
    found = await label(rows, model)
    found.path.write_text(found.path.read_text().replace("good", "bad", 1))
    with pytest.raises(ConfigError, match=r"labelled.jsonl was .*changed, as when labels are corrected"):
        await label(rows, model)
    assert [row["label"] for row in read(found.path)] == ["bad", "good", "good", "good"]
    found.path.rename(rows.with_name("corrected.jsonl"))
    assert (await label(rows, model)).asked == 0
