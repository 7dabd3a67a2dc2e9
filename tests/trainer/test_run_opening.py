"""The first moments of `sdk.train`: what is checked before a folder is written and a model is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.trainer.disk_space import COPIES, EMBEDDED_BYTES, bytes_still_needed, weight_bytes

SECRET = "sk-THE-SECRET"
TINY = {"warm_start_steps": 0, "prompts_per_step": 1, "heldout": 2}
TASKS = [{"id": f"t{n}", "prompt": f"What is {n} + 1?", "expected": {"answer": str(n + 1)}} for n in range(6)]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def answers(rollout: sdk.Rollout) -> bool:
    return rollout.task.expected["answer"] in rollout.answer


async def started(folder: Path, **changed: Any) -> None:
    """A call of `sdk.train` that gets as far as loading its model, which is not there."""
    call: dict[str, Any] = {"tools": [add], "model": "/no/such/model", "config": TINY, **changed}
    await sdk.train_async(prompts=TASKS, verifier=answers, output_dir=folder, **call)


def model_folder(path: Path, size: int, **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for half in (1, 2):
        (path / f"model-0000{half}-of-00002.safetensors").write_bytes(b"\0" * (size // 2))
    return path


async def test_a_mistyped_option_leaves_the_folder_free_for_the_corrected_call(tmp_path: Path) -> None:
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run")
    with pytest.raises(sdk.ModelError):  # and not that the folder holds another run
        await started(tmp_path / "run", config={**TINY, "seed": 3})
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert stored["train"]["seed"] == 3


async def test_tools_that_cannot_be_used_leave_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot be started"):
        await started(tmp_path / "run", tools=["/no/such/program"])
    assert not (tmp_path / "run").exists()


async def test_the_folder_says_what_the_run_is_in_a_few_lines(tmp_path: Path) -> None:
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert stored["verifier"]["name"] == "answers"
    assert (stored["train_tasks"]["count"], stored["heldout_tasks"]["count"]) == (4, 2)
    assert stored["tools"]["source"] == ["function test_run_opening.add"]
    digests = [stored[part]["digest"] for part in ("verifier", "tools", "train_tasks", "heldout_tasks")]
    assert len(set(digests)) == 4


@pytest.mark.parametrize("model", [("http://x/v1", "m", SECRET), {"base_url": "http://x/v1", "api_key": SECRET}])
async def test_a_model_that_cannot_be_trained_leaves_no_key_anywhere(tmp_path: Path, model: Any) -> None:
    with pytest.raises(sdk.ConfigError, match="an endpoint can only be evaluated") as error:
        await started(tmp_path / "run", model=model)
    assert SECRET not in str(error.value)
    assert not (tmp_path / "run").exists()


async def test_too_little_disk_space_is_said_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_folder(tmp_path / "model", 4_000_000)
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=30_000_000))
    with pytest.raises(sdk.RunFolderError, match=r"0\.03 GB free and the run needs about 0\.04 GB; free some, or"):
        await started(tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=41_000_000))
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run", model=model)


def test_weights_are_counted_as_they_are_trained(tmp_path: Path) -> None:
    assert weight_bytes(None) == EMBEDDED_BYTES
    assert weight_bytes("no-such-owner/no-such-model") == 0
    assert weight_bytes("not a name of the hub!") == 0
    assert weight_bytes(model_folder(tmp_path / "full", 1000, dtype="float32")) == 1000
    assert weight_bytes(str(model_folder(tmp_path / "half", 1000, torch_dtype="bfloat16"))) == 2000
    both = model_folder(tmp_path / "both", 1000)
    (both / "pytorch_model.bin").write_bytes(b"\0" * 1000)
    assert weight_bytes(both) == 1000


def test_what_a_resumed_run_has_written_already_needs_no_more_space(tmp_path: Path) -> None:
    model, folder = model_folder(tmp_path / "model", 1000), tmp_path / "run"
    assert bytes_still_needed(model, folder) == COPIES * 1000
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "model.safetensors").write_bytes(b"\0" * 3000)
    assert bytes_still_needed(model, folder) == COPIES * 1000 - 3000
    (folder / "model.safetensors").write_bytes(b"\0" * 30_000)
    assert bytes_still_needed(model, folder) == 0
