"""The lock beside a file of tasks: one writer at a time, and nothing left of it."""

from pathlib import Path

import pytest

from sdk.errors import RunFolderError
from sdk.synthesis.synthesis_run import ProgressFile


def test_a_file_of_tasks_has_one_writer_and_no_lock_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for _ in range(2):
        with ProgressFile(path, {"seed": 1}):
            with pytest.raises(RunFolderError, match=r"t\.jsonl is being written by this process.*choose another file"):
                ProgressFile(path, {"seed": 1})
        assert [file.name for file in tmp_path.iterdir()] == ["t.work.jsonl"]
