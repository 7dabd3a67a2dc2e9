"""Whole training runs through the public API, on a tiny model: what a run leaves, and that it survives a kill."""

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest

import sdk
from sdk.evaluation.report import report_of
from sdk.evidence.run_verification import verify_run
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.models import load_model
from sdk.policies.protocol import Sampling
from sdk.progress import Silent
from sdk.records import TokenRow
from sdk.traces import RunFolder
from sdk.trainer.demonstrations import above_the_limit
from sdk.trainer.sampler import open_sampler

TINY = {
    "probes.tasks": 0,  # the verifier of these tests is a coin
    "warm_start.max_steps": 2,
    "warm_start.batch_size": 2,
    "grpo.max_steps": 4,
    "grpo.prompts_per_step": 2,
    "grpo.num_generations": 4,
    "evaluation.heldout": 2,
    "evaluation.max_served": 0,
    "evaluation.validation": 0,  # so that all tasks but two are trained on, and the last weights are the result
    "grpo.save_steps": 1,
    "limits": {"max_turns": 2, "max_turn_tokens": 6, "max_tokens": 12},
}

SERVED = {"evaluation.max_served": 1}

NO_MODEL = str(Path(__file__).parent)
"""A folder without a model: what loads it fails."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tasks() -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"What is {n} + 1?",
            "demonstration": [
                {"role": "assistant", "tool_calls": [{"id": "c", "name": "add", "arguments": {"a": n, "b": 1}}]},
                {"role": "assistant", "content": f"{n + 1}"},
            ],
        }
        for n in range(8)
    ]


def even_letters(rollout: sdk.Rollout) -> bool:
    """About half of a random model's rollouts pass, so that groups have a signal; demonstrations pass."""
    return bool(rollout.calls) or sum(map(ord, rollout.messages[-1].content)) % 2 == 0


@pytest.fixture(scope="module")
def run(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> sdk.TrainResult:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return sdk.train([add], tasks(), even_letters, str(tiny_model_dir), folder, {**TINY, **SERVED})


def test_a_run_leaves_a_model_a_report_metrics_rollouts_and_a_curve(run: sdk.TrainResult) -> None:
    from sdk.policies.models import load_model

    assert list(run.report.conditions) == ["untrained", "after warm start", "after GRPO"]
    assert load_model(str(run.model_dir)).tokenizer.chat_template
    folder = RunFolder.open_to_read(run.run_dir)
    assert folder.curve_png.read_bytes().startswith(b"\x89PNG")
    assert "after GRPO" in (folder.path / "report.md").read_text()
    assert run.report.run["calls"]["answered"] == len([c for c in folder.read_calls() if c.event == "answered"]) >= 6
    assert json.loads(folder.report_json.read_text())
    lines = [m for m in folder.read_metrics() if m["stage"] == "grpo"]
    assert [m["step"] for m in lines] == [0, 1, 2, 3]
    assert [m["rollouts"] for m in lines] == [8] * 4
    assert any(m["groups_with_signal"] for m in lines)
    assert max(m["sampler_gap/max"] for m in lines if "sampler_gap/max" in m) < 1e-3
    rollouts = folder.read_rollouts("grpo")
    for line in (m for m in folder.read_metrics() if m["stage"] == "rollouts" and "step" in m):
        of_step = [r for r in rollouts if r.step == line["step"]]
        assert line["turns"] == sum(r.turns for r in of_step) / 8
        assert line["calls"] == line["calls/add"] + line["unknown_tools"] == sum(len(r.calls) for r in of_step) / 8
        assert line["cut_off"] == sum(r.stop_reason == "token_limit" for r in of_step) / 8
    assert len(rollouts) == len({r.id for r in rollouts}) == 32
    # The weights that sampled each token are those of the step it was sampled for.
    for rollout in rollouts:
        assert {v for row in rollout.rows for v in row.versions if v >= 0} <= {rollout.step}


def test_the_report_has_a_row_of_the_saved_model_asked_as_its_clients_will(run: sdk.TrainResult) -> None:
    folder = RunFolder.open_to_read(run.run_dir)
    [asked] = folder.read_rollouts("served")
    measured = {rollout.task.id: rollout for rollout in folder.read_rollouts("after_grpo")}
    assert asked.messages == measured[asked.task.id].messages, "greedy, as far as the limit of the measurement"
    assert not asked.rows, "an endpoint tells text"
    assert run.report.served is not None
    assert (run.report.served.like, run.report.served.differ) == ("after GRPO", [])
    assert "through the endpoint (1 task of 1 family)" in str(run.report)
    assert "1 task of 1 family came out as in the measurement 'after GRPO'" in (folder.path / "report.md").read_text()
    assert report_of(run.run_dir).served == run.report.served


def test_a_saved_model_that_cannot_be_served_is_told_and_loses_no_run(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    def models() -> list[Any]:
        return [one for one in gc.get_objects() if type(one) is LlamaForCausalLM]

    others, held = models(), []

    def refuse(host: str, port: int, api_key: str | None) -> None:
        held.extend(one for one in models() if not any(one is other for other in others))
        raise sdk.ConfigError("cannot listen on this machine")

    monkeypatch.setattr("sdk.serving.server.bind", refuse)
    config = {**TINY, **SERVED, "grpo.max_steps": 0}
    run = sdk.train([add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run", config)
    assert run.report.served is not None
    assert run.report.served.condition is None
    assert held == [], "the model that was trained is let go of before the saved one is loaded"
    assert "not asked through the endpoint: cannot listen on this machine" in str(run.report)
    monkeypatch.undo()
    again = sdk.train([add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run", config)
    assert again.report.served is not None
    assert again.report.served.condition is not None


def test_training_changes_the_weights_and_the_endpoint_serves_them(run: sdk.TrainResult, tiny_model_dir: Path) -> None:
    from sdk.policies.models import load_model

    before = load_model(str(tiny_model_dir)).model.state_dict()
    after = load_model(str(run.model_dir)).model.state_dict()
    assert any(not before[name].equal(after[name]) for name in before)
    with sdk.serve(run.model_dir, port=0) as server:
        measured = Sampling(temperature=0, max_tokens=TINY["limits"]["max_turn_tokens"], strict_tools=True)
        assert server.defaults == measured, "it is served as it was measured"
        report = sdk.evaluate([add], ["2 + 2?"], even_letters, model=(f"{server.url}/v1", server.model_name))
    (condition,) = report.conditions.values()
    assert condition.unscored == 0


def test_a_finished_run_is_reported_again_without_training(run: sdk.TrainResult, tiny_model_dir: Path) -> None:
    before = (run.run_dir / "metrics.jsonl").read_bytes()
    again = sdk.train([add], tasks(), even_letters, str(tiny_model_dir), run.run_dir, {**TINY, **SERVED})
    assert again.report.conditions == run.report.conditions
    assert again.report.served == run.report.served
    assert (run.run_dir / "metrics.jsonl").read_bytes() == before


def test_what_kills_left_of_weights_that_were_being_saved_is_removed_and_the_evidence_holds(
    run: sdk.TrainResult, tiny_model_dir: Path
) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom sdk.policies.models.saving import fresh_folder\n"
        "with fresh_folder(Path(sys.argv[1])) as made:\n"
        "    (made / 'model.safetensors').write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    before = {str(path) for path in run.run_dir.rglob("*")}
    for saved in (run.model_dir, run.run_dir / "checkpoints" / "trained"):
        subprocess.run([sys.executable, "-c", script, str(saved)], check=False, timeout=60)
    assert len({str(path) for path in run.run_dir.rglob("*")} - before) == 4
    sdk.train([add], tasks(), even_letters, str(tiny_model_dir), run.run_dir, {**TINY, **SERVED})
    assert {str(path) for path in run.run_dir.rglob("*")} == before
    assert anyio.run(verify_run, run.run_dir).findings == []


def half_without_signal(rollout: sdk.Rollout) -> bool:
    """As `even_letters`, but every rollout of an even number passes, so that its group has no signal."""
    return int(rollout.task.prompt.split()[2]) % 2 == 0 or even_letters(rollout)  # type: ignore[union-attr]


def test_dynamic_sampling_replaces_groups_without_signal_in_the_same_step(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = {**TINY, "curriculum.dynamic_sampling_rounds": 2, "grpo.max_steps": 3, "grpo.save_steps": 1}
    run = sdk.train([add], tasks(), half_without_signal, str(tiny_model_dir), tmp_path / "run", config)
    folder = RunFolder.open_to_read(run.run_dir)
    lines = [line for line in folder.read_metrics() if line["stage"] == "grpo"]
    assert len(lines) == 3
    for line in lines:
        sampled = [r for r in folder.read_rollouts("grpo") if r.step == line["step"]]
        assert len(sampled) == len({r.id for r in sampled}) == line["rollouts"]
        groups: dict[str, list[sdk.Rollout]] = {}
        for rollout in sampled:
            groups.setdefault(rollout.task.id, []).append(rollout)
        assert {len(group) for group in groups.values()} == {4}
        assert len(groups) == line["groups_with_signal"] + line["groups_without_signal"]
        differ = [len({r.verdict.score for r in group if r.verdict}) > 1 for group in groups.values()]
        assert sum(differ) == line["groups_with_signal"]
        # A round is added until both of the step's places have a signal, or there have been two, or no task is left.
        assert len(groups) == 2 or sum(differ[:2]) < 2
        assert line["groups_with_signal"] >= 2 or len(groups) >= 4
        trained = [r for group, one in zip(groups.values(), differ, strict=True) if one for r in group]
        assert line["trained_tokens"] == sum(r.sampled_tokens for r in trained)
        (cost,) = (
            one for one in folder.read_metrics() if (one["stage"], one.get("step")) == ("rollouts", line["step"])
        )
        further = [r for group in list(groups.values())[2:] for r in group]
        assert cost["further_rollouts"] == len(further)
        assert cost["further_tokens"] == sum(r.sampled_tokens for r in further)
        assert (cost["further_seconds"] > 0) == bool(further)
        assert cost["further_seconds"] < cost["seconds_waited"]
    assert any(line["rollouts"] > 8 for line in lines)


@pytest.mark.parametrize("option", [{"grpo.beta": 0.1}, {"grpo.entropy_coef": 0.01}])
def test_the_divergence_from_the_reference_and_the_entropy_bonus_hold_for_groups_without_signal_too(
    option: dict[str, Any], tiny_model_dir: Path, tmp_path: Path
) -> None:
    config = {**TINY, **option, "grpo.max_steps": 2, "grpo.save_steps": 1}
    run = sdk.train([add], tasks(), half_without_signal, str(tiny_model_dir), tmp_path / "run", config)
    lines = [line for line in RunFolder.open_to_read(run.run_dir).read_metrics() if line["stage"] == "grpo"]
    assert sum(line["groups_without_signal"] for line in lines) > 0
    assert [line["trained_tokens"] for line in lines] == [line["sampled_tokens"] for line in lines]
    assert all(line.get("kl", 0) >= 0 for line in lines)


def test_a_demonstration_that_does_not_pass_its_verifier_stops_the_run_before_the_model_is_loaded(
    tmp_path: Path,
) -> None:
    with pytest.raises(sdk.ConfigError, match=r"8 of 8 demonstrations do not pass|6 of 6 demonstrations do not pass"):
        sdk.train([add], tasks(), lambda rollout: 0.0, NO_MODEL, tmp_path / "run", TINY)


def test_a_demonstration_that_ends_with_a_final_tool_is_learnt_from(tiny_model_dir: Path, tmp_path: Path) -> None:
    ending = [{**task, "demonstration": task["demonstration"][:1]} for task in tasks()]
    config = {**TINY, "grpo.max_steps": 0, "limits": {**TINY["limits"], "final_tools": {"add": None}}}

    def right(rollout: sdk.Rollout) -> bool:
        return rollout.answer == str(int(rollout.task.prompt.split()[2]) + 1)

    run = sdk.train([add], ending, right, str(tiny_model_dir), tmp_path / "run", config)
    assert list(run.report.conditions) == ["untrained", "after warm start"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"limits": {"final_tools": {"ad": None}}}, "limits.final_tools names 'ad'; the tools are add"),
        ({"grpo.max_step": 3}, "there is no option 'grpo.max_step'; did you mean 'grpo.max_steps'"),
        ({"grpo.num_generations": 1}, "grpo.num_generations is 1"),
        ({"limits": {"max_turn": 3}}, "limits.max_turn"),
        ({"warm_start.max_steps": 0, "grpo.max_steps": 0}, "nothing would be trained"),
        ({**TINY, "grpo.prompts_per_step": 100}, "prompts_per_step is 100"),
        ({**TINY, "batching.micro_batches": 3}, "batching.micro_batches must divide grpo.prompts_per_step, which is 2"),
        ({"trl": {"temperature": 0.5}}, "there is no option 'trl.temperature': it is grpo.temperature"),
        ({"trl": {"num_iterations": 2}}, "there is no option 'trl.num_iterations': it is grpo.num_iterations"),
        ("no-such-file.json", "no-such-file.json"),
    ],
)
def test_options_that_cannot_work_are_named(config: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(sdk.ConfigError, match=words):
        sdk.train([add], tasks(), even_letters, None, tmp_path / "run", config)


def test_a_verifier_that_fails_on_every_rollout_stops_the_run_with_its_message(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    def moody(rollout: sdk.Rollout) -> float:
        if rollout.policy != "scripted" and not rollout.id.startswith("demonstration/"):
            raise RuntimeError("out of order")
        return 1.0

    with pytest.raises(sdk.ToolbakeError, match="out of order"):
        sdk.train([add], tasks(), moody, str(tiny_model_dir), tmp_path / "run", TINY)


class StopAt:
    """Progress that cancels everything after some pieces of a stage."""

    def __init__(self, scope: anyio.CancelScope, stage: str, pieces: int) -> None:
        self.scope, self.stage, self.pieces = scope, stage, pieces
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Any]:
        outer = self

        class Step:
            def advance(self, amount: int = 1, note: str = "") -> None:
                if title == outer.stage:
                    outer.pieces -= 1
                    if outer.pieces == 0:
                        try:
                            outer.scope.cancel()  # in the event loop
                        except RuntimeError:
                            anyio.from_thread.run_sync(outer.scope.cancel)  # in the trainer's thread

        yield Step()


@pytest.mark.parametrize(("stage", "marker"), [("warm start", "warm_start"), ("GRPO", "grpo")])
async def test_a_cancelled_stage_never_looks_finished_and_goes_on(
    tiny_model_dir: Path, tmp_path: Path, stage: str, marker: str
) -> None:
    call = partial(sdk.train_async, [add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run", TINY)
    with anyio.CancelScope() as scope:
        await call(progress=StopAt(scope, stage, 1))
    assert scope.cancelled_caught
    assert "embedded-engine" not in {thread.name for thread in threading.enumerate()}
    assert not (tmp_path / "run" / "stages" / f"{marker}.json").exists()
    assert not (tmp_path / "run" / "model").exists()
    result = await call()
    steps = [m["step"] for m in RunFolder.open_to_read(result.run_dir).read_metrics() if m["stage"] == "grpo"]
    assert steps == [0, 1, 2, 3]


def test_a_run_killed_between_its_last_checkpoint_and_its_end_makes_no_further_step(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdk.trainer.learner import Learner

    keep = Learner.keep

    def fail_once(self: Learner, folder: Path) -> None:
        if folder.name == "trained":
            raise KeyboardInterrupt
        keep(self, folder)

    monkeypatch.setattr(Learner, "keep", fail_once)
    with pytest.raises(KeyboardInterrupt):
        sdk.train([add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run", TINY)
    monkeypatch.undo()
    result = sdk.train([add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run", TINY)
    read = RunFolder.open_to_read(result.run_dir)
    assert [m["step"] for m in read.read_metrics() if m["stage"] == "grpo"] == [0, 1, 2, 3]
    assert {r.step for r in read.read_rollouts("grpo")} == {0, 1, 2, 3}


def test_demonstrations_with_longer_turns_than_may_be_sampled_are_named() -> None:
    sampled = [True, True, True, False, True]
    row = TokenRow(prompt_ids=[1], completion_ids=[2] * 5, sampled=sampled, logprobs=[0.0] * 5, versions=[0] * 5)
    assert above_the_limit([row, row], 3) == ""
    told = above_the_limit([row, row], 2)
    assert told.startswith("2 of 2 demonstrations have a turn of more than 2 tokens (limits.max_turn_tokens), up to 3")


def test_a_demonstration_that_is_no_script_is_a_plain_error(tmp_path: Path) -> None:
    wrong = [{"prompt": f"p{n}", "demonstration": [{"role": "tool", "content": "x"}]} for n in range(4)]
    with pytest.raises(sdk.ConfigError, match="demonstration"):
        sdk.train([add], wrong, even_letters, None, tmp_path / "run", TINY)


async def test_a_sampler_in_bfloat16_is_the_model_that_is_loaded_in_bfloat16(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    source, options = str(tiny_model_dir), sdk.TrainConfig.of({"sampler_dtype": "bfloat16"})
    prompt, sampling = [token % 50 + 4 for token in range(150)], Sampling(temperature=1.0, max_tokens=20)
    loaded = load_model(source, dtype="float32")
    async with open_sampler(loaded, source=source, config=options, folder=tmp_path, progress=Silent()) as sampler:
        sampled = await sampler.sample(prompt, sampling=sampling, seed=3)
    with EmbeddedEngine(load_model(source, dtype="bfloat16").model) as engine:
        served = await engine.sample(prompt, sampling=sampling, seed=3)
    assert (sampled.token_ids, sampled.logprobs) == (served.token_ids, served.logprobs)


def test_rollouts_may_be_sampled_in_bfloat16_and_the_gap_is_corrected(tiny_model_dir: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    config = {**TINY, "warm_start.max_steps": 0, "grpo.max_steps": 2, "sampler_dtype": "bfloat16"}
    done = sdk.train([add], tasks(), even_letters, str(tiny_model_dir), tmp_path / "run", config)
    folder = RunFolder.open_to_read(done.run_dir)
    gaps = [line["sampler_gap/max"] for line in folder.read_metrics() if "sampler_gap/max" in line]
    # Eight bits of mantissa: far from the 1e-6 of float32, and nothing that a ratio of 2 would cut off.
    assert gaps
    assert all(1e-5 < gap < 0.5 for gap in gaps)
    assert folder.config["train"]["off_policy"]["importance_sampling_mode"] == "token_truncate"
    assert {str(weight.dtype) for weight in load_file(done.model_dir / "model.safetensors").values()} == {
        "torch.float32"
    }
