"""A disk that fills up during a training, and what is not one."""

import errno
import shutil
from functools import partial
from pathlib import Path

import pytest
from full_disk import files_of_at_most
from test_training_runs import TINY, add, even_letters, tasks

import sdk


def test_a_disk_that_is_full_when_a_checkpoint_is_written_is_named_and_the_run_goes_on_from_there(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    weights = (tiny_model_dir / "model.safetensors").stat().st_size
    call = partial(sdk.train, [add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run", TINY)
    with (
        files_of_at_most(weights * 3 // 2),
        pytest.raises(sdk.RunFolderError, match="no space left to write"),
    ):
        call()  # the optimiser's moments take twice what the weights take
    assert call().model_dir.is_dir()


def test_another_error_of_the_system_in_a_training_is_not_told_as_a_full_disk(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr("sdk.trainer.warm_start.WarmStartTrainer.train", refused)
    with pytest.raises(ConnectionRefusedError, match="Connection refused"):
        sdk.train([add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run", TINY)


def test_a_finished_run_that_only_reports_needs_no_space_for_a_training_and_a_longer_one_does(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = partial(sdk.train, [add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run")
    first = call(TINY)
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=100_000))
    assert call(TINY).report.conditions == first.report.conditions
    with pytest.raises(sdk.RunFolderError, match=r"0\.00 GB free and the run needs about"):
        call({**TINY, "grpo.max_steps": 5})
