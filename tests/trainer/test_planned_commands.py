"""The commands of servers that `toolbake train --dry-run` prints are those that a training runs."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.errors import PolicyFailure
from sdk.policies import server_process
from sdk.policies.models import load_model
from sdk.policies.server_process import typed
from sdk.policies.vllm.server_command import FOR_CPUS, VllmBuild
from sdk.progress import Silent
from sdk.trainer.compute_plan import plan_compute
from sdk.trainer.sampler import open_sampler

GB = 10**9
NEWEST = VllmBuild("/env/bin/python", "vllm", "0.33.0", cpu=False)


@pytest.mark.parametrize("build", [FOR_CPUS, NEWEST], ids=["cpu", "gpus"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora.r": 12},
        {"vllm.publish": "transfer"},
        {"vllm.replicas": 2, "vllm.arguments": ["--max-num-seqs", "8"], "vllm.environment": {"A": "b c", "KEY": "d"}},
    ],
    ids=["checkpoint", "adapter", "transfer", "arguments"],
)
async def test_the_command_of_a_plan_is_the_one_that_is_run(
    build: VllmBuild, options: dict[str, Any], tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sdk.TrainConfig.of({"engine": "vllm", **options})
    gpus = [] if build.cpu else [80 * GB] * 3
    plan = plan_compute(str(tiny_model_folder), config, gpus=gpus or None, build=build, folder=tmp_path)
    run: list[tuple[list[str], dict[str, str]]] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **how: Any) -> None:
            run.append((command, how["env"]))
            raise OSError("not here")

    monkeypatch.setattr(server_process.subprocess, "Popen", Popen)
    for module in ("sdk.policies.vllm.server_start", "sdk.trainer.compute_plan", "sdk.trainer.sampler"):
        monkeypatch.setattr(f"{module}.find_vllm", lambda named: build)
    monkeypatch.setattr("sdk.trainer.compute_plan.visible_gpus", lambda: gpus)
    loaded = load_model(str(tiny_model_folder))
    opening = open_sampler(
        loaded,
        source=str(tiny_model_folder),
        config=config,
        folder=tmp_path / "vllm",
        progress=Silent(),
        context_tokens=777,
    )
    with pytest.raises(PolicyFailure, match="cannot be started"):
        async with opening:
            pass
    ((command, environment),) = run
    log = (tmp_path / "vllm" / "vllm-1.log").read_text().splitlines()[0]
    assert log == "$ " + plan.commands[0].replace("TOKENS", "777").replace("PORT", command[-1])
    named, rest = log[2:].split(f"{build.python} -m ")
    assert shlex.split(rest) == command[2:]
    for name, value in (one.split("=", 1) for one in shlex.split(named)):
        assert value in (environment[name], "...")
    assert ("KEY=..." in log) == ("vllm.environment" in options)


def test_a_command_is_shown_without_its_secrets() -> None:
    command = ["python", "-m", "vllm", "--api-key", "sk-1", "--hf-token=hf-2", "--max-num-seqs", "8"]
    shown = typed(command, {"HTTPS_PROXY": "http://me:pw-3@proxy", "MY_AUTH": "Bearer x-4", "PGPASS": "pw-5", "A": "b"})
    assert not [secret for secret in ("sk-1", "hf-2", "pw-3", "x-4", "pw-5") if secret in shown]
    assert shown.endswith("--max-num-seqs 8")
    assert "A=b" in shown
