"""Starts training scripts on two processes over gloo, by accelerate and a configuration that is shipped; and what the
runs left, side by side with those of one process. Where the configuration is of two hosts, each process has a launcher
of its own, which meet at a port as launchers on two hosts do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from free_ports import free_port
from test_training_runs import TINY, add, even_letters, tasks

import sdk
from sdk.policies.models import load_model
from sdk.traces import RunFolder

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples" / "distributed"


ROUTED = "model.layers.1.mlp.gate.e_score_correction_bias"
"""The buffer that checkpoints of the fixture `experts_dir` have."""


PORT_TAKEN = re.compile("EADDRINUSE|another process is utilizing it")
"""What torch and accelerate say where somebody else was faster to listen at the port that was found free."""


def launch(
    config: str,
    model: Path,
    folder: Path,
    runs: dict[str, dict[str, Any]],
    *,
    python: Path | None = None,
    port: int = 0,
) -> str:
    """`run_in_processes.py` under a configuration of `examples/distributed`, on two processes; what it printed.

    `python`: of an environment that has what the configuration needs. `port`: the first that is tried, 0 for any.
    """
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{HERE}:{HERE.parent.parent}", "OMP_NUM_THREADS": "1"}
    accelerate = [str(python or sys.executable), "-m", "accelerate.commands.launch"]
    accelerate += ["--config_file", str(EXAMPLES / config), "--num_processes", "2"]
    script = [str(HERE / "run_in_processes.py"), str(model), str(folder), json.dumps(runs)]
    hosts = load_config_from_file(str(EXAMPLES / config)).num_machines
    meeting = ["--main_process_ip", "127.0.0.1"] if hosts > 1 else []
    for _ in range(5):
        at = ["--main_process_port", str(port or free_port())]
        started = [[*accelerate, *at, *meeting, "--machine_rank", str(host), *script] for host in range(hosts)]
        ended = _run_together(started, env)
        if not any(one.returncode and PORT_TAKEN.search(one.stderr) for one in ended):
            break
        port = 0
    assert [one.returncode for one in ended] == [0] * hosts, "\n".join(one.stderr[-4000:] for one in ended)
    return "".join(one.stdout for one in ended)


def _run_together(commands: list[list[str]], env: dict[str, str]) -> list[subprocess.CompletedProcess[str]]:
    """To the end of all; where one fails the others, which would wait for it, are ended."""
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        for command in commands
    ]

    def finish(one: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        try:
            out, err = one.communicate(timeout=400)
        finally:
            if one.returncode != 0:
                _end(running)
        return subprocess.CompletedProcess(one.args, one.returncode, out, err)

    with ThreadPoolExecutor(len(running)) as threads:
        return list(threads.map(finish, running))


def _end(running: list[subprocess.Popen[str]]) -> None:
    for one in running:
        one.terminate()
    for one in running:
        try:
            one.wait(10)
        except subprocess.TimeoutExpired:  # one that waits for a meeting does not hear
            one.kill()


def in_one_process(model: Path, folder: Path, options: dict[str, Any]) -> None:
    with _one_thread():
        sdk.train([add], tasks(), even_letters, str(model), folder, {**TINY, **options})


@contextmanager
def _one_thread() -> Iterator[None]:
    """As the processes have: with more, sums are rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_same_updates(one: Path, two: Path, begun: Path, *, steps: int) -> None:
    """The runs' models, whose weights have left `begun`, and their figures differ by rounding alone."""
    weights = [load_model(str(folder / "model")).model.state_dict() for folder in (one, two)]
    before = load_model(str(begun)).model.state_dict()
    moved = max(float((weights[0][name] - before[name]).abs().max()) for name in before)
    assert moved > 1e-3
    for name in before:
        torch.testing.assert_close(weights[1][name], weights[0][name], rtol=0, atol=1e-3 * moved)
    lines = [
        [line for line in RunFolder.open_to_read(folder).read_metrics() if line["stage"] == "grpo"]
        for folder in (one, two)
    ]
    assert any(line["groups_with_signal"] for line in lines[0])
    for name in ("step", "reward", "rollouts", "trained_tokens"):
        assert [line[name] for line in lines[0]] == [line[name] for line in lines[1]]
    assert len(lines[0]) == steps
    assert all("sampler_gap/max" in line for line in lines[0])
    for name in ("grad_norm", "kl", "sampler_gap/mean", "sampler_gap/max"):
        figures = [[line[name] for line in one if name in line] for one in lines]
        assert figures[1] == pytest.approx(figures[0], rel=1e-3, abs=1e-6), name
