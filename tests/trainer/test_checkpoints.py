"""Which checkpoint a resumed run goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
