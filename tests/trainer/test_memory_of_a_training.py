"""What a training holds in memory: said before it begins, and kept below what is said."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_of_a_training import PROMPTS, length, look_up
from test_micro_batches import Nowhere, step_batch

import sdk
from sdk.policies.models import load_model
from sdk.trainer.config import TrainConfig
from sdk.trainer.grpo import make_trainer
from sdk.trainer.learner import Learner
from sdk.trainer.offloading import OffloadedMoments

LEAN = {"batching": {"micro_batches": 2, "offload_optimizer": True}}
GIGABYTE = 10**9


@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")
def test_two_steps_of_16_rollouts_of_the_embedded_model_take_less_than_3_gigabytes(tmp_path: Path) -> None:
    script = Path(__file__).with_name("memory_of_a_training.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run"), json.dumps(LEAN)],
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(done.stdout.splitlines()[-1])
    assert min(measured["rows"]) >= 8
    assert measured["peak"] < 3 * GIGABYTE


def weights_after(
    model_dir: Path, folder: Path, checkpoint: Path | None = None, **options: Any
) -> tuple[list[torch.Tensor], Any]:
    loaded = load_model(str(model_dir))
    seen: list[Any] = []

    def collect(step: int) -> Any:
        if step:
            seen.extend(value for one in trainer.optimizer.state.values() for value in one.values())
        return step_batch()

    config = {"grpo.num_generations": 2, "grpo.prompts_per_step": 1, "grpo.max_steps": 3, "grpo.save_steps": 2}
    trainer = make_trainer(
        loaded.model,
        loaded.tokenizer,
        config=TrainConfig.of({**config, **options}),
        output_dir=str(folder),
        collect=collect,
        publisher=Nowhere(),
        callbacks=[],
    )
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return [weight.detach().clone() for weight in loaded.model.parameters()], seen


def test_moments_in_a_file_make_the_same_steps_also_from_a_checkpoint_and_leave_no_file(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    expected, _ = weights_after(tiny_model_dir, tmp_path / "plain")
    found, moments = weights_after(tiny_model_dir, tmp_path / "lean", **{"batching.offload_optimizer": True})
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    large = [value for value in moments if value.nbytes >= mmap.PAGESIZE]
    assert large
    assert all(value.data_ptr() % mmap.PAGESIZE == 0 for value in large)
    resumed, _ = weights_after(
        tiny_model_dir, tmp_path / "later", tmp_path / "lean" / "checkpoint-2", **{"batching.offload_optimizer": True}
    )
    assert all(torch.equal(one, other) for one, other in zip(resumed, expected, strict=True))
    files = {path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*")}
    assert {path.relative_to(tmp_path / "lean") for path in (tmp_path / "lean").rglob("*")} == files
    for name in ("optimizer.pt", "model.safetensors"):
        kept = [(tmp_path / which / "checkpoint-2" / name).read_bytes() for which in ("plain", "lean")]
        assert kept[0] == kept[1], name


def weights_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def adam(sizes: list[int], **options: Any) -> torch.optim.AdamW:
    """Of weights of so many rows of 1,024 numbers, each second one without decay, as transformers makes it."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size, 1024, generator=generator)) for size in sizes]
    groups = [{"params": weights[::2], "weight_decay": 0.1}, {"params": weights[1::2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, **options)


def step(optimizer: torch.optim.Optimizer, number: int) -> None:
    """All gradients are other ones in each step; in the second one a weight has none."""
    generator = torch.Generator().manual_seed(number)
    for place, weight in enumerate(weights_of(optimizer)):
        weight.grad = None if (number, place) == (1, 2) else torch.randn(weight.shape, generator=generator)
    optimizer.step()


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"amsgrad": True}], ids=str)
def test_adam_in_parts_gives_weights_and_moments_the_bits_of_plain_adam(
    options: dict[str, Any], tmp_path: Path
) -> None:
    sizes = [37, 5, 8, 300, 1, 9, 12, 7, 11, 64]
    plain, lean = adam(sizes, **options), adam(sizes, **options)
    offloaded = OffloadedMoments(tmp_path)
    offloaded.on_train_begin(None, None, None, optimizer=lean)
    for number in range(4):
        for optimizer in (plain, lean):
            step(optimizer, number)
        offloaded.on_step_end(None, None, None, optimizer=lean)
        for one, other in zip(weights_of(lean), weights_of(plain), strict=True):
            assert torch.equal(one, other)
            assert all(torch.equal(value, plain.state[other][name]) for name, value in lean.state[one].items())
    assert [len(group["params"]) for group in lean.param_groups] == [5, 5]


def test_other_optimizers_take_all_weights_at_once_and_their_moments_wait_in_a_file(tmp_path: Path) -> None:
    plain, lean = (torch.optim.NAdam(weights_of(adam([20, 30, 40])), lr=1e-3) for _ in range(2))
    offloaded, steps = OffloadedMoments(tmp_path), list[int]()
    offloaded.on_train_begin(None, None, None, optimizer=lean)
    lean.register_step_post_hook(lambda one, *_: steps.append(len(weights_of(one))))
    for number in range(2):
        for optimizer in (plain, lean):
            step(optimizer, number)
        offloaded.on_step_end(None, None, None, optimizer=lean)
    assert steps == [3, 3]
    assert all(torch.equal(one, other) for one, other in zip(weights_of(lean), weights_of(plain), strict=True))
    assert outside_of_files(lean, tmp_path) == 0


def files_in_memory(folder: Path) -> list[tuple[range, int]]:
    """The addresses of each file of a folder that is mapped, and how many bytes of it are in memory."""
    found: list[tuple[range, int]] = []
    addresses = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            begin, _, end = first.partition("-")
            addresses = range(int(begin, 16), int(end, 16)) if str(folder) in line else None
        elif first == "Rss:" and addresses is not None:
            found.append((addresses, int(line.split()[1]) * 1024))
    return found


def outside_of_files(optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """The bytes of moments that are in no file of this folder."""
    files = [addresses for addresses, _ in files_in_memory(folder)]
    moments = (value for one in optimizer.state.values() for value in one.values() if value.nbytes >= mmap.PAGESIZE)
    return sum(value.nbytes for value in moments if not any(value.data_ptr() in addresses for addresses in files))


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")
def test_the_moments_of_an_eighth_of_the_weights_are_in_memory_at_a_time(tmp_path: Path) -> None:
    optimizer = adam([40] * 32)
    whole = 2 * sum(weight.nbytes for weight in weights_of(optimizer))
    held, steps = list[int](), list[int]()

    def look(one: torch.optim.Optimizer, *_: Any) -> None:
        held.append(outside_of_files(one, tmp_path) + sum(rss for _, rss in files_in_memory(tmp_path)))
        steps.append(len(weights_of(one)))

    offloaded = OffloadedMoments(tmp_path)
    offloaded.on_train_begin(None, None, None, optimizer=optimizer)
    optimizer.register_step_post_hook(look)
    for number in range(2):
        step(optimizer, number)
        assert outside_of_files(optimizer, tmp_path) == 0
        assert sum(rss for _, rss in files_in_memory(tmp_path)) == 0
        offloaded.on_step_end(None, None, None, optimizer=optimizer)
    assert steps == [4] * 8 * 2
    assert whole / 8 <= max(held) < 1.1 * whole / 8
    assert list(tmp_path.iterdir()) == []


class Lines(sdk.progress.Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_too_little_memory_ends_a_training_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sdk.policies.embedded.scheduler.free_bytes", lambda: 2 * GIGABYTE)
    with pytest.raises(sdk.ConfigError, match=r"2\.0 GB of memory are free.* at least 3\.0 GB.*lora\.r=16"):
        sdk.train([look_up], PROMPTS, length, output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_memory_that_may_run_out_is_a_warning_that_names_what_lowers_it(
    monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("sdk.trainer.compute_plan.weight_bytes", lambda _: 540_000_000)
    monkeypatch.setattr("sdk.policies.embedded.scheduler.free_bytes", lambda: int(3.5 * GIGABYTE))

    def said(**options: Any) -> list[str]:
        lines = Lines()
        config = {
            "evaluation": {"heldout": 1, "validation": 0, "max_served": 0},
            "warm_start": {"max_steps": 0},
            "grpo": {"max_steps": 1, "prompts_per_step": 2, "num_generations": 2},
            "probes": {"tasks": 0},
            "limits": {"max_turns": 1, "max_turn_tokens": 2},
            **options,
        }
        folder = tmp_path / str(len(options))
        sdk.train([look_up], PROMPTS, length, str(tiny_model_dir), output_dir=folder, config=config, progress=lines)
        return [line for line in lines.said if "GB of memory" in line]

    (warning,) = said()
    assert "may take 4.0 GB" in warning
    assert "batching.offload_optimizer=true" in warning
    assert "batching.gradient_checkpointing" not in warning, "it is set"
    assert said(**LEAN) == []
    (warning,) = said(batching={"gradient_checkpointing": False, "offload_optimizer": True}, seed=1)
    assert "batching.gradient_checkpointing=true" in warning


def test_nothing_is_stored_of_rollouts_that_were_measured_when_weights_are_kept_or_loaded(
    monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path, tmp_path: Path
) -> None:
    stored: list[tuple[str, int]] = []

    def look(name: str, function: Any) -> Any:
        def watched(learner: Learner, *args: Any, **named: Any) -> Any:
            stored.append((name, len(learner.engine._batch.rows.rows)))
            return function(learner, *args, **named)

        return watched

    for name in ("keep", "_load", "save"):
        monkeypatch.setattr(Learner, name, look(name, getattr(Learner, name)))
    config = {
        "evaluation": {"heldout": 2, "validation": 2, "max_served": 0},
        "warm_start": {"max_steps": 0},
        "grpo": {"max_steps": 1, "prompts_per_step": 2, "num_generations": 2},
        "probes": {"tasks": 0},
        "limits": {"max_turns": 1, "max_turn_tokens": 2},
    }
    sdk.train([look_up], PROMPTS, length, str(tiny_model_dir), output_dir=tmp_path / "run", config=config)
    assert {name for name, _ in stored} == {"keep", "_load", "save"}
    assert all(rows == 0 for _, rows in stored), stored
