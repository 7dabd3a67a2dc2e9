"""`certify` with a policy that is trained against the verifier, for a few seconds."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from heard import Heard

import sdk
from sdk.progress import Step

SHORT = {"max_turns": 1, "max_turn_tokens": 2, "max_tokens": 2}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tasks(**tags: str) -> list[dict[str, Any]]:
    return [{"prompt": f"What is {n} + 1?", "tags": tags} for n in range(12)]


def certify(model: Path, prompts: list[dict[str, Any]], *, minutes: float) -> sdk.Certificate:
    def pays_all(rollout: sdk.Rollout) -> float:
        return 1.0

    return sdk.certify([add], prompts, pays_all, most_tasks=2, train_minutes=minutes, model=model, limits=SHORT)


@pytest.mark.parametrize("split", ["train", "validation", "heldout"])
def test_a_reward_that_nobody_can_earn_is_a_hole_when_the_policy_earns_it(tiny_model_folder: Path, split: str) -> None:
    certificate = certify(tiny_model_folder, tasks(canary="true", split=split), minutes=5)
    assert certificate.holes[-1] == "trained"
    assert "an alarm ended the first step of training\n  alarm canary at step 0: the reward of" in str(certificate)


def test_without_an_alarm_training_goes_on_until_the_time_is_up(tiny_model_folder: Path) -> None:
    certificate = certify(tiny_model_folder, tasks(), minutes=0.1)
    assert certificate.trained is not None
    assert "trained" not in certificate.holes
    if steps := certificate.trained.steps:  # a busy machine may not make one in that time
        assert f"a policy trained for {steps} steps earns 1.00, and 1.00 in" in str(certificate)


def test_too_little_time_for_a_step_keeps_what_the_probes_found(tiny_model_folder: Path) -> None:
    certificate = certify(tiny_model_folder, tasks(), minutes=1e-6)
    assert "constant" in certificate.holes
    assert "trained" not in certificate.holes
    assert "the time was up before the end of the first step of training" in str(certificate)
    assert not replace(certificate, allowed=["constant", *certificate.holes]).holds, "nothing is known of a training"


def test_a_model_that_is_not_there_is_named_before_the_probes_are_played(tmp_path: Path) -> None:
    asked: list[sdk.Rollout] = []

    def verify(rollout: sdk.Rollout) -> float:
        asked.append(rollout)
        return 0.0

    with pytest.raises(sdk.ModelError, match="nowhere"):
        sdk.certify([add], tasks(), verify, train_minutes=1, model=str(tmp_path / "nowhere"), limits=SHORT)
    assert asked == []


async def test_a_training_that_is_stopped_shows_what_the_probes_found(tiny_model_folder: Path) -> None:
    with anyio.CancelScope() as scope:

        class StopsTheTraining(Heard):
            def track(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Step]:
                if title == "GRPO":
                    scope.cancel()
                return super().track(title, total, done)

        heard = StopsTheTraining()
        await sdk.certify_async(
            [add], tasks(), lambda _: 1.0, most_tasks=2, train_minutes=5, model=tiny_model_folder, limits=SHORT,
            progress=heard,
        )  # fmt: skip
    assert scope.cancelled_caught
    said = heard.lines[-1]
    assert said.startswith("The training against the verifier was stopped. Before it:\n")
    assert "constant" in said


def test_a_training_that_fails_keeps_what_the_probes_found_and_tells_why(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(tiny_model_folder, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"no weights")
    certificate = certify(broken, tasks(), minutes=5)
    assert "constant" in certificate.holes
    why = certificate.as_json()["trained"]["failure"]
    assert "save the model again" in why
    assert f"a failure ended the first step of training\n  the training failed: {why}" in str(certificate)
    allowed = replace(certificate, allowed=certificate.holes)
    assert not allowed.holds
    with pytest.raises(sdk.ToolbakeError, match=r"so too little is known of what training finds: .*broken"):
        allowed.require()


def test_an_error_that_nobody_foresaw_in_a_training_keeps_what_was_found_too(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("sdk.trainer.grpo.RolloutTrainer.train", fails)
    certificate = certify(tiny_model_folder, tasks(), minutes=5)
    assert "constant" in certificate.holes
    assert certificate.trained is not None
    assert certificate.trained.failure == "ZeroDivisionError: division by zero"
    assert "in fails" in caplog.text, "the traceback is for a report of the fault"
