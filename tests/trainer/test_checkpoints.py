"""Which checkpoint a resumed run goes on from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import sdk
from sdk.trainer.base_trainer import ThinCheckpoints
from sdk.trainer.learner import newest_checkpoint


def _checkpoint(folder: Path, step: int, state: str) -> Path:
    made = folder / f"checkpoint-{step}"
    made.mkdir()
    (made / "trainer_state.json").write_text(state)
    return made


def test_the_newest_whole_checkpoint_is_taken_and_those_cut_off_by_a_kill_are_removed(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 2, json.dumps({"global_step": 2}))
    whole = _checkpoint(tmp_path, 10, json.dumps({"global_step": 10}))
    cut_off = _checkpoint(tmp_path, 12, '{"global_step": 1')
    unwritten = tmp_path / "checkpoint-14"
    unwritten.mkdir()

    assert newest_checkpoint(tmp_path) == (whole, 10)
    assert not cut_off.exists()
    assert not unwritten.exists()


def test_a_checkpoint_that_cannot_be_read_is_an_error_and_stays(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 2, json.dumps({"global_step": 2}))
    unread = tmp_path / "checkpoint-4"
    (unread / "trainer_state.json").mkdir(parents=True)  # as when its disk does not answer: there, but not to be read

    with pytest.raises(OSError, match="checkpoint-4"):
        newest_checkpoint(tmp_path)

    assert unread.exists()


def test_a_checkpoint_whose_removal_a_kill_cut_off_is_none_to_choose_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3, 4):
        folder = _checkpoint(tmp_path, step, json.dumps({"global_step": step}))
        (folder / "model.safetensors").write_text("weights")

    def killed(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        raise KeyboardInterrupt

    config = sdk.TrainConfig.of({"grpo.max_steps": 20, "grpo.save_steps": 1})
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            ThinCheckpoints(config).on_save(SimpleNamespace(output_dir=str(tmp_path)), None, None)

    newest_checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
