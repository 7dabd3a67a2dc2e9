"""A folder in which a run was only begun is not lost to the next call; unscored rollouts can be set aside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sdk.errors import RunFolderError
from sdk.records import Failure, Rollout, Task, Verdict
from sdk.traces import RunFolder

FAILURE = Failure(boundary="tools", kind="ServerDied", message="it exited with 137")


def rollout(rollout_id: str, *, scored: bool = True, failed: bool = False) -> Rollout:
    return Rollout(
        id=rollout_id,
        task=Task(prompt="Where is order 4417?"),
        verdict=Verdict(score=1.0) if scored else None,
        failure=FAILURE if failed else None,
    )


def test_a_run_that_did_nothing_is_taken_over_by_another_configuration(tmp_path: Path) -> None:
    RunFolder.create_or_resume(tmp_path, {"model": "mistyped", "seed": 1}).close()
    with RunFolder.create_or_resume(tmp_path, {"model": "right", "seed": 2}) as run:
        assert not run.resumed
        assert run.config == {"model": "right", "seed": 2}
    info = json.loads((tmp_path / "run.json").read_text())
    assert (info["config"]["model"], info["seeds"], info["resumed"]) == ("right", {"seed": 2}, [])
    with RunFolder.create_or_resume(tmp_path, {"model": "right", "seed": 2}) as run:
        assert run.resumed


WORK: dict[str, Callable[[RunFolder], object]] = {
    "a rollout": lambda run: run.append_rollout("untrained", rollout("a")),
    "a metric": lambda run: run.append_metrics({"step": 0}),
    "a stage": lambda run: run.finish_stage("untrained", {}),
    "a checkpoint": lambda run: (run.checkpoints / "warm_start").mkdir(),
    "a model": lambda run: (run.model_dir.mkdir(), (run.model_dir / "config.json").write_text("{}")),
    "discarded rollouts": lambda run: (
        run.append_rollout("untrained", rollout("a", scored=False)),
        run.drop_unscored("untrained"),
    ),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_a_run_that_did_anything_is_never_taken_over(tmp_path: Path, work: Callable[[RunFolder], object]) -> None:
    with RunFolder.create_or_resume(tmp_path, {"model": "a"}) as run:
        work(run)
    with pytest.raises(RunFolderError, match="holds another run: model is"):
        RunFolder.create_or_resume(tmp_path, {"model": "b"})
    assert RunFolder.open_to_read(tmp_path).config == {"model": "a"}


def test_a_run_that_is_still_open_is_not_taken_over(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, {"model": "a"}) as run:
        with pytest.raises(RunFolderError, match="is being written by"):
            RunFolder.create_or_resume(tmp_path, {"model": "b"})
        assert RunFolder.open_to_read(tmp_path).fingerprint == run.fingerprint


def test_work_of_a_faster_process_is_seen_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sdk.traces import run_folder

    RunFolder.create_or_resume(tmp_path, {"model": "a"}).close()
    real = run_folder.RunLock

    def lock_after_another_wrote(path: Path) -> object:
        (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
        return real(path)

    monkeypatch.setattr(run_folder, "RunLock", lock_after_another_wrote)
    with pytest.raises(RunFolderError, match="holds another run"):
        RunFolder.create_or_resume(tmp_path, {"model": "b"})


def test_unscored_rollouts_are_set_aside_and_may_come_again(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, {}) as run:
        run.append_rollout("eval", rollout("scored"))
        run.append_rollout("eval", rollout("no verdict", scored=False))
        run.append_rollout("eval", rollout("failed", scored=False, failed=True))
        run.append_rollout("eval", rollout("failed after the verdict", failed=True))
        assert run.drop_unscored("eval") == 3
        assert [r.id for r in run.read_rollouts("eval")] == ["scored"]
        run.append_rollout("eval", rollout("failed"))
        assert run.drop_unscored("eval") == 0
        assert run.drop_unscored("another") == 0
    discarded = (tmp_path / "rollouts" / "eval.discarded.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in discarded] == ["no verdict", "failed", "failed after the verdict"]
