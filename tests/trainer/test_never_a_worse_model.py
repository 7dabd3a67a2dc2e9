"""A run ends with the best weights it saw on tasks kept aside, those that it began with included, and says which."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from heard import Heard

import sdk
from sdk.cli.quickstart_options import quickstart_options
from sdk.evidence.saved_weights import files_digest
from sdk.tasks import ThreeWaySplit, counted
from sdk.traces import RunFolder
from sdk.trainer.base_trainer import ThinCheckpoints
from sdk.trainer.config import rate_factor, settled_schedule
from sdk.trainer.task_splits import settle, split_for_training
from sdk.trainer.validation import choose, fall

SHORT = {"max_turns": 2, "max_turn_tokens": 40, "max_tokens": 64}


def read_order(order_id: str) -> str:
    """Read where an order is."""
    return "on its way"


def task(number: int) -> dict[str, Any]:
    call = {"id": "c", "name": "read_order", "arguments": {"order_id": str(number)}}
    return {
        "id": f"t{number}",
        "prompt": f"Where is order {number}?",
        "demonstration": [{"role": "assistant", "tool_calls": [call]}, {"role": "assistant", "content": "On its way."}],
    }


def reads_the_order(rollout: sdk.Rollout) -> float:
    """Half for the call and half for the answer; and by chance a little, so that every group has a signal."""
    called = any(call.result.text == "on its way" for call in rollout.calls)
    chance = sum(map(ord, rollout.id)) % 2
    return 0.5 * called + 0.5 * (called and rollout.answer == "On its way.") + 0.01 * chance


def digest(folder: Path) -> str:
    return files_digest(sorted(folder.glob("*.safetensors")))


def rollouts(**scores: float | None) -> list[sdk.Rollout]:
    return [
        sdk.Rollout(
            id=name,
            task=sdk.Task(prompt=name, id=name, family=name[0]),
            verdict=None if score is None else sdk.Verdict(score=score),
        )
        for name, score in scores.items()
    ]


def test_grpo_that_ruins_the_model_hands_over_the_warm_start_and_says_so(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = {
        **{
            "warm_start.max_steps": 80,
            "warm_start.learning_rate": 0.02,
            "grpo.max_steps": 2,
            "grpo.prompts_per_step": 2,
            "grpo.num_generations": 3,
            "grpo.learning_rate": 0.01,
        },
        **{
            "probes.tasks": 0,
            "evaluation.heldout": 3,
            "evaluation.max_served": 0,
            "limits": SHORT,
            "evaluation.success_threshold": 0.9,
            "weights_digests": "kept",
        },
        "grpo.entropy_coef": 1.0,  # rollouts that are all alike would cancel, and nothing would change
    }
    heard = Heard()
    tasks = [task(n) for n in range(19)]
    run = sdk.train([read_order], tasks, reads_the_order, str(tiny_model_dir), tmp_path / "run", config, progress=heard)
    assert digest(run.model_dir) == digest(run.run_dir / "checkpoints" / "warm_start")
    assert digest(run.model_dir) != digest(run.run_dir / "checkpoints" / "trained")
    rates = run.report.run["validation"]["success"]
    assert rates["after warm start"] > max(rates["untrained"], rates["after GRPO"])
    reason = run.report.run["handed_over"]
    assert reason.endswith("on 4 kept-aside tasks of 4 families: the weights after the warm start are handed over")
    assert reason.startswith("after GRPO is ")
    assert " points below after warm start " in reason
    assert reason in heard.lines
    assert f"A{reason[1:]}." in str(run.report).splitlines()
    assert "Next: The last weights did worse on the tasks kept aside" in str(run.report).splitlines()[-1]
    assert f"A{reason[1:]}." in (run.run_dir / "report.md").read_text()
    choice = RunFolder.open_to_read(run.run_dir).stage("choice")
    assert choice is not None
    assert choice["chosen"] == "after warm start"
    chosen, warm = (run.report.conditions[name] for name in ("chosen on validation", "after warm start"))
    assert chosen == warm


@pytest.mark.parametrize(
    ("after_warm_start", "after_grpo", "chosen", "reason"),
    [
        ((1, 1, 0), (1, 0, 0), "after warm start", "after GRPO is 33.3 points below after warm start"),
        ((1, 1, 0), (1, 1, 1), "after GRPO", "after GRPO does best (100.0 %)"),
        ((1, 1, 0), (1, 0, 1), "after warm start", "after GRPO has the success of after warm start (66.7 %) on"),
        (
            (1, 0.5, 0),
            (1, 0, 0),
            "after warm start",
            "after GRPO has the success of after warm start (33.3 %) and a lower mean score on",
        ),
        ((1, 0, 0), (1, 0.5, 0), "after GRPO", "after GRPO does best (33.3 %)"),
        ((0, 0, 0), (0, 0, 0), "untrained", "after GRPO has the success of untrained (0.0 %) on"),
        ((1, 0, None), (0, 1, 1), "after warm start", "after GRPO has the success of after warm start (50.0 %) on"),
    ],
)
def test_of_several_weights_the_best_on_the_same_tasks_is_chosen_and_of_equals_the_first(
    after_warm_start: tuple[float | None, ...], after_grpo: tuple[float | None, ...], chosen: str, reason: str
) -> None:
    names = ("a1", "a2", "b1")
    measured = {
        "untrained": rollouts(**dict.fromkeys(names, 0.0)),
        "after warm start": rollouts(**dict(zip(names, after_warm_start, strict=True))),
        "after GRPO": rollouts(**dict(zip(names, after_grpo, strict=True))),
    }
    choice = choose(measured, threshold=1.0)
    assert choice.name == chosen
    assert choice.reason.startswith(reason)
    one_left_out = "2 kept-aside tasks of 1 family (1 left out, which could not be scored with all weights)"
    of = one_left_out if None in after_warm_start else "3 kept-aside tasks of 2 families"
    weights = {
        "untrained": "the untrained weights",
        "after warm start": "the weights after the warm start",
        "after GRPO": "the last weights, after GRPO,",
    }
    assert choice.reason.endswith(f" on {of}: {weights[chosen]} are handed over")


def test_the_untrained_model_is_handed_over_where_all_training_made_it_worse() -> None:
    measured = {
        "untrained": rollouts(a=1.0, b=1.0),
        "step 10": rollouts(a=1.0, b=0.0),
        "after GRPO": rollouts(a=0.0, b=0.0),
    }
    choice = choose(measured, threshold=1.0)
    assert choice.name == "untrained"
    assert choice.reason.startswith("after GRPO is 100 points below untrained")
    assert choice.reason.endswith("the untrained weights are handed over")


def test_without_a_task_that_is_scored_with_all_weights_the_last_are_taken() -> None:
    choice = choose({"untrained": rollouts(a=1.0, b=None), "after GRPO": rollouts(a=None, b=0.0)}, threshold=1.0)
    assert choice.name == "after GRPO"
    assert "no task kept aside could be scored with all weights" in choice.reason


def right_untrained(rollout: sdk.Rollout) -> float:
    """Right is what weights say that made no step of GRPO, so that training can only lose."""
    said = {version for row in rollout.rows for version in row.versions if version >= 0}
    return 1.0 if said == {0} and rollout.step < 0 else 0.5 * (sum(map(ord, rollout.id)) % 2)


def test_a_run_that_only_loses_ends_with_the_weights_it_began_with_and_goes_on_so(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    config = {
        "grpo.max_steps": 2,
        "grpo.num_generations": 2,
        "probes.tasks": 0,
        "evaluation.max_served": 0,
        "limits": {"max_turns": 1, "max_turn_tokens": 4},
    }
    words = [f"Where is order {n}?" for n in range(10)]
    heard = Heard()
    run = sdk.train([read_order], words, right_untrained, tiny_model_dir, tmp_path / "run", config, progress=heard)
    assert digest(run.model_dir) == digest(tiny_model_dir) != digest(run.run_dir / "checkpoints" / "trained")
    assert run.report.run["chosen_weights"] == "untrained"
    assert run.report.conditions["chosen on validation"] == run.report.conditions["untrained"]
    assert not (run.run_dir / "checkpoints" / "untrained").exists()
    folder = RunFolder.open_to_read(run.run_dir)
    aside = {rollout.task.id for rollout in folder.iter_rollouts("validation_untrained")}
    assert aside == {rollout.task.id for rollout in folder.iter_rollouts("validation_grpo")}
    for stage in ("untrained", "grpo"):
        assert not aside & {rollout.task.id for rollout in folder.iter_rollouts(stage)}
    assert f"kept aside to choose weights on: {len(aside)} tasks of {len(aside)} families" in "\n".join(heard.lines)
    again = sdk.train([read_order], words, right_untrained, tiny_model_dir, tmp_path / "run", config)
    assert again.report.run["handed_over"] == run.report.run["handed_over"]


@pytest.mark.parametrize(
    ("success", "patience", "since", "ends"),
    [
        ({0: 17 / 20, 10: 16 / 20, 20: 16 / 20}, 2, 0, False),  # one task of twenty is chance
        ({0: 17 / 20, 10: 15 / 20, 20: 15 / 20}, 2, 0, True),
        ({0: 0.5, 5: 0.4, 10: 0.3, 15: 0.4}, 3, 0, True),
        ({0: 0.5, 5: 0.4, 10: 0.5, 15: 0.4}, 3, 0, False),  # as good as before is no fall
        ({0: 0.5, 5: 0.6, 10: 0.5, 15: 0.5, 20: 0.5}, 3, 0, True),
        ({0: 0.5, 5: 0.6, 10: 0.5, 15: 0.7, 20: 0.5}, 3, 0, False),
        ({0: 0.5, 5: 0.4, 10: 0.3}, 3, 0, False),  # too few measurements
        ({0: 0.5, 5: 0.4, 10: 0.3, 15: 0.4}, 0, 0, False),
        ({0: 0.5, 5: 0.4, 10: 0.3, 15: 0.4, 20: 0.4}, 3, 15, False),  # ended early after 15, and is trained longer
        ({0: 0.5, 5: 0.4, 10: 0.3, 15: 0.4, 20: 0.4, 25: 0.4, 30: 0.4}, 3, 15, True),
        ({}, 3, 0, False),
    ],
)
def test_grpo_ends_early_where_success_stays_below_its_best(
    success: dict[int, float], patience: int, since: int, ends: bool
) -> None:
    assert (fall(success, success, patience, tasks=20, since=since) is not None) == ends


@pytest.mark.parametrize(("tasks", "lost", "ends"), [(8, 1, False), (8, 2, True), (64, 6, False), (64, 7, True)])
def test_a_fall_is_a_tenth_of_the_kept_aside_tasks_and_two_of_them_at_least(tasks: int, lost: int, ends: bool) -> None:
    success = {0: 1.0, 5: 1 - lost / tasks, 10: 1 - lost / tasks}
    assert (fall(success, success, 2, tasks=tasks) is not None) == ends


def test_fewer_solved_tasks_for_a_higher_mean_score_are_no_fall() -> None:
    success = {0: 0.5, 10: 0.3, 20: 0.3}
    assert fall(success, {0: 0.0, 10: -0.1, 20: 0.1}, 2, tasks=20) is None
    assert fall(success, {0: 0.0, 10: -0.1, 20: 0.0}, 2, tasks=20) is not None


def test_where_a_wrong_answer_costs_the_mean_score_counts_before_success() -> None:
    sure = rollouts(a1=1.0, a2=1.0, b1=-1.0, b2=-1.0)
    careful = rollouts(a1=1.0, a2=0.0, b1=0.0, b2=-1.0)
    choice = choose({"after warm start": careful, "after GRPO": sure}, threshold=1.0)
    assert choice.name == "after GRPO"  # of equal mean scores the one with more success
    more_careful = rollouts(a1=1.0, a2=0.0, b1=0.0, b2=0.0)
    choice = choose({"after warm start": more_careful, "after GRPO": sure}, threshold=1.0)
    assert choice.name == "after warm start"
    assert choice.reason.startswith("after GRPO has a mean score of 0, after warm start 0.25 on 4 kept-aside tasks")
    choice = choose({"after warm start": sure, "after GRPO": more_careful}, threshold=1.0)
    assert choice.reason.startswith("after GRPO has the highest mean score (0.25) on")


BRIEF: dict[str, Any] = {
    "grpo.num_generations": 2,
    "warm_start.max_steps": 0,
    "probes.tasks": 0,
    "evaluation.max_served": 0,
    "limits": {"max_turns": 1, "max_turn_tokens": 4},
}


def right_once_in_a_while(rollout: sdk.Rollout) -> float:
    """As `right_untrained`, and right again from the fourth step on."""
    said = {version for row in rollout.rows for version in row.versions if version >= 0}
    return 1.0 if min(said, default=9) >= 4 and rollout.step < 0 else right_untrained(rollout)


class Killed(Exception):
    pass


def killed(*_: object) -> None:
    raise Killed


def right_untrained_or_not_scored(rollout: sdk.Rollout) -> float:
    """As `right_untrained`; some tasks that are kept aside are never scored."""
    if rollout.step < 0 and int(rollout.task.opening()[-1].content.strip("?").split()[-1]) % 2:
        raise sdk.VerifierError("the records cannot be reached")
    return right_untrained(rollout)


def test_tasks_without_a_score_keep_a_run_from_ending_early_and_it_says_so(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    heard, words = Heard(), [f"Where is order {n}?" for n in range(30)]
    options = {**BRIEF, "grpo.save_steps": 1, "evaluation.early_stopping_patience": 1, "grpo.max_steps": 3}
    given = ([read_order], words, right_untrained_or_not_scored, tiny_model_dir, tmp_path / "run", options)
    sdk.train(*given, progress=heard)
    told = [line for line in heard.lines if line.endswith("by this measurement GRPO does not end early")]
    assert told
    assert not any("ended early" in line for line in heard.lines)


@pytest.mark.timeout(300)
def test_a_run_ends_early_says_so_is_as_it_was_when_called_again_and_can_be_trained_longer(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**BRIEF, "grpo.save_steps": 1, "evaluation.early_stopping_patience": 2}
    words = [f"Where is order {n}?" for n in range(10)]

    def run(steps: int) -> tuple[sdk.TrainResult, Heard]:
        heard, options = Heard(), {**config, "grpo.max_steps": steps}
        verifier = right_once_in_a_while
        return sdk.train(
            [read_order], words, verifier, tiny_model_dir, tmp_path / "run", options, progress=heard
        ), heard

    def steps_made() -> list[int]:
        lines = RunFolder.open_to_read(tmp_path / "run").read_metrics()
        return [line["step"] for line in lines if line["stage"] == "grpo"]

    first, heard = run(4)
    assert steps_made() == [0, 1]
    reason = (
        "GRPO ended early, after 2 steps: success on the kept-aside tasks was 100.0 % after step 0, and lower in the "
        "last 2 measurements (0.0 %, 0.0 %)"
    )
    assert reason in heard.lines
    assert f"{reason}." in str(first.report).splitlines()
    assert f"{reason}." in (first.run_dir / "report.md").read_text()
    assert first.report.run["chosen_weights"] == "untrained"
    assert list(first.report.run["validation"]["success"]) == ["untrained", "step 1", "after GRPO"]
    assert first.report.training is not None
    assert first.report.training.steps == 2
    metrics = (first.run_dir / "metrics.jsonl").read_bytes()

    again, heard = run(4)
    assert steps_made() == [0, 1]
    assert again.report.run["ended_early"] == reason
    assert (again.run_dir / "metrics.jsonl").read_bytes() == metrics

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "reopen_stage", killed)
        with pytest.raises(Killed):
            run(5)
    longer, heard = run(6)
    assert steps_made() == [0, 1, 2, 3, 4, 5]
    assert "ended_early" not in longer.report.run
    assert list(longer.report.run["validation"]["success"])[-1] == "after GRPO"


def test_a_run_ends_early_at_a_checkpoint_whenever_success_is_measured(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = {**BRIEF, "grpo.max_steps": 5, "grpo.save_steps": 3, "evaluation.eval_steps": 1}
    words = [f"Where is order {n}?" for n in range(10)]
    run = sdk.train([read_order], words, right_untrained, tiny_model_dir, tmp_path / "run", config)
    folder = RunFolder.open_to_read(run.run_dir)
    assert [line["step"] for line in folder.read_metrics() if line["stage"] == "grpo"] == [0, 1, 2]
    assert run.report.run["ended_early"].startswith("GRPO ended early, after 3 steps: ")
    assert {rollout.step for rollout in folder.iter_rollouts("grpo")} == {0, 1, 2}


def test_the_last_step_of_a_run_that_ends_early_has_its_figure_between_two_measurements(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    config = {**BRIEF, "grpo.max_steps": 5, "grpo.save_steps": 3}
    config |= {"evaluation.eval_steps": 2, "evaluation.early_stopping_patience": 1}
    words = [f"Where is order {n}?" for n in range(10)]
    run = sdk.train([read_order], words, right_untrained, tiny_model_dir, tmp_path / "run", config)
    assert run.report.run["ended_early"].startswith("GRPO ended early, after 3 steps: ")
    assert run.report.training is not None
    assert run.report.training.validation == {0: 1.0, 2: 0.0, 3: 0.0}


def says_a_number(rollout: sdk.Rollout) -> bool:
    return rollout.task.id in rollout.answer


def test_functions_ten_strings_and_a_lambda_train_to_the_end(tiny_model_dir: Path, tmp_path: Path) -> None:
    words = [f"Where is order {n}?" for n in range(10)]
    train, aside, _ = split_for_training(words, sdk.TrainConfig())
    assert len(aside) == (len(train) + len(aside)) // 4 > 0
    heard = Heard()
    run = sdk.train(
        [read_order],
        words,
        lambda rollout: "on its way" in rollout.answer,
        tiny_model_dir,
        tmp_path / "run",
        {
            **{"grpo.max_steps": 1, "limits": {"max_turns": 2, "max_turn_tokens": 4}},
            **{"probes.tasks": 1, "evaluation.max_served": 1},
        },
        progress=heard,
    )
    assert list(run.report.conditions)[:3] == ["untrained", "after warm start", "after GRPO"]
    said = "\n".join(heard.lines)
    assert f"demonstrations found: {len(train)} for {counted(train)} ({len(train)} of 1 call)" in said
    assert f"{len(train)} tasks in a step, not 8: there are no more to begin with" in said
    options = RunFolder.open_to_read(run.run_dir).config["train"]
    assert options["warm_start"]["max_steps"] == 10
    assert options["grpo"]["prompts_per_step"] == len(train)
    assert options["evaluation"]["validation"] == len(aside)


def test_without_tasks_kept_aside_the_run_says_what_is_lost(tiny_model_dir: Path, tmp_path: Path) -> None:
    heard = Heard()
    config = {
        "grpo.max_steps": 1,
        "grpo.num_generations": 2,
        "probes.tasks": 1,
        "evaluation.max_served": 1,
        "evaluation.validation": 0,
        "limits": {"max_turns": 1, "max_turn_tokens": 4},
    }
    words = [f"Where is order {n}?" for n in range(4)]
    run = sdk.train([read_order], words, lambda _: False, tiny_model_dir, tmp_path / "run", config, progress=heard)
    assert (
        "no task is kept aside to choose weights on (evaluation.validation is 0): the run ends with its last weights, "
        "also where they are worse than those it began with"
    ) in heard.lines
    assert "No task was kept aside to choose on: the last weights are handed over, better or worse." in str(run.report)


def test_the_defaults_are_what_the_quickstart_found_over_several_seeds() -> None:
    found = quickstart_options()
    shown = [sdk.Task.model_validate(task(n)) for n in range(40)]
    settled, _ = settle(sdk.TrainConfig(), ThreeWaySplit(shown, [], []))
    sides = ThreeWaySplit(shown[8:], shown[:8], [])
    quickstart, _ = settle(found, sides)
    # Its warm start is shorter: it was chosen on the helpdesk, where GRPO adds more after it.
    assert quickstart.warm_start == settled.warm_start.model_copy(update={"max_steps": 10})
    # It runs on any machine, so it spares memory, which changes no gradient.
    lean = {"offload_optimizer": True}
    assert settled.batching.model_copy(update=lean) == quickstart.batching
    assert settled.grpo == quickstart.grpo.model_copy(update={"save_steps": settled.grpo.save_steps})
    assert settle(quickstart, sides)[0] == quickstart, "what is set stays as it is"


@pytest.mark.parametrize(
    ("shown", "others", "options", "steps"),
    [
        (4, 0, {}, 10),
        (40, 0, {}, 15),
        (68, 12, {}, 26),
        (200, 0, {}, 40),
        (68, 0, {"max_tasks": 32}, 12),
        (40, 0, {"batch_size": 4}, 30),
        (0, 68, {}, 26),
        (0, 68, {"find_demonstrations": False}, 0),
        (68, 0, {"max_steps": 7}, 7),
    ],
)
def test_a_warm_start_passes_three_times_over_the_demonstrations(
    shown: int, others: int, options: dict[str, Any], steps: int
) -> None:
    with_one = [sdk.Task.model_validate(task(n)) for n in range(shown)]
    without = [sdk.Task(id=f"other-{n}", prompt=f"Where is order {n}?") for n in range(others)]
    settled, _ = settle(sdk.TrainConfig.of({"warm_start": options}), ThreeWaySplit([*with_one, *without], [], []))
    assert settled.warm_start.max_steps == steps


@pytest.mark.parametrize(
    ("options", "warmup", "arguments"),
    [
        ({"max_steps": 3}, 1, {"num_decay_steps": 1, "decay_type": "linear"}),
        ({"max_steps": 60}, 10, {"num_decay_steps": 20, "decay_type": "linear"}),
        ({"max_steps": 60, "warmup_steps": 0}, 0, {"num_decay_steps": 20, "decay_type": "linear"}),
        ({"max_steps": 60, "warmup_steps": 50}, 50, {"num_decay_steps": 11, "decay_type": "linear"}),
        ({"max_steps": 60, "lr_scheduler_type": "linear"}, 0, None),
    ],
)
def test_the_schedule_follows_the_length_of_the_run(
    options: dict[str, Any], warmup: int, arguments: dict[str, Any] | None
) -> None:
    assert settled_schedule(sdk.TrainConfig.of({"grpo": options}).grpo) == (warmup, arguments)


@pytest.mark.parametrize(
    ("kind", "arguments"), [("cosine_with_min_lr", {"min_lr": 5e-6}), ("polynomial", {"lr_end": 5e-6})]
)
def test_a_lowest_rate_is_that_of_the_option(kind: str, arguments: dict[str, float]) -> None:
    options = {"learning_rate": 1e-5, "max_steps": 10, "lr_scheduler_type": kind, "lr_scheduler_kwargs": arguments}
    factor = rate_factor(sdk.TrainConfig.of({"grpo": options}).grpo)
    rates = [1e-5 * factor(step) for step in range(10)]
    assert rates == sorted(rates, reverse=True)
    assert 5e-6 <= rates[-1] < 6e-6


def test_tasks_are_kept_aside_only_where_enough_are_left_for_a_step_and_a_warm_start() -> None:
    tasks = [task(n) for n in range(10)]
    for only in tasks[1:]:
        del only["demonstration"]
    for seed in range(20):
        train, aside, _ = split_for_training(tasks, sdk.TrainConfig.of({"seed": seed, "evaluation.heldout": 2}))
        assert len(aside) == 2
        shown = any(one.demonstration for one in train)
        assert shown or not any(one.demonstration for one in aside)
        train, aside, _ = split_for_training(
            tasks, sdk.TrainConfig.of({"seed": seed, "evaluation.heldout": 2, "grpo.prompts_per_step": 7})
        )
        assert (len(train), len(aside)) == (7, 1)
    train, aside, _ = split_for_training(
        tasks, sdk.TrainConfig.of({"evaluation.heldout": 2, "grpo.prompts_per_step": 8})
    )
    assert (len(train), len(aside)) == (8, 0)
    for option in ("eval_steps", "early_stopping_patience"):
        why = rf"evaluation\.{option} is 5, but of 2 training tasks of 2 families none could be kept aside"
        with pytest.raises(sdk.ConfigError, match=why):
            sdk.train(
                [read_order],
                ["a", "b", "c"],
                says_a_number,
                None,
                None,
                {f"evaluation.{option}": 5, "evaluation.heldout": 1},
            )
        for idle in ("grpo.max_steps", "evaluation.validation"):
            with pytest.raises(sdk.ConfigError, match=rf"evaluation\.{option} does nothing while {idle} is 0"):
                sdk.TrainConfig.of({f"evaluation.{option}": 5, idle: 0})


def test_of_a_long_run_s_checkpoints_a_few_over_its_length_and_the_latest_are_kept(tmp_path: Path) -> None:
    thin = ThinCheckpoints(sdk.TrainConfig.of({"grpo.max_steps": 100, "grpo.save_steps": 5}))
    for step in range(5, 101, 5):
        (tmp_path / f"checkpoint-{step}").mkdir()
        thin.on_save(SimpleNamespace(output_dir=str(tmp_path)), None, None)
    steps = sorted(int(path.name.rpartition("-")[2]) for path in tmp_path.iterdir())
    assert steps == [20, 40, 60, 80, 95, 100]


def test_a_step_that_is_lowered_to_the_training_tasks_there_are_has_whole_micro_batches() -> None:
    tasks = [sdk.Task.model_validate(task(n)) for n in range(7)]
    config = sdk.TrainConfig.of({"batching.micro_batches": 4, "evaluation.heldout": 2})
    settled, lines = settle(config, ThreeWaySplit(tasks[:5], [], []))
    assert (settled.grpo.prompts_per_step, settled.batching.micro_batches) == (4, 4)
    assert "4 tasks in a step, not 8: of 5 they fit 4 micro-batches (grpo.prompts_per_step)" in lines
    few = split_for_training(tasks[:6], config)
    assert (len(few.train), len(few.validation)) == (4, 0), "none is kept aside that a step needs"
    with pytest.raises(sdk.ConfigError, match=r"batching\.micro_batches is 4, but there are only 3 training tasks"):
        settle(config, ThreeWaySplit(tasks[:3], [], []))


def test_a_run_without_steps_of_grpo_has_the_step_that_it_would_have_when_it_is_trained_longer() -> None:
    tasks = [sdk.Task.model_validate(task(n)) for n in range(5)]
    settled = [settle(sdk.TrainConfig.of({"grpo.max_steps": n}), ThreeWaySplit(tasks, [], [])) for n in (0, 20)]
    assert [options.grpo.prompts_per_step for options, _ in settled] == [5, 5]
    assert ["tasks in a step" in " ".join(lines) for _, lines in settled] == [False, True]
