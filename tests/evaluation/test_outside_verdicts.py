"""A baseline from a file of verdicts that were made elsewhere, beside policies that are measured here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from test_many_policies import TASKS, get_order, knowing, says_shipped
from typer.testing import CliRunner

import sdk
from sdk.cli.app import app
from sdk.errors import ConfigError, RunFolderError
from sdk.evaluation.report import report_of

RIGHT = {"t0", "t3"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Right on t0 and t3; t5 has no verdict, and `other` is a task of another evaluation."""
    lines = [
        {"task": name, "score": float(name in RIGHT), "components": {"side_effects": float(name == "t1")}}
        for name in ("t0", "t1", "t2", "t3", "t4", "other")
    ]
    path = tmp_path / "large.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


async def measured(file: Path, **options: Any) -> sdk.Report:
    given = {"model": knowing(0, 1, 2, 4), "verdicts": {"large": file}, **options}
    return await sdk.evaluate_async([get_order], TASKS, says_shipped, **given)


async def test_a_policy_is_paired_by_task_with_verdicts_from_elsewhere(file: Path) -> None:
    report = await measured(file)
    assert list(report.conditions) == ["large", "scripted"]
    (pair,) = report.comparisons
    assert (pair.first, pair.second, pair.tasks, pair.families) == ("large", "scripted", 5, 3)
    assert (pair.gained, pair.lost, pair.left_out) == (3, 1, ["t5"])
    assert report.conditions["large"].components["side_effects"].mean == pytest.approx(0.2)


async def test_the_report_says_nothing_of_what_verdicts_from_elsewhere_took(file: Path) -> None:
    report = await measured(file)
    large = report.conditions["large"]
    assert (large.turns, large.calls, large.seconds, large.prompt_tokens) == (None, None, None, None)
    assert report.errors["large"].groups[0].kind == "unexplained"
    assert report.errors["scripted"].changes["unexplained"].fixed == 3  # errors of the baseline that it solves


async def test_several_policies_are_compared_with_the_verdicts_or_with_a_named_baseline(file: Path) -> None:
    models = {"a": knowing(0), "b": knowing(0, 1)}
    report = await measured(file, model=None, models=models)
    assert [(c.first, c.second) for c in report.comparisons] == [("large", "a"), ("large", "b")]
    report = await measured(file, model=None, models=models, baseline="b")
    assert [(c.first, c.second) for c in report.comparisons] == [("b", "large"), ("b", "a")]
    report = await measured(file, baseline="scripted")
    assert [(c.first, c.second) for c in report.comparisons] == [("scripted", "large")]
    report = await measured(file, baseline="large", tool_prompts=["full", "names"])
    assert [(c.first, c.second.rpartition(", ")[2]) for c in report.comparisons] == [
        ("large", "full schemas"),
        ("scripted, full schemas", "names only"),
    ]


async def test_the_report_is_made_again_with_the_verdicts_from_elsewhere(file: Path, tmp_path: Path) -> None:
    report = await measured(file, output_dir=tmp_path / "run")
    os.remove(file)
    again = report_of(tmp_path / "run", cluster_by="kind")
    assert again.conditions["large"].success is not None
    assert [c.gained for c in again.comparisons] == [c.gained for c in report.comparisons]
    assert [c.families for c in again.comparisons] == [2]


async def test_runs_with_other_verdicts_from_elsewhere_are_not_one_report(file: Path, tmp_path: Path) -> None:
    await measured(file, output_dir=tmp_path / "with")
    await measured(file, output_dir=tmp_path / "without", verdicts=None)
    with pytest.raises(ConfigError, match=r"with has the conditions scripted, large, and .*without has scripted;"):
        report_of(tmp_path / "without", tmp_path / "with")
    write(file, '{"task": "t0", "score": 0}')
    await measured(file, output_dir=tmp_path / "others")
    with pytest.raises(ConfigError, match="have different verdicts from elsewhere"):
        report_of(tmp_path / "with", tmp_path / "others")


async def test_another_file_of_verdicts_is_another_run(file: Path, tmp_path: Path) -> None:
    await measured(file, output_dir=tmp_path / "run")
    write(file, '{"task": "t0", "score": 0}')
    with pytest.raises(RunFolderError, match="verdicts"):
        await measured(file, output_dir=tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"task": "t0"}', "line 1 is not a verdict: score: Field required; write"),
        ('{"task": "t0", "score": true}', "line 1 is not a verdict: score: Input should be a valid number"),
        ('{"task": "t0", "score": "1"}', "line 1 is not a verdict: score: Input should be a valid number"),
        ('{"task": "t0", "score": 1}\n{"task": "t0", "score": 0}', "line 2 judges task 't0' again"),
        ('{"task": "elsewhere", "score": 1}', "judges none of the 6 tasks"),
        ("", "judges none of the 6 tasks"),
    ],
)
async def test_a_file_that_cannot_be_compared_with_is_refused(file: Path, text: str, told: str) -> None:
    write(file, text)
    with pytest.raises(ConfigError, match=told):
        await measured(file)


async def test_verdicts_on_what_is_no_task_are_left_out_with_a_warning(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, '{"task": "t0", "score": 1}\n{"task": "t-1", "score": 0}\n{"task": "t-2", "score": 0}')
    await measured(file)
    said = "2 of the 3 verdicts of 'large' are left out: no task has the id 't-1'; ids are like 't0'"
    assert [record.getMessage() for record in caplog.records] == [said]


async def test_a_line_ends_where_json_lines_end(file: Path) -> None:
    write(file, '{"task": "t0", "score": 1, "components": {"side\u2028effects": 0}}')
    report = await measured(file)
    assert report.conditions["large"].rollouts == 1


async def test_verdicts_need_a_name_of_their_own_and_a_file_that_is_there(file: Path, tiny_model_folder: Path) -> None:
    with pytest.raises(ConfigError, match="'a' is the name of a policy"):
        await measured(file, model=None, models={"a": knowing()}, verdicts={"a": file})
    with pytest.raises(ConfigError, match="'scripted, names only' is the name of a policy"):
        await measured(file, tool_prompts=["full", "names"], verdicts={"scripted, names only": file})
    by_name = {str(tiny_model_folder): file}  # which is known once the model is loaded
    with pytest.raises(ConfigError, match="is the name of a policy"):
        await measured(file, model=tiny_model_folder, verdicts=by_name)
    with pytest.raises(ConfigError, match="cannot be read"):
        await measured(file.with_name("missing.jsonl"))


def test_the_command_takes_verdicts_by_name(file: Path) -> None:
    told = CliRunner().invoke(app, ["evaluate", "x.json", "t.jsonl", "--verifier", "expected", "--verdicts", "large"])
    assert told.exit_code == 1
    assert "--verdicts is 'large'; give a name and a value, such as gpt-4=gpt-4.jsonl" in told.output
