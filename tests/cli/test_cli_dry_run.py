"""`toolbake train --dry-run` tells who would compute where, on this machine or another, and starts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import toolbake

TRAIN = ("train", "--verifier", "expected", "--dry-run")


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.json").write_text(json.dumps({"engine": "vllm", "vllm": {"replicas": 2}}))


def test_a_plan_for_another_machine_names_gpus_memory_and_commands() -> None:
    told = toolbake(*TRAIN, "--config", "train.json", "--gpus", "80,80,80")
    assert told.exit_code == 0, told.output
    assert "training: all weights of the embedded model, float32, on GPU 0; about 3.2 GB" in told.stdout
    assert "2 servers in bfloat16, on GPUs 1; 2, which nothing else uses" in told.stdout
    assert told.stdout.count("\n$ ") == told.stdout.count(" CUDA_VISIBLE_DEVICES=") == 2
    assert list(Path().iterdir()) == [Path("train.json")]


@pytest.mark.parametrize(
    ("words", "said"),
    [(("none.json",), "TOOLS is 'none.json', and there is no"), (("--command", "true", "none.jsonl"), "none.jsonl")],
)
def test_tools_and_tasks_that_are_named_must_be_there(words: tuple[str, ...], said: str) -> None:
    told = toolbake(*TRAIN, *words, "--config", "train.json", "--gpus", "80,80,80")
    assert told.exit_code == 1
    assert said in told.stderr


def test_a_plan_that_cannot_work_ends_with_an_error_and_its_fix() -> None:
    told = toolbake(*TRAIN, "--config", "train.json", "--gpus", "80", "--json")
    assert told.exit_code == 1
    plan = json.loads(told.stdout)
    (problem,) = plan["problems"]
    assert "and of 1 GPU here 1 trains and 0 are left; set vllm.replicas to 1" in problem


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "80,many", "--dry-run"), "give the GB of each GPU, such as 80,80"),
        (("--gpus", "80"), "--gpus does nothing without --dry-run"),
        (("--gpus", "-3", "--dry-run"), "give the GB of each GPU"),
        (("--gpus", "inf", "--dry-run"), "give the GB of each GPU"),
    ],
)
def test_gpus_that_cannot_be_are_named(words: tuple[str, ...], said: str) -> None:
    told = toolbake("train", "--verifier", "expected", *words)
    assert told.exit_code == 1
    assert said in " ".join(told.stderr.split())
