"""Every file of a saved model is covered: what was changed, added or removed is named; what was cleared away is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from evidence_runs import CONFIG, named, play, verified

from sdk.errors import RunFolderError
from sdk.evidence import canonical
from sdk.traces import RunFolder
from sdk.traces.journal import Journal

FILES = (
    *("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"),
    *("toolbake.json", "model.safetensors.index.json", "adapter/adapter_config.json"),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that kept a checkpoint and a model."""
    with RunFolder.create_or_resume(tmp_path / "run", CONFIG) as folder:
        play(folder, "grpo", ["a"])
        for saved in (folder.checkpoints / "trained", folder.model_dir):
            for name in FILES:
                (saved / name).parent.mkdir(parents=True, exist_ok=True)
                (saved / name).write_text(f"what {name} has")
            folder.record_weights(saved, version=1)
    assert verified(tmp_path / "run").findings == []
    return tmp_path / "run"


@pytest.mark.parametrize("saved", ["model", "checkpoints/trained"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_saved_folder_that_was_changed_or_removed_is_named(run: Path, saved: str, name: str) -> None:
    file = run / saved / name
    file.write_text("other")
    assert named(verified(run)) == [f"changed {saved}/{name}:"]
    file.unlink()
    assert named(verified(run)) == [f"missing {saved}/{name}:"]


@pytest.mark.parametrize("saved", ["model", "checkpoints/trained"])
@pytest.mark.parametrize(
    "name", ["adapter_config.json", "adapter_model.safetensors", "pytorch_model.bin", "more/x.json"]
)
def test_a_file_that_was_put_into_a_saved_folder_is_named(run: Path, saved: str, name: str) -> None:
    (run / saved / name).parent.mkdir(exist_ok=True)
    (run / saved / name).write_text("a stranger's")
    assert named(verified(run)) == [f"added {saved}/{name}:"]


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("model2/model.safetensors", "model2"),
        (".model/x.bin", ".model"),
        ("checkpoints/step-9/model.safetensors", "checkpoints/step-9"),
        ("checkpoints/more.bin", "checkpoints/more.bin"),
    ],
)
def test_what_was_put_beside_a_saved_folder_is_named(run: Path, file: str, place: str) -> None:
    (run / file).parent.mkdir(exist_ok=True)
    (run / file).write_text("a stranger's")
    assert named(verified(run)) == [f"added {place}:"]


def test_a_link_beside_the_model_is_named_and_a_loose_file_is_a_note(run: Path, tmp_path: Path) -> None:
    (run / "log.txt").write_text("what the user noted")
    found = verified(run)
    assert found.findings == []
    assert "log.txt is not a file of a run, and is not covered" in found.notes
    (run / "stages").rename(tmp_path / "stages")
    (run / "stages").symlink_to(tmp_path / "stages")
    (run / "checkpoints" / "chosen").symlink_to("trained")
    assert named(verified(run)) == ["added checkpoints/chosen:", "added stages:"]


def test_files_that_a_run_writes_beside_its_evidence_are_no_strangers(run: Path) -> None:
    with RunFolder.create_or_resume(run, CONFIG) as folder:
        folder.append_metrics({"stage": "grpo", "step": 1, "reward": 0.5})
        folder.drop_metrics_after(0)
    for name in ("demonstrations.jsonl", "labels.jsonl"):
        (run / name).write_text("")
    assert (run / "metrics.discarded.jsonl").is_file()
    assert [note for note in verified(run).notes if "is not a file of a run" in note] == []


def test_what_a_run_saves_while_it_is_not_closed_is_a_note(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path / "run", CONFIG) as folder:
        for saved in ("checkpoints/grpo/checkpoint-1", "checkpoints/trained"):
            (folder.path / saved).mkdir(parents=True)
        found = verified(folder.path)
    assert named(found) == []
    assert any(note.startswith("checkpoints/trained was not announced") for note in found.notes)
    assert named(verified(tmp_path / "run")) == ["added checkpoints/trained:"]


def test_a_link_that_was_put_into_a_saved_folder_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (run / "model" / "additional_chat_templates").symlink_to(tmp_path / "outside")
    (run / "model" / "adapter_config.json").symlink_to("nowhere")
    assert named(verified(run)) == [
        "added model/adapter_config.json:",
        "added model/additional_chat_templates:",
    ]


def test_saved_folders_that_were_cleared_away_are_a_note(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    shutil.move(run / "model", run.parent / "model")
    found = verified(run)
    assert found.findings == []
    for saved in ("checkpoints/trained", "model"):
        assert f"{saved} is not there any more: its {len(FILES)} files were not compared" in found.notes
    (run / "model").write_text("no folder")
    assert named(verified(run)) == [f"missing model/{name}:" for name in sorted(FILES)]


def test_what_is_written_into_a_saved_folder_can_be_recorded_again(run: Path) -> None:
    with RunFolder.create_or_resume(run, CONFIG) as folder:
        (folder.model_dir / "sampling.json").write_text(json.dumps({"temperature": 1.0}))
        folder.record_weights(folder.model_dir, version=1)
    assert verified(run).findings == []


@pytest.mark.parametrize("name", ["evidence.jsonl", "calls.jsonl", "rollouts/grpo.jsonl"])
def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    run: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = max(len(line) for file in run.rglob("*.jsonl") for line in file.read_bytes().splitlines(keepends=True))
    monkeypatch.setattr(canonical, "MOST_BYTES", most)
    assert verified(run).findings == []
    lines = len((run / name).read_bytes().splitlines())
    with open(run / name, "r+b") as file:
        file.seek(0, 2)
        file.truncate(file.tell() + (1 << 40))  # a hole: it needs no disk, and would need a terabyte of memory
    for read in (verified, lambda path: list(Journal(path / name).read())):
        with pytest.raises(RunFolderError, match=rf"{name}, line {lines + 1} is longer than"):
            read(run)


@pytest.mark.parametrize("name", ["run.json", "evidence.root.json", "evidence.sig.json"])
def test_a_file_without_an_end_is_named_before_it_fills_the_memory(run: Path, name: str) -> None:
    with open(run / name, "ab") as file:
        file.truncate(1 << 40)
    assert name in {finding.file for finding in verified(run).findings}
