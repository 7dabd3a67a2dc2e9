"""A run on disk: started, written, read back, refused where it must be."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.records import ToolResult
from sdk.errors import RunFolderError
from sdk.records import CallRecord, Message, Rollout, Task, TokenRow, ToolCall, Verdict
from sdk.traces import RunFolder
from sdk.traces.json_text import dump_json

CONFIG: dict[str, Any] = {"model": "small", "seed": 7, "grpo": {"lr": 1e-5, "seed": 8}}


def rollout(rollout_id: str, step: int = -1, **fields: Any) -> Rollout:
    return Rollout(id=rollout_id, task=Task(prompt="Where is order 4417?"), step=step, **fields)


def start(path: Path, **options: Any) -> RunFolder:
    return RunFolder.create_or_resume(path, CONFIG, **options)


# ---- starting and resuming


def test_a_new_run_writes_down_what_it_is(tmp_path: Path) -> None:
    with start(tmp_path / "deep" / "run") as run:
        info = json.loads((run.path / "run.json").read_text())
    assert info["config"] == CONFIG
    assert info["seeds"] == {"seed": 7, "grpo.seed": 8}
    assert info["format_version"] == 1
    assert {"python", "torch", "transformers", "trl", "mcp"} <= info["versions"].keys()
    assert info["created_at"].endswith("+00:00")
    assert not run.resumed


def test_the_same_run_goes_on_with_what_it_wrote(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.append_rollout("grpo", rollout("a"))
        run.append_metrics({"step": 0, "reward": 0.5})
        run.finish_stage("warm_start", {"loss": 0.1})
    with start(tmp_path) as run:
        assert run.resumed
        run.append_rollout("grpo", rollout("b"))
        assert [r.id for r in run.read_rollouts("grpo")] == ["a", "b"]
        assert run.read_metrics() == [{"step": 0, "reward": 0.5}]
        assert run.stage("warm_start") == {"loss": 0.1}
        assert run.stage("grpo") is None
        assert run.rollout_stages() == ["grpo"]
        assert {rollout.id for rollout in run.iter_rollouts("grpo")} == {"a", "b"}
        assert len(run.info["resumed"]) == 1


def test_other_versions_are_said_on_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(tmp_path, versions={"torch": "2.9"}).close()
    with caplog.at_level(logging.WARNING):
        start(tmp_path, versions={"torch": "2.10"}).close()
    assert "torch 2.9 -> 2.10" in caplog.text


def test_another_run_in_the_folder_is_refused_naming_what_differs(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.append_metrics({"step": 0})
    with pytest.raises(RunFolderError, match=r"grpo\.lr is 1e-05 in the folder and 2e-05 now.*another output_dir"):
        RunFolder.create_or_resume(tmp_path, {**CONFIG, "grpo": {"lr": 2e-5, "seed": 8}})
    with start(tmp_path) as run:  # the first run is unharmed
        assert run.resumed


def test_other_files_in_the_folder_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.docx").write_text("years of work")
    with pytest.raises(RunFolderError, match=r"not empty and holds no run \(thesis\.docx\)"):
        start(tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.docx"]


def test_a_run_killed_while_it_was_created_does_not_block_its_folder(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text('{"pid": 1, "host": "gone"}')
    (tmp_path / ".run.json.tmp").write_text('{"format_ver')
    for folder in ("rollouts", "stages", "checkpoints"):
        (tmp_path / folder).mkdir()
    (own := tmp_path / "rollouts" / "mine.jsonl").touch()
    with pytest.raises(RunFolderError, match=r"not empty and holds no run \(rollouts\)"):
        start(tmp_path)
    own.unlink()
    with start(tmp_path) as run:
        assert not run.resumed


def test_a_run_that_ends_before_its_run_json_is_written_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(source: Any, target: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path)
    assert not (tmp_path / "run.json").exists()
    with start(tmp_path) as run:
        assert not run.resumed


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format_version": 99}', '{"format_version": 1}'])
def test_a_damaged_or_newer_run_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"damaged|format version"):
        start(tmp_path)


def test_a_config_without_stable_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="function"):
        RunFolder.create_or_resume(tmp_path / "run", {"verifier": lambda r: 1.0})
    with pytest.raises(RunFolderError, match="cannot be stored"):
        RunFolder.create_or_resume(tmp_path / "run", {"lr": math.nan})
    assert not (tmp_path / "run").exists()


# ---- folders that cannot be written


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("here first")
    for path in (file, file / "run"):
        with pytest.raises(RunFolderError, match=r"file is in the way"):
            start(path)
    assert file.read_text() == "here first"


@pytest.mark.parametrize("parent", ["/proc", "/sys"])
def test_a_read_only_place_is_refused_before_work_begins(parent: str) -> None:
    if not Path(parent).is_dir():
        pytest.skip(f"no {parent} here")
    with pytest.raises(RunFolderError, match=r"cannot be written.*choose"):
        start(Path(parent) / "toolbake-run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; /proc and /sys are tested above")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match=r"cannot be written"):
        start(tmp_path)


def test_too_little_space_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"needs about 1000000000\.00 GB"):
        start(tmp_path / "run", needed_bytes=10**18)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_said_and_what_was_written_stays(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.append_rollout("grpo", rollout("a"))
        (tmp_path / "stages" / ".grpo.json.tmp").symlink_to("/dev/full")
        with pytest.raises(RunFolderError, match=r"no space left to write .*stages/grpo\.json; free some"):
            run.finish_stage("grpo", {})
        assert run.stage("grpo") is None
        (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(RunFolderError, match=r"no space left to write .*metrics\.jsonl; free some"):
            run.append_metrics({"step": 0})
        assert [r.id for r in run.read_rollouts("grpo")] == ["a"]


# ---- rollouts


def test_a_rollout_comes_back_as_it_was(tmp_path: Path) -> None:
    call = ToolCall(id="c1", name="get_order", arguments={"id": 4417, "half \ud83d": "a\u2028b\n\x00ü"})
    written = rollout(
        "a",
        step=3,
        messages=[Message(role="assistant", content="line\nline \ud83d", tool_calls=[call])],
        calls=[CallRecord(turn=0, call=call, result=ToolResult(text="", structured={"x": [1, None, 2.5]}))],
        rows=[TokenRow(prompt_ids=[1], completion_ids=[2], sampled=[True], logprobs=[-0.1234567890123], versions=[0])],
        verdict=Verdict(score=1 / 3, components={"a": 0.1}, explanation="…"),
    )
    with start(tmp_path) as run:
        run.append_rollout("grpo", written)
        assert run.read_rollouts("grpo") == [written]
    assert len((tmp_path / "rollouts" / "grpo.jsonl").read_bytes().splitlines()) == 1


def test_numbers_json_does_not_know_are_spelled_out_in_tool_results(tmp_path: Path) -> None:
    call = ToolCall(id="c1", name="mean")
    record = CallRecord(turn=0, call=call, result=ToolResult(text="nan", structured={"mean": math.nan}))
    with start(tmp_path) as run:
        run.append_rollout("grpo", rollout("a", calls=[record]))
        assert run.read_rollouts("grpo")[0].calls[0].result.structured == {"mean": "nan"}


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters()),
        lambda v: st.lists(v) | st.dictionaries(st.text(st.characters()), v),
    )
)
def test_any_plain_value_survives_as_one_line(value: Any) -> None:
    data = dump_json({"value": value})
    assert b"\n" not in data
    assert json.loads(data) == {"value": value}


def test_an_id_counts_once_in_a_stage_also_after_a_resume(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.append_rollout("grpo", rollout("a"))
        run.append_rollout("eval", rollout("a"))
        with pytest.raises(RunFolderError, match="'a' already"):
            run.append_rollout("grpo", rollout("a"))
    with start(tmp_path) as run:
        with pytest.raises(RunFolderError, match="'a' already"):
            run.append_rollout("grpo", rollout("a"))
        assert len(run.read_rollouts("grpo")) == 1


def test_a_log_probability_that_is_no_number_is_refused(tmp_path: Path) -> None:
    row = TokenRow(prompt_ids=[1], completion_ids=[2], sampled=[True], logprobs=[-math.inf], versions=[0])
    with start(tmp_path) as run:
        with pytest.raises(ValueError, match="row 0"):
            run.append_rollout("grpo", rollout("a", rows=[row]))
        assert run.read_rollouts("grpo") == []


def test_what_json_cannot_hold_is_refused_and_what_is_too_deep_to_be_read_is_damaged(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    with start(tmp_path) as run:
        for state, why in ((deep, "levels deep"), (object(), "Unable to serialize")):
            with pytest.raises(RunFolderError, match=f"rollout 'a' holds what cannot be written: .*{why}"):
                run.append_rollout("grpo", rollout("a", final_state={"x": state}))
        run.append_rollout("grpo", rollout("a"))
        assert [one.id for one in run.read_rollouts("grpo")] == ["a"]
        with open(run.path / "rollouts" / "grpo.jsonl", "a") as file:
            file.write("[" * 50_000 + "]" * 50_000 + "\n")
        with pytest.raises(RunFolderError, match=r"grpo\.jsonl, line 2, is damaged"):
            run.read_rollouts("grpo")


@pytest.mark.parametrize("stage", ["", "../grpo", "a/b", "a.discarded", ".lock", "GRPO", "a b", "a\n", "x" * 65])
def test_a_stage_name_cannot_lead_elsewhere(tmp_path: Path, stage: str) -> None:
    with start(tmp_path) as run:
        for use in (
            lambda: run.append_rollout(stage, rollout("a")),
            lambda: run.read_rollouts(stage),
            lambda: run.drop_after(stage, 0),
            lambda: run.finish_stage(stage, {}),
            lambda: run.stage(stage),
        ):
            with pytest.raises(RunFolderError, match="stage name"):
                use()


def test_rollouts_after_the_checkpoint_are_set_aside_and_may_come_again(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        for step in range(4):
            run.append_rollout("grpo", rollout(f"s{step}", step=step))
    with start(tmp_path) as run:
        assert run.drop_after("grpo", 1) == 2
        assert [r.id for r in run.read_rollouts("grpo")] == ["s0", "s1"]
        run.append_rollout("grpo", rollout("s2", step=2))
        assert [r.step for r in run.read_rollouts("grpo")] == [0, 1, 2]
        assert run.drop_after("grpo", 5) == 0
        assert run.rollout_stages() == ["grpo"]
    discarded = (tmp_path / "rollouts" / "grpo.discarded.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in discarded] == ["s2", "s3"]


def test_a_kill_between_the_two_files_of_a_drop_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tmp_path) as run:
        for step in range(3):
            run.append_rollout("grpo", rollout(f"s{step}", step=step))

        def killed(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("sdk.traces.journal.os.replace", killed)
            with pytest.raises(KeyboardInterrupt):
                run.drop_after("grpo", 0)
        assert [r.id for r in run.read_rollouts("grpo")] == ["s0", "s1", "s2"]
        assert run.drop_after("grpo", 0) == 2
        assert [r.id for r in run.read_rollouts("grpo")] == ["s0"]
    assert len((tmp_path / "rollouts" / "grpo.discarded.jsonl").read_text().splitlines()) == 2


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.append_rollout("grpo", rollout("a"))
    file = tmp_path / "rollouts" / "grpo.jsonl"
    file.write_bytes(b'{"id": \n' + file.read_bytes())
    with start(tmp_path) as run, pytest.raises(RunFolderError, match=r"grpo\.jsonl, line 1, is damaged"):
        run.read_rollouts("grpo")
    file.write_bytes(b'{"id": "x"}\n')
    with start(tmp_path) as run, pytest.raises(RunFolderError, match=r"rollout 'x' is damaged"):
        run.read_rollouts("grpo")


@pytest.mark.parametrize("content", ["{}", '{"data": 7}', "[]"])
def test_a_marker_of_a_finished_stage_that_was_edited_is_named(tmp_path: Path, content: str) -> None:
    with start(tmp_path) as run:
        run.finish_stage("grpo", {})
        (tmp_path / "stages" / "grpo.json").write_text(content)
        with pytest.raises(RunFolderError, match=r"grpo\.json is damaged"):
            run.stage("grpo")


# ---- metrics


@pytest.mark.parametrize(
    ("metrics", "named"),
    [({"loss": math.nan}, "'loss'"), ({"a": {"b": [0.0, math.inf]}}, "'a.b.1'"), ({"loss": object()}, "'loss'")],
)
def test_metrics_that_are_no_numbers_are_refused_by_name(tmp_path: Path, metrics: dict[str, Any], named: str) -> None:
    with start(tmp_path) as run:
        with pytest.raises(ValueError, match=named):
            run.append_metrics(metrics)
        assert run.read_metrics() == []


def test_metrics_after_the_checkpoint_are_set_aside(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.append_metrics({"note": "no step"})
        for stage in ("warm_start", "grpo"):
            for step in range(3):
                run.append_metrics({"stage": stage, "step": step})
        assert run.drop_metrics_after(0, stage="grpo") == 2
        kept = [(m.get("stage"), m.get("step")) for m in run.read_metrics()]
        assert kept == [(None, None), ("warm_start", 0), ("warm_start", 1), ("warm_start", 2), ("grpo", 0)]
        assert run.drop_metrics_after(-1) == 4
        assert run.read_metrics() == [{"note": "no step"}]


# ---- reading only


def test_a_run_can_be_read_while_it_is_written_but_not_changed(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.append_rollout("grpo", rollout("a"))
        reader = RunFolder.open_to_read(tmp_path)
        assert [r.id for r in reader.read_rollouts("grpo")] == ["a"]
        assert reader.config == CONFIG
        for change in (
            lambda: reader.append_rollout("grpo", rollout("b")),
            lambda: reader.append_metrics({"step": 0}),
            lambda: reader.finish_stage("grpo", {}),
            lambda: reader.drop_after("grpo", 0),
        ):
            with pytest.raises(RunFolderError, match="read only"):
                change()


def test_reading_leaves_out_a_line_that_is_just_being_written(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.append_metrics({"step": 0})
        with open(tmp_path / "metrics.jsonl", "ab") as file:
            file.write(b'{"step": 1')
        assert RunFolder.open_to_read(tmp_path).read_metrics() == [{"step": 0}]


def test_reading_where_there_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        RunFolder.open_to_read(tmp_path)


def test_paths_of_a_run_lie_in_its_folder(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        assert run.checkpoints.is_dir()
        for path in (run.model_dir, run.report_json, run.curve_png, run.checkpoints):
            assert path.parent == tmp_path
