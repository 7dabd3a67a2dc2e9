"""A finished run is trained longer in its folder: the same run as one that went on, with the choice made again."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest
from test_training_runs import TINY, add, even_letters, tasks

import sdk
from sdk.evidence.run_verification import verify_run
from sdk.traces import RunFolder
from sdk.trainer.learner import Learner

# One rollout at a time and one rate for all steps: then nothing but the pause tells the two runs apart.
EXACT = {**TINY, "rollouts.concurrency": 1, "grpo.lr_scheduler_type": "constant", "grpo.save_steps": 10}
FIGURES = ("step", "loss", "grad_norm", "learning_rate", "reward", "trained_tokens")


def train(model: Path, folder: Path, steps: int, **options: Any) -> sdk.TrainResult:
    return sdk.train([add], tasks(), even_letters, model, folder, {**EXACT, **options, "grpo.max_steps": steps})


def figures(folder: Path) -> list[dict[str, Any]]:
    lines = RunFolder.open_to_read(folder).read_metrics()
    return [{name: line.get(name) for name in FIGURES} for line in lines if line["stage"] == "grpo"]


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


async def findings(folder: Path) -> list[str]:
    return [str(finding) for finding in (await verify_run(folder)).findings]


def test_two_steps_and_one_more_are_the_run_that_made_three(tiny_model_dir: Path, tmp_path: Path) -> None:
    options = {"grpo.beta": 0.1}  # the reference goes on, too
    whole = train(tiny_model_dir, tmp_path / "whole", 3, **options)
    short = train(tiny_model_dir, tmp_path / "longer", 2, **options)
    assert short.report.training.steps == 2
    before = weights(short.model_dir)
    longer = train(tiny_model_dir, tmp_path / "longer", 3, **options)
    assert longer.run_dir == short.run_dir
    assert longer.report.training.steps == 3
    assert figures(longer.run_dir) == figures(whole.run_dir)
    assert weights(longer.model_dir) == weights(whole.model_dir) != before
    folders = [RunFolder.open_to_read(run.run_dir) for run in (longer, whole)]
    assert folders[0].fingerprint == folders[1].fingerprint
    assert folders[0].info["resumed"][-1]["raised"] == {"train.grpo.max_steps": 2}
    ids = [{rollout.id for rollout in folder.iter_rollouts("grpo")} for folder in folders]
    assert ids[0] == ids[1]
    metrics = (longer.run_dir / "metrics.jsonl").read_bytes()
    again = train(tiny_model_dir, tmp_path / "longer", 3, **options)
    assert again.report.conditions == longer.report.conditions
    assert (longer.run_dir / "metrics.jsonl").read_bytes() == metrics
    assert anyio.run(findings, longer.run_dir) == []


@pytest.mark.parametrize(
    ("schedule", "first", "then"),
    [
        ({"grpo.lr_scheduler_type": "linear"}, [1, 1 / 2], [1 / 3]),
        ({"grpo.lr_scheduler_type": "warmup_stable_decay"}, [1, 1, 1], [1, 1, 1 / 2]),
    ],
    ids=["two halves, then the last of three thirds", "the default"],
)
def test_the_rate_goes_on_with_the_schedule_of_the_longer_run(
    tiny_model_dir: Path, tmp_path: Path, schedule: dict[str, Any], first: list[float], then: list[float]
) -> None:
    options = {**schedule, "grpo.learning_rate": 0.012}
    train(tiny_model_dir, tmp_path / "run", len(first), **options)
    longer = train(tiny_model_dir, tmp_path / "run", len(first) + len(then), **options)
    rates = [line["learning_rate"] / 0.012 for line in figures(longer.run_dir)]
    assert rates == pytest.approx([*first, *then])


class Stopped(Exception):
    pass


async def test_a_run_that_is_stopped_as_it_is_trained_longer_goes_on_and_its_evidence_holds_throughout(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**EXACT, "evaluation.validation": 2, "evaluation.eval_steps": 1}

    async def go_on(steps: int) -> sdk.TrainResult:
        options = {**config, "grpo.max_steps": steps}
        return await sdk.train_async([add], tasks(), even_letters, tiny_model_dir, tmp_path / "run", options)

    first = await go_on(1)
    noted = json.loads((first.run_dir / "evidence.root.json").read_text())["root"]
    assert await findings(first.run_dir) == []
    measured_first = len(RunFolder.open_to_read(first.run_dir).read_rollouts("after_grpo"))

    def stopped(self: Learner) -> None:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "save", stopped)
        with pytest.raises(Stopped):
            await go_on(2)
    assert await findings(first.run_dir) == []
    longer = await go_on(2)
    assert await findings(longer.run_dir) == []
    assert [line["step"] for line in figures(longer.run_dir)] == [0, 1]
    folder = RunFolder.open_to_read(longer.run_dir)
    aside = (folder.path / "rollouts/after_grpo.discarded.jsonl").read_text().splitlines()
    assert len(aside) == measured_first == len(folder.read_rollouts("after_grpo"))
    measured = longer.report.run["validation"]["success"]
    assert list(measured) == ["untrained", "after warm start", "step 1", "after GRPO"]
    # A root that was noted before covers the run as it ended then.
    assert (await verify_run(longer.run_dir, root=noted)).findings


def test_weights_that_were_chosen_before_may_be_chosen_again(tiny_model_dir: Path, tmp_path: Path) -> None:
    # Only rollouts after the first step's update pass: what was chosen then stays the best.
    def right_after_one_step(rollout: sdk.Rollout) -> float:
        versions = {v for row in rollout.rows for v in row.versions if v >= 0}
        return 1.0 if versions == {1} or rollout.calls else float(even_letters(rollout)) / 2

    options = {**EXACT, "evaluation.validation": 2, "grpo.save_steps": 1}

    def run(steps: int) -> sdk.TrainResult:
        config = {**options, "grpo.max_steps": steps}
        return sdk.train([add], tasks(), right_after_one_step, tiny_model_dir, tmp_path / "run", config)

    first = run(2)
    assert first.report.run["chosen_weights"] == "step 1"
    before = weights(first.model_dir)
    longer = run(3)
    assert longer.report.run["chosen_weights"] == "step 1"
    assert weights(longer.model_dir) == before


def test_only_more_steps_train_a_run_longer_and_only_from_its_last_checkpoint(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    run = train(tiny_model_dir, tmp_path / "run", 1)
    with pytest.raises(sdk.RunFolderError, match=r"seed is 0 in the folder and 1 now.*where grpo\.max_steps alone is"):
        train(tiny_model_dir, tmp_path / "run", 2, seed=1)
    with pytest.raises(sdk.RunFolderError, match=r"max_steps is 1 in the folder and 0 now"):
        train(tiny_model_dir, tmp_path / "run", 0)
    shutil.rmtree(run.run_dir / "checkpoints" / "last")
    with pytest.raises(
        sdk.RunFolderError,
        match=r"grpo\.max_steps 1, and cannot be trained to 2: the state of its opt.*"
        r"begin another run from it: model='.*model', config=",
    ):
        train(tiny_model_dir, tmp_path / "run", 2)
    assert train(tiny_model_dir, tmp_path / "run", 1).report.conditions == run.report.conditions


@pytest.mark.parametrize(
    ("file", "named"), [("optimizer.pt", "the state of its optimiser"), ("scheduler.pt", "scheduler.pt")]
)
def test_a_run_is_not_trained_longer_with_an_optimiser_or_a_schedule_that_begins_anew(
    tiny_model_dir: Path, tmp_path: Path, file: str, named: str
) -> None:
    run = train(tiny_model_dir, tmp_path / "run", 1)
    removed = run.run_dir / "checkpoints" / "last" / file
    content = removed.read_bytes()
    removed.unlink()
    with pytest.raises(sdk.ConfigError, match=f"lacks {named}, without which"):
        train(tiny_model_dir, tmp_path / "run", 2)
    (run.run_dir / "checkpoints" / "grpo" / "checkpoint-1" / file).write_bytes(content)
    assert train(tiny_model_dir, tmp_path / "run", 2).report.training.steps == 2


def test_weights_before_grpo_are_handed_over_where_the_longer_run_chooses_them(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    healthy, first_seen = tmp_path / "healthy", tmp_path / "first"

    def scored(rollout: sdk.Rollout) -> float:
        stage, _, _ = rollout.id.partition("/")
        if not stage.startswith("validation"):
            return float(even_letters(rollout))
        if stage == "validation_untrained":
            if not first_seen.exists():
                first_seen.write_text(rollout.task.id)
            return float(rollout.task.id == first_seen.read_text())
        if rollout.task.id == first_seen.read_text():  # the only task that is scored with all weights in the first run
            return 0.0
        if not healthy.exists():
            raise RuntimeError("the judge is down")
        return float(stage == "validation_warm_start")

    def run(steps: int) -> sdk.TrainResult:
        options = {**EXACT, "evaluation.validation": 3, "grpo.max_steps": steps, "rollouts.concurrency": 1}
        return sdk.train([add], tasks(), scored, tiny_model_dir, tmp_path / "run", options)

    first = run(1)
    healthy.touch()
    longer = run(2)
    chosen = longer.report.run["chosen_weights"]
    assert (first.report.run["chosen_weights"], chosen) == ("untrained", "after warm start")
    assert weights(longer.model_dir) == weights(longer.run_dir / "checkpoints" / "chosen")
    assert weights(longer.model_dir) == weights(longer.run_dir / "checkpoints" / "warm_start")


def everything_in(folder: Path) -> dict[Path, bytes]:
    """But for the lock, which every call opens."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_finished_run_whose_checkpoints_were_cleared_names_them_and_stays_as_it_was(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    options = {"evaluation.validation": 2}
    run = train(tiny_model_dir, tmp_path / "run", 1, **options)
    aside, kept = run.run_dir / "checkpoints" / "last", tmp_path / "last"
    aside.rename(kept)
    shutil.rmtree(run.run_dir / "checkpoints")
    before = everything_in(run.run_dir)
    names = "checkpoints/warm_start, checkpoints/trained, checkpoints/chosen"
    with pytest.raises(
        sdk.RunFolderError,
        match=rf"{run.run_dir} holds a run whose weights are missing in {names}; put them back from a copy, or choose "
        r"another output_dir to train anew\. Its report is in .*report\.md\. To train its model further .*model='",
    ):
        train(tiny_model_dir, tmp_path / "run", 1, **options)
    for path in (aside.parent, aside):  # an empty folder is none
        path.mkdir()
    with pytest.raises(sdk.RunFolderError, match=r"cannot be trained to 2: the state of its opt.*\(checkpoints/last\)"):
        train(tiny_model_dir, tmp_path / "run", 2, **options)
    kept.rename(aside)
    with pytest.raises(
        sdk.RunFolderError, match="missing in checkpoints/warm_start, checkpoints/chosen; put them back"
    ):
        train(tiny_model_dir, tmp_path / "run", 2, **options)
    now = everything_in(run.run_dir)
    assert {path: data for path, data in now.items() if aside not in path.parents} == before
