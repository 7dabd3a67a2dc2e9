"""Who waits keeps no OpenMP threads, beside which another thread's would be put to sleep at each barrier."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, and libgomp")

PROGRAM = """
import asyncio, os
import sdk
import torch
from sdk.process import let_idle_threads_go
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.protocol import Sampling
from engine_models import tiny_model

torch.set_num_threads(3)

def threads():
    return len(os.listdir("/proc/self/task"))

def multiply():
    torch.ones(512, 512) @ torch.ones(512, 512)

before = threads()
multiply()
print("after a product:", threads() - before)
print(let_idle_threads_go(), threads() - before)
multiply()
print("after another:", threads() - before)
model = tiny_model(hidden_size=256, intermediate_size=2048)
at_work = []
model.model.norm.register_forward_hook(lambda *_: at_work.append(threads() - before))
before += 1  # the engine's worker
with EmbeddedEngine(model) as engine:
    print("beside an engine:", threads() - before)
    asyncio.run(engine.sample(list(range(3, 90)), sampling=Sampling(max_tokens=20), seed=0))
    print("while it samples:", max(at_work))
    multiply()
    engine.publish(model.state_dict(), version=1)
    while threads() > before:
        pass
    print("beside an idle engine:", threads() - before)
"""


@pytest.mark.timeout(100)
def test_neither_an_idle_engine_nor_who_publishes_keeps_threads() -> None:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=80,
        check=True,
        env={"PYTHONPATH": f"{here}:{here.parents[2]}", "OMP_NUM_THREADS": "3", "HF_HUB_OFFLINE": "1"},
    )
    assert done.stdout.splitlines() == [
        "after a product: 2",
        "True 0",
        "after another: 2",
        "beside an engine: 0",
        "while it samples: 2",
        "beside an idle engine: 0",
    ]
