"""The weights that a run ends with are chosen on tasks kept aside and reported on held-out ones: never a worse model
than it began with, as far as those tasks tell."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.errors import ConfigError
from sdk.evaluation.report import report_of
from sdk.progress import Silent
from sdk.traces import RunFolder
from sdk.trainer.run_identity import bytes_still_needed
from sdk.trainer.task_splits import split_for_training

TASKS: list[dict[str, Any]] = [{"id": f"t{n}", "prompt": f"Where is order {n}?", "family": f"f{n}"} for n in range(12)]
CONFIG = {
    **{
        "warm_start.max_steps": 0,
        "grpo.max_steps": 3,
        "grpo.prompts_per_step": 1,
        "grpo.num_generations": 4,
        "grpo.save_steps": 1,
    },
    **{
        "evaluation.validation": 2,
        "evaluation.heldout": 3,
        "evaluation.max_served": 0,
        "probes.tasks": 0,
        "limits": {"max_turns": 1, "max_turn_tokens": 6},
    },
}


def get_order(order_id: str) -> str:
    """Read an order."""
    return "shipped"


def only_the_first_step_is_good(rollout: sdk.Rollout) -> float:
    """Right is what the weights after one step said, so that the best checkpoint is known beforehand."""
    said = {version for row in rollout.rows for version in row.versions if version >= 0}
    # The small differences are what the other steps learn from.
    return 1.0 if said == {1} else 0.5 * (sum(map(ord, rollout.messages[-1].content)) % 2)


class WeighsTheFolder(Silent):
    """The bytes of weights and optimisers in the run's folder when the checkpoint was chosen: it never holds more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes = 0

    def say(self, text: str) -> None:
        if text.endswith("are handed over"):
            files = [file for kind in ("*.safetensors", "*.pt") for file in self.folder.rglob(kind)]
            self.bytes = sum(file.stat().st_size for file in files)


@pytest.fixture(scope="module")
def weighs(tmp_path_factory: pytest.TempPathFactory) -> WeighsTheFolder:
    return WeighsTheFolder(tmp_path_factory.mktemp("chosen") / "run")


@pytest.fixture(scope="module")
def run(tiny_model_dir: Path, weighs: WeighsTheFolder) -> sdk.TrainResult:
    given = ([get_order], TASKS, only_the_first_step_is_good, tiny_model_dir, weighs.folder, CONFIG)
    return sdk.train(*given, progress=weighs)


def test_the_run_ends_with_the_checkpoint_that_does_best_on_validation(run: sdk.TrainResult) -> None:
    folder = RunFolder.open_to_read(run.run_dir)
    choice = folder.stage("choice")
    assert choice is not None
    assert choice["chosen"] == "step 1"
    assert run.report.run["validation"] == {
        **{"tasks": 2, "families": 2},
        "success": {"untrained": 0.0, "step 1": 1.0, "step 2": 0.0, "after GRPO": 0.0},
    }
    rates = {name: c.success.interval.estimate for name, c in run.report.conditions.items() if c.success}
    assert rates == {"untrained": 0.0, "after GRPO": 0.0, "chosen on validation": 1.0}
    assert "chosen_weights" in run.report.markdown()

    sides = split_for_training(TASKS, sdk.TrainConfig.of(CONFIG))
    names = [{task.id for task in side} for side in sides]
    assert (len(names[1]), len(names[2]), sum(map(len, names))) == (2, 3, 12)
    for stage, allowed in (("grpo", names[0]), ("validation_step_1", names[1]), ("chosen", names[2])):
        assert {rollout.task.id for rollout in folder.iter_rollouts(stage)} <= allowed


@pytest.mark.usefixtures("run")
def test_the_disk_space_asked_for_holds_all_checkpoints_that_are_kept_for_the_choice(
    weighs: WeighsTheFolder, tiny_model_dir: Path, tmp_path: Path
) -> None:
    assert weighs.bytes > 0
    assert weighs.bytes < bytes_still_needed(tiny_model_dir, tmp_path / "new", sdk.TrainConfig.of(CONFIG))


def test_the_model_that_is_left_has_the_chosen_weights(run: sdk.TrainResult) -> None:
    import torch
    from safetensors.torch import load_file

    kept = {name: load_file(run.run_dir / "checkpoints" / name / "model.safetensors") for name in ("chosen", "trained")}
    left = load_file(run.model_dir / "model.safetensors")
    assert all(torch.equal(left[name], weight) for name, weight in kept["chosen"].items())
    assert not all(torch.equal(left[name], weight) for name, weight in kept["trained"].items())


def test_a_finished_run_chooses_nothing_anew_and_its_report_can_be_made_again(
    run: sdk.TrainResult, tiny_model_dir: Path
) -> None:
    before = {file.name: file.read_bytes() for file in (run.run_dir / "rollouts").iterdir()}
    again = sdk.train([get_order], TASKS, only_the_first_step_is_good, tiny_model_dir, run.run_dir, CONFIG)
    assert {file.name: file.read_bytes() for file in (run.run_dir / "rollouts").iterdir()} == before
    assert again.report.conditions == run.report.conditions
    made = report_of(run.run_dir)
    assert made.conditions == run.report.conditions
    assert made.run["chosen_weights"] == "step 1"


def test_the_weights_that_are_handed_over_are_compared_with_the_warm_start(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    answer = {"role": "assistant", "content": "It is shipped."}
    shown = [{**task, "demonstration": [answer]} for task in TASKS]
    config = {**CONFIG, "warm_start.max_steps": 1}
    run = sdk.train([get_order], shown, graded, tiny_model_dir, tmp_path / "run", config)
    names = ["untrained", "after warm start", "after GRPO", "chosen on validation"]
    assert list(run.report.conditions) == names
    pairs = [(c.first, c.second) for c in run.report.comparisons]
    assert pairs == [*pairwise(names), (names[1], names[3]), (names[0], names[3])]
    assert [(c.first, c.second) for c in report_of(run.run_dir).comparisons] == pairs


def graded(rollout: sdk.Rollout) -> float:
    """As `only_the_first_step_is_good`, and a demonstration is right."""
    return 1.0 if "shipped" in rollout.answer else only_the_first_step_is_good(rollout)


def test_tasks_tagged_for_validation_without_a_choice_are_an_error() -> None:
    sides = ("train", "validation", "heldout")
    tagged = [{"prompt": f"p{n}", "tags": {"split": sides[n % 3]}} for n in range(6)]
    with pytest.raises(ConfigError, match=r"2 tasks are tagged 'validation'.*leave out the option or the tasks"):
        split_for_training(tagged, sdk.TrainConfig.of({"evaluation.validation": 0}))
    for config in (sdk.TrainConfig(), sdk.TrainConfig.of({"evaluation.validation": 1})):
        chosen = split_for_training(tagged, config)
        assert [[task.prompt for task in side] for side in chosen] == [["p0", "p3"], ["p1", "p4"], ["p2", "p5"]]


@pytest.mark.parametrize("twin", ["train", "heldout"])
def test_a_task_tagged_for_validation_that_is_also_on_another_side_is_an_error(twin: str) -> None:
    sides = {"train": "a", "validation": "b", "heldout": "c"}
    sides[twin] = sides["validation"]
    tagged = [{"prompt": prompt, "id": side, "tags": {"split": side}} for side, prompt in sides.items()]
    with pytest.raises(ConfigError, match=r"validation.* have the same prompt and setup"):
        split_for_training(tagged, sdk.TrainConfig())


def test_a_run_is_compared_with_verdicts_from_elsewhere_also_when_it_is_finished(
    run: sdk.TrainResult, tiny_model_dir: Path, weighs: WeighsTheFolder, tmp_path: Path
) -> None:
    held_out = [one.task.id for one in RunFolder.open_to_read(run.run_dir).read_rollouts("untrained")]
    (tmp_path / "large.jsonl").write_text("".join(f'{{"task": "{name}", "score": 0}}\n' for name in held_out[:2]))
    curve = (run.run_dir / "learning_curve.png").read_bytes()
    given = ([get_order], TASKS, only_the_first_step_is_good, tiny_model_dir, weighs.folder, CONFIG)
    report = sdk.train(*given, verdicts={"large": tmp_path / "large.jsonl"}).report
    assert list(report.conditions) == ["large", *run.report.conditions]
    first, *others = report.comparisons
    assert (first.first, first.second, first.tasks, first.gained) == ("large", "chosen on validation", 2, 2)
    assert [(one.first, one.second) for one in others] == [(c.first, c.second) for c in run.report.comparisons]
    assert report.errors["chosen on validation"].changes["unexplained"].fixed == 2  # errors of the baseline it solves
    assert report.next_steps == run.report.next_steps
    assert report.examples == run.report.examples
    assert (run.run_dir / "learning_curve.png").read_bytes() != curve
    assert report_of(run.run_dir).comparisons == report.comparisons
    (tmp_path / "large.jsonl").write_text('{"task": "elsewhere", "score": 0}')
    with pytest.raises(ConfigError, match="'large' judges none of the 3 tasks"):
        sdk.train(*given, verdicts={"large": tmp_path / "large.jsonl"})
    with pytest.raises(ConfigError, match="'after GRPO' is the name of a policy"):
        sdk.train(*given, verdicts={"after GRPO": tmp_path / "large.jsonl"})
    assert sdk.train(*given).report.conditions == run.report.conditions
